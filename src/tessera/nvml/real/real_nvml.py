"""Real cards, through NVIDIA's own Python binding (``nvidia-ml-py``).

Thin on purpose: every method is the NVML calls that it needs and their translation. The binding loads
``libnvidia-ml.so.1`` when NVML is opened, not when this module is imported, so that machines without a driver can
import it.

NVML leaves these tasks to its caller:

* a profile's table is fixed for a card, so it is read once;
* a card that was listed before and cannot be found any more is lost, whatever NVML calls it;
* a reset of a card needs another tool and ends the session meanwhile (:mod:`tessera.nvml.real.session`);
* compute-instance profiles are found by their own index, which follows from the slice count and not from the GPU
  instance's profile.
"""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from ctypes import byref
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from tessera.mig.names import resource_spelling
from tessera.nvml.attributes import CardAttributes, ComputeMode, MigAttributes, NvLink
from tessera.nvml.errors import (
    GpuLost,
    InvalidArgument,
    NotSupported,
    NvmlError,
    NvmlNotFound,
    make_error,
    translate_errors,
)
from tessera.nvml.interface import (
    ComputeInstance,
    DeviceFile,
    DeviceMemory,
    GiProfileInfo,
    GpuEvent,
    GpuEventKind,
    GpuInfo,
    GpuInstance,
    GpuProcess,
    GpuUuid,
    MigModeResult,
    MigUuid,
)
from tessera.nvml.measurements import Measurements, ProcessActivity
from tessera.nvml.real.cards import RealCardReader
from tessera.nvml.real.device_nodes import card_device_files, mig_device_files
from tessera.nvml.real.events import decode_text, event_kinds, instance_id
from tessera.nvml.real.library import load, unload
from tessera.nvml.real.meter import CardMeter
from tessera.nvml.real.mig import MigReader
from tessera.nvml.real.older_drivers import compute_processes, mps_clients
from tessera.nvml.real.session import NvmlSession, reset_card

_MIB = 1024 * 1024

_log = logging.getLogger(__name__)


