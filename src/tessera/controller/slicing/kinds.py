# ruff: noqa: ARG002 - a method that a kind does not have ignores its arguments
"""The kinds of requests, as the cycle sees them. A further kind needs no change in the steps of the cycle.

Planning sees all kinds alike: a request is a list of profiles, and what serves it are cards with geometries. A kind
puts its cards into the fleet, finds what pods hold already, and writes the record of a place if no other part does.

Slices are cut on demand by agents; the node's Instaslice object records them. Whole cards and shares are recorded by
the pod's own pin; pods that others place hold some too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from tessera.api.instaslice import NodeResources
from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.pod_info import CLAIMS, DEVICES, SLICES, KindOfRequest, PodInfo, Record
from tessera.controller.slicing.state.allocation import (
    Allocation,
    AllocationStep,
    is_short,
    reported_slices,
    will_never_run,
)
from tessera.controller.slicing.state.instructions import PatchRecord, RecordEvent
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.kube.resources import Resource
from tessera.mig.names import plain_profile, resource_spelling


class RequestKind:
    """One kind. A method that a kind does not have does nothing.

    Attributes:
        kind: what other parts know of it.
        records: the objects that record places; None if the kind writes none.
        used: False while nobody asks for it: then the cycle passes it by until :meth:`wake`.
    """

    kind: ClassVar[KindOfRequest]
    records: ClassVar[Resource[Any] | None] = None
    used: bool = True

    def wake(self) -> None:
        """Begins to be used: a pod behind the gate asks for it, or :meth:`observe_namespace` says so."""

    def read(self, pod: PodInfo) -> PodInfo:
        """Returns a pod with what it asks for, where its own spec does not say it."""
        return pod

    def reread(self) -> Sequence[PodInfo]:
        """Returns pods, as they were observed, whose requests :meth:`read` may see in another way now."""
        return ()

    def let_go(self) -> Iterable[PodInfo]:
        """Returns pods at the gate that ask for nothing: others place them."""
        return ()

    def followers(self) -> Iterable[tuple[PodInfo, PodInfo]]:
        """Returns pods that wait for what another asks for first, with what they will have; and each one's other."""
        return ()

    def forget(self, uid: PodUid) -> None:
        """Takes in that a pod does not exist any more."""

    def observe(self, item: Any, *, deleted: bool) -> None:
        """Takes in an object that only this kind knows, such as a record; the last state of one that is gone."""

    def note_listed(self) -> None:
        """Takes in that all such objects were observed."""

    def observe_namespace(self, name: str) -> bool:
        """True if the kind is to be used, now that the labels of a namespace may have changed."""
        return False

    def observe_node(self, node: NodeName) -> None:
        """Takes in that a node was observed, also without a change that wakes a pod."""

    def absorb_node(self, node: NodeName, *, renewed: bool) -> Iterable[Allocation]:
        """Brings the node's cards in line with its present state.

        Args:
            node: the node.
            renewed: its object records allocations that are new to this process.

        Returns:
            Allocations that collide with others.
        """
        return ()

    def profiles(self, node: NodeName) -> frozenset[str]:
        """Returns the profiles that a node's cards of this kind serve."""
        return frozenset()

    def recount(self) -> Iterable[Allocation]:
        """Returns allocations that are dropped, since what their pods hold is counted anew."""
        return ()

    def outgrown(self, pod: PodInfo) -> Allocation | None:
        """Returns an allocation that is dropped, since its pod may hold more now."""
        return None

    def refused(self, pod: PodInfo) -> Allocation | None:
        """Returns an allocation that its pod gives up, since the node does not take the pod."""
        return None

    def adopt(self, pod: PodInfo) -> Allocation | None:
        """Returns what a pod holds without an allocation, its slots occupied; None if there is none."""
        return None

    def freed(self, allocation: Allocation) -> None:
        """Takes in that others may have the slots of an allocation of this kind."""

    def record(self, allocation: Allocation, step: AllocationStep) -> PatchRecord | None:
        """Returns the write of a step, if an object of this kind records the allocation; None if none is due."""
        return None

    def accompany(self, allocation: Allocation, step: AllocationStep) -> tuple[Sequence[PatchRecord], bool]:
        """Returns the due writes beside a record in the node's object, and True if the step may be taken."""
        return (), True

    def repeat(self, event: RecordEvent) -> Iterable[RecordEvent]:
        """Returns an event about a pod for the records by which the pod asks."""
        return ()

    def lost(self, node: NodeName) -> Sequence[PatchRecord]:
        """Returns the due writes that take back what no allocation on a node has any more."""
        return ()

    def count(self, uid: PodUid, pod: PodInfo | None, home: NodeName | None, left: NodeName | None) -> None:
        """Counts what a pod holds besides slots on its node, and not any more on the node that it left."""

    def refresh(self) -> None:
        """Brings estimates up to date after pods were absorbed."""

    def prepare(self) -> None:
        """Brings estimates up to date after nodes were absorbed, and before pods are planned."""


