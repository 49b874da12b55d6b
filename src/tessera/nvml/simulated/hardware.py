"""Events on simulated GPUs from outside of NVML: processes come and go, GPUs fail, the machine reboots.

The levers of tests and of the lab, which plays the programs that run in containers. Everything is kept with the
machine, so that one process can pull a lever and another feel it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tessera.nvml.attributes import CardAttributes, ComputeMode, NvLink
from tessera.nvml.errors import DriverNotLoaded, GpuLost, InUse, NotFound, NotSupported, NvmlError
from tessera.nvml.interface import GpuEventKind, GpuUuid, MigUuid
from tessera.nvml.simulated.boards import profile_memory_mib
from tessera.nvml.simulated.machine import (
    MachineState,
    SimCard,
    SimEvent,
    SimGpuInstance,
    SimProcess,
    SimulatedFault,
    build_machine,
    mig_uuid,
)
from tessera.nvml.simulated.state_file import FileStore, MachineStore, MemoryStore

#: Version of the simulated driver: new enough for every model that can be simulated.
DRIVER_VERSION = "595.58.03"
#: Limit on unread events; beyond it the oldest are dropped, as in the driver's own queue.
MOST_EVENTS = 1024
#: XID of a card that fell off the bus (NVIDIA, XID errors).
XID_OFF_THE_BUS = 79
_MIB = 1024 * 1024
#: A fault on every call.
ANY = "*"


class SimulatedHardware:
    """Simulated cards and the levers on them.

    Args:
        spec: the cards, ``"4xA100-40GB,2xH100-80GB"``.
        seed: the node's name; decides every UUID.
        mig: MIG mode is on from the start.
        passthrough: the cards are passed through to a virtual machine: a change of MIG mode on Ampere stays pending
            until the card is reset.
        driver: the version of the driver that the host has and that is loaded; None for a host without one, where
            every call of NVML is refused until :meth:`load_driver`.
        latencies: seconds that a call takes, by its name (``create_gpu_instance``).
        state: keep the machine in this file, which outlives the process and which other processes may share.

    Raises:
        ValueError: the spec is not one, or a model's placements are not known.
        StateFileError: the file is damaged or is of other cards.
    """

    def __init__(
        self,
        spec: str,
        *,
        seed: str,
        mig: bool = False,
        passthrough: bool = False,
        driver: str | None = DRIVER_VERSION,
        latencies: Mapping[str, float] | None = None,
        state: Path | None = None,
    ) -> None:
        fresh = build_machine(spec, seed, driver or "", mig=mig)
        self._passthrough = passthrough
        self._store: MachineStore = MemoryStore(fresh) if state is None else FileStore(state, fresh)
        self._subscribers: dict[object, Callable[[], None]] = {}
        self._sessions: set[object] = set()
        for operation, seconds in (latencies or {}).items():
            self.slow(operation, seconds)

    @property
    def poll_interval(self) -> float | None:
        """Seconds between two checks for changes by other processes; ``None`` if there can be none."""
        return 0.1 if self._store.shared else None

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Calls ``changed`` after every change by this process; the function returned ends that."""
        key = object()
        self._subscribers[key] = changed
        return lambda: self._subscribers.pop(key, None) and None

    def uuids(self) -> list[GpuUuid]:
        """The cards' UUIDs by index, lost ones included."""
        with self._store.machine() as machine:
            return [card.uuid for card in machine.cards]

    def fail(
        self,
        operation: str,
        error: type[NvmlError],
        *,
        skip: int = 0,
        times: int | None = 1,
        gpu: GpuUuid | None = None,
    ) -> None:
        """Lets calls fail: after ``skip`` that still succeed, the next ``times`` (``None``: all) of ``operation``.

        A ``set_mig_mode`` that fails with ``ResetRequired`` or ``InUse`` is one that stays pending for that reason, as
        NVML answers it: with a result, not with an error.

        Args:
            operation: the call's name, or :data:`ANY`.
            error: the error that the call raises.
            skip: matching calls that succeed first.
            times: how many fail then.
            gpu: only calls on this card or on a MIG device of it.
        """
        with self._change() as machine:
            machine.faults.append(SimulatedFault(operation=operation, code=error.code, skip=skip, times=times, gpu=gpu))

    def heal(self) -> None:
        """Takes back every fault of :meth:`fail`."""
        with self._change() as machine:
            machine.faults.clear()

    def slow(self, operation: str, seconds: float) -> None:
        """Lets each call of ``operation`` take so long from now on."""
        with self._change() as machine:
            machine.latencies[operation] = seconds

    def lose(self, gpu: GpuUuid) -> None:
        """Makes the card fall off the bus, with its XID; its processes die. A reboot brings the card back."""
        with self._change() as machine:
            card = find_card(machine, gpu)
            card.lost = True
            card.processes.clear()
            _queue(machine, SimEvent(GpuEventKind.XID, gpu, XID_OFF_THE_BUS))

    def report(self, event: SimEvent) -> None:
        """The driver reports a hardware event."""
        with self._change() as machine:
            _queue(machine, event)

    def set_attributes(self, gpu: GpuUuid, attributes: CardAttributes) -> None:
        """The card has these from now on: another verdict of the driver, no ECC, a place in a fabric."""
        with self._change() as machine:
            find_card(machine, gpu).attributes = attributes

    def set_nvlinks(self, gpu: GpuUuid, links: Iterable[NvLink]) -> None:
        """These NVLinks of the card are up from now on, as long as it is not in MIG mode."""
        with self._change() as machine:
            find_card(machine, gpu).nvlinks = list(links)

    @property
    def loaded_driver(self) -> str | None:
        """The version of the kernel module that is loaded, None without one; asks no NVML."""
        with self._store.machine() as machine:
            return machine.driver_version or None

    @property
    def host_driver(self) -> str | None:
        """The version of the driver that the host itself has and loads at boot, None without one."""
        with self._store.machine() as machine:
            return machine.host_driver or None

    def load_driver(self, version: str) -> None:
        """Loads a kernel module, as a driver container does; nothing happens when that version is loaded already.

        Raises:
            InUse: another version is loaded.
            ValueError: no driver has such a version.
        """
        if not version.partition(".")[0].isdigit():
            raise ValueError(f"driver {version!r}: a version begins with its branch, e.g. 595.58.03")
        with self._change() as machine:
            if machine.driver_version not in ("", version):
                raise InUse(f"driver {version}: {machine.driver_version} is loaded; unload it first")
            machine.driver_version = version

    def unload_driver(self) -> None:
        """Unloads the kernel module, as ``rmmod`` does; nothing happens when none is loaded. Instances are lost.

        Sessions of other processes, which share the machine by its file, are not seen.

        Raises:
            InUse: a process computes on a card, or a session of this process is open.
        """
        with self._change() as machine:
            pids = sorted({process.pid for card in machine.cards for process in card.processes})
            if machine.driver_version and (pids or self._sessions):
                who = f"processes {pids}" if pids else f"{len(self._sessions)} open sessions"
                raise InUse(f"driver {machine.driver_version}: module nvidia is in use by {who}")
            machine.driver_version = ""
            for card in machine.cards:
                card.restart()

    def open_session(self) -> Callable[[], None]:
        """Opens the driver, as ``nvmlInit`` and ``cuInit`` do; the function returned ends that session.

        Raises:
            DriverNotLoaded: no driver is loaded.
        """
        if self.loaded_driver is None:
            raise DriverNotLoaded("open the driver")
        session = object()
        self._sessions.add(session)
        return lambda: self._sessions.discard(session)

    def reboot(self) -> None:
        """Reboots the machine: no process and no instance survives, lost cards are back.

        MIG mode survives on Ampere, where it is kept on the card, and is off on later cards. Compute modes are lost.
        Afterwards the host's own driver is loaded, if it has one.
        """
        self._sessions.clear()
        with self._change() as machine:
            machine.driver_version = machine.host_driver
            machine.events.clear()
            for card in machine.cards:
                card.lost = False
                card.processes = []
                card.mig_pending = card.mig_pending and card.needs_reset
                card.compute_mode = ComputeMode.DEFAULT
                card.restart()

    def start_process(self, device: GpuUuid | MigUuid, memory_bytes: int = 0, *, pid: int | None = None) -> int:
        """A process starts to compute on a card or MIG device; returns its PID.

        Args:
            device: a card, or one of its MIG devices in MIG mode.
            memory_bytes: memory that the process holds there.
            pid: of a process of this host, or of one that computes on another device already; a new one if ``None``.

        Raises:
            NotFound: no such device; a card in MIG mode is none.
            GpuLost: the card is lost.
            DriverNotLoaded: no driver is loaded.
            NotSupported: the card's compute mode is ``PROHIBITED``.
            ValueError: the process computes on the device already.
            MemoryError: the device has less memory free.
        """
        with self._change() as machine:
            if not machine.driver_version:
                raise DriverNotLoaded(f"process on {device}")
            card, instance, ci_id = find_device(machine, device)
            if card.lost:
                raise GpuLost(f"process on {device}")
            if card.mig_enabled and instance is None:
                raise NotFound(f"{device} is in MIG mode: a process needs one of its MIG devices")
            if card.compute_mode is ComputeMode.PROHIBITED:
                raise NotSupported(f"process on {device}: the card's compute mode is PROHIBITED")
            gi_id = None if instance is None else instance.gi_id
            if any((one.pid, one.gi_id, one.ci_id) == (pid, gi_id, ci_id) for one in card.processes):
                raise ValueError(
                    f"process {pid} computes on {device} already; set_process_memory changes what it holds"
                )
            process = SimProcess(machine.next_pid if pid is None else pid, 0, gi_id, ci_id)
            _allocate(card, process, memory_bytes)
            machine.next_pid += pid is None
            card.processes.append(process)
            return process.pid

    def set_process_memory(self, pid: int, memory_bytes: int, device: GpuUuid | MigUuid | None = None) -> None:
        """The process holds so much memory from now on.

        Args:
            pid: the process.
            memory_bytes: memory that the process holds.
            device: where; may be left out for a process that computes on one device.

        Raises:
            NotFound: no such process there.
            MemoryError: the device has too little memory; the process keeps its former amount.
        """
        with self._change() as machine:
            found = _find_processes(machine, pid)
            if device is not None:
                card, instance, ci_id = find_device(machine, device)
                place = None if instance is None else instance.gi_id, ci_id
                found = [(on, one) for on, one in found if on is card and (one.gi_id, one.ci_id) == place]
            if not found:
                raise NotFound(f"process {pid} does not compute on {device}")
            _allocate(*found[0], memory_bytes)

    def end_process(self, pid: int) -> None:
        """The process ends and frees its memory, on every device.

        Raises:
            NotFound: no such process.
        """
        with self._change() as machine:
            for card, process in _find_processes(machine, pid):
                card.processes.remove(process)

    @contextmanager
    def _change(self) -> Iterator[MachineState]:
        with self._store.machine() as machine:
            yield machine
        self._notify_subscribers()

    def _notify_subscribers(self) -> None:
        for changed in list(self._subscribers.values()):
            changed()


