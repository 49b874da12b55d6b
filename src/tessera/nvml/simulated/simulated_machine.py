"""Simulated cards behind the same interface as real ones.

:class:`SimulatedMachine` answers every call of :class:`~tessera.nvml.interface.Nvml` at once and by the rules of
hardware: legal starts only, no overlap, nothing in use is destroyed, a lost card answers nothing. Tests change the
cards by :class:`~tessera.nvml.simulated.hardware.SimulatedHardware`. Calls about whole cards are in
:mod:`tessera.nvml.simulated.cards`.

Calls do not wait here; :meth:`SimulatedMachine.latency` tells :mod:`tessera.nvml.asynchronous.async_nvml` how long they
should take.
"""

from tessera.mig.geometry import UnknownProfile
from tessera.mig.occupancy import find_conflict, free_starts, occupancy_of
from tessera.nvml.errors import (
    InsufficientResources,
    InUse,
    InvalidArgument,
    NotFound,
    NotSupported,
    ResetRequired,
)
from tessera.nvml.interface import (
    ComputeInstance,
    DeviceFile,
    DeviceMemory,
    GiProfileInfo,
    GpuEvent,
    GpuInfo,
    GpuInstance,
    GpuProcess,
    GpuUuid,
    MigModeResult,
    MigUuid,
)
from tessera.nvml.simulated.boards import cuda_version, profile_memory_mib, profile_multiprocessors
from tessera.nvml.simulated.calls import gpu_instance
from tessera.nvml.simulated.cards import CI_SLICES, SimulatedCards
from tessera.nvml.simulated.hardware import find_card, share_bytes
from tessera.nvml.simulated.machine import SimCard, SimComputeInstance, SimGpuInstance, gi_id, mig_uuid


