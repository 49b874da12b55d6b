"""Records Kubernetes events about the agent's node and its pods, and gives the node's boot id."""

from typing import Literal

from tessera.agent.base.api_mirror import ApiMirror
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.resources import NODES, PODS, Pod

#: The type of a Kubernetes event.
EventType = Literal["Normal", "Warning"]


class ObjectEvents:
    """Events about one node and its pods.

    Args:
        events: sends them.
        mirror: mirrors the node.
        node_name: the Node object's name.
    """

    def __init__(self, events: EventRecorder, mirror: ApiMirror, node_name: str) -> None:
        self._events = events
        self._mirror = mirror
        self._node_name = node_name

    def boot_id(self) -> str:
        """The node's boot id; empty while unknown."""
        return self._mirror.boot_id()

    def record_on_node(self, reason: str, text: str, kind: EventType) -> None:
        """Records an event of the node: ``reason`` in CamelCase, ``text`` for people."""
        node = self._mirror.node()
        about = make_reference(NODES, self._node_name, uid=node.metadata.uid if node is not None else "")
        self._events.record(about, reason, text, type=kind)

    def record_on_pod(self, pod: Pod, reason: str, text: str, kind: EventType) -> None:
        """Records an event of a pod: ``reason`` in CamelCase, ``text`` for people."""
        about = make_reference(PODS, pod.metadata.name, pod.metadata.namespace, pod.metadata.uid)
        self._events.record(about, reason, text, type=kind)
