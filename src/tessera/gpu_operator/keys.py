"""The keys of NVIDIA's gpu-operator: those of its Helm chart's values and of its ``ClusterPolicy``, from 1.7 to 26.7.

Upstream ignores an unknown key: ``migManger:`` there means the defaults, without a message. A file that works there has
to work here, so such a key is a notice, with the place where it belongs. Below some keys everything is allowed, since
Kubernetes or another chart defines it (labels, tolerations, resources, the values of node feature discovery).

NVIDIA's chart writes a switch into its objects without quotes, so the text ``"true"`` in a values file is true. Helm
drops a value that is no mapping where the chart has one, with a warning.

This module does not know which keys Tessera follows; :mod:`tessera.gpu_operator.settings_reader` does.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import Any, TypeAlias

from tessera.api.problems import Notice, ProblemCollector, join_path, quote_value, suggest


class Leaf(Enum):
    """The type of a value that is no mapping of known keys."""

    ANY = "anything"
    FLAG = "true or false"
    TEXT = "text"
    ENV = "a list of environment variables"


Shape: TypeAlias = "Mapping[str, Shape] | Leaf"

ANY, FLAG, TEXT, ENV = Leaf.ANY, Leaf.FLAG, Leaf.TEXT, Leaf.ENV


def _each(names: str, shape: Shape = ANY) -> dict[str, Shape]:
    return dict.fromkeys(names.split(), shape)


IMAGE_KEYS = ("repository", "image", "version", "imagePullPolicy", "imagePullSecrets")
POD_KEYS = (
    "resources",
    "hostNetwork",
    "affinity",
    "nodeSelector",
    "tolerations",
    "priorityClassName",
    "securityContext",
    "podSecurityContext",
    "annotations",
    "labels",
)

_IMAGE: Mapping[str, Shape] = {**_each("version imagePullSecrets"), **_each("repository image imagePullPolicy", TEXT)}
_COMPONENT: Mapping[str, Shape] = {
    **_IMAGE,
    **dict.fromkeys(POD_KEYS, ANY),
    "hostNetwork": FLAG,
    "enabled": FLAG,
    "env": ENV,
    "args": ANY,
}
_ENABLED: Mapping[str, Shape] = {"enabled": FLAG}
_NAMED: Mapping[str, Shape] = {"name": TEXT}
_HELPER: Mapping[str, Shape] = {**_IMAGE, "env": ENV}
#: A ConfigMap by name, or one that the chart makes from ``data``.
_CONFIG: Mapping[str, Shape] = {"create": FLAG, "name": TEXT, "default": TEXT, "data": ANY}
_MONITOR: Mapping[str, Shape] = {
    **_each("interval scrapeTimeout additionalLabels relabelings"),
    **_each("enabled honorLabels", FLAG),
}
_PROBE = _each("initialDelaySeconds timeoutSeconds periodSeconds successThreshold failureThreshold")
_POD_DELETION: Mapping[str, Shape] = {**_each("force deleteEmptyDir", FLAG), "timeoutSeconds": ANY}

_OPERATOR: Mapping[str, Shape] = {
    **_COMPONENT,
    **_each("defaultRuntime runtimeClass defaultGPUMode migStrategy", TEXT),
    **_each("cleanupCRD upgradeCRD use_ocp_driver_toolkit", FLAG),
    "initContainer": _IMAGE,
    "validator": _IMAGE,
    "logging": _each("timeEncoding level develMode"),
    "metrics": {"serviceMonitor": _MONITOR},
}
_DRIVER: Mapping[str, Shape] = {
    **_COMPONENT,
    **_each("usePrecompiled useOpenKernelModules use_ocp_driver_toolkit useNvidiaDriverCRD", FLAG),
    **_each("kernelModuleType secretEnv", TEXT),
    **_each("startupProbe livenessProbe readinessProbe", _PROBE),
    "nvidiaDriverCRD": {**_each("enabled deployDefaultCR", FLAG), **_each("driverType nodeSelector")},
    "rdma": _each("enabled useHostMofed", FLAG),
    "rollingUpdate": _each("maxUnavailable"),
    "upgradePolicy": {
        "autoUpgrade": FLAG,
        **_each("maxParallelUpgrades maxUnavailable"),
        "waitForCompletion": _each("timeoutSeconds podSelector"),
        "podDeletion": _POD_DELETION,
        "gpuPodDeletion": _POD_DELETION,
        "drain": {**_POD_DELETION, "enable": FLAG, "podSelector": TEXT},
    },
    "manager": _HELPER,
    "repoConfig": _each("configMapName destinationDir", TEXT),
    "certConfig": _NAMED,
    "licensingConfig": {**_each("configMapName secretName", TEXT), "nlsEnabled": FLAG},
    "virtualTopology": _each("config", TEXT),
    "kernelModuleConfig": _NAMED,
}
_VALIDATOR: Mapping[str, Shape] = {
    **_COMPONENT,
    **_each("plugin toolkit driver cuda vfioPCI vgpuManager vgpuDevices", {"env": ENV}),
}
_EXPORTER: Mapping[str, Shape] = {
    **_COMPONENT,
    **_each("hostPID enablePodLabels enablePodUID", FLAG),
    "podLabelAllowlistRegex": ANY,
    "config": {"name": TEXT, "create": FLAG, "data": ANY},
    "hpcJobMapping": {"enabled": FLAG, "directory": TEXT},
    "service": _each("type internalTrafficPolicy", TEXT),
    "serviceMonitor": _MONITOR,
}

#: ``spec`` of an NVIDIADriver.
NVIDIA_DRIVER: Mapping[str, Shape] = {
    **_IMAGE,
    **_each("default usePrecompiled useOpenKernelModules hostNetwork", FLAG),
    **_each("driverType kernelModuleType secretEnv priorityClassName", TEXT),
    **_each("startupProbe livenessProbe readinessProbe", _PROBE),
    **_each("resources args nodeSelector nodeAffinity labels annotations tolerations podSecurityContext"),
    **_each("gds gdrcopy", _COMPONENT),
    **_each("repoConfig certConfig virtualTopologyConfig kernelModuleConfig", _NAMED),
    "env": ENV,
    "licensingConfig": {**_each("secretName name", TEXT), "nlsEnabled": FLAG},
    "manager": {**_HELPER},
    "rdma": _DRIVER["rdma"],
    "upgradePolicy": _DRIVER["upgradePolicy"],
}

#: ``spec`` of a ClusterPolicy.
POLICY: Mapping[str, Shape] = {
    **_each("gds gdrcopy nodeStatusExporter sandboxDevicePlugin kataSandboxDevicePlugin", _COMPONENT),
    "ccManager": {**_COMPONENT, "defaultMode": TEXT},
    "cdi": _each("enabled default nriPluginEnabled", FLAG),
    "daemonsets": {**_each("labels annotations tolerations podSecurityContext priorityClassName updateStrategy"),
                   "rollingUpdate": _each("maxUnavailable")},
    "dcgm": {**_COMPONENT, "hostPort": ANY},
    "dcgmExporter": _EXPORTER,
    "devicePlugin": {**_COMPONENT, "config": _CONFIG, "mps": {"root": TEXT}},
    "driver": _DRIVER,
    "gfd": {**_COMPONENT, **_each("discoveryIntervalSeconds migStrategy")},
    "hostPaths": _each("rootFS driverInstallDir kubeletRootDir", TEXT),
    "kataManager": {**_COMPONENT, "config": ANY},
    "mig": {"strategy": TEXT},
    "migManager": {**_COMPONENT, "config": _CONFIG, "gpuClientsConfig": _CONFIG},
    "operator": _OPERATOR,
    "psa": _ENABLED,
    "psp": _ENABLED,
    "sandboxWorkloads": {"enabled": FLAG, **_each("defaultWorkload mode", TEXT)},
    "toolkit": {**_COMPONENT, "installDir": TEXT},
    "validator": _VALIDATOR,
    "vfioManager": {**_COMPONENT, "driverManager": _HELPER},
    "vgpuDeviceManager": {**_COMPONENT, "config": _CONFIG},
    "vgpuManager": {**_COMPONENT, "driverManager": _HELPER, "kernelModuleConfig": _NAMED},
}  # fmt: skip

#: A values file of the Helm chart; ``global`` is Helm's own.
VALUES: Mapping[str, Shape] = {
    **POLICY,
    **_each("extraObjects global node-feature-discovery"),
    **_each("nameOverride fullnameOverride", TEXT),
    **_each("clusterPolicy gpuCluster", _each("deployCR", FLAG)),
    "draDriver": {
        **_COMPONENT,
        "featureGates": ANY,
        "gpus": _each("kubeletPlugin"),
        "computeDomains": {"enabled": FLAG, **_each("controller kubeletPlugin")},
    },
    "nfd": _each("enabled nodefeaturerules", FLAG),
    "platform": _each("openshift", FLAG),
}


#: Why a value has no effect.
UNKNOWN = "unknown, also to NVIDIA's operator"
DROPPED = "is no mapping of keys to values, so Helm drops it"

#: Components whose keys are meant first where a key stands under none.
_USUAL = ("daemonsets", "driver", "toolkit", "devicePlugin", "migManager")
#: Keys that are put where NVIDIA has nothing like them, and where people write what they mean.
_ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(
        ("sharing", "timeSlicing", "flags", "renameByDefault", "replicas", "failRequestsGreaterThanOne"),
        "it belongs into a sharing profile, in the ConfigMap that devicePlugin.config.name names",
    ),
    **dict.fromkeys(
        ("mig-configs", "mig-devices", "mig-enabled"),
        "it belongs into a file of MIG layouts, in the ConfigMap that migManager.config.name names",
    ),
    **dict.fromkeys(
        ("affinity", "nodeSelector"), "NVIDIA's operator chooses nodes by their labels nvidia.com/gpu.deploy.*"
    ),
}


def check_keys(found: ProblemCollector, value: Any, path: str, shape: Shape, strange: list[Notice]) -> Any:
    """Returns the valid part of a value; notes unknown keys and values of another kind, and leaves them out.

    A null counts as a missing key, as in Helm.

    Args:
        found: collects mistakes.
        value: the value in the file or object.
        path: its path; the first key of all paths in the document, if any.
        shape: the allowed keys and types.
        strange: receives notices on unknown keys.
    """
    return _KeyReader(found, strange, path, shape).read(value, path, shape)


class _KeyReader:
    def __init__(self, found: ProblemCollector, strange: list[Notice], root: str, top: Shape) -> None:
        self._found = found
        self._strange = strange
        self._root = root
        self._top = top

    def read(self, value: Any, path: str, shape: Shape) -> Any:
        """Returns the valid part of a value."""
        if isinstance(shape, Leaf):
            return _leaf(self._found, value, path, shape)
        fields = self._found.free_mapping(value, path)
        for key in [key for key in fields if key not in shape]:
            if fields.pop(key) is not None:
                text = f"no effect: {UNKNOWN}; {self._advise(key, shape)}"
                self._strange.append(Notice(join_path(path, key), text))
        return {
            key: self.read(item, join_path(path, key), shape[key]) for key, item in fields.items() if item is not None
        }

    def _advise(self, key: str, shape: Mapping[str, Shape]) -> str:
        return _ELSEWHERE.get(key) or suggest(key, shape, () if key == "enabled" else self._places)

    @cached_property
    def _places(self) -> Sequence[str]:
        """The paths of all keys of the document, those of the usual components first."""
        top = self._top if isinstance(self._top, Mapping) else {}
        order = {**{key: top[key] for key in _USUAL if key in top}, **top}
        return tuple(f"{self._root}.{path}" if self._root else path for path in _paths(order))


def _paths(shape: Shape) -> Iterator[str]:
    for key, below in shape.items() if isinstance(shape, Mapping) else ():
        yield key
        yield from (f"{key}.{path}" for path in _paths(below))


def as_rendered(value: Any, path: str, shape: Shape, notices: list[Notice]) -> Any:
    """Returns a value of a values file as NVIDIA's chart reads it: texts for switches, and no text for a mapping.

    Args:
        value: the value in the file.
        path: its path.
        shape: the allowed keys and types.
        notices: receives notices on values that Helm drops.
    """
    if shape is FLAG and isinstance(value, str):
        return SWITCHES.get(value, value)
    if isinstance(shape, Leaf) or not isinstance(value, Mapping):
        return value
    kept = {}
    for key, item in value.items():
        below = shape.get(key, ANY) if isinstance(key, str) else ANY
        if isinstance(below, Mapping) and not isinstance(item, Mapping | None):
            notices.append(Notice(join_path(path, str(key)), f"no effect: {DROPPED}"))
        else:
            kept[key] = as_rendered(item, join_path(path, str(key)), below, notices)
    return kept


#: Texts that are switches in YAML 1.1, which Kubernetes reads.
SWITCHES: Mapping[str, bool] = {
    **{form: True for each in ("true", "yes", "on") for form in (each, each.title(), each.upper())},
    **{form: False for each in ("false", "no", "off") for form in (each, each.title(), each.upper())},
}


def _leaf(found: ProblemCollector, value: Any, path: str, leaf: Leaf) -> Any:
    if leaf is Leaf.FLAG:
        return found.boolean(value, path)
    if leaf is Leaf.TEXT:
        return found.text(value, path)
    return dict(_variables(found, value, path)) if leaf is Leaf.ENV else value


def _variables(found: ProblemCollector, value: Any, path: str) -> list[tuple[str, str]]:
    """Returns environment variables by name; one whose value is elsewhere (``valueFrom``) is empty."""
    variables = []
    for item, at in found.items(value, path):
        fields = found.mapping(item, at, ("name", "value", "valueFrom"))
        if not isinstance(fields.get("name"), str):
            found.add(f"{at}.name", "missing; write the variable's name")
            continue
        text = fields.get("value")
        if text is not None and not isinstance(text, str):
            found.add(f"{at}.value", f"must be text, not {quote_value(text)}; put it in quotes")
        variables.append((fields["name"], text if isinstance(text, str) else ""))
    return variables
