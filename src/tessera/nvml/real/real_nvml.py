"""Real cards, through NVIDIA's own Python binding (``nvidia-ml-py``).

Thin on purpose: every method is the NVML calls that it needs and their translation. The binding loads
``libnvidia-ml.so.1`` when NVML is opened, not when this module is imported, so that machines without a driver can
import it.

NVML leaves these tasks to its caller:

* a profile's table is fixed for a card, so it is read once;
* a card that does not answer is listed by the name that it had (:mod:`tessera.nvml.known_cards`);
* a reset of a card needs another tool and ends the session meanwhile (:mod:`tessera.nvml.real.library`);
* compute-instance profiles are found by their own index, which follows from the slice count and not from the GPU
  instance's profile.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from ctypes import byref
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from tessera.mig.names import resource_spelling
from tessera.nvml.errors import (
    DRIVER_CODES,
    GpuLost,
    InvalidArgument,
    NotSupported,
    NvmlError,
    NvmlNotFound,
    make_error,
    translate_errors,
)
from tessera.nvml.interface import (
    CardAttributes,
    ComputeInstance,
    ComputeMode,
    DeviceFile,
    DeviceMemory,
    GiProfileInfo,
    GpuEvent,
    GpuEventKind,
    GpuInfo,
    GpuInstance,
    GpuProcess,
    GpuUuid,
    MigAttributes,
    MigModeResult,
    MigUuid,
    NvLink,
    PciPlace,
)
from tessera.nvml.known_cards import UNREAD, KnownCards
from tessera.nvml.measurements import Measurements, ProcessActivity
from tessera.nvml.real.cards import RealCardReader
from tessera.nvml.real.device_nodes import card_device_files, mig_device_files
from tessera.nvml.real.library import (
    NvmlSession,
    compute_processes,
    load,
    memory_sizes,
    mps_clients,
    reset_card,
    unload,
)
from tessera.nvml.real.meter import CardMeter
from tessera.nvml.real.mig import MigReader, decode_text, event_kinds, instance_id

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
        self._known = KnownCards()
        #: The profile tables that were read; a change of MIG mode and a reset remove a card's table.
        self._profiles: dict[GpuUuid, list[GiProfileInfo]] = {}
        self._reset_tool = tuple(reset_tool)
        self._session = NvmlSession(self._nvml, self._known.name_of)
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
        """See :meth:`.Nvml.devices`."""
        self._session.begin()
        with self._errors("device count"):
            count = self._nvml.nvmlDeviceGetCount()
        read: list[GpuInfo] = []
        failed: dict[int, NvmlError] = {}
        for index in range(count):
            try:
                read.append(self._cards.info(index))
            except NvmlError as error:
                if error.code in DRIVER_CODES:
                    self.driver_version()  # raises if it is the driver that does not answer
                failed[index] = error
        cards = self._known.merge(read, failed, self._cards.bus())
        self._session.watch_cards(frozenset(info.uuid for info in cards if info.readable))
        return cards

    def set_known_cards(self, cards: Iterable[GpuInfo]) -> None:
        """See :meth:`.Nvml.set_known_cards`."""
        self._known.set(cards)

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
        found = []
        for one in listed:
            gi_id, ci_id = self._instance_ids(device, one.gpuInstanceId, one.computeInstanceId)
            found.append(GpuProcess(pid=one.pid, memory_bytes=one.usedGpuMemory, gi_id=gi_id, ci_id=ci_id))
        return list({(one.pid, one.gi_id, one.ci_id): one for one in found}.values())

    def memory(self, device: GpuUuid | MigUuid) -> DeviceMemory:
        """See :meth:`.Nvml.memory`."""
        with self._errors(f"memory of {device}"):
            sizes = memory_sizes(self._nvml, self._handle(device))
            return DeviceMemory(total=sizes.total, used=sizes.used, reserved=sizes.reserved)

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

    def place(self, gpu: GpuUuid) -> PciPlace:
        """See :meth:`.Nvml.place`."""
        return self._cards.place(gpu, self._handle(gpu))

    def network_cards(self) -> Mapping[str, PciPlace]:
        """See :meth:`.Nvml.network_cards`."""
        return self._cards.network_cards()

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
        event = self._session.wait(seconds)
        if event is None:
            return None
        gi_id, ci_id = self._instance_ids(event.gpu, event.gi_id, event.ci_id)
        return msgspec.structs.replace(event, gi_id=gi_id, ci_id=ci_id)

    def unheard_cards(self) -> Mapping[GpuUuid, str]:
        """See :meth:`.Nvml.unheard_cards`."""
        return self._session.unheard_cards()

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
        if device.startswith(UNREAD):
            with self._errors(device):
                self._nvml.nvmlDeviceGetHandleByIndex(int(device.removeprefix(UNREAD)))
            raise NvmlNotFound(f"{device}: the card answers now; list the cards again")
        try:
            with self._errors(device):
                return self._nvml.nvmlDeviceGetHandleByUUID(device)
        except NvmlError as error:
            if (handle := self._find_handle(device)) is not None:
                return handle
            if isinstance(error, NvmlNotFound) and self._known.get(device) is not None:
                raise GpuLost(f"{device} was there and is not found any more") from error
            raise

    def _find_handle(self, device: str) -> Any:
        """A handle without NVML's search by UUID; ``None`` if there is none.

        The search goes over all cards, and fails if any of them is lost (nvml.h, ``nvmlDeviceGetHandleByUUID``).
        """
        for info in self._known.all():
            if info.uuid == device or (info.mig_enabled and device.startswith("MIG-")):
                with suppress(NvmlError), self._errors(device):
                    card = self._nvml.nvmlDeviceGetHandleByIndex(info.index)
                    if decode_text(self._nvml.nvmlDeviceGetUUID(card)) == device:
                        return card
                    if info.mig_enabled and (found := self._mig.find_device(card, device)) is not None:
                        return found
        return None

    def _instance_ids(self, device: str | None, gi_id: int | None, ci_id: int | None) -> tuple[int | None, int | None]:
        """The instance of an event or process; on a card without MIG there is none, whatever number NVML gives."""
        known = self._known.get(device) if device is not None else None
        if known is not None and not known.mig_enabled:
            return None, None
        return instance_id(gi_id), instance_id(ci_id)

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
