"""One batch of demands that :mod:`tessera.placement.plan` plans together.

A card that gets slices keeps their starts open until the batch ends: they are *pending* on it. Admission, packing and
reasons are computed in parts, so that the caller can do other work between two of them.
"""

from collections.abc import Sequence

import msgspec

from tessera.mig.models import suggest_profile
from tessera.placement.card_table import add_profile
from tessera.placement.demand import Demand, NodeAllows, Parts, Reservations, StepBudget
from tessera.placement.explain import RefusalExplainer
from tessera.placement.fleet import CardPlacement, Fleet, FleetCard, OwnedPlacement
from tessera.placement.node_fit import EmptyNodes
from tessera.placement.policies import Policy
from tessera.placement.search import CardSearch
from tessera.reasons.reason import NeverFits, Reason, UnknownProfile

#: Attempts per batch to make room by packing again; each costs as much as the batch.
_REPACKS = 8
#: Steps that a demand costs besides the nodes it asks.
STEPS_A_DEMAND = 20
#: Share of the work for packing everything together; demands that it cannot pack are admitted one by one.
_PACKING_SHARE = 0.4
#: Share of the remaining work for new reasons of demands that are refused again.
_REASONS_SHARE = 0.5
#: Share of all the work by which reasons may exceed it; a further demand is postponed.
_OVERDRAFT = 0.25


class Plan(msgspec.Struct, frozen=True, gc=False):
    """Result of planning a batch.

    Attributes:
        assignments: demand's key to its placements, in the order of its profiles.
        refusals: demand's key to the reason.
        postponed: keys of undecided demands, for which the work did not suffice. Every other demand is in one of the
            other two, except demands that are refused again without a new reason, for lack of work.
    """

    assignments: dict[str, tuple[CardPlacement, ...]]
    refusals: dict[str, Reason]
    postponed: frozenset[str] = frozenset()


def unknown_profile(fleet: Fleet, profiles: Sequence[str]) -> UnknownProfile | None:
    """Returns the reason if no card of the fleet has one of these profiles."""
    for profile in profiles:
        if not any(table.names[profile] for table in fleet.tables):
            closest = suggest_profile(profile, fleet.profiles)
            return UnknownProfile(profile, fleet.profiles, closest, fleet.missing_kind)
    return None


