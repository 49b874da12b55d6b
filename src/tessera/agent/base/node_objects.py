"""The objects of one node on the API server: reads them, records Events about them, and forms the Node's conditions.

The mirror follows the node, its pods and its Instaslice object by watches. All parts of the agent read from it, so they
see the same state of the cluster. Where a watch that is behind would do harm, it asks the API server itself.

Conditions of the Node report if the desired configuration of its cards is in force, and if not, why. ``Unknown`` means
"in progress". The time of the last transition changes with the status only, as Kubernetes' API conventions require.
The time of the last heartbeat is that of the last write, since the agent writes only changes.
"""

import asyncio
import functools
import operator
import random
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from tessera.agent.base.wake_ups import ChangeNotifier, Fact
from tessera.api.instaslice import INSTASLICES, Instaslice
from tessera.api.names import (
    DEVICE_API_LABEL,
    GPU_CONDITION,
    MIG_CONFIG_LABEL,
    MIG_RESOURCE_PREFIX,
    OWN_DOMAIN,
    PodUid,
)
from tessera.api.nodes.card_faults import SPARED_ANNOTATION, CardRule, decode_spared
from tessera.api.nodes.node_marks import (
    CARD_CONDITIONS,
    DRIVER_SET_LABEL,
    PAUSE_LABEL,
    REMOVAL_ANNOTATION,
    Cordon,
    read_cordons,
)
from tessera.api.sharing.profile import PROFILE_LABEL
from tessera.clock import Clock
from tessera.kube.cache import EventKind, WatchEvent
from tessera.kube.client import Client
from tessera.kube.errors import ApiError
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.informer import Informer, ObjectInformer
from tessera.kube.resources import NODES, PODS, Condition, Node, Pod, Resource
from tessera.limits import CONDITION_MESSAGE
from tessera.text import one_line

T = TypeVar("T")


class NodeSource(Protocol):
    """Gives the Node object of one node as it was last seen."""

    @property
    def node_name(self) -> str:
        """Name of the node."""
        ...

    def node(self) -> Node | None:
        """The Node object; ``None`` while there is none."""
        ...


class NodeMirror:
    """Mirrors the Node object of one node; a :class:`NodeSource`.

    Args:
        client: the API server.
        node_name: the node's name.
        clock: for pauses between attempts.
        rng: for jitter.

    Attributes:
        node_name: name of the node.
        informer: reads the object; the caller runs it.
    """

    def __init__(self, client: Client, node_name: str, *, clock: Clock, rng: random.Random) -> None:
        self.node_name = node_name
        self.informer = ObjectInformer(client, NODES, node_name, clock=clock, rng=rng)

    def node(self) -> Node | None:
        """The Node object; ``None`` while there is none."""
        return self.informer.object


