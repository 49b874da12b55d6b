"""Driver defaults of NVIDIA's Helm chart v26.7.0, and the variables of ``toolkit.env`` that name files of the host.

The chart renders them into the ``ClusterPolicy``, so they count for every installation by values. An object that a user
wrote by hand has none of them; for such an object Tessera takes only the images from here, since it has no images of
its own for these parts.

The folders of those files are mounted into the toolkit's container, so each must be a path that Kubernetes can mount.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tessera.api.problems import join_path, quote_value
from tessera.gpu_operator.policies.driver_policy import ImageSource
from tessera.gpu_operator.policies.field_reader import FieldReader

CHART_VERSION = "v26.7.0"

DRIVER_SOURCE = ImageSource(repository="nvcr.io/nvidia", image="driver", version="595.91.07")
MANAGER_SOURCE = ImageSource(repository="nvcr.io/nvidia/cloud-native", image="k8s-driver-manager", version="v0.12.0")
TOOLKIT_SOURCE = ImageSource(repository="nvcr.io/nvidia/k8s", image="container-toolkit", version="v1.20.0")
INSTALL_DIR = "/usr/local/nvidia"
DRIVER_ROOT = "/run/nvidia/driver"
PRIORITY_CLASS = "system-node-critical"

#: Startup probe of the driver container: first check after 60 s, then one every 10 s, for 20 minutes.
STARTUP_PROBE: Mapping[str, int] = MappingProxyType(
    {"initialDelaySeconds": 60, "periodSeconds": 10, "timeoutSeconds": 60, "failureThreshold": 120}
)


def _image(source: ImageSource) -> dict[str, Any]:
    named = {"repository": source.repository, "image": source.image, "version": source.version}
    return {**named, "imagePullPolicy": source.pull_policy}


#: The chart's values that its ``ClusterPolicy`` template uses for drivers.
VALUES: Mapping[str, Any] = MappingProxyType(
    {
        "daemonsets": {
            "priorityClassName": PRIORITY_CLASS,
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "updateStrategy": "RollingUpdate",
            "rollingUpdate": {"maxUnavailable": "1"},
        },
        "hostPaths": {"rootFS": "/", "driverInstallDir": DRIVER_ROOT},
        "driver": {
            "enabled": True,
            "nvidiaDriverCRD": {"enabled": False, "deployDefaultCR": True, "driverType": "gpu", "nodeSelector": {}},
            "kernelModuleType": "auto",
            "usePrecompiled": False,
            **_image(DRIVER_SOURCE),
            "startupProbe": dict(STARTUP_PROBE),
            "rdma": {"enabled": False, "useHostMofed": False},
            "upgradePolicy": {
                "autoUpgrade": True,
                "maxParallelUpgrades": 1,
                "maxUnavailable": "25%",
                "waitForCompletion": {"timeoutSeconds": 0, "podSelector": ""},
                "gpuPodDeletion": {"force": False, "timeoutSeconds": 300, "deleteEmptyDir": False},
                "drain": {
                    "enable": False,
                    "force": False,
                    "podSelector": "",
                    "timeoutSeconds": 300,
                    "deleteEmptyDir": False,
                },
            },
            "manager": {**_image(MANAGER_SOURCE), "env": []},
            "licensingConfig": {"secretName": "", "nlsEnabled": True},
        },
        "toolkit": {"enabled": True, **_image(TOOLKIT_SOURCE), "env": [], "installDir": INSTALL_DIR},
    }
)


FILE_VARIABLES = (
    "RUNTIME_CONFIG",
    "RUNTIME_DROP_IN_CONFIG",
    "RUNTIME_SOCKET",
    "CONTAINERD_CONFIG",
    "CONTAINERD_SOCKET",
    "CRIO_CONFIG",
    "DOCKER_CONFIG",
    "DOCKER_SOCKET",
    "NRI_SOCKET",
)
_HANDLER = "nvidia"


def judge_toolkit_env(reading: FieldReader, env: Mapping[str, str], path: str) -> None:
    """Notes mistakes in paths, and variables that Tessera sets itself."""
    for name in FILE_VARIABLES:
        value = env.get(name, "")
        parts = value.split("/")
        if value and (parts[0] or not parts[-1] or ".." in parts or "\0" in value):
            text = f"{quote_value(value)} must be an absolute path of a file on the host, without .."
            reading.add_problem(join_path(path, name), text)
    if env.get("CONTAINERD_RUNTIME_CLASS", _HANDLER) != _HANDLER:
        text = f"no effect: the handler is {_HANDLER!r}, by which Tessera's RuntimeClass finds it"
        reading.add_notice(join_path(path, "CONTAINERD_RUNTIME_CLASS"), text)
