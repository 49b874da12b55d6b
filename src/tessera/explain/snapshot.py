"""The objects from which an explanation is made, and the controller's state that follows from them.

The user may lack rights: :attr:`Snapshot.forbidden` names the kinds that the API server refused to list. Without the
pods, nodes and Instaslice objects of the whole cluster the controller's state cannot be made; explanations then use
only the pod itself and its events.
"""

import textwrap
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from tessera.api.instaslice import KIND_LACKS, KIND_MISSING, Instaslice, Slice, recorded_slices
from tessera.api.names import NodeName
from tessera.api.nodes.card_faults import read_node_faults
from tessera.api.nodes.health import describe_fault
from tessera.api.nodes.node_marks import is_agent
from tessera.api.nodes.silence import SilentNode, silent_nodes
from tessera.api.nodes.usage import NodeUsage
from tessera.clock import parse_rfc3339
from tessera.kube.errors import describe_unanswered
from tessera.kube.resources import CoreEvent, Deployment, Lease, Namespace, Node, Pod, ReplicaSet, ResourceQuota
from tessera.kube.resources.meta import key_of
from tessera.limits import LEASE_DURATION
from tessera.mig.names import is_device_profile
from tessera.reasons.words import name_slots
from tessera.text import age, count_noun

if TYPE_CHECKING:
    from tessera.api.queues import Queue
    from tessera.controller.cluster.volumes import NodeModels
    from tessera.controller.objects.pod_info import PodInfo
    from tessera.controller.slicing.slicer import Slicer
    from tessera.explain.claim_objects import ClaimObjects
    from tessera.forecast.queue_page import QueuedPod, QueuePage
    from tessera.kueue.positions import QueueReading
    from tessera.provisioning.milestones import ProvisioningRecord

#: Most characters: an event's text in `tessera why`. Kubectl shows all of it; three events stay on one screen.
EVENT_SHOWN = 300

#: Most pods: waiting pods for which one reading of the cluster, for tessera why or the live page, looks for moves. The
#: page explains 200 pods at once; the others get their reason without moves.
MOVES_EXPLAINED = 5
#: Most kinds of pods: pods that kube-scheduler places, equal ones together, that one reading of the cluster compares
#: with every node. 0.4 s each in a cluster of 5,000 nodes; the others get the scheduler's last word.
NODES_COMPARED = 20

T = TypeVar("T")

#: Nodes that a fact names.
_NODES = 3

#: Name of the controller's Lease, as deploy/ has it.
LEASE = "tessera-controller"

#: Kinds without which the controller's state cannot be made.
REQUIRED_KINDS = frozenset({"pods", "nodes", "instaslices"})