class SimulatedMachine(SimulatedCards):
    """Cards that exist only here, with NVML's face; see :class:`~tessera.nvml.interface.Nvml`."""

    def driver_version(self) -> str:
        """See :meth:`.Nvml.driver_version`."""
        with self._call("driver_version") as machine:
            return machine.driver_version

    def cuda_version(self) -> int:
        """See :meth:`.Nvml.cuda_version`."""
        with self._call("cuda_version") as machine:
            return cuda_version(machine.driver_version)

    def devices(self) -> list[GpuInfo]:
        """See :meth:`.Nvml.devices`."""
        with self._call("devices") as machine:
            return [_info(card) for card in machine.cards]

    def set_mig_mode(self, gpu: GpuUuid, enabled: bool) -> MigModeResult:
        """See :meth:`.Nvml.set_mig_mode`."""
        try:
            with self._card("set_mig_mode", gpu, changes=True) as card:
                return self._set_mig_mode(card, enabled)
        except (InUse, ResetRequired) as refused:
            with self._change() as machine:
                find_card(machine, gpu).mig_pending = enabled
            return MigModeResult.IN_USE if isinstance(refused, InUse) else MigModeResult.RESET_REQUIRED

    def _set_mig_mode(self, card: SimCard, enabled: bool) -> MigModeResult:
        if not card.gpu_model.mig_capable:
            raise NotSupported(f"MIG mode of {card.uuid}: {card.gpu_model.product_name} has no MIG")
        card.mig_pending = enabled
        if card.mig_enabled == enabled:
            return MigModeResult.APPLIED
        if card.processes:
            return MigModeResult.IN_USE
        if self._passthrough and card.needs_reset:
            return MigModeResult.RESET_REQUIRED
        card.apply_pending_mode()
        return MigModeResult.APPLIED

    def gi_profiles(self, gpu: GpuUuid) -> list[GiProfileInfo]:
        """See :meth:`.Nvml.gi_profiles`."""
        with self._mig_card("gi_profiles", gpu) as card:
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

    def instances(self, gpu: GpuUuid) -> list[GpuInstance]:
        """See :meth:`.Nvml.instances`."""
        with self._card("instances", gpu) as card:
            return [_instance(card, one) for one in sorted(card.instances, key=lambda one: one.start)]

    def create_gpu_instance(self, gpu: GpuUuid, profile: str, start: int) -> int:
        """See :meth:`.Nvml.create_gpu_instance`."""
        with self._mig_card("create_gpu_instance", gpu, changes=True) as card:
            what = f"GPU instance {profile} at {start} of {gpu}"
            try:
                row = card.geometry.profile(profile)
            except UnknownProfile as error:
                raise InvalidArgument(f"{what}: {error}") from error
            if start not in row.starts:
                raise InvalidArgument(f"{what}: the profile may start at {', '.join(map(str, row.starts))}")
            held = [one.placement for one in card.instances]
            if start not in free_starts(card.geometry, row, occupancy_of(card.geometry, held)):
                why = find_conflict(card.geometry, row.name, held)
                raise InsufficientResources(
                    f"{what}: {why.text if why else 'another instance covers its memory slots'}"
                )
            made = SimGpuInstance(gi_id(card.geometry, row, start), row.name, start, row.size)
            card.instances.append(made)
            return made.gi_id

    def create_compute_instance(self, gpu: GpuUuid, gi_id: int, profile_index: int) -> ComputeInstance:
        """See :meth:`.Nvml.create_compute_instance`."""
        with self._mig_card("create_compute_instance", gpu, changes=True) as card:
            instance = gpu_instance(card, gi_id)
            what = f"compute instance profile {profile_index} in GPU instance {gi_id} ({instance.profile}) of {gpu}"
            slices, limit = CI_SLICES.get(profile_index), card.geometry.profile(instance.profile).compute_slices
            if slices is None or slices > limit:
                raise InvalidArgument(f"{what}: the GPU instance has {limit} compute slices")
            used = sum(one.slices for one in instance.compute_instances)
            if used + slices > limit:
                raise InsufficientResources(f"{what}: {used} of {limit} compute slices are taken")
            taken = {one.ci_id for one in instance.compute_instances}
            ci_id = min(set(range(len(taken) + 1)) - taken)
            instance.compute_instances.append(SimComputeInstance(ci_id, profile_index, slices))
            return ComputeInstance(
                ci_id=ci_id, profile_index=profile_index, mig_uuid=mig_uuid(card.uuid, instance, ci_id)
            )

    def destroy_compute_instance(self, gpu: GpuUuid, gi_id: int, ci_id: int) -> None:
        """See :meth:`.Nvml.destroy_compute_instance`."""
        with self._mig_card("destroy_compute_instance", gpu, changes=True) as card:
            instance = gpu_instance(card, gi_id)
            what = f"compute instance {ci_id} of GPU instance {gi_id} ({instance.profile}) of {gpu}"
            compute = next((one for one in instance.compute_instances if one.ci_id == ci_id), None)
            if compute is None:
                raise NotFound(what)
            pids = [one.pid for one in card.processes if (one.gi_id, one.ci_id) == (gi_id, ci_id)]
            if pids:
                raise InUse(f"{what}: processes {pids} compute on it")
            instance.compute_instances.remove(compute)

    def destroy_gpu_instance(self, gpu: GpuUuid, gi_id: int) -> None:
        """See :meth:`.Nvml.destroy_gpu_instance`."""
        with self._mig_card("destroy_gpu_instance", gpu, changes=True) as card:
            instance = gpu_instance(card, gi_id)
            if instance.compute_instances:
                raise InUse(f"GPU instance {gi_id} ({instance.profile}) of {gpu}: it holds compute instances")
            card.instances.remove(instance)

    def processes(self, device: GpuUuid | MigUuid) -> list[GpuProcess]:
        """See :meth:`.Nvml.processes`."""
        with self._device("processes", device) as (card, instance, ci_id):
            return [
                GpuProcess(pid=one.pid, memory_bytes=one.memory_bytes, gi_id=one.gi_id, ci_id=one.ci_id)
                for one in card.processes
                if instance is None or (one.gi_id, one.ci_id) == (instance.gi_id, ci_id)
            ]

    def memory(self, device: GpuUuid | MigUuid) -> DeviceMemory:
        """See :meth:`.Nvml.memory`."""
        with self._device("memory", device) as (card, instance, _):
            held = [one for one in card.processes if instance is None or one.gi_id == instance.gi_id]
            return DeviceMemory(total=share_bytes(card, instance), used=sum(one.memory_bytes for one in held))

    def device_files(self, gpu: GpuUuid, gi_id: int, ci_id: int) -> list[DeviceFile]:
        """Returns no file: a simulated card has none."""
        with self._mig_card("device_files", gpu) as card:
            if all(one.ci_id != ci_id for one in gpu_instance(card, gi_id).compute_instances):
                raise NotFound(f"compute instance {ci_id} of GPU instance {gi_id} of {gpu}")
            return []

    def wait_event(self, _seconds: float) -> GpuEvent | None:
        """The next event if there is one already; never waits (the worker does, on its clock)."""
        with self._call("wait_event") as machine:
            if not machine.events:
                return None
            event = machine.events.pop(0)
            return GpuEvent(kind=event.kind, gpu=event.gpu, xid=event.xid, gi_id=event.gi_id, ci_id=event.ci_id)

    def close(self) -> None:
        """Nothing to end; the cards stay as they are."""


def _instance(card: SimCard, instance: SimGpuInstance) -> GpuInstance:
    return GpuInstance(
        gi_id=instance.gi_id,
        profile=instance.profile,
        start=instance.start,
        size=instance.size,
        compute_instances=tuple(
            ComputeInstance(
                ci_id=one.ci_id,
                profile_index=one.profile_index,
                mig_uuid=mig_uuid(card.uuid, instance, one.ci_id),
            )
            for one in instance.compute_instances
        ),
    )


def _info(card: SimCard) -> GpuInfo:
    model = card.gpu_model
    device_id = int(model.pci_device_ids[0], 16) if model.pci_device_ids else 0
    return GpuInfo(
        uuid=card.uuid,
        index=card.index,
        minor=card.index,
        name=model.product_name,
        memory_mib=model.memory_mib,
        pci_bus_id=card.pci_bus_id,
        pci_device_id=f"0x{device_id:04X}10DE",
        compute_capability=model.compute_capability,
        mig_capable=model.mig_capable,
        mig_enabled=card.mig_enabled,
        mig_pending=card.mig_pending,
        lost=card.lost,
    )
