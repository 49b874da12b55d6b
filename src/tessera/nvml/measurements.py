"""Measurements of NVML for a card, a GPU instance and a process, as plain values in base units.

A quantity that a card does not measure is missing from the values, never zero; :class:`Absence` says why. Ratios are
0 to 1. Rates and activities of GPM are means over the time between two calls, so the first call has none.
"""

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

import msgspec


class Quantity(Enum):
    """A measured quantity; the value names it in metrics."""

    # Shares of time, 0 to 1, of the driver's last sample period.
    GPU_UTILIZATION = "gpu_utilization"
    MEMORY_UTILIZATION = "memory_utilization"
    ENCODER_UTILIZATION = "encoder_utilization"
    DECODER_UTILIZATION = "decoder_utilization"
    # GPM (Hopper and newer), 0 to 1, of a card or a GPU instance.
    ENGINE_ACTIVE = "engine_active"
    SM_ACTIVE = "sm_active"
    SM_OCCUPANCY = "sm_occupancy"
    TENSOR_ACTIVE = "tensor_active"
    DRAM_ACTIVE = "dram_active"
    FP64_ACTIVE = "fp64_active"
    FP32_ACTIVE = "fp32_active"
    FP16_ACTIVE = "fp16_active"
    # Bytes per second.
    PCIE_TRANSMITTED = "pcie_transmitted"
    PCIE_RECEIVED = "pcie_received"
    # Hertz.
    SM_CLOCK = "sm_clock"
    MEMORY_CLOCK = "memory_clock"
    # Degrees Celsius.
    TEMPERATURE = "temperature"
    MEMORY_TEMPERATURE = "memory_temperature"
    # The card's own limits: where it slows down, where it switches off, and the most for its memory.
    SLOWDOWN_TEMPERATURE = "slowdown_temperature"
    SHUTDOWN_TEMPERATURE = "shutdown_temperature"
    MEMORY_TEMPERATURE_LIMIT = "memory_temperature_limit"
    # Degrees that are left until the highest temperature of normal operation; below 0 beyond it.
    TEMPERATURE_MARGIN = "temperature_margin"
    # Watts; joules since the driver was loaded.
    POWER = "power"
    POWER_LIMIT = "power_limit"
    ENERGY = "energy"
    # Bytes.
    MEMORY_TOTAL = "memory_total"
    MEMORY_USED = "memory_used"
    MEMORY_FREE = "memory_free"
    MEMORY_RESERVED = "memory_reserved"
    # Bytes since the driver was loaded, all links together.
    NVLINK_TRANSMITTED = "nvlink_transmitted"
    NVLINK_RECEIVED = "nvlink_received"
    # Errors since the driver was loaded, all links together: packets sent again, links trained again, and flits of flow
    # control and of data that failed their checksum.
    NVLINK_REPLAYS = "nvlink_replays"
    NVLINK_RECOVERIES = "nvlink_recoveries"
    NVLINK_CRC_FLIT_ERRORS = "nvlink_crc_flit_errors"
    NVLINK_CRC_DATA_ERRORS = "nvlink_crc_data_errors"
    # Bits of ``healthMask`` of nvmlGpuFabricInfoV.
    FABRIC_HEALTH = "fabric_health"
    # Counts since the driver was loaded.
    PCIE_REPLAYS = "pcie_replays"
    ECC_CORRECTED = "ecc_corrected"
    ECC_UNCORRECTED = "ecc_uncorrected"
    # Counts of the card's life.
    ROWS_REMAPPED_CORRECTABLE = "rows_remapped_correctable"
    ROWS_REMAPPED_UNCORRECTABLE = "rows_remapped_uncorrectable"
    # 0 or 1.
    ROW_REMAP_PENDING = "row_remap_pending"
    ROW_REMAP_FAILED = "row_remap_failed"
    # 1 if the uncorrected errors of on-chip memory (SRAM) exceed NVIDIA's threshold.
    SRAM_THRESHOLD_EXCEEDED = "sram_threshold_exceeded"
    # Bits of nvmlClocksEventReasons.
    THROTTLE_REASONS = "throttle_reasons"
    # Seconds since the driver was loaded.
    THROTTLED_POWER = "throttled_power"
    THROTTLED_THERMAL = "throttled_thermal"
    THROTTLED_SYNC_BOOST = "throttled_sync_boost"
    THROTTLED_BOARD_LIMIT = "throttled_board_limit"
    THROTTLED_LOW_UTILIZATION = "throttled_low_utilization"
    THROTTLED_RELIABILITY = "throttled_reliability"


#: Quantities of GPM.
ACTIVITIES = (
    Quantity.ENGINE_ACTIVE,
    Quantity.SM_ACTIVE,
    Quantity.SM_OCCUPANCY,
    Quantity.TENSOR_ACTIVE,
    Quantity.DRAM_ACTIVE,
    Quantity.FP64_ACTIVE,
    Quantity.FP32_ACTIVE,
    Quantity.FP16_ACTIVE,
    Quantity.PCIE_TRANSMITTED,
    Quantity.PCIE_RECEIVED,
)


class Absence(Enum):
    """The reason that a quantity has no value; the value is a label of ``tessera_metric_unavailable``."""

    #: The card or its driver does not report it.
    NOT_SUPPORTED = "not_supported"
    #: The card is in MIG mode, where the driver reports it neither for the card nor for its instances.
    MIG_MODE = "mig_mode"
    #: Activity is measured by GPM, which Hopper and newer cards have.
    NO_GPM = "no_gpm"
    #: A mean needs two samples, and this was the first.
    FIRST_SAMPLE = "first_sample"
    #: The agent may not read it.
    NO_PERMISSION = "no_permission"
    #: The driver failed to report it this time.
    FAILED = "failed"


#: Bits of ``nvmlClocksEventReasons`` and their names (nvml.h); the first two slow nothing down.
THROTTLE_REASONS: Mapping[int, str] = {
    0x1: "gpu_idle",
    0x2: "clocks_setting",
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}


class FabricFlag(NamedTuple):
    """A part of ``healthMask`` of nvmlGpuFabricInfoV (nvml.h, ``NVML_GPU_FABRIC_HEALTH_MASK_*``).

    Attributes:
        shift: its lowest bit.
        width: mask of its bits after the shift.
        problems: what is wrong with the fabric, by value; other values are well or not supported.
    """

    shift: int
    width: int
    problems: Mapping[int, str]


#: Parts of the health of an NVLink fabric that say that something is wrong.
FABRIC_FLAGS = (
    FabricFlag(0, 0x3, {1: "its bandwidth is degraded"}),
    FabricFlag(2, 0x3, {1: "a route is being recovered"}),
    FabricFlag(4, 0x3, {1: "a route is unhealthy"}),
    FabricFlag(6, 0x3, {1: "it recovers from an access that timed out"}),
    FabricFlag(
        8,
        0xF,
        {
            2: "its system GUID is wrong",
            3: "its chassis serial number is wrong",
            4: "it has no partition",
            5: "it has too few NVLinks",
            6: "its firmware does not fit the fabric",
            7: "its location is not valid",
            8: "the state of the card is not valid",
        },
    ),
)


class Measurements(msgspec.Struct, frozen=True):
    """Measurements of a card or a GPU instance by one call.

    Attributes:
        values: each quantity that was measured.
        absent: each quantity that was not, and why.
    """

    values: Mapping[Quantity, float]
    absent: Mapping[Quantity, Absence] = {}


class ProcessActivity(msgspec.Struct, frozen=True, kw_only=True):
    """The share of a card's time in which one process computed since the previous call, 0 to 1."""

    pid: int
    sm: float
