"""Measurements of simulated cards, derived from their processes.

A process has an activity, the share of its device's time in which it computes, and a kind of work
(:mod:`tessera.nvml.simulated.machine_state`). Everything else follows from these by plain rules: power and temperature
rise with it, a busy card runs at its highest clock, memory is what its processes hold. The rules are not measured on
hardware. Which quantities exist follows the hardware: GPM from Hopper on, no utilization and no NVLink counters in MIG
mode, none of NVLinks on a card without them, no memory on a card that reports none. Values that a test or the lab has
set replace the rules.

Some counters grow with time: energy, NVLink bytes, seconds of slow-downs, errors that are set. A counter is over the
time since this process measured the card first. Between two measurements the card counts as it is at the second one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tessera.nvml.interface import GpuUuid
from tessera.nvml.measurements import ACTIVITIES, Absence, Measurements, ProcessActivity, Quantity
from tessera.nvml.simulated.boards import attributes_of, has_encoders, link_count
from tessera.nvml.simulated.machine_state import WORKS, SimCard, SimDevice, SimGpuInstance, SimProcess
from tessera.nvml.simulated.mig_rules import read_memory

#: First compute capability with GPM (NVIDIA, NVML API reference: Hopper).
_GPM_SINCE = (9, 0)
_MHZ = 1e6
#: Rule: degrees Celsius of an idle card, and how many more a busy one has.
_IDLE_TEMPERATURE, _HEAT = 32.0, 45.0
#: First compute capability whose driver judges the errors of its SRAM (DCGM, ``DCGM_FI_DEV_THRESHOLD_SRM``: Ampere).
_SRAM_SINCE = (8, 0)
#: Every part of the health of a fabric says that nothing is wrong (nvml.h, ``NVML_GPU_FABRIC_HEALTH_MASK_*``).
WELL_FABRIC = 0x1AA
#: First compute capability with a temperature margin (nvml.h: Ada).
_MARGIN_SINCE = (8, 9)
#: Rule: every card has the limits that ``nvidia-smi -q`` shows for an A100: highest in normal operation, slowdown,
#: shutdown, and highest of the memory.
_OPERATING_LIMIT, _SLOWDOWN, _SHUTDOWN, _MEMORY_LIMIT = 85.0, 89.0, 92.0, 95.0
#: Rule: the share of its power limit that an idle card draws.
_IDLE_POWER = 0.15
#: Rule: clock of an idle card, hertz.
_IDLE_CLOCK = 345 * _MHZ


class _Board(NamedTuple):
    """Power limit in watts, and highest clocks of SMs and memory in MHz."""

    watts: float
    sm_mhz: float
    memory_mhz: float


#: By the beginning of a model's short name, from NVIDIA's data sheets; the longest match counts.
_BOARDS: Mapping[str, _Board] = {
    "": _Board(300, 1500, 1215),
    "A100": _Board(400, 1410, 1593),
    "A30": _Board(165, 1440, 1215),
    "H100": _Board(700, 1980, 2619),
    "H200": _Board(700, 1980, 3201),
    "B200": _Board(1000, 1965, 3996),
    "T4": _Board(70, 1590, 5001),
    "V100": _Board(300, 1530, 877),
}
_NVLINK_BYTES = Quantity.NVLINK_TRANSMITTED, Quantity.NVLINK_RECEIVED
#: Quantities that a card without NVLinks does not report.
_OF_NVLINKS = (
    *_NVLINK_BYTES,
    Quantity.NVLINK_CRC_FLIT_ERRORS,
    Quantity.NVLINK_CRC_DATA_ERRORS,
    Quantity.NVLINK_REPLAYS,
    Quantity.NVLINK_RECOVERIES,
)
#: Quantities that a card in MIG mode does not report.
_NOT_IN_MIG_MODE = (
    Quantity.GPU_UTILIZATION,
    Quantity.MEMORY_UTILIZATION,
    Quantity.ENCODER_UTILIZATION,
    Quantity.DECODER_UTILIZATION,
    *_OF_NVLINKS,
)


def measure_card(card: SimCard, counters: Mapping[Quantity, float], *, first: bool) -> Measurements:
    """Measures a whole card.

    Args:
        card: the card.
        counters: counters that grow with time; others are 0.
        first: GPM has no earlier sample of it.
    """
    board = _board(card)
    load = card_load(card)
    values = {
        Quantity.GPU_UTILIZATION: load,
        Quantity.MEMORY_UTILIZATION: _use(card.processes, Quantity.DRAM_ACTIVE),
        Quantity.ENCODER_UTILIZATION: _use(card.processes, Quantity.ENCODER_UTILIZATION) if has_encoders(card) else 0.0,
        Quantity.DECODER_UTILIZATION: _use(card.processes, Quantity.DECODER_UTILIZATION),
        Quantity.SM_CLOCK: highest_clock(card) if load else _IDLE_CLOCK,
        Quantity.MEMORY_CLOCK: board.memory_mhz * _MHZ,
        Quantity.TEMPERATURE: _IDLE_TEMPERATURE + _HEAT * load,
        Quantity.MEMORY_TEMPERATURE: _IDLE_TEMPERATURE + _HEAT * load,
        Quantity.SLOWDOWN_TEMPERATURE: _SLOWDOWN,
        Quantity.SHUTDOWN_TEMPERATURE: _SHUTDOWN,
        Quantity.MEMORY_TEMPERATURE_LIMIT: _MEMORY_LIMIT,
        Quantity.POWER: card_power(card),
        Quantity.POWER_LIMIT: board.watts,
        Quantity.THROTTLE_REASONS: 0.0 if load else 1.0,
    }
    values |= dict.fromkeys(_COUNTERS, 0.0)
    values |= counters
    absent: dict[Quantity, Absence] = {}
    memory = read_memory(SimDevice(card))
    sizes = Quantity.MEMORY_TOTAL, Quantity.MEMORY_USED, Quantity.MEMORY_FREE, Quantity.MEMORY_RESERVED
    if memory.total:
        values |= zip(sizes, map(float, (memory.total, memory.used, memory.total - memory.used, 0)), strict=True)
    else:
        absent |= dict.fromkeys(sizes, Absence.NOT_SUPPORTED)
    if card.mig_enabled:
        absent |= dict.fromkeys((*_NOT_IN_MIG_MODE, *ACTIVITIES), Absence.MIG_MODE)
    else:
        _add_activities(card, card.processes, values, absent, first=first)
        if not link_count(card) and card.nvlinks is None:
            absent |= dict.fromkeys(_OF_NVLINKS, Absence.NOT_SUPPORTED)
    values |= {Quantity(name): value for name, value in card.measured.items()}
    if card.gpu_model.compute_capability >= _MARGIN_SINCE:
        values.setdefault(Quantity.TEMPERATURE_MARGIN, _OPERATING_LIMIT - values[Quantity.TEMPERATURE])
    else:
        absent[Quantity.TEMPERATURE_MARGIN] = Absence.NOT_SUPPORTED
    if card.gpu_model.compute_capability < _SRAM_SINCE:
        absent[Quantity.SRAM_THRESHOLD_EXCEEDED] = Absence.NOT_SUPPORTED
    if attributes_of(card).fabric is not None:
        values.setdefault(Quantity.FABRIC_HEALTH, WELL_FABRIC)
    elif Quantity.FABRIC_HEALTH not in values:
        absent[Quantity.FABRIC_HEALTH] = Absence.NOT_SUPPORTED
    return _report(card, values, absent)


def measure_instance(card: SimCard, instance: SimGpuInstance, *, first: bool) -> Measurements:
    """Measures the activity of one GPU instance."""
    values: dict[Quantity, float] = {}
    absent: dict[Quantity, Absence] = {}
    processes = [one for one in card.processes if one.gi_id == instance.gi_id]
    _add_activities(card, processes, values, absent, first=first)
    return _report(card, values, absent)


def _report(card: SimCard, values: Mapping[Quantity, float], absent: Mapping[Quantity, Absence]) -> Measurements:
    unreported = {Quantity(name) for name in card.unreported}
    absent = {**absent, **dict.fromkeys(unreported & values.keys(), Absence.NOT_SUPPORTED)}
    return Measurements({each: value for each, value in values.items() if each not in absent}, absent)


def process_activity(card: SimCard) -> list[ProcessActivity]:
    """Returns each process's share of the card's time; the processes of a busy card share it."""
    wanted = sum(one.activity for one in card.processes)
    scale = 1 / max(1.0, wanted)
    return [ProcessActivity(pid=one.pid, sm=one.activity * scale) for one in card.processes if one.activity]


def nvlink_rates(card: SimCard) -> Mapping[Quantity, float]:
    """Bytes per second that the card sends and receives over its NVLinks; empty for a card without links."""
    links = link_count(card)
    return {each: links * _use(card.processes, each) for each in (_NVLINK_BYTES if links else ())}


def card_load(card: SimCard) -> float:
    """The share of the card's time and slices in which anything computes, 0 to 1."""
    if not card.mig_enabled:
        return min(1.0, sum(one.activity for one in card.processes))
    geometry = card.geometry
    slices = sum(geometry.profile(each.profile).compute_slices * _instance_load(card, each) for each in card.instances)
    return slices / max(profile.compute_slices for profile in geometry.profiles)


