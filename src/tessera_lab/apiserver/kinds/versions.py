"""Versions of Kubernetes that the lab can have, and the fields that each decodes and drops.

``/version``, kubelets and ``resource.k8s.io`` follow from the choice. All other kinds have the shape of 1.32 in every
version. ``resource.k8s.io/v1`` comes with 1.34; which of its fields and kinds a version serves follows from its feature
gates (``pkg/features/kube_features.go`` and ``pkg/registry/resource/*/strategy.go`` of 1.34 to 1.37; for 1.37 also the
KEPs). 1.36 was seen on a real server.

A server decodes and drops, without a word, a field whose feature gate is off. A field that a version does not know at
all is an unknown field instead, of which the server warns. The lab takes the fields that came with 1.37 for unknown in
every version: their gates are all off.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera_lab.apiserver.interfaces import Obj

#: The release that is imitated, by minor version.
RELEASES: Mapping[str, str] = {
    "1.32": "1.32.4",
    "1.34": "1.34.2",
    "1.35": "1.35.3",
    "1.36": "1.36.2",
    "1.37": "1.37.0",
}
DEFAULT = "1.36"
_REQUESTS = ("requests[].exactly", "requests[].firstAvailable[]")
_RESULTS = "status.allocation.devices.results[]"
#: Off in all these versions: list attributes and node resources of devices (DRAListTypeAttributes,
#: DRANodeAllocatableResources).
_ALWAYS: Mapping[str, tuple[str, ...]] = {
    "resourceslices": (
        *(f"spec.devices[].attributes[].{each}" for each in ("bools", "ints", "strings", "versions")),
        "spec.devices[].nodeAllocatableResourceMappings",
    )
}
_CLAIM_FIELDS = (
    *(f"{request}.{each}" for request in _REQUESTS for each in ("tolerations", "capacity")),
    "constraints[].distinctAttribute",
)
#: Off before 1.36: DRAPartitionableDevices, DRADeviceTaints, DRAConsumableCapacity, DRADeviceBindingConditions,
#: DRAExtendedResource.
_BEFORE_136: Mapping[str, tuple[str, ...]] = {
    "deviceclasses": ("spec.extendedResourceName",),
    "resourceclaims": (
        *(f"spec.devices.{each}" for each in _CLAIM_FIELDS),
        *(
            f"{_RESULTS}.{each}"
            for each in (
                "tolerations",
                "shareID",
                "consumedCapacity",
                "bindingConditions",
                "bindingFailureConditions",
            )
        ),
        "status.allocation.allocationTimestamp",
    ),
    "resourceclaimtemplates": tuple(f"spec.spec.devices.{each}" for each in _CLAIM_FIELDS),
    "resourceslices": (
        "spec.sharedCounters",
        "spec.perDeviceNodeSelection",
        *(
            f"spec.devices[].{each}"
            for each in (
                "taints",
                "consumesCounters",
                "nodeName",
                "nodeSelector",
                "allNodes",
                "allowMultipleAllocations",
                "bindsToNode",
                "bindingConditions",
                "bindingFailureConditions",
                "capacity[].requestPolicy",
            )
        ),
    ),
}


def has_claims(version: str) -> bool:
    """True if a minor version serves ``resource.k8s.io/v1``."""
    return version >= "1.34"


def has_taint_rules(version: str) -> bool:
    """True if a minor version serves DeviceTaintRules unasked: 1.36 has them as a beta that is off."""
    return version >= "1.37"


def needs_create_to_connect(version: str) -> bool:
    """True if ``exec`` over a WebSocket needs the right to create, not only to get, ``pods/exec``.

    Feature gate AuthorizePodWebsocketUpgradeCreatePermission, on since 1.35.
    """
    return version >= "1.35"


#: Versions of a whole cluster: the lab's scheduler and controllers watch ``resource.k8s.io/v1``.
CLUSTERS = tuple(filter(has_claims, RELEASES))


def disabled_fields(plural: str, version: str) -> tuple[str, ...]:
    """Paths that a server of a version drops from a resource; ``[]`` stands for all entries of a list or a map."""
    before = () if version >= "1.36" else _BEFORE_136.get(plural, ())
    return (*_ALWAYS.get(plural, ()), *before)


def drop_fields(obj: Obj, paths: Sequence[str]) -> None:
    """Removes the fields of these paths from an object."""
    for path in paths:
        _drop(obj, path.replace("[]", ".[]").split("."))


def _drop(value: Any, steps: Sequence[str]) -> None:
    step, rest = steps[0], steps[1:]
    if step == "[]":
        entries = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        for each in entries:
            _drop(each, rest)
    elif isinstance(value, dict) and step in value:
        if rest:
            _drop(value[step], rest)
        else:
            del value[step]
