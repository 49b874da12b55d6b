"""The settings of NVIDIA's gpu-operator that have no effect in Tessera, each with the reason, as data.

Each reason follows the words ``no effect:``. A new version that follows one of these settings removes it from its
table.
"""

from collections.abc import Mapping

from tessera.gpu_operator.fields.keys import IMAGE_KEYS, POD_KEYS

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
