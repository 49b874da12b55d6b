"""Occupancy of one card: its free slots, and the conflicts of a further instance.

An occupancy is the ``int`` that ``geometry.py`` describes. Functions here answer for one further instance;
``layout_planning.py`` packs several together. This module does not know the users of instances.
"""

from collections.abc import Iterable, Sequence

import msgspec

from tessera.mig.geometry import Geometry, Placement, Profile, UnknownProfileError
from tessera.mig.names import parse_profile_name


class PlacementConflict(msgspec.Struct, frozen=True):
    """The reason that one further instance does not fit on a card.

    Attributes:
        profile: the requested name.
        rule: ``unknown profile``, ``media``, ``count``, ``slots`` or ``starts``.
        text: the conflict in words, naming the instances in the way.
        held: the placements in the way.
    """

    profile: str
    rule: str
    text: str
    held: tuple[Placement, ...] = ()


def placement_mask(geometry: Geometry, placement: Placement) -> int:
    """The bits that an existing instance takes.

    The hardware counts, not the table: an instance of a profile that the table lacks, or at a start that it does not
    list, still takes the slots that it covers, and the media engines if its name says so.

    Raises:
        ValueError: the placement leaves the card.
    """
    if placement.start < 0 or placement.size < 1 or placement.start + placement.size > geometry.slots:
        raise ValueError(
            f"{geometry.family}: {placement.profile} of {placement.size} slots at {placement.start} is outside of the"
            f" card's {geometry.slots} memory slots"
        )
    slots = ((1 << placement.size) - 1) << placement.start
    profile = geometry.find(placement.profile)
    if profile is not None:
        return slots | geometry.tokens(profile)
    try:
        media = parse_profile_name(placement.profile).media
    except ValueError:
        media = False  # a name from a newer driver: its slots count, its engines are unknown
    return slots | (geometry.media_token if media else 0)


def occupancy_of(geometry: Geometry, placements: Iterable[Placement]) -> int:
    """The occupancy of a card that holds exactly these instances.

    Raises:
        ValueError: one leaves the card, or two claim the same slot or both the media engines.
    """
    occupancy = 0
    for placement in placements:
        bits = placement_mask(geometry, placement)
        if occupancy & bits:
            claimed = "the media engines" if not occupancy & bits & geometry.full else "its memory slots"
            raise ValueError(
                f"{geometry.family}: {placement.profile} at {placement.start} claims {claimed}, which another instance"
                " of the same card holds"
            )
        occupancy |= bits
    return occupancy


def free_starts(geometry: Geometry, profile: Profile, occupancy: int) -> tuple[int, ...]:
    """The starts at which a further instance of the profile fits now."""
    return tuple(start for start in profile.starts if not geometry.claim(profile, start) & occupancy)


def free_placements(geometry: Geometry, occupancy: int) -> tuple[Placement, ...]:
    """Every single instance that would fit now, in the table's order."""
    return tuple(
        Placement(profile.name, start, profile.size)
        for profile in geometry.profiles
        for start in free_starts(geometry, profile, occupancy)
    )


def free_slots(geometry: Geometry, occupancy: int) -> int:
    """Memory slots that no instance covers."""
    return geometry.slots - (occupancy & geometry.full).bit_count()


def usable_slots(geometry: Geometry, occupancy: int) -> int:
    """Free memory slots that some profile could still use.

    Less than the free ones when slots are stranded: beside seven 1g instances the eighth slot is free and useless.
    """
    reach = 0
    for profile in geometry.profiles:
        for start in free_starts(geometry, profile, occupancy):
            reach |= profile.mask(start)
    return reach.bit_count()


def find_conflict(geometry: Geometry, profile_name: str, held: Sequence[Placement]) -> PlacementConflict | None:
    """The reason that a further instance of the profile does not fit on the card; ``None`` when it fits.

    Raises:
        ValueError: the instances held are themselves impossible.
    """
    try:
        profile = geometry.profile(profile_name)
    except UnknownProfileError as unknown:
        return PlacementConflict(profile_name, "unknown profile", str(unknown))
    occupancy = occupancy_of(geometry, held)
    if free_starts(geometry, profile, occupancy):
        return None
    tokens = geometry.tokens(profile)
    if tokens & occupancy:
        holder = next(one for one in held if placement_mask(geometry, one) & tokens)
        if profile.media:
            text = f"{profile.name} needs the card's media engines, of which it has one set; {_describe(holder)} has it"
            return PlacementConflict(profile.name, "media", text, (holder,))
        text = f"a card holds one {profile.name} at most; {_describe(holder)} is it"
        return PlacementConflict(profile.name, "count", text, (holder,))
    blockers = tuple(one for one in held if any(_overlaps(profile, start, one) for start in profile.starts))
    free = free_slots(geometry, occupancy)
    if free < profile.size:
        text = f"{profile.name} needs {profile.size} memory slots, {free} of {geometry.slots} are free"
        return PlacementConflict(profile.name, "slots", text, blockers)
    starts = ", ".join(map(str, profile.starts))
    text = (
        f"{profile.name} covers {profile.size} slots and may start only at {starts}; each of these meets"
        f" {', '.join(map(_describe, blockers))}, although {free} slots are free"
    )
    return PlacementConflict(profile.name, "starts", text, blockers)


def _overlaps(profile: Profile, start: int, held: Placement) -> bool:
    return start < held.start + held.size and held.start < start + profile.size


def _describe(placement: Placement) -> str:
    return f"{placement.profile} at {placement.start}"
