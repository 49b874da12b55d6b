"""What pods hold and reserve: which reservations a pod must leave alone, what they keep, and how a queue counts it.

And which of the recorded ones a new controller keeps.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from tessera.api.instaslice import Instaslice, Slice
from tessera.api.names import NodeName, PodUid, resource_of
from tessera.controller.objects.node_info import AgentState
from tessera.controller.objects.pod_info import Owner, PodInfo
from tessera.controller.objects.resource_amounts import Amounts, add_amounts
from tessera.controller.slicing.state.allocation import Allocation, will_never_run
from tessera.controller.slicing.state.node_records import (
    INHERITED,
    RESERVATIONS,
    RESERVATIONS_ANNOTATION,
    RESERVED_PODS,
    RecordedReservation,
    Reservation,
    read_reservations,
)
from tessera.controller.slicing.state.queue_ledger import Holding
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.state.waiting_pod import QueueKey
from tessera.mig.geometry import Geometry
from tessera.mig.models import is_of_a_model
from tessera.mig.names import is_device_profile, parse_profile_name, plain_profile, resource_spelling
from tessera.placement.batch import unknown_profile
from tessera.placement.cards import SPARE_OF
from tessera.placement.fleet import UnknownCard
from tessera.placement.reserved_slots import Hold
from tessera.reasons.words import sentence

#: Seconds by which a pod with a deadline must end before reserved slots are expected to be free: its start and removal.
BACKFILL_MARGIN = 90.0


def reservations_before(state: SlicerState, pod: PodInfo) -> list[Reservation]:
    """Returns the reservations that go before a pod: those of a higher priority, and earlier ones of its own.

    No pod gets slots that another one inherits: its own would go to somebody else, and the other's would be gone.
    """
    own = state.reservations.get(pod.uid)
    found = state.reservations.values()
    if own is None:
        return [each for each in found if each.priority >= pod.priority]
    return [each for each in found if each.rank < own.rank or (each.is_inherited and each is not own)]


def reservations_delayed_by(state: SlicerState, pod: PodInfo, found: Iterable[Reservation]) -> list[Reservation]:
    """Returns those reservations that a pod would delay: all, unless it has a deadline and ends before they begin.

    The deadline of a pod that a later gate holds begins nobody knows when.
    """
    if pod.deadline is None or pod.later_gates:
        return list(found)
    end = state.now + pod.deadline + BACKFILL_MARGIN
    return [each for each in found if end > each.until]


def is_backfilled(state: SlicerState, pod: PodInfo) -> bool:
    """True if a pod has slots of another pod's reservation, which it must leave in time: it has a deadline."""
    found = state.reservations.values()
    return any(pod.uid in each.holders and pod.uid != each.uid for each in found)


def holders_of(state: SlicerState, reservation: Reservation) -> list[Allocation]:
    """Returns the allocations that still hold slots of a reservation."""
    cards = dict.fromkeys(each.gpu_uuid for each in reservation.slices)
    near = {one.uid: one for gpu in cards for one in state.allocations.on_card(reservation.node, gpu)}
    return [
        one
        for one in near.values()
        if not one.freed and any(meet(a, b) for a in one.slices for b in reservation.slices)
    ]


class KeptAmounts(Mapping[NodeName, Amounts]):
    """By node of these reservations, the amounts in use once their pods have replaced the holders.

    They are counted for the nodes that somebody asks about; the state must not change meanwhile.
    """

    def __init__(self, state: SlicerState, found: Iterable[Reservation]) -> None:
        self._state = state
        self._reserved: dict[NodeName, list[Reservation]] = {}
        for each in found:
            self._reserved.setdefault(each.node, []).append(each)
        self._counted: dict[NodeName, Amounts] = {}

    def __getitem__(self, node: NodeName) -> Amounts:
        if node not in self._counted:
            self._counted[node] = self._count(node)
        return self._counted[node]

    def __iter__(self) -> Iterator[NodeName]:
        return iter(self._reserved)

    def __len__(self) -> int:
        return len(self._reserved)

    def _count(self, node: NodeName) -> Amounts:
        state, found = self._state, self._reserved[node]
        used = dict(state.usage.used.get(node, {}))
        holders = {one.uid: one for each in found for one in holders_of(state, each) if not one.given_up}
        for one in holders.values():
            add_amounts(used, one.amounts, sign=-1)
        for each in found:
            pod = state.cluster.pods.get(each.uid)
            add_amounts(used, pod.amounts if pod is not None else {})
        return used


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


def is_sound(state: SlicerState, one: Reservation, pod: PodInfo) -> bool:
    """True if the node may still take the pod, and nobody has taken slots of the reservation against its rules."""
    able = state.cluster.index.open_to(pod.constraints) & state.cluster.index.mask_of(one.node)
    if not able or make_holds(state, one.node, one.slices, one.key) != one.holds:
        return False
    holders = holders_of(state, one)
    return all(each.uid in one.holders for each in holders) and not _foreign_on(state, one, {h.owner for h in holders})


