"""Placement policies behind one interface; :mod:`tessera.placement.plan` does everything else.

The planner batches, admits by priority, asks nodes and keeps every card exactly packable, whatever the policy. A policy
ranks the cards for one slice and the nodes for several slices, gives the cost of a slice on a card, and arranges the
starts of a card's slices in the end.

Tessera uses :class:`MixAware`. Those for comparison are in ``bench/rivals.py``.

A policy also says what a card's free slots are worth, for the mix of placements: found by a search over random mixes. A
state of a card has features; their weighted sum is what its free slots are worth. They say what the free slots are good
for, and how many instances must end before a half of the card, or all of it, is free again: of instances that end at
random moments, the last of n ends after 1 + 1/2 + ... + 1/n mean lives.

The weights depend on the mix: a small function with one hidden layer, whose numbers ``bench/state_values.py`` searches
by simulation, gives them. It is for seven-slice cards, whatever their model: A100, H100, H200, B200 and their kin have
seven slices on eight memory slots with the same legal starts. Other cards have none.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from math import sqrt, tanh
from typing import Protocol

import msgspec

from tessera.mig.geometry import Geometry, Placement
from tessera.placement.card_table import Candidate, CardTable, Pending, StateCosts
from tessera.placement.cards import AlikeCards
from tessera.placement.demand import StepBudget
from tessera.placement.fleet import Fleet, FleetCard, FleetNode

# The features of a state

#: Memory slots of a seven-slice card.
SLOTS = 8
#: Its profiles without media engines: (slices, slots) and legal starts (NVIDIA MIG user guide, A100 placements).
STARTS: Mapping[tuple[int, int], tuple[int, ...]] = {
    (1, 1): (0, 1, 2, 3, 4, 5, 6),
    (1, 2): (0, 2, 4, 6),
    (2, 2): (0, 2, 4),
    (3, 4): (0, 4),
    (4, 4): (0,),
    (7, 8): (0,),
}
#: The slots that are counted: left half, right half, all.
_AREAS = {"left": 0b0000_1111, "right": 0b1111_0000, "card": 0b1111_1111}


def shape(slices: int, slots: int) -> str:
    """The name of a profile on such cards, ``3x4``: three slices on four memory slots."""
    return f"{slices}x{slots}"


#: The legal windows of each profile, as bits of slots.
_WINDOWS = {shape(*key): tuple(((1 << key[1]) - 1) << start for start in starts) for key, starts in STARTS.items()}
#: Of these profiles it matters, too, whether one fits at all: they fit into what larger ones leave.
_SMALL = {name: windows for name, windows in _WINDOWS.items() if windows[0].bit_count() <= 2}
#: The names of the features, in order. No feature is a sum of others.
FEATURES = (
    *(f"usable {name}" for name in _WINDOWS),
    *(f"any {name}" for name in _SMALL),
    *("free", "free squared"),
    *(f"mean lives until free: {area}" for area in _AREAS),
    *(f"one by one more than the instances: {area}" for area in _AREAS),
)


@cache
def features(slots: int, starts: int) -> tuple[float, ...]:
    """The features of a state, see :data:`FEATURES`.

    ``usable`` is the share of the card's slots that instances of a profile could cover, ``any`` tells if one fits.

    Args:
        slots: the slots in use, as bits.
        starts: the slots at which instances start, as bits.
    """
    empty = (SLOTS - slots.bit_count()) / SLOTS
    counts = [_instances(slots, starts, area) for area in _AREAS.values()]
    return (
        *(_usable(slots, windows) / SLOTS for windows in _WINDOWS.values()),
        *(float(any(not window & slots for window in windows)) for windows in _SMALL.values()),
        *(empty, empty**2),
        *map(_harmonic, counts),
        *(1 / (1 + count) for count in counts),
    )


def _usable(slots: int, windows: tuple[int, ...]) -> int:
    """Slots that instances of the profile could cover."""
    covered = 0
    for window in windows:
        if not window & slots:
            covered |= window
    return covered.bit_count()


def _instances(slots: int, starts: int, area: int) -> int:
    """Instances that cover a slot of the area."""
    first = area & -area
    enters = slots & first and not starts & first
    return (starts & area).bit_count() + bool(enters)


def _harmonic(count: int) -> float:
    return sum(1 / (1 + number) for number in range(count))


# Their values

#: Profiles of a seven-slice card in the order of :func:`mix_features`, with their memory slots.
_SIZES = {shape(*key): key[1] for key in STARTS}
#: Number of :func:`mix_features`.
MIX_FEATURES = 4 * len(_SIZES)
#: A share of the slots from which on a profile counts as present.
_PRESENT = 0.04

Row = tuple[float, ...]


class WeightFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Gives the weights of the features of a state: a linear function of the mix, and one of hidden units.

    Attributes:
        units: by hidden unit, one number for each feature of a mix, and a constant. A unit is the hyperbolic tangent
            of their weighted sum.
        weights: by feature of a state, one number for each feature of a mix, one for each unit, and a constant.
    """

    units: tuple[Row, ...]
    weights: tuple[Row, ...]

    def __post_init__(self) -> None:
        _check("weights", len(self.weights), len(FEATURES), "one a feature of a state")
        for number, row in enumerate(self.units):
            _check(f"unit {number}", len(row), MIX_FEATURES + 1, "one a feature of a mix, and a constant")
        wanted = MIX_FEATURES + len(self.units) + 1
        for name, row in zip(FEATURES, self.weights, strict=True):
            _check(f"weight {name!r}", len(row), wanted, "one a feature of a mix and a unit, and a constant")

    def of(self, facts: Row) -> Row:
        """Returns the weights for a mix's features, scaled to a mean size of 1."""
        units = (tanh(_product(row, (*facts, 1.0))) for row in self.units)
        inputs = (*facts, *units, 1.0)
        found = [_product(row, inputs) for row in self.weights]
        scale = sum(map(abs, found)) / len(found) or 1.0
        return tuple(each / scale for each in found)