def card_power(card: SimCard) -> float:
    """Watts that the card draws."""
    set_by_test = card.measured.get(Quantity.POWER.value)
    if set_by_test is not None:
        return set_by_test
    held = max((WORKS[one.work].power for one in card.processes), default=0.0)
    return _board(card).watts * max(held, _IDLE_POWER + (1 - _IDLE_POWER) * card_load(card))


#: Counters that stay 0 unless they grow with time, or a test or the lab sets them.
_COUNTERS: Sequence[Quantity] = (
    Quantity.ENERGY,
    Quantity.PCIE_REPLAYS,
    Quantity.ECC_CORRECTED,
    Quantity.ECC_UNCORRECTED,
    Quantity.ROWS_REMAPPED_CORRECTABLE,
    Quantity.ROWS_REMAPPED_UNCORRECTABLE,
    Quantity.ROW_REMAP_PENDING,
    Quantity.ROW_REMAP_FAILED,
    Quantity.SRAM_THRESHOLD_EXCEEDED,
    *_OF_NVLINKS,
    Quantity.THROTTLED_POWER,
    Quantity.THROTTLED_THERMAL,
    Quantity.THROTTLED_SYNC_BOOST,
    Quantity.THROTTLED_BOARD_LIMIT,
    Quantity.THROTTLED_LOW_UTILIZATION,
    Quantity.THROTTLED_RELIABILITY,
)