def _foreign_on(state: SlicerState, one: Reservation, owners: set[str]) -> bool:
    """True if a slice of none of these owners has come to lie on the slots: one that no record explains."""
    cards = [(hold, state.inventory.fleet.card(hold.node, hold.gpu)) for hold in one.holds]
    return any(
        held.owner not in owners and hold.bits & card.table.mask_of(held.placement.on_card)
        for hold, card in cards
        for held in card.allocations.values()
    )


def is_agent_away(state: SlicerState, one: Reservation | Allocation) -> bool:
    """True if the agent of a node that takes pods is away for a while, so that nobody gets the slots meanwhile."""
    node = state.cluster.nodes.get(one.node)
    if node is None or node.cordoned:
        return False
    names = {each.profile for each in one.slices}
    resources = [name if is_device_profile(name) else resource_of(resource_spelling(name)) for name in names]
    return node.agent is AgentState.DOWN or any(node.allocatable_amount(each) == 0 for each in resources)


def is_refused(state: SlicerState, one: Reservation) -> bool:
    """True if all slots are free and planning has refused the pod since."""
    return not holders_of(state, one) and state.pods.is_refused_on(one.node, one.uid)


def overlap(one: Reservation, other: Reservation) -> bool:
    """True if two reservations share a memory slot."""
    return one.node == other.node and any(meet(a, b) for a in one.slices for b in other.slices)


def meet(one: Slice, other: Slice) -> bool:
    """True if two slices of one node share a memory slot."""
    same = one.gpu_uuid == other.gpu_uuid
    return same and one.start < other.start + other.size and other.start < one.start + one.size


def queue_key(state: SlicerState, pod: PodInfo) -> QueueKey:
    """Returns a pod's queue, and the models of cards that have its profiles."""
    tables = state.inventory.fleet.tables
    able = (table.number for table in tables if any(table.name_of(each) for each in pod.profiles))
    return (state.cluster.queue_of(pod), tuple(sorted(able)))


def holding_of(state: SlicerState, pod: PodInfo) -> Holding:
    """Returns what a waiting pod would hold: slots of the model of which it takes the least share."""
    best: tuple[float, str, int, int] | None = None
    for table in state.inventory.fleet.tables:
        names = [table.name_of(each) for each in pod.profiles]
        if all(names):
            slots = sum(table.size_of(name) for name in names if name is not None)
            model = table.geometry.family
            part = slots / max(1, state.inventory.totals.get(model, 0))
            if best is None or (part, model) < best[:2]:
                gib = sum(_gib(name, table.geometry) for name in names if name is not None)
                best = (part, model, slots, gib)
    if best is None:
        return Holding({}, sum(map(_gib, pod.profiles)))
    return Holding({best[1]: best[2]}, best[3])


def counts_for_queue(state: SlicerState, one: Reservation) -> bool:
    """True if reserved slots count for a queue besides what it holds; inherited ones do once the last pod does not."""
    if not one.is_inherited or one.kept_for is not None:
        return not one.is_inherited
    return all(will_never_run(state.cluster.pods.get(each.uid)) for each in holders_of(state, one))


def reserved_for_others(state: SlicerState, queue: str, pod: PodInfo) -> Holding:
    """Returns what is reserved for pods of a queue besides this one and its gang."""
    own = pod.gang.key if pod.gang is not None else ""
    others = (each for each in state.reservations.values() if each.uid != pod.uid and not (own and each.gang == own))
    pods = (state.cluster.pods.get(each.uid) for each in others if counts_for_queue(state, each))
    return add_holdings(
        holding_of(state, each) for each in pods if each is not None and state.cluster.queue_of(each) == queue
    )


def kind_of(spare: Reservation) -> tuple[str, str]:
    """Returns the queue and the profile of a spare slice."""
    return spare.queue[0], resource_spelling(spare.slices[0].profile) if spare.slices else ""


def free_spares(state: SlicerState) -> Mapping[tuple[str, str], list[Reservation]]:
    """Returns, by queue and profile, the spare slices that no pod holds."""
    found: dict[tuple[str, str], list[Reservation]] = {}
    for each in state.reservations.spare.values():
        if not holders_of(state, each):
            found.setdefault(kind_of(each), []).append(each)
    return found


def count_spares(state: SlicerState) -> Mapping[str, Mapping[str, tuple[int, int]]]:
    """Returns, by queue and profile, the spare slices that are free and those that the queue should keep."""
    free = free_spares(state)
    return {
        queue: {profile: (len(free.get((queue, profile), ())), wanted) for profile, wanted in spare.items()}
        for queue, spare in state.ledger.spares.items()
    }


