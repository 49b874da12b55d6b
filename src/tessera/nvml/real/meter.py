"""Measures real cards: getters, field values and GPM.

Each reader gets one or several quantities by one call; a call that a card refuses makes its quantities absent and no
others. ``nvmlDeviceGetPcieThroughput`` is not used: it blocks for 20 ms in each direction, and GPM does not.

GPM gives means between two samples. The meter keeps the last sample of each card and GPU instance, and begins anew
where the driver refuses the pair, as after a reset, or for an instance that was created again under the same id.
"""

from collections.abc import Callable, Mapping, Sequence
from ctypes import byref, c_uint
from math import isnan
from typing import Any, NamedTuple

from tessera.nvml.errors import GpuLost, NvmlError, absence_of, make_error, translate_errors
from tessera.nvml.interface import GpuUuid
from tessera.nvml.measurements import (
    ACTIVITIES,
    Absence,
    Measurements,
    ProcessActivity,
    Quantity,
)
from tessera.nvml.real.library import fabric_info, memory_sizes, throttle_reasons

#: Scope of a field value that means all NVLinks of the card (nvml.h).
_ALL_LINKS = 0xFFFFFFFF
_MHZ = 1e6
_KIB, _MIB = 1024.0, 1024.0 * 1024.0


class _Field(NamedTuple):
    """A field value of ``nvmlDeviceGetFieldValues``: its id, the factor to base units, and its scope."""

    id: int
    factor: float = 1.0
    scope: int = 0


#: Ids and units of nvml.h (NVML_FI_DEV_*). Throttle times are nanoseconds, NVLink counters KiB.
_FIELDS: Mapping[Quantity, _Field] = {
    Quantity.MEMORY_TEMPERATURE: _Field(82),
    Quantity.NVLINK_TRANSMITTED: _Field(138, _KIB, _ALL_LINKS),
    Quantity.NVLINK_RECEIVED: _Field(139, _KIB, _ALL_LINKS),
    Quantity.NVLINK_CRC_FLIT_ERRORS: _Field(38),
    Quantity.NVLINK_CRC_DATA_ERRORS: _Field(45),
    Quantity.NVLINK_REPLAYS: _Field(52),
    Quantity.NVLINK_RECOVERIES: _Field(59),
    Quantity.THROTTLED_POWER: _Field(74, 1e-9),
    Quantity.THROTTLED_THERMAL: _Field(75, 1e-9),
    Quantity.THROTTLED_SYNC_BOOST: _Field(76, 1e-9),
    Quantity.THROTTLED_BOARD_LIMIT: _Field(77, 1e-9),
    Quantity.THROTTLED_LOW_UTILIZATION: _Field(78, 1e-9),
    Quantity.THROTTLED_RELIABILITY: _Field(79, 1e-9),
}
#: Members of the union ``nvmlValue_t`` by ``nvmlValueType_t`` (nvml.h).
_VALUE_TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")

#: ``nvmlGpmMetricId_t`` and the factor to base units: percent, or MiB per second.
_GPM: Mapping[Quantity, tuple[int, float]] = {
    Quantity.ENGINE_ACTIVE: (1, 0.01),
    Quantity.SM_ACTIVE: (2, 0.01),
    Quantity.SM_OCCUPANCY: (3, 0.01),
    Quantity.TENSOR_ACTIVE: (5, 0.01),
    Quantity.DRAM_ACTIVE: (10, 0.01),
    Quantity.FP64_ACTIVE: (11, 0.01),
    Quantity.FP32_ACTIVE: (12, 0.01),
    Quantity.FP16_ACTIVE: (13, 0.01),
    Quantity.PCIE_TRANSMITTED: (20, _MIB),
    Quantity.PCIE_RECEIVED: (21, _MIB),
}

#: Quantities that a card in MIG mode does not have; the driver refuses the calls (NVIDIA MIG user guide).
_NOT_IN_MIG_MODE = frozenset(
    {
        Quantity.GPU_UTILIZATION,
        Quantity.MEMORY_UTILIZATION,
        Quantity.ENCODER_UTILIZATION,
        Quantity.DECODER_UTILIZATION,
        Quantity.NVLINK_TRANSMITTED,
        Quantity.NVLINK_RECEIVED,
        Quantity.NVLINK_CRC_FLIT_ERRORS,
        Quantity.NVLINK_CRC_DATA_ERRORS,
        Quantity.NVLINK_REPLAYS,
        Quantity.NVLINK_RECOVERIES,
    }
)