class Kinds:
    """The kinds that a cluster may use.

    Args:
        kinds: make them, in the order in which the cycle asks them; of two with one name the later one counts.
        state: the slicer's state.

    Attributes:
        having: by the name of a method of :class:`RequestKind`, the used kinds that have one of their own.
        asleep: the others, by name; the steps of the cycle do not ask them.
        by_name: all of them.
    """

    def __init__(self, kinds: Sequence[Callable[[SlicerState], RequestKind]], state: SlicerState) -> None:
        found = [make(state) for make in kinds]
        self.by_name = {each.kind.name: each for each in found}
        self.asleep = {name: each for name, each in self.by_name.items() if not each.used}
        self.having: Mapping[str, Sequence[RequestKind]] = {}
        self._sort()

    def _sort(self) -> None:
        used = [each for each in self.by_name.values() if each.used]
        methods = {name: method for name, method in vars(RequestKind).items() if callable(method)}
        self.having = {
            name: [each for each in used if getattr(type(each), name) is not method] for name, method in methods.items()
        }

    def wake(self, name: str) -> None:
        """Begins to use a kind."""
        kind = self.asleep.pop(name)
        kind.used = True
        self._sort()
        kind.wake()

    def observe_namespace(self, name: str) -> None:
        """Wakes the kinds that are to be used since a namespace has changed."""
        for kind in [each for each in self.asleep.values() if each.observe_namespace(name)]:
            self.wake(kind.kind.name)


class Slices(RequestKind):
    """The cards that are cut on demand.

    Args:
        state: the slicer's state, of which this class changes the cards.
    """

    kind = SLICES

    def __init__(self, state: SlicerState) -> None:
        self._state = state
        self._cluster = state.cluster

    def absorb_node(self, node: NodeName, *, renewed: bool) -> Iterator[Allocation]:
        """See :class:`RequestKind`."""
        item, facts = self._cluster.objects.get(node), self._cluster.nodes.get(node)
        offered = facts is not None and facts.offers_on_demand and node not in self._state.faults
        resources = item.status.node_resources if item is not None and offered else None
        if resources is None:
            if self._state.cards.pop(node, None) is not None:
                self._state.inventory.put_cards(SLICES, node, {})
        elif renewed or node in self._state.inventory.renamed or self._state.cards.get(node) != resources:
            self._state.cards[node] = resources
            yield from self._rebuild(node, resources)
            known = self._cluster.pods.keys()
            self._cluster.changed_pods |= {PodUid(each.pod_uid) for each in resources.foreign} & known

    def _rebuild(self, node: NodeName, resources: NodeResources) -> Iterator[Allocation]:
        self._cluster.capacity_changes.room_may_have_grown(node)
        held = [one for one in self._state.allocations.on(node) if not one.freed and one.in_object]
        held.sort(key=self._claim_rank)
        for allocation in self._state.inventory.rebuild(node, resources, held):
            pod = self._cluster.pods.get(allocation.uid)
            if pod is None or pod.is_held:
                yield allocation

    def _claim_rank(self, allocation: Allocation) -> tuple[bool, bool, bool]:
        """Sort key of records that claim one slot: ungated pods first, then existing slices, then recorded ones."""
        pod = self._cluster.pods.get(allocation.uid)
        exists = allocation.result is not None and allocation.result[1] == "created"
        return (pod is None or pod.is_held, not exists, not allocation.recorded)

    def profiles(self, node: NodeName) -> frozenset[str]:
        """See :class:`RequestKind`."""
        resources = self._state.cards.get(node)
        if resources is None:
            return frozenset()
        return resources.profiles.union(*map(dict, self._state.inventory.names.get(node, {}).values()))

    def adopt(self, pod: PodInfo) -> Allocation | None:
        """Returns the slices that the node's agent reports for a pod without an allocation.

        A pod that runs without one (for instance after a new installation) keeps them if they match its request.
        """
        resources = (
            self._state.cards.get(pod.node)
            if pod.profiles and pod.kind.record is Record.NODE and not pod.finished
            else None
        )
        if resources is None or self._state.allocations.of(pod.uid):
            return None
        slices = reported_slices(resources, pod.uid)
        if sorted(resource_spelling(each.profile) for each in slices) != sorted(map(plain_profile, pod.profiles)):
            return None
        found = Allocation(pod.node, pod.uid, pod.namespace, pod.name, slices, pod.amounts, kind=pod.kind)
        return found if self._state.inventory.adopt_foreign(found) else None


class UnservedClaims(RequestKind):
    """Pods at the gate with ResourceClaims, in an installation that serves none: they go, unless they ask by limits.

    The webhook gated them before the claim driver was taken out of the installation. The satellite of claims has a kind
    of the same name, which takes the place of this one.
    """

    kind = CLAIMS

    def __init__(self, _state: SlicerState) -> None:
        self._held: dict[PodUid, PodInfo] = {}

    def read(self, pod: PodInfo) -> PodInfo:
        """See :class:`RequestKind`."""
        asks = pod.profiles or pod.devices or pod.fault
        if pod.device_claims and pod.gated and not (asks or pod.earlier_gates or will_never_run(pod)):
            self._held[pod.uid] = pod
        else:
            self._held.pop(pod.uid, None)
        return pod

    def forget(self, uid: PodUid) -> None:
        """See :class:`RequestKind`."""
        self._held.pop(uid, None)

    def let_go(self) -> Iterable[PodInfo]:
        """See :class:`RequestKind`."""
        return [self._held[uid] for uid in sorted(self._held)]