class ApiMirror:
    """Mirrors one node's objects.

    Args:
        client: the API server.
        node_name: the node's name.
        namespace: namespace of the Instaslice object.
        clock: for pauses between attempts.
        rng: for jitter.
        node: an existing mirror of the Node object, which the caller runs; if not given, this one makes and runs one.

    Attributes:
        node_name: name of the node.
        nodes: the Node object alone.
        pods: the pods bound to it.
        objects: its Instaslice object alone.
    """

    def __init__(
        self,
        client: Client,
        *,
        node_name: str,
        namespace: str,
        clock: Clock,
        rng: random.Random,
        node: NodeMirror | None = None,
    ) -> None:
        self._client = client
        self._node = node or NodeMirror(client, node_name, clock=clock, rng=rng)
        self.node_name = node_name
        self._namespace = namespace
        self._by_node = f"spec.nodeName={node_name}"
        self._runs_node = node is None
        self.nodes = self._node.informer
        self.pods = Informer(client, PODS, field_selector=self._by_node, clock=clock, rng=rng)
        self.objects = ObjectInformer(client, INSTASLICES, node_name, namespace=namespace, clock=clock, rng=rng)

    async def start(self, group: asyncio.TaskGroup) -> None:
        """Begins to mirror; returns when everything was listed once. Add handlers before this call."""
        informers = (self.nodes, self.pods, self.objects)
        for informer in informers if self._runs_node else informers[1:]:
            group.create_task(informer.run())
        for informer in informers:
            await informer.wait_synced()

    def announce(self, changes: ChangeNotifier) -> Callable[[], None]:
        """Notifies ``changes`` of changes of the Node and its pods; the function returned ends that for the Node."""
        self.pods.add_handler(lambda event: changes.notify(changed_pod_facts(event)))
        return self.nodes.add_handler(lambda event: changes.notify(changed_facts(event)))

    def node(self) -> Node | None:
        """The node; ``None`` while there is no such object."""
        return self._node.node()

    def boot_id(self) -> str:
        """The node's boot id; empty while there is no such object."""
        node = self.node()
        return node.status.node_info.boot_id if node is not None else ""

    def instaslice(self) -> Instaslice | None:
        """The node's Instaslice object; ``None`` if it has none."""
        return self.objects.object

    def live_pods(self) -> Sequence[Pod]:
        """The pods bound to this node that have not ended."""
        return [pod for pod in self.pods.cache.values() if not has_ended(pod)]

    async def list_bound_pods(self) -> Sequence[Pod]:
        """The pods bound to this node that have not ended, read from the API server itself.

        Raises:
            ConnectionError: the API server did not answer.
        """
        return [pod for pod in await self._list(PODS, None, self._by_node) if not has_ended(pod)]

    async def has_promise(self, pod: PodUid) -> bool:
        """True if the API server itself has a promise to a pod.

        Raises:
            ConnectionError: the API server did not answer.
        """
        found = await self.read_instaslice()
        return found is not None and pod in found.spec.pod_allocation_requests

    async def read_instaslice(self) -> Instaslice | None:
        """The node's Instaslice object, read from the API server itself; ``None`` if it has none.

        A list of one object needs only the watch's right.

        Raises:
            ConnectionError: the API server did not answer.
        """
        found = await self._list(INSTASLICES, self._namespace, _by_name(self.node_name))
        return next(iter(found), None)

    async def exists(self, pod: PodUid, name: str, namespace: str) -> bool:
        """True if a pod of any node exists that has not ended.

        Raises:
            ConnectionError: the API server did not answer.
        """
        found = await self._list(PODS, namespace, _by_name(name))
        return any(PodUid(each.metadata.uid) == pod and not has_ended(each) for each in found)

    async def _list(self, kind: Resource[T], namespace: str | None, selector: str) -> Sequence[T]:
        try:
            return (await self._client.list(kind, namespace, field_selector=selector)).items
        except (ApiError, TimeoutError) as error:
            raise ConnectionError(str(error)) from error


def _by_name(node_name: str) -> str:
    return f"metadata.name={node_name}"


#: Domains of the labels and annotations that agents write or follow.
_DOMAINS = (OWN_DOMAIN, "nvidia.com/")
_OF_NODE = (
    Fact.NODE | Fact.NODE_ANNOTATIONS | Fact.NODE_STATUS | Fact.DESIRED_PROFILE | Fact.DESIRED_LAYOUT | Fact.DEVICE_API
)


def changed_facts(event: WatchEvent[Node]) -> Fact:
    """The facts that a change of the Node concerns."""
    before, now = event.old, event.object
    if before is None or event.kind is EventKind.DELETED:
        return _OF_NODE
    old, new = before.status, now.status
    differs = {
        Fact.NODE: _shown(before) != _shown(now),
        Fact.NODE_ANNOTATIONS: _of_tessera(before.metadata.annotations) != _of_tessera(now.metadata.annotations),
        Fact.NODE_STATUS: (old.capacity, old.allocatable, old.node_info)
        != (new.capacity, new.allocatable, new.node_info),
        Fact.DESIRED_PROFILE: _labels_differ(before, now, PROFILE_LABEL),
        Fact.DESIRED_LAYOUT: _labels_differ(before, now, MIG_CONFIG_LABEL),
        Fact.DEVICE_API: _labels_differ(before, now, DEVICE_API_LABEL),
    }
    return functools.reduce(operator.or_, (fact for fact, changed in differs.items() if changed), Fact(0))


def _shown(node: Node) -> object:
    """The UID of the Node, its labels and annotations of an agent's domains, and all its conditions."""
    metadata = node.metadata
    return metadata.uid, _of_tessera(metadata.labels), _of_tessera(metadata.annotations), node.status.conditions


def _of_tessera(metadata: Mapping[str, str]) -> set[tuple[str, str]]:
    return {each for each in metadata.items() if each[0].startswith(_DOMAINS)}


def _labels_differ(one: Node, other: Node, label: str) -> bool:
    return one.metadata.labels.get(label) != other.metadata.labels.get(label)


def driver_settings(node: Node) -> object:
    """The labels, the annotation and the conditions of a Node by which an agent decides whether its driver is used."""
    labels, annotations = node.metadata.labels, node.metadata.annotations
    settings = labels.get(PAUSE_LABEL), labels.get(DRIVER_SET_LABEL), annotations.get(REMOVAL_ANNOTATION)
    return settings, node.status.conditions


