# ruff: noqa: N802 - exported functions carry NVML's names
"""The measuring functions of NVIDIA's library over a simulated machine; see :mod:`tests.support.nvml_library`."""

import ctypes
from typing import Any

from tests.support.nvml_library import NONE, NvmlLibrary

from tessera.nvml.errors import NotSupported, NvmlError
from tessera.nvml.interface import GpuUuid
from tessera.nvml.measurements import Measurements, Quantity
from tessera.nvml.simulated import load
from tessera.nvml.simulated.mig_rules import find_gpu_instance
from tessera.nvml.simulated.simulated_machine import SimulatedMachine

#: Field ids, the members that hold their values, and units to the base unit (nvml.h).
FIELDS = {
    82: (Quantity.MEMORY_TEMPERATURE, 1.0),
    138: (Quantity.NVLINK_TRANSMITTED, 1024.0),
    139: (Quantity.NVLINK_RECEIVED, 1024.0),
    38: (Quantity.NVLINK_CRC_FLIT_ERRORS, 1.0),
    45: (Quantity.NVLINK_CRC_DATA_ERRORS, 1.0),
    52: (Quantity.NVLINK_REPLAYS, 1.0),
    59: (Quantity.NVLINK_RECOVERIES, 1.0),
    74: (Quantity.THROTTLED_POWER, 1e-9),
    75: (Quantity.THROTTLED_THERMAL, 1e-9),
    76: (Quantity.THROTTLED_SYNC_BOOST, 1e-9),
    77: (Quantity.THROTTLED_BOARD_LIMIT, 1e-9),
    78: (Quantity.THROTTLED_LOW_UTILIZATION, 1e-9),
    79: (Quantity.THROTTLED_RELIABILITY, 1e-9),
}
#: GPM's metric ids, and units to the base unit (nvml.h).
GPM = {
    1: (Quantity.ENGINE_ACTIVE, 0.01),
    2: (Quantity.SM_ACTIVE, 0.01),
    3: (Quantity.SM_OCCUPANCY, 0.01),
    5: (Quantity.TENSOR_ACTIVE, 0.01),
    10: (Quantity.DRAM_ACTIVE, 0.01),
    11: (Quantity.FP64_ACTIVE, 0.01),
    12: (Quantity.FP32_ACTIVE, 0.01),
    13: (Quantity.FP16_ACTIVE, 0.01),
    20: (Quantity.PCIE_TRANSMITTED, 1024.0 * 1024.0),
    21: (Quantity.PCIE_RECEIVED, 1024.0 * 1024.0),
}
ULONGLONG = 3
#: ``nvmlEccSramErrorStatus_v1`` (nvml.h): the size of the struct, and version 1.
SRAM_STATUS_V1 = 104 | 1 << 24
#: Field id of the recovery action (nvml.h), which the base class answers.
RECOVERY_ACTION = 230


