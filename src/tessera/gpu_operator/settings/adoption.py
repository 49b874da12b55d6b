"""The fields by which an installation takes over from NVIDIA's programs, and a removal gives back to them.

What is stopped is recorded on the stopped object itself, so that a removal needs no memory of the installation.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

#: Annotation of a ClusterPolicy: the former values of ``enabled`` of the parts that Tessera replaces, as JSON.
ADOPTED_ANNOTATION = "tessera.dev/adopted"
#: Key in the node selector of a DaemonSet that is not the operator's: no node has it, so its pods end.
STOPPED_KEY = "tessera.dev/replaced-by-tessera"
#: Parts that Tessera replaces: end of the node's label ``nvidia.com/gpu.deploy.*``, and key of the ClusterPolicy. In
#: the order in which they stop: first what changes cards, last what offers them.
PARTS: Mapping[str, str] = {
    "mig-manager": "migManager",
    "gpu-feature-discovery": "gfd",
    "device-plugin": "devicePlugin",
}
DEPLOY_PREFIX = "nvidia.com/gpu.deploy."

_DECODER = msgspec.json.Decoder(dict[str, bool | None])


def stop_patch(policy: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch of a ClusterPolicy that turns these parts off and records their values; empty if they are off."""
    spec = policy.get("spec") or {}
    before = {key: (spec.get(key) or {}).get("enabled") for key in PARTS.values()}
    on = {key: each for key, each in before.items() if each is not False}
    if not on:
        return {}
    record = read_record(policy) or {}
    noted = msgspec.json.encode(record | {key: each for key, each in on.items() if key not in record}).decode()
    return {
        "metadata": {"annotations": {ADOPTED_ANNOTATION: noted}},
        "spec": {key: {"enabled": False} for key in on},
    }


def restore_patch(policy: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch that gives a ClusterPolicy its former values back; empty if nothing was recorded."""
    record = read_record(policy)
    if record is None:
        return {}
    spec = {key: _restored(policy["spec"].get(key) or {}, record[key]) for key in PARTS.values() if key in record}
    return {"metadata": {"annotations": {ADOPTED_ANNOTATION: None}}, "spec": spec}


def _restored(part: Mapping[str, Any], before: bool | None) -> dict[str, bool | None] | None:
    """The patch of one part; ``None`` removes a part that has nothing else."""
    return None if before is None and part.keys() <= {"enabled"} else {"enabled": before}


def read_record(policy: Mapping[str, Any]) -> dict[str, bool | None] | None:
    """The recorded values; ``None`` without a record, or if it cannot be read."""
    text = (policy["metadata"].get("annotations") or {}).get(ADOPTED_ANNOTATION, "")
    try:
        return _DECODER.decode(text) if text else None
    except msgspec.DecodeError:
        return None
