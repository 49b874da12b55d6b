"""Values of the states of a card, found by a search (``bench/state_values.py``) for several mixes of requests.

A table weighs the features of a state; the sum is what the card's free slots are worth for that mix. Tables exist for
seven-slice cards (:mod:`tessera.placement.state_features`), whatever their model. Other cards have none.

The table whose mix is nearest to the mix of the placements so far is used, by the sum of the differences of the shares.
"""

from collections.abc import Mapping, Sequence

import msgspec

from tessera.mig.geometry import Geometry
from tessera.placement.card_table import CardTable
from tessera.placement.state_costs import limit_size
from tessera.placement.state_features import FEATURES, SLOTS, STARTS, features, shape

class MixTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The weights for one mix.

    Attributes:
        mix: shares of the requested memory slots by profile, as :func:`~tessera.placement.state_features.shape` names
            profiles: ``{"1x1": 0.5, "7x8": 0.5}``.
        weights: by feature, in the order of :data:`~tessera.placement.state_features.FEATURES`.
    """

    mix: dict[str, float]
    weights: tuple[float, ...]


class StateValues:
    """Tables of seven-slice cards.

    Args:
        tables: one for each mix.

    Raises:
        ValueError: a table has not one weight for each feature, or a mix names a profile that such cards do not have.
    """

    def __init__(self, tables: Sequence[MixTable]) -> None:
        shapes = {shape(*key) for key in STARTS}
        for number, each in enumerate(tables):
            if len(each.weights) != len(FEATURES):
                raise ValueError(f"table {number}: {len(each.weights)} weights; it needs {len(FEATURES)}, one a feature")
            if unknown := sorted(set(each.mix) - shapes):
                raise ValueError(f"table {number}: unknown profiles {unknown}; known are {sorted(shapes)}")
        self._ratings = [(each.mix, StateLoss(each.weights)) for each in tables]

    @classmethod
    def from_json(cls, text: bytes) -> "StateValues":
        """Reads a list of tables.

        Raises:
            ValueError: not such a list, or as for the class.
        """
        return cls(msgspec.json.decode(text, type=list[MixTable]))

    def nearest(self, table: CardTable) -> "StateLoss | None":
        """Returns the losses for cards of a table and their mix; ``None`` if nothing is known about either."""
        names = shapes_of(table.geometry)
        if names is None or not table.mix.shares:
            return None
        slots: dict[str, float] = {}
        for name, share in table.mix.shares.items():
            if name in names:
                slots[names[name]] = slots.get(names[name], 0.0) + share * table.size_of(name)
        total = sum(slots.values())
        if not total or not self._ratings:
            return None
        shares = {name: amount / total for name, amount in slots.items()}
        ranked = [(_distance(mix, shares), number) for number, (mix, _) in enumerate(self._ratings)]
        return self._ratings[min(ranked)[1]][1]


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
            values = zip(self._weights, features(*key), strict=True)
            found = self._losses[key] = -sum(weight * value for weight, value in values)
        return found


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


def _distance(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    return sum(abs(one.get(shape, 0.0) - other.get(shape, 0.0)) for shape in one.keys() | other.keys())