def changed_pod_facts(event: WatchEvent[Pod]) -> Fact:
    """The facts that a change of a pod concerns; none for a pod that asks for no devices of any name."""
    pod = event.object
    told = pod.status.condition(GPU_CONDITION) is not None
    facts = Fact.PODS if told or _asks_for_devices(pod) else Fact(0)
    return facts | Fact.TOLD_PODS if told else facts


def _asks_for_devices(pod: Pod) -> bool:
    """True if kubelet may give the pod devices: a sharing profile may give them any name in a domain."""
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    return bool(pod.spec.resource_claims) or any("/" in name for each in containers for name in each.resources.limits)


def asks_by_claims(pod: Pod) -> bool:
    """True if a pod may have its slices by ResourceClaims; Tessera gives none to a pod that asks by limits too."""
    limits = (name for each in pod.spec.containers for name in each.resources.limits)
    return bool(pod.spec.resource_claims) and not any(name.startswith(MIG_RESOURCE_PREFIX) for name in limits)


def has_ended(pod: Pod) -> bool:
    """True if all containers of a pod have ended for good."""
    return pod.status.phase in {"Succeeded", "Failed"}


#: The type of a Kubernetes event.
EventType = Literal["Normal", "Warning"]


class ObjectEvents:
    """Events about one node and its pods.

    Args:
        events: sends them.
        mirror: mirrors the node.
    """

    def __init__(self, events: EventRecorder, mirror: ApiMirror) -> None:
        self._events = events
        self._mirror = mirror

    def boot_id(self) -> str:
        """The node's boot id; empty while unknown."""
        return self._mirror.boot_id()

    def spared_faults(self) -> frozenset[CardRule]:
        """The faults that the breaker of the cluster spares; none while there is no Node object."""
        node = self._mirror.node()
        return decode_spared(node.metadata.annotations.get(SPARED_ANNOTATION, "")) if node is not None else frozenset()

    def cordons(self) -> tuple[Cordon, ...] | None:
        """The cards that a person has taken out of service; ``None`` while there is no Node object."""
        node = self._mirror.node()
        return read_cordons(node.metadata.annotations) if node is not None else None

    def record_on_node(self, reason: str, text: str, kind: EventType) -> None:
        """Records an event of the node: ``reason`` in CamelCase, ``text`` for people."""
        node = self._mirror.node()
        about = make_reference(NODES, self._mirror.node_name, uid=node.metadata.uid if node is not None else "")
        self._events.record(about, reason, text, type=kind)

    def record_on_pod(self, pod: Pod, reason: str, text: str, kind: EventType) -> None:
        """Records an event of a pod: ``reason`` in CamelCase, ``text`` for people."""
        about = make_reference(PODS, pod.metadata.name, pod.metadata.namespace, pod.metadata.uid)
        self._events.record(about, reason, text, type=kind)


ConditionStatus = Literal["True", "False", "Unknown"]


class NodeCondition(msgspec.Struct, frozen=True):
    """One condition as the agent writes it on the Node."""

    type: str
    status: ConditionStatus
    reason: str
    message: str


def bound_messages(conditions: Iterable[NodeCondition]) -> dict[str, NodeCondition]:
    """The conditions by type, each message one printable line of bounded length."""
    return {
        each.type: msgspec.structs.replace(each, message=one_line(each.message, CONDITION_MESSAGE))
        for each in conditions
    }


def read_conditions(shown: Iterable[Condition]) -> dict[str, NodeCondition]:
    """The agent's own conditions that a Node shows."""
    truths: Mapping[str, ConditionStatus] = {"True": "True", "False": "False"}
    return {
        each.type: NodeCondition(each.type, truths.get(each.status, "Unknown"), each.reason, each.message)
        for each in shown
        if each.type in CARD_CONDITIONS
    }


def conditions_manifest(
    conditions: Iterable[NodeCondition], since: MutableMapping[str, tuple[str, str]], now: str
) -> list[dict[str, Any]]:
    """The conditions by type, in the form of an apply.

    Args:
        conditions: all conditions to write on the Node.
        since: by type, the last status and the time since which it holds; updated to these conditions.
        now: the present time, RFC 3339.
    """
    found: list[dict[str, Any]] = []
    before = dict(since)
    since.clear()
    for each in sorted(conditions, key=lambda condition: condition.type):
        status, time = before.get(each.type, ("", now))
        time = time if status == each.status else now
        since[each.type] = (each.status, time)
        found.append({**msgspec.to_builtins(each), "lastHeartbeatTime": now, "lastTransitionTime": time})
    return found
