"""Reads a sharing profile: the device plugin's file, strictly.

Every file that upstream loads as its author meant it loads here. An unknown key, which upstream would silently ignore,
is refused with its path. Keys that have a meaning only upstream are accepted, checked for their type, and reported with
the reason (:data:`WITHOUT_EFFECT`).

This module does not know a node's cards: a valid file may still not fit a node.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import msgspec

from tessera.api.documents import first_document
from tessera.api.problems import Notice, ProblemCollector, join_path, quote_value
from tessera.api.sharing.devices import SHARING_RULES, SharingKind, SharingRules
from tessera.api.sharing.profile import (
    DEVICE_LIST_STRATEGIES,
    EXTRAS,
    AllocationPolicy,
    Flags,
    MigStrategy,
    ResourcePattern,
    Selection,
    SharedBlock,
    SharedResource,
    SharingProfile,
)
from tessera.limits import SHARING_REPLICAS

T = TypeVar("T")

VERSION = "v1"
RESOURCE_DOMAIN = "nvidia.com/"
MAX_RESOURCE_NAME = 63
SHARED_SUFFIX = ".shared"

_UUID = r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_REFERENCE = re.compile(rf"\d+(:\d+)?|GPU-{_UUID}|MIG-{_UUID}|MIG-GPU-{_UUID}/\d+/\d+")
_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")

#: Keys of upstream that have no effect here, with the reason.
WITHOUT_EFFECT: Mapping[str, str] = {
    "flags.failOnInitError": "a node whose driver does not answer is reported and tried again, the agent stays",
    "flags.mpsRoot": "the agent chooses the folder of the MPS daemons and mounts it itself",
    "flags.useNodeFeatureAPI": "the agent writes the node's labels itself, without node feature discovery",
    "flags.deviceDiscoveryStrategy": "cards are found through NVML",
    "flags.plugin.nvidiaCTKPath": "CDI files are written without nvidia-ctk",
    "flags.plugin.containerDriverRoot": "CDI files are written with the host's paths, the agent needs no mapping",
    "flags.gfd.oneshot": "labels are written by the agent, which keeps running",
    "flags.gfd.sleepInterval": "labels follow changes of the cards at once, no timer is needed",
    "flags.gfd.outputFile": "labels are written to the node, not to a file",
    "flags.gfd.machineTypeFile": "the machine type is read from its usual place",
    "imex.required": "a node without the channel offers its cards all the same",
}

#: Notice on extras: only NVIDIA's runtime knows which of them a node has.
_BY_RUNTIME = "containers get NVIDIA_{}=enabled, on which NVIDIA's runtime acts; CDI files have no such devices"
_BOOLEANS = ("failOnInitError", "gdrcopyEnabled", "gdsEnabled", "mofedEnabled", "useNodeFeatureAPI")
_TEXTS = ("mpsRoot", "nvidiaDriverRoot", "nvidiaDevRoot")
_FLAGS = (*_BOOLEANS, *_TEXTS, "migStrategy", "deviceDiscoveryStrategy", "plugin", "gfd")
_PLUGIN_TEXTS = ("cdiAnnotationPrefix", "nvidiaCTKPath", "containerDriverRoot")
_PLUGIN = (
    *_PLUGIN_TEXTS,
    "passDeviceSpecs",
    "deviceListStrategy",
    "deviceIDStrategy",
    "sharedDevicesAllocationPolicy",
)
_GFD_CHECKS = {
    "oneshot": ProblemCollector.boolean,
    "noTimestamp": ProblemCollector.boolean,
    "outputFile": ProblemCollector.text,
    "machineTypeFile": ProblemCollector.text,
}
_GFD = (*_GFD_CHECKS, "sleepInterval")
_TOP = ("version", "flags", "resources", "sharing", "imex")
_BLOCK = ("renameByDefault", "failRequestsGreaterThanOne", "resources")
_ENTRY = ("name", "rename", "devices", "replicas")
_BLOCKS = tuple(rules.key for rules in SHARING_RULES.values())
_IMEX = ("channelIDs", "required")
#: The paths of all keys, as of a :class:`ProblemCollector`.
PLACES = (
    *(f"sharing.{block}{place}" for block in sorted(_BLOCKS, reverse=True)
      for place in ("", *(f".{key}" for key in _BLOCK), *(f".resources[].{key}" for key in _ENTRY))),
    *(f"flags.{key}" for key in (*_FLAGS, *(f"plugin.{key}" for key in _PLUGIN), *(f"gfd.{key}" for key in _GFD))),
    *(f"imex.{key}" for key in _IMEX),
    *_TOP,
)  # fmt: skip


def parse_profile(text: str) -> SharingProfile:
    """Reads a file; an empty one is a profile that shares nothing.

    Raises:
        FileRefused: it has mistakes; all of them are listed.
    """
    return parse_profile_document(*first_document(text))


def parse_profile_document(document: Any, before: Sequence[Notice] = ()) -> SharingProfile:
    """Returns the profile in a loaded document.

    Args:
        document: the loaded document.
        before: notices on the file that it stands in.

    Raises:
        FileRefused: it has mistakes; all of them are listed.
    """
    found = ProblemCollector(PLACES)
    notices = [*before]
    top = found.mapping(_any_case(document, "", _TOP, notices), "", _TOP)
    if top.get("version") not in (None, "", VERSION):
        found.add("version", f'{quote_value(top["version"])} is not known; write "{VERSION}" or leave it out')
    flags = _flags(found, top.get("flags"), notices)
    flags = msgspec.structs.replace(flags, imex_channels=_imex(found, top.get("imex"), notices))
    gpus, mig = _resources(found, top.get("resources"))
    sharing = found.mapping(_any_case(top.get("sharing"), "sharing", _BLOCKS, notices), "sharing", _BLOCKS)
    read = (_block(found, sharing.get(rules.key), kind, rules) for kind, rules in SHARING_RULES.items())
    blocks = tuple(block for block in read if block is not None)
    found.raise_problems()
    for first, second in pairwise(SHARING_RULES[block.kind] for block in blocks):
        text = f"where sharing.{first.key} names the same device, {first.title} counts"
        notices.append(Notice(f"sharing.{second.key}", text))
    return SharingProfile(flags=flags, gpus=gpus, mig=mig, blocks=blocks, notices=tuple(sorted(notices)))


def resource_name(found: ProblemCollector, value: Any, path: str) -> str:
    """Returns a resource's name with its domain: ``nvidia.com/gpu`` for ``gpu``."""
    text = found.text(value, path)
    if not isinstance(value, str):
        return ""
    name = text if text.startswith(RESOURCE_DOMAIN) else RESOURCE_DOMAIN + text
    if len(name) > MAX_RESOURCE_NAME:
        found.add(path, f'"{name}" has {len(name)} characters; {MAX_RESOURCE_NAME} is the most')
    if not _SUBDOMAIN.fullmatch(name.removeprefix(RESOURCE_DOMAIN)):
        rule = (
            f"after {RESOURCE_DOMAIN} come lower-case letters, digits, '-' and '.', with a letter or digit at both ends"
        )
        found.add(path, f'"{text}" is no resource name: {rule}')
    return name