def _check(what: str, count: int, wanted: int, rule: str) -> None:
    if count != wanted:
        raise ValueError(f"{what}: {count} numbers; it needs {wanted}, {rule}")


class StateValues:
    """The losses of states of seven-slice cards.

    Args:
        function: gives the weights for a mix.
    """

    def __init__(self, function: WeightFunction) -> None:
        self._function = function

    @classmethod
    def from_json(cls, text: bytes) -> "StateValues":
        """Reads the function.

        Raises:
            ValueError: not such a function, or as for :class:`WeightFunction`.
        """
        return cls(msgspec.json.decode(text, type=WeightFunction))

    def weights(self, facts: Row) -> Row:
        """Returns the weights of a state's features for the features of a mix."""
        return self._function.of(facts)

    def for_mix(self, table: CardTable) -> "StateLoss | None":
        """Returns the losses for cards of a table and their mix; ``None`` for other cards, and for an unknown mix."""
        shares = slot_shares(table)
        return StateLoss(self.weights(mix_features(shares))) if shares else None


@cache
def shipped_values() -> StateValues:
    """The values that come with Tessera."""
    return StateValues.from_json(files("tessera.placement").joinpath("state_values.json").read_bytes())


class StateLoss:
    """Rates an occupancy by weights of its features; engines that a card has once do not count."""

    def __init__(self, weights: Row) -> None:
        self._weights = weights

    def __call__(self, table: CardTable, occupancy: int) -> float:
        """Returns the loss of an occupancy."""
        return -_product(self._weights, features(occupancy & table.geometry.full, table.starts(occupancy)))


def _product(weights: Sequence[float], values: Sequence[float]) -> float:
    return sum(map(float.__mul__, weights, values))


def slot_shares(table: CardTable) -> dict[str, float]:
    """Shares of the requested memory slots by shape of profile; empty for other cards, and while nothing is known."""
    names = shapes_of(table.geometry)
    if names is None:
        return {}
    slots: dict[str, float] = {}
    for name, share in table.mix.shares.items():
        if name in names:
            slots[names[name]] = slots.get(names[name], 0.0) + share * table.size_of(name)
    total = sum(slots.values())
    return {name: amount / total for name, amount in slots.items()} if total else {}


def mix_features(shares: Mapping[str, float]) -> Row:
    """Each profile's share by slots and by count, the root of the first, and if it is there at all.

    Args:
        shares: shares of the requested slots by shape; their sum is 1.
    """
    slots = [shares.get(name, 0.0) for name in _SIZES]
    counts = [share / size for share, size in zip(slots, _SIZES.values(), strict=True)]
    total = sum(counts)
    return (
        *slots,
        *(count / total for count in counts),
        *map(sqrt, slots),
        *(min(share, _PRESENT) / _PRESENT for share in slots),
    )


def shapes_of(geometry: Geometry) -> dict[str, str] | None:
    """Profile's name to its shape on a seven-slice card; ``None`` for a card of another kind.

    A card that offers only some of the profiles is such a card; a profile with other starts makes it another kind.
    """
    if geometry.slots != SLOTS:
        return None
    found: dict[str, str] = {}
    for row in geometry.profiles:
        key = (row.compute_slices, row.size)
        if STARTS.get(key) != row.starts:
            return None
        found[row.name] = shape(*key)
    return found


class Policy(Protocol):
    """A rule for placing slices. Stateless: the same fleet gives the same answers."""

    def packing_variants(self) -> Sequence["Policy"]:
        """The policies with which a whole batch is packed, one after the other until all of it fits."""
        ...

    def first_place(self, fleet: Fleet, profile: str) -> tuple[FleetCard, Placement] | None:
        """The first of :meth:`rank_cards` for all nodes, which usually is the one, and where the slice goes there."""
        ...

    def rank_cards(
        self, fleet: Fleet, profile: str, nodes: frozenset[str] | None, work: StepBudget
    ) -> Iterator[FleetCard]:
        """Cards that have room for one slice, best first.

        Of alike cards of one node, one is enough.

        Args:
            fleet: the cards; may not be changed.
            profile: the slice's profile, in any spelling.
            nodes: the only nodes to consider; ``None`` for all. Cards of others are ignored later.
            work: pays for cards that are tested one by one.
        """
        ...

    def rank_nodes(self, fleet: Fleet) -> Iterator[FleetNode]:
        """Nodes with free slots, in the order in which several slices of one demand try them."""
        ...

    def cost(self, table: CardTable, occupancy: int, pending: Pending, profile: str) -> float | None:
        """Returns the cost of one more slice on a card, 0 or more; ``None`` if the card has no room."""
        ...

    def arrange(self, table: CardTable, occupancy: int, pending: Pending) -> tuple[Placement, ...] | None:
        """The starts for the pending slices of a card; ``None`` when they do not fit."""
        ...


