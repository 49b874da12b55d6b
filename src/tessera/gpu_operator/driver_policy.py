"""A driver policy as one value, whether written as ``ClusterPolicy``, ``NVIDIADriver`` or Helm values.

Names and defaults are those of NVIDIA's gpu-operator (chart v26.7.0). Settings that upstream does not have (canary,
failure budget) are annotations of the object under ``tessera.dev``.

The chart renders its own defaults (:data:`CHART_VALUES`) into the ``ClusterPolicy``, so they count for every
installation by values. An object that a user wrote by hand has none of them; for such an object Tessera takes only the
images from here, since it has no images of its own for these parts.
"""

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

#: Annotations of a ClusterPolicy or NVIDIADriver.
CANARY_ANNOTATION = "tessera.dev/driver-canary"
FAILURE_BUDGET_ANNOTATION = "tessera.dev/driver-failure-budget"
#: With the value ``managed`` on a ClusterPolicy: Tessera installs drivers although another operator wrote its status.
DRIVERS_ANNOTATION = "tessera.dev/drivers"
DRIVERS_MANAGED = "managed"
#: Repositories, separated by commas, that are asked after the policy's own: ``registry.local/nvidia``.
MIRRORS_ANNOTATION = "tessera.dev/driver-mirrors"
#: Repository for images that are built in the cluster, and its Secret (kubernetes.io/dockerconfigjson).
BUILD_REPOSITORY_ANNOTATION = "tessera.dev/driver-build-repository"
BUILD_SECRET_ANNOTATION = "tessera.dev/driver-build-secret"  # noqa: S105 - the name of an annotation


class ImageSource(msgspec.Struct, frozen=True, kw_only=True):
    """The source of an image, in the three parts that NVIDIA's operator knows.

    Attributes:
        repository: registry and path, ``nvcr.io/nvidia``; if it and the version are empty, ``image`` is used unchanged.
        image: the image's name; a whole reference where repository and version are empty.
        version: a version (``525.125.06``), a branch (``525``) or a digest (``sha256:…``).
        pull_policy: as in a container.
        pull_secrets: names of Secrets in Tessera's namespace.
    """

    repository: str = ""
    image: str = ""
    version: str = ""
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()

    @property
    def verbatim(self) -> bool:
        """True if ``image`` is a whole reference to which nothing is added."""
        return not self.repository and not self.version


class PodDeletionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Removal of pods that hold GPUs from a node: pods without a controller, seconds, pods with emptyDir."""

    force: bool = False
    timeout_seconds: int = 300
    delete_empty_dir: bool = False


class DrainSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The drain of a node if the removal of GPU pods was not enough."""

    enable: bool = False
    force: bool = False
    timeout_seconds: int = 300
    delete_empty_dir: bool = False
    pod_selector: str = ""


class WaitForCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """Pods whose end Tessera waits for first; an empty selector selects none, a timeout of 0 means for ever."""

    pod_selector: str = ""
    timeout_seconds: int = 0


class UpgradePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The rollout of a new driver to nodes that already serve.

    Attributes:
        auto_upgrade: if False, no running driver is replaced.
        max_parallel: nodes in upgrade at a time; 0 for no limit.
        max_unavailable: limit on nodes with cards out of service at a time: a number or ``25%``, rounded up.
        canary: nodes that take the new driver first, alone; 0 for none.
        failure_budget: number of failed nodes at which the rollout stops and rolls back.
    """

    auto_upgrade: bool = True
    max_parallel: int = 1
    max_unavailable: int | str = "25%"
    wait_for_completion: WaitForCompletion = WaitForCompletion()
    pod_deletion: PodDeletionSettings = PodDeletionSettings()
    drain: DrainSettings = DrainSettings()
    canary: int = 1
    failure_budget: int = 1


class OperandSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the stack with its own image: the toolkit, the driver manager.

    Attributes:
        enabled: True if Tessera runs it; otherwise the hosts provide it.
        source: its image.
        env: its environment, values only.
        install_dir: where the toolkit is put on the host.
    """

    enabled: bool = True
    source: ImageSource = ImageSource()
    env: Mapping[str, str] = {}
    install_dir: str = ""

    def for_record(self) -> "OperandSettings":
        """Returns a copy without the environment; see :func:`tessera.replay.state_codec.encode`."""
        return msgspec.structs.replace(self, env={})


class DriverPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The driver settings of one object.

    Attributes:
        kind: ``ClusterPolicy`` or ``NVIDIADriver``.
        name: the object's.
        uid: the object's.
        created: its creationTimestamp; the oldest ClusterPolicy counts.
        enabled: Tessera manages drivers; otherwise they are pre-installed on nodes.
        use_precompiled: images with finished kernel modules are wanted; others are built.
        kernel_module_type: auto, open or proprietary.
        source: the driver's image.
        startup_probe: the fields of upstream's probe that the object has (``periodSeconds`` …).
        rdma: GPUDirect RDMA modules are loaded; with ``rdma_host_mofed`` against the host's MOFED.
        env: environment of the driver container, ``EnvVar`` objects unchanged.
        args: its arguments.
        resources: its resources, unchanged.
        host_network: None if the object does not set it.
        config_maps: mounted ConfigMaps by purpose: repoConfig, certConfig, licensingConfig, virtualTopology,
            kernelModuleConfig.
        licensing_secret: the Secret with the settings of vGPU licences, instead of a ConfigMap of that purpose.
        secret_env: the Secret of environment variables.
        manager: the driver manager that runs before the driver container.
        toolkit: NVIDIA's container toolkit.
        nri_plugin: the toolkit passes devices as a plugin of the container runtime, ``cdi.nriPluginEnabled``.
        upgrade: see :class:`UpgradePolicy`.
        node_selector: nodes that an NVIDIADriver is for; empty for all.
        node_affinity: likewise, unchanged.
        labels: added to the driver pods.
        annotations: likewise.
        tolerations: of the driver pods, unchanged.
        priority_class: of the driver pods.
        driver_root: host folder of the driver's files, ``hostPaths.driverInstallDir``.
        use_driver_crd: of a ClusterPolicy: NVIDIADriver objects select the driver of each node.
        default: of an NVIDIADriver: it is for the nodes that no other one selects.
        mirrors: repositories that are asked after the source's own.
        build_repository: repository for images that are built in the cluster; if empty, nodes build for themselves.
        build_secret: the Secret for pushing them.
        recorded_digest: in a record of decisions, the :attr:`settings_digest` of the original; otherwise empty.
    """

    kind: str
    name: str
    uid: str = ""
    created: str = ""
    enabled: bool = True
    use_precompiled: bool = False
    kernel_module_type: str = "auto"
    source: ImageSource = ImageSource()
    startup_probe: Mapping[str, int] = {}
    rdma: bool = False
    rdma_host_mofed: bool = False
    env: tuple[Mapping[str, Any], ...] = ()
    args: tuple[str, ...] = ()
    resources: Mapping[str, Any] = {}
    host_network: bool | None = None
    config_maps: Mapping[str, str] = {}
    licensing_secret: str = ""
    secret_env: str = ""
    manager: OperandSettings = OperandSettings()
    toolkit: OperandSettings = OperandSettings()
    nri_plugin: bool = False
    upgrade: UpgradePolicy = UpgradePolicy()
    node_selector: Mapping[str, str] = {}
    node_affinity: Mapping[str, Any] = {}
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    tolerations: tuple[Mapping[str, Any], ...] = ()
    priority_class: str = "system-node-critical"
    driver_root: str = "/run/nvidia/driver"
    use_driver_crd: bool = False
    default: bool = False
    mirrors: tuple[str, ...] = ()
    build_repository: str = ""
    build_secret: str = ""
    recorded_digest: str = ""

    @property
    def full_name(self) -> str:
        """``ClusterPolicy/cluster-policy``."""
        return f"{self.kind}/{self.name}"

    @property
    def settings_digest(self) -> str:
        """Ten hexadecimal digits: a hash of all settings of the driver pods, except the image."""
        return self.recorded_digest or digest_parts(
            (
                self.kernel_module_type,
                self.source.pull_policy,
                self.source.pull_secrets,
                self.startup_probe,
                self.rdma,
                self.rdma_host_mofed,
                self.env,
                self.args,
                self.resources,
                self.host_network,
                self.config_maps,
                self.licensing_secret,
                self.secret_env,
                self.manager,
                self.labels,
                self.annotations,
                self.tolerations,
                self.priority_class,
                self.driver_root,
            )
        )

    def for_record(self) -> "DriverPolicy":
        """Returns a copy without environment, arguments and annotations, which may hold passwords.

        The copy keeps the digest, so the planner decides the same for it. See
        :func:`tessera.replay.state_codec.encode`.
        """
        return msgspec.structs.replace(self, env=(), args=(), annotations={}, recorded_digest=self.settings_digest)


def digest_parts(parts: Any) -> str:
    """Ten hexadecimal digits: a hash of plain values."""
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:10]


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


#: The values of NVIDIA's chart that its ``ClusterPolicy`` template uses for drivers.
CHART_VALUES: Mapping[str, Any] = MappingProxyType(
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
