"""A node's cards as its Instaslice object describes them.

Geometry comes from the object alone, which the agent fills from NVML: the controller needs no table of models. Cards
that share a table share one :class:`Geometry` value, because the fleet counts cards by geometry.
"""

from collections.abc import Mapping

from tessera.api.instaslice import ForeignSlice, NodeResources, ProfilePlacements, Slice
from tessera.limits import CARD_MODELS
from tessera.mig.geometry import Geometry, Placement
from tessera.mig.occupancy import occupied_by

_Table = tuple[tuple[str, int, tuple[tuple[int, int], ...]], ...]


class Geometries:
    """Interns geometries by their table."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, _Table], Geometry] = {}

    def of(self, resources: NodeResources) -> dict[str, Geometry]:
        """Each card's geometry by GPU UUID.

        Raises:
            ValueError: a card's table cannot be one; the text names field and rule.
        """
        return {gpu.gpu_uuid: self._geometry(gpu.gpu_name, resources.placements_of(gpu)) for gpu in resources.node_gpus}

    def fault(self, resources: NodeResources) -> str:
        """Why a card's table cannot be one; empty if all can."""
        try:
            self.of(resources)
        except ValueError as error:
            return f"status.nodeResources.migPlacement: {error}"
        return ""

    def _geometry(self, family: str, rows: Mapping[str, ProfilePlacements]) -> Geometry:
        table = tuple(
            (name, row.gi_profile_id, tuple((at.start, at.size) for at in row.placements))
            for name, row in rows.items()
            if row.placements
        )
        known = self._known.get((family, table))
        if known is not None:
            return known
        geometry = Geometry.from_placements(
            family, {name: places for name, _, places in table}, {name: number for name, number, _ in table}
        )
        if len(self._known) >= CARD_MODELS:
            self._known.clear()
        self._known[family, table] = geometry
        return geometry


def bits(geometry: Geometry, item: Slice | ForeignSlice) -> int:
    """What a slice takes of a card; all of the card where the slice leaves it, which only a wrong record can say."""
    try:
        return occupied_by(geometry, Placement(item.profile, item.start, item.size))
    except ValueError:
        return geometry.full
