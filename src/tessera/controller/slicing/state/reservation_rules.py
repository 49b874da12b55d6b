"""Which reservations a pod must leave alone, and what they keep: slots of cards, and amounts of their nodes."""

from collections.abc import Iterable, Mapping, Sequence

from tessera.api.instaslice import Slice
from tessera.api.names import NodeName
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.objects.resource_amounts import Amounts, add_amounts
from tessera.controller.slicing.state.allocation import Allocation
from tessera.controller.slicing.state.reservation import Reservation
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.placement.fleet import UnknownCard
from tessera.placement.reserved_slots import Hold

#: Seconds by which a pod with a deadline must end before reserved slots are expected to be free: its start and removal.
PASSING_MARGIN = 90.0


def reservations_before(state: SlicerState, pod: PodInfo) -> list[Reservation]:
    """Returns the reservations that go before a pod: those of a higher priority, and earlier ones of its own."""
    own = state.reservations.get(pod.uid)
    found = state.reservations.values()
    if own is None:
        return [each for each in found if each.priority >= pod.priority]
    return [each for each in found if each.rank < own.rank]


def without_passed(state: SlicerState, pod: PodInfo, found: Iterable[Reservation]) -> list[Reservation]:
    """Returns those reservations that a pod would delay: all, unless it has a deadline and ends before they begin.

    The deadline of a pod that a later gate holds begins nobody knows when.
    """
    if pod.deadline is None or pod.later_gates:
        return list(found)
    end = state.now + pod.deadline + PASSING_MARGIN
    return [each for each in found if end > each.until]


def is_passing(state: SlicerState, pod: PodInfo) -> bool:
    """True if a pod with a deadline has slots of another pod's reservation, which it must leave in time."""
    found = state.reservations.values()
    return pod.deadline is not None and any(pod.uid in each.holders and pod.uid != each.uid for each in found)


def holders_of(state: SlicerState, reservation: Reservation) -> list[Allocation]:
    """Returns the allocations that still hold slots of a reservation."""
    return [
        one
        for one in state.allocations.on(reservation.node)
        if not one.freed and any(meet(a, b) for a in one.slices for b in reservation.slices)
    ]


def kept_amounts(state: SlicerState, found: Iterable[Reservation]) -> Mapping[NodeName, Amounts]:
    """Returns, by node of these reservations, the amounts in use once their pods have replaced the holders."""
    kept: dict[NodeName, Amounts] = {}
    counted: set[tuple[NodeName, str]] = set()
    for each in found:
        used = kept.setdefault(each.node, dict(state.usage.used.get(each.node, {})))
        for allocation in holders_of(state, each):
            if not allocation.given_up and (each.node, allocation.uid) not in counted:
                counted.add((each.node, allocation.uid))
                add_amounts(used, allocation.amounts, sign=-1)
        pod = state.cluster.pods.get(each.uid)
        add_amounts(used, pod.amounts if pod is not None else {})
    return kept


def make_holds(state: SlicerState, node: NodeName, slices: Sequence[Slice], owner: str) -> tuple[Hold, ...] | None:
    """Returns the bits of these positions by card; None if a card is missing or a position is not legal on it."""
    bits: dict[str, int] = {}
    for each in slices:
        try:
            card = state.inventory.fleet.card(node, each.gpu_uuid)
        except UnknownCard:
            return None
        row = card.geometry.find(each.profile)
        if row is None or each.start not in row.starts or row.size != each.size:
            return None
        claim = card.geometry.claim(row, each.start)
        if bits.get(each.gpu_uuid, 0) & claim:
            return None
        bits[each.gpu_uuid] = bits.get(each.gpu_uuid, 0) | claim
    return tuple(Hold(node, gpu, found, owner) for gpu, found in bits.items())


def overlap(one: Reservation, other: Reservation) -> bool:
    """True if two reservations share a memory slot."""
    return one.node == other.node and any(meet(a, b) for a in one.slices for b in other.slices)


def meet(one: Slice, other: Slice) -> bool:
    """True if two slices of one node share a memory slot."""
    same = one.gpu_uuid == other.gpu_uuid
    return same and one.start < other.start + other.size and other.start < one.start + one.size
