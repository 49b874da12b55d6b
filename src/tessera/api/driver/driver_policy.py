"""A driver policy as one value, whether written as ``ClusterPolicy``, ``NVIDIADriver`` or Helm values.

Names and defaults are those of NVIDIA's gpu-operator (chart v26.7.0). Settings that upstream does not have (canary,
failure budget) are annotations of the object under ``tessera.dev``.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

#: Annotations of a ClusterPolicy or NVIDIADriver.
CANARY_ANNOTATION = "tessera.dev/driver-canary"
FAILURE_BUDGET_ANNOTATION = "tessera.dev/driver-failure-budget"
#: With the value ``managed`` on a ClusterPolicy: Tessera installs drivers although another operator wrote its status.
DRIVERS_ANNOTATION = "tessera.dev/drivers"
DRIVERS_MANAGED = "managed"
#: Repositories, with commas, that are asked after the policy's own: ``registry.local/nvidia``.
MIRRORS_ANNOTATION = "tessera.dev/driver-mirrors"
#: Where images that are built in the cluster are pushed to, and the Secret (kubernetes.io/dockerconfigjson) for it.
BUILD_REPOSITORY_ANNOTATION = "tessera.dev/driver-build-repository"
BUILD_SECRET_ANNOTATION = "tessera.dev/driver-build-secret"  # noqa: S105 - the name of an annotation


class ImageSource(msgspec.Struct, frozen=True, kw_only=True):
    """The source of an image, in the three parts that NVIDIA's operator knows.

    Attributes:
        repository: registry and path, ``nvcr.io/nvidia``; empty with an empty version: ``image`` is taken as it is.
        image: the image's name; a whole reference where repository and version are empty.
        version: a version (``525.125.06``), a branch (``525``) or a digest (``sha256:…``).
        pull_policy: as of a container.
        pull_secrets: names of Secrets in Tessera's namespace.
    """

    repository: str = ""
    image: str = ""
    version: str = ""
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()

    @property
    def verbatim(self) -> bool:
        """Whether ``image`` is a whole reference to which nothing is added."""
        return not self.repository and not self.version


class PodDeletionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Removal of pods that hold GPUs from a node: pods without a controller, seconds, pods with emptyDir."""

    force: bool = False
    timeout_seconds: int = 300
    delete_empty_dir: bool = False


class DrainSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The drain of a node where the removal of GPU pods was not enough."""

    enable: bool = False
    force: bool = False
    timeout_seconds: int = 300
    delete_empty_dir: bool = False
    pod_selector: str = ""


class WaitForCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """Pods whose end is awaited first; an empty selector is none, a timeout of 0 is for ever."""

    pod_selector: str = ""
    timeout_seconds: int = 0


class UpgradePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The rollout of a new driver to nodes that already serve.

    Attributes:
        auto_upgrade: without it, nothing that serves is replaced.
        max_parallel: nodes in upgrade at a time; 0 for no limit.
        max_unavailable: nodes with cards that may be out of service at a time: a number or ``25%``, rounded up.
        canary: nodes that take the new driver first, alone; 0 for none.
        failure_budget: failed nodes with which the rollout stops and rolls back.
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
    """A part of the stack that runs in an image of its own: the toolkit, the driver manager.

    Attributes:
        enabled: whether Tessera runs it; otherwise the hosts have it.
        source: its image.
        env: its environment, values only.
        install_dir: where the toolkit is put on the host.
    """

    enabled: bool = True
    source: ImageSource = ImageSource()
    env: Mapping[str, str] = {}
    install_dir: str = ""


class DriverPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The driver settings of one object.

    Attributes:
        kind: ``ClusterPolicy`` or ``NVIDIADriver``.
        name: the object's.
        uid: the object's.
        created: its creationTimestamp; the oldest ClusterPolicy counts.
        enabled: drivers are managed; otherwise nodes have them pre-installed.
        use_precompiled: images with finished kernel modules are wanted; others are built.
        kernel_module_type: auto, open or proprietary.
        source: the driver's image.
        startup_probe: upstream's fields of it that were written (``periodSeconds`` …).
        rdma: GPUDirect RDMA modules are loaded; with ``rdma_host_mofed`` against the host's MOFED.
        env: environment of the driver container, ``EnvVar`` objects as they stand.
        args: its arguments.
        resources: its resources as they stand.
        host_network: None where it was not written.
        config_maps: ConfigMaps that are mounted by purpose: repoConfig, certConfig, licensingConfig, virtualTopology,
            kernelModuleConfig.
        licensing_secret: the Secret with the settings of vGPU licences, instead of a ConfigMap of that purpose.
        secret_env: the Secret of environment variables.
        manager: the driver manager that runs before the driver container.
        toolkit: NVIDIA's container toolkit.
        nri_plugin: it hands devices over as a plugin of the container runtime, ``cdi.nriPluginEnabled``.
        upgrade: see :class:`UpgradePolicy`.
        node_selector: nodes that an NVIDIADriver is for; empty for all.
        node_affinity: likewise, as it stands.
        labels: added to the driver pods.
        annotations: likewise.
        tolerations: of the driver pods, as they stand.
        priority_class: of the driver pods.
        driver_root: where the driver's files lie on the host, ``hostPaths.driverInstallDir``.
        use_driver_crd: of a ClusterPolicy: NVIDIADriver objects say what is installed where.
        default: of an NVIDIADriver: it is for the nodes that no other one selects.
        mirrors: repositories that are asked after the source's own.
        build_repository: where images that are built in the cluster are pushed to; empty: nodes build for themselves.
        build_secret: the Secret with which they are pushed.
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
