"""MIG rules of one simulated card: legal starts only, no overlap, nothing in use is destroyed.

Each function changes or reads one :class:`~tessera.nvml.simulated.machine_state.SimCard` and raises the error that the
driver returns. The caller has checked that the card answers and, for instances, that MIG mode is on.

A process computes on a card or MIG device and holds memory there. It is known by its PID, which a caller may choose,
and may compute on several devices. A device has no more memory than its card or GPU instance; the compute instances of
one GPU instance share it.
"""

from tessera.mig.geometry import Geometry, Profile, UnknownProfileError, find_conflict, free_starts, occupancy_of
from tessera.nvml.errors import (
    DriverNotLoaded,
    GpuLost,
    InsufficientResources,
    InUse,
    InvalidArgument,
    NotSupported,
    NvmlNotFound,
)
from tessera.nvml.interface import (
    ComputeInstance,
    ComputeMode,
    DeviceMemory,
    GiProfileInfo,
    GpuInstance,
    GpuProcess,
    MigAttributes,
    MigModeResult,
)
from tessera.nvml.simulated.boards import mig_attributes
from tessera.nvml.simulated.machine_state import (
    MachineState,
    SimCard,
    SimComputeInstance,
    SimDevice,
    SimGpuInstance,
    SimProcess,
    mig_uuid,
)

#: Compute slices of each compute-instance profile (nvml.h, ``NVML_COMPUTE_INSTANCE_PROFILE_*``).
CI_SLICES = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7, 5: 8, 6: 6, 7: 1}


def set_mig_mode(card: SimCard, enabled: bool, *, passthrough: bool) -> MigModeResult:
    """Requests MIG mode on or off. A process on the card, or a needed reset, leaves the request pending.

    Args:
        card: the card.
        enabled: the mode.
        passthrough: the card is passed through to a virtual machine, which cannot reset it by itself.

    Raises:
        NotSupported: the model has no MIG.
    """
    if not card.gpu_model.mig_capable:
        raise NotSupported(f"MIG mode of {card.uuid}: {card.gpu_model.product_name} has no MIG")
    card.mig_pending = enabled
    if card.mig_enabled == enabled:
        return MigModeResult.APPLIED
    if card.processes:
        return MigModeResult.IN_USE
    if passthrough and card.needs_reset:
        return MigModeResult.RESET_REQUIRED
    card.apply_pending_mode()
    return MigModeResult.APPLIED


def list_profiles(card: SimCard) -> list[GiProfileInfo]:
    """Returns the card's GPU instance profiles by NVML's index."""
    engines = {each.name: mig_attributes(card, each, each.compute_slices) for each in card.geometry.profiles}
    rows = [
        GiProfileInfo(
            name=profile.name,
            index=profile.gi_profile_index,
            id=profile.gi_profile_index if profile.gi_profile_id is None else profile.gi_profile_id,
            compute_slices=profile.compute_slices,
            size=profile.size,
            starts=profile.starts,
            max_count=profile.max_count,
            memory_mib=card.instance_memory_mib(profile),
            multiprocessors=engines[profile.name].multiprocessors,
            copy_engines=engines[profile.name].copy_engines,
            decoders=engines[profile.name].decoders,
            encoders=engines[profile.name].encoders,
            jpeg_engines=engines[profile.name].jpeg_engines,
            ofa_engines=engines[profile.name].ofa_engines,
        )
        for profile in card.geometry.profiles
    ]
    return sorted(rows, key=lambda row: row.index)


def list_instances(card: SimCard) -> list[GpuInstance]:
    """Returns the card's GPU instances by start, each with its compute instances."""
    return [
        GpuInstance(
            gi_id=instance.gi_id,
            profile=instance.profile,
            start=instance.start,
            size=instance.size,
            compute_instances=tuple(_compute_instance(card, instance, one) for one in instance.compute_instances),
        )
        for instance in sorted(card.instances, key=lambda one: one.start)
    ]


def create_gpu_instance(card: SimCard, profile: str, start: int) -> int:
    """Creates a GPU instance and returns its id.

    Raises:
        InvalidArgument: the card has no such profile, or the profile cannot start there.
        InsufficientResources: another instance covers the memory slots, or the media engines are in use.
    """
    target = f"GPU instance {profile} at {start} of {card.uuid}"
    try:
        row = card.geometry.profile(profile)
    except UnknownProfileError as error:
        raise InvalidArgument(f"{target}: {error}") from error
    if start not in row.starts:
        raise InvalidArgument(f"{target}: the profile may start at {', '.join(map(str, row.starts))}")
    placements = [one.placement for one in card.instances]
    if start not in free_starts(card.geometry, row, occupancy_of(card.geometry, placements)):
        conflict = find_conflict(card.geometry, row.name, placements)
        raise InsufficientResources(
            f"{target}: {conflict.text if conflict else 'another instance covers its memory slots'}"
        )
    created = SimGpuInstance(gi_id_at(card.geometry, row, start), row.name, start, row.size)
    card.instances.append(created)
    return created.gi_id


