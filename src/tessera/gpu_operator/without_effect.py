"""The settings of NVIDIA's gpu-operator that have no effect in Tessera, each with the reason, as data.

Each reason follows the words ``no effect:``. A new version that follows one of these settings removes it from its
table.

Notices tell users of settings of NVIDIA's gpu-operator, besides drivers, that Tessera does not carry out.

The reasons are data. A component that is switched off is off here
too, and not reported; nor is a component of virtual machines where they are off.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tessera.api.problems import Notice
from tessera.gpu_operator.keys import IMAGE_KEYS, POD_KEYS

_DISCOVERY = "node feature discovery is not installed; the agent writes the labels of the cards itself"
_MACHINES = "cards are not handed to virtual machines"
_NAMES = "names are those of the manifests"
_VGPU = "vGPU devices are not made"

#: Components.
COMPONENTS: Mapping[str, str] = {
    "ccManager": "the mode of confidential computing is left as it is",
    "dcgm": "no DCGM host engine is installed",
    "dcgmExporter": "NVIDIA's exporter is not installed; it also runs by itself, beside Tessera",
    "draDriver": "NVIDIA's DRA driver is not installed",
    "extraObjects": "they are not applied; kubectl apply does that",
    "fullnameOverride": _NAMES,
    "gdrcopy": "GDRCopy modules are not loaded and its devices not handed out",
    "gds": "GPUDirect Storage modules are not loaded and its devices not handed out",
    "global": "it is for the charts inside NVIDIA's, which are not installed",
    "gpuCluster": "devices are offered by device plugin, not by DRA",
    "kataManager": "no runtimes for Kata containers are set up",
    "kataSandboxDevicePlugin": _MACHINES,
    "nameOverride": _NAMES,
    "nfd": _DISCOVERY,
    "node-feature-discovery": _DISCOVERY,
    "nodeStatusExporter": "the agent shows its state in the node's conditions and in its metrics",
    "operator": "Tessera runs no operator of NVIDIA's; any runtime that reads CDI files works",
    "platform": "OpenShift is recognised by its API; with kubectl apply -k, use examples/openshift",
    "psa": "the manifests label the namespace for pod security themselves",
    "psp": "pod security policies no longer exist in Kubernetes",
    "sandboxDevicePlugin": _MACHINES,
    "sandboxWorkloads": _MACHINES,
    "validator": "the agent tests the cards itself",
    "vfioManager": _MACHINES,
    "vgpuDeviceManager": _VGPU,
    "vgpuManager": _VGPU,
}

#: Components that do nothing, at NVIDIA's operator too, unless ``sandboxWorkloads`` is enabled.
OF_SANDBOXES = frozenset(
    {
        "ccManager",
        "kataManager",
        "kataSandboxDevicePlugin",
        "sandboxDevicePlugin",
        "vfioManager",
        "vgpuDeviceManager",
        "vgpuManager",
    }
)

#: Parts about drivers, if Tessera installs none.
WITHOUT_DRIVERS: Mapping[str, str] = {
    "daemonsets": "the agent's DaemonSet is set up by its manifest, deploy/agent.yaml",
    "driver": "drivers are used as the hosts have them",
    "toolkit": "the container toolkit is used as the hosts have it",
}

_POD = "driver pods are set up by daemonsets"
_TOOLKIT_POD = "the toolkit's pod is Tessera's own"
#: Keys of ``driver`` in a ClusterPolicy.
DRIVER: Mapping[str, str] = {
    **dict.fromkeys(("affinity", "annotations", "labels", "nodeSelector", "priorityClassName", "tolerations"), _POD),
    **dict.fromkeys(("podSecurityContext", "securityContext"), "a driver container is privileged"),
    **dict.fromkeys(("livenessProbe", "readinessProbe"), "the agent asks the driver itself while it serves"),
    "rollingUpdate": "a driver is replaced node by node, by upgradePolicy",
    "useOpenKernelModules": "NVIDIA's operator has not followed it since v25.3; write kernelModuleType",
    "use_ocp_driver_toolkit": "whether the driver toolkit builds is decided for each node",
}
#: Keys of an NVIDIADriver.
NVIDIA_DRIVER: Mapping[str, str] = {
    **{key: DRIVER[key] for key in ("livenessProbe", "readinessProbe", "useOpenKernelModules", "podSecurityContext")},
    "gds": COMPONENTS["gds"],
    "gdrcopy": COMPONENTS["gdrcopy"],
}
#: Keys of ``daemonsets``, beside its update strategy.
DAEMONSETS: Mapping[str, str] = {"podSecurityContext": "containers of drivers are privileged"}
#: Keys of ``toolkit``.
TOOLKIT: Mapping[str, str] = {
    **dict.fromkeys(POD_KEYS, _TOOLKIT_POD),
    "hostNetwork": "the toolkit needs no network",
    "args": "the toolkit is told by env",
}

#: Parts of a ClusterPolicy that the agents follow, but through their own options.
OF_INSTALL: Mapping[str, str] = dict.fromkeys(
    ("cdi", "devicePlugin", "gfd", "mig", "migManager"),
    "the agents have it as options; tessera install --values takes it over from this object",
)

#: Host folders by their keys in ``hostPaths``, with their usual paths.
USUAL_PATHS: Mapping[str, str] = {"rootFS": "/"}

#: Keys of components whose settings Tessera follows under other keys, with the reason.
GROUPS: tuple[tuple[tuple[str, ...], str], ...] = (
    (IMAGE_KEYS, "the agent has one image; tessera install --image names another"),
    (POD_KEYS, "the agent's pod is set up by its manifest, deploy/agent.yaml"),
    (("args",), "the agent has options of its own"),
    (("gpuClientsConfig",), "no host services are stopped to change a layout"),
    (("discoveryIntervalSeconds", "migStrategy"), "labels follow the cards at once, by mig.strategy"),
)

_IN_PROFILE = "write it into the sharing profile, flags."
#: Environment of the device plugin.
PLUGIN_ENV: Mapping[str, str] = {
    "CDI_ANNOTATION_PREFIX": _IN_PROFILE + "plugin.cdiAnnotationPrefix",
    "CONFIG_FILE": "profiles come from the ConfigMap devicePlugin.config.name",
    "CONTAINER_DRIVER_ROOT": "CDI files are written with the host's paths",
    "DEVICE_DISCOVERY_STRATEGY": "cards are found through NVML",
    "FAIL_ON_INIT_ERROR": "a node whose driver does not answer is reported and tried again, the agent stays",
    "GDRCOPY_ENABLED": "GDRCopy devices are not handed out",
    "GDS_ENABLED": "GPUDirect Storage devices are not handed out",
    "MOFED_ENABLED": "Mellanox devices are not handed out",
    "NVIDIA_CTK_PATH": "CDI files are written without nvidia-ctk",
    "NVIDIA_DEV_ROOT": _IN_PROFILE + "nvidiaDevRoot",
    "NVIDIA_DRIVER_CAPABILITIES": "it speaks of the plugin's own container",
    "NVIDIA_DRIVER_ROOT": _IN_PROFILE + "nvidiaDriverRoot",
    "NVIDIA_MIG_MONITOR_DEVICES": "it speaks of the plugin's own container",
    "NVIDIA_VISIBLE_DEVICES": "it speaks of the plugin's own container",
    "USE_NODE_FEATURE_API": "the agent writes the node's labels itself",
}
#: Environment of the MIG manager.
MIG_ENV: Mapping[str, str] = {
    "WITH_SHUTDOWN_HOST_GPU_CLIENTS": "no host services are stopped to change a layout",
}

#: Single settings, by what they are.
SINGLE: Mapping[str, str] = {
    "cdi.enabled": "devices are handed over through CDI, but for DEVICE_LIST_STRATEGY",
    "config.data": "config.create is not true",
    "devicePlugin.config.default": "devicePlugin.config.name names no ConfigMap",
    "devicePlugin.enabled": "the agent offers the cards of every node that it runs on",
    "gfd.enabled": "the agent writes the labels of the cards",
    "gfd.env": "labels are written by the agent, which follows the cards at once",
    "hostPaths": f"{', '.join(USUAL_PATHS)}; the host's files are used where they are",
    "sandboxWorkloads.defaultWorkload": "a node without the label nvidia.com/gpu.workload.config offers its cards to"
    " containers; label each node of virtual machines first: kubectl label node NODE"
    " nvidia.com/gpu.workload.config=vm-passthrough",
    "unknown variable": "Tessera does not know it",
    "unnamed driver": "the file names no version, repository or usePrecompiled; tessera install --drivers, or"
    " tessera.drivers=install in the chart, has Tessera install them",
}


#: Environment variables that Tessera follows.
PLUGIN_FOLLOWED = (
    "DEVICE_LIST_STRATEGY",
    "DEVICE_ID_STRATEGY",
    "MIG_STRATEGY",
    "MPS_ROOT",
    "PASS_DEVICE_SPECS",
    "DP_DISABLE_HEALTHCHECKS",
    "DP_ENABLE_HEALTHCHECKS",
)
MANAGER_FOLLOWED = ("WITH_REBOOT",)
#: Keys of a component that ask nothing of agents: its switch, and settings of the container toolkit.
_ELSEWHERE = ("enabled", "nriPluginEnabled")


def list_unsupported(fields: Mapping[str, Any], path: str) -> Iterator[Notice]:
    """Yields notices on settings without effect in Helm values, or in a ClusterPolicy that is taken over.

    Args:
        fields: all components, already checked.
        path: their path: empty, or ``spec``.
    """
    yield from _components(fields, path)
    if _off(fields, "cdi"):
        yield _single(path, "cdi.enabled")
    for component in ("devicePlugin", "gfd", "migManager"):
        yield from _groups(fields.get(component, {}), _at(path, component))
    if _off(fields, "gfd"):
        yield _single(path, "gfd.enabled")
    if any(_env(fields, "gfd")):
        yield _single(path, "gfd.env")
    yield from _variables(fields, path, "devicePlugin", PLUGIN_ENV, PLUGIN_FOLLOWED)
    yield from _variables(fields, path, "migManager", MIG_ENV, MANAGER_FOLLOWED)


def list_ineffective(fields: Mapping[str, Any], path: str) -> list[Notice]:
    """Returns notices on settings without effect in a cluster's ClusterPolicy, which the agents do not read."""
    found = list(_components(fields, path))
    for component, reason in OF_INSTALL.items():
        value = fields.get(component, {})
        if value.get("enabled") is not False and any(is_set(value[key]) for key in value if key not in _ELSEWHERE):
            found.append(Notice(_at(path, component), f"no effect by itself: {reason}"))
    return found