def _utilization(nvml: Any, handle: Any) -> tuple[float, ...]:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return rates.gpu / 100, rates.memory / 100


def _encoder(nvml: Any, handle: Any) -> tuple[float, ...]:
    return (nvml.nvmlDeviceGetEncoderUtilization(handle)[0] / 100,)


def _decoder(nvml: Any, handle: Any) -> tuple[float, ...]:
    return (nvml.nvmlDeviceGetDecoderUtilization(handle)[0] / 100,)


def _sm_clock(nvml: Any, handle: Any) -> tuple[float, ...]:
    return (nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * _MHZ,)


def _memory_clock(nvml: Any, handle: Any) -> tuple[float, ...]:
    return (nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM) * _MHZ,)


def _temperature(nvml: Any, handle: Any) -> tuple[float, ...]:
    return (nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),)


def _slowdown_temperature(nvml: Any, handle: Any) -> tuple[float, ...]:
    return (nvml.nvmlDeviceGetTemperatureThreshold(handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),)


def _shutdown_temperature(nvml: Any, handle: Any) -> tuple[float, ...]:
    return (nvml.nvmlDeviceGetTemperatureThreshold(handle, nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN),)


def _memory_temperature_limit(nvml: Any, handle: Any) -> tuple[float, ...]:
    return (nvml.nvmlDeviceGetTemperatureThreshold(handle, nvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX),)


def _temperature_margin(nvml: Any, handle: Any) -> tuple[float, ...]:
    return (nvml.nvmlDeviceGetMarginTemperature(handle),)


def _power(nvml: Any, handle: Any) -> tuple[float, ...]:
    return (nvml.nvmlDeviceGetPowerUsage(handle) / 1000,)


def _power_limit(nvml: Any, handle: Any) -> tuple[float, ...]:
    return (nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,)


def _energy(nvml: Any, handle: Any) -> tuple[float, ...]:
    return (nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,)


def _pcie_replays(nvml: Any, handle: Any) -> tuple[float, ...]:
    return (nvml.nvmlDeviceGetPcieReplayCounter(handle),)


def _ecc(nvml: Any, handle: Any) -> tuple[float, ...]:
    kinds = nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    return tuple(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, nvml.NVML_VOLATILE_ECC) for kind in kinds)


def _remapped_rows(nvml: Any, handle: Any) -> tuple[float, ...]:
    return tuple(map(float, nvml.nvmlDeviceGetRemappedRows(handle)))


def _sram_threshold(nvml: Any, handle: Any) -> tuple[float, ...]:
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    nvml.nvmlDeviceGetSramEccErrorStatus(handle, byref(status))
    return (float(bool(status.bThresholdExceeded)),)


def _fabric_health(nvml: Any, handle: Any) -> tuple[float | None, ...]:
    info = fabric_info(nvml, handle)
    known = info.state != nvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED
    return (getattr(info, "healthMask", None) if known else None,)


def _throttle_reasons(nvml: Any, handle: Any) -> tuple[float, ...]:
    return (throttle_reasons(nvml, handle),)


#: The quantities of each getter, in the order of its answer; ``None`` in it is a quantity that the driver lacks.
_GETTERS: Sequence[tuple[Callable[[Any, Any], Sequence[float | None]], tuple[Quantity, ...]]] = (
    (_utilization, (Quantity.GPU_UTILIZATION, Quantity.MEMORY_UTILIZATION)),
    (_encoder, (Quantity.ENCODER_UTILIZATION,)),
    (_decoder, (Quantity.DECODER_UTILIZATION,)),
    (_sm_clock, (Quantity.SM_CLOCK,)),
    (_memory_clock, (Quantity.MEMORY_CLOCK,)),
    (_temperature, (Quantity.TEMPERATURE,)),
    (_slowdown_temperature, (Quantity.SLOWDOWN_TEMPERATURE,)),
    (_shutdown_temperature, (Quantity.SHUTDOWN_TEMPERATURE,)),
    (_memory_temperature_limit, (Quantity.MEMORY_TEMPERATURE_LIMIT,)),
    (_temperature_margin, (Quantity.TEMPERATURE_MARGIN,)),
    (_power, (Quantity.POWER,)),
    (_power_limit, (Quantity.POWER_LIMIT,)),
    (_energy, (Quantity.ENERGY,)),
    (memory_sizes, (Quantity.MEMORY_TOTAL, Quantity.MEMORY_USED, Quantity.MEMORY_FREE, Quantity.MEMORY_RESERVED)),
    (_pcie_replays, (Quantity.PCIE_REPLAYS,)),
    (_ecc, (Quantity.ECC_CORRECTED, Quantity.ECC_UNCORRECTED)),
    (
        _remapped_rows,
        (
            Quantity.ROWS_REMAPPED_CORRECTABLE,
            Quantity.ROWS_REMAPPED_UNCORRECTABLE,
            Quantity.ROW_REMAP_PENDING,
            Quantity.ROW_REMAP_FAILED,
        ),
    ),
    (_sram_threshold, (Quantity.SRAM_THRESHOLD_EXCEEDED,)),
    (_fabric_health, (Quantity.FABRIC_HEALTH,)),
    (_throttle_reasons, (Quantity.THROTTLE_REASONS,)),
)


