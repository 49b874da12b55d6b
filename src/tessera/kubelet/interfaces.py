"""The values and protocols between the agent and kubelet.

:mod:`tessera.kubelet.grpc` implements them over kubelet's unix sockets (device plugin v1beta1, pod-resources v1). The
lab's simulated kubelet can also connect directly, in one process and without sockets. Terms are those of
``k8s.io/kubelet/pkg/apis``.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

#: How long kubelet waits for PreStartContainer (KubeletPreStartContainerRPCTimeoutInSecs), seconds.
PRE_START_TIMEOUT = 30.0


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One schedulable device of a resource. ``id`` has at most 63 characters."""

    id: str
    healthy: bool = True
    numa_nodes: tuple[int, ...] = ()


class PreferredRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One container's GetPreferredAllocation: choose ``size`` of ``available``, ``must_include`` among them."""

    available: tuple[str, ...]
    must_include: tuple[str, ...]
    size: int


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A host path made visible in the container."""

    container_path: str
    host_path: str
    read_only: bool = True


class DeviceNode(msgspec.Struct, frozen=True, kw_only=True):
    """A device node made visible in the container; ``permissions`` is a subset of ``rwm``."""

    container_path: str
    host_path: str
    permissions: str = "rw"


class ContainerAllocateResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of Allocate for one container."""

    envs: Mapping[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = {}
    cdi_devices: tuple[str, ...] = ()


class PluginOptions(msgspec.Struct, frozen=True, kw_only=True):
    """DevicePluginOptions."""

    pre_start_required: bool = False
    get_preferred_allocation_available: bool = False


class PluginError(Exception):
    """A call that the plugin refuses; its text reaches the pod's status through kubelet."""


class HandedOverError(PluginError):
    """A call for a claim that this agent answers no more: its successor does."""


class DevicePlugin(Protocol):
    """One resource's device plugin. Calls come concurrently."""

    @property
    def resource_name(self) -> str:
        """The extended resource, e.g. ``nvidia.com/mig-3g.20gb``."""
        ...

    @property
    def options(self) -> PluginOptions:
        """Constant for the plugin's life."""
        ...

    def list_and_watch(self) -> AsyncIterator[Sequence[Device]]:
        """The full device list, at once and again after every change, without end."""
        ...

    async def get_preferred_allocation(self, requests: Sequence[PreferredRequest]) -> Sequence[Sequence[str]]:
        """Returns the preferred devices, a list for each request. A hint to kubelet."""
        ...

    async def allocate(self, requests: Sequence[Sequence[str]]) -> Sequence[ContainerAllocateResponse]:
        """Returns the environment, mounts and devices of each container. Must not wait: pod admission is serial.

        Raises:
            PluginError: the pod must not start; kubelet rejects it with UnexpectedAdmissionError.
        """
        ...

    async def pre_start_container(self, device_ids: Sequence[str]) -> None:
        """Returns when the devices are ready; called before every start of a container.

        Raises:
            PluginError: they cannot be made ready.
        """
        ...


class ClaimRef(msgspec.Struct, frozen=True):
    """A ResourceClaim."""

    namespace: str
    name: str
    uid: str


class PreparedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device of a prepared claim.

    Attributes:
        requests: names of the claim's requests that it answers, without sub-requests.
        pool: its pool.
        device: its name in the pool.
        cdi_devices: qualified names of the CDI devices that the containers get.
        share_id: tells apart the shares of one device; empty for a device that is not shared.
    """

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_devices: tuple[str, ...]
    share_id: str = ""


class ClaimDeviceHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The health of one device of a pool.

    Attributes:
        pool: its pool.
        device: its name in the pool.
        healthy: ``None`` while unknown.
        message: the reason, at most 1,024 bytes.
        since: seconds since 1970 of the last look.
    """

    pool: str
    device: str
    healthy: bool | None
    message: str = ""
    since: int = 0


class ClaimPlugin(Protocol):
    """The node's part of a driver for ResourceClaims. Calls come concurrently, and for one claim more than once."""

    @property
    def driver_name(self) -> str:
        """The driver, e.g. ``gpu.tessera.dev``; constant."""
        ...

    async def prepare(self, claim: ClaimRef) -> Sequence[PreparedDevice]:
        """Returns when the claim's devices can be used by containers; a claim that is prepared gets the same answer.

        Kubelet waits 45 s for all claims of a pod, and tries a failed call again after a minute or more.

        Raises:
            PluginError: they cannot be made ready.
        """
        ...

    async def unprepare(self, claim: ClaimRef) -> None:
        """Returns when no container can use the claim's devices any more, also for a claim that was never prepared.

        Raises:
            PluginError: they cannot be taken back yet.
        """
        ...

    def watch_health(self) -> AsyncIterator[Sequence[ClaimDeviceHealth]]:
        """The health of all devices, at once and again after every change, without end."""
        ...


class ContainerDevices(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of one resource that kubelet gave to a container."""

    resource_name: str
    device_ids: tuple[str, ...]


class ClaimDevices(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of one ResourceClaim that a container holds, each with its driver."""

    namespace: str
    name: str
    devices: tuple[tuple[str, PreparedDevice], ...] = ()


class ContainerResources(msgspec.Struct, frozen=True, kw_only=True):
    """One container in a pod-resources listing."""

    name: str
    devices: tuple[ContainerDevices, ...] = ()
    claims: tuple[ClaimDevices, ...] = ()


class PodResources(msgspec.Struct, frozen=True, kw_only=True):
    """One pod in a pod-resources listing. The API gives no UID."""

    name: str
    namespace: str
    containers: tuple[ContainerResources, ...] = ()


class Kubelet(Protocol):
    """The node's kubelet as its device plugins see it."""

    async def serve(self, plugin: DevicePlugin) -> None:
        """Serves and registers the plugin until cancelled, again whenever kubelet restarts."""
        ...

    async def serve_claims(self, plugin: ClaimPlugin, on_registered: Callable[[], None] = lambda: None) -> None:
        """Serves and registers the driver until cancelled. Several instances of one driver may be served at once.

        A call that the plugin ends with :class:`HandedOverError` is answered by the instance that was served next.

        Args:
            plugin: the driver.
            on_registered: called whenever kubelet has registered it.
        """
        ...

    async def pod_resources(self) -> Sequence[PodResources]:
        """Returns the containers with their devices.

        Raises:
            ConnectionError: kubelet did not answer.
        """
        ...
