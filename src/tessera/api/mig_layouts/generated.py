"""The layouts that need no file: those that NVIDIA's MIG manager generates for the cards of a node.

A node without a file of layouts, or whose file lacks the name in its label, still has these (mig-parted
``generate-config``): ``all-disabled``, ``all-enabled``, ``all-<profile>`` with as many as a card holds, and
``all-balanced``. A node of several models gets one entry for each model that has the profile, distinguished by PCI id.

A name may also spell out the partition of a card: ``7x1g.5gb``, ``2x2g.10gb-3x1g.5gb``. That is a layout without a
file, too.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from tessera.api.mig_layouts.layouts_file import DeviceFilter, LayoutEntry
from tessera.mig.geometry import Geometry, Profile
from tessera.mig.layout_planning import is_feasible

#: ``3x1g.5gb``; the suffixes are those of NVIDIA's profiles, with a dot for the plus that a label cannot have.
_PART = re.compile(r"([1-9][0-9]?)x([0-9]g\.[0-9]+gb(?:\.me\.all|\.me|\.gfx|-me)?)")
_SPELLED = re.compile(rf"{_PART.pattern}(?:-{_PART.pattern})*")

DISABLED, ENABLED, BALANCED = "all-disabled", "all-enabled", "all-balanced"

#: Compute slices of the instances of ``all-balanced``, by compute slices of the whole card.
_BALANCED: Mapping[int, Mapping[int, int]] = {7: {1: 2, 2: 1, 3: 1}, 4: {1: 2, 2: 1}}


class LayoutCardModel(msgspec.Struct, frozen=True):
    """Cards of a node with the same model.

    Attributes:
        pci_device_id: device and vendor as one number.
        geometry: their possible placements, as NVML reported them.
    """

    pci_device_id: int
    geometry: Geometry


def generated_layouts(kinds: Sequence[LayoutCardModel]) -> dict[str, tuple[LayoutEntry, ...]]:
    """Returns named layouts for a node with these kinds of cards, small instances before large ones.

    Args:
        kinds: one for each PCI id; their order does not change any layout.
    """
    several = len(kinds) > 1
    layouts: dict[str, list[LayoutEntry]] = {
        DISABLED: [LayoutEntry(devices=None, mig_enabled=False, counts={})],
        ENABLED: [LayoutEntry(devices=None, mig_enabled=True, counts={})],
    }
    for kind in sorted(kinds, key=lambda each: each.pci_device_id):
        filters = (DeviceFilter(f"0x{kind.pci_device_id:08X}", kind.pci_device_id),) if several else ()
        for name, counts in _of_one_kind(kind.geometry).items():
            entry = LayoutEntry(devices=None, mig_enabled=True, counts=counts, filters=filters)
            layouts.setdefault(name, []).append(entry)
    return {name: tuple(entries) for name, entries in layouts.items()}


def make_named_layout(name: str, kinds: Sequence[LayoutCardModel]) -> tuple[LayoutEntry, ...] | None:
    """Returns the layout that a name spells out, for the cards that have all of its profiles.

    Args:
        name: counts and profiles in the resource's spelling, ``2x2g.10gb-3x1g.5gb``.
        kinds: one for each PCI id.

    Returns:
        One entry for each matching kind of card; ``None`` if the name has another form, or matches no card here.
    """
    if not _SPELLED.fullmatch(name):
        return None
    counts: Counter[str] = Counter()
    for count, profile in _PART.findall(name):
        counts[profile] += int(count)
    entries = []
    for kind in sorted(kinds, key=lambda each: each.pci_device_id):
        rows = {profile: kind.geometry.find(profile) for profile in counts}
        named = {row.name: counts[profile] for profile, row in rows.items() if row is not None}
        if len(named) == len(counts):
            filters = (DeviceFilter(f"0x{kind.pci_device_id:08X}", kind.pci_device_id),) if len(kinds) > 1 else ()
            entries.append(LayoutEntry(devices=None, mig_enabled=True, counts=named, filters=filters))
    return tuple(entries) or None


def _of_one_kind(geometry: Geometry) -> dict[str, Mapping[str, int]]:
    # A card lists its profiles in another order once MIG mode is on; names shown to people keep their order.
    ordered = sorted(geometry.profiles, key=lambda each: (each.compute_slices, each.size, each.name))
    found: dict[str, Mapping[str, int]] = {
        f"all-{profile.spelling}": {profile.name: profile.max_count} for profile in ordered
    }
    balanced = _balanced_counts(geometry)
    return found | ({BALANCED: balanced} if balanced else {})


def _balanced_counts(geometry: Geometry) -> dict[str, int]:
    """Returns a mix of sizes; empty if the card lacks one of them or they do not fit together."""
    whole = max((profile.compute_slices for profile in geometry.profiles), default=0)
    counts: dict[str, int] = {}
    for slices, count in _BALANCED.get(whole, {}).items():
        profile = _plain_profile(geometry, slices)
        if profile is None:
            return {}
        counts[profile.name] = count
    return counts if is_feasible(geometry, counts) else {}


def _plain_profile(geometry: Geometry, slices: int) -> Profile | None:
    """Returns the profile with this number of slices that takes the least memory and has no suffix."""
    plain = [each for each in geometry.profiles if each.compute_slices == slices and each.name.endswith("gb")]
    return min(plain, key=lambda each: each.size, default=None)
