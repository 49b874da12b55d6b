"""The geometries of cards that Instaslice objects list.

A card's geometry comes only from the object, which the agent fills from NVML: its readers need no table of models.
Cards with the same table share one :class:`Geometry` value, because fleets count cards by geometry.
"""

from collections.abc import Mapping

from tessera.api.instaslice import NodeResources, ProfilePlacements
from tessera.limits.planning import CARD_MODELS
from tessera.mig.geometry import Geometry

_Table = tuple[tuple[str, int, tuple[tuple[int, int], ...]], ...]


class CardGeometries:
    """Geometries of cards; one shared value per table."""

    def __init__(self) -> None:
        #: The geometry of each table that was read; emptied at the limit.
        self._shared: dict[tuple[str, _Table], Geometry] = {}

    def of(self, resources: NodeResources) -> dict[str, Geometry]:
        """Returns each card's geometry by GPU UUID.

        Raises:
            ValueError: a card's table is invalid; the text names field and rule.
        """
        found: dict[str, Geometry] = {}
        #: The cards of a node mostly share one table, which is then read once.
        read: dict[tuple[str, int], Geometry] = {}
        for gpu in resources.node_gpus:
            rows = resources.placements_of(gpu)
            key = (gpu.gpu_name, id(rows))
            if key not in read:
                read[key] = self._geometry(gpu.gpu_name, rows)
            found[gpu.gpu_uuid] = read[key]
        return found

    def fault(self, resources: NodeResources) -> str:
        """Returns the error in a card's table; empty if all tables are valid."""
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
        known = self._shared.get((family, table))
        if known is not None:
            return known
        geometry = Geometry.from_placements(
            family, {name: places for name, _, places in table}, {name: number for name, number, _ in table}
        )
        if len(self._shared) >= CARD_MODELS:
            self._shared.clear()
        self._shared[family, table] = geometry
        return geometry
