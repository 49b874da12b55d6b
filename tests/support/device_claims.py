"""Objects of ``resource.k8s.io`` as a driver, an administrator and a user write them."""

from collections.abc import Sequence
from typing import Any

import msgspec

from tessera.dra.requests import GUARD
from tessera.mig.geometry import Engines, Geometry
from tessera.mig.names import resource_spelling

Obj = dict[str, Any]
#: `nvidia-smi mig -lgip` on A100: multiprocessors by compute slices.
_MULTIPROCESSORS = {1: 14, 2: 28, 3: 42, 4: 56, 7: 98}

API = "/apis/resource.k8s.io/v1"
FINALIZER = "resource.kubernetes.io/delete-protection"


def read_geometry(table: Geometry) -> Geometry:
    """A table with multiprocessors, as NVML reports it."""
    rows = [
        msgspec.structs.replace(row, engines=Engines(multiprocessors=_MULTIPROCESSORS[row.compute_slices]))
        for row in table.profiles
    ]
    return Geometry(table.family, table.slots, tuple(rows))


def _object(kind: str, name: str, spec: Obj) -> Obj:
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def device_class(name: str, *expressions: str, **spec: Any) -> Obj:
    """A DeviceClass with CEL selectors."""
    return _object("DeviceClass", name, {"selectors": [{"cel": {"expression": each}} for each in expressions], **spec})


def profile_class(driver: str, profile: str, *, guarded: bool = False) -> Obj:
    """A DeviceClass of one MIG profile, with the extended resource of the device plugin: ``mig-1g.5gb``."""
    spelling = resource_spelling(profile)
    device = f"device.attributes['{driver}']"
    expression = f"device.driver == '{driver}' && {device}.type == 'mig' && {device}.profile == '{profile}'"
    return device_class(
        f"mig-{spelling}.{driver.removeprefix('gpu.')}",
        *(expression, GUARD)[: 1 + guarded],
        extendedResourceName=f"nvidia.com/mig-{spelling}",
    )


def exactly(name: str, device_class_name: str, *expressions: str, **fields: Any) -> Obj:
    """A request for devices of a class."""
    selectors = [{"cel": {"expression": each}} for each in expressions]
    chosen = {"deviceClassName": device_class_name, **({"selectors": selectors} if selectors else {}), **fields}
    return {"name": name, "exactly": chosen}


def claim(name: str, *requests: Obj, **devices: Any) -> Obj:
    """A ResourceClaim."""
    return _object("ResourceClaim", name, {"devices": {"requests": list(requests), **devices}})


def claim_template(name: str, *requests: Obj, **devices: Any) -> Obj:
    """A ResourceClaimTemplate."""
    return _object("ResourceClaimTemplate", name, {"spec": {"devices": {"requests": list(requests), **devices}}})


def resource_slice(name: str, driver: str, node: str, *devices: Obj, slices: int = 1, **spec: Any) -> Obj:
    """A ResourceSlice of a node's pool, which bears the node's name."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": slices}
    listed = {} if "sharedCounters" in spec else {"devices": list(devices)}
    return _object("ResourceSlice", name, {"driver": driver, "nodeName": node, "pool": pool, **listed, **spec})


def allocation(driver: str, node: str, device: str, *, request: str = "gpu", timed: bool = True) -> Obj:
    """An allocation of one device of a node, as a placement that is not the scheduler's writes it."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    made: Obj = {
        "devices": {"results": [{"request": request, "driver": driver, "pool": node, "device": device}]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    }
    return {**made, "allocationTimestamp": "2026-11-29T11:00:00Z"} if timed else made


def claiming_pod(name: str, *claims: Obj, gates: Sequence[str] = (), **spec: Any) -> Obj:
    """A pod whose one container uses these claims, given as entries of ``spec.resourceClaims``."""
    container = {
        "name": "main",
        "image": "registry.k8s.io/pause:3.10",
        "resources": {"claims": [{"name": each["name"]} for each in claims]},
    }
    made = {"containers": [container], "resourceClaims": list(claims), **spec}
    if gates:
        made["schedulingGates"] = [{"name": each} for each in gates]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": made}