def add_holdings(holdings: Iterable[Holding]) -> Holding:
    """Returns the sum."""
    slots: Counter[str] = Counter()
    gib = 0
    for each in holdings:
        slots.update(each.slots)
        gib += each.gib
    return Holding(slots, gib)


def held_by(state: SlicerState, allocation: Allocation | Reservation) -> Holding:
    """Returns what an allocation holds, or a reservation keeps."""
    slots: Counter[str] = Counter()
    gib = 0
    for each in allocation.slices:
        geometry = None
        with suppress(UnknownCard):  # the card is gone, the slice is not given back yet
            geometry = state.inventory.fleet.card(allocation.node, each.gpu_uuid).geometry
        slots[geometry.family if geometry is not None else ""] += each.size
        gib += _gib(each.profile, geometry)
    return Holding(dict(slots), gib)


def _gib(profile: str, geometry: Geometry | None = None) -> int:
    """GPU memory by the profile's name, as the memory quota counts it; of a device by its card."""
    if is_device_profile(profile):
        row = geometry.find(profile) if geometry is not None else None
        return row.memory_gb if row is not None else 0
    try:
        return parse_profile_name(plain_profile(profile)).memory_gb
    except ValueError:
        return 0


def spare_fault(state: SlicerState, profile: str) -> str:
    """Says that no card of the cluster has a profile of spare slices, nor a model that is known; empty otherwise."""
    reason = None if is_of_a_model(profile) else unknown_profile(state.inventory.fleet, [profile])
    return "" if reason is None else sentence(reason)


def adopt_reservations(state: SlicerState, *, keep: bool, inherits: bool) -> int:
    """Takes over the recorded reservations of pods that wait; the others are removed from the objects.

    Args:
        state: gets the reservations.
        keep: False to remove all but those of inherited slots.
        inherits: False to remove those that no pod waits for.

    Returns:
        The highest number of a reservation; 0 without any.
    """
    for name, item in state.cluster.objects.items():
        if RESERVATIONS_ANNOTATION in item.metadata.annotations:
            state.dirty_nodes.add(name)
    units: set[str] = set()
    for node, uid, each in _recorded(state.cluster.objects.values()):
        is_kept = (keep or not each.number) and (inherits or not each.kept_for)
        found = _adopt(state, node, uid, each) if is_kept else None
        if found is not None and (
            found.is_inherited or len(units) < RESERVATIONS or (found.gang or found.uid) in units
        ):
            units.update([] if found.is_inherited else [found.gang or found.uid])
            state.reservations[uid] = found
    state.reservations_due = True
    return max((each.number for each in state.reservations.values()), default=0)


def _recorded(items: Iterable[Instaslice]) -> list[tuple[NodeName, PodUid, RecordedReservation]]:
    """Returns the recorded entries, the first number first."""
    entries = [entry for item in items for entry in read_reservations(item)]
    return sorted(entries, key=lambda entry: entry[2].number)[:RESERVED_PODS]


def _adopt(
    state: SlicerState,
    node: NodeName,
    uid: PodUid,
    entry: RecordedReservation,
) -> Reservation | None:
    """Returns the reservation of an entry; None if it is not one of a waiting pod, or not legal on the cards.

    One of slots that a pod has left needs no pod: its owner is asked about anew.
    """
    pod = state.cluster.pods.get(uid)
    owner = None
    if entry.kept_for and not entry.number:
        owner = Owner(entry.pod_ref.namespace, entry.kept_for, entry.kept_for_uid)
    elif (
        pod is None
        or uid not in state.waiting
        or not pod.is_held
        or sorted(resource_spelling(one.profile) for one in entry.slices) != sorted(map(plain_profile, pod.profiles))
    ):
        return None
    key = f"{entry.pod_ref.namespace}/{entry.pod_ref.name}"
    holds = make_holds(state, node, entry.slices, key)
    if holds is None or uid in state.reservations:
        return None
    found = Reservation(
        uid=uid,
        key=key,
        queue=queue_key(state, pod) if pod is not None else (entry.queue, ()),
        priority=_priority(entry, pod),
        number=entry.number,
        node=node,
        slices=entry.slices,
        holds=holds,
        made=entry.made,
        until=entry.until,
        patience=entry.patience,
        holders={PodUid(holder) for holder in entry.holders},
        gang=pod.gang.key if pod is not None and pod.gang is not None and entry.gang else "",
        kept_for=owner,
    )
    return None if any(overlap(other, found) for other in state.reservations.values()) else found


def _priority(entry: RecordedReservation, pod: PodInfo | None) -> int:
    if entry.number:
        return pod.priority if pod is not None else 0
    return 0 if entry.kept_for.startswith(SPARE_OF) else INHERITED
