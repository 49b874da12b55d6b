"""Claims that kube-scheduler's allocator places: what it gave is on record, and nothing is decided here.

The promise in the node's Instaslice object is what the agent hands devices out by, and what counts as occupied. So once
a pod is bound, the devices of its claims become its promise. Rules:

1.  Nothing is written to a claim or to a pod, and no pod waits for a place here.
2.  A device that another promise has gets no second one: its promise follows once the other has gone. The agent
    waits for it meanwhile (:mod:`tessera.claims.agent.claim_promises`).
    Of a card in shares, a claim has as many as ``consumedCapacity`` says; which ones is chosen here.
3.  A promise stays while a claim has its devices that its pod uses, or used; a claim of a template is its pod's only.
    kube-scheduler may give a device again once its claim is deallocated, before the agent has destroyed the slice.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import chain
from typing import Any

from tessera.api.instaslice import Slice
from tessera.api.names import NodeName, PodUid, device_id
from tessera.claims.controller.claims import Claims, find_mixture
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.allocation import Allocation, AllocationStep, will_never_run
from tessera.controller.slicing.state.instructions import PatchRecord, RecordEvent
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.dra.claims import AllocatedDevice, ResourceClaim
from tessera.dra.devices import qualify
from tessera.dra.node_devices import places_needed
from tessera.dra.resource_slices import ResourceSlice
from tessera.kube.quantity import parse_quantity, quantity_text
from tessera.mig.names import CLAIMED_SHARE
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
        self.allocated.by_place = False
        #: By node, pods whose devices are not on record yet; no set is empty.
        self._unrecorded: dict[NodeName, set[PodUid]] = {}
        #: By pod that is gone, its claims, as long as it is on record. Of one that was gone before this controller
        #: began, the record has those that its devices are of.
        self._keys: dict[PodUid, tuple[str, ...]] = {}

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

    def repeat(self, event: RecordEvent) -> Iterator[RecordEvent]:  # noqa: ARG002 - no pod waits for a place here
        """See :class:`.RequestKind`."""
        yield from ()

    def _note_change(self, key: str, before: ResourceClaim, claim: ResourceClaim, cleared: AbstractSet[PodUid]) -> None:
        """kube-scheduler says itself what it gives and takes."""

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
            self._keys[uid] = pod.device_claims
        super().forget(uid)

    def prepare(self) -> None:
        """See :class:`.RequestKind`; a record may have gone with its node's object, without a step that says so."""
        super().prepare()
        self._keys = {uid: keys for uid, keys in self._keys.items() if self._state.allocations.of(uid)}

    # What pods have -------------------------------------------------------------------------------------------------

    def adopt(self, pod: PodInfo) -> Allocation | None:
        """Returns the devices of the claims of a bound pod that are on no record, their slots occupied."""
        if not pod.device_claims:
            return None
        self._note_recorded(pod)
        if not pod.node or pod.profiles or pod.devices or will_never_run(pod) or self._state.allocations.of(pod.uid):
            return None
        given = self._slices_of(pod)
        if given == {}:
            return None
        if given:
            claims, slices = tuple(key.partition("/")[2] for key in given), tuple(chain(*given.values()))
            found = Allocation(pod.node, pod.uid, pod.namespace, pod.name, slices, pod.amounts, claims=claims)
            if self._state.inventory.occupy(found) or self._state.inventory.adopt_foreign(found):
                return found
        self._unrecorded.setdefault(pod.node, set()).add(pod.uid)
        return None

    def _note_recorded(self, pod: PodInfo) -> None:
        waiting = self._unrecorded.get(pod.node, set())
        waiting.discard(pod.uid)
        if not waiting:
            self._unrecorded.pop(pod.node, None)

    def _slices_of(self, pod: PodInfo) -> Mapping[str, Sequence[Slice]] | None:
        """Returns by claim what a pod is to have on record; None as long as a claim or a device is not known."""
        found: dict[str, Sequence[Slice]] = {}
        others = self._state.allocations.on(pod.node)
        for key in pod.device_claims:
            claim = self.allocated.claims.get(key)
            if claim is None or claim.status.allocation is None:
                return None
            serving = [each for each in others if self._serves(each, key, claim)]
            if any(each.requested for each in serving):
                continue  # the promise to another pod serves it
            if serving:
                return None  # one that comes or goes
            own = [each for each in claim.status.allocation.devices.results if self.allocated.is_taken(each)]
            for each in sorted(own, key=lambda one: (one.pool, one.device, one.share_id)):
                slices = self._slices(pod.node, each, [*chain(*found.values())])
                if not slices:
                    return None
                found[key] = [*found.get(key, ()), *slices]
        return found

    def _slices(self, node: NodeName, given: AllocatedDevice, others: Sequence[Slice]) -> Sequence[Slice]:
        """Returns the slice of a device, or as many shares of a card as were given; empty if they are not to be had."""
        place = self._published.place_of(node, given.device)
        if place is None:
            return ()
        gpu, profile, start = place
        try:
            card = self._state.inventory.fleet.card(node, gpu)
        except UnknownCard:
            return ()
        name = card.table.name_of(profile)
        if name is None:
            return ()
        starts: Sequence[int] = (start,)
        if profile == CLAIMED_SHARE:
            row, counts = card.geometry.profile(name), self._counts(node, gpu, given)
            taken = {each.start for each in others if each.gpu_uuid == gpu}
            free = [
                one for one in row.starts if one not in taken and not card.geometry.claim(row, one) & card.instances
            ]
            starts = next((free[:count] for count in counts if 0 < count <= len(free)), ())
        size = card.table.size_of(name)
        return [Slice(id=device_id(gpu, name, one), profile=name, gpu_uuid=gpu, start=one, size=size) for one in starts]

    def _counts(self, node: NodeName, gpu: str, given: AllocatedDevice) -> Sequence[int]:
        """Returns how many shares of a card a claim has, by memory too; kube-scheduler may count fewer. Or none."""
        device = self._published.undivided_cards(node).get(gpu)
        if device is None:
            return ()
        try:
            amounts = {
                qualify(name, given.driver): parse_quantity(quantity_text(amount))
                for name, amount in given.consumed_capacity.items()
            }
        except ValueError:
            return ()
        shares = {name: amount for name, amount in amounts.items() if not name.endswith("/memory")}
        return [places_needed(device, amounts), places_needed(device, shares)]

    def _serves(self, allocation: Allocation, key: str, claim: ResourceClaim) -> bool:
        """True if the promise to a pod is for a claim; see rule 3."""
        if claim.pod:
            return allocation.uid == claim.pod and self.allocated.is_from(claim, allocation)
        pod = self.users.pods.get(allocation.uid)
        keys = self._keys.get(allocation.uid) if pod is None else pod.device_claims
        if keys is None and allocation.claims:  # its pod was gone before this controller began
            keys = tuple(f"{allocation.namespace}/{name}" for name in allocation.claims)
        return (keys is None or key in keys) and self.allocated.is_from(claim, allocation)

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
