"""Divides several slices over the cards of one node, and says what a node could hold if it were empty. Pure.

A branch-and-bound search over alike cards with the exact packing test. "No" means that no division over the node's
cards exists. The division found is the cheapest; after a long search, the cheapest so far. The cost of a demand is
bounded, since a user may ask for anything: a very long search without a division also ends in "no". Such demands are
artificial: dozens of slices of several profiles that miss by one.

Admission asks about empty nodes for pods that no node could ever hold, and the controller for nodes that do not exist
yet. "No" is proven by the exact packing test; a search that ends at its bound proves nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from tessera.limits import CARD_MODELS
from tessera.mig.geometry import Geometry
from tessera.placement.card_table import CardTable
from tessera.placement.demand import CardSpread, Comparison, OrderedRule, Parts, StepBudget, complete
from tessera.placement.fleet import Fleet, FleetCard, FleetNode
from tessera.placement.state_costs import Pending, add_profile

#: Most steps: trials that divide one pod's slices among the cards of a node. About 50 ms; beyond them the node counts
#: as full for this pod.
DIVISION_STEPS = 4_000
#: Most answers: different requests for several slices of which the controller caches whether an empty node could hold
#: them. More kinds of pods than wait at once; the oldest is forgotten, and searched again when needed.
REMEMBERED_DEMANDS = 4_096

#: Card-and-profile trials after which the search accepts the division that it has.
_STEPS = 300
#: Cost of a trial in steps of :class:`tessera.placement.demand.StepBudget`.
_WORK_A_STEP = 10
#: Rules that cost as much as a trial without any.
_RULES_A_STEP = 4
#: Trials of one part of a search.
_TRIALS_A_PART = 10

#: The cost of one more slice of a profile on a card of that table, occupancy and pending multiset; ``None`` without
#: room.
Cost = Callable[[CardTable, int, Pending, str], float | None]
_Class = tuple[CardTable, int, Pending]
_Mark = tuple[tuple[bool, str], ...]
#: The cost of a division, and one card's index per profile; None if there is none.
_Division = tuple[float, tuple[int, ...]] | None


def fit_in_parts(
    node: FleetNode,
    profiles: Sequence[str],
    work: StepBudget | None = None,
    cost: Cost = CardTable.cost,
    *,
    spread: CardSpread = (),
) -> Parts[tuple[float, tuple[FleetCard, ...]] | None]:
    """Divides slices over a node's cards.

    Args:
        node: the node, with its instances and those of this batch.
        profiles: the requested slices, in any spelling.
        work: the budget of the search.
        cost: returns the cost of one more slice on a card; by default the growth of fragmentation.
        spread: how the slices lie on the cards.

    Returns:
        The cost and one card per profile, in the order of ``profiles``; ``None`` when no division
        exists.
    """
    cards = list(node.cards.values())
    states = [(card.table, card.occupancy, card.pending) for card in cards]
    compared = Comparison(spread, [node.values.get(card.gpu, {}) for card in cards])
    found = yield from _divide_in_parts(states, profiles, work, cost, compared)
    return found and (found[0], tuple(cards[index] for index in found[1]))


class EmptyNodes:
    """The nodes of a fleet as they were without any slice; nodes of the same cards once.

    Answers are remembered with the fleet: pods that wait are planned again and again, and each search may be long.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._known = fleet.fits_when_empty
        self._nodes: dict[object, list[_Class]] = {}
        for node in fleet.listed_nodes():
            counts = tuple(sorted((table.number, count) for table, count in node.tables.items()))
            if counts not in self._nodes:
                tables = sorted(node.tables, key=lambda table: table.number)
                self._nodes[counts] = [(table, 0, ()) for table in tables for _ in range(node.tables[table])]
        self._kinds = tuple(self._nodes)

    def could_hold(
        self,
        profiles: tuple[str, ...],
        work: StepBudget | None = None,
        *,
        spread: CardSpread = (),
    ) -> Parts[bool]:
        """Returns True if one of them could hold the slices; of rules, only those about the cards themselves count."""
        spread = tuple(rule for rule in spread if not rule.attribute)
        key = (self._kinds, profiles, spread)
        if key not in self._known:
            fits = yield from self._search(profiles, work, spread)
            if len(self._known) >= REMEMBERED_DEMANDS:
                del self._known[next(iter(self._known))]
            self._known[key] = fits
        return self._known[key]

    def _search(self, profiles: tuple[str, ...], work: StepBudget | None, spread: CardSpread) -> Parts[bool]:
        for cards in self._nodes.values():
            compared = Comparison(spread, [{}] * len(cards))
            if (yield from _divide_in_parts(cards, profiles, work, compared=compared)) is not None:
                return True
        return False


