"""MIG geometry of a card: profiles, their legal starts and sizes.

A card has memory slots in a row. A GPU instance of a profile covers ``size`` neighbouring slots and may begin only at
the profile's ``starts``. Starts, sizes and the single set of media engines are the only constraints: on every known
card no set of instances that obeys them exceeds the compute slices.

A card's state is an *occupancy*: an ``int`` whose low ``slots`` bits are the memory slots in use. Above them are
tokens, one bit each, for things that exist once per card besides memory: the media engines (held by ``+me`` and
``+me.all``), and any profile that NVML reports once although more would fit. So one ``&`` tests if an instance fits.

A :class:`GpuModel` joins a table with the names and the memory of a model; ``models.py`` has them all.

Functions of an occupancy answer for one further instance: the free slots, and what conflicts with it.
``layout_planning.py`` packs several together. This module does not know the users of instances.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import msgspec

from tessera.mig.names import (
    RESOURCE_PREFIX,
    ci_profile_index,
    gi_profile_index,
    is_device_profile,
    parse_profile_name,
    plain_profile,
    resource_spelling,
    takes_media,
)


class UnknownProfileError(ValueError):
    """A profile that a card does not have.

    Attributes:
        profile: the requested name.
        known: the card's profiles.
        closest: the known profile whose spelling is closest, if any is close.
    """

    def __init__(self, profile: str, known: Sequence[str], where: str) -> None:
        self.profile = profile
        self.known = tuple(known)
        self.closest = closest_profile(profile, known)
        meant = f'; did you mean "{self.closest}"?' if self.closest else "."
        super().__init__(f'{where} has no profile "{profile}"{meant} It has {", ".join(self.known) or "none"}')


class Placement(msgspec.Struct, frozen=True, order=True):
    """One GPU instance on a card.

    Attributes:
        profile: the profile's name.
        start: first memory slot.
        size: memory slots.
    """

    profile: str
    start: int
    size: int


class Engines(msgspec.Struct, frozen=True, kw_only=True):
    """Multiprocessors and engines of a card, or of an instance; None where the driver does not say."""

    multiprocessors: int | None = None
    copy_engines: int | None = None
    decoders: int | None = None
    encoders: int | None = None
    jpeg_engines: int | None = None
    ofa_engines: int | None = None


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a card's table of GPU-instance profiles.

    Attributes:
        name: NVIDIA's name, ``3g.20gb`` or ``1g.5gb+me``.
        compute_slices: compute slices of the GPU instance, and of the compute instance that fills it.
        size: memory slots.
        starts: legal first slots, ascending.
        max_count: the most instances of this profile that one card holds.
        memory_gb: the GB that the name states.
        gi_profile_index: NVML's index, the argument of ``nvmlDeviceGetGpuInstanceProfileInfo``.
        gi_profile_id: the id that ``nvidia-smi mig -lgip`` shows; ``None`` where it is not published.
        aliases: other names that NVIDIA's tools have used for the same profile.
        memory_mib: memory of an instance as NVML reports it, less than the name states (a 1g.18gb of an H200 has
            16 GiB); 0 where it is not known.
        engines: of an instance, as NVML reports them.
    """

    name: str
    compute_slices: int
    size: int
    starts: tuple[int, ...]
    max_count: int
    memory_gb: int
    gi_profile_index: int
    gi_profile_id: int | None = None
    aliases: tuple[str, ...] = ()
    memory_mib: int = 0
    engines: Engines = Engines()

    @property
    def spelling(self) -> str:
        """The name as in resource names: ``1g.5gb.me``."""
        return resource_spelling(self.name)

    @property
    def resource(self) -> str:
        """The extended resource, ``nvidia.com/mig-3g.20gb``."""
        return RESOURCE_PREFIX + self.spelling

    @property
    def media(self) -> bool:
        """True if the profile takes the card's media engines, of which a card has one set; a device's has none."""
        return takes_media(self.name)

    @property
    def ci_profile_index(self) -> int:
        """NVML's index of the compute-instance profile that fills the instance, from the slice count."""
        return ci_profile_index(self.compute_slices)

    def mask(self, start: int) -> int:
        """The memory slots of an instance that begins at ``start``, as bits."""
        return ((1 << self.size) - 1) << start

    def fits_by_starts(self) -> int:
        """The number of instances that fit side by side, by starts and size alone."""
        count = end = 0
        for start in self.starts:
            if start >= end:
                count, end = count + 1, start + self.size
        return count


