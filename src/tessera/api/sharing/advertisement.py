"""Computes the resources and devices that a node advertises from its GPUs, the MIG strategy and a sharing profile.

A pure function, so a profile can be tried before a node is touched. The rules, in order:

1. each card, or each MIG device where the strategy says so, gets a resource name: the first pattern that matches, or
   upstream's default (``nvidia.com/gpu``; for MIG devices that too under ``single``, ``nvidia.com/mig-<profile>`` under
   ``mixed``);
2. each entry of the profile picks devices of one resource and divides them. If two pick one device, the block that
   comes first in :data:`~tessera.api.sharing.devices.SHARING_RULES` counts, and of one block the later entry, so
   ``all`` followed by a single card is a rule with an exception;
3. a device that no entry picks stays whole under its own name.

All obstacles are reported at once, with the entry's path. Then nothing is advertised: the caller keeps its present
advertisement.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from tessera.api.names import resource_of
from tessera.api.problems import FileRefused, Notice, Problem
from tessera.api.sharing.devices import (
    SHARING_RULES,
    AdvertisedDevice,
    AdvertisedResource,
    Advertisement,
    GpuDescription,
    SharingKind,
    SharingRules,
)
from tessera.api.sharing.profile import (
    MigStrategy,
    ResourcePattern,
    Selection,
    SharedBlock,
    SharedResource,
    SharingProfile,
)
from tessera.limits import RESOURCE_ENTRIES

GPU_RESOURCE = "nvidia.com/gpu"
#: Why an entry divides nothing on a node that lists no device to kubelet by name.
_NO_DEVICES = "nothing to divide for limits: the cards are cut on demand, go to ResourceClaims, or have no MIG device"

_ALL_CARDS = (ResourcePattern("*", GPU_RESOURCE),)


class AdvertisementImpossible(FileRefused):
    """The profile cannot be applied to these cards; the paths are those of the profile, or name the node's cards."""


class _Whole(msgspec.Struct, frozen=True):
    """A device under its own resource name, before any sharing."""

    resource: str
    device: AdvertisedDevice
    gpu: GpuDescription
    old_form: str


def make_advertisement(
    gpus: Iterable[GpuDescription], profile: SharingProfile, mig_strategy: MigStrategy
) -> Advertisement:
    """Returns the advertisement of a node with these cards.

    Args:
        gpus: its cards, in any order.
        profile: their names and sharing.
        mig_strategy: the strategy in force; the installation's, unless the profile's flags name one.

    Raises:
        AdvertisementImpossible: the cards break the strategy's rules, or the profile names devices that they do not
            have.
    """
    cards = sorted(gpus, key=lambda gpu: gpu.index)
    problems = list(_strategy_problems(cards, mig_strategy))
    whole = list(_name_devices(cards, profile, mig_strategy, problems))
    notices: list[Notice] = []
    shares: dict[str, tuple[SharedBlock, SharedResource]] = {}
    for block in reversed(profile.blocks):
        for entry in block.resources:
            for each in _pick_devices(whole, entry, problems, notices):
                shares[each.device.uuid] = (block, entry)
    problems.extend(_kind_problems(whole, shares))
    resources = _resources(whole, shares)
    problems.extend(_list_problems(resources.values()))
    if problems:
        raise AdvertisementImpossible(list(dict.fromkeys(problems)))
    return Advertisement(resources=resources, notices=tuple(notices))


def _strategy_problems(cards: Sequence[GpuDescription], strategy: MigStrategy) -> Iterator[Problem]:
    """Problems with the strategy ``single``, which demands of a node: cut all cards or none, and all into the same."""
    enabled = [card for card in cards if card.mig_enabled]
    if strategy is not MigStrategy.SINGLE or not enabled:
        return
    for card in enabled:
        if not card.mig_devices:
            yield Problem(
                _at(card), "MIG is on, but it has no MIG devices; MIG strategy single needs them: apply a layout"
            )
    if whole := [card for card in cards if not card.mig_enabled]:
        yield Problem(
            _at(whole[0]),
            f"MIG is off, but on at {_at(enabled[0])}; MIG strategy single needs one mode, mixed takes both",
        )
    profiles = sorted({device.profile for card in enabled for device in card.mig_devices})
    if len(profiles) > 1:
        yield Problem(
            "MIG devices",
            f"are of the profiles {', '.join(profiles)}; MIG strategy single needs one, mixed takes several",
        )


def _name_devices(
    cards: Sequence[GpuDescription], profile: SharingProfile, strategy: MigStrategy, problems: list[Problem]
) -> Iterator[_Whole]:
    for card in cards:
        if strategy is not MigStrategy.NONE and card.mig_enabled:
            yield from _mig_devices(card, profile, strategy, problems)
            continue
        name = _first_match(profile.gpus or _ALL_CARDS, card.product)
        if name is None:
            text = f"no pattern matches {_at(card)} ({card.product}); add one, such as {{pattern: '*', name: gpu}}"
            problems.append(Problem("resources.gpus", text))
            continue
        yield _Whole(
            name, AdvertisedDevice(id=card.uuid, uuid=card.uuid, gpu=card.uuid, index=str(card.index)), card, ""
        )


