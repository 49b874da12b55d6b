"""MIG layouts by name: the file of NVIDIA's mig-parted, ``version: v1``, read strictly.

A file holds named layouts; the node label ``nvidia.com/mig.config`` selects one. A layout is a list of entries, each
for some of a node's cards; the last entry for a card counts. Tessera accepts all that mig-parted accepts
(``api/spec/v1``), with two additions: mistakes have their path, and a ``device-filter`` that is a model's name, which
mig-parted reads and never matches, selects that model.

A layout wants a multiset of profiles on a card. ``tessera.mig`` decides if a card can hold it.

Layouts that need no file are those that NVIDIA's MIG manager generates for the cards of a node.

A node without a file of layouts, or whose file lacks the name in its label, still has these (mig-parted
``generate-config``): ``all-disabled``, ``all-enabled``, ``all-<profile>`` with as many as a card holds, and
``all-balanced``. A node of several models gets one entry for each model that has the profile, distinguished by PCI id.

A name may also spell out the partition of a card: ``7x1g.5gb``, ``2x2g.10gb-3x1g.5gb``. That is a layout without a
file, too.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from tessera.api.documents import first_document
from tessera.api.names import MIG_CONFIG_DYNAMIC, MIG_CONFIG_LABEL
from tessera.api.problems import Notice, Problem, ProblemCollector, join_path, quote_value
from tessera.limits import MIG_LAYOUTS
from tessera.mig.geometry import Geometry, Profile
from tessera.mig.layout_planning import is_feasible
from tessera.mig.models import MODELS, model_by_product

VERSION = "v1"
#: Keys of an entry of a layout.
_ENTRY = ("devices", "mig-enabled", "device-filter", "mig-devices")

_PCI_IDS = re.compile(r"0[xX]([0-9a-fA-F]{1,8})(?::0[xX]([0-9a-fA-F]{1,8}))?")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_ATTRIBUTE = r"[A-Za-z](?:[A-Za-z0-9.]*[A-Za-z0-9])?"
_PROFILE = re.compile(
    rf"(?:(?P<c>\d+)c\.)?(?P<g>\d+)g\.(?P<gb>\d+)gb(?P<sign>[+-])?(?(sign)(?P<attributes>{_ATTRIBUTE}(?:,{_ATTRIBUTE})*))"
)


class MigCard(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a card by which entries of a layout select it.

    Attributes:
        uuid: the card's.
        index: the driver's index, which ``devices`` lists.
        product: NVML's product name.
        pci_device_id: device and vendor as one number, ``0x20B010DE``.
        pci_subsystem_id: likewise of the board; 0 where it is not known.
        mig_capable: True if the card has a MIG mode.
    """

    uuid: str
    index: int
    product: str
    pci_device_id: int
    pci_subsystem_id: int = 0
    mig_capable: bool = True


class DeviceFilter(msgspec.Struct, frozen=True):
    """One item of ``device-filter``.

    Attributes:
        text: as written.
        device: PCI device and vendor as one number; ``None`` for a model's name.
        subsystem: PCI ids of the board likewise; ``None`` for any.
    """

    text: str
    device: int | None = None
    subsystem: int | None = None

    def matches(self, card: MigCard) -> bool:
        """True if the filter selects the card."""
        if self.device is None:
            return _fold_name(self.text) in _names_of(card.product)
        return self.device == card.pci_device_id and self.subsystem in (None, card.pci_subsystem_id)


class LayoutEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a layout.

    Attributes:
        devices: indexes of cards; ``None`` for all.
        mig_enabled: the wanted MIG mode.
        counts: instances by profile, all positive, sorted by name.
        filters: only cards that one of these matches; empty for any.
        path: the entry's place in the file.
    """

    devices: tuple[int, ...] | None
    mig_enabled: bool
    counts: Mapping[str, int]
    filters: tuple[DeviceFilter, ...] = ()
    path: str = ""

    def selects(self, card: MigCard) -> bool:
        """True if the entry is about this card."""
        if self.devices is not None and card.index not in self.devices:
            return False
        return not self.filters or any(each.matches(card) for each in self.filters)


class MigLayouts(msgspec.Struct, frozen=True, kw_only=True):
    """A whole file.

    Attributes:
        layouts: by name, in the order of the file.
        notices: notices for its author.
    """

    layouts: Mapping[str, tuple[LayoutEntry, ...]]
    notices: tuple[Notice, ...] = ()


class CardTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The target of a layout for one card.

    Attributes:
        card: the card.
        mig_enabled: the wanted MIG mode.
        counts: instances by profile.
        path: the entry with this target.
    """

    card: MigCard
    mig_enabled: bool
    counts: Mapping[str, int]
    path: str


class LayoutTargets(msgspec.Struct, frozen=True, kw_only=True):
    """The targets of a layout for a node's cards, and notices on entries that match none."""

    targets: tuple[CardTarget, ...]
    notices: tuple[Notice, ...] = ()


