"""Slices, which agents cut on demand. The node's Instaslice object records them."""

from collections.abc import Iterable, Iterator

from tessera.api.instaslice import NodeResources
from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.pod_info import CLAIMS, SLICES, PodInfo, Record
from tessera.controller.slicing.kinds.request_kind import RequestKind
from tessera.controller.slicing.state.allocation import Allocation, reported_slices, will_never_run
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.mig.names import resource_spelling


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
        return resources.profiles.union(*self._state.inventory.names.get(node, {}).values())

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
        if sorted(resource_spelling(each.profile) for each in slices) != sorted(pod.profiles):
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
