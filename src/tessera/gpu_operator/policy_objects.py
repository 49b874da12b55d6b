"""Reads the two objects that say which drivers a cluster has, and notes their fields without effect.

A ``ClusterPolicy`` (``nvidia.com/v1``) is for the cluster. It is in force already. So unknown keys, and mistakes in
parts that are not about drivers, are notices and do not refuse it: upstream would ignore them. Mistakes in the parts
about drivers refuse the whole object, all reported at once; half a driver policy is never applied. The defaults for
missing keys are those of NVIDIA's operator, not those of its chart: drivers are enabled, and not upgraded
automatically.

An ``NVIDIADriver`` (``nvidia.com/v1alpha1``) is for a part of the nodes. It counts only if the governing ClusterPolicy
has ``driver.useNvidiaDriverCRD``. Settings of the whole cluster (toolkit, the driver's folder on the host) come from
that policy. ``driverType`` and ``usePrecompiled`` are immutable: the CRDs of NVIDIA and Tessera refuse a change. They
allow ``usePrecompiled`` to be added and removed; such a change gives another driver set, like any other change.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from tessera.api.problems import quote_value
from tessera.gpu_operator.driver_policy import (
    DRIVER_ROOT,
    DRIVER_SOURCE,
    DRIVERS_ANNOTATION,
    DRIVERS_MANAGED,
    MANAGER_SOURCE,
    PRIORITY_CLASS,
    TOOLKIT_SOURCE,
    DriverPolicy,
    OperandSettings,
)
from tessera.gpu_operator.field_reader import FieldReader, ReadPolicy, identity
from tessera.gpu_operator.keys import NVIDIA_DRIVER, POLICY, check_keys
from tessera.gpu_operator.sections import (
    KERNEL_MODULE_TYPES,
    apply_annotations,
    judge_precompiled,
    judge_toolkit_env,
    read_annotations,
    read_driver_source,
    read_folder,
    read_identity,
    read_operand,
    read_startup_probe,
    read_upgrade_policy,
)
from tessera.gpu_operator.without_effect import DAEMONSETS, DRIVER, TOOLKIT, is_set, list_ineffective
from tessera.gpu_operator.without_effect import NVIDIA_DRIVER as UNFOLLOWED

POLICY_API, POLICY_KIND = "nvidia.com/v1", "ClusterPolicy"
DRIVER_API, DRIVER_KIND = "nvidia.com/v1alpha1", "NVIDIADriver"

#: Label of a node: the NVIDIADriver that gives it its driver; set by NVIDIA's operator and by Tessera.
OWNER_LABEL = "nvidia.com/gpu-operator.driver.owner"

#: Parts of ``spec`` that are about drivers; a mistake elsewhere is a notice.
PARTS = ("driver", "toolkit", "daemonsets", "hostPaths")
_MATTERING = ("metadata", "spec.gds.enabled", "spec.gdrcopy.enabled", *(f"spec.{part}" for part in PARTS))

#: Prefixes of the field managers that are no other operator: Tessera itself, and people.
_NOT_OPERATORS = ("tessera", "kubectl")

#: Variable of the toolkit: sets if NVIDIA_VISIBLE_DEVICES counts in containers that are not privileged.
VARIABLE_COUNTS = "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED"

#: Keys of ``driver`` that count when NVIDIADriver objects select the drivers.
_BESIDE_OBJECTS = ("enabled", "useNvidiaDriverCRD", "upgradePolicy")

_DEFAULT_IMAGE = "nvcr.io/nvidia/driver"
_TYPES = ("gpu", "vgpu", "vgpu-host-manager")


def read_cluster_policy(obj: Mapping[str, Any]) -> ReadPolicy:
    """Reads the driver settings of a ClusterPolicy.

    Args:
        obj: the object, as the API server gives it.

    Raises:
        FileRefused: the parts about drivers have mistakes; all of them are listed.
    """
    metadata = identity(obj)
    reading = FieldReader()
    spec = obj.get("spec")
    fields = check_keys(reading.found, spec, "spec", POLICY, reading.notices)
    reading.set_aside(("spec",) if not isinstance(spec, Mapping | None) else _MATTERING)
    raw = spec if isinstance(spec, Mapping) else {}
    reading.notices += list_ineffective(fields, "spec")
    policy = _ClusterPolicyReader(reading, fields, raw, read_annotations(reading, metadata))
    return reading.finish(policy.on(read_identity(metadata, POLICY_KIND)))


class _ClusterPolicyReader:
    def __init__(
        self, reading: FieldReader, fields: Mapping[str, Any], raw: Mapping[str, Any], marks: Mapping[str, str]
    ) -> None:
        self.reading = reading
        self.raw = raw
        self.marks = marks
        self.driver, self.toolkit, self.pods, self.paths = (fields.get(part, {}) for part in PARTS)
        self.cdi = fields.get("cdi", {})
        self.gds, self.gdrcopy = (fields.get(part, {}).get("enabled") is True for part in ("gds", "gdrcopy"))
        self.enabled = self._part_of("driver").get("enabled") is not False
        self.by_objects = self.enabled and self.driver.get("useNvidiaDriverCRD", False)

    def on(self, start: DriverPolicy) -> DriverPolicy:
        """Returns the policy with all settings that count."""
        if not self.enabled:
            if is_set(self.toolkit) and self.toolkit.get("enabled") is not False:
                self.reading.add_notice(
                    "spec.toolkit", "no effect: driver.enabled is false, so the hosts have their toolkit"
                )
            return msgspec.structs.replace(start, enabled=False, toolkit=OperandSettings(enabled=False))
        found = {**self._cluster(), "use_driver_crd": self.by_objects}
        upgrade = read_upgrade_policy(self.reading, self.driver, "spec.driver", self.marks)
        if self.by_objects:
            self._beside_objects()
            return msgspec.structs.replace(start, upgrade=upgrade, **apply_annotations(self.reading, found, self.marks))
        self.reading.without_effect(self.driver, "spec.driver", DRIVER)
        return msgspec.structs.replace(
            start, upgrade=upgrade, **apply_annotations(self.reading, {**found, **self._driver()}, self.marks)
        )

    def _part_of(self, part: str) -> Mapping[str, Any]:
        value = self.raw.get(part)
        return value if isinstance(value, Mapping) else {}

    def _driver(self) -> dict[str, Any]:
        written = self._part_of("driver")
        source = read_driver_source(self.reading, self.driver, "spec.driver")
        if self.driver.get("usePrecompiled", False):
            judge_precompiled(self.reading, source, "spec.driver", gds=self.gds, gdrcopy=self.gdrcopy)
        return {"source": source, **_read_driver(self.reading, self.driver, written, "spec.driver", _POLICY_MAPS)}

    def _cluster(self) -> dict[str, Any]:
        """Returns the settings that hold for all drivers of the cluster."""
        reading = self.reading
        reading.without_effect(self.pods, "spec.daemonsets", DAEMONSETS)
        if (self.pods.get("updateStrategy") or "RollingUpdate") != "RollingUpdate":
            text = "no effect: driver pods are replaced node by node, by driver.upgradePolicy"
            reading.add_notice("spec.daemonsets.updateStrategy", text)
        self._toolkit_notices()
        return {
            "toolkit": self._toolkit(),
            "nri_plugin": self._nri_plugin(),
            "labels": reading.labels(self.pods, "labels", "spec.daemonsets"),
            "annotations": reading.labels(self.pods, "annotations", "spec.daemonsets"),
            "tolerations": reading.objects(self.pods, "tolerations", "spec.daemonsets"),
            "priority_class": reading.name(self.pods, "priorityClassName", "spec.daemonsets") or PRIORITY_CLASS,
            "driver_root": read_folder(reading, self.paths, "driverInstallDir", "spec.hostPaths", DRIVER_ROOT),
        }

    def _toolkit_notices(self) -> None:
        if self.toolkit.get("enabled") is not False:
            self.reading.without_effect(self.toolkit, "spec.toolkit", TOOLKIT)

    def _toolkit(self) -> OperandSettings:
        source = TOOLKIT_SOURCE
        found = read_operand(self.reading, self.toolkit, self._part_of("toolkit"), "spec.toolkit", otherwise=source)
        if found.enabled and found.env.get(VARIABLE_COUNTS, "").lower() == "true":
            text = (
                "then NVIDIA_VISIBLE_DEVICES of images and ConfigMaps, which admission cannot see, gives any container "
                "the GPUs that it names; leave it out (docs/device-policy.md)"
            )
            self.reading.add_notice(f"spec.toolkit.env.{VARIABLE_COUNTS}", text)
        if found.enabled:
            judge_toolkit_env(self.reading, found.env, "spec.toolkit.env")
        return found

    def _nri_plugin(self) -> bool:
        asked = self.cdi.get("nriPluginEnabled") is True
        if asked and self.toolkit.get("enabled") is not False:
            text = (
                "then the toolkit configures no container runtime, and nothing brings the driver's libraries to pods "
                "with GPUs; leave it out unless their images have them (docs/decisions/container-environment.md)"
            )
            self.reading.add_notice("spec.cdi.nriPluginEnabled", text)
        return asked

    def _beside_objects(self) -> None:
        text = "no effect: useNvidiaDriverCRD is true, so NVIDIADriver objects say what is installed"
        for key in self.driver:
            if key not in _BESIDE_OBJECTS and is_set(self.driver[key]):
                self.reading.add_notice(f"spec.driver.{key}", text)


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
    found["priority_class"] = found["priority_class"] or PRIORITY_CLASS
    found["upgrade"] = read_upgrade_policy(reading, fields, "spec", marks)
    return reading.finish(
        msgspec.structs.replace(read_identity(metadata, DRIVER_KIND), **apply_annotations(reading, found, marks))
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
    if fields.get("usePrecompiled", False):
        gds, gdrcopy = (fields.get(part, {}).get("enabled") is True for part in ("gds", "gdrcopy"))
        judge_precompiled(reading, source, "spec", gds=gds, gdrcopy=gdrcopy)
    _judge_type(reading, fields)
    return {
        "source": source,
        **_read_driver(reading, fields, raw, "spec", _DRIVER_MAPS),
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
    usual = DRIVER_SOURCE
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


#: Field of a driver's ConfigMap and the key of its name there, by purpose: in a ClusterPolicy and an NVIDIADriver.
_POLICY_MAPS = {
    "repoConfig": ("repoConfig", "configMapName"),
    "certConfig": ("certConfig", "name"),
    "licensingConfig": ("licensingConfig", "configMapName"),
    "virtualTopology": ("virtualTopology", "config"),
    "kernelModuleConfig": ("kernelModuleConfig", "name"),
}
_DRIVER_MAPS = {
    "repoConfig": ("repoConfig", "name"),
    "certConfig": ("certConfig", "name"),
    "licensingConfig": ("licensingConfig", "name"),
    "virtualTopology": ("virtualTopologyConfig", "name"),
    "kernelModuleConfig": ("kernelModuleConfig", "name"),
}


def _read_driver(
    reading: FieldReader,
    fields: Mapping[str, Any],
    written: Mapping[str, Any],
    at: str,
    maps: Mapping[str, tuple[str, str]],
) -> dict[str, Any]:
    """Returns the settings of a driver that both objects have."""
    rdma, manager = fields.get("rdma", {}), fields.get("manager", {})
    config_maps = {
        purpose: reading.name(fields.get(field, {}), key, f"{at}.{field}") for purpose, (field, key) in maps.items()
    }
    return {
        "use_precompiled": fields.get("usePrecompiled", False),
        "kernel_module_type": reading.found.choice(
            fields.get("kernelModuleType") or "auto", f"{at}.kernelModuleType", KERNEL_MODULE_TYPES
        ),
        "startup_probe": read_startup_probe(reading, fields, at),
        "rdma": rdma.get("enabled", False),
        "rdma_host_mofed": rdma.get("useHostMofed", False),
        "env": reading.environment(written.get("env"), f"{at}.env"),
        "args": reading.texts(fields, "args", at),
        "resources": reading.resources(fields, at),
        "host_network": fields.get("hostNetwork"),
        "config_maps": {purpose: name for purpose, name in config_maps.items() if name},
        "licensing_secret": reading.name(fields.get("licensingConfig", {}), "secretName", f"{at}.licensingConfig"),
        "secret_env": reading.name(fields, "secretEnv", at),
        "manager": read_operand(reading, manager, written.get("manager"), f"{at}.manager", otherwise=MANAGER_SOURCE),
    }


def asks_for_drivers(spec: Mapping[str, Any]) -> bool:
    """True if a policy, or a file of values, names a driver instead of leaving it to the defaults."""
    driver = spec.get("driver")
    if not isinstance(driver, Mapping) or driver.get("enabled") is False:
        return False
    crd = driver.get("nvidiaDriverCRD")
    by_objects = isinstance(crd, Mapping) and crd.get("enabled") is True
    named = ("version", "repository", "image", "usePrecompiled", "useNvidiaDriverCRD")
    return by_objects or any(is_set(driver.get(key)) for key in named)


def find_other_manager(obj: Mapping[str, Any]) -> str:
    """Returns the field manager of another operator that manages drivers by this object; empty if there is none.

    NVIDIA's operator writes the status of the policy that it follows. Two operators that install drivers on one node
    break both; so Tessera leaves an object with a foreign status to its writer, unless :data:`DRIVERS_ANNOTATION` says
    otherwise.
    """
    metadata = obj.get("metadata", {})
    if (metadata.get("annotations") or {}).get(DRIVERS_ANNOTATION) == DRIVERS_MANAGED:
        return ""
    for entry in metadata.get("managedFields") or ():
        manager = str(entry.get("manager", ""))
        if entry.get("subresource") == "status" and not manager.startswith(_NOT_OPERATORS):
            return manager
    return ""