def _flags(found: ProblemCollector, value: Any, notices: list[Notice]) -> Flags:
    path = "flags"
    flags = _present(found.mapping(_any_case(value, path, _FLAGS, notices), path, _FLAGS))
    plugin_path = f"{path}.plugin"
    plugin = _any_case(flags.get("plugin"), plugin_path, _PLUGIN, notices)
    plugin = _present(found.mapping(plugin, plugin_path, _PLUGIN))
    gfd = _any_case(flags.get("gfd"), f"{path}.gfd", _GFD, notices)
    gfd = _present(found.mapping(gfd, f"{path}.gfd", _GFD))
    _check_gfd(found, gfd)
    for each, name in [(flags, path), (plugin, plugin_path), (gfd, f"{path}.gfd")]:
        notices.extend(_without_effect(each, name))
    switches = {key: _read(flags, key, path, found.boolean) for key in _BOOLEANS}
    extras = tuple(each for each in EXTRAS if switches[f"{each}Enabled"])
    notices.extend(Notice(f"{path}.{each}Enabled", _BY_RUNTIME.format(each.upper())) for each in extras)
    texts = {key: _read(flags, key, path, found.text) for key in _TEXTS}
    plugin_texts = {key: _read(plugin, key, plugin_path, found.text) for key in _PLUGIN_TEXTS}
    _read(flags, "deviceDiscoveryStrategy", path, _one_of(found, "auto", "nvml", "tegra", "vfio"))
    strategy = _read(flags, "migStrategy", path, _one_of(found, *(each.value for each in MigStrategy)))
    policies = [each.value for each in AllocationPolicy]
    policy = _read(plugin, "sharedDevicesAllocationPolicy", plugin_path, _one_of(found, *policies))
    ids = _read(plugin, "deviceIDStrategy", plugin_path, _one_of(found, "uuid", "index"))
    return Flags(
        mig_strategy=None if strategy is None else MigStrategy(strategy),
        driver_root=texts["nvidiaDriverRoot"],
        dev_root=texts["nvidiaDevRoot"],
        pass_device_specs=_read(plugin, "passDeviceSpecs", plugin_path, found.boolean),
        device_list_strategies=_strategies(
            found, plugin.get("deviceListStrategy"), f"{plugin_path}.deviceListStrategy"
        ),
        device_ids_are_uuids=None if ids is None else ids == "uuid",
        cdi_annotation_prefix=plugin_texts["cdiAnnotationPrefix"],
        allocation_policy=None if policy is None else AllocationPolicy(policy),
        extras=extras,
        timestamp=gfd.get("noTimestamp") is not True,
    )


