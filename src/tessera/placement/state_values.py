"""Values of the states of a card, found by a search (``bench/state_values.py``) over random mixes of requests.

A table weighs the features of a state; the sum is what the card's free slots are worth. No table is best for every mix,
so each one also tells what it gains over least fragmentation for a given mix: a function that was fitted to simulations
of other random mixes. The table that promises most for the placements so far is used; if none promises a gain, none.

Tables exist for seven-slice cards (:mod:`tessera.placement.state_features`), whatever their model. Other cards have
none.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import combinations_with_replacement

import msgspec

from tessera.mig.geometry import Geometry
from tessera.placement.card_table import CardTable
from tessera.placement.state_costs import limit_size
from tessera.placement.state_features import FEATURES, SLOTS, STARTS, features, shape

#: Profiles of a seven-slice card in the order of :func:`mix_features`, with their memory slots.
_SIZES = {shape(*key): key[1] for key in STARTS}
#: Number of :func:`mix_features`.
MIX_FEATURES = 1 + 4 * len(_SIZES) + len(_SIZES) * (len(_SIZES) + 1) // 2
#: A share of the slots from which on a profile counts as present.
_PRESENT = 0.04


class ValueTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rating of states.

    Attributes:
        weights: by feature of a state, in the order of :data:`~tessera.placement.state_features.FEATURES`.
        gains: by feature of a mix, in the order of :func:`mix_features`; their weighted sum is the gain in percentage
            points of memory slots in use.
    """

    weights: tuple[float, ...]
    gains: tuple[float, ...]


class StateValues:
    """The tables of seven-slice cards.

    Args:
        tables: the ratings to choose from.

    Raises:
        ValueError: a table has not one weight for each feature.
    """

    def __init__(self, tables: Sequence[ValueTable]) -> None:
        for number, each in enumerate(tables):
            if len(each.weights) != len(FEATURES):
                raise ValueError(
                    f"table {number}: {len(each.weights)} weights; it needs {len(FEATURES)}, one a feature"
                )
            if len(each.gains) != MIX_FEATURES:
                raise ValueError(f"table {number}: {len(each.gains)} gains; it needs {MIX_FEATURES}, one a feature")
        self._tables = [(each.gains, StateLoss(each.weights)) for each in tables]

    @classmethod
    def from_json(cls, text: bytes) -> "StateValues":
        """Reads a list of tables.

        Raises:
            ValueError: not such a list, or as for the class.
        """
        return cls(msgspec.json.decode(text, type=list[ValueTable]))

    def best(self, table: CardTable) -> "StateLoss | None":
        """Returns the losses for cards of a table and their mix; ``None`` where fragmentation is the better guide."""
        shares = slot_shares(table)
        if not shares:
            return None
        facts = mix_features(shares)
        gain, number = max(
            ((_product(gains, facts), -number) for number, (gains, _) in enumerate(self._tables)), default=(0.0, 0)
        )
        return self._tables[-number][1] if gain > 0 else None


@cache
def shipped_values() -> StateValues:
    """The tables that come with Tessera."""
    return StateValues.from_json(files("tessera.placement").joinpath("state_values.json").read_bytes())


class StateLoss:
    """Rates an occupancy by one table's weights; engines that a card has once do not count."""

    def __init__(self, weights: tuple[float, ...]) -> None:
        self._weights = weights
        self._losses: dict[tuple[int, int], float] = {}

    def __call__(self, table: CardTable, occupancy: int) -> float:
        """Returns the loss of an occupancy."""
        key = (occupancy & table.geometry.full, table.starts(occupancy))
        found = self._losses.get(key)
        if found is None:
            limit_size(self._losses)
            found = self._losses[key] = -_product(self._weights, features(*key))
        return found


def _product(weights: Sequence[float], values: Sequence[float]) -> float:
    return sum(weight * value for weight, value in zip(weights, values, strict=True))


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


def mix_features(shares: Mapping[str, float]) -> tuple[float, ...]:
    """A constant; each profile's share by slots and by count, if it is there at all, the root; all products by slots.

    Args:
        shares: shares of the requested slots by shape; their sum is 1.
    """
    slots = [shares.get(name, 0.0) for name in _SIZES]
    counts = [share / size for share, size in zip(slots, _SIZES.values(), strict=True)]
    return (
        1.0,
        *slots,
        *(count / sum(counts) for count in counts),
        *(min(share, _PRESENT) / _PRESENT for share in slots),
        *(share**0.5 for share in slots),
        *(one * other for one, other in combinations_with_replacement(slots, 2)),
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