def _add_activities(
    card: SimCard,
    processes: Iterable[SimProcess],
    values: dict[Quantity, float],
    absent: dict[Quantity, Absence],
    *,
    first: bool,
) -> None:
    if card.gpu_model.compute_capability < _GPM_SINCE:
        absent |= dict.fromkeys(ACTIVITIES, Absence.NO_GPM)
    elif first:
        absent |= dict.fromkeys(ACTIVITIES, Absence.FIRST_SAMPLE)
    else:
        values |= {each: _use(processes, each) for each in ACTIVITIES}


def _use(processes: Iterable[SimProcess], quantity: Quantity) -> float:
    """How much of a quantity processes use together; those of a busy device share its time."""
    listed = list(processes)
    wanted = sum(one.activity for one in listed)
    return sum(one.activity * WORKS[one.work].share(quantity) for one in listed) / max(1.0, wanted)


def _instance_load(card: SimCard, instance: SimGpuInstance) -> float:
    return min(1.0, sum(one.activity for one in card.processes if one.gi_id == instance.gi_id))


def power_limit(card: SimCard) -> float:
    """Watts that the card may draw."""
    return _board(card).watts


def highest_clock(card: SimCard) -> float:
    """Hertz of the SMs of a card that computes and is not slowed down."""
    return _board(card).sm_mhz * _MHZ


def _board(card: SimCard) -> _Board:
    return _BOARDS[max(_beginnings(card.model), key=len)]


def _beginnings(model: str) -> Iterator[str]:
    return (name for name in _BOARDS if model.startswith(name))


#: By counter, the bits of nvmlClocksEventReasons (nvml.h) during which it grows: SwThermalSlowdown and
#: HwThermalSlowdown; SwPowerCap.
_THROTTLES: Mapping[Quantity, int] = {Quantity.THROTTLED_THERMAL: 0x20 | 0x40, Quantity.THROTTLED_POWER: 0x4}


class GrowingCounters:
    """Counters of one machine's cards.

    Args:
        now: seconds of a clock.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        #: By card, the time of its last measurement and its counters then.
        self._counted: dict[GpuUuid, tuple[float, dict[Quantity, float]]] = {}

    def count(self, card: SimCard) -> Mapping[Quantity, float]:
        """Counts the time since the card's last measurement; returns its counters in base units."""
        now = self._now()
        since, values = self._counted.get(card.uuid, (now, dict.fromkeys((Quantity.ENERGY, *_THROTTLES), 0.0)))
        reasons = int(card.measured.get(Quantity.THROTTLE_REASONS.value, 0.0))
        values[Quantity.ENERGY] += card_power(card) * (now - since)
        for quantity, bits in _THROTTLES.items():
            values[quantity] += (now - since) * bool(reasons & bits)
        growing = {**nvlink_rates(card), **{Quantity(name): rate for name, rate in card.growth.items()}}
        for quantity, rate in growing.items():
            values[quantity] = values.get(quantity, 0.0) + (now - since) * rate
        self._counted[card.uuid] = now, values
        return dict(values)
