"""Whole cards and shares. The pod's own pin records them; pods that others place hold some too."""

from collections.abc import Iterator

from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.pod_info import DEVICES, PodInfo
from tessera.controller.slicing.kinds.request_kind import RequestKind
from tessera.controller.slicing.state.allocation import Allocation, is_short, will_never_run
from tessera.controller.slicing.state.slicer_state import SlicerState


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

    def absorb_node(self, node: NodeName, *, renewed: bool) -> Iterator[Allocation]:  # noqa: ARG002 - records tell nothing
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