def create_compute_instance(card: SimCard, gi_id: int, profile_index: int) -> ComputeInstance:
    """Creates a compute instance in a GPU instance; it gets the lowest free id.

    Raises:
        NotFound: the card has no such GPU instance.
        InvalidArgument: no such profile, or the GPU instance has fewer compute slices.
        InsufficientResources: other compute instances use the slices.
    """
    instance = find_gpu_instance(card, gi_id)
    target = f"compute instance profile {profile_index} in GPU instance {gi_id} ({instance.profile}) of {card.uuid}"
    slices, limit = CI_SLICES.get(profile_index), card.geometry.profile(instance.profile).compute_slices
    if slices is None or slices > limit:
        raise InvalidArgument(f"{target}: the GPU instance has {limit} compute slices")
    used = sum(one.slices for one in instance.compute_instances)
    if used + slices > limit:
        raise InsufficientResources(f"{target}: {used} of {limit} compute slices are taken")
    used_ids = {one.ci_id for one in instance.compute_instances}
    created = SimComputeInstance(min(set(range(len(used_ids) + 1)) - used_ids), profile_index, slices)
    instance.compute_instances.append(created)
    return _compute_instance(card, instance, created)


def destroy_compute_instance(card: SimCard, gi_id: int, ci_id: int) -> None:
    """Destroys a compute instance.

    Raises:
        NotFound: the card has no such GPU instance or compute instance.
        InUse: a process computes on it.
    """
    instance = find_gpu_instance(card, gi_id)
    target = f"compute instance {ci_id} of GPU instance {gi_id} ({instance.profile}) of {card.uuid}"
    compute = next((one for one in instance.compute_instances if one.ci_id == ci_id), None)
    if compute is None:
        raise NvmlNotFound(target)
    pids = [one.pid for one in SimDevice(card, instance, ci_id).processes]
    if pids:
        raise InUse(f"{target}: processes {pids} compute on it")
    instance.compute_instances.remove(compute)


def destroy_gpu_instance(card: SimCard, gi_id: int) -> None:
    """Destroys an empty GPU instance.

    Raises:
        NotFound: the card has no such GPU instance.
        InUse: it holds a compute instance.
    """
    instance = find_gpu_instance(card, gi_id)
    if instance.compute_instances:
        raise InUse(f"GPU instance {gi_id} ({instance.profile}) of {card.uuid}: it holds compute instances")
    card.instances.remove(instance)


def check_compute_instance(card: SimCard, gi_id: int, ci_id: int) -> None:
    """Raises NotFound if the card has no such compute instance."""
    if all(one.ci_id != ci_id for one in find_gpu_instance(card, gi_id).compute_instances):
        raise NvmlNotFound(f"compute instance {ci_id} of GPU instance {gi_id} of {card.uuid}")


def read_mig_attributes(device: SimDevice) -> MigAttributes:
    """Returns engines and memory of a MIG device.

    Raises:
        NotFound: the device is a whole card.
    """
    if device.instance is None:
        raise NvmlNotFound(f"MIG device {device.card.uuid}: it is a card")
    slices = next(one.slices for one in device.instance.compute_instances if one.ci_id == device.ci_id)
    return mig_attributes(device.card, device.card.geometry.profile(device.instance.profile), slices)


def find_gpu_instance(card: SimCard, gi_id: int) -> SimGpuInstance:
    """Returns the card's GPU instance of that id.

    Raises:
        NotFound: it has none.
    """
    for instance in card.instances:
        if instance.gi_id == gi_id:
            return instance
    raise NvmlNotFound(f"GPU instance {gi_id} of {card.uuid}")


def gi_id_at(geometry: Geometry, profile: Profile, start: int) -> int:
    """Returns the id of a GPU instance: as read from real cards, a binary tree's node for its part of the card.

    On a card of 8 slots 0 is the whole card, 1 and 2 its halves, 3 to 6 the quarters, 7 to 14 the single slots.
    """
    parts = geometry.slots // profile.size
    return parts - 1 + start // profile.size


def _compute_instance(card: SimCard, instance: SimGpuInstance, compute: SimComputeInstance) -> ComputeInstance:
    return ComputeInstance(
        ci_id=compute.ci_id,
        profile_index=compute.profile_index,
        mig_uuid=mig_uuid(card.uuid, instance, compute.ci_id),
    )


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
    return card.instance_memory_mib(card.geometry.profile(instance.profile)) * _MIB


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
