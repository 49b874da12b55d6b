"""What of an installation of NVIDIA's gpu-operator has no effect here, and why: the reasons as data.

Each goes on after ``no effect:``. A new version that follows one of these takes it out of its table.
"""

from collections.abc import Mapping

from tessera.api.operator.keys import IMAGE_KEYS, POD_KEYS

_DISCOVERY = "node feature discovery is not installed; the agent writes the labels of the cards itself"
_MACHINES = "cards are not handed to virtual machines"
_NAMES = "names are those of the manifests"
_VGPU = "vGPU devices are not made"

#: Components.
COMPONENTS: Mapping[str, str] = {
    "ccManager": "the mode of confidential computing is left as it is",
    "clusterPolicy": "Tessera has no ClusterPolicy of its own; it follows the values themselves",
    "daemonsets": "the agent's DaemonSet is set up by its manifest, deploy/agent.yaml",
    "dcgm": "no DCGM host engine is installed",
    "dcgmExporter": "NVIDIA's exporter is not installed; it also runs by itself, beside Tessera",
    "draDriver": "NVIDIA's DRA driver is not installed",
    "driver": "drivers are used as the hosts have them; this version neither installs nor upgrades one",
    "extraObjects": "they are not applied; kubectl apply does that",
    "fullnameOverride": _NAMES,
    "gdrcopy": "GDRCopy devices are not handed out",
    "gds": "GPUDirect Storage devices are not handed out",
    "global": "it speaks to charts, and Tessera has none",
    "gpuCluster": "devices are offered by device plugin, not by DRA",
    "kataManager": "no runtimes for Kata containers are set up",
    "kataSandboxDevicePlugin": _MACHINES,
    "nameOverride": _NAMES,
    "nfd": _DISCOVERY,
    "node-feature-discovery": _DISCOVERY,
    "nodeStatusExporter": "the agent tells its state in the node's conditions and its metrics",
    "operator": "Tessera runs no operator of NVIDIA's; any runtime that reads CDI files serves",
    "platform": "for OpenShift there are manifests in examples/openshift",
    "psa": "the manifests label the namespace for pod security themselves",
    "psp": "pod security policies no longer exist in Kubernetes",
    "sandboxDevicePlugin": _MACHINES,
    "sandboxWorkloads": _MACHINES,
    "toolkit": "the container toolkit is used as the hosts have it",
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

#: Folders of the host by their keys in ``hostPaths``, where they usually are.
USUAL_PATHS: Mapping[str, str] = {"rootFS": "/", "driverInstallDir": "/run/nvidia/driver"}

#: Keys of components that Tessera follows in other keys, and why these have no effect.
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
