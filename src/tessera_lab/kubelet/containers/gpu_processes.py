"""The processes of one node's containers on its simulated cards, and the kernel's view of them.

A container that sees MIG devices has a process on each from its start. On a whole or shared card it has one once it
computes or holds memory there, as a CUDA program has. The agent reads pod and container of a PID here
(:class:`GpuProcesses` is its :class:`~tessera.agent.base.host.ProcessTable`), since no kernel knows simulated
processes, and sends its signals here: a signal ends the container.
"""

import asyncio
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NewType

import msgspec

from tessera.agent.base.host import ContainerId, ProcessHandle, ProcessId, ProcessPod, ProcessTable
from tessera.api.names import PodUid
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import MigUuid
from tessera.nvml.simulated.machine_state import ORDINARY, WORKS
from tessera.nvml.simulated.simulated_machine import SimulatedMachine

#: UUID of a card or MIG device that a container sees.
DeviceUuid = NewType("DeviceUuid", str)
#: Added to a signal's number in the exit code of a process that it ended, as a shell does.
SIGNALLED = 128
#: Exit code of a program that ends after an error of CUDA.
_FAILED = 1
#: Start time of every simulated process: a PID is never used again.
_START = 1


class ContainerOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The container that a process belongs to."""

    namespace: str
    pod: str
    uid: str
    container: str
    container_id: str = ""


class GpuContainer:
    """A running container that sees cards or MIG devices.

    Args:
        machine: the node's cards.
        owner: the container.
        devices: the devices that it sees.

    Attributes:
        owner: the container.
        devices: the devices that it sees.
        pids: its process on each device; a device on which it does nothing has none.
        ended: the exit code, once a signal ended the container.
        work: what its processes do.
    """

    def __init__(self, machine: SimulatedMachine, owner: ContainerOwner, devices: Sequence[str]) -> None:
        self.owner = owner
        self.devices = tuple(DeviceUuid(each) for each in devices)
        self.pids: dict[DeviceUuid, int] = {}
        self.work = ORDINARY
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._machine = machine

    def use(
        self,
        device: DeviceUuid,
        *,
        memory_bytes: int | None = None,
        activity: float | None = None,
        work: str = ORDINARY,
    ) -> None:
        """Sets what the container's process does on a device; it is started first if there is none.

        Args:
            device: one of :attr:`devices`.
            memory_bytes: memory that it holds; ``None`` for no change.
            activity: share of time in which it computes, 0 to 1; ``None`` for no change.
            work: what it does then, with an activity.

        Raises:
            NvmlError: the card does not take processes: it is lost, or the device is gone.
            MemoryError: the device has less memory free.
        """
        pid = self._present(device)
        if pid is None:
            pid = self.pids[device] = self._machine.start_process(MigUuid(device), memory_bytes or 0)
        elif memory_bytes is not None:
            self._machine.set_process_memory(pid, memory_bytes, MigUuid(device))
        if activity is not None:
            self._machine.set_process_activity(pid, activity, work)
            self.work = work

    def memory_size(self, device: DeviceUuid) -> int:
        """Bytes of memory of a device.

        Raises:
            NvmlError: the card is lost, or the device is gone.
        """
        return self._machine.memory(MigUuid(device)).total

    def _present(self, device: DeviceUuid) -> int | None:
        """The process on the device; ``None`` also if it died with its card."""
        pid = self.pids.get(device)
        if pid is not None and any(each.pid == pid for each in self._machine.processes(MigUuid(device))):
            return pid
        return None

    def stop(self) -> None:
        """Ends all processes."""
        for pid in self.pids.values():
            with suppress(NvmlError):  # the card was lost or reset, or the node rebooted: the process is gone too
                self._machine.end_process(pid)
        self.pids.clear()

    def kill(self, number: signal.Signals) -> None:
        """Ends the container by a signal."""
        self._end(SIGNALLED + number)

    def fail(self) -> None:
        """Ends the container as a CUDA program ends whose MPS daemon is gone: it reports an error."""
        self._end(_FAILED)

    def _end(self, code: int) -> None:
        self.stop()
        if not self.ended.done():
            self.ended.set_result(code)


class GpuProcesses(ProcessTable):
    """The containers on one node's simulated cards, and the processes of the machine.

    Args:
        machine: the node's cards.
        now: seconds of the node's clock.

    Attributes:
        machine: the node's cards.
        containers: the running containers that see cards, in the order of their starts.
    """

    def __init__(self, machine: SimulatedMachine, now: Callable[[], float]) -> None:
        super().__init__()
        self.machine = machine
        self._now = now
        #: By process, its CPU seconds and when they were read last.
        self._cpu: dict[int, tuple[float, float]] = {}
        self.containers: list[GpuContainer] = []

    @contextmanager
    def running(
        self, owner: ContainerOwner, devices: Sequence[str], memory_bytes: int, mps_resource: str = ""
    ) -> Iterator[GpuContainer]:
        """Keeps the driver loaded, and a process on each MIG device, while the container runs.

        Args:
            owner: the container.
            devices: the cards and MIG devices that it sees.
            memory_bytes: memory of its process on each MIG device.
            mps_resource: the resource whose MPS daemon it is a client of; empty for none.

        Raises:
            NvmlError: a MIG device does not exist, or no driver is loaded.
            MemoryError: a MIG device has too little memory left.
        """
        container = GpuContainer(self.machine, owner, devices)
        end_session = self.machine.open_session()
        leave_mps = self._join_mps(container, mps_resource) if mps_resource else lambda: None
        try:
            for device in container.devices:
                if device.startswith("MIG-"):
                    container.use(device, memory_bytes=memory_bytes)
            self.containers.append(container)
            yield container
        finally:
            if container in self.containers:
                self.containers.remove(container)
            for pid in container.pids.values():
                self._cpu.pop(pid, None)
            container.stop()
            leave_mps()
            end_session()

    def _join_mps(self, container: GpuContainer, resource: str) -> Callable[[], None]:
        """Makes the container a client of a daemon, whose end ends it; the function returned ends that."""
        client = f"{container.owner.uid}/{container.owner.container}"
        with self.machine.change() as machine:
            joined = next((each for each in machine.mps_daemons if each.resource == resource), None)
            if joined is not None:
                joined.clients.append(client)
        daemon = "" if joined is None else joined.id

        def look() -> None:
            if not any(each.id == daemon for each in self.machine.mps_daemons):
                container.fail()

        unsubscribe = self.machine.subscribe(look)
        look()

        def leave() -> None:
            unsubscribe()
            with self.machine.change() as machine:
                for each in machine.mps_daemons:
                    each.clients = [one for one in each.clients if one != client]

        return leave

    def _find(self, pid: int) -> GpuContainer | None:
        return next((each for each in self.containers if pid in each.pids.values() or pid == _main_pid(each)), None)

    # The kernel's view: tessera.agent.base.host.ProcessTable.

    def identify(self, pid: int) -> ProcessId | None:
        """See :meth:`.ProcessTable.identify`."""
        return super().identify(pid) if self._find(pid) is None else ProcessId(pid, _START)

    def pod_of(self, process: ProcessId) -> ProcessPod | None:
        """See :meth:`.ProcessTable.pod_of`."""
        found = self._find(process.pid)
        if found is None:
            return super().pod_of(process)
        identity = _id_of(found)
        return ProcessPod(PodUid(found.owner.uid), ContainerId(identity) if identity else None)

    def list_of(self, pod: PodUid, containers: Collection[str]) -> list[ProcessId]:
        """See :meth:`.ProcessTable.list_of`: of each container also one that uses no card."""
        of_pod = (each for each in self.containers if each.owner.uid == pod and _id_of(each) in containers)
        return [ProcessId(pid, _START) for each in of_pod for pid in (_main_pid(each), *each.pids.values())]

    def name_of(self, pid: int) -> str:
        """See :meth:`.ProcessTable.name_of`."""
        found = self._find(pid)
        return super().name_of(pid) if found is None else found.owner.container[:15]

    def cpu_seconds(self, pid: int) -> float | None:
        """See :meth:`.ProcessTable.cpu_seconds`: those of its kind of work since it was read first."""
        found = self._find(pid)
        if found is None:
            return super().cpu_seconds(pid)
        used, since = self._cpu.get(pid, (0.0, self._now()))
        used += (self._now() - since) * WORKS[found.work].cpu
        self._cpu[pid] = used, self._now()
        return used

    @contextmanager
    def open(self, process: ProcessId) -> Iterator[ProcessHandle | None]:
        """See :meth:`.ProcessTable.open`."""
        found = self._find(process.pid)
        if found is not None:
            yield _SimulatedHandle(found)
            return
        with super().open(process) as handle:
            yield handle


def _id_of(container: GpuContainer) -> str:
    return container.owner.container_id.rpartition("/")[2]


def _main_pid(container: GpuContainer) -> int:
    """A number for the process of a container that uses no card; the kernel gives no negative ones."""
    return -id(container)


class _SimulatedHandle(ProcessHandle):
    """Signals the container of a simulated process."""

    def __init__(self, container: GpuContainer) -> None:
        super().__init__(-1)
        self._container = container

    def send(self, number: signal.Signals) -> bool:
        """Ends the container; ``False`` if it has ended already."""
        if self._container.ended.done():
            return False
        self._container.kill(number)
        return True