def is_set(value: Any) -> bool:
    """True if a value asks for anything; empty and false values, at all levels, do not."""
    if isinstance(value, Mapping):
        return any(map(is_set, value.values()))
    return value not in (None, False, "", 0) and value != []


def is_switched_off(fields: Mapping[str, Any], component: str) -> bool:
    """True if the component's switch, or the switch of all virtual machines, turns it off."""
    if component in OF_SANDBOXES and fields.get("sandboxWorkloads", {}).get("enabled") is not True:
        return True
    value = fields.get(component)
    return isinstance(value, Mapping) and (value.get("enabled") is False or value.get("deployCR") is False)


def _components(fields: Mapping[str, Any], path: str) -> Iterator[Notice]:
    for component, value in fields.items():
        if component in COMPONENTS and is_set(value) and not is_switched_off(fields, component):
            yield Notice(_at(path, component), f"no effect: {COMPONENTS[component]}")
    sandboxes = fields.get("sandboxWorkloads", {})
    if sandboxes.get("enabled") is True and str(sandboxes.get("defaultWorkload")).startswith("vm-"):
        yield _single(path, "sandboxWorkloads.defaultWorkload")
    paths = fields.get("hostPaths", {})
    if any(str(paths.get(key, "")) not in {"", usual} for key, usual in USUAL_PATHS.items()):
        yield _single(path, "hostPaths")


def _groups(fields: Mapping[str, Any], path: str) -> Iterator[Notice]:
    for keys, reason in GROUPS:
        present = [key for key in keys if is_set(fields.get(key))]
        if present:
            yield Notice(path, f"no effect: {', '.join(present)}; {reason}")


def _variables(
    fields: Mapping[str, Any], path: str, component: str, known: Mapping[str, str], followed: tuple[str, ...]
) -> Iterator[Notice]:
    for name in _env(fields, component):
        if name not in followed:
            reason = known.get(name, SINGLE["unknown variable"])
            yield Notice(_at(path, f"{component}.env.{name}"), f"no effect: {reason}")


def _single(path: str, setting: str) -> Notice:
    return Notice(_at(path, setting), f"no effect: {SINGLE[setting]}")


def _env(fields: Mapping[str, Any], component: str) -> Mapping[str, str]:
    value = fields.get(component, {}).get("env")
    return value if isinstance(value, Mapping) else {}


def _off(fields: Mapping[str, Any], component: str) -> bool:
    return bool(fields.get(component, {}).get("enabled") is False)


def _at(path: str, below: str) -> str:
    return f"{path}.{below}" if path else below