class Devices(RequestKind):
    """The devices of nodes, from the moment at which a pod waits for some, or a namespace is managed.

    Args:
        state: the slicer's state, of which this class changes the devices and their ratings.
    """

    kind = DEVICES
    used = False

    def __init__(self, state: SlicerState) -> None:
        self._state = state
        self._cluster = state.cluster
        self._devices = state.devices

    def observe_namespace(self, name: str) -> bool:
        """See :class:`RequestKind`."""
        return self._cluster.is_managed(name)

    def wake(self) -> None:
        """See :class:`RequestKind`."""
        self._devices.used = True
        self._cluster.changed_nodes |= self._cluster.nodes.keys()
        self._cluster.changed_pods |= {uid for uid, pod in self._cluster.pods.items() if pod.devices}

    def observe_node(self, node: NodeName) -> None:
        """See :class:`RequestKind`."""
        self._state.ratings.note(node)

    def absorb_node(self, node: NodeName, *, renewed: bool) -> Iterator[Allocation]:
        """See :class:`RequestKind`."""
        facts = self._cluster.nodes.get(node)
        self.observe_node(node)
        if self._devices.put(node, facts.devices if facts is not None else ()):
            self._cluster.capacity_changes.room_may_have_grown(node)
        yield from ()

    def profiles(self, node: NodeName) -> frozenset[str]:
        """See :class:`RequestKind`."""
        return self._devices.resources(node)

    def recount(self) -> Iterator[Allocation]:
        """After a change of nodes' devices, counts anew what pods hold there; a pod behind the gate waits again."""
        rebuilt, self._devices.rebuilt = self._devices.rebuilt, set()
        for node in sorted(rebuilt):
            yield from (each for each in self._state.allocations.on(node) if each.by_pod and not each.freed)
            self._cluster.changed_pods |= self._cluster.device_pods_of(node)

    def outgrown(self, pod: PodInfo) -> Allocation | None:
        """See :class:`RequestKind`."""
        known = self._state.allocations.current_of(pod.uid) if pod.devices else None
        if known is not None and is_short(known, pod) and self._devices.has_free(known.node, pod.devices):
            return known
        return None

    def adopt(self, pod: PodInfo) -> Allocation | None:
        """Counts the whole cards and shares of a pod as taken where it is bound, or pinned by Tessera.

        A node may have fewer than its pods request: the scheduler has bound a pod to cards that were promised, or a
        card has failed. The pod then holds those that are left, and more as others end.
        """
        if not pod.devices or pod.gated or will_never_run(pod) or self._state.is_withdrawn(pod):
            return None
        home = self._home(pod)
        if not home or self._state.allocations.current_of(pod.uid) or self._state.allocations.get(home, pod.uid):
            return None
        slices = tuple(self._devices.free_slices(home, pod.devices))
        if len(slices) < len(pod.devices) and self._state.has_lost_its_turn(pod):
            return None  # those whose turn it is have the others
        found = Allocation(home, pod.uid, pod.namespace, pod.name, slices, pod.amounts, kind=DEVICES)
        return found if self._state.inventory.occupy(found) else None

    def freed(self, allocation: Allocation) -> None:
        """Counts the pods again that hold fewer than they request."""
        for other in self._state.allocations.on(allocation.node):
            pod = self._cluster.pods.get(other.uid)
            if pod is not None and not other.freed and is_short(other, pod):
                self._cluster.changed_pods.add(pod.uid)

    def _home(self, pod: PodInfo) -> NodeName | None:
        """Returns the node whose devices a pod holds; None if it holds none.

        A pinned pod has an allocation even if its node has gone, so that it is not left there for ever.
        """
        if pod.node:
            return pod.node if pod.node in self._devices else None
        if not self._state.is_placed_here(pod) or not pod.hostname or pod.gates:
            return None
        return self._cluster.required_node(pod) or NodeName(pod.hostname)

    def count(self, uid: PodUid, pod: PodInfo | None, home: NodeName | None, left: NodeName | None) -> None:
        """Counts a pod for the ratings of nodes, and rates again the nodes where it holds amounts, or did."""
        place = self._cluster.nodes.get(home) if home is not None and home in self._devices else None
        counts = pod is not None and not pod.finished and (home is None or place is not None)
        self._state.device_demand.observe(uid, pod if counts else None, place)
        for node in (home, left):
            if node is not None and node in self._devices:
                self._state.ratings.note(node)

    def refresh(self) -> None:
        """See :class:`RequestKind`."""
        self._state.ratings.refresh()

    def prepare(self) -> None:
        """See :class:`RequestKind`."""
        self._state.ratings.update()
