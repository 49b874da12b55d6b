"""MIG rules of one simulated card: legal starts only, no overlap, nothing in use is destroyed.

Each function changes or reads one :class:`~tessera.nvml.simulated.machine_state.SimCard` and raises the error that the
driver returns. The caller has checked that the card answers and, for instances, that MIG mode is on.
"""

from tessera.mig.geometry import Geometry, Profile, UnknownProfileError
from tessera.mig.occupancy import find_conflict, free_starts, occupancy_of
from tessera.nvml.attributes import MigAttributes
from tessera.nvml.errors import InsufficientResources, InUse, InvalidArgument, NotSupported, NvmlNotFound
from tessera.nvml.interface import ComputeInstance, GiProfileInfo, GpuInstance, MigModeResult
from tessera.nvml.simulated.boards import mig_attributes, profile_memory_mib, profile_multiprocessors
from tessera.nvml.simulated.machine_state import SimCard, SimComputeInstance, SimDevice, SimGpuInstance, mig_uuid

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
    rows = [
        GiProfileInfo(
            name=profile.name,
            index=profile.gi_profile_index,
            id=profile.gi_profile_index if profile.gi_profile_id is None else profile.gi_profile_id,
            compute_slices=profile.compute_slices,
            size=profile.size,
            starts=profile.starts,
            max_count=profile.max_count,
            memory_mib=profile_memory_mib(card, profile),
            multiprocessors=profile_multiprocessors(card, profile),
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