class Geometry(msgspec.Struct, frozen=True):
    """A card's whole table.

    Attributes:
        family: the models with this table, for people: ``A100-40GB``.
        slots: memory slots.
        profiles: rows, in the order of NVIDIA's listing.
        choices: rows of further names, each of some starts of a profile (:func:`~tessera.mig.names.plain_profile`).
    """

    family: str
    slots: int
    profiles: tuple[Profile, ...]
    choices: tuple[Profile, ...] = ()

    @classmethod
    def from_profiles(cls, family: str, profiles: Iterable[Profile], *, slots: int | None = None) -> Self:
        """Builds a table, for example from what NVML reported for a real card.

        Args:
            family: the table's name in messages.
            profiles: its rows.
            slots: memory slots; by default the end of the farthest placement.

        Raises:
            ValueError: no rows, two rows of one name, or a start outside of the card.
        """
        rows = tuple(profiles)
        if not rows:
            raise ValueError(f"geometry {family}: no profiles; is MIG mode on? NVML lists them only then")
        ends = [start + row.size for row in rows for start in row.starts]
        width = slots if slots is not None else max(ends, default=0)
        for row in rows:
            if row.size < 1 or any(start < 0 or start + row.size > width for start in row.starts):
                raise ValueError(
                    f"geometry {family}: profile {row.name}: {row.size} slots at {row.starts} leave the {width} slots"
                )
        names = [row.name for row in rows]
        if len(set(names)) != len(names):
            raise ValueError(f"geometry {family}: a profile's name stands twice in {names}; names must differ")
        return cls(family, width, rows)

    @classmethod
    def from_placements(
        cls, family: str, rows: Mapping[str, Sequence[tuple[int, int]]], gi_profile_ids: Mapping[str, int] | None = None
    ) -> Self:
        """Builds a table from names and placements alone, as an Instaslice object stores them.

        Args:
            family: how to call it in messages.
            rows: profile name (either spelling), or resource of a whole card, to its (start, size) pairs.
            gi_profile_ids: profile name to the id in NVML's listing, where known.

        Raises:
            ValueError: a name that is not a profile's, a profile of two sizes, or what ``from_profiles`` refuses.
        """
        if len(rows) == 1 and is_device_profile(next(iter(rows))):
            return cls._of_device(family, *rows.items())
        parsed = {text: parse_profile_name(text) for text in rows}
        plain = [name.memory_gb for name in parsed.values() if (name.slices, name.suffix) == (1, "")]
        profiles = []
        for text, placements in rows.items():
            name = parsed[text]
            sizes = {size for _, size in placements}
            if len(sizes) != 1:
                raise ValueError(f"geometry {family}: profile {name} needs one size, not {sorted(sizes) or 'none'}")
            double = (name.slices, name.suffix) == (1, "") and name.memory_gb > min(plain)
            row = Profile(
                name=str(name),
                compute_slices=name.slices,
                size=sizes.pop(),
                starts=tuple(sorted({start for start, _ in placements})),
                max_count=0,
                memory_gb=name.memory_gb,
                gi_profile_index=gi_profile_index(name, double_memory=double),
                gi_profile_id=(gi_profile_ids or {}).get(text),
            )
            most = 1 if name.media else row.fits_by_starts()
            profiles.append(msgspec.structs.replace(row, max_count=most))
        return cls.from_profiles(family, profiles)

    @classmethod
    def _of_device(cls, family: str, row: tuple[str, Sequence[tuple[int, int]]]) -> Self:
        name, placements = row
        size, count = placements[0][1], len(placements)
        if sorted(placements) != [(start, size) for start in range(count)] or (count > 1 and size != 1):
            raise ValueError(
                f"geometry {family}: {name} is a whole card with one place, at 0, or shares of size 1 from 0"
            )
        row_of_devices = Profile(
            name=name,
            compute_slices=size,
            size=size,
            starts=tuple(range(count)),
            max_count=count,
            memory_gb=0,
            gi_profile_index=-1,
        )
        return cls.from_profiles(family, [row_of_devices])

    @property
    def names(self) -> tuple[str, ...]:
        """The profiles' names, in the table's order."""
        return tuple(row.name for row in self.profiles)

    @property
    def full(self) -> int:
        """All memory slots, as bits."""
        return (1 << self.slots) - 1

    def find(self, name: str) -> Profile | None:
        """The profile of that name in either spelling (``1g.5gb+me``, ``1g.5gb.me``) or alias, choice, or ``None``."""
        wanted = resource_spelling(name)
        for row in self.choices if " " in name else self.profiles:
            if row.spelling == wanted:
                return row
        for row in self.profiles:
            if wanted in map(resource_spelling, row.aliases):
                return row
        return None

    def profile(self, name: str) -> Profile:
        """The profile of that name, in either spelling or an alias.

        Raises:
            UnknownProfileError: the card has none of that name.
        """
        row = self.find(name)
        if row is None:
            raise UnknownProfileError(name, self.names, self.family)
        return row

    def restrict(self, names: Iterable[str]) -> "Geometry":
        """The same card with only these profiles."""
        kept = {self.profile(name).name for name in names}
        return Geometry(self.family, self.slots, tuple(row for row in self.profiles if row.name in kept))

    def claim(self, profile: Profile, start: int) -> int:
        """The bits that an instance takes in an occupancy: its memory slots and its tokens."""
        return profile.mask(start) | self.tokens(profile)

    def tokens(self, profile: Profile) -> int:
        """Engines that the profile takes beside memory slots: bits above ``slots`` (see the module's text)."""
        if " " in profile.name:
            profile = self.profile(plain_profile(profile.name))
        if profile.media:
            return 1 << self.slots
        if profile.max_count == 1 and profile.fits_by_starts() > 1:
            return 1 << (self.slots + 1 + self.names.index(profile.name))
        return 0

    @property
    def media_token(self) -> int:
        """The bit of an occupancy for the media engines."""
        return 1 << self.slots


