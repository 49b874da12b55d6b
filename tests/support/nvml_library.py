# ruff: noqa: N802 - exported functions carry NVML's names
"""NVIDIA's management library over a simulated machine, so that tests run the real binding without a driver."""

import ctypes
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from tessera.nvml.errors import InvalidArgument, NotSupported, NvmlError, NvmlNotFound
from tessera.nvml.interface import ComputeMode, GpuUuid
from tessera.nvml.simulated.simulated_machine import SimulatedMachine

NONE = 0xFFFFFFFF

#: Functions that the library of each driver branch lacks, of those that Tessera calls (nvml.h of these branches).
_SINCE_510 = {
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetGpuInstanceProfileInfoV",
    "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
}
_SINCE_525 = {
    "nvmlGpmQueryDeviceSupport",
    "nvmlGpmSampleAlloc",
    "nvmlGpmSampleFree",
    "nvmlGpmSampleGet",
    "nvmlGpmMigSampleGet",
    "nvmlGpmMetricsGet",
    "nvmlDeviceGetGpuFabricInfo",
}
_SINCE_535 = {"nvmlDeviceGetCurrentClocksEventReasons"}
_SINCE_550 = {"nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetNumaNodeId", "nvmlDeviceGetSramEccErrorStatus"}
_SINCE_570 = {"nvmlDeviceGetMarginTemperature"}
_SINCE_580 = {"nvmlDeviceGetAddressingMode"}
BRANCHES: Mapping[str, frozenset[str]] = {
    "470.256.02": frozenset(_SINCE_510 | _SINCE_525 | _SINCE_535 | _SINCE_550 | _SINCE_570 | _SINCE_580),
    "510.108.03": frozenset(_SINCE_525 | _SINCE_535 | _SINCE_550 | _SINCE_570 | _SINCE_580),
    "515.105.01": frozenset(_SINCE_525 | _SINCE_535 | _SINCE_550 | _SINCE_570 | _SINCE_580),
    "525.147.05": frozenset(_SINCE_535 | _SINCE_550 | _SINCE_570 | _SINCE_580),
    "535.54.03": frozenset(_SINCE_550 | _SINCE_570 | _SINCE_580),
    # This release has withdrawn the third version of the lists, which came back later with the layout of the second.
    "535.98": frozenset(
        {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3"}
        | _SINCE_550
        | _SINCE_570
        | _SINCE_580
    ),
    "535.183.01": frozenset(_SINCE_550 | _SINCE_570 | _SINCE_580),
    "550.90.07": frozenset(_SINCE_570 | _SINCE_580),
    "570.86.15": frozenset(_SINCE_580),
    "580.65.06": frozenset(),
}


class _LongProcess(ctypes.Structure):
    """``nvmlProcessInfo_t`` of the drivers 535.43.02 to 535.86.05, whose functions of version 3 fill this."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("usedGpuMemory", ctypes.c_ulonglong),
        ("gpuInstanceId", ctypes.c_uint),
        ("computeInstanceId", ctypes.c_uint),
        ("usedGpuCcProtectedMemory", ctypes.c_ulonglong),
    )


class NvmlLibrary:
    """The functions of ``libnvidia-ml.so.1`` that Tessera calls, over a simulated machine.

    The binding calls these functions as it calls C: handles are opaque pointers, answers are written through
    references, and the result is NVML's error number. So the binding's own code, structs and constants are tested.

    Functions named in ``without`` are missing, as in the library of an old driver; ``instead`` replaces functions;
    ``broken`` has, by function and card, the error that the function returns for that card and its parts.
    """

    def __init__(self, machine: SimulatedMachine) -> None:
        self.machine = machine
        self.opened = 0
        self.without: set[str] = set()
        self.instead: dict[str, Callable[..., None]] = {}
        self.broken: dict[tuple[str, GpuUuid], int] = {}
        self._handles: list[tuple[Any, ...]] = [()]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = self.instead.get(name) or getattr(type(self), f"c_{name}", None)
        if function is None or name in self.without:
            raise AttributeError(name)

        def call(*args: Any) -> int:
            if code := self.broken and self.code_of(name, args):
                return code
            try:
                function(self, *args)
            except NvmlError as error:
                return error.code
            return 0

        def text(_code: Any) -> bytes:
            return b"as the driver words it"

        return text if name == "nvmlErrorString" else call

    def code_of(self, name: str, args: tuple[Any, ...]) -> int:
        """The code of a broken function; 0 for a call on another card.

        The search by UUID goes over all cards, and stops at one that is lost, or lacks power or interrupts (nvml.h).
        """
        gpus = self.machine.uuids()
        if name == "nvmlDeviceGetHandleByIndex_v2":
            return self.broken.get((name, gpus[args[0].value]), 0) if args[0].value < len(gpus) else 0
        if name == "nvmlDeviceGetHandleByUUID":
            wanted = args[0].value.decode()
            searched = [
                each for each in gpus if self.broken.get(("nvmlDeviceGetHandleByIndex_v2", each)) in (8, 11, 15)
            ]
            if searched:
                return self.broken["nvmlDeviceGetHandleByIndex_v2", searched[0]]
            with suppress(NvmlNotFound):
                card = self.machine._access.read().find_device(wanted).card.uuid
                return self.broken.get((name, card), 0)
            return 0
        return next((code for (each, gpu), code in self.broken.items() if each == name and self.concerns(gpu, args)), 0)

    def concerns(self, gpu: GpuUuid, args: tuple[Any, ...]) -> bool:
        """True if the first argument is a handle of the card or of a part of it."""
        try:
            kind, uuid, *_ = self.at(args[0])
        except (TypeError, ValueError, IndexError, ctypes.ArgumentError):
            return False
        if kind == "mig":
            with suppress(NvmlNotFound):
                return self.machine._access.read().find_device(uuid).card.uuid == gpu
        return bool(uuid == gpu)

    def put(self, reference: Any, *what: Any) -> None:
        """Writes a handle."""
        ctypes.c_void_p.from_buffer(reference._obj).value = 0x1000 * self.number(what)

    def number(self, what: tuple[Any, ...]) -> int:
        if what not in self._handles:
            self._handles.append(what)
        return self._handles.index(what)

    def at(self, handle: Any) -> tuple[Any, ...]:
        """Returns the object of a handle."""
        return self._handles[(ctypes.cast(handle, ctypes.c_void_p).value or 0) // 0x1000]

    def gpu(self, handle: Any) -> GpuUuid:
        return GpuUuid(self.at(handle)[1])

    def info(self, handle: Any) -> Any:
        info = next(gpu for gpu in self.machine.devices() if gpu.uuid == self.gpu(handle))
        self.machine.instances(info.uuid)
        return info

    def profile(self, gpu: GpuUuid, key: str, number: Any) -> Any:
        for row in self.machine.gi_profiles(gpu):
            if getattr(row, key) == number:
                return row
        raise InvalidArgument("profile")

    def c_nvmlErrorString(self) -> None: ...

    def c_nvmlInitWithFlags(self, flags: int) -> None:
        self.machine.driver_version()
        self.opened += 1

    def c_nvmlShutdown(self) -> None:
        self.opened -= 1

    def c_nvmlSystemGetDriverVersion(self, buffer: Any, _size: Any) -> None:
        buffer.value = self.machine.driver_version().encode()

    def c_nvmlSystemGetCudaDriverVersion_v2(self, version: Any) -> None:
        version._obj.value = self.machine.cuda_version()

    def c_nvmlDeviceGetCount_v2(self, count: Any) -> None:
        self.machine.devices()
        count._obj.value = len(self.machine.uuids())

    def c_nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> None:
        gpu = self.machine.uuids()[index.value]
        self.machine.instances(gpu)
        self.put(device, "gpu", gpu)

    def c_nvmlDeviceGetHandleByUUID(self, uuid: Any, device: Any) -> None:
        name = uuid.value.decode()
        self.machine.memory(name)
        self.put(device, "gpu" if name.startswith("GPU") else "mig", name)

    def c_nvmlDeviceGetUUID(self, device: Any, buffer: Any, _size: Any) -> None:
        buffer.value = self.at(device)[1].encode()

    def c_nvmlDeviceGetName(self, device: Any, buffer: Any, _size: Any) -> None:
        buffer.value = self.info(device).name.encode()

    def c_nvmlDeviceGetMinorNumber(self, device: Any, minor: Any) -> None:
        minor._obj.value = self.info(device).minor

    def c_nvmlDeviceGetPciInfo_v3(self, device: Any, info: Any) -> None:
        info._obj.busId = self.info(device).pci_bus_id
        info._obj.pciDeviceId = int(self.info(device).pci_device_id, 16)
        with suppress(NotSupported):
            info._obj.pciSubSystemId = self.machine.attributes(self.gpu(device)).pci_subsystem_id

    def c_nvmlDeviceGetCudaComputeCapability(self, device: Any, major: Any, minor: Any) -> None:
        major._obj.value, minor._obj.value = self.info(device).compute_capability

    def c_nvmlDeviceGetMemoryInfo(self, device: Any, info: Any) -> None:
        memory = self.machine.memory(self.at(device)[1])
        info._obj.total, info._obj.used = memory.total, memory.used

    def c_nvmlDeviceGetMemoryInfo_v2(self, device: Any, info: Any) -> None:
        self.c_nvmlDeviceGetMemoryInfo(device, info)
        info._obj.free, info._obj.reserved = info._obj.total - info._obj.used, 0

    def c_nvmlDeviceGetMigMode(self, device: Any, current: Any, pending: Any) -> None:
        info = self.info(device)
        current._obj.value, pending._obj.value = info.mig_enabled, info.mig_pending

    def c_nvmlDeviceGetBrand(self, device: Any, brand: Any) -> None:
        brand._obj.value = {"": 0, "Tesla": 2, "Nvidia": 14}[self.machine.attributes(self.gpu(device)).brand]

    def c_nvmlDeviceGetAddressingMode(self, device: Any, mode: Any) -> None:
        told = self.machine.attributes(self.gpu(device)).addressing_mode
        if not told:
            raise NotSupported("addressing mode")
        mode._obj.value = ["None", "HMM", "ATS"].index(told)

    def c_nvmlDeviceGetEccMode(self, device: Any, current: Any, pending: Any) -> None:
        current._obj.value, pending._obj.value = self.machine.attributes(self.gpu(device)).ecc, 0

    def c_nvmlDeviceGetGpuFabricInfoV(self, device: Any, info: Any) -> None:
        fabric = self.machine.attributes(self.gpu(device)).fabric
        info._obj.state = 0 if fabric is None else 3
        if fabric is not None:
            info._obj.clusterUuid = type(info._obj.clusterUuid).from_buffer_copy(uuid.UUID(fabric[0]).bytes)
            info._obj.cliqueId = int(fabric[1])

    def c_nvmlDeviceGetGpuFabricInfo(self, device: Any, info: Any) -> None:
        self.c_nvmlDeviceGetGpuFabricInfoV(device, info)

    def c_nvmlDeviceGetFieldValues(self, device: Any, count: Any, values: Any) -> None:
        assert count.value == 1
        (field,) = values._obj
        action = self.machine.attributes(self.gpu(device)).recovery_action
        assert field.fieldId == 230
        field.nvmlReturn, field.value.uiVal = (3, 0) if action is None else (0, action)

    def c_nvmlDeviceGetMaxPcieLinkGeneration(self, device: Any, generation: Any) -> None:
        generation._obj.value = 4 if self.machine.attributes(self.gpu(device)).pcie_bandwidth else 0

    def c_nvmlDeviceGetCurrPcieLinkWidth(self, _device: Any, width: Any) -> None:
        width._obj.value = 16

    def c_nvmlDeviceGetAttributes_v2(self, device: Any, found: Any) -> None:
        told, struct = self.machine.mig_attributes(self.at(device)[1]), found._obj
        struct.memorySizeMB, struct.multiprocessorCount = told.memory_mib, told.multiprocessors
        struct.gpuInstanceSliceCount, struct.computeInstanceSliceCount = told.gi_slices, told.ci_slices
        struct.sharedCopyEngineCount, struct.sharedOfaCount = told.copy_engines, told.ofa_engines
        struct.sharedDecoderCount, struct.sharedEncoderCount = told.decoders, told.encoders
        struct.sharedJpegCount = told.jpeg_engines

    def c_nvmlDeviceGetNvLinkState(self, device: Any, number: int, active: Any) -> None:
        if number >= 18:
            raise InvalidArgument("link")
        active._obj.value = self.link(device, number) is not None

    def c_nvmlDeviceGetNvLinkRemoteDeviceType(self, device: Any, number: int, kind: Any) -> None:
        kind._obj.value = 2 if self.link(device, number).switch else 0

    def c_nvmlDeviceGetNvLinkRemotePciInfo_v2(self, device: Any, number: int, info: Any) -> None:
        if not self.link(device, number).remote_pci:
            raise NotSupported("a switch that is not of this machine")
        info._obj.busId = self.link(device, number).remote_pci

    def link(self, device: Any, number: int) -> Any:
        """Every second link of a card is down until all that are up have a number."""
        links = self.machine.nvlinks(self.gpu(device))
        numbers = [n for n in range(18) if len(links) > 6 or n % 2]
        return dict(zip(numbers, links, strict=False)).get(number)

    def c_nvmlDeviceGetTopologyCommonAncestor(self, one: Any, other: Any, level: Any) -> None:
        level._obj.value = self.machine.common_ancestor(self.gpu(one), self.gpu(other))

    def c_nvmlDeviceGetNumaNodeId(self, device: Any, node: Any) -> None:
        if self.machine.place(self.gpu(device)).memory_node is None:
            raise NotSupported("the card's memory is no NUMA node")

    def c_nvmlDeviceGetComputeMode(self, device: Any, mode: Any) -> None:
        if self.info(device).mig_enabled:
            raise InvalidArgument("the handle of a card in MIG mode")
        mode._obj.value = self.machine.compute_mode(self.gpu(device)).value

    def c_nvmlDeviceSetComputeMode(self, device: Any, mode: Any) -> None:
        if self.info(device).mig_enabled:
            raise InvalidArgument("the handle of a card in MIG mode")
        self.machine.set_compute_mode(self.gpu(device), ComputeMode(mode.value))

    def c_nvmlDeviceSetMigMode(self, device: Any, mode: int, status: Any) -> None:
        result = self.machine.set_mig_mode(self.gpu(device), bool(mode))
        status._obj.value = {"applied": 0, "reset-required": 16, "in-use": 19}[result.value]

    def c_nvmlDeviceGetGpuInstanceProfileInfoV(self, device: Any, index: int, info: Any) -> None:
        row = self.profile(self.gpu(device), "index", index)
        struct = info._obj
        struct.id, struct.sliceCount, struct.instanceCount = row.id, row.compute_slices, row.max_count
        struct.memorySizeMB, struct.name = row.memory_mib, f"MIG {row.name}"
        struct.multiprocessorCount, struct.copyEngineCount = row.multiprocessors, row.copy_engines
        struct.decoderCount, struct.encoderCount = row.decoders, row.encoders
        struct.jpegCount, struct.ofaCount = row.jpeg_engines, row.ofa_engines

    def c_nvmlDeviceGetGpuInstancePossiblePlacements_v2(self, device: Any, id_: int, found: Any, count: Any) -> None:
        row = self.profile(self.gpu(device), "id", id_)
        count._obj.value = len(row.starts)
        for number, start in enumerate(row.starts if found else ()):
            found[number].start, found[number].size = start, row.size

    def c_nvmlDeviceCreateGpuInstanceWithPlacement(self, device: Any, id_: int, place: Any, made: Any) -> None:
        gpu = self.gpu(device)
        row = self.profile(gpu, "id", id_)
        assert place._obj.size == row.size
        self.put(made, "gi", gpu, self.machine.create_gpu_instance(gpu, row.name, place._obj.start))

    def c_nvmlDeviceGetGpuInstances(self, device: Any, id_: int, found: Any, count: Any) -> None:
        gpu = self.gpu(device)
        row = self.profile(gpu, "id", id_)
        held = [one.gi_id for one in self.machine.instances(gpu) if one.profile == row.name]
        self.fill(found, count, [("gi", gpu, gi_id) for gi_id in held])

    def fill(self, found: Any, count: Any, what: list[tuple[Any, ...]]) -> None:
        assert count._obj.value >= len(what)
        count._obj.value = len(what)
        for number, one in enumerate(what):
            found[number] = ctypes.cast(ctypes.c_void_p(0x1000 * self.number(one)), found._type_)

    def instance(self, gpu: GpuUuid, gi_id: int) -> Any:
        for one in self.machine.instances(gpu):
            if one.gi_id == gi_id:
                return one
        raise NvmlNotFound("GPU instance")

    def c_nvmlDeviceGetGpuInstanceById(self, device: Any, gi_id: int, found: Any) -> None:
        self.put(found, "gi", self.gpu(device), self.instance(self.gpu(device), gi_id).gi_id)

    def c_nvmlGpuInstanceGetInfo(self, instance: Any, info: Any) -> None:
        _, gpu, gi_id = self.at(instance)
        held = self.instance(gpu, gi_id)
        info._obj.id, info._obj.placement.start, info._obj.placement.size = gi_id, held.start, held.size

    def c_nvmlGpuInstanceDestroy(self, instance: Any) -> None:
        self.machine.destroy_gpu_instance(*self.at(instance)[1:])

    def c_nvmlGpuInstanceGetComputeInstanceProfileInfo(self, gi: Any, index: int, engine: int, info: Any) -> None:
        assert engine == 0
        self.instance(*self.at(gi)[1:])
        slices = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7}.get(index)
        if slices is None:
            raise InvalidArgument("profile")
        info._obj.id, info._obj.sliceCount, info._obj.instanceCount = 40 + index, slices, 7 // slices

    def c_nvmlGpuInstanceCreateComputeInstance(self, gi: Any, id_: int, made: Any) -> None:
        _, gpu, gi_id = self.at(gi)
        self.put(made, "ci", gpu, gi_id, self.machine.create_compute_instance(gpu, gi_id, id_ - 40).ci_id)

    def c_nvmlGpuInstanceGetComputeInstances(self, gi: Any, id_: int, found: Any, count: Any) -> None:
        _, gpu, gi_id = self.at(gi)
        held = [one for one in self.instance(gpu, gi_id).compute_instances if one.profile_index == id_ - 40]
        self.fill(found, count, [("ci", gpu, gi_id, one.ci_id) for one in held])

    def c_nvmlGpuInstanceGetComputeInstanceById(self, gi: Any, ci_id: int, found: Any) -> None:
        _, gpu, gi_id = self.at(gi)
        if all(one.ci_id != ci_id for one in self.instance(gpu, gi_id).compute_instances):
            raise NvmlNotFound("compute instance")
        self.put(found, "ci", gpu, gi_id, ci_id)

    def c_nvmlComputeInstanceGetInfo_v2(self, compute: Any, info: Any) -> None:
        info._obj.id = self.at(compute)[3]

    def c_nvmlComputeInstanceDestroy(self, compute: Any) -> None:
        self.machine.destroy_compute_instance(*self.at(compute)[1:])

    def c_nvmlDeviceGetMaxMigDeviceCount(self, device: Any, count: Any) -> None:
        count._obj.value = 7

    def c_nvmlDeviceGetMigDeviceHandleByIndex(self, device: Any, index: Any, found: Any) -> None:
        # A real card leaves holes: the last device stands at the last index.
        devices = [
            (one.gi_id, compute.ci_id, compute.mig_uuid)
            for one in self.machine.instances(self.gpu(device))
            for compute in one.compute_instances
        ]
        holes: list[Any] = [None] * (7 - len(devices))
        slots = [*holes, *devices]
        if slots[index.value] is None:
            raise NvmlNotFound("MIG device")
        gi_id, ci_id, uuid = slots[index.value]
        self.put(found, "mig", uuid, gi_id, ci_id)

    def c_nvmlDeviceGetGpuInstanceId(self, device: Any, number: Any) -> None:
        number._obj.value = self.at(device)[2]

    def c_nvmlDeviceGetComputeInstanceId(self, device: Any, number: Any) -> None:
        number._obj.value = self.at(device)[3]

    def c_nvmlDeviceGetComputeRunningProcesses_v3(self, device: Any, count: Any, found: Any) -> None:
        early = self.machine.driver_version().startswith(("535.54", "535.86"))
        self.list_processes(device, count, found, _LongProcess if early else None)

    def c_nvmlDeviceGetComputeRunningProcesses_v2(self, device: Any, count: Any, found: Any) -> None:
        self.list_processes(device, count, found)

    def list_processes(self, device: Any, count: Any, found: Any, layout: type[Any] | None = None) -> None:
        """Writes the processes of a device, as structs of the caller or of another ``layout``."""
        held = self.machine.processes(self.at(device)[1])
        room, count._obj.value = count._obj.value, len(held)
        if len(held) > room:
            raise NvmlError("size", code=7)
        if layout is not None and found:
            found = (layout * len(held)).from_address(ctypes.addressof(found))
        for number, one in enumerate(held):
            found[number].pid, found[number].usedGpuMemory = one.pid, one.memory_bytes
            found[number].gpuInstanceId = NONE if one.gi_id is None else one.gi_id
            found[number].computeInstanceId = NONE if one.ci_id is None else one.ci_id

    def c_nvmlEventSetCreate(self, events: Any) -> None:
        self.put(events, "events")

    def c_nvmlEventSetFree(self, events: Any) -> None:
        assert self.at(events) == ("events",)

    def c_nvmlDeviceGetSupportedEventTypes(self, device: Any, mask: Any) -> None:
        mask._obj.value = 0x1 | 0x2 | 0x4 | 0x8

    def c_nvmlDeviceRegisterEvents(self, device: Any, mask: Any, events: Any) -> None:
        assert mask.value == 0x1 | 0x2 | 0x8

    def c_nvmlEventSetWait_v2(self, events: Any, data: Any, _milliseconds: Any) -> None:
        event = self.machine.wait_event(0)
        if event is None:
            raise NvmlError("timeout", code=10)
        struct = data._obj
        ctypes.c_void_p.from_buffer(struct).value = 0x1000 * self.number(("gpu", event.gpu))
        struct.eventType = {"xid": 8, "double-bit-ecc": 2, "single-bit-ecc": 1}[event.kind.value]
        struct.eventData = event.xid or 0
        struct.gpuInstanceId = NONE if event.gi_id is None else event.gi_id
        struct.computeInstanceId = NONE if event.ci_id is None else event.ci_id