def divide_over_cards(
    cards: Sequence[_Class],
    profiles: Sequence[str],
    work: StepBudget | None = None,
    cost: Cost = CardTable.cost,
    compared: Comparison | None = None,
) -> _Division:
    """Divides slices over cards given as (table, occupancy, pending), as the rules of a comparison say.

    Returns:
        The cost and one card's index per profile; ``None`` when no division exists.
    """
    return complete(_divide_in_parts(cards, profiles, work, cost, compared))


def _divide_in_parts(
    cards: Sequence[_Class],
    profiles: Sequence[str],
    work: StepBudget | None,
    cost: Cost = CardTable.cost,
    compared: Comparison | None = None,
) -> Parts[_Division]:
    return (yield from _search(cards, profiles, cost, DIVISION_STEPS, work, compared=compared)).division


class NodeFit(msgspec.Struct, frozen=True):
    """Result of a search for a division.

    Attributes:
        division: its cost, and one card's index per profile; ``None`` if none was found.
        steps: trials of the search. If they exceed its bound, a division may exist although none was found.
    """

    division: _Division
    steps: int


def search_division(
    cards: Sequence[_Class], profiles: Sequence[str], cost: Cost = CardTable.cost, *, steps: int = DIVISION_STEPS
) -> NodeFit:
    """Searches as :func:`divide_over_cards`, and tells the steps that it took.

    Args:
        cards: the cards as (table, occupancy, pending).
        profiles: the requested slices, in any spelling.
        cost: returns the cost of one more slice on a card.
        steps: trials after which a search that has found no division ends.
    """
    return complete(_search(cards, profiles, cost, steps, None))


def _search(
    cards: Sequence[_Class],
    profiles: Sequence[str],
    cost: Cost,
    steps: int,
    work: StepBudget | None,
    *,
    compared: Comparison | None = None,
) -> Parts[NodeFit]:
    ruled = compared.count_compared() if compared is not None else Counter[int]()
    order = sorted(range(len(profiles)), key=lambda n: (-_share(cards, profiles[n]), -ruled[n], profiles[n]))
    rules = compared.in_order(order) if compared is not None else ()
    search = _NodeFitSearch(list(cards), [profiles[index] for index in order], cost, steps, rules)
    paid = 0
    for _ in search.extend(0, 0.0):
        if work is not None:
            work.spend((search.steps - paid) * _WORK_A_STEP)
        paid = search.steps
        yield
    if work is not None:
        work.spend((search.steps - paid + len(profiles)) * _WORK_A_STEP)
    if search.best is None:
        return NodeFit(None, search.steps)
    total, chosen = search.best
    by_profile = dict(zip(order, chosen, strict=True))
    return NodeFit((total, tuple(by_profile[index] for index in range(len(profiles)))), search.steps)


def _share(cards: Sequence[_Class], profile: str) -> float:
    shares = [table.size_of(name) / table.geometry.slots for table, _, _ in cards if (name := table.name_of(profile))]
    return min(shares, default=0.0)


def _size(table: CardTable, profile: str) -> int:
    name = table.name_of(profile)
    return table.size_of(name) if name is not None else 0