def find_card(machine: MachineState, gpu: str) -> SimCard:
    """The card of that UUID.

    Raises:
        NotFound: the machine has no such card.
    """
    for card in machine.cards:
        if card.uuid == gpu:
            return card
    raise NotFound(f"{gpu}: the machine has no such card; it has {', '.join(card.uuid for card in machine.cards)}")


def find_device(machine: MachineState, device: str) -> tuple[SimCard, SimGpuInstance | None, int | None]:
    """The card of that UUID, or the card, GPU instance and compute instance id of a MIG device.

    Raises:
        NotFound: neither.
    """
    if not device.startswith("MIG-"):
        return find_card(machine, device), None, None
    for card in machine.cards:
        for instance in card.instances:
            for compute in instance.compute_instances:
                if mig_uuid(card.uuid, instance, compute.ci_id) == device:
                    return card, instance, compute.ci_id
    raise NotFound(f"{device}: no such MIG device")


def share_bytes(card: SimCard, instance: SimGpuInstance | None) -> int:
    """Memory of a card or of a GPU instance."""
    if instance is None:
        return card.gpu_model.memory_mib * _MIB
    return profile_memory_mib(card, card.geometry.profile(instance.profile)) * _MIB


def _allocate(card: SimCard, process: SimProcess, memory_bytes: int) -> None:
    instance = next((one for one in card.instances if one.gi_id == process.gi_id), None)
    others = sum(one.memory_bytes for one in card.processes if one is not process and one.gi_id == process.gi_id)
    total = share_bytes(card, instance)
    if others + memory_bytes > total:
        raise MemoryError(
            f"process {process.pid}: {memory_bytes} bytes asked for, {total - others} of {total} are free"
        )
    process.memory_bytes = memory_bytes


def _find_processes(machine: MachineState, pid: int) -> list[tuple[SimCard, SimProcess]]:
    found = [(card, process) for card in machine.cards for process in card.processes if process.pid == pid]
    if not found:
        raise NotFound(f"process {pid} computes on no card")
    return found


def _queue(machine: MachineState, event: SimEvent) -> None:
    machine.events.append(event)
    del machine.events[:-MOST_EVENTS]
