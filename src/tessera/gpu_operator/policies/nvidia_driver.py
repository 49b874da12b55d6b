"""``NVIDIADriver`` (``nvidia.com/v1alpha1``): a driver for a part of the nodes.

Such objects count only if the governing ClusterPolicy has ``driver.useNvidiaDriverCRD``. Settings of the whole cluster
(toolkit, the driver's folder on the host) come from that policy.

``driverType`` and ``usePrecompiled`` are immutable: the CRDs of NVIDIA and Tessera refuse a change. They allow
``usePrecompiled`` to be added and removed; such a change gives another driver set, like any other change.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from tessera.api.problems import quote_value
from tessera.gpu_operator.fields.keys import NVIDIA_DRIVER, check_keys
from tessera.gpu_operator.fields.without_effect import NVIDIA_DRIVER as UNFOLLOWED
from tessera.gpu_operator.policies import chart_defaults as chart
from tessera.gpu_operator.policies.driver_policy import DriverPolicy
from tessera.gpu_operator.policies.field_reader import FieldReader, ReadPolicy, identity
from tessera.gpu_operator.policies.sections import (
    KERNEL_MODULE_TYPES,
    apply_annotations,
    judge_precompiled,
    read_annotations,
    read_driver_source,
    read_identity,
    read_operand,
    read_startup_probe,
    read_upgrade_policy,
)

API_VERSION = "nvidia.com/v1alpha1"
KIND = "NVIDIADriver"

#: Label of a node: the NVIDIADriver that gives it its driver; set by NVIDIA's operator and by Tessera.
OWNER_LABEL = "nvidia.com/gpu-operator.driver.owner"

_DEFAULT_IMAGE = "nvcr.io/nvidia/driver"
_TYPES = ("gpu", "vgpu", "vgpu-host-manager")


def read_nvidia_driver(obj: Mapping[str, Any], cluster: DriverPolicy | None = None) -> ReadPolicy:
    """Reads an NVIDIADriver.

    Args:
        obj: the object, as the API server gives it.
        cluster: the governing ClusterPolicy's settings, for fields that an NVIDIADriver does not have.

    Raises:
        FileRefused: it has mistakes; all of them are listed.
    """
    metadata = identity(obj)
    reading = FieldReader()
    spec = obj.get("spec")
    fields = check_keys(reading.found, spec, "spec", NVIDIA_DRIVER, reading.notices)
    marks = read_annotations(reading, metadata)
    raw = spec if isinstance(spec, Mapping) else {}
    found = {**_where(reading, fields), **_what(reading, fields, raw)}
    if cluster is not None:
        found |= {"toolkit": cluster.toolkit, "driver_root": cluster.driver_root}
        found["priority_class"] = found["priority_class"] or cluster.priority_class
    found["priority_class"] = found["priority_class"] or chart.PRIORITY_CLASS
    found["upgrade"] = read_upgrade_policy(reading, fields, "spec", marks)
    return reading.finish(
        msgspec.structs.replace(read_identity(metadata, KIND), **apply_annotations(reading, found, marks))
    )


def _where(reading: FieldReader, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the nodes that the driver is for."""
    default = fields.get("default", False)
    selector = reading.labels(fields, "nodeSelector", "spec")
    if default and selector:
        text = "cannot be set together with default, which is for the nodes that nothing else selects; remove one"
        reading.add_problem("spec.nodeSelector", text)
    if OWNER_LABEL in selector:
        reading.add_problem(
            "spec.nodeSelector", f"cannot name {OWNER_LABEL}, which says what was selected; name other labels"
        )
    affinity = reading.found.free_mapping(fields.get("nodeAffinity"), "spec.nodeAffinity")
    return {"default": default, "node_selector": selector, "node_affinity": affinity}


def _what(reading: FieldReader, fields: Mapping[str, Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    reading.without_effect(_if_on(fields), "spec", UNFOLLOWED)
    source = read_driver_source(reading, _drop_default_image(fields), "spec")
    precompiled = fields.get("usePrecompiled", False)
    if precompiled:
        gds, gdrcopy = (fields.get(part, {}).get("enabled") is True for part in ("gds", "gdrcopy"))
        judge_precompiled(reading, source, "spec", gds=gds, gdrcopy=gdrcopy)
    _judge_type(reading, fields)
    rdma = fields.get("rdma", {})
    manager = read_operand(
        reading, fields.get("manager", {}), raw.get("manager"), "spec.manager", otherwise=chart.MANAGER_SOURCE
    )
    return {
        "use_precompiled": precompiled,
        "kernel_module_type": reading.found.choice(
            fields.get("kernelModuleType") or "auto", "spec.kernelModuleType", KERNEL_MODULE_TYPES
        ),
        "source": source,
        "startup_probe": read_startup_probe(reading, fields, "spec"),
        "rdma": rdma.get("enabled", False),
        "rdma_host_mofed": rdma.get("useHostMofed", False),
        "env": reading.environment(raw.get("env"), "spec.env"),
        "args": reading.texts(fields, "args", "spec"),
        "resources": reading.resources(fields, "spec"),
        "host_network": fields.get("hostNetwork"),
        "config_maps": _config_maps(reading, fields),
        "licensing_secret": reading.name(fields.get("licensingConfig", {}), "secretName", "spec.licensingConfig"),
        "secret_env": reading.name(fields, "secretEnv", "spec"),
        "manager": manager,
        "labels": reading.labels(fields, "labels", "spec"),
        "annotations": reading.labels(fields, "annotations", "spec"),
        "tolerations": reading.objects(fields, "tolerations", "spec"),
        "priority_class": reading.name(fields, "priorityClassName", "spec"),
    }


def _drop_default_image(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the fields without the default image that NVIDIA's CRD writes.

    That image has registry, path and name in one, without a tag: alone it names nothing; with a version it names the
    driver of NVIDIA's registry.
    """
    if fields.get("image") != _DEFAULT_IMAGE or fields.get("repository"):
        return fields
    usual = chart.DRIVER_SOURCE
    rest = {key: value for key, value in fields.items() if key != "image"}
    return {**rest, "repository": usual.repository, "image": usual.image} if fields.get("version") else rest


def _if_on(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields without parts that are not enabled, which ask for nothing."""
    parts = ("gds", "gdrcopy")
    return {k: v for k, v in fields.items() if k not in parts or v.get("enabled") is True}


def _judge_type(reading: FieldReader, fields: Mapping[str, Any]) -> None:
    kind = fields.get("driverType") or "gpu"
    if kind not in _TYPES:
        reading.add_problem("spec.driverType", f"must be gpu, vgpu or vgpu-host-manager, not {quote_value(kind)}")
    elif kind == "vgpu-host-manager":
        text = (
            "is vgpu-host-manager, the driver of hosts for virtual machines, which Tessera does not install; write gpu"
        )
        reading.add_problem("spec.driverType", text)


def _config_maps(reading: FieldReader, fields: Mapping[str, Any]) -> dict[str, str]:
    keys = {
        "repoConfig": "repoConfig",
        "certConfig": "certConfig",
        "licensingConfig": "licensingConfig",
        "virtualTopology": "virtualTopologyConfig",
        "kernelModuleConfig": "kernelModuleConfig",
    }
    found = {purpose: reading.name(fields.get(key, {}), "name", f"spec.{key}") for purpose, key in keys.items()}
    return {purpose: name for purpose, name in found.items() if name}