def _mig_devices(
    card: GpuDescription, profile: SharingProfile, strategy: MigStrategy, problems: list[Problem]
) -> Iterator[_Whole]:
    for device in sorted(card.mig_devices, key=lambda each: each.index):
        if profile.mig:
            name = _first_match(profile.mig, device.profile)
        elif strategy is MigStrategy.SINGLE:
            name = GPU_RESOURCE
        else:
            name = _default_mig_name(device.profile)
        index = f"{card.index}:{device.index}"
        if name is None:
            text = f"no pattern matches MIG device {index} ({device.profile}); add one with its profile"
            problems.append(Problem("resources.mig", text))
            continue
        entry = AdvertisedDevice(id=device.uuid, uuid=device.uuid, gpu=card.uuid, index=index, profile=device.profile)
        yield _Whole(name, entry, card, f"MIG-{card.uuid}/{device.gi_id}/{device.ci_id}")


def _default_mig_name(profile: str) -> str | None:
    """``nvidia.com/mig-<profile>``; None for a compute instance smaller than its GPU instance, as upstream."""
    return None if re.match(r"\d+c\.", profile) else resource_of(profile)


def _first_match(patterns: Sequence[ResourcePattern], text: str) -> str | None:
    return next((each.name for each in patterns if each.matches(text)), None)


def _pick_devices(
    whole: Sequence[_Whole], entry: SharedResource, problems: list[Problem], notices: list[Notice]
) -> Sequence[_Whole]:
    """Returns the devices that an entry divides."""
    of_resource = [each for each in whole if each.resource == entry.name]
    if not of_resource:
        resources = ", ".join(sorted({each.resource for each in whole}))
        text = f"nothing here is {entry.name}; this node has {resources}" if resources else _NO_DEVICES
        notices.append(Notice(f"{entry.path}.name", text))
        return ()
    return _select_devices(of_resource, entry.devices, entry, problems)


def _select_devices(
    devices: Sequence[_Whole], selection: Selection, entry: SharedResource, problems: list[Problem]
) -> Sequence[_Whole]:
    path = f"{entry.path}.devices"
    if selection.count is not None:
        if selection.count > len(devices):
            text = f"{selection.count} devices of {entry.name} are to be shared, this node has {len(devices)}"
            problems.append(Problem(path, text))
        return devices[: selection.count]
    if selection.all:
        return devices
    known = {
        key: each for each in devices for key in (each.device.index, each.device.uuid.lower(), each.old_form.lower())
    }
    for ref in selection.refs:
        if ref.lower() not in known:
            indexes = ", ".join(each.device.index for each in devices)
            problems.append(Problem(path, f"{ref} is no device of {entry.name} here; those have the indexes {indexes}"))
    return [known[ref.lower()] for ref in selection.refs if ref.lower() in known]


def _kind_problems(
    whole: Iterable[_Whole], shares: Mapping[str, tuple[SharedBlock, SharedResource]]
) -> Iterator[Problem]:
    """Problems with the rules of each kind of sharing: each broken rule once, with all cards that break it."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for each in whole:
        if each.device.uuid in shares:
            block, entry = shares[each.device.uuid]
            for name, rule in _broken_limit(each, entry, SHARING_RULES[block.kind]):
                found.setdefault(rule, []).append(name)
    for (path, before, after), names in found.items():
        yield Problem(path, f"{before} {', '.join(names)}{after}")


def _broken_limit(
    each: _Whole, entry: SharedResource, rules: SharingRules
) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """A device's name and the rule that it breaks: the path, and the text before and after the name."""
    if rules.whole_cards_only and each.gpu.mig_enabled:
        name, where = (
            (f"MIG device {each.device.index}", "") if each.device.profile else (_at(each.gpu), ", where MIG is on")
        )
        advice = f"{rules.title} serves whole cards only: use timeSlicing, or name others"
        yield name, (entry.path, f"{rules.title} would share", f"{where}; {advice}")
        return
    if rules.clients is not None and entry.replicas > rules.clients.of(each.gpu.compute_capability):
        major, minor = each.gpu.compute_capability
        most = rules.clients.of(each.gpu.compute_capability)
        before = f"{entry.replicas} is more than the {most} {rules.title} clients of"
        yield _at(each.gpu), (f"{entry.path}.replicas", before, f", compute capability {major}.{minor}")


def _list_problems(resources: Iterable[AdvertisedResource]) -> Iterator[Problem]:
    for each in resources:
        if len(each.devices) > RESOURCE_ENTRIES:
            text = f"has {len(each.devices):,} devices; kubelet takes {RESOURCE_ENTRIES} of a resource"
            yield Problem(each.name, f"{text}; use fewer replicas")


def _resources(
    whole: Iterable[_Whole], shares: dict[str, tuple[SharedBlock, SharedResource]]
) -> dict[str, AdvertisedResource]:
    devices: dict[str, list[AdvertisedDevice]] = {}
    one_per_request: set[str] = set()
    for each in whole:
        share = shares.get(each.device.uuid)
        if share is None:
            devices.setdefault(each.resource, []).append(each.device)
            continue
        block, entry = share
        devices.setdefault(entry.advertised, []).extend(_replicas(each.device, entry.replicas, block.kind))
        if block.one_per_request:
            one_per_request.add(entry.advertised)
    return {
        name: AdvertisedResource(name=name, devices=tuple(devices[name]), one_per_request=name in one_per_request)
        for name in sorted(devices)
    }


def _replicas(device: AdvertisedDevice, replicas: int, kind: SharingKind) -> Iterator[AdvertisedDevice]:
    for number in range(replicas):
        yield msgspec.structs.replace(device, id=f"{device.uuid}::{number}", replicas=replicas, kind=kind)


def _at(card: GpuDescription) -> str:
    return f"GPU {card.index}"
