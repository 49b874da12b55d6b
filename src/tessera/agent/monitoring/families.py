"""The metric families of measured quantities: dcgm-exporter's names in two dialects, and Tessera's own.

Sources: dcgm-exporter's ``default-counters.csv`` (4.8 and earlier) for names, types and units; the release notes of
dcgm-exporter 4.9.0 and DCGM 4.7.0, and the list of renamed fields in DCGM's Python bindings, for the renamed families,
which have base units. A quantity whose 4.9 name is not
published keeps only its 4.8 name. ``DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL`` is a rate in MB/s, so it is a gauge here.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tessera.agent.base.settings import MetricNames
from tessera.nvml.measurements import Quantity

GAUGE, COUNTER = "gauge", "counter"


class Family(NamedTuple):
    """A metric family.

    Attributes:
        name: its name; that of a counter of Tessera ends with ``_total``.
        type: ``gauge`` or ``counter``.
        help: meaning and unit.
        factor: from the quantity's base unit to the family's unit.
        dialect: the dialect that has this name; ``BOTH`` if it did not change.
    """

    name: str
    type: str
    help: str
    factor: float = 1.0
    dialect: MetricNames = MetricNames.BOTH


class _Row(NamedTuple):
    """The names of one quantity.

    Attributes:
        meaning: what is measured.
        own: Tessera's name without its beginning.
        old: DCGM's name up to 4.8 without ``DCGM_FI_``; empty for none.
        new: DCGM's name from 4.9 on; empty for none, equal to ``old`` if it did not change.
        unit: unit of ``old``.
        factor: from the base unit to ``unit``.
    """

    meaning: str
    own: str
    old: str = ""
    new: str = ""
    unit: str = ""
    factor: float = 1.0


_PERCENT, _MHZ, _NANOSECONDS = ("%", 100.0), ("MHz", 1e-6), ("ns", 1e9)
_MIB = ("MiB", 1 / (1024 * 1024))

#: Names by quantity. A name of Tessera ends with its base unit, and ``_total`` for a counter.
_ROWS: Mapping[Quantity, _Row] = {
    Quantity.GPU_UTILIZATION: _Row(
        "share of time in which a kernel ran", "utilization_ratio", "DEV_GPU_UTIL", "DEV_GPU_UTIL_RATIO", *_PERCENT
    ),
    Quantity.MEMORY_UTILIZATION: _Row(
        "share of time in which memory was read or written",
        "memory_utilization_ratio",
        "DEV_MEM_COPY_UTIL",
        "DEV_MEMORY_UTIL_RATIO",
        *_PERCENT,
    ),
    Quantity.ENCODER_UTILIZATION: _Row(
        "share of time in which the encoder worked",
        "encoder_utilization_ratio",
        "DEV_ENC_UTIL",
        "DEV_ENC_UTIL_RATIO",
        *_PERCENT,
    ),
    Quantity.DECODER_UTILIZATION: _Row(
        "share of time in which the decoder worked",
        "decoder_utilization_ratio",
        "DEV_DEC_UTIL",
        "DEV_DEC_UTIL_RATIO",
        *_PERCENT,
    ),
    Quantity.ENGINE_ACTIVE: _Row(
        "share of time in which the graphics or compute engine worked",
        "engine_active_ratio",
        "PROF_GR_ENGINE_ACTIVE",
        "PROF_GR_ENGINE_UTIL_RATIO",
        "0 to 1",
    ),
    Quantity.SM_ACTIVE: _Row(
        "share of cycles in which an SM had work, mean of all SMs",
        "sm_active_ratio",
        "PROF_SM_ACTIVE",
        "PROF_SM_UTIL_RATIO",
        "0 to 1",
    ),
    Quantity.SM_OCCUPANCY: _Row(
        "resident warps as a share of the most possible",
        "sm_occupancy_ratio",
        "PROF_SM_OCCUPANCY",
        "PROF_SM_OCCUPANCY_RATIO",
        "0 to 1",
    ),
    Quantity.TENSOR_ACTIVE: _Row(
        "share of cycles in which tensor cores worked",
        "tensor_active_ratio",
        "PROF_PIPE_TENSOR_ACTIVE",
        "PROF_TENSOR_UTIL_RATIO",
        "0 to 1",
    ),
    Quantity.DRAM_ACTIVE: _Row(
        "share of cycles in which memory sent or received data",
        "dram_active_ratio",
        "PROF_DRAM_ACTIVE",
        "PROF_DRAM_UTIL_RATIO",
        "0 to 1",
    ),
    Quantity.FP64_ACTIVE: _Row(
        "share of cycles in which FP64 pipes worked",
        "fp64_active_ratio",
        "PROF_PIPE_FP64_ACTIVE",
        "PROF_FP64_UTIL_RATIO",
        "0 to 1",
    ),
    Quantity.FP32_ACTIVE: _Row(
        "share of cycles in which FP32 pipes worked",
        "fp32_active_ratio",
        "PROF_PIPE_FP32_ACTIVE",
        "PROF_FP32_UTIL_RATIO",
        "0 to 1",
    ),
    Quantity.FP16_ACTIVE: _Row(
        "share of cycles in which FP16 pipes worked",
        "fp16_active_ratio",
        "PROF_PIPE_FP16_ACTIVE",
        "PROF_FP16_UTIL_RATIO",
        "0 to 1",
    ),
    Quantity.PCIE_TRANSMITTED: _Row(
        "data sent over PCIe",
        "pcie_transmitted_bytes_per_second",
        "PROF_PCIE_TX_BYTES",
        "PROF_PCIE_TX_BYTES",
        "bytes per second",
    ),
    Quantity.PCIE_RECEIVED: _Row(
        "data received over PCIe",
        "pcie_received_bytes_per_second",
        "PROF_PCIE_RX_BYTES",
        "PROF_PCIE_RX_BYTES",
        "bytes per second",
    ),
    Quantity.SM_CLOCK: _Row("clock of the SMs", "sm_clock_hertz", "DEV_SM_CLOCK", "DEV_SM_CLOCK_HERTZ", *_MHZ),
    Quantity.MEMORY_CLOCK: _Row(
        "clock of the memory", "memory_clock_hertz", "DEV_MEM_CLOCK", "DEV_MEMORY_CLOCK_HERTZ", *_MHZ
    ),
    Quantity.TEMPERATURE: _Row(
        "temperature of the GPU", "temperature_celsius", "DEV_GPU_TEMP", "DEV_GPU_TEMP_CELSIUS", "C"
    ),
    Quantity.MEMORY_TEMPERATURE: _Row(
        "temperature of the memory", "memory_temperature_celsius", "DEV_MEMORY_TEMP", "DEV_MEMORY_TEMP_CELSIUS", "C"
    ),
    Quantity.SLOWDOWN_TEMPERATURE: _Row(
        "temperature of the GPU at which the card slows itself down", "slowdown_temperature_celsius"
    ),
    Quantity.SHUTDOWN_TEMPERATURE: _Row(
        "temperature of the GPU at which the card switches itself off", "shutdown_temperature_celsius"
    ),
    Quantity.MEMORY_TEMPERATURE_LIMIT: _Row(
        "highest temperature of the memory in normal operation", "memory_temperature_limit_celsius"
    ),
    Quantity.TEMPERATURE_MARGIN: _Row(
        "degrees left until the highest temperature of normal operation", "temperature_margin_celsius"
    ),
    Quantity.POWER: _Row("power draw", "power_watts", "DEV_POWER_USAGE", "DEV_BOARD_POWER_WATTS", "W"),
    Quantity.POWER_LIMIT: _Row("power limit in force", "power_limit_watts"),
    Quantity.ENERGY: _Row(
        "energy since the driver was loaded",
        "energy_joules_total",
        "DEV_TOTAL_ENERGY_CONSUMPTION",
        "DEV_GPU_ENERGY_JOULES_TOTAL",
        "mJ",
        1e3,
    ),
    Quantity.MEMORY_TOTAL: _Row("memory", "memory_size_bytes", "DEV_FB_TOTAL", "DEV_FB_CAPACITY_BYTES", *_MIB),
    Quantity.MEMORY_USED: _Row("used memory", "memory_used_bytes", "DEV_FB_USED", "DEV_FB_USED_BYTES", *_MIB),
    Quantity.MEMORY_FREE: _Row("free memory", "memory_free_bytes", "DEV_FB_FREE", "DEV_FB_FREE_BYTES", *_MIB),
    Quantity.MEMORY_RESERVED: _Row(
        "memory that the driver keeps", "memory_reserved_bytes", "DEV_FB_RESERVED", "DEV_FB_RESERVED_BYTES", *_MIB
    ),
    Quantity.NVLINK_TRANSMITTED: _Row("data sent over all NVLinks", "nvlink_transmitted_bytes_total"),
    Quantity.NVLINK_RECEIVED: _Row("data received over all NVLinks", "nvlink_received_bytes_total"),
    Quantity.NVLINK_REPLAYS: _Row(
        "packets that NVLinks sent again",
        "nvlink_replays_total",
        "DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        "DEV_NVLINK_REPLAY_ERROR_TOTAL",
        "errors",
    ),
    Quantity.NVLINK_RECOVERIES: _Row(
        "times that an NVLink was trained again after an error",
        "nvlink_recoveries_total",
        "DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
        "DEV_NVLINK_RECOVERY_ERROR_TOTAL",
        "errors",
    ),
    Quantity.NVLINK_CRC_FLIT_ERRORS: _Row(
        "checksum errors of flow control on NVLinks",
        "nvlink_crc_flit_errors_total",
        "DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "DEV_NVLINK_CRC_FLIT_ERROR_TOTAL",
        "errors",
    ),
    Quantity.NVLINK_CRC_DATA_ERRORS: _Row(
        "checksum errors of data on NVLinks",
        "nvlink_crc_data_errors_total",
        "DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
        "DEV_NVLINK_CRC_DATA_ERROR_TOTAL",
        "errors",
    ),
    Quantity.FABRIC_HEALTH: _Row(
        "health of the NVLink fabric of the card, the bits of nvmlGpuFabricInfoV",
        "fabric_health_mask",
        "DEV_FABRIC_HEALTH_MASK",
        "DEV_FABRIC_HEALTH_MASK",
        "bits",
    ),
    Quantity.PCIE_REPLAYS: _Row(
        "PCIe retries", "pcie_replays_total", "DEV_PCIE_REPLAY_COUNTER", "DEV_PCIE_REPLAY_TOTAL", "retries"
    ),
    Quantity.ECC_CORRECTED: _Row("corrected memory errors since the driver was loaded", "ecc_corrected_errors_total"),
    Quantity.ECC_UNCORRECTED: _Row(
        "uncorrected memory errors since the driver was loaded", "ecc_uncorrected_errors_total"
    ),
    Quantity.ROWS_REMAPPED_CORRECTABLE: _Row(
        "rows of memory remapped for correctable errors",
        "remapped_correctable_rows_total",
        "DEV_CORRECTABLE_REMAPPED_ROWS",
        "DEV_ROW_REMAP_CORRECTABLE_TOTAL",
        "rows",
    ),
    Quantity.ROWS_REMAPPED_UNCORRECTABLE: _Row(
        "rows of memory remapped for uncorrectable errors",
        "remapped_uncorrectable_rows_total",
        "DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "DEV_ROW_REMAP_UNCORRECTABLE_TOTAL",
        "rows",
    ),
    Quantity.ROW_REMAP_PENDING: _Row(
        "1 if a row is remapped at the next reset",
        "row_remap_pending",
        "DEV_ROW_REMAP_PENDING",
        "DEV_ROW_REMAP_PENDING",
        "0 or 1",
    ),
    Quantity.ROW_REMAP_FAILED: _Row(
        "1 if a row could not be remapped",
        "row_remap_failed",
        "DEV_ROW_REMAP_FAILURE",
        "DEV_ROW_REMAP_FAILED",
        "0 or 1",
    ),
    Quantity.SRAM_THRESHOLD_EXCEEDED: _Row(
        "1 if uncorrected errors of on-chip memory exceed NVIDIA's threshold",
        "sram_threshold_exceeded",
        "DEV_THRESHOLD_SRM",
        "DEV_SRAM_EXCEEDED",
        "0 or 1",
    ),
    Quantity.THROTTLED_POWER: _Row(
        "time slowed down by the power limit",
        "throttled_power_seconds_total",
        "DEV_POWER_VIOLATION",
        "DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL",
        *_NANOSECONDS,
    ),
    Quantity.THROTTLED_THERMAL: _Row(
        "time slowed down by heat", "throttled_thermal_seconds_total", "DEV_THERMAL_VIOLATION", "", *_NANOSECONDS
    ),
    Quantity.THROTTLED_SYNC_BOOST: _Row(
        "time slowed down by sync boost",
        "throttled_sync_boost_seconds_total",
        "DEV_SYNC_BOOST_VIOLATION",
        "",
        *_NANOSECONDS,
    ),
    Quantity.THROTTLED_BOARD_LIMIT: _Row(
        "time slowed down by the board's limit",
        "throttled_board_limit_seconds_total",
        "DEV_BOARD_LIMIT_VIOLATION",
        "",
        *_NANOSECONDS,
    ),
    Quantity.THROTTLED_LOW_UTILIZATION: _Row(
        "time slowed down for low utilization",
        "throttled_low_utilization_seconds_total",
        "DEV_LOW_UTIL_VIOLATION",
        "",
        *_NANOSECONDS,
    ),
    Quantity.THROTTLED_RELIABILITY: _Row(
        "time slowed down for reliability",
        "throttled_reliability_seconds_total",
        "DEV_RELIABILITY_VIOLATION",
        "",
        *_NANOSECONDS,
    ),
}

#: Quantities that DCGM measures of a GPU instance (its fields of the levels GPU_I and GPU_CI). Of the others a GPU
#: instance has the value of its card.
OF_INSTANCES = frozenset(
    {
        *(Quantity.MEMORY_TOTAL, Quantity.MEMORY_USED, Quantity.MEMORY_FREE, Quantity.MEMORY_RESERVED),
        *(Quantity.ENGINE_ACTIVE, Quantity.SM_ACTIVE, Quantity.SM_OCCUPANCY, Quantity.TENSOR_ACTIVE),
        *(Quantity.DRAM_ACTIVE, Quantity.FP64_ACTIVE, Quantity.FP32_ACTIVE, Quantity.FP16_ACTIVE),
    }
)

#: The NVLink rate of a card in both dialects.
NVLINK_48 = Family(
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", GAUGE, "data over all NVLinks (MB per second)", 1e-6, MetricNames.DCGM_48
)
NVLINK_49 = Family(
    "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND", GAUGE, "data over all NVLinks", 1.0, MetricNames.DCGM_49
)
#: The last XID of a card in both dialects.
XID_48 = Family(
    "DCGM_FI_DEV_XID_ERRORS", GAUGE, "last XID since the agent started, 0 for none", 1.0, MetricNames.DCGM_48
)
XID_49 = Family("DCGM_FI_DEV_XID_ERROR", GAUGE, XID_48.help, 1.0, MetricNames.DCGM_49)
#: The XIDs of a card by number; dcgm-exporter has this family from 4.8.3 on, with one name in both dialects.
XID_COUNT = Family("DCGM_EXP_XID_ERRORS_TOTAL", COUNTER, "XIDs since the agent started, by their number")


def _kind(own: str) -> str:
    return COUNTER if own.endswith("_total") else GAUGE


#: Tessera's own families of cards and of MIG devices, in base units.
GPU_FAMILIES: Mapping[Quantity, Family] = {
    quantity: Family(f"tessera_gpu_{row.own}", _kind(row.own), row.meaning) for quantity, row in _ROWS.items()
}
MIG_FAMILIES: Mapping[Quantity, Family] = {
    quantity: Family(f"tessera_mig_{row.own}", _kind(row.own), row.meaning) for quantity, row in _ROWS.items()
}


def _dcgm(quantity: Quantity) -> tuple[Family | None, Family | None]:
    row = _ROWS.get(quantity)
    if row is None:
        return None, None
    dialect = MetricNames.BOTH if row.new == row.old else MetricNames.DCGM_48
    meaning = f"{row.meaning} ({row.unit})"
    old = Family(f"DCGM_FI_{row.old}", _kind(row.own), meaning, row.factor, dialect) if row.old else None
    if row.new == row.old:
        return old, old
    new = Family(f"DCGM_FI_{row.new}", _kind(row.own), row.meaning, 1.0, MetricNames.DCGM_49) if row.new else None
    return old, new


#: By dialect, DCGM's families of each quantity.
_DCGM: Mapping[MetricNames, Mapping[Quantity, Sequence[Family]]] = {
    names: {
        quantity: tuple(
            dict.fromkeys(
                family
                for family, other in zip(_dcgm(quantity), (MetricNames.DCGM_49, MetricNames.DCGM_48), strict=True)
                if family is not None and names is not other
            )
        )
        for quantity in Quantity
    }
    for names in MetricNames
}


def dcgm_families(quantity: Quantity, names: MetricNames) -> Sequence[Family]:
    """The families of a quantity in a dialect."""
    return _DCGM[names][quantity]


def of_dialect(old: Family, new: Family, names: MetricNames) -> Sequence[Family]:
    """The families of a dialect, of two that show the same quantity."""
    return {MetricNames.DCGM_48: (old,), MetricNames.DCGM_49: (new,), MetricNames.BOTH: (old, new)}[names]
