"""Claims that kube-scheduler's allocator places: what it gave is on record, and nothing is decided here.

The promise in the node's Instaslice object is what the agent hands devices out by, and what counts as occupied. So once
a pod is bound, the devices of its claims become its promise. Rules:

1.  Nothing is written to a claim or to a pod, and no pod waits for a place here.
2.  A device that another promise has gets no second one: its promise follows once the other has gone. The agent
    waits for it meanwhile (:mod:`tessera.claims.agent.claim_promises`).
3.  A promise stays while a claim has its devices that its pod uses, or used; a claim of a template is its pod's only.
    kube-scheduler may give a device again once its claim is deallocated, before the agent has destroyed the slice.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tessera.api.instaslice import Slice
from tessera.api.names import NodeName, PodUid, device_id
from tessera.claims.controller.claims import Claims, find_mixture
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.allocation import Allocation, AllocationStep, will_never_run
from tessera.controller.slicing.state.instructions import PatchRecord
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.dra.claims import ResourceClaim
from tessera.dra.resource_slices import ResourceSlice
from tessera.placement.fleet import UnknownCard

#: Steps that end an allocation.
_LAST = (AllocationStep.DROP_REQUEST, AllocationStep.DROP_RESULT, AllocationStep.FORGET, AllocationStep.DELETING)


class SchedulerClaims(Claims):
    """The claims of pods for devices of one driver, as kube-scheduler allocated them.

    Args:
        state: the slicer's state.
        driver: the driver.
    """

    def __init__(self, state: SlicerState, driver: str) -> None:
        super().__init__(state, driver)
        #: By node, pods whose devices are not on record yet; no set is empty.
        self._unrecorded: dict[NodeName, set[PodUid]] = {}

    def observe(self, item: Any, *, deleted: bool) -> None:
        """See :class:`.RequestKind`."""
        super().observe(item, deleted=deleted)
        match item:
            case ResourceClaim() if item.status.allocation is not None:
                self._try_again(NodeName(item.status.allocation.node))
            case ResourceSlice():
                self._try_again(NodeName(item.spec.node_name))
            case _:
                pass

    def absorb_node(self, node: NodeName, *, renewed: bool) -> Iterator[Allocation]:
        """See :class:`.RequestKind`; slots may have become free."""
        self._try_again(node)
        yield from super().absorb_node(node, renewed=renewed)

    def _try_again(self, node: NodeName) -> None:
        self._state.cluster.changed_pods |= self._unrecorded.get(node, set())

    def read(self, pod: PodInfo) -> PodInfo:
        """See :class:`.RequestKind`; a pod asks for nothing by its claims, and one that an earlier gate holds goes."""
        if not pod.device_claims:
            return pod
        self._note(pod)
        self._free.discard(pod.uid)
        asks_by_limits = pod.profiles or pod.devices
        if pod.gated and not (asks_by_limits or pod.fault or pod.earlier_gates or will_never_run(pod)):
            self._free.add(pod.uid)
        ours = any(self._profiles.read(each).profiles for each in self._claims_of(pod)) if asks_by_limits else False
        return replace(pod, fault=pod.fault or find_mixture(pod)) if ours else pod

    def _claims_of(self, pod: PodInfo) -> Iterable[ResourceClaim]:
        return [self.allocated.claims[key] for key in pod.device_claims if key in self.allocated.claims]

    def refused(self, pod: PodInfo) -> Allocation | None:  # noqa: ARG002 - kube-scheduler has bound the pod
        """See :class:`.RequestKind`."""
        return None

    def forget(self, uid: PodUid) -> None:
        """See :class:`.RequestKind`."""
        pod = self.users.pods.get(uid)
        if pod is not None:
            self._note_recorded(pod)
        super().forget(uid)

    # What pods have -------------------------------------------------------------------------------------------------

    def adopt(self, pod: PodInfo) -> Allocation | None:
        """Returns the devices of the claims of a bound pod that are on no record, their slots occupied."""
        if not pod.device_claims:
            return None
        self._note_recorded(pod)
        if not pod.node or pod.profiles or pod.devices or will_never_run(pod) or self._state.allocations.of(pod.uid):
            return None
        slices = self._slices_of(pod)
        if slices == ():
            return None
        if slices:
            found = Allocation(pod.node, pod.uid, pod.namespace, pod.name, slices, pod.amounts)
            if self._state.inventory.occupy(found) or self._state.inventory.adopt_foreign(found):
                return found
        self._unrecorded.setdefault(pod.node, set()).add(pod.uid)
        return None

    def _note_recorded(self, pod: PodInfo) -> None:
        waiting = self._unrecorded.get(pod.node, set())
        waiting.discard(pod.uid)
        if not waiting:
            self._unrecorded.pop(pod.node, None)

    def _slices_of(self, pod: PodInfo) -> tuple[Slice, ...] | None:
        """Returns what a pod is to have on record; None as long as a claim or a device of it is not known."""
        found: list[Slice | None] = []
        others = self._state.allocations.on(pod.node)
        for key in pod.device_claims:
            claim = self.allocated.claims.get(key)
            if claim is None or claim.status.allocation is None:
                return None
            if any(each.requested and self._serves(each, key, claim) for each in others):
                continue  # the promise to another pod serves it
            found += [self._slice(pod.node, each.device.device) for each in sorted(self.allocated.devices(claim))]
        known = tuple(each for each in found if each is not None)
        return known if len(known) == len(found) else None

    def _slice(self, node: NodeName, device: str) -> Slice | None:
        place = self._published.place_of(node, device)
        if place is None:
            return None
        gpu, profile, start = place
        try:
            table = self._state.inventory.fleet.card(node, gpu).table
        except UnknownCard:
            return None
        name = table.name_of(profile)
        if name is None:
            return None
        size = table.size_of(name)
        return Slice(id=device_id(gpu, name, start), profile=name, gpu_uuid=gpu, start=start, size=size)

    def _serves(self, allocation: Allocation, key: str, claim: ResourceClaim) -> bool:
        """True if the promise to a pod is for a claim; see rule 3."""
        pod = self.users.pods.get(allocation.uid)
        uses = allocation.uid == claim.pod if claim.pod else pod is None or key in pod.device_claims
        return uses and self.allocated.is_from(claim, allocation)

    # What is never written ------------------------------------------------------------------------------------------

    def accompany(self, allocation: Allocation, step: AllocationStep) -> tuple[Sequence[PatchRecord], bool]:
        """See :class:`.RequestKind`."""
        self.users.note_slices(allocation.uid)
        if step not in _LAST:
            return (), True
        claims = self.allocated.on(allocation.node).items()
        return (), self.allocated.listed and not any(self._serves(allocation, key, each) for key, each in claims)

    def lost(self, node: NodeName) -> Sequence[PatchRecord]:  # noqa: ARG002 - kube-controller-manager takes back
        """See :class:`.RequestKind`."""
        return ()