class CardMeter:
    """Measures cards, and remembers what a mean needs.

    Args:
        binding: the module ``pynvml``, with NVML open.
    """

    def __init__(self, binding: Any) -> None:
        self._nvml = binding
        #: True for cards with GPM; a card that was not asked yet is missing.
        self._has_gpm: dict[GpuUuid, bool] = {}
        #: The last GPM sample of each card (``None``) and GPU instance.
        self._samples: dict[tuple[GpuUuid, int | None], Any] = {}
        #: By card, microseconds of the newest process sample that was read.
        self._process_times: dict[GpuUuid, int] = {}

    def measure(self, gpu: GpuUuid, handle: Any, *, mig_enabled: bool) -> Measurements:
        """See :meth:`.Nvml.measure`."""
        values: dict[Quantity, float] = {}
        absent: dict[Quantity, Absence] = {}
        for read, quantities in _GETTERS:
            try:
                with translate_errors(self._nvml.NVMLError, gpu):
                    answer = read(self._nvml, handle)
            except GpuLost:
                raise
            except NvmlError as error:
                absent.update(dict.fromkeys(quantities, absence_of(error)))
                continue
            for quantity, value in zip(quantities, answer, strict=True):
                if value is None:
                    absent[quantity] = Absence.NOT_SUPPORTED
                else:
                    values[quantity] = value
        self._read_fields(gpu, handle, values, absent)
        if mig_enabled:
            # The driver refuses GPM of a whole card in MIG mode; its instances have their own.
            absent.update(dict.fromkeys(ACTIVITIES, Absence.MIG_MODE))
            absent.update(dict.fromkeys(_NOT_IN_MIG_MODE & absent.keys(), Absence.MIG_MODE))
        else:
            self._read_gpm(gpu, None, handle, values, absent)
        return Measurements(values, absent)

    def measure_instance(self, gpu: GpuUuid, gi_id: int, handle: Any) -> Measurements:
        """See :meth:`.Nvml.measure_instance`."""
        values: dict[Quantity, float] = {}
        absent: dict[Quantity, Absence] = {}
        self._read_gpm(gpu, gi_id, handle, values, absent)
        return Measurements(values, absent)

    def process_activity(self, gpu: GpuUuid, handle: Any) -> list[ProcessActivity]:
        """See :meth:`.Nvml.process_activity`."""
        since = self._process_times.get(gpu, 0)
        try:
            with translate_errors(self._nvml.NVMLError, f"processes of {gpu}"):
                samples = self._nvml.nvmlDeviceGetProcessUtilization(handle, since)
        except NvmlError as error:
            # No process computed since then; for no samples at all the binding raises its own answer, success.
            if error.code in (self._nvml.NVML_ERROR_NOT_FOUND, self._nvml.NVML_SUCCESS):
                return []
            raise
        newest: dict[int, Any] = {}
        for sample in samples:
            # The driver fills the rest of its buffer with zeros.
            if sample.timeStamp > since and sample.timeStamp >= getattr(newest.get(sample.pid), "timeStamp", 0):
                newest[sample.pid] = sample
        self._process_times[gpu] = max((each.timeStamp for each in newest.values()), default=since)
        return [ProcessActivity(pid=pid, sm=each.smUtil / 100) for pid, each in newest.items()]

    def forget(self, gpu: GpuUuid, gi_id: int | None = None) -> None:
        """Drops the samples of a destroyed GPU instance; those of the card and all its instances for ``None``."""
        for key in [key for key in self._samples if key[0] == gpu and gi_id in (None, key[1])]:
            self._free(self._samples.pop(key))

    def close(self) -> None:
        """Frees all samples; the session still has to be open."""
        for key in list(self._samples):
            self._free(self._samples.pop(key))
        self._has_gpm.clear()

    def _read_fields(
        self, gpu: GpuUuid, handle: Any, values: dict[Quantity, float], absent: dict[Quantity, Absence]
    ) -> None:
        try:
            with translate_errors(self._nvml.NVMLError, f"field values of {gpu}"):
                read = self._nvml.nvmlDeviceGetFieldValues(handle, [(each.id, each.scope) for each in _FIELDS.values()])
        except NvmlError as error:
            absent.update(dict.fromkeys(_FIELDS, absence_of(error)))
            return
        for (quantity, field), value in zip(_FIELDS.items(), read, strict=True):
            if value.nvmlReturn or value.valueType >= len(_VALUE_TYPES):
                absent[quantity] = absence_of(make_error(value.nvmlReturn, gpu))
            else:
                values[quantity] = getattr(value.value, _VALUE_TYPES[value.valueType]) * field.factor

    def _read_gpm(
        self,
        gpu: GpuUuid,
        gi_id: int | None,
        handle: Any,
        values: dict[Quantity, float],
        absent: dict[Quantity, Absence],
    ) -> None:
        if not self._supports_gpm(gpu, handle):
            absent.update(dict.fromkeys(ACTIVITIES, Absence.NO_GPM))
            return
        before = self._samples.pop((gpu, gi_id), None)
        try:
            with translate_errors(self._nvml.NVMLError, f"GPM of {gpu}"):
                sample = self._take_sample(gi_id, handle)
        except NvmlError as error:
            absent.update(dict.fromkeys(ACTIVITIES, absence_of(error)))
            if before is not None:
                self._free(before)
            return
        self._samples[gpu, gi_id] = sample
        if before is None:
            absent.update(dict.fromkeys(ACTIVITIES, Absence.FIRST_SAMPLE))
            return
        try:
            self._compare(gpu, before, sample, values, absent)
        finally:
            self._free(before)

    def _supports_gpm(self, gpu: GpuUuid, handle: Any) -> bool:
        if gpu not in self._has_gpm:
            try:
                with translate_errors(self._nvml.NVMLError, f"GPM of {gpu}"):
                    self._has_gpm[gpu] = bool(self._nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
            except NvmlError:
                self._has_gpm[gpu] = False
        return self._has_gpm[gpu]

    def _take_sample(self, gi_id: int | None, handle: Any) -> Any:
        sample = self._nvml.nvmlGpmSampleAlloc()
        try:
            if gi_id is None:
                return self._nvml.nvmlGpmSampleGet(handle, sample)
            return self._nvml.nvmlGpmMigSampleGet(handle, c_uint(gi_id), sample)
        except self._nvml.NVMLError:
            self._free(sample)
            raise

    def _compare(
        self,
        gpu: GpuUuid,
        before: Any,
        after: Any,
        values: dict[Quantity, float],
        absent: dict[Quantity, Absence],
    ) -> None:
        request = self._nvml.c_nvmlGpmMetricsGet_t()
        request.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(_GPM)
        request.sample1, request.sample2 = before, after
        for place, (number, _) in enumerate(_GPM.values()):
            request.metrics[place].metricId = number
        try:
            with translate_errors(self._nvml.NVMLError, f"GPM of {gpu}"):
                self._nvml.nvmlGpmMetricsGet(request)
        except NvmlError as error:
            absent.update(dict.fromkeys(_GPM, absence_of(error)))
            return
        for place, (quantity, (_, factor)) in enumerate(_GPM.items()):
            metric = request.metrics[place]
            if metric.nvmlReturn:
                absent[quantity] = absence_of(make_error(metric.nvmlReturn, gpu))
            elif isnan(metric.value):  # the engine was powered off all the time
                absent[quantity] = Absence.FAILED
            else:
                values[quantity] = metric.value * factor

    def _free(self, sample: Any) -> None:
        self._nvml.nvmlGpmSampleFree(sample)