def other_nodes(group: AlikeCards) -> Iterator[FleetCard]:
    """One of the alike cards of each node but the first, fullest node first."""
    seen = {group.first().node.name}
    for card in group.cards():
        if card.node.name not in seen:
            seen.add(card.node.name)
            yield card


#: Up to so many nodes, the cards of a demand's own nodes are ranked one by one instead of all groups of alike cards.
_FEW_NODES = 64


class LeastCost:
    """Least growth of a loss first; the common part of policies that rate the states of cards.

    Args:
        spread: prefer the emptiest card; of equally empty ones the one that loses least.
    """

    def __init__(self, *, spread: bool = False) -> None:
        self._spread = spread

    def costs(self, table: CardTable) -> StateCosts:
        """The costs on cards of a table: by default the growth of fragmentation."""
        return table.costs

    def packing_variants(self) -> Sequence[Policy]:
        """By least loss first, then to the emptiest card.

        The second keeps open the starts which only small profiles can use. Neither is exact over several cards; of
        random sets that exactly fill 2 to 8 cards, the two together pack all but about one in a hundred.
        """
        return (self, type(self)(spread=True))

    def first_place(self, fleet: Fleet, profile: str) -> tuple[FleetCard, Placement] | None:
        """The card that loses least by one slice, then the fullest one, then one of the fullest node."""
        if self._spread:
            card = next(self.rank_cards(fleet, profile, None, StepBudget(1)), None)
            return None if card is None else (card, card.alike.place(profile, self.arrange))
        found = fleet.best_place(profile, self.costs)
        return None if found is None else (found[0].first(), found[1])

    def rank_cards(
        self, fleet: Fleet, profile: str, nodes: frozenset[str] | None, work: StepBudget
    ) -> Iterator[FleetCard]:
        """Cards that lose least by one slice, then the fullest card, then the fullest node."""
        if nodes is not None and len(nodes) <= _FEW_NODES:
            yield from self._rank_few(fleet, profile, nodes, work)
            return
        for group in fleet.candidates(profile, costs=self.costs, spread=self._spread):
            yield group.first()
            yield from other_nodes(group)

    def rank_nodes(self, fleet: Fleet) -> Iterator[FleetNode]:
        """Nodes with a free slot, fullest first."""
        return fleet.fullest_nodes()

    def cost(self, table: CardTable, occupancy: int, pending: Pending, profile: str) -> float | None:
        """Growth of the card's loss."""
        return self.costs(table).cost(occupancy, pending, profile)

    def arrange(self, table: CardTable, occupancy: int, pending: Pending) -> tuple[Placement, ...] | None:
        """The starts that leave the card with the least loss."""
        return self.costs(table).arrangement(occupancy, pending)

    def _rank_few(self, fleet: Fleet, profile: str, nodes: frozenset[str], work: StepBudget) -> Iterator[FleetCard]:
        """The same order, where few nodes come into question."""
        found: list[tuple[int, Candidate, int, str, str, FleetCard]] = []
        for card in (card for name in sorted(nodes) if name in fleet for card in fleet.cards(name)):
            work.spend()
            name = card.table.name_of(profile)
            one = None if name is None else self.costs(card.table).candidate(card.occupancy, card.pending, name)
            if one is not None:
                found.append((-one[1] if self._spread else 0, one, card.node.free, card.node.name, card.gpu, card))
        for row in sorted(found):
            yield row[-1]


class MixAware(LeastCost):
    """Least growth of the loss that was searched for mixes like that of the placements so far.

    Until enough slices were placed, and on cards without such losses, least growth of fragmentation.

    Args:
        values: the losses; by default those that come with Tessera.
        spread: as for the other policies.
    """

    def __init__(self, values: StateValues | None = None, *, spread: bool = False) -> None:
        super().__init__(spread=spread)
        self._values = shipped_values() if values is None else values

    def packing_variants(self) -> Sequence[Policy]:
        """As for the gradient, with the same losses."""
        return (self, MixAware(self._values, spread=True))

    def costs(self, table: CardTable) -> StateCosts:
        """By the mix's losses; they are computed anew when the shares change."""
        shares = table.mix.shares
        known = table.chosen.get(self._values)
        if known is None or known[0] is not shares:
            loss = self._values.for_mix(table)
            known = table.chosen[self._values] = (shares, table.costs if loss is None else table.rated_by(loss))
        return known[1]