class RealNvml:
    """NVIDIA's library; see :class:`~tessera.nvml.interface.Nvml`. Opens NVML when made.

    Args:
        binding: the module ``pynvml``, loaded when needed.
        proc: the host's ``/proc``.
        sys: the host's ``/sys``.
        reset_tool: the command line of ``nvidia-smi``, which resets cards.
        library: the driver's library if the loader does not find it; unloaded at the end.

    Raises:
        DriverNotLoaded: no driver on this machine.
        DriverMismatch: the library and the kernel module are of different versions.
    """

    def __init__(
        self,
        binding: Any = None,
        *,
        proc: Path = Path("/proc"),
        sys: Path = Path("/sys"),
        reset_tool: Sequence[str] = ("nvidia-smi",),
        library: Path | None = None,
    ) -> None:
        self._nvml = import_module("pynvml") if binding is None else binding
        self._mig = MigReader(self._nvml)
        self._cards = RealCardReader(self._nvml, sys)
        self._meter = CardMeter(self._nvml)
        self._proc = proc
        #: Every card that was listed, as last read; lost ones stay.
        self._known_cards: dict[GpuUuid, GpuInfo] = {}
        #: The profile tables that were read; a change of MIG mode and a reset remove a card's table.
        self._profiles: dict[GpuUuid, list[GiProfileInfo]] = {}
        self._reset_tool = tuple(reset_tool)
        self._session = NvmlSession(self._nvml)
        self._own_library = library is not None
        if library is not None:
            load(self._nvml, library)
        try:
            self._session.begin()
        except NvmlError:
            self._release_library()
            raise

    def driver_version(self) -> str:
        """See :meth:`.Nvml.driver_version`."""
        with self._errors("driver version"):
            return decode_text(self._nvml.nvmlSystemGetDriverVersion())

    def cuda_version(self) -> int:
        """See :meth:`.Nvml.cuda_version`."""
        with self._errors("CUDA version"):
            return int(self._nvml.nvmlSystemGetCudaDriverVersion_v2())

    def devices(self) -> list[GpuInfo]:
        """See :meth:`.Nvml.devices`. A card that was lost before it was ever listed has no UUID and is only logged."""
        found: dict[GpuUuid, GpuInfo] = {}
        self._session.begin()
        with self._errors("device count"):
            count = self._nvml.nvmlDeviceGetCount()
        for index in range(count):
            try:
                info = self._cards.info(index)
            except GpuLost as error:
                _log.warning("card %d cannot be read: %s", index, error)
                continue
            found[info.uuid] = info
        gone = {
            uuid: msgspec.structs.replace(info, lost=True)
            for uuid, info in self._known_cards.items()
            if uuid not in found
        }
        self._known_cards = gone | found
        return sorted(self._known_cards.values(), key=lambda info: info.index)

    def set_mig_mode(self, gpu: GpuUuid, enabled: bool) -> MigModeResult:
        """See :meth:`.Nvml.set_mig_mode`."""
        with self._errors(f"MIG mode of {gpu}"):
            status = self._nvml.nvmlDeviceSetMigMode(self._handle(gpu), int(enabled))
        results = {
            0: MigModeResult.APPLIED,
            self._nvml.NVML_ERROR_RESET_REQUIRED: MigModeResult.RESET_REQUIRED,
            self._nvml.NVML_ERROR_IN_USE: MigModeResult.IN_USE,
        }
        if status not in results:
            raise make_error(status, f"MIG mode of {gpu} did not take effect (nvmlReturn_t {status})")
        self._profiles.pop(gpu, None)
        self._meter.forget(gpu)
        return results[status]

    def gi_profiles(self, gpu: GpuUuid) -> list[GiProfileInfo]:
        """See :meth:`.Nvml.gi_profiles`."""
        if gpu not in self._profiles:
            handle = self._handle(gpu)
            with self._errors(f"memory of {gpu}"):
                card_mib = self._nvml.nvmlDeviceGetMemoryInfo(handle).total // _MIB
            rows = self._mig.profiles(gpu, handle, card_mib)
            if not rows:
                raise NotSupported(f"GPU instance profiles of {gpu}: none; MIG mode is off, or the card has no MIG")
            self._profiles[gpu] = rows
        return list(self._profiles[gpu])

    def instances(self, gpu: GpuUuid) -> list[GpuInstance]:
        """See :meth:`.Nvml.instances`."""
        handle = self._handle(gpu)
        if not self._cards.mig_mode(handle)[0]:
            return []
        uuids = self._mig.mig_uuids(gpu, handle)
        found = []
        for row in self.gi_profiles(gpu):
            for instance in self._mig.gpu_instances(gpu, handle, row):
                with self._errors(f"GPU instance of {gpu}"):
                    info = self._nvml.nvmlGpuInstanceGetInfo(instance)
                found.append(
                    GpuInstance(
                        gi_id=info.id,
                        profile=row.name,
                        start=info.placement.start,
                        size=info.placement.size,
                        compute_instances=tuple(self._mig.compute_instances(gpu, instance, info.id, uuids)),
                    )
                )
        return sorted(found, key=lambda one: one.start)

    def create_gpu_instance(self, gpu: GpuUuid, profile: str, start: int) -> int:
        """See :meth:`.Nvml.create_gpu_instance`."""
        row = self._profile_row(gpu, profile)
        placement = self._nvml.c_nvmlGpuInstancePlacement_t(start, row.size)
        with self._errors(f"GPU instance {profile} at {start} of {gpu}"):
            made = self._nvml.nvmlDeviceCreateGpuInstanceWithPlacement(self._handle(gpu), row.id, byref(placement))
            return int(self._nvml.nvmlGpuInstanceGetInfo(made).id)

    def create_compute_instance(self, gpu: GpuUuid, gi_id: int, profile_index: int) -> ComputeInstance:
        """See :meth:`.Nvml.create_compute_instance`."""
        handle = self._handle(gpu)
        instance = self._gpu_instance(gpu, handle, gi_id)
        with self._errors(f"compute instance profile {profile_index} in GPU instance {gi_id} of {gpu}"):
            profile = self._mig.ci_profile(instance, profile_index)
            made = self._nvml.nvmlGpuInstanceCreateComputeInstance(instance, profile.id)
            ci_id = int(self._nvml.nvmlComputeInstanceGetInfo(made).id)
        uuid = self._mig.mig_uuids(gpu, handle).get((gi_id, ci_id))
        if uuid is None:
            raise NvmlNotFound(
                f"MIG device of compute instance {ci_id} in GPU instance {gi_id} of {gpu}: made but not listed"
            )
        return ComputeInstance(ci_id=ci_id, profile_index=profile_index, mig_uuid=uuid)

    def destroy_compute_instance(self, gpu: GpuUuid, gi_id: int, ci_id: int) -> None:
        """See :meth:`.Nvml.destroy_compute_instance`."""
        instance = self._gpu_instance(gpu, self._handle(gpu), gi_id)
        with self._errors(f"compute instance {ci_id} of GPU instance {gi_id} of {gpu}"):
            compute = self._nvml.nvmlGpuInstanceGetComputeInstanceById(instance, ci_id)
            self._nvml.nvmlComputeInstanceDestroy(compute)

    def destroy_gpu_instance(self, gpu: GpuUuid, gi_id: int) -> None:
        """See :meth:`.Nvml.destroy_gpu_instance`."""
        instance = self._gpu_instance(gpu, self._handle(gpu), gi_id)
        with self._errors(f"GPU instance {gi_id} of {gpu}"):
            self._nvml.nvmlGpuInstanceDestroy(instance)
        self._meter.forget(gpu, gi_id)

    def processes(self, device: GpuUuid | MigUuid) -> list[GpuProcess]:
        """See :meth:`.Nvml.processes`. Clients of MPS are among them."""
        handle = self._handle(device)
        with self._errors(f"processes of {device}"):
            listed = compute_processes(self._nvml, handle)
        with suppress(NotSupported), self._errors(f"MPS clients of {device}"):
            listed += mps_clients(self._nvml, handle)
        found = [
            GpuProcess(
                pid=one.pid,
                memory_bytes=one.usedGpuMemory or 0,
                gi_id=instance_id(one.gpuInstanceId),
                ci_id=instance_id(one.computeInstanceId),
            )
            for one in listed
        ]
        return list({(one.pid, one.gi_id, one.ci_id): one for one in found}.values())

    def memory(self, device: GpuUuid | MigUuid) -> DeviceMemory:
        """See :meth:`.Nvml.memory`."""
        with self._errors(f"memory of {device}"):
            info = self._nvml.nvmlDeviceGetMemoryInfo(self._handle(device))
            return DeviceMemory(total=info.total, used=info.used)

    def measure(self, gpu: GpuUuid) -> Measurements:
        """See :meth:`.Nvml.measure`."""
        handle, mig_enabled = self._handle(gpu), False
        try:
            mig_enabled = bool(self._cards.mig_mode(handle)[0])
        except GpuLost:
            raise
        except NvmlError as error:  # the calls that the mode forbids are then refused one by one
            _log.debug("MIG mode of %s is not known while it is measured: %s", gpu, error)
        return self._meter.measure(gpu, handle, mig_enabled=mig_enabled)

    def measure_instance(self, gpu: GpuUuid, gi_id: int) -> Measurements:
        """See :meth:`.Nvml.measure_instance`."""
        return self._meter.measure_instance(gpu, gi_id, self._handle(gpu))

    def process_activity(self, gpu: GpuUuid) -> list[ProcessActivity]:
        """See :meth:`.Nvml.process_activity`."""
        return self._meter.process_activity(gpu, self._handle(gpu))

    def device_files(self, gpu: GpuUuid, gi_id: int, ci_id: int) -> list[DeviceFile]:
        """See :meth:`.Nvml.device_files`."""
        with self._errors(f"minor number of {gpu}"):
            minor = self._nvml.nvmlDeviceGetMinorNumber(self._handle(gpu))
        return mig_device_files(self._proc, minor, gi_id, ci_id)

    def card_files(self, gpu: GpuUuid) -> list[DeviceFile]:
        """See :meth:`.Nvml.card_files`."""
        with self._errors(f"minor number of {gpu}"):
            minor = self._nvml.nvmlDeviceGetMinorNumber(self._handle(gpu))
        return card_device_files(self._proc, minor)

    def attributes(self, gpu: GpuUuid) -> CardAttributes:
        """See :meth:`.Nvml.attributes`."""
        return self._cards.attributes(gpu, self._handle(gpu))

    def mig_attributes(self, device: MigUuid) -> MigAttributes:
        """See :meth:`.Nvml.mig_attributes`."""
        return self._cards.mig_attributes(device, self._handle(device))

    def nvlinks(self, gpu: GpuUuid) -> list[NvLink]:
        """See :meth:`.Nvml.nvlinks`."""
        return self._cards.nvlinks(gpu, self._handle(gpu))

    def common_ancestor(self, gpu: GpuUuid, other: GpuUuid) -> int:
        """See :meth:`.Nvml.common_ancestor`."""
        with self._errors(f"PCIe topology of {gpu} and {other}"):
            return int(self._nvml.nvmlDeviceGetTopologyCommonAncestor(self._handle(gpu), self._handle(other)))

    def compute_mode(self, gpu: GpuUuid) -> ComputeMode:
        """See :meth:`.Nvml.compute_mode`."""
        return self._cards.compute_mode(gpu, self._handle(gpu))

    def set_compute_mode(self, gpu: GpuUuid, mode: ComputeMode) -> None:
        """See :meth:`.Nvml.set_compute_mode`."""
        self._cards.set_compute_mode(gpu, self._handle(gpu), mode)

    def reset(self, gpu: GpuUuid) -> None:
        """See :meth:`.Nvml.reset`. NVML is closed meanwhile, since its session holds every card."""
        with self._errors(f"PCI address of {gpu}"):
            pci_bus_id = decode_text(self._nvml.nvmlDeviceGetPciInfo(self._handle(gpu)).busId)
        self._profiles.pop(gpu, None)
        self._meter.close()
        with self._session.suspend():
            reset_card(pci_bus_id, tool=self._reset_tool)

    def event_kinds(self, gpu: GpuUuid) -> list[GpuEventKind]:
        """See :meth:`.Nvml.event_kinds`."""
        return event_kinds(self._nvml, gpu, self._handle(gpu))

    def wait_event(self, seconds: float) -> GpuEvent | None:
        """See :meth:`.Nvml.wait_event`.

        Raises:
            NotSupported: no card reports events.
        """
        return self._session.wait(seconds)

    def latency(self, _operation: str) -> float:
        """0: real calls take their own time."""
        return 0.0

    def close(self) -> None:
        """See :meth:`.Nvml.close`."""
        try:
            self._meter.close()
            self._session.end()
        finally:
            self._release_library()

    def _release_library(self) -> None:
        if self._own_library:
            unload(self._nvml)

    def _handle(self, device: str) -> Any:
        self._session.begin()
        try:
            with self._errors(device):
                return self._nvml.nvmlDeviceGetHandleByUUID(device)
        except NvmlNotFound as error:
            if device in self._known_cards:
                raise GpuLost(f"{device} was there and is not found any more") from error
            raise

    def _profile_row(self, gpu: GpuUuid, profile: str) -> GiProfileInfo:
        rows = self.gi_profiles(gpu)
        for row in rows:
            if resource_spelling(row.name) == resource_spelling(profile):
                return row
        known = ", ".join(row.name for row in rows)
        raise InvalidArgument(f"GPU instance {profile} of {gpu}: the card has no such profile; it has {known}")

    def _gpu_instance(self, gpu: GpuUuid, handle: Any, gi_id: int) -> Any:
        with self._errors(f"GPU instance {gi_id} of {gpu}"):
            return self._nvml.nvmlDeviceGetGpuInstanceById(handle, gi_id)

    def _errors(self, call: str) -> AbstractContextManager[None]:
        return translate_errors(self._nvml.NVMLError, call)
