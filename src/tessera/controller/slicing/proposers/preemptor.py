"""Evicts pods of lower priority, so that a waiting pod of higher priority gets their slots.

By default only pods that keep room for others end: those with the annotation ``tessera.dev/yields``. Rules:

- Only the first waiting pod of a queue preempts, at most one pod in a decision, and each once in :data:`RETRY` seconds.
  A pod with ``preemptionPolicy: Never`` does not.
- Victims have a lower priority, never the same. Of all places the one with the fewest victims is taken, then the one
  whose victims lose the least work: memory slots times the time that they have run.
- Victims go through the eviction API, which keeps PodDisruptionBudgets. A victim that stays is not asked again for
  :data:`ASKED_AGAIN` seconds: the next time another place is sought.
- The slots are reserved for the pod, so nobody else gets them.
- For whole cards and shares only pods that keep room end.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tessera.api.names import PodUid
from tessera.controller.objects.pod_info import PodInfo, Record
from tessera.controller.slicing.proposals import Notice, Proposal, Proposer, evict
from tessera.controller.slicing.proposers.reserver import Reserver
from tessera.controller.slicing.state.allocation import Allocation
from tessera.controller.slicing.state.messages import preempted_text
from tessera.controller.slicing.state.node_records import PATIENCE, RETRY
from tessera.controller.slicing.state.reservation_rules import holders_of
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.placement.cards import FleetCard, OwnedPlacement
from tessera.placement.demand import CardSpread
from tessera.placement.fleet import Fleet
from tessera.placement.reserved_slots import RESERVATION_CARDS, Hold, ReservedPlace, SoonestPlace

#: What the end of an allocation costs; None if it may not end. The costs of victims are added up.
Cost = Callable[[OwnedPlacement], float | None]

#: Profiles, and how they lie on cards.
_Slices = tuple[tuple[str, ...], CardSpread]


def find_victims(
    fleet: Fleet,
    profiles: tuple[str, ...],
    cost: Cost,
    *,
    nodes: Iterable[str],
    holds: Sequence[Hold],
    admits: Callable[[str, frozenset[str]], bool],
    spread: CardSpread = (),
) -> ReservedPlace | None:
    """Returns the place with the fewest victims, of equal ones the cheapest; its holders are the victims.

    For one slice the search is exact: it compares all legal starts. For several slices it begins with all allocations
    of a node that may end, and keeps the dearest ones as long as the demand still fits; so no victim is superfluous. At
    most ``RESERVATION_CARDS`` cards are looked at.

    Args:
        fleet: the cards; unchanged.
        profiles: the demand's.
        cost: of each allocation.
        nodes: the nodes to look at.
        holds: slots that are kept for other demands.
        admits: True if a node takes the demand once these owners have ended.
        spread: how its slices lie on the cards.
    """
    best: tuple[tuple[int, float], ReservedPlace] | None = None
    looked = 0
    for node in nodes:
        cards = list(fleet.cards(node))
        looked += len(cards)
        costs = _costs(cards, cost)
        found = _one_slice(cards, profiles[0], costs, holds) if len(profiles) == 1 else None
        places = found if len(profiles) == 1 else _several(fleet, node, (profiles, spread), costs, holds)
        for place in places or ():
            owners = frozenset(one.owner for one in place.holders)
            rank = (len(owners), sum(costs[owner] for owner in owners))
            if owners and (best is None or rank < best[0]) and admits(node, owners):
                best = (rank, place)
        if looked > RESERVATION_CARDS:
            break
    return best[1] if best else None


def _costs(cards: Sequence[FleetCard], cost: Cost) -> dict[str, float]:
    """The cost of each owner on these cards that may end; an owner may end only with all its slices."""
    costs: dict[str, float] = {}
    fixed: set[str] = set()
    for card in cards:
        for one in card.allocations.values():
            found = cost(one)
            if found is None:
                fixed.add(one.owner)
            else:
                costs[one.owner] = costs.get(one.owner, 0.0) + found
    return {owner: found for owner, found in costs.items() if owner not in fixed}


def _one_slice(
    cards: Sequence[FleetCard], profile: str, costs: Mapping[str, float], holds: Sequence[Hold]
) -> Iterator[ReservedPlace]:
    """Yields each start at which only allocations that may end are in the way."""
    for card in cards:
        name = card.table.name_of(profile)
        if name is None:
            continue
        kept = 0
        for hold in holds:
            if (hold.node, hold.gpu) == (card.node.name, card.gpu):
                kept |= hold.bits
        row = card.geometry.profile(name)
        held = [(one, card.table.mask_of(one.placement.on_card)) for one in card.allocations.values()]
        for start in row.starts:
            claim = card.geometry.claim(row, start)
            blockers = tuple(one for one, bits in held if bits & claim)
            if not kept & claim and all(one.owner in costs for one in blockers):
                yield ReservedPlace((card.slice_at(name, start),), blockers, 0.0)


def _several(
    fleet: Fleet, node: str, demand: _Slices, costs: Mapping[str, float], holds: Sequence[Hold]
) -> Iterator[ReservedPlace]:
    """Yields the place on one node for which no victim is superfluous."""
    ending = set(costs)
    place = _fit(fleet, node, demand, ending, holds)
    for owner in sorted(costs, key=lambda each: (-costs[each], each)) if place is not None else ():
        other = _fit(fleet, node, demand, ending - {owner}, holds)
        if other is not None:
            ending.discard(owner)
            place = other
    if place is not None:
        yield place


def _fit(fleet: Fleet, node: str, demand: _Slices, ending: set[str], holds: Sequence[Hold]) -> ReservedPlace | None:
    """The place on a node beside everything that does not end."""
    search = SoonestPlace(
        fleet,
        demand[0],
        lambda one: 0.0 if one.owner in ending else float("inf"),
        holds=holds,
        admits=lambda _node, _owners: True,
        horizon=0.0,
        spread=demand[1],
    )
    return search.find((node,))


#: Seconds for which a victim whose eviction did not happen is left alone.
ASKED_AGAIN = 600.0


class Preemptor(Proposer):
    """Chooses victims for the first waiting pods.

    Args:
        state: the slicer's state.
        reserver: makes the reservation of the slots.
        all_pods: True if any pod of lower priority may end for one of higher priority.

    Attributes:
        evicted: pods that were asked to end; never decreases.
    """

    follows = "yields"

    def __init__(self, state: SlicerState, reserver: Reserver, *, all_pods: bool) -> None:
        self.evicted = 0
        self._all_pods = all_pods
        #: Pods that keep room for others.
        self._yielding: set[PodUid] = set()
        self._state = state
        self._reserver = reserver
        #: By waiting pod, the time of its next try.
        self._next_try: dict[PodUid, float] = {}
        #: By victim, when it was asked.
        self._asked: dict[PodUid, float] = {}

    def observe(self, uid: PodUid) -> None:
        """Takes in a pod that keeps room for others, or that is gone."""
        if uid in self._state.cluster.pods:
            self._yielding.add(uid)
        else:
            self._yielding.discard(uid)

    def propose(self) -> Iterator[Proposal]:
        """Lets the first waiting pod that is due preempt."""
        now = self._state.now
        self._forget(now)
        if now and (self._all_pods or self._yielding):
            yield from self._preempt_for_first(now)
        self.next_due = min(self._next_try.values(), default=None)

    def _preempt_for_first(self, now: float) -> Iterator[Proposal]:
        heads = [uid for _, uids in self._state.pods.blocked.heads() for uid in uids[:1]]
        pods = [self._state.cluster.pods[uid] for uid in heads if uid in self._state.cluster.pods]
        for pod in sorted(pods, key=lambda each: (-each.priority, each.created, each.key)):
            if self._may_preempt(pod, now):
                self._next_try[pod.uid] = now + RETRY
                place = self._find(pod, now)
                if place is not None:
                    yield from self._preempt(pod, place, now)
                    return

    def _may_preempt(self, pod: PodInfo, now: float) -> bool:
        if not pod.preempts or self._next_try.get(pod.uid, 0.0) > now:
            return False
        found = self._state.reservations.get(pod.uid)
        if found is None:
            return self._reserver.may_reserve(pod)
        pods = (self._state.cluster.pods.get(each.uid) for each in holders_of(self._state, found))
        return not all(each is None or each.terminating for each in pods)  # its slots are about to be free

    def _find(self, pod: PodInfo, now: float) -> ReservedPlace | None:
        def cost(one: OwnedPlacement) -> float | None:
            allocation = self._state.allocations.at(one.placement)
            return None if allocation is None else self._cost(allocation, one, pod, now)

        with self._reserver.places.admission(pod) as admits:
            return find_victims(
                self._state.inventory.fleet,
                pod.profiles,
                cost,
                nodes=self._reserver.places.nodes_for(pod),
                holds=self._reserver.places.holds_of_others(pod),
                admits=admits,
                spread=pod.spread,
            )

    def _cost(self, allocation: Allocation, one: OwnedPlacement, pod: PodInfo, now: float) -> float | None:
        """Slot seconds that a victim loses; None for a pod that may not be one."""
        victim = self._state.cluster.pods.get(allocation.uid)
        if victim is None or victim.is_held or victim.priority >= pod.priority:
            return None
        if not victim.yields and (not self._all_pods or pod.kind.record is not Record.NODE):
            return None
        if allocation.given_up or victim.terminating:
            return 0.0
        if allocation.uid in self._asked:
            return None
        ran = max(0.0, now - victim.started) if victim.started and not victim.yields else 0.0
        return one.placement.size * ran

    def _preempt(self, pod: PodInfo, place: ReservedPlace, now: float) -> Iterator[Proposal]:
        yield from self._reserver.take(pod, place, PATIENCE)
        found = self._state.reservations[pod.uid]
        for allocation in holders_of(self._state, found):
            victim = self._state.cluster.pods.get(allocation.uid)
            if victim is None or victim.terminating or allocation.given_up:
                continue
            self._asked[victim.uid] = now
            self.evicted += 1
            yield from evict(victim)
            yield Notice(victim, "SlicePreempted", preempted_text(victim, pod, found.node), warning=True)

    def _forget(self, now: float) -> None:
        for uid in [uid for uid in self._next_try if uid not in self._state.pods.blocked]:
            del self._next_try[uid]
        for uid, asked in list(self._asked.items()):
            if uid not in self._state.cluster.pods or asked + ASKED_AGAIN <= now:
                del self._asked[uid]
