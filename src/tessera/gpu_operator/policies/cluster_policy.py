"""Reads ``ClusterPolicy`` (``nvidia.com/v1``) objects: the driver settings, and notices on fields without effect.

An object is in force already. So unknown keys, and mistakes in parts that are not about drivers, are notices and do not
refuse it: upstream would ignore them. Mistakes in the parts about drivers refuse the whole object, all reported at
once; half a driver policy is never applied.

The defaults for missing keys are those of NVIDIA's operator, not those of its chart: drivers are enabled, and not
upgraded automatically.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from tessera.gpu_operator.fields.keys import POLICY, check_keys
from tessera.gpu_operator.fields.without_effect import DAEMONSETS, DRIVER, TOOLKIT, is_set, list_ineffective
from tessera.gpu_operator.policies import chart_defaults as chart
from tessera.gpu_operator.policies.chart_defaults import judge_toolkit_env
from tessera.gpu_operator.policies.driver_policy import (
    DRIVERS_ANNOTATION,
    DRIVERS_MANAGED,
    DriverPolicy,
    OperandSettings,
)
from tessera.gpu_operator.policies.field_reader import FieldReader, ReadPolicy, identity
from tessera.gpu_operator.policies.sections import (
    KERNEL_MODULE_TYPES,
    apply_annotations,
    judge_precompiled,
    read_annotations,
    read_driver_source,
    read_folder,
    read_identity,
    read_operand,
    read_startup_probe,
    read_upgrade_policy,
)

API_VERSION = "nvidia.com/v1"
KIND = "ClusterPolicy"

#: Parts of ``spec`` that are about drivers; a mistake elsewhere is a notice.
PARTS = ("driver", "toolkit", "daemonsets", "hostPaths")
_MATTERING = ("metadata", "spec.gds.enabled", "spec.gdrcopy.enabled", *(f"spec.{part}" for part in PARTS))

#: Prefixes of the field managers that are no other operator: Tessera itself, and people.
_NOT_OPERATORS = ("tessera", "kubectl")

#: Variable of the toolkit: sets if NVIDIA_VISIBLE_DEVICES counts in containers that are not privileged.
VARIABLE_COUNTS = "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED"

#: Keys of ``driver`` that count when NVIDIADriver objects select the drivers.
_BESIDE_OBJECTS = ("enabled", "useNvidiaDriverCRD", "upgradePolicy")


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
    return reading.finish(policy.on(read_identity(metadata, KIND)))


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
        reading, driver, at = self.reading, self.driver, "spec.driver"
        source = read_driver_source(reading, driver, at)
        precompiled = driver.get("usePrecompiled", False)
        if precompiled:
            judge_precompiled(reading, source, at, gds=self.gds, gdrcopy=self.gdrcopy)
        rdma = driver.get("rdma", {})
        written = self._part_of("driver")
        return {
            "use_precompiled": precompiled,
            "kernel_module_type": reading.found.choice(
                driver.get("kernelModuleType") or "auto", f"{at}.kernelModuleType", KERNEL_MODULE_TYPES
            ),
            "source": source,
            "startup_probe": read_startup_probe(reading, driver, at),
            "rdma": rdma.get("enabled", False),
            "rdma_host_mofed": rdma.get("useHostMofed", False),
            "env": reading.environment(written.get("env"), f"{at}.env"),
            "args": reading.texts(driver, "args", at),
            "resources": reading.resources(driver, at),
            "host_network": driver.get("hostNetwork"),
            "config_maps": self._config_maps(),
            "licensing_secret": reading.name(driver.get("licensingConfig", {}), "secretName", f"{at}.licensingConfig"),
            "secret_env": reading.name(driver, "secretEnv", at),
            "manager": self._manager(written),
        }

    def _config_maps(self) -> dict[str, str]:
        keys = {
            "repoConfig": "configMapName",
            "certConfig": "name",
            "licensingConfig": "configMapName",
            "virtualTopology": "config",
            "kernelModuleConfig": "name",
        }
        found = {
            purpose: self.reading.name(self.driver.get(purpose, {}), key, f"spec.driver.{purpose}")
            for purpose, key in keys.items()
        }
        return {purpose: name for purpose, name in found.items() if name}

    def _manager(self, written: Mapping[str, Any]) -> OperandSettings:
        manager, at = self.driver.get("manager", {}), "spec.driver.manager"
        return read_operand(self.reading, manager, written.get("manager"), at, otherwise=chart.MANAGER_SOURCE)

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
            "priority_class": reading.name(self.pods, "priorityClassName", "spec.daemonsets") or chart.PRIORITY_CLASS,
            "driver_root": read_folder(reading, self.paths, "driverInstallDir", "spec.hostPaths", chart.DRIVER_ROOT),
        }

    def _toolkit_notices(self) -> None:
        if self.toolkit.get("enabled") is not False:
            self.reading.without_effect(self.toolkit, "spec.toolkit", TOOLKIT)

    def _toolkit(self) -> OperandSettings:
        source = chart.TOOLKIT_SOURCE
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