class _NodeFitSearch:
    """Profiles go to cards one after the other; equal situations are entered once, at their lowest cost."""

    def __init__(
        self,
        cards: list[_Class],
        profiles: list[str],
        cost: Cost = CardTable.cost,
        most: int = DIVISION_STEPS,
        rules: Sequence[OrderedRule] = (),
    ) -> None:
        self._rules = rules
        self._cost = cost
        self._most_steps = most
        self._cards = cards
        self._profiles = profiles
        self._chosen: list[int] = []
        self._entered: dict[object, float] = {}
        self._left = [Counter(profiles[depth:]) for depth in range(len(profiles))]
        smallest = [min((_size(table, each) for table, _, _ in cards), default=0) for each in profiles]
        self._needed = [sum(smallest[depth:]) for depth in range(len(profiles))]
        self._most: dict[tuple[_Class, str], int] = {}
        self._usable: dict[_Class, int] = {}
        self._weight = 1 + len(rules) // _RULES_A_STEP
        self.steps = 0
        self.best: tuple[float, tuple[int, ...]] | None = None

    def extend(self, depth: int, cost: float) -> Parts[None]:
        """Gives the profiles from this one on to cards, in each way that may be cheaper."""
        if depth == len(self._profiles):
            if self.best is None or cost < self.best[0]:
                self.best = (cost, tuple(self._chosen))
            return
        marks = self._marks()
        cards = ((*self._key(card), *mark) for card, mark in zip(self._cards, marks, strict=True))
        situation = (depth, tuple(sorted(cards)))
        if self._entered.get(situation, float("inf")) <= cost:
            return
        self._entered[situation] = cost
        if not (yield from self._has_room(depth)):
            self._entered[situation] = float("-inf")
            return
        for growth, index, name in self._choices(self._profiles[depth], marks):
            if self.steps > (_STEPS if self.best is not None else self._most_steps):
                return
            self.steps += self._weight
            if self.steps % _TRIALS_A_PART < self._weight:
                yield
            before = self._cards[index]
            self._cards[index] = (before[0], before[1], add_profile(before[2], name))
            self._chosen.append(index)
            yield from self.extend(depth + 1, cost + growth)
            self._chosen.pop()
            self._cards[index] = before
        if self.best is None:
            self._entered[situation] = float("-inf")

    def _marks(self) -> Sequence[_Mark]:
        """What tells cards of one state apart, by card: for each rule whether it admits the card, and its mark."""
        if not self._rules:
            return [()] * len(self._cards)
        taken = [(rule, rule.taken(self._chosen)) for rule in self._rules]
        return [tuple([(rule.admits(n, each), rule.mark(n)) for rule, each in taken]) for n in range(len(self._cards))]

    @staticmethod
    def _key(card: _Class) -> tuple[int, int, Pending]:
        return card[0].number, card[1], card[2]

    def _has_room(self, depth: int) -> Parts[bool]:
        """Returns True if the remaining slices have room, by count of each profile alone and by slots."""
        kinds = Counter(self._cards)
        left = self._left[depth]
        slots = 0
        for card, count in kinds.items():
            slots += (yield from self._slots(card)) * count
        if self._needed[depth] > slots:
            return False
        return all(
            sum(self._count_fitting(card, profile) * count for card, count in kinds.items()) >= needed
            for profile, needed in left.items()
        )

    def _count_fitting(self, card: _Class, profile: str) -> int:
        """Returns the number of instances of a profile that a card would take."""
        known = self._most.get((card, profile))
        if known is None:
            more = self._add(card, profile)
            known = self._most[card, profile] = 0 if more is None else 1 + self._count_fitting(more, profile)
        return known

    def _slots(self, card: _Class) -> Parts[int]:
        """Returns the most memory slots that slices of the demand's profiles can still take on a card."""
        known = self._usable.get(card)
        if known is None:
            yield
            known = 0
            for profile in self._left[0]:
                more = self._add(card, profile)
                if more is not None:
                    known = max(known, _size(card[0], profile) + (yield from self._slots(more)))
            self._usable[card] = known
        return known

    @staticmethod
    def _add(card: _Class, profile: str) -> _Class | None:
        table, state, given = card
        name = table.name_of(profile)
        if name is None:
            return None
        more = add_profile(given, name)
        return (table, state, more) if table.packings(state, more) else None

    def _choices(self, profile: str, marks: Sequence[_Mark]) -> list[tuple[float, int, str]]:
        """One card of each kind that has room for the profile, cheapest first, fullest among equals."""
        choices = []
        seen = set[object]()
        rules = [number for number, rule in enumerate(self._rules) if len(self._chosen) in rule.depths]
        for index, card in enumerate(self._cards):
            table, state, given = card
            name = table.name_of(profile)
            mark = marks[index]
            kind = (card, mark)
            if name is None or kind in seen or not all(mark[number][0] for number in rules):
                continue
            seen.add(kind)
            growth = self._cost(table, state, given, name)
            if growth is not None:
                choices.append((growth, table.room(state, given), index, name))
        return [(growth, index, name) for growth, _, index, name in sorted(choices)]


