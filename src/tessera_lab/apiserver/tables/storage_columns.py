"""Columns of volumes, claims and storage classes."""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera_lab.apiserver.tables.core_columns import Part, age_of, name_of

_UNSET = "<unset>"
_SHORT_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}


def _modes(modes: Sequence[str] | None) -> str:
    return ",".join(short for mode, short in _SHORT_MODES.items() if mode in (modes or ()))


def _claim(obj: Part, now: float) -> Sequence[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    bound = bool(spec.get("volumeName"))
    return [
        name_of(obj),
        "Terminating" if obj["metadata"].get("deletionTimestamp") else status.get("phase", ""),
        spec.get("volumeName", ""),
        (status.get("capacity") or {}).get("storage", "") if bound else "",
        _modes(status.get("accessModes")) if bound else "",
        spec.get("storageClassName", ""),
        spec.get("volumeAttributesClassName") or _UNSET,
        age_of(obj, now),
        spec.get("volumeMode") or _UNSET,
    ]


def _volume(obj: Part, now: float) -> Sequence[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    claim = spec.get("claimRef")
    return [
        name_of(obj),
        (spec.get("capacity") or {}).get("storage", ""),
        _modes(spec.get("accessModes")),
        spec.get("persistentVolumeReclaimPolicy", ""),
        "Terminating" if obj["metadata"].get("deletionTimestamp") else status.get("phase", ""),
        f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "",
        spec.get("storageClassName", ""),
        spec.get("volumeAttributesClassName") or _UNSET,
        status.get("reason", ""),
        age_of(obj, now),
        spec.get("volumeMode") or _UNSET,
    ]


def _class(obj: Part, now: float) -> Sequence[Any]:
    default = (obj["metadata"].get("annotations") or {}).get("storageclass.kubernetes.io/is-default-class") == "true"
    return [
        name_of(obj) + (" (default)" if default else ""),
        obj.get("provisioner", ""),
        obj.get("reclaimPolicy", ""),
        obj.get("volumeBindingMode", ""),
        "true" if obj.get("allowVolumeExpansion") else "false",
        age_of(obj, now),
    ]


def _csi_node(obj: Part, now: float) -> Sequence[Any]:
    return [name_of(obj), len((obj.get("spec") or {}).get("drivers") or ()), age_of(obj, now)]


_ATTRIBUTES = "VolumeAttributesClass"
COLUMNS: Mapping[tuple[str, str], tuple[tuple[str, ...], Any]] = {
    ("", "PersistentVolumeClaim"): (
        (
            "Name",
            "Status",
            "Volume",
            "Capacity",
            "Access Modes",
            "StorageClass",
            _ATTRIBUTES,
            "Age",
            "+VolumeMode",
        ),
        _claim,
    ),
    ("", "PersistentVolume"): (
        (
            "Name",
            "Capacity",
            "Access Modes",
            "Reclaim Policy",
            "Status",
            "Claim",
            "StorageClass",
            _ATTRIBUTES,
            "Reason",
            "Age",
            "+VolumeMode",
        ),
        _volume,
    ),
    ("storage.k8s.io", "StorageClass"): (
        ("Name", "Provisioner", "ReclaimPolicy", "VolumeBindingMode", "AllowVolumeExpansion", "Age"),
        _class,
    ),
    ("storage.k8s.io", "CSINode"): (("Name", "Drivers:integer", "Age"), _csi_node),
}
