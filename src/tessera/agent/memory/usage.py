"""Who holds how much memory of a card now: NVML's processes, each with the pod that the kernel proves for it.

What NVML does not tell is not guessed: a card that cannot be read has no reading, and a process that ended between
NVML's answer and ours is left out. ``/proc`` is read in passing, a few files of the kernel's memory per process.
"""

from tessera.agent.base.processes import ProcessTable
from tessera.agent.memory.policy import Card, Use
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import GpuUuid, MigUuid, Process
from tessera.nvml.worker import AsyncNvml


class CardReader:
    """Reads cards.

    Args:
        hardware: the node's cards.
        processes: the machine's processes, in the PID namespace that NVML reports (the host's).
    """

    def __init__(self, hardware: AsyncNvml, processes: ProcessTable) -> None:
        self._hardware = hardware
        self._processes = processes

    async def __call__(self, device: str) -> Card | None:
        """A card or MIG device as it is now; ``None`` if it cannot be read.

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
        return Card(device=device, total=memory.total, used=memory.used, uses=uses)

    def _use(self, told: Process) -> Use | None:
        process = self._processes.identify(told.pid)
        if process is None:
            return None
        residence = self._processes.residence(process)
        return Use(process=process, bytes=told.memory_bytes, pod=None if residence is None else residence.pod)