#: The cards of an empty node; alike cards have the same table.
Shape = tuple[CardTable, ...]


class NodeShapes:
    """Shapes of nodes, which share the tables of their cards."""

    def __init__(self) -> None:
        #: Emptied at the limit; shapes made before keep their tables.
        self._tables: dict[Geometry, CardTable] = {}

    def shape(self, cards: Iterable[Geometry]) -> Shape:
        """Returns the shape of a node with these cards."""
        return tuple(sorted(map(self._table, cards), key=lambda table: table.number))

    def _table(self, geometry: Geometry) -> CardTable:
        found = self._tables.get(geometry)
        if found is None:
            if len(self._tables) >= CARD_MODELS:
                self._tables.clear()
            found = self._tables[geometry] = CardTable(geometry, len(self._tables))
        return found


def none_could_hold(shapes: Iterable[Shape], profiles: Sequence[str], work: StepBudget) -> bool:
    """True if it is certain that no empty node of these shapes holds the slices.

    Args:
        shapes: the nodes.
        profiles: the slices of one pod, in any spelling.
        work: a step is one trial of a slice on a card; once they are spent, nothing is certain.
    """
    by_size = sorted(shapes, key=count_slots, reverse=True)
    return not any(_holds(shape, profiles, work) or work.is_spent for shape in by_size)


def largest_part(shape: Shape, profiles: Sequence[str], work: StepBudget) -> tuple[str, ...]:
    """Returns slices of the request that an empty node holds together, and to which no further one could be added.

    The largest slices are kept first, or the smallest, whichever keeps more memory slots. Once the work is spent, what
    was found until then is the result.
    """
    counts = Counter(profiles)
    order = sorted(counts, key=lambda profile: (-_size_in(shape, profile), profile))
    parts = [_fill(shape, counts, each, work) for each in (order, order[::-1])]
    return max(parts, key=lambda part: memory_slots(shape, part))


def memory_slots(shape: Shape, profiles: Iterable[str]) -> int:
    """Returns the memory slots that slices take on such a node."""
    return sum(_size_in(shape, profile) for profile in profiles)


def count_slots(shape: Shape) -> int:
    """Returns the memory slots of all cards of a node."""
    return sum(table.geometry.slots for table in shape)


def _fill(shape: Shape, counts: Counter[str], order: Sequence[str], work: StepBudget) -> tuple[str, ...]:
    kept: tuple[str, ...] = ()
    for profile in order:
        fits, fails = 0, counts[profile] + 1
        while fails - fits > 1:
            middle = (fits + fails) // 2
            if _holds(shape, kept + (profile,) * middle, work):
                fits = middle
            else:
                fails = middle
        kept += (profile,) * fits
    return kept


def _holds(shape: Shape, profiles: Sequence[str], work: StepBudget) -> bool:
    if work.is_spent:
        return False
    found = search_division([(table, 0, ()) for table in shape], profiles, steps=work.remaining)
    work.spend(1 + found.steps)
    return found.division is not None


def _size_in(shape: Shape, profile: str) -> int:
    return max((table.size_of(name) for table in shape if (name := table.name_of(profile))), default=0)
