"""Simulates the ends of leases forward through placement, many times, to forecast when each waiting pod starts.

One scenario draws an end for each lease, takes the ends in the order of time, and gives freed room to waiting pods as
the controller does: the first in the order that fits on the node, by the exact packing test, beside the slots that are
kept for earlier pods. A pod that starts draws its own end and holds its room until then.

Rules:

- Pods that come later are unknown, and amounts of CPU and memory are not simulated: the outcomes correct both
  (:mod:`tessera.forecast.calibration`).
- The same situation gives the same forecast: the random numbers have a fixed seed.
- Work is counted in steps. When they are used up, the scenarios that were finished count. :meth:`Simulation.run` is
  called piece by piece, so that it never holds up a decision.

A :class:`Situation` is the state from which a simulation starts: cards, leases on them, and waiting pods in their
order. It has values only.

Nodes, cards and pods have numbers, so that a set of nodes is a bit mask.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple

import msgspec

from tessera.forecast.past_times import SurvivalCurve, quantile
from tessera.placement.card_table import CardTable
from tessera.placement.node_fit import divide_over_cards
from tessera.placement.state_costs import Pending

#: Bits of an occupancy by number of the card.
Claims = tuple[tuple[int, int], ...]


class LifeEstimate(msgspec.Struct, frozen=True):
    """How long a lease still lasts.

    Attributes:
        curve: of its kind; None if too little is known.
        age: seconds that it has run.
        deadline: seconds after which it ends in any case; None if it may run for ever.
    """

    curve: SurvivalCurve | None = None
    age: float = 0.0
    deadline: float | None = None

    def draw(self, share: float) -> tuple[float, bool]:
        """Returns the seconds within which this share of such leases end, and True if the deadline ends it.

        Infinite seconds if nothing is known.
        """
        if self.curve is None:
            return (float("inf"), False) if self.deadline is None else (self.deadline, True)
        seconds = self.curve.residual(self.age, share)
        if self.deadline is not None and self.deadline <= seconds:
            return self.deadline, True
        return seconds, False


class Holder(msgspec.Struct, frozen=True):
    """A lease on cards of one node.

    Attributes:
        node: number of the node.
        claims: what it takes of which card.
        life: how long it still lasts.
    """

    node: int
    claims: Claims
    life: LifeEstimate


class Waiter(msgspec.Struct, frozen=True):
    """A waiting pod.

    Attributes:
        profiles: the slices that it needs, sorted.
        nodes: mask of the nodes that may take it.
        life: how long it will hold them.
        reserved: slots that are kept for it; others that come later may not use them.
    """

    profiles: tuple[str, ...]
    nodes: int
    life: LifeEstimate = LifeEstimate()
    reserved: Claims = ()


class Situation(msgspec.Struct, frozen=True):
    """All of it.

    Attributes:
        nodes: the numbers of the cards of each node.
        tables: the table of each card.
        occupancies: the bits in use of each card.
        holders: the leases.
        waiters: the waiting pods; the first goes first.
    """

    nodes: Sequence[Sequence[int]]
    tables: Sequence[CardTable]
    occupancies: Sequence[int]
    holders: Sequence[Holder]
    waiters: Sequence[Waiter]


#: Most steps: ends and starts of pods in all simulated futures of one forecast. About a second, in pieces; what was
#: simulated until then counts.
FORECAST_STEPS = 400_000

_SEED = 20_240_917
#: Seconds after which a start is as good as never.
HORIZON = 30 * 86_400.0
#: Simulated futures: the ninth decile of 40 has four behind it, and more cost more than they tell.
_SCENARIOS = 40
#: Steps without a pause: about 5 ms, for which a decision may have to wait.
_PIECE = 1_000
#: Scenarios that give a range.
_LEAST_SCENARIOS = 8


class StartForecast(NamedTuple):
    """When a waiting pod starts, in seconds from now; infinite if that is not known.

    Attributes:
        p50: half of the scenarios start it before.
        p90: nine of ten do.
        by_deadline: True if a deadline makes the room in most scenarios.
    """

    p50: float
    p90: float
    by_deadline: bool = False


class Simulation:
    """The forecast of one situation.

    Args:
        situation: the state now.
        scenarios: number of scenarios, if the steps allow.
        steps: the bound of the work.
    """

    def __init__(self, situation: Situation, *, scenarios: int = _SCENARIOS, steps: int = FORECAST_STEPS) -> None:
        self._at = situation
        self._scenarios = scenarios
        self._steps = steps
        self._rng = random.Random(_SEED)
        #: Starts of each waiting pod, one for each finished scenario.
        self._starts: list[list[float]] = [[] for _ in situation.waiters]
        #: Number of these that a deadline made.
        self._by_deadline = [0] * len(situation.waiters)
        self._rooms = RoomSearch(situation)
        self._kinds = _kinds(situation)

    def run(self) -> Iterator[None]:
        """Simulates; yields after each piece of work."""
        if not self._at.waiters:
            return
        for number in range(self._scenarios):
            scenario = _Scenario(self._at, self._rooms, self._kinds, self._rng)
            pieces = 0
            for spent in scenario.run():
                self._steps -= spent
                pieces += spent
                if pieces >= _PIECE:
                    pieces = 0
                    yield
                if self._steps <= 0 and number >= _LEAST_SCENARIOS:
                    return
            for waiter, (start, deadline) in enumerate(zip(scenario.starts, scenario.by_deadline, strict=True)):
                self._starts[waiter].append(start)
                self._by_deadline[waiter] += deadline
            yield

    def forecast(self, waiter: int) -> StartForecast:
        """Returns the forecast of a waiting pod from the scenarios so far."""
        starts = self._starts[waiter]
        if not starts:
            return StartForecast(inf, inf)
        return StartForecast(quantile(starts, 0.5), quantile(starts, 0.9), 2 * self._by_deadline[waiter] > len(starts))


class _Scenario:
    """One scenario, from now until all pods have started, or nothing ends any more.

    Attributes:
        starts: the start of each waiting pod, in seconds from now.
        by_deadline: True for a pod for which a deadline made room.
    """

    def __init__(self, at: Situation, rooms: "RoomSearch", kinds: "list[_Kind]", rng: random.Random) -> None:
        self.starts = [inf] * len(at.waiters)
        self.by_deadline = [False] * len(at.waiters)
        self._at = at
        self._rooms = rooms
        self._rng = rng
        self._occupancies = list(at.occupancies)
        self._left = len(at.waiters)
        #: Of each kind, the place in its row of pods of the first that waits.
        self._heads = [0] * len(kinds)
        self._kinds = kinds
        #: Slots that are kept, by node: (number of the pod, card, bits).
        self._reserved: dict[int, list[tuple[int, int, int]]] = {}
        for waiter, each in enumerate(at.waiters):
            for card, bits in each.reserved:
                self._reserved.setdefault(rooms.node_of[card], []).append((waiter, card, bits))
        #: Nodes on which no waiting pod fits, but for what ends there: only cards with an end are looked at again.
        self._filled: set[int] = set()
        #: Ends to come: time, a number that makes the order total, by a deadline, node, what becomes free.
        self._ends: list[tuple[float, int, bool, int, Claims]] = []

    def run(self) -> Iterator[int]:
        """Simulates; yields the steps of each piece of work."""
        number = 0
        for number, holder in enumerate(self._at.holders, 1):
            end = self._end(0.0, number, holder.life, holder.node, holder.claims)
            if end is not None:
                self._ends.append(end)
            if number % _PIECE == 0:
                yield _PIECE
        heapify(self._ends)
        yield number % _PIECE
        while self._ends and self._left:
            time, _, by_deadline, node, claims = heappop(self._ends)
            for card, bits in claims:
                self._occupancies[card] &= ~bits
            steps = 1
            for waiter, where, taken in self._fill_all(node, [card for card, _ in claims]):
                self.starts[waiter] = time
                self.by_deadline[waiter] = by_deadline
                self._left -= 1
                number += 1
                end = self._end(time, number, self._at.waiters[waiter].life, where, taken)
                if end is not None:
                    heappush(self._ends, end)
                steps += 1
            yield steps + len(self._kinds)

    def _end(
        self, now: float, number: int, life: LifeEstimate, node: int, claims: Claims
    ) -> tuple[float, int, bool, int, Claims] | None:
        seconds, by_deadline = life.draw(self._rng.random())
        return (now + seconds, number, by_deadline, node, claims) if seconds < HORIZON else None

    def _fill_all(self, node: int, freed: Sequence[int]) -> Iterator[tuple[int, int, Claims]]:
        """Places waiting pods on a node, and where slots are kept no more: a pod may start elsewhere."""
        cards = freed if node in self._filled else self._at.nodes[node]
        nodes = [(node, cards)]
        while nodes:
            where, cards = nodes.pop()
            self._filled.add(where)
            for waiter, taken in self._fill(where, cards):
                yield waiter, where, taken
                kept = {self._rooms.node_of[card] for card, _ in self._at.waiters[waiter].reserved}
                nodes.extend((each, self._at.nodes[each]) for each in sorted(kept - {where}))

    def _fill(self, node: int, cards: Sequence[int]) -> Iterator[tuple[int, Claims]]:
        """Places waiting pods on a node that has more room on these cards, the first in the order first."""
        bit = 1 << node
        heads = [
            (kind.waiters[head], index)
            for index, (kind, head) in enumerate(zip(self._kinds, self._heads, strict=True))
            if kind.nodes & bit and head < len(kind.waiters)
        ]
        heapify(heads)
        while heads:
            waiter, index = heappop(heads)
            kind = self._kinds[index]
            kept = self._kept_before(node, waiter)
            taken = self._rooms.find(node, kind.profiles, self._occupancies, kept, cards)
            if taken is None:
                continue
            for card, bits in taken:
                self._occupancies[card] |= bits
            if self._at.waiters[waiter].reserved:
                self._drop_reservation(waiter)
                cards = self._at.nodes[node]
            self._heads[index] += 1
            if self._heads[index] < len(kind.waiters):
                heappush(heads, (kind.waiters[self._heads[index]], index))
            yield waiter, taken

    def _drop_reservation(self, waiter: int) -> None:
        for node in {self._rooms.node_of[card] for card, _ in self._at.waiters[waiter].reserved}:
            self._reserved[node] = [each for each in self._reserved[node] if each[0] != waiter]

    def _kept_before(self, node: int, waiter: int) -> Mapping[int, int]:
        """The bits of cards that are kept for pods before this one."""
        kept: dict[int, int] = {}
        for owner, card, bits in self._reserved.get(node, ()):
            if owner < waiter:
                kept[card] = kept.get(card, 0) | bits
        return kept


class _Kind(NamedTuple):
    """Waiting pods with the same needs, in their order."""

    profiles: tuple[str, ...]
    nodes: int
    waiters: list[int]


def _kinds(at: Situation) -> list[_Kind]:
    found: dict[tuple[tuple[str, ...], int], _Kind] = {}
    for number, each in enumerate(at.waiters):
        found.setdefault((each.profiles, each.nodes), _Kind(each.profiles, each.nodes, [])).waiters.append(number)
    return list(found.values())


class RoomSearch:
    """Finds room for slices on one node, as placement does: where the card loses least.

    Args:
        at: the situation, whose cards are asked about in other states.

    Attributes:
        node_of: the node of each card.
    """

    def __init__(self, at: Situation) -> None:
        self._at = at
        self.node_of = {card: node for node, cards in enumerate(at.nodes) for card in cards}
        #: By table, occupancy and profile, the cost and the bits that the slice takes; None without room.
        self._slices: dict[tuple[int, int, str], tuple[float, int] | None] = {}
        #: By table, occupancy and profile, the slices that fit there beside each other.
        self._counts: dict[tuple[int, int, str], int] = {}
        #: By states of cards and profiles, the bits by place among these cards.
        self._sets: dict[tuple[tuple[tuple[int, int], ...], tuple[str, ...]], tuple[tuple[int, int], ...] | None] = {}

    def find(
        self,
        node: int,
        profiles: tuple[str, ...],
        occupancies: Sequence[int],
        kept: Mapping[int, int],
        cards: Sequence[int],
    ) -> Claims | None:
        """Returns what the slices take on a node; None without room.

        Args:
            node: number of the node.
            profiles: the slices.
            occupancies: of all cards.
            kept: further bits of cards that may not be used.
            cards: where a single slice is looked for; several may take any card of the node.
        """
        if len(profiles) > 1:
            return self._find_several(self._at.nodes[node], profiles, occupancies, kept)
        best: tuple[float, int, int, int] | None = None
        for card in cards:
            occupancy = occupancies[card] | kept.get(card, 0)
            found = self._slice(self._at.tables[card], occupancy, profiles[0])
            if found is not None:
                one = (found[0], -occupancy.bit_count(), card, found[1])
                if best is None or one < best:
                    best = one
        return None if best is None else ((best[2], best[3]),)

    def _slice(self, table: CardTable, occupancy: int, profile: str) -> tuple[float, int] | None:
        key = (table.number, occupancy, profile)
        if key not in self._slices:
            name = table.name_of(profile)
            cost = None if name is None else table.cost(occupancy, (), name)
            taken = 0 if name is None or cost is None else _bits(table, occupancy, (name,))
            self._slices[key] = (cost, taken) if cost is not None and taken else None
        return self._slices[key]

    def _find_several(
        self, cards: Sequence[int], profiles: tuple[str, ...], occupancies: Sequence[int], kept: Mapping[int, int]
    ) -> Claims | None:
        states = [(self._at.tables[each], occupancies[each] | kept.get(each, 0)) for each in cards]
        if any(self._count(states, each) < profiles.count(each) for each in set(profiles)):
            return None
        key = (tuple((table.number, state) for table, state in states), profiles)
        if key not in self._sets:
            self._sets[key] = _divide([table for table, _ in states], [state for _, state in states], profiles)
        found = self._sets[key]
        return None if found is None else tuple((cards[index], bits) for index, bits in found)

    def _count(self, states: Sequence[tuple[CardTable, int]], profile: str) -> int:
        """The slices of one profile that fit on these cards, if there are no others."""
        total = 0
        for table, occupancy in states:
            key = (table.number, occupancy, profile)
            found = self._counts.get(key)
            if found is None:
                found = self._counts[key] = self._count_on(table, occupancy, profile)
            total += found
        return total

    def _count_on(self, table: CardTable, occupancy: int, profile: str) -> int:
        name = table.name_of(profile)
        count = 0
        while name is not None and table.arrangement(occupancy, (name,) * (count + 1)) is not None:
            count += 1
        return count


def _divide(
    tables: list[CardTable], occupancies: list[int], profiles: tuple[str, ...]
) -> tuple[tuple[int, int], ...] | None:
    nothing: Pending = ()
    states = [(table, occupancy, nothing) for table, occupancy in zip(tables, occupancies, strict=True)]
    divided = divide_over_cards(states, profiles)
    if divided is None:
        return None
    found = []
    for index in sorted(set(divided[1])):
        table = tables[index]
        names = (table.name_of(each) for each, at in zip(profiles, divided[1], strict=True) if at == index)
        taken = _bits(table, occupancies[index], tuple(sorted(name for name in names if name is not None)))
        found.append((index, taken))
    return tuple(found)


def _bits(table: CardTable, occupancy: int, names: Pending) -> int:
    """The bits that these slices take where they fragment the card least; 0 without room."""
    bits = 0
    for placed in table.arrangement(occupancy, names) or ():
        bits |= table.mask_of(placed)
    return bits