def _check_gfd(found: ProblemCollector, gfd: Mapping[str, Any]) -> None:
    for key, check in _GFD_CHECKS.items():
        if key in gfd:
            check(found, gfd[key], f"flags.gfd.{key}")
    interval = gfd.get("sleepInterval", "")
    if isinstance(interval, bool) or not isinstance(interval, str | int | float):
        found.add(
            "flags.gfd.sleepInterval", f'must be a duration such as "60s" or "infinite", not {quote_value(interval)}'
        )


def _imex(found: ProblemCollector, value: Any, notices: list[Notice]) -> tuple[int, ...]:
    imex = _present(found.mapping(value, "imex", _IMEX))
    if imex.get("channelIDs", []) not in ([], [0]):
        found.add("imex.channelIDs", f"must be [] or [0], not {quote_value(imex['channelIDs'])}")
    _read(imex, "required", "imex", found.boolean)
    notices.extend(_without_effect(imex, "imex"))
    if imex.get("channelIDs") != [0]:
        return ()
    notices.append(Notice("imex.channelIDs", "told by the strategies envvar and volume-mounts; CDI files have none"))
    return (0,)


def _strategies(found: ProblemCollector, value: Any, path: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str):
        return (found.choice(value, path, DEVICE_LIST_STRATEGIES),)
    chosen = tuple(found.choice(item, at, DEVICE_LIST_STRATEGIES) for item, at in found.items(value, path))
    if value == []:
        found.add(path, f"names no strategy; write some of {', '.join(DEVICE_LIST_STRATEGIES)}, or leave it out")
    return tuple(dict.fromkeys(chosen))


def _resources(found: ProblemCollector, value: Any) -> tuple[tuple[ResourcePattern, ...], tuple[ResourcePattern, ...]]:
    resources = found.mapping(value, "resources", ("gpus", "mig"))
    return _patterns(found, resources.get("gpus"), "resources.gpus"), _patterns(
        found, resources.get("mig"), "resources.mig"
    )


def _patterns(found: ProblemCollector, value: Any, path: str) -> tuple[ResourcePattern, ...]:
    patterns = []
    for item, at in found.items(value, path):
        fields = found.mapping(item, at, ("pattern", "name"))
        if missing := [key for key in ("pattern", "name") if fields.get(key) is None]:
            found.add(at, f"has no {' and no '.join(missing)}; both pattern and name are needed")
            continue
        pattern = found.text(fields["pattern"], f"{at}.pattern")
        patterns.append(ResourcePattern(pattern, resource_name(found, fields["name"], f"{at}.name")))
    return tuple(patterns)


def _block(found: ProblemCollector, value: Any, kind: SharingKind, rules: SharingRules) -> SharedBlock | None:
    if value is None:
        return None
    path = f"sharing.{rules.key}"
    fields = _present(found.mapping(value, path, _BLOCK))
    if not fields.get("resources"):
        found.add(f"{path}.resources", "no resources specified; name at least one, such as nvidia.com/gpu")
    rename = bool(_read(fields, "renameByDefault", path, found.boolean))
    one = _read(fields, "failRequestsGreaterThanOne", path, found.boolean)
    resources = [
        shared
        for item, at in found.items(fields.get("resources"), f"{path}.resources")
        if (shared := _parse_shared_resource(found, item, at, rename=rename)) is not None
    ]
    one_per_request = rules.one_per_request if one is None else one
    return SharedBlock(kind=kind, one_per_request=one_per_request, resources=tuple(resources))