#: A Lease may be this many of its durations old: two clocks are compared, and the holder may be slow.
_LEASE_SLACK = 2.0
_LEASE_SECONDS = 15
#: Seconds by which two clocks that are set at all may differ; a renewal further in the future is forged.
_CLOCKS_APART = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderObjects:
    """What decides on the order of waiting pods, as far as it was read (:mod:`tessera.explain.order_objects`).

    Attributes:
        namespaces: all namespaces.
        queues: the Queue objects.
        pod_groups: sizes of gangs by key, as PodGroups state them; None in a cluster without the kind.
        last_gates: gates whose owners exist in the cluster and go after Tessera.
        models: the models that KServe has brought to nodes; read only if a pod names one.
    """

    namespaces: Sequence[Namespace] = ()
    queues: "Sequence[Queue]" = ()
    pod_groups: Mapping[str, int] | None = None
    last_gates: frozenset[str] = frozenset()
    models: "Sequence[NodeModels]" = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Objects of the cluster, read once.

    Attributes:
        now: when they were read, seconds since 1970.
        pods: pods of the cluster, or of the namespace if the user may read no others.
        nodes: all nodes.
        instaslices: the Instaslice objects of nodes.
        leases: Leases with the name of the controller's.
        events: events of the namespace, or of the pod in question.
        quotas: ResourceQuotas of the namespace.
        history: records of nodes that came up; they predict how long another node takes.
        forbidden: plural names of the kinds that the user may not read, and of those in ``failed``.
        failed: why the API server did not answer, by the plural name of the kind.
        order: what decides on the order of pods, as far as the user may read it.
        queues: what Kueue says of the namespace; None if nothing in question is in a queue.
        deployments: the Deployments of pods in question that wait, as far as the user may read them.
        replica_sets: the ReplicaSets of these pods.
        hides_labels: texts must name no label of nodes but those that a pod names.
        page: the controller's queue; None if the user may not read it, or no controller answers.
        claims: what decides on ResourceClaims; None if nothing in question has any, or nobody may read them.
        pages: pages of agents, for pods with several cards.
        unanswered: nodes whose agents did not answer this reader.
    """

    now: float
    pods: Sequence[Pod] = ()
    nodes: Sequence[Node] = ()
    instaslices: Sequence[Instaslice] = ()
    leases: Sequence[Lease] = ()
    events: Sequence[CoreEvent] = ()
    quotas: Sequence[ResourceQuota] = ()
    history: "Sequence[ProvisioningRecord]" = ()
    forbidden: frozenset[str] = frozenset()
    failed: Mapping[str, str] = field(default_factory=dict)
    order: OrderObjects = field(default_factory=OrderObjects)
    queues: "QueueReading | None" = None
    deployments: Sequence[Deployment] = ()
    replica_sets: Sequence[ReplicaSet] = ()
    hides_labels: bool = False
    page: "QueuePage | None" = None
    claims: "ClaimObjects | None" = None
    pages: Sequence[NodeUsage] = ()
    unanswered: Sequence[SilentNode] = ()

    @property
    def unread(self) -> str:
        """What the API server did not answer, in one line; empty if it answered all."""
        return describe_unanswered(self.failed)

    def describe_missing(self, more: Iterable[str] = ()) -> str:
        """Says which kinds are missing, and whether the user lacks the right or the API server did not answer.

        Where it did not, a right is named only if that is in the way too.
        """
        lacking = sorted({*self.forbidden, *more} - self.failed.keys())
        told = bool(lacking) and not (self.failed and REQUIRED_KINDS.isdisjoint(lacking) and not more)
        parts = [f"you may not list {', '.join(lacking)}"] if told else []
        unread = sorted(kind for kind, why in self.failed.items() if why != KIND_MISSING)
        failed = [f"{', '.join(unread)} could not be read"] if unread else []
        return " and ".join([*parts, *failed, *([KIND_LACKS] if self.lacks_kind else [])])

    @property
    def lacks_kind(self) -> bool:
        """True if the cluster has Tessera and lacks the kind Instaslice."""
        return KIND_MISSING in self.failed.values()

    @property
    def plans_claims(self) -> bool:
        """True if all is known that a plan for pods with claims needs."""
        return self.claims is not None and not self.claims.forbidden and not self.forbidden & REQUIRED_KINDS


class ClusterView:
    """Look-ups in a snapshot, and the controller's state that follows from it.

    Attributes:
        snapshot: the objects as they were read.
        move_searches: searches for moves that may still be made for explanations.
        comparisons: kinds of pods that may still be compared with all nodes.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._made: dict[Hashable, Any] = {}
        self.move_searches = int(MOVES_EXPLAINED)
        self.comparisons = int(NODES_COMPARED)
        listed = [(node.metadata.name, each) for node in snapshot.nodes for each in read_node_faults(node)]
        faults = [fault for _, (fault, _) in listed]
        self._cordoned = Counter(name for name, (_, error) in listed if error.asks == "uncordon")
        #: The cordons by the card's UUID.
        self._cordons = {each[0].gpu: each for _, each in listed if each[1].asks == "uncordon"}
        #: The driver's index by UUID; of a card that is not listed, from its fault.
        self._indexes = {fault.gpu: fault.index for fault in faults if fault.index >= 0}
        for item in snapshot.instaslices:
            self._indexes |= item.status.node_resources.indexes()

    @cached_property
    def slicer(self) -> "Slicer | None":
        """The controller's state after one plan for all waiting pods; None if the user may read too little."""
        snapshot = self.snapshot
        if snapshot.forbidden & REQUIRED_KINDS:
            return None
        from tessera.explain.slicer_from_objects import slicer_from_objects  # a third of all, which nodes need not

        return slicer_from_objects(
            snapshot.pods,
            snapshot.nodes,
            snapshot.instaslices,
            snapshot.now,
            pod_groups=snapshot.order.pod_groups,
            namespaces=snapshot.order.namespaces,
            queues=snapshot.order.queues,
            last_gates=snapshot.order.last_gates,
            claims=snapshot.claims if snapshot.plans_claims else None,
            models=snapshot.order.models,
        )

    def read_pod(self, pod: Pod) -> "PodInfo":
        """The pod as the controller sees it: with the slices that its ResourceClaims ask for, as far as they are known.

        Of a reader who may not read what decides on claims, they are those of the controller's page, or on record.
        """
        from tessera.controller.objects.pod_info import CLAIMS, read_pod  # a node's explanation reads no pod so

        facts = replace(read_pod(pod), last_gates=self.snapshot.order.last_gates)
        if not facts.device_claims:
            return facts
        if self.slicer is not None and self.snapshot.plans_claims:
            return self.slicer.state.cluster.pods.get(facts.uid, facts)
        row = self.queue_row(pod)
        profiles = row.profiles if row is not None else tuple(each.profile for each in self.recorded(facts.uid))
        return replace(facts, profiles=profiles, other_kind=CLAIMS) if profiles else facts

    def recorded(self, uid: str) -> Sequence[Slice]:
        """The slices that are on record for a pod."""
        entries = (
            (each.spec.pod_allocation_requests.get(uid), each.status.pod_allocation_results.get(uid))
            for each in self.snapshot.instaslices
        )
        return next((recorded_slices(*found) for found in entries if any(found)), ())

    def for_kind(self, pod: "PodInfo", about: str, make: Callable[[], T]) -> T:
        """What ``make`` returns, made once for all waiting pods of a kind: a workload may have a thousand of them.

        Args:
            pod: a waiting pod.
            about: names the fact.
            make: makes it, by nothing of the pod but its kind.
        """
        from tessera.controller.slicing.lasting_refusals import kind_of

        kind = kind_of(self.slicer.state, pod) if self.slicer is not None else None
        return make() if kind is None else self.once((about, kind), make)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` returned at the first call with this key."""
        if key not in self._made:
            self._made[key] = make()
        found: T = self._made[key]
        return found

    def cordons(self, slices: Iterable[Slice]) -> Iterator[str]:
        """Yields the cordons of the cards on which these slices lie."""
        for gpu in sorted({each.gpu_uuid for each in slices} & self._cordons.keys()):
            fault, error = self._cordons[gpu]
            yield f"{fault.name} of the node: {describe_fault(error)}"

    def cordoned_cards(self) -> Iterator[str]:
        """Yields nodes with cards that a person has cordoned: a waiting pod gets none of those."""
        for name, count in sorted(self._cordoned.items())[:_NODES]:
            yield f"node {name}: {count_noun(count, 'card')} cordoned by hand: tessera health {name}"
        if len(self._cordoned) > _NODES:
            yield f"and cards of {count_noun(len(self._cordoned) - _NODES, 'more node')}"

    @property
    def indexes(self) -> Mapping[str, int]:
        """The driver's index of each card whose index is known, by UUID."""
        return self._indexes

    def card(self, gpu: str) -> str:
        """``GPU 0``; the UUID of a card whose index is not known."""
        return f"GPU {self._indexes[gpu]}" if gpu in self._indexes else gpu

    def position(self, profile: str, gpu: str, start: int, size: int) -> str:
        """``3g.20gb on GPU 0, memory slots 4-7``."""
        return f"{profile or 'a slice'} on {self.card(gpu)}, {name_slots(start, size)}"

    def slices(self, slices: Iterable[Slice]) -> str:
        """The positions of a pod's slices, as text; of whole cards and shares, which are alike, their number."""
        return self.positions((each.profile, each.gpu_uuid, each.start, each.size) for each in slices)

    def positions(self, found: Iterable[tuple[str, str, int, int]]) -> str:
        """The same for (profile, card, start, size)."""
        devices: Counter[str] = Counter()
        texts = []
        for each in found:
            if is_device_profile(each[0]):
                devices[each[0]] += 1
            else:
                texts.append(self.position(*each))
        return "; ".join([*(f"{count} x {name}" for name, count in sorted(devices.items())), *texts])

    def node(self, name: str) -> Node | None:
        """The node of this name; None if there is none or the user may not read it."""
        return next((each for each in self.snapshot.nodes if each.metadata.name == name), None)

    def pod(self, key: str) -> Pod | None:
        """The pod of this ``namespace/name``; None if there is none or the user may not read it."""
        pods = self.once("pods", lambda: {key_of(each): each for each in reversed(self.snapshot.pods)})
        return pods.get(key)

    def queue_row(self, pod: Pod) -> "QueuedPod | None":
        """What the controller's page says of a pod; None if it does not list the pod, or cannot be read."""
        page = self.snapshot.page
        rows = self.once("queue", lambda: {each.uid: each for each in page.pods} if page is not None else {})
        return rows.get(pod.metadata.uid)

    def progress(self, key: str) -> str:
        """What a pod does, as the end of a phrase; the pod may be deleted already."""
        pod = self.pod(key)
        if pod is None:
            return ", gone; its slice is being removed"
        if pod.metadata.deletion_timestamp is not None:
            return ", being deleted"
        if pod.status.phase in {"Succeeded", "Failed"}:
            return ", has ended; its slice is being removed"
        if pod.status.phase != "Running" or not pod.status.start_time:
            return f", {pod.status.phase or 'not started'}"
        return f", on its node for {age(self.snapshot.now - parse_rfc3339(pod.status.start_time))}"

    # Tessera's own processes

    def controller_fault(self) -> str:
        """The sign that no controller runs; empty if one runs, or if the user may not read Leases."""
        if "leases" in self.snapshot.forbidden:
            return ""
        if not self.snapshot.leases:
            return f"there is no Lease {LEASE}, which a running controller holds"
        faults = [self._lease_fault(lease) for lease in self.snapshot.leases]
        return "" if not all(faults) else faults[0]

    def _lease_fault(self, lease: Lease) -> str:
        where = f"Lease {lease.metadata.namespace}/{lease.metadata.name}"
        if not lease.spec.holder_identity:
            return f"no process holds {where}"
        try:
            since = self.snapshot.now - parse_rfc3339(lease.spec.renew_time or "")
        except ValueError:
            return f"{where} was never renewed"
        if since < -_CLOCKS_APART:
            return (
                f"{where} has the renewTime {lease.spec.renew_time}, a day or more in the future: if its holder"
                f" {lease.spec.holder_identity} is not a pod of Tessera, delete the Lease"
            )
        duration = min(lease.spec.lease_duration_seconds or 0, LEASE_DURATION)
        if since <= _LEASE_SLACK * (duration if duration > 0 else _LEASE_SECONDS):
            return ""
        return f"{where} was last renewed {age(since)} ago by {lease.spec.holder_identity}"

    @property
    def silent(self) -> dict[str, SilentNode]:
        """The nodes whose agents should answer and do not; none for a user who may read too little."""
        snapshot = self.snapshot
        if snapshot.forbidden & {"pods", "nodes"}:
            return {}
        objects = {each.metadata.name for each in snapshot.instaslices}
        asked = {each.node: each for each in snapshot.unanswered}
        return self.once("silent", lambda: {**asked, **silent_nodes(snapshot.nodes, snapshot.pods, objects)})

    def agent_fault(self, node: NodeName | str) -> str:
        """Why the agent of a node does not answer; empty if it does or owes no answer."""
        found = self.silent.get(node)
        return found.text(self.snapshot.now) if found is not None else ""

    def agent(self, node: NodeName | str) -> Pod | None:
        """The pod of a node's agent, or None; of several, as in an upgrade, one that is ready."""
        agents = (pod for pod in self.snapshot.pods if pod.spec.node_name == node and is_agent(pod))
        return max(agents, key=lambda pod: pod.status.is_ready, default=None)

    # Events

    def events_of(self, uid: str, *, warnings: bool = False) -> list[CoreEvent]:
        """Events of the object with this UID, newest last."""
        found = self.once("events", self._events_by_uid).get(uid, ())
        return sorted((each for each in found if not warnings or each.type == "Warning"), key=event_time)

    def _events_by_uid(self) -> dict[str, list[CoreEvent]]:
        found: dict[str, list[CoreEvent]] = {}
        for event in self.snapshot.events:
            found.setdefault(event.involved_object.uid, []).append(event)
        return found

    def events_on(self, kind: str, name: str, *, warnings: bool = False) -> list[CoreEvent]:
        """Events of an object by its name, newest last: kubelet's events carry another UID for the Node."""
        about = [(event, event.involved_object) for event in self.snapshot.events]
        found = (event for event, item in about if (item.kind, item.name) == (kind, name))
        return sorted((each for each in found if not warnings or each.type == "Warning"), key=event_time)

    def describe_event(self, event: CoreEvent) -> str:
        """An event as one line: reason, age, message."""
        ago = f" {age(self.snapshot.now - event_time(event))} ago" if event_time(event) else ""
        return f"event {event.reason}{ago}: {textwrap.shorten(event.message, EVENT_SHOWN, placeholder=' ...')}"


def event_time(event: CoreEvent) -> float:
    """The last time of an event, seconds since 1970; 0 if the event has no time."""
    last = event.series.last_observed_time if event.series is not None else None
    for text in (last, event.last_timestamp, event.event_time, event.metadata.creation_timestamp):
        if text:
            try:
                return parse_rfc3339(text)
            except ValueError:
                continue
    return 0.0
