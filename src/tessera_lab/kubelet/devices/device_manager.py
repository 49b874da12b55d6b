"""Kubelet's device manager: drives device plugins and keeps the ledger of their devices.

Order and texts follow ``pkg/kubelet/cm/devicemanager``: one ListAndWatch per registration, the newest registration of a
resource wins. When a plugin ends its devices turn unhealthy, and the manager forgets the resource five minutes later
unless the plugin registers again. It calls ``Allocate`` for one container at a time during admission of the pod, and
``PreStartContainer`` at every start of a container. It works alike for plugins behind unix sockets and in this process.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from tessera.clock import Clock
from tessera.kubelet.interfaces import (
    ClaimDevices,
    ContainerAllocateResponse,
    ContainerDevices,
    PluginError,
    PluginOptions,
    PodResources,
    PreferredRequest,
)
from tessera_lab.kubelet.device_plugins.plugin_client import PluginClient, RegistrationError, is_extended_resource_name
from tessera_lab.kubelet.devices.checkpoint import Checkpoint
from tessera_lab.kubelet.devices.device_ledger import (
    DeviceAllocationError,
    DeviceChoice,
    DeviceHolding,
    DeviceLedger,
    PodUid,
    Reusable,
    copy_allocations,
    pod_resources,
    requested_devices,
)

Json = Mapping[str, Any]

_log = logging.getLogger(__name__)

#: Seconds that a resource stays on the node after its plugin ended (``endpointStopGracePeriod``).
STOP_GRACE = 300.0


class _Endpoint:
    """One registered plugin. ``task`` follows its device list."""

    def __init__(self, client: PluginClient, options: PluginOptions) -> None:
        self.client = client
        self.options = options
        self.task: asyncio.Task[None] | None = None


class DeviceManager:
    """The device manager of one node.

    Args:
        clock: for the grace period.
        checkpoint: keeps the holders over a restart.
        on_change: called after capacity or allocatable may have changed.
        on_health: called with the pods whose devices may have another health than before.
        running_pods: the pods that kubelet knows, with UIDs, for pod-resources.
        claims: returns the devices that a pod's container has by ResourceClaims, for pod-resources.

    Attributes:
        ledger: all devices and their holders; read it, do not change it.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        checkpoint: Checkpoint,
        on_change: Callable[[], None],
        running_pods: Callable[[], Sequence[tuple[Json, PodUid]]],
        on_health: Callable[[Collection[PodUid]], None] = lambda _: None,
        claims: Callable[[Json, Json], tuple[ClaimDevices, ...]] = lambda _pod, _container: (),
    ) -> None:
        self._clock = clock
        self._checkpoint = checkpoint
        self._on_change = on_change
        self._running_pods = running_pods
        self._on_health = on_health
        self._claims = claims
        self._endpoints: dict[str, _Endpoint] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.ledger = checkpoint.load() or DeviceLedger()

    # Plugins

    async def add_plugin(self, resource_name: str, options: PluginOptions, client: PluginClient) -> None:
        """A plugin registered; see :class:`tessera_lab.kubelet.device_plugins.plugin_client.RegistrationHandler`.

        Raises:
            RegistrationError: the name is not that of an extended resource.
        """
        if not is_extended_resource_name(resource_name):
            raise RegistrationError(
                f"invalid name of device plugin socket: invalid extended resource {resource_name!r}"
            )
        endpoint = self._endpoints[resource_name] = _Endpoint(client, options)
        if not self.ledger.has(resource_name):
            self.ledger.set_devices(resource_name, ())
        # An older plugin of the resource stays connected until its stream ends: its running calls are answered.
        endpoint.task = self._spawn(self._follow(resource_name, endpoint))

    async def stop(self) -> None:
        """Closes the connections to all plugins, as kubelet ends."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        endpoints, self._endpoints = self._endpoints, {}
        for endpoint in endpoints.values():
            await endpoint.client.close()

    async def restart(self) -> None:
        """Kubelet ends and starts again: holders and resource names remain, plugins must register anew."""
        self._checkpoint.save(self.ledger)
        await self.stop()
        self.ledger = self._checkpoint.load() or DeviceLedger()
        self._on_change()

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _follow(self, resource: str, endpoint: _Endpoint) -> None:
        try:
            async for devices in endpoint.client.list_and_watch():
                if self._endpoints.get(resource) is not endpoint:
                    continue
                holders = self.ledger.set_devices(resource, devices)
                self._checkpoint.save(self.ledger)
                self._on_change()
                self._on_health(holders)
        except (ConnectionError, PluginError):
            pass  # the plugin ended; handled like a clean end
        except Exception:  # noqa: BLE001 - whatever a plugin says, it must not end its kubelet
            _log.exception("device list of %s", resource)
        finally:
            await endpoint.client.close()
        if self._endpoints.get(resource) is endpoint:
            del self._endpoints[resource]
            await self._after_the_end(resource)

    async def _after_the_end(self, resource: str) -> None:
        self.ledger.note_plugin_end(resource)
        self._on_change()
        await self._clock.sleep(STOP_GRACE)
        if resource not in self._endpoints:
            self.ledger.forget(resource)
            self._on_change()

    # Pods

    async def allocate(self, pod: Json, uid: PodUid) -> None:
        """Allocates devices to every container of the pod, one after the other. Call it for one pod at a time.

        A pod that held devices before the node's boot keeps them, if they still exist.

        Raises:
            DeviceAllocationError: a container cannot get its devices; the pod then holds nothing.
        """
        spec = pod["spec"]
        reusable: Reusable = {}
        took = False
        try:
            for container in [*(spec.get("initContainers") or ()), *spec.get("containers", ())]:
                held = self.ledger.holdings(uid, container["name"])
                for holding in held:
                    self.ledger.confirm(holding)
                if not held:
                    for resource, needed in requested_devices(container, self.ledger):
                        holding = await self._allocate_one(
                            container["name"], resource, needed, reusable.get(resource, ())
                        )
                        self.ledger.hold(uid, pod["metadata"]["namespace"], pod["metadata"]["name"], holding)
                        took = True
                    held = self.ledger.holdings(uid, container["name"])
                copy_allocations(spec, container["name"], reusable, held)
        except DeviceAllocationError:
            self.release(uid)
            raise
        if took:
            self._checkpoint.save(self.ledger)

    async def _allocate_one(
        self, container: str, resource: str, needed: int, reusable: Collection[str]
    ) -> DeviceHolding:
        choice = self.ledger.choose(resource, needed, reusable)
        endpoint = self._endpoints.get(resource)
        if endpoint is None:
            raise DeviceAllocationError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        try:
            devices = await self._prefer(endpoint, choice)
            allocation = await _build_allocation(endpoint, devices)
        except (PluginError, ConnectionError) as error:
            raise DeviceAllocationError(f"rpc error: code = Unknown desc = {error}") from error
        return DeviceHolding(container=container, resource=resource, device_ids=devices, allocation=allocation)

    async def _prefer(self, endpoint: _Endpoint, choice: DeviceChoice) -> tuple[str, ...]:
        """Returns the devices to allocate; follows the plugin's preference if possible."""
        missing = choice.needed - len(choice.given)
        if not missing:
            return choice.given
        plain = (*choice.given, *choice.available[:missing])
        if not endpoint.options.get_preferred_allocation_available:
            return plain
        offered = (*choice.given, *choice.available)
        request = PreferredRequest(available=offered, must_include=choice.given, size=choice.needed)
        answer = await endpoint.client.get_preferred_allocation([request])
        preferred = [each for each in dict.fromkeys(answer[0] if answer else ()) if each in offered]
        ordered = list(dict.fromkeys((*choice.given, *preferred, *choice.available)))
        return tuple(ordered[: choice.needed])

    async def pre_start(self, uid: PodUid, container: str) -> None:
        """Calls PreStartContainer of every plugin that asks for it, with the container's devices.

        Raises:
            PluginError: a plugin refused, did not answer in time, or is gone.
        """
        for holding in self.ledger.holdings(uid, container):
            endpoint = self._endpoints.get(holding.resource)
            if endpoint is None:
                raise PluginError(f"endpoint not found in cache for a registered resource: {holding.resource}")
            if not endpoint.options.pre_start_required:
                continue
            try:
                await endpoint.client.pre_start_container(holding.device_ids)
            except ConnectionError as error:
                raise PluginError(f"device plugin PreStartContainer rpc failed: {error}") from error

    def allocations(self, uid: PodUid, container: str) -> tuple[ContainerAllocateResponse, ...]:
        """The Allocate responses of the plugins for the container."""
        return tuple(holding.allocation for holding in self.ledger.holdings(uid, container))

    def release(self, uid: PodUid) -> None:
        """Frees the devices of a finished pod."""
        if self.ledger.release(uid):
            self._checkpoint.save(self.ledger)

    def release_others(self, uids: Collection[str]) -> None:
        """Frees the devices of all pods but these: the others were deleted while kubelet was down."""
        for pod in self.ledger.pods():
            if pod.uid not in uids:
                self.release(pod.uid)

    # Pod-resources (tessera_lab.kubelet.device_plugins.plugin_client.PodResourcesSource)

    async def list(self) -> Sequence[PodResources]:
        """Every pod that is not finished, with its devices."""
        return pod_resources(self._running_pods(), self.ledger, self._claims)

    async def allocatable(self) -> Sequence[ContainerDevices]:
        """Every healthy device."""
        return [
            ContainerDevices(resource_name=name, device_ids=ids)
            for name, ids in self.ledger.registered_resources().items()
        ]

    async def get(self, name: str, namespace: str) -> PodResources | None:
        """One pod, or None."""
        pods = [
            (pod, uid)
            for pod, uid in self._running_pods()
            if (pod["metadata"]["name"], pod["metadata"]["namespace"]) == (name, namespace)
        ]
        return next(iter(pod_resources(pods, self.ledger, self._claims)), None)


async def _build_allocation(endpoint: _Endpoint, devices: tuple[str, ...]) -> ContainerAllocateResponse:
    answers = await endpoint.client.allocate([devices])
    if len(answers) != 1:
        raise PluginError(f"Allocate answered for {len(answers)} containers, 1 was asked")
    return answers[0]