def _parse_shared_resource(found: ProblemCollector, item: Any, path: str, *, rename: bool) -> SharedResource | None:
    fields = _present(found.mapping(item, path, _ENTRY))
    before = len(found.problems)
    if "name" not in fields:
        found.add(f"{path}.name", "no resource name specified; write the resource to share, such as nvidia.com/gpu")
    if "replicas" not in fields:
        found.add(f"{path}.replicas", "no replicas specified; write into how many shares each device is divided")
    replicas = _read(fields, "replicas", path, lambda value, at: found.integer(value, at, 2))
    if replicas is not None and replicas > SHARING_REPLICAS:
        found.add(f"{path}.replicas", f"is {replicas:,}; {SHARING_REPLICAS} of one device are allowed")
    name = _read(fields, "name", path, lambda value, at: resource_name(found, value, at)) or ""
    devices = _selection(found, fields.get("devices"), f"{path}.devices")
    if fields.get("rename"):
        advertised = resource_name(found, fields["rename"], f"{path}.rename")
    else:
        advertised = name + SHARED_SUFFIX if rename else name
        if len(name) <= MAX_RESOURCE_NAME < len(advertised):
            text = (
                f'"{advertised}" would have {len(advertised)} characters; {MAX_RESOURCE_NAME} is the most: set rename'
            )
            found.add(f"{path}.name", text)
    if len(found.problems) > before or replicas is None:
        return None
    return SharedResource(name=name, advertised=advertised, replicas=replicas, devices=devices, path=path)


def _selection(found: ProblemCollector, value: Any, path: str) -> Selection:
    if value is None or value == "all":
        return Selection()
    if isinstance(value, str):
        found.add(path, f'is "{value}", but the only word is "all"; or write a count, or a list of indexes and UUIDs')
        return Selection()
    if isinstance(value, list):
        return _references(found, value, path)
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            found.add(path, f"is {value}, but a count of devices must be > 0")
        return Selection(count=value)
    found.add(path, f'must be "all", a count, or a list of indexes and UUIDs, not {quote_value(value)}')
    return Selection()


def _references(found: ProblemCollector, value: list[Any], path: str) -> Selection:
    if not value:
        found.add(path, 'names no device; write "all", or at least one index or UUID')
    refs = []
    for number, item in enumerate(value):
        text = str(item) if isinstance(item, int) and not isinstance(item, bool) else item
        if isinstance(text, str) and _REFERENCE.fullmatch(text):
            refs.append(text)
        else:
            rule = "an index 0, a MIG index 0:1, GPU-<uuid>, MIG-<uuid> or MIG-GPU-<uuid>/<gi>/<ci>"
            found.add(f"{path}[{number}]", f"{quote_value(item)} names no device; write {rule}")
    return Selection(refs=tuple(dict.fromkeys(refs)))


def _any_case(value: Any, path: str, known: Sequence[str], notices: list[Notice]) -> Any:
    """A mapping with its keys as the format writes them: where upstream reads into a struct, it ignores their case."""
    if not isinstance(value, Mapping):
        return value
    spelled = {each.casefold(): each for each in known}
    found = {}
    for key, item in value.items():
        meant = spelled.get(key.casefold(), key) if isinstance(key, str) else key
        if meant != key and meant not in value:
            notices.append(Notice(join_path(path, key), f"is read as {meant}"))
        found[meant if meant not in value else key] = item
    return found


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields without null values: upstream takes those as unset."""
    return {key: value for key, value in fields.items() if value is not None}


def _read(fields: Mapping[str, Any], key: str, path: str, read: Callable[[Any, str], T]) -> T | None:
    return read(fields[key], join_path(path, key)) if key in fields else None


def _one_of(found: ProblemCollector, *allowed: str) -> Callable[[Any, str], str]:
    return lambda value, path: found.choice(value, path, allowed)


def _without_effect(fields: Mapping[str, Any], path: str) -> list[Notice]:
    paths = [f"{path}.{key}" for key in fields]
    return [Notice(each, f"no effect: {WITHOUT_EFFECT[each]}") for each in paths if each in WITHOUT_EFFECT]
