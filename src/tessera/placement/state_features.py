"""Numbers that describe the state of a seven-slice card to a rating of states.

A100, H100, H200, B200 and their kin have seven slices on eight memory slots with the same legal starts, so they share
the numbers. They say what the free slots are good for, and how many instances must end before a half of the card, or
all of it, is free again: of instances that end at random moments, the last of n ends after 1 + 1/2 + ... + 1/n mean
lives.
"""

from collections.abc import Mapping
from functools import cache

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