def parse_layouts(text: str) -> MigLayouts:
    """Reads a file.

    Raises:
        FileRefused: it has mistakes; all of them are listed.
    """
    return parse_layouts_document(*first_document(text))


def parse_layouts_document(document: Any, before: Sequence[Notice] = ()) -> MigLayouts:
    """Returns the layouts in a loaded document.

    Args:
        document: the loaded document.
        before: notices on the file that it stands in.

    Raises:
        FileRefused: it has mistakes; all of them are listed.
    """
    found = ProblemCollector(tuple(f"mig-configs.NAME[].{key}" for key in _ENTRY))
    notices = [*before]
    top = found.mapping(document, "", ("version", "mig-configs"))
    if document is not None and top.get("version") is None:
        found.add("version", f'missing; write version: "{VERSION}"')
    elif top.get("version", VERSION) != VERSION:
        found.add("version", f'{quote_value(top["version"])} is not known; write "{VERSION}"')
    named = found.free_mapping(top.get("mig-configs"), "mig-configs")
    if "mig-configs" not in top:
        notices.append(Notice("mig-configs", "missing; the file holds no layout to choose"))
    elif not named and not found.problems:
        found.add("mig-configs", "is empty; write at least one named layout")
    if len(named) > MIG_LAYOUTS:
        found.add("mig-configs", f"has {len(named):,} layouts; a file has {MIG_LAYOUTS}")
        found.raise_problems()
    layouts = {name: _layout(found, value, name) for name, value in named.items()}
    found.raise_problems()
    for name, entries in layouts.items():
        notices.extend(_name_notices(name))
        notices.extend(_filter_notices(entries))
    return MigLayouts(layouts=layouts, notices=tuple(notices))


def resolve_targets(entries: Sequence[LayoutEntry], cards: Iterable[MigCard]) -> LayoutTargets:
    """Resolves a layout to targets for a node's cards; cards that no entry names are left as they are.

    Args:
        entries: the layout's entries.
        cards: the node's cards.

    Raises:
        FileRefused: an entry turns MIG on for a card, by its index, that has no MIG; or wants an unsupported instance.
    """
    found = ProblemCollector()
    targets: list[CardTarget] = []
    notices: list[Notice] = []
    every = sorted(cards, key=lambda each: each.index)
    for card in every:
        entry = next((each for each in reversed(entries) if each.selects(card)), None)
        if entry is None:
            notices.append(Notice(f"GPU {card.index}", "no entry of the layout names it; it is left as it is"))
        elif card.mig_capable:
            found.problems.extend(_partial_instances(entry))
            targets.append(CardTarget(card=card, mig_enabled=entry.mig_enabled, counts=entry.counts, path=entry.path))
        elif entry.mig_enabled and entry.devices is not None:
            text = f"GPU {card.index} ({card.product}) has no MIG; take it out of the list, or write all"
            found.add(f"{entry.path}.devices", text)
        elif entry.mig_enabled:
            by = entry.path or "the layout"
            notices.append(Notice(f"GPU {card.index}", f"{card.product} has no MIG; {by} passes it over"))
    found.problems = list(dict.fromkeys(found.problems))
    found.raise_problems()
    indexes = {card.index for card in every}
    for each in entries:
        if missing := sorted(set(each.devices or ()) - indexes):
            listed = ", ".join(map(str, missing))
            notices.append(Notice(f"{each.path}.devices", f"this node has no GPU {listed}"))
    return LayoutTargets(targets=tuple(targets), notices=tuple(notices))


def canonical_profile(text: str) -> str:
    """Returns a profile's name as mig-parted writes it: ``3c.3g.20gb`` is ``3g.20gb``.

    Raises:
        ValueError: the text is no profile's name; the error states the form.
    """
    match = _PROFILE.fullmatch(text)
    if match is None:
        plus = re.sub(r"(gb)\.(\w[\w.]*)$", r"\1+\2", text)
        hint = f"; did you mean {plus}?" if plus != text and _PROFILE.fullmatch(plus) else ""
        raise ValueError(f"is no MIG profile; the form is 3g.20gb, 1g.5gb+me or 1c.3g.20gb{hint}")
    attributes = (match["attributes"] or "").split(",")
    if len(set(attributes)) != len(attributes):
        raise ValueError("names an attribute twice")
    if match["c"] is None:
        return text
    if int(match["c"]) > int(match["g"]):
        raise ValueError(f"is no MIG profile: {match['c']} compute slices exceed the {match['g']} of its GPU instance")
    return text.partition("c.")[2] if int(match["c"]) == int(match["g"]) else text


def _layout(found: ProblemCollector, value: Any, name: str) -> tuple[LayoutEntry, ...]:
    path = join_path("mig-configs", name)
    before = len(found.problems)
    entries = tuple(_entry(found, item, at) for item, at in found.items(value, path))
    if not entries and len(found.problems) == before:
        found.add(path, "is empty; write at least one entry")
    return entries


