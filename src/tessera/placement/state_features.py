"""Numbers that describe the state of a seven-slice card to a rating of states.

A100, H100, H200, B200 and their kin have seven slices on eight memory slots with the same legal starts, so they share
the numbers. They say what the free slots are good for, and how many instances must end before a half of the card, or
all of it, is free again: of instances that end at random moments, the last of n ends after 1 + 1/2 + ... + 1/n mean
lives.
"""

from collections.abc import Mapping
from functools import lru_cache

from tessera.limits.planning import CARD_STATES

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
#: The names of the features, in order.
FEATURES = (
    *(f"{fact} {name}" for name in _WINDOWS for fact in ("legal", "any", "most", "usable")),
    *("free", "free squared", "empty"),
    *(f"mean lives until free: {area}" for area in _AREAS),
    *(f"one by one more than the instances: {area}" for area in _AREAS),
)


def features(slots: int, starts: int) -> tuple[float, ...]:
    """The features of a state, see :data:`FEATURES`.

    ``legal`` is the share of a profile's starts that are free, ``any`` tells if there is one, ``most`` and ``usable``
    are the shares of the card's slots that as many instances as fit, and that any instance, could cover.

    Args:
        slots: the slots in use, as bits.
        starts: the slots at which instances start, as bits.
    """
    found: list[float] = []
    for windows in _WINDOWS.values():
        free = [window for window in windows if not window & slots]
        covered = 0
        for window in free:
            covered |= window
        found += (
            len(free) / len(windows),
            float(bool(free)),
            _most(slots, windows) / SLOTS,
            covered.bit_count() / SLOTS,
        )
    empty = (SLOTS - slots.bit_count()) / SLOTS
    found += (empty, empty**2, float(not slots))
    counts = [_instances(slots, starts, area) for area in _AREAS.values()]
    return (*found, *map(_harmonic, counts), *(1 / (1 + count) for count in counts))


@lru_cache(maxsize=int(CARD_STATES))
def _most(slots: int, windows: tuple[int, ...]) -> int:
    """Slots that as many instances as fit in these windows cover."""
    return max(
        (window.bit_count() + _most(slots | window, windows) for window in windows if not window & slots), default=0
    )


def _instances(slots: int, starts: int, area: int) -> int:
    """Instances that cover a slot of the area."""
    first = area & -area
    enters = slots & first and not starts & first
    return (starts & area).bit_count() + bool(enters)


def _harmonic(count: int) -> float:
    return sum(1 / (1 + number) for number in range(count))
