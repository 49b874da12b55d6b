"""Inputs of the memory monitor: the memory of each process on a card, and the state of the rest of the agent."""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from tessera.agent.base.processes import ProcessTable
from tessera.agent.inventory.device_users import DeviceUser
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


@dataclass(frozen=True, kw_only=True)
class MemoryInputs:
    """Inputs of the monitor from the rest of the agent.

    Attributes:
        offer: the present offer of the static cards.
        api_reachable: true if the API server answers.
        live_pods: the pods of the node that have not ended.
        read_users: the containers that hold each device; raises ConnectionError if kubelet does not answer.
    """

    offer: Callable[[], Advertisement]
    api_reachable: Callable[[], bool]
    live_pods: Callable[[], Sequence[Pod]]
    read_users: Callable[[], Awaitable[Mapping[str, Sequence[DeviceUser]]]]