def closest_profile(name: str, known: Iterable[str]) -> str | None:
    """The known profile whose spelling is closest to a mistyped one; ``None`` when nothing is close."""
    by_spelling = {resource_spelling(candidate): candidate for candidate in known}
    from difflib import get_close_matches  # for a mistake alone

    close = get_close_matches(resource_spelling(name), by_spelling, n=1, cutoff=0.6)
    return by_spelling[close[0]] if close else None


class PlacementsUnknown(ValueError):  # noqa: N818 - the name says what is wrong
    """A model without published legal starts; its table is read from NVML at run time."""


class MigUnsupported(ValueError):  # noqa: N818 - the name says what is wrong
    """A model that cannot be cut at all."""


class GpuModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of card.

    Attributes:
        short_name: the usual short name, ``A100-40GB``.
        other_short_names: other accepted names, ``A100-SXM4-40GB``.
        product_names: NVML's product names; the first is what a simulated card reports.
        memory_mib: memory of the card in MiB: as NVML reports it for A100, H100-80GB, B200, GB200 and GB300, else the
            nominal GB times 1024, which leads to the same profile names.
        pci_device_ids: hexadecimal PCI device ids (vendor 10DE).
        compute_capability: CUDA compute capability.
        profile_names: the profiles by name.
        table: profiles with their placements; ``None`` where these are unknown or there are none.
    """

    short_name: str
    product_names: tuple[str, ...]
    memory_mib: int
    pci_device_ids: tuple[str, ...]
    compute_capability: tuple[int, int]
    profile_names: tuple[str, ...]
    table: Geometry | None
    other_short_names: tuple[str, ...] = ()

    @property
    def product_name(self) -> str:
        """NVML's product name, ``NVIDIA A100-SXM4-40GB``."""
        return self.product_names[0]

    @property
    def mig_capable(self) -> bool:
        """True if the model has a MIG mode."""
        return bool(self.profile_names)

    @property
    def geometry(self) -> Geometry:
        """The card's table.

        Raises:
            MigUnsupported: the model cannot be cut.
            PlacementsUnknown: the model's placements are not published.
        """
        if not self.mig_capable:
            raise MigUnsupported(f"{self.short_name}: the card has no MIG, so it cannot be cut")
        if self.table is None:
            raise PlacementsUnknown(
                f"{self.short_name}: the legal placements of its profiles ({', '.join(self.profile_names)}) are not"
                " published, so nothing can be planned for it beforehand; on a node the agent reads the table from NVML"
                " at run time"
            )
        return self.table


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