class Batch:
    """One run of ``plan``: the pending multisets on the fleet's cards, and the demands behind them."""

    def __init__(
        self,
        fleet: Fleet,
        search: CardSearch,
        policy: Policy,
        *,
        reservations: Reservations | None,
        work: StepBudget,
    ) -> None:
        self._policy = policy
        self._fleet = fleet
        self._work = work
        self._steps = work.remaining
        self._search = search
        self._reservations = reservations
        #: By key, the admitted demands and the card of each profile; their slices are pending on these cards.
        self._assigned: dict[str, tuple[Demand, tuple[FleetCard, ...]]] = {}
        #: Remembered results of :meth:`_least_share`.
        self._shares: dict[str, tuple[float, int]] = {}
        #: Demands that the budget left undecided, in the order of admission.
        self._postponed: list[Demand] = []
        #: The nodes as if they were empty; None until a demand needs them.
        self._empties: EmptyNodes | None = None

    def run(
        self, ordered: Sequence[Demand], allows_when_empty: NodeAllows, kept: Sequence[str], *, searched: bool
    ) -> Parts[Plan]:
        """Plans these demands; ``searched`` says that the search has found no place for the only one of them."""
        reasons, possible = yield from self._refuse_impossible(ordered)
        short = yield from self._admit(possible, searched=searched)
        assignments, settled = yield from self._choose_starts()
        explainer = RefusalExplainer(self._fleet, allows_when_empty, settled, kept)
        floor = -int(_OVERDRAFT * self._steps)
        for index, demand in enumerate([each for each in short if not each.again]):
            yield
            if index and self._work.remaining < floor:
                self._postponed.append(demand)
            else:
                reasons[demand.key] = explainer.reason(demand, self._search.refusals(demand))
        left = self._work.part(_REASONS_SHARE)
        for demand in (each for each in short if each.again):
            if left.is_spent:
                break  # their last reason remains
            widened = msgspec.structs.replace(demand, nodes=None, again=False)
            left.spend(2 * self._fleet.node_count)
            yield from self._search.find_in_parts(widened, left)
            reasons[demand.key] = explainer.reason(widened, self._search.refusals(demand))
        return Plan(assignments, reasons, frozenset(demand.key for demand in self._postponed))

    def clear(self) -> None:
        """Removes all pending instances from the cards, without undoing reservations."""
        for _, cards in self._assigned.values():
            for card in cards:
                if card.pending:
                    self._fleet.set_state(card, card.occupancy, ())
        self._assigned.clear()

    # Admission

    def _refuse_impossible(self, ordered: Sequence[Demand]) -> Parts[tuple[dict[str, Reason], list[Demand]]]:
        """Refuses demands that can never fit on this fleet; returns those reasons and the other demands."""
        reasons: dict[str, Reason] = {}
        possible: list[Demand] = []
        reason_of: dict[object, Reason | None] = {}
        for index, demand in enumerate(ordered):
            kind = (demand.profiles, demand.spread, demand.again)
            if kind not in reason_of:
                if index and self._work.is_spent:
                    self._postponed = list(ordered[index:])
                    break
                reason_of[kind] = yield from self._impossible_reason(demand)
            reason = reason_of[kind]
            if reason is None:
                possible.append(demand)
            else:
                reasons[demand.key] = reason
        return reasons, possible

    def _impossible_reason(self, demand: Demand) -> Parts[Reason | None]:
        profiles = demand.profiles
        unknown = unknown_profile(self._fleet, profiles)
        if unknown is not None:
            return unknown
        if len(profiles) == 1 or demand.again:
            return None
        if self._empties is None:
            self._empties = EmptyNodes(self._fleet)
        fits = yield from self._empties.could_hold(profiles, self._work, spread=demand.spread)
        return None if fits else NeverFits(profiles)

    def _admit(self, ordered: Sequence[Demand], *, searched: bool) -> Parts[list[Demand]]:
        """Gives as many demands as the order allows a place; returns those that found none."""
        if len(ordered) > 1 and (yield from self._pack_within(_PACKING_SHARE, ordered)):
            return []
        short: list[Demand] = []
        admitted: list[Demand] = []
        hopeless = set[object]()
        repacks = _REPACKS if len(ordered) > 1 else 0
        for index, demand in enumerate(ordered):
            yield
            if index and self._work.is_spent:
                self._postponed = [*ordered[index:], *self._postponed]
                break
            if not searched and (yield from self._place(demand)):
                admitted.append(demand)
                continue
            shape = demand.shape
            if (
                repacks
                and admitted
                and shape not in hopeless
                and self._fleet.most_free_slots() >= self._search.slots_needed(demand)
            ):
                repacks -= 1
                if (yield from self._repack([*admitted, demand])):
                    admitted.append(demand)
                    continue
                hopeless.add(shape)
            yield from self._collect_refusals(demand)
            short.append(demand)
        return short

    def _pack_within(self, share: float, demands: Sequence[Demand]) -> Parts[bool]:
        """Packs all demands with that share of the work; packs none when it does not suffice."""
        whole, self._work = self._work, self._work.part(share)
        try:
            return (yield from self._pack_all(demands))
        finally:
            self._work = whole

    def _collect_refusals(self, demand: Demand) -> Parts[None]:
        """Collects the refusals of all nodes with room, for the reason."""
        if not demand.again:
            self._work.spend(2 * self._fleet.node_count)
            if demand.nodes is not None:
                yield from self._search.find_in_parts(msgspec.structs.replace(demand, nodes=None), self._work)

    def _pack_all(self, demands: Sequence[Demand]) -> Parts[bool]:
        """Places all demands, large to small, by one of the policy's variants; places none when one finds no room."""
        large_to_small = sorted(demands, key=self._largest_first)
        for variant in self._policy.packing_variants():
            if (yield from self._pack(large_to_small, variant)):
                return True
        return False

    def _pack(self, demands: Sequence[Demand], policy: Policy) -> Parts[bool]:
        for demand in demands:
            yield
            if self._work.is_spent or not (yield from self._place(demand, policy)):
                self.undo()
                return False
        return True

    def _repack(self, demands: Sequence[Demand]) -> Parts[bool]:
        before = dict(self._assigned)
        self.undo()
        if (yield from self._pack_within(_PACKING_SHARE, demands)):
            return True
        for demand, cards in before.values():
            self._assign(demand, cards)
        return False

    def undo(self) -> None:
        """Takes everything back, reservations too."""
        for demand, cards in self._assigned.values():
            if self._reservations is not None:
                self._reservations.unreserve(demand, cards[0].node.name)
        self.clear()

    def _largest_first(self, demand: Demand) -> tuple[float, int, float]:
        """Large before small, of one size the one with fewer legal starts first: 4g before 3g, 2g before 1g.10gb."""
        shares = [self._least_share(profile) for profile in demand.profiles]
        largest, starts = min(shares)
        return (largest, starts, sum(share for share, _ in shares))

    def _least_share(self, profile: str) -> tuple[float, int]:
        """Least part of a card that the profile takes, negated, and its number of starts there."""
        found = self._shares.get(profile)
        if found is None:
            rows = [(table.geometry, table.geometry.find(profile)) for table in self._fleet.tables]
            found = max((-row.size / geometry.slots, len(row.starts)) for geometry, row in rows if row)
            self._shares[profile] = found
        return found

    # One demand

    def _place(self, demand: Demand, policy: Policy | None = None) -> Parts[bool]:
        self._search.forget(demand)
        self._work.spend(STEPS_A_DEMAND)
        cards = yield from self._search.find_in_parts(demand, self._work, policy)
        if cards is None:
            return False
        self._assign(demand, cards)
        return True

    def _assign(self, demand: Demand, cards: tuple[FleetCard, ...]) -> None:
        for card, profile in zip(cards, demand.profiles, strict=True):
            name = card.table.name_of(profile)
            assert name is not None
            self._fleet.set_state(card, card.occupancy, add_profile(card.pending, name))
        self._assigned[demand.key] = (demand, cards)
        if self._reservations is not None:
            self._reservations.reserve(demand, cards[0].node.name)

    # The end of the batch

    def _choose_starts(
        self,
    ) -> Parts[tuple[dict[str, tuple[CardPlacement, ...]], dict[FleetCard, tuple[OwnedPlacement, ...]]]]:
        """Fixes the starts on every card that was given slices.

        Returns:
            Placements by demand, and for each such card all placements on it after they are carried out.
        """
        waiting: dict[tuple[FleetCard, str], list[int]] = {}
        settled: dict[FleetCard, tuple[OwnedPlacement, ...]] = {}
        for _, cards in self._assigned.values():
            yield
            for card in cards:
                if card not in settled:
                    settled[card] = tuple(card.allocations.values())
                    for one in self._policy.arrange(card.table, card.occupancy, card.pending) or ():
                        waiting.setdefault((card, one.profile), []).append(one.start)
        assignments: dict[str, tuple[CardPlacement, ...]] = {}
        for demand, cards in self._assigned.values():
            placements = []
            for card, profile in zip(cards, demand.profiles, strict=True):
                name = card.table.name_of(profile)
                assert name is not None
                starts = waiting[card, name]
                starts.sort(reverse=True)
                placed = card.slice_at(name, starts.pop())
                settled[card] = (*settled[card], OwnedPlacement(placed, demand.key))
                placements.append(placed)
            assignments[demand.key] = tuple(placements)
        return assignments, settled
