"""Values of the states of a card, found by a search outside of this program, for several mixes of requests.

A table gives each occupancy of a card a loss: what the space that is left there is worth less than on the best card.
Tables exist by the *shape* of cards, not by model: A100, H100, H200, B200 and their kin have seven slices on eight
memory slots with the same legal starts. Other cards have no table.

The table whose mix is nearest to the mix of the placements so far is used, by the sum of the differences of the shares.
"""

from collections.abc import Mapping, Sequence

import msgspec

from tessera.mig.geometry import Geometry
from tessera.placement.card_table import CardTable

#: Memory slots of a seven-slice card.
_SLOTS = 8
#: Its profiles without media engines: (slices, slots) and legal starts (NVIDIA MIG user guide, A100 placements).
_STARTS: Mapping[tuple[int, int], tuple[int, ...]] = {
    (1, 1): (0, 1, 2, 3, 4, 5, 6),
    (1, 2): (0, 2, 4, 6),
    (2, 2): (0, 2, 4),
    (3, 4): (0, 4),
    (4, 4): (0,),
    (7, 8): (0,),
}


class MixTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The losses for one mix.

    Attributes:
        mix: shares of the requests by count, by slices and slots: ``{"1x1": 0.5, "7x8": 0.5}``.
        losses: by occupancy of the eight slots, the first slot being the lowest bit.
    """

    mix: dict[str, float]
    losses: tuple[float, ...]


class StateValues:
    """Tables of seven-slice cards.

    Args:
        tables: one for each mix.

    Raises:
        ValueError: a table has not one loss for each occupancy, or a mix names a profile that such cards do not have.
    """

    def __init__(self, tables: Sequence[MixTable]) -> None:
        shapes = {_shape(*key) for key in _STARTS}
        for number, each in enumerate(tables):
            if len(each.losses) != 1 << _SLOTS:
                raise ValueError(f"table {number}: {len(each.losses)} losses; it needs {1 << _SLOTS}, one an occupancy")
            if unknown := sorted(set(each.mix) - shapes):
                raise ValueError(f"table {number}: unknown profiles {unknown}; known are {sorted(shapes)}")
        self._ratings = [(each.mix, SlotLoss(each.losses)) for each in tables]

    @classmethod
    def from_json(cls, text: bytes) -> "StateValues":
        """Reads a list of tables.

        Raises:
            ValueError: not such a list, or as for the class.
        """
        return cls(msgspec.json.decode(text, type=list[MixTable]))

    def nearest(self, table: CardTable) -> "SlotLoss | None":
        """Returns the losses for cards of a table and their mix; ``None`` if nothing is known about either."""
        names = shapes_of(table.geometry)
        if names is None or not table.mix.shares:
            return None
        shares: dict[str, float] = {}
        for name, share in table.mix.shares.items():
            shape = names.get(name)
            if shape is not None:
                shares[shape] = shares.get(shape, 0.0) + share
        ranked = [(_distance(mix, shares), number) for number, (mix, _) in enumerate(self._ratings)]
        return self._ratings[min(ranked)[1]][1] if ranked else None


class SlotLoss:
    """Rates an occupancy by a table; engines that a card has once do not count."""

    def __init__(self, losses: tuple[float, ...]) -> None:
        self._losses = losses

    def __call__(self, table: CardTable, occupancy: int) -> float:
        """Returns the loss of an occupancy."""
        return self._losses[occupancy & table.geometry.full]


def shapes_of(geometry: Geometry) -> dict[str, str] | None:
    """Profile's name to its shape on a seven-slice card; ``None`` for a card of another kind.

    A card that offers only some of the profiles is such a card; a profile with other starts makes it another kind.
    """
    if geometry.slots != _SLOTS:
        return None
    found: dict[str, str] = {}
    for row in geometry.profiles:
        key = (row.compute_slices, row.size)
        if _STARTS.get(key) != row.starts:
            return None
        found[row.name] = _shape(*key)
    return found


def _shape(slices: int, slots: int) -> str:
    return f"{slices}x{slots}"


def _distance(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    return sum(abs(one.get(shape, 0.0) - other.get(shape, 0.0)) for shape in one.keys() | other.keys())
