"""Draws the layout of one card that is planned, not yet made: a row of tiles as ``tessera map`` draws them."""

from collections.abc import Iterable

from tessera.cli.base.tiles import NARROW_COLUMNS, SLOT_COLUMNS
from tessera.mig.geometry import Geometry, Placement


def layout_row(geometry: Geometry, placements: Iterable[Placement]) -> str:
    """The card's memory slots from left to right; free ones are empty tiles."""
    columns = SLOT_COLUMNS if geometry.slots <= 8 else NARROW_COLUMNS
    at = {placed.start: placed for placed in placements}
    parts, slot = [], 0
    while slot < geometry.slots:
        placed = at.get(slot)
        size = 1 if placed is None else placed.size
        width = size * columns - 2
        label = "" if placed is None else placed.profile
        parts.append(f"[{label[:width]:{width}}]")
        slot += size
    return "".join(parts)
