"""Inputs of the memory monitor: the memory of each process on a card, and the state of the rest of the agent."""

import os
from collections.abc import Mapping, Sequence
from typing import Protocol

from tessera.agent.base.node_objects import ApiMirror
from tessera.agent.base.processes import ProcessTable
from tessera.agent.inventory.device_users import DeviceUser, DeviceUsers
from tessera.agent.memory.policy import CardUse, ProcessUse
from tessera.api.names import PodUid
from tessera.api.sharing.devices import Advertisement
from tessera.kube.resources import Pod
from tessera.nvml.asynchronous.async_nvml import AsyncNvml
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import GpuProcess, GpuUuid, MigUuid


class ProcessMemoryReader:
    """Reads the memory of each process on a card: NVML's processes, each with the pod that the kernel proves for it.

    The reader never guesses: a card that cannot be read has no reading, and a process that ended between NVML's answer
    and the kernel's is left out.

    Args:
        hardware: the node's cards.
        processes: the machine's processes, in the PID namespace that NVML reports (the host's).
    """

    def __init__(self, hardware: AsyncNvml, processes: ProcessTable) -> None:
        self._hardware = hardware
        self._processes = processes

    def own_pod(self) -> PodUid | None:
        """The pod that the agent runs in; an MPS server may be a part of it."""
        process = self._processes.identify(os.getpid())
        found = None if process is None else self._processes.pod_of(process)
        return None if found is None else found.pod

    async def read(self, device: str) -> CardUse | None:
        """Reads the present state of a card or MIG device; ``None`` if it cannot be read.

        Args:
            device: UUID, ``GPU-`` or ``MIG-``.
        """
        name = MigUuid(device) if device.startswith("MIG-") else GpuUuid(device)
        try:
            processes = await self._hardware.processes(name)
            memory = await self._hardware.memory(name)
        except NvmlError:
            return None
        uses = tuple(use for each in processes if (use := self._use(each)) is not None)
        return CardUse(device=device, total=memory.total, used=memory.used + (memory.reserved or 0), uses=uses)

    def _use(self, listed: GpuProcess) -> ProcessUse | None:
        process = self._processes.identify(listed.pid)
        if process is None or listed.memory_bytes is None:  # nobody acts on memory that nobody knows
            return None
        found = self._processes.pod_of(process)
        return ProcessUse(process=process, bytes=listed.memory_bytes, pod=None if found is None else found.pod)


class MemoryInputs(Protocol):
    """Inputs of the monitor from the rest of the agent."""

    @property
    def offer(self) -> Advertisement:
        """The present offer of the static cards."""
        ...

    @property
    def api_reachable(self) -> bool:
        """True if the API server answers."""
        ...

    def live_pods(self) -> Sequence[Pod]:
        """The pods of the node that have not ended."""
        ...

    async def read_users(self) -> Mapping[str, Sequence[DeviceUser]]:
        """The containers that hold each device; raises ConnectionError if kubelet does not answer."""
        ...


class OfferSource(Protocol):
    """Offers the static devices to kubelet."""

    @property
    def offer(self) -> Advertisement:
        """The present offer of the static cards."""
        ...


class AgentInputs:
    """The inputs of a running agent.

    Args:
        advertiser: offers the static devices to kubelet.
        users: asks kubelet which containers hold which device.
        mirror: the node and its pods.
    """

    def __init__(self, advertiser: OfferSource, users: DeviceUsers, mirror: ApiMirror) -> None:
        self._advertiser = advertiser
        self._users = users
        self._mirror = mirror

    @property
    def offer(self) -> Advertisement:
        """See :attr:`MemoryInputs.offer`."""
        return self._advertiser.offer

    @property
    def api_reachable(self) -> bool:
        """See :attr:`MemoryInputs.api_reachable`."""
        return not self._mirror.nodes.reflector.failures

    def live_pods(self) -> Sequence[Pod]:
        """See :meth:`MemoryInputs.live_pods`."""
        return self._mirror.live_pods()

    async def read_users(self) -> Mapping[str, Sequence[DeviceUser]]:
        """See :meth:`MemoryInputs.read_users`."""
        return await self._users.read()
