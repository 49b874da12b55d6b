"""Everything in a cluster as it can be compared: all objects of all kinds, and all files of its nodes.

Left out is what changes by itself in a cluster that nobody touches: versions and times, Events, the renewal of Leases,
and the order in which field owners are listed.
"""

import copy
import difflib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tessera.kube.client import Client

#: Objects by kind, namespace and name.
Snapshot = Mapping[str, Any]

_TIMES = frozenset({"lastHeartbeatTime", "lastTransitionTime", "renewTime", "acquireTime", "leaseTransitions"})
_SERVER = ("resourceVersion", "generation", "managedFields", "uid", "creationTimestamp")
#: Kinds that hold no state of anybody.
_IGNORED = frozenset({"Event", "ComponentStatus", "Pod"})


async def snapshot(client: Client, folders: Iterable[Path] = ()) -> Snapshot:
    """Reads all objects, and the names of all files below the folders."""
    found: dict[str, Any] = {}
    for path in await _collections(client):
        for item in json.loads((await client.request("GET", path)).body)["items"]:
            metadata = item["metadata"]
            found[f"{path} {metadata.get('namespace', '')}/{metadata['name']}"] = _comparable(item)
    for folder in folders:
        found |= {f"file {each.relative_to(folder)}": "" for each in folder.rglob("*") if not each.is_dir()}
    return found


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """The lines in which two snapshots differ."""
    return [
        line
        for line in difflib.unified_diff(_lines(before), _lines(after), "before", "after", lineterm="", n=0)
        if not line.startswith(("@@", "---", "+++"))
    ]


def owners(item: Mapping[str, Any]) -> set[str]:
    """The field managers of an object."""
    return {each["manager"] for each in item["metadata"].get("managedFields", ())}


def _lines(one: Snapshot) -> list[str]:
    return [
        f"{name}: {line}"
        for name in sorted(one)
        for line in json.dumps(one[name], indent=1, sort_keys=True).split("\n")
    ]


async def _collections(client: Client) -> list[str]:
    """Paths of all collections that the server lists, each kind once."""
    groups = json.loads((await client.request("GET", "/apis")).body)["groups"]
    roots = ["/api/v1", *(f"/apis/{each['preferredVersion']['groupVersion']}" for each in groups)]
    paths: list[str] = []
    for root in roots:
        paths += [
            f"{root}/{each['name']}"
            for each in json.loads((await client.request("GET", root)).body)["resources"]
            if "list" in each["verbs"] and "/" not in each["name"] and each["kind"] not in _IGNORED
        ]
    return sorted(paths)


def _comparable(item: Mapping[str, Any]) -> Any:
    found = copy.deepcopy(dict(item))
    metadata = found["metadata"]
    managers = owners(item)
    for each in _SERVER:
        metadata.pop(each, None)
    # Only Tessera's names matter: other owners come and go as they write.
    metadata["tesseraOwns"] = sorted(each for each in managers if each.startswith("tessera"))
    return _without_times(found)


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        # A list or map that became empty is the same as one that was never there.
        kept = {name: _without_times(each) for name, each in value.items() if name not in _TIMES}
        return {name: each for name, each in kept.items() if each not in ({}, [], None)}
    return [_without_times(each) for each in value] if isinstance(value, list) else value
