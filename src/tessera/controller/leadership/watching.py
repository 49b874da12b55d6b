"""Hands what the mirrors show over to the state machine of placement."""

from collections.abc import Callable

from tessera.api.instaslice import Instaslice
from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.node_info import node_facts
from tessera.controller.objects.pod_info import pod_facts
from tessera.controller.slicing.slicer import Slicer
from tessera.kube.resources import Node, Pod
from tessera.kube.resources.meta import split_key
from tessera.kube.watch.cache import Event, EventKind
from tessera.kube.watch.informer import Informer


class Watching:
    """Follows pods, nodes and Instaslice objects.

    Args:
        slicer: the machine.
        changed: called after each change that was passed on.
    """

    def __init__(self, slicer: Slicer, changed: Callable[[], None]) -> None:
        self._slicer = slicer
        self._changed = changed

    def follow(self, pods: Informer[Pod], nodes: Informer[Node], objects: Informer[Instaslice]) -> None:
        """Listens to these mirrors from now on."""
        pods.on_rewound(self._slicer.rewind_pods)
        pods.add_handler(self.pod_seen)
        nodes.add_handler(self.node_seen)
        objects.on_rewound(self._slicer.rewind_objects)
        objects.on_unreadable(self.object_unreadable)
        objects.add_handler(self.object_seen)

    def pod_seen(self, event: Event[Pod]) -> None:
        """A pod came, changed or went."""
        if event.kind is EventKind.DELETED:
            self._slicer.lose_pod(PodUid(event.object.metadata.uid))
        else:
            self._slicer.see_pod(pod_facts(event.object))
        self._changed()

    def node_seen(self, event: Event[Node]) -> None:
        """A node came, changed or went."""
        if event.kind is EventKind.DELETED:
            self._slicer.lose_node(NodeName(event.object.metadata.name))
        else:
            self._slicer.see_node(node_facts(event.object))
        self._changed()

    def object_seen(self, event: Event[Instaslice]) -> None:
        """An Instaslice object came, changed or went."""
        if event.kind is EventKind.DELETED:
            self._slicer.lose_object(NodeName(event.object.metadata.name))
        else:
            self._slicer.see_object(event.object)
        self._changed()

    def object_unreadable(self, key: str, error: str | None) -> None:
        """An Instaslice object does not decode, or decodes again."""
        self._slicer.see_unreadable(NodeName(split_key(key)[1]), error)
        self._changed()