class MeteringLibrary(NvmlLibrary):
    """NVIDIA's library with its measuring functions.

    Attributes:
        samples: GPM samples that are allocated and not freed yet, and what each is of.
    """

    def __init__(self, machine: SimulatedMachine) -> None:
        super().__init__(machine)
        self.samples: dict[int, tuple[GpuUuid, int | None] | None] = {}
        self._allocated = 0

    def measured(self, device: Any, quantity: Quantity) -> float:
        """The machine's value; refuses as the driver does where there is none."""
        with self.machine._access.card("measure", self.gpu(device)) as card:
            return value_of(load.measure_card(card, {}, first=False), quantity)

    def c_nvmlDeviceGetUtilizationRates(self, device: Any, rates: Any) -> None:
        rates._obj.gpu = round(100 * self.measured(device, Quantity.GPU_UTILIZATION))
        rates._obj.memory = round(100 * self.measured(device, Quantity.MEMORY_UTILIZATION))

    def c_nvmlDeviceGetEncoderUtilization(self, device: Any, percent: Any, _period: Any) -> None:
        percent._obj.value = round(100 * self.measured(device, Quantity.ENCODER_UTILIZATION))

    def c_nvmlDeviceGetDecoderUtilization(self, device: Any, percent: Any, _period: Any) -> None:
        percent._obj.value = round(100 * self.measured(device, Quantity.DECODER_UTILIZATION))

    def c_nvmlDeviceGetClockInfo(self, device: Any, kind: Any, mhz: Any) -> None:
        clock = {1: Quantity.SM_CLOCK, 2: Quantity.MEMORY_CLOCK}[kind.value]
        mhz._obj.value = round(self.measured(device, clock) / 1e6)

    def c_nvmlDeviceGetTemperature(self, device: Any, sensor: Any, celsius: Any) -> None:
        assert sensor.value == 0
        celsius._obj.value = round(self.measured(device, Quantity.TEMPERATURE))

    def c_nvmlDeviceGetTemperatureThreshold(self, device: Any, threshold: Any, celsius: Any) -> None:
        limits = {
            0: Quantity.SHUTDOWN_TEMPERATURE,
            1: Quantity.SLOWDOWN_TEMPERATURE,
            2: Quantity.MEMORY_TEMPERATURE_LIMIT,
        }
        celsius._obj.value = round(self.measured(device, limits[threshold.value]))

    def c_nvmlDeviceGetMarginTemperature(self, device: Any, margin: Any) -> None:
        margin._obj.marginTemperature = round(self.measured(device, Quantity.TEMPERATURE_MARGIN))

    def c_nvmlDeviceGetPowerUsage(self, device: Any, milliwatts: Any) -> None:
        milliwatts._obj.value = round(1000 * self.measured(device, Quantity.POWER))

    def c_nvmlDeviceGetEnforcedPowerLimit(self, device: Any, milliwatts: Any) -> None:
        milliwatts._obj.value = round(1000 * self.measured(device, Quantity.POWER_LIMIT))

    def c_nvmlDeviceGetTotalEnergyConsumption(self, device: Any, millijoules: Any) -> None:
        millijoules._obj.value = round(1000 * self.measured(device, Quantity.ENERGY))

    def c_nvmlDeviceGetMemoryInfo_v2(self, device: Any, info: Any) -> None:
        if self.at(device)[0] == "mig":
            super().c_nvmlDeviceGetMemoryInfo_v2(device, info)
            return
        struct = info._obj
        struct.total = round(self.measured(device, Quantity.MEMORY_TOTAL))
        struct.used = round(self.measured(device, Quantity.MEMORY_USED))
        struct.free = round(self.measured(device, Quantity.MEMORY_FREE))
        struct.reserved = round(self.measured(device, Quantity.MEMORY_RESERVED))

    def c_nvmlDeviceGetPcieReplayCounter(self, device: Any, count: Any) -> None:
        count._obj.value = round(self.measured(device, Quantity.PCIE_REPLAYS))

    def c_nvmlDeviceGetTotalEccErrors(self, device: Any, kind: Any, counter: Any, count: Any) -> None:
        assert counter.value == 0
        errors = {0: Quantity.ECC_CORRECTED, 1: Quantity.ECC_UNCORRECTED}[kind.value]
        count._obj.value = round(self.measured(device, errors))

    def c_nvmlDeviceGetRemappedRows(self, device: Any, *found: Any) -> None:
        quantities = (
            Quantity.ROWS_REMAPPED_CORRECTABLE,
            Quantity.ROWS_REMAPPED_UNCORRECTABLE,
            Quantity.ROW_REMAP_PENDING,
            Quantity.ROW_REMAP_FAILED,
        )
        for place, quantity in zip(found, quantities, strict=True):
            place._obj.value = round(self.measured(device, quantity))

    def c_nvmlDeviceGetSramEccErrorStatus(self, device: Any, status: Any) -> None:
        assert status._obj.version == SRAM_STATUS_V1
        status._obj.bThresholdExceeded = round(self.measured(device, Quantity.SRAM_THRESHOLD_EXCEEDED))

    def c_nvmlDeviceGetGpuFabricInfoV(self, device: Any, info: Any) -> None:
        super().c_nvmlDeviceGetGpuFabricInfoV(device, info)
        if info._obj.state and hasattr(info._obj, "healthMask"):
            info._obj.healthMask = round(self.measured(device, Quantity.FABRIC_HEALTH))

    def c_nvmlDeviceGetCurrentClocksEventReasons(self, device: Any, reasons: Any) -> None:
        reasons._obj.value = round(self.measured(device, Quantity.THROTTLE_REASONS))

    def c_nvmlDeviceGetCurrentClocksThrottleReasons(self, device: Any, reasons: Any) -> None:
        self.c_nvmlDeviceGetCurrentClocksEventReasons(device, reasons)

    def c_nvmlDeviceGetFieldValues(self, device: Any, count: Any, values: Any) -> None:
        if values._obj[0].fieldId == RECOVERY_ACTION:
            super().c_nvmlDeviceGetFieldValues(device, count, values)
            return
        for field in values._obj:
            assert count.value == len(values._obj)
            quantity, unit = FIELDS[field.fieldId]
            assert field.scopeId == (NONE if field.fieldId in (138, 139) else 0)
            try:
                field.value.ullVal, field.valueType = round(self.measured(device, quantity) / unit), ULONGLONG
            except NotSupported as error:
                field.nvmlReturn = error.code

    def c_nvmlDeviceGetProcessUtilization(self, device: Any, samples: Any, count: Any, since: Any) -> None:
        active = self.machine.process_activity(self.gpu(device))
        if samples is None:
            count._obj.value = len(active) + 1
            raise NvmlError("size", code=7)
        for place, each in enumerate(active):
            samples[place].pid, samples[place].timeStamp = each.pid, since.value + 1
            samples[place].smUtil = round(100 * each.sm)

    def c_nvmlGpmQueryDeviceSupport(self, device: Any, support: Any) -> None:
        support._obj.isSupportedDevice = self.info(device).compute_capability >= (9, 0)

    def c_nvmlGpmSampleAlloc(self, sample: Any) -> None:
        self._allocated += 1
        self.samples[self._allocated] = None
        ctypes.c_void_p.from_buffer(sample._obj).value = self._allocated

    def c_nvmlGpmSampleFree(self, sample: Any) -> None:
        del self.samples[address(sample)]

    def c_nvmlGpmSampleGet(self, device: Any, sample: Any) -> None:
        if self.info(device).mig_enabled:
            raise NotSupported("GPM of a whole card in MIG mode")
        self.samples[address(sample)] = (self.gpu(device), None)

    def c_nvmlGpmMigSampleGet(self, device: Any, gi_id: Any, sample: Any) -> None:
        with self.machine._access.card("measure_instance", self.gpu(device)) as card:
            find_gpu_instance(card, gi_id.value)
        self.samples[address(sample)] = (self.gpu(device), gi_id.value)

    def c_nvmlGpmMetricsGet(self, request: Any) -> None:
        asked = request._obj
        source = self.samples[address(asked.sample1)]
        assert source is not None
        assert source == self.samples[address(asked.sample2)]
        assert asked.version == 1
        gpu, gi_id = source
        with self.machine._access.card("measure", gpu) as card:
            if gi_id is None:
                found = load.measure_card(card, {}, first=False)
            else:
                found = load.measure_instance(card, find_gpu_instance(card, gi_id), first=False)
        for metric in asked.metrics[: asked.numMetrics]:
            quantity, unit = GPM[metric.metricId]
            metric.value = value_of(found, quantity) / unit


def address(sample: Any) -> int:
    return ctypes.cast(sample, ctypes.c_void_p).value or 0


def value_of(measurements: Measurements, quantity: Quantity) -> float:
    if quantity not in measurements.values:
        raise NotSupported(quantity.value)
    return measurements.values[quantity]
