"""Rules of simulated processes: a process computes on a card or MIG device and holds memory there.

A process is known by its PID, which a caller may choose, and may compute on several devices. A device has no more
memory than its card or GPU instance; the compute instances of one GPU instance share it.
"""

from tessera.nvml.attributes import ComputeMode
from tessera.nvml.errors import DriverNotLoaded, GpuLost, NotSupported, NvmlNotFound
from tessera.nvml.interface import DeviceMemory, GpuProcess
from tessera.nvml.simulated.boards import profile_memory_mib
from tessera.nvml.simulated.machine_state import MachineState, SimCard, SimDevice, SimGpuInstance, SimProcess

_MIB = 1024 * 1024


def start_process(machine: MachineState, uuid: str, memory_bytes: int, pid: int | None, activity: float = 0.0) -> int:
    """Starts a process that computes on a card or MIG device; returns its PID.

    Args:
        machine: the machine.
        uuid: a card, or one of its MIG devices in MIG mode.
        memory_bytes: memory that the process holds there.
        pid: of a process of this host, or of one that computes on another device already; a new one if ``None``.
        activity: share of the device's time in which it computes, 0 to 1.

    Raises:
        NotFound: no such device; a card in MIG mode is none.
        GpuLost: the card is lost.
        DriverNotLoaded: no driver is loaded.
        NotSupported: the card's compute mode is ``PROHIBITED``.
        ValueError: the process computes on the device already.
        MemoryError: the device has less memory free.
    """
    if not machine.driver_version:
        raise DriverNotLoaded(f"process on {uuid}")
    device = machine.find_device(uuid)
    card = device.card
    if card.lost:
        raise GpuLost(f"process on {uuid}")
    if card.mig_enabled and device.instance is None:
        raise NvmlNotFound(f"{uuid} is in MIG mode: a process needs one of its MIG devices")
    if card.compute_mode is ComputeMode.PROHIBITED:
        raise NotSupported(f"process on {uuid}: the card's compute mode is PROHIBITED")
    if any(one.pid == pid for one in device.processes):
        raise ValueError(f"process {pid} computes on {uuid} already; change its memory with set_process_memory")
    number = machine.next_pid if pid is None else pid
    process = SimProcess(number, 0, device.gi_id, device.ci_id, activity)
    _allocate(card, process, memory_bytes)
    machine.next_pid += pid is None
    card.processes.append(process)
    return process.pid


def set_process_memory(machine: MachineState, pid: int, memory_bytes: int, uuid: str | None) -> None:
    """Sets the memory that a process holds.

    Args:
        machine: the machine.
        pid: the process.
        memory_bytes: memory that the process holds.
        uuid: the card or MIG device; may be None for a process that computes on one device.

    Raises:
        NotFound: no such process there.
        MemoryError: the device has too little memory; the process keeps its former amount.
    """
    places = _find_processes(machine, pid)
    if uuid is not None:
        device = machine.find_device(uuid)
        place = device.gi_id, device.ci_id
        places = [(card, one) for card, one in places if card is device.card and (one.gi_id, one.ci_id) == place]
    if not places:
        raise NvmlNotFound(f"process {pid} does not compute on {uuid}")
    _allocate(*places[0], memory_bytes)


def set_process_activity(machine: MachineState, pid: int, activity: float, work: str | None = None) -> None:
    """Sets the share of time in which a process computes, on each of its devices, and what it does then.

    Raises:
        NotFound: no such process.
    """
    for _, process in _find_processes(machine, pid):
        process.activity = activity
        process.work = work or process.work


def end_process(machine: MachineState, pid: int) -> None:
    """Ends a process on every device.

    Raises:
        NotFound: no such process.
    """
    for card, process in _find_processes(machine, pid):
        card.processes.remove(process)


def list_processes(device: SimDevice) -> list[GpuProcess]:
    """Returns the processes that compute on the device; on a whole card those of all its instances."""
    return [
        GpuProcess(pid=one.pid, memory_bytes=one.memory_bytes, gi_id=one.gi_id, ci_id=one.ci_id)
        for one in device.processes
    ]


def read_memory(device: SimDevice) -> DeviceMemory:
    """Returns total and used memory of the card, or of the GPU instance that the MIG device is in."""
    users = [one for one in device.card.processes if device.instance is None or one.gi_id == device.gi_id]
    used = sum(one.memory_bytes for one in users)
    return DeviceMemory(total=_memory_bytes(device.card, device.instance), used=used, reserved=0)


def _memory_bytes(card: SimCard, instance: SimGpuInstance | None) -> int:
    if instance is None:
        return card.memory_mib * _MIB
    return profile_memory_mib(card, card.geometry.profile(instance.profile)) * _MIB


def _allocate(card: SimCard, process: SimProcess, memory_bytes: int) -> None:
    """Sets the memory of a process; raises MemoryError if the device has less free."""
    instance = next((one for one in card.instances if one.gi_id == process.gi_id), None)
    others = sum(one.memory_bytes for one in card.processes if one is not process and one.gi_id == process.gi_id)
    total = _memory_bytes(card, instance)
    if others + memory_bytes > total:
        raise MemoryError(f"process {process.pid}: it needs {memory_bytes} bytes, {total - others} of {total} are free")
    process.memory_bytes = memory_bytes


def _find_processes(machine: MachineState, pid: int) -> list[tuple[SimCard, SimProcess]]:
    places = [(card, process) for card in machine.cards for process in card.processes if process.pid == pid]
    if not places:
        raise NvmlNotFound(f"process {pid} computes on no card")
    return places