def _entry(found: ProblemCollector, item: Any, path: str) -> LayoutEntry:
    fields = found.mapping(item, path, _ENTRY)
    for key in ("devices", "mig-enabled"):
        if key not in fields:
            found.add(f"{path}.{key}", "missing; every entry needs devices and mig-enabled")
    enabled = "mig-enabled" in fields and found.boolean(fields["mig-enabled"], f"{path}.mig-enabled")
    counts = _counts(found, fields.get("mig-devices"), f"{path}.mig-devices")
    if enabled and fields.get("mig-devices") is None:
        found.add(f"{path}.mig-devices", "missing; write the profiles with their counts, or {} for none")
    if not enabled and counts and isinstance(fields.get("mig-enabled"), bool):
        found.add(f"{path}.mig-devices", "must be left out where mig-enabled is false")
    return LayoutEntry(
        devices=_devices(found, fields["devices"], f"{path}.devices") if "devices" in fields else None,
        mig_enabled=enabled,
        counts=counts,
        filters=_filters(found, fields.get("device-filter"), f"{path}.device-filter"),
        path=path,
    )


def _devices(found: ProblemCollector, value: Any, path: str) -> tuple[int, ...] | None:
    if value == "all":
        return None
    if not isinstance(value, list):
        found.add(path, f'must be "all" or a list of indexes, not {quote_value(value)}')
        return None
    indexes = (found.integer(item, at, 0) for item, at in found.items(value, path))
    return tuple(dict.fromkeys(index for index in indexes if index is not None))


def _counts(found: ProblemCollector, value: Any, path: str) -> dict[str, int]:
    counts: Counter[str] = Counter()
    fields = found.free_mapping(value, path)
    for name, item in fields.items():
        at = join_path(path, name)
        try:
            profile = canonical_profile(name)
        except ValueError as error:
            found.add(at, str(error))
            continue
        counts[profile] += found.integer(item, at, 0) or 0
    if counts and not any(fields.values()):
        found.add(path, "has only counts of 0; write {} for MIG mode without instances")
    return dict(sorted((+counts).items()))


def _filters(found: ProblemCollector, value: Any, path: str) -> tuple[DeviceFilter, ...]:
    if value is None or value == "":
        return ()
    items = [(value, path)] if isinstance(value, str | int) else list(found.items(value, path))
    return tuple(_filter(found, _filter_text(found, item, at), at) for item, at in items)


def _filter_text(found: ProblemCollector, item: Any, path: str) -> str:
    if isinstance(item, int) and not isinstance(item, bool):  # YAML reads 0x20B010DE as a number
        found.add(path, f'must be text, not a number; put the PCI id in quotes: "0x{item:08X}"')
        return ""
    return found.text(item, path)


def _filter(found: ProblemCollector, text: str, path: str) -> DeviceFilter:
    match = _PCI_IDS.fullmatch(text)
    if match is None:
        if ":" in text or text[:2].lower() == "0x":
            found.add(path, f'"{text}" is no PCI id; the form is 0x20B010DE or 0x20B010DE:0x134F10DE')
        return DeviceFilter(text)
    return DeviceFilter(text, int(match[1], 16), None if match[2] is None else int(match[2], 16))


def _name_notices(name: str) -> list[Notice]:
    path = join_path("mig-configs", name)
    if name == MIG_CONFIG_DYNAMIC:
        text = f"cannot be chosen: {MIG_CONFIG_LABEL}={name} gives a node's cards to slices on demand; rename it"
        return [Notice(path, text)]
    if not _LABEL_VALUE.fullmatch(name):
        return [Notice(path, f"cannot be chosen: it is no value for the label {MIG_CONFIG_LABEL}; rename it")]
    return []


def _filter_notices(entries: Iterable[LayoutEntry]) -> list[Notice]:
    every = [(entry, each) for entry in entries for each in entry.filters]
    text = '"{}" is no PCI id and no model that Tessera knows; it may match nothing'
    return [
        Notice(f"{entry.path}.device-filter", text.format(each.text))
        for entry, each in every
        if each.device is None and _fold_name(each.text) not in _all_names()
    ]


def _partial_instances(entry: LayoutEntry) -> list[Problem]:
    """Reports compute instances smaller than their GPU instance, since no resource of Tessera serves them."""
    text = "compute instances smaller than their GPU instance are not made; write {}"
    return [
        Problem(join_path(f"{entry.path}.mig-devices", name), text.format(name[part.end() :]))
        for name in entry.counts
        if (part := re.match(r"\d+c\.", name))
    ]


def _fold_name(name: str) -> str:
    return name.casefold().removeprefix("nvidia").strip(" -").replace(" ", "-")


def _names_of(product: str) -> set[str]:
    """Returns spellings of a card's model: the product's name, and the model's short names for the same memory."""
    model = model_by_product(product)
    short = () if model is None else (model.short_name, *model.other_short_names)
    return {_fold_name(product), *(_fold_name(name) for name in short)}


@cache
def _all_names() -> set[str]:
    return {name for model in MODELS for product in model.product_names for name in _names_of(product)}


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
