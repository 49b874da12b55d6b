"""Adds to a card's health what a sample shows: its measured errors, and who holds a card that is withheld.

A process without a pod that the kernel proves is listed by PID and name, since it too keeps the card from being reset.

An error lasts as long as the card measures it. The health of the card takes it in as a fault
(:class:`tessera.agent.health.fault.ErrorsMeasured`), so condition, Event, metric and page tell it alike. The cap of a
card's power is no error: every card under load reaches it.

Counters of NVLinks grow with errors, so two samples are compared. The limits are those of DCGM's health checks
(``dcgm_health_watch``): one packet sent again or one link trained again is an error, and checksum errors count from 100
a second on, since a link corrects fewer by itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from tessera.agent.monitoring.sample import GpuSample, NodeSample
from tessera.api.nodes.health import (
    FABRIC,
    NO_SPARE_ROW,
    NVLINK_ERRORS,
    ROW_REMAPPING,
    SRAM_ECC,
    TAKEN,
    CardHealth,
    CardState,
    Holder,
)
from tessera.limits import CARD_HOLDERS
from tessera.nvml.measurements import FABRIC_FLAGS, THROTTLE_REASONS, Absence, Measurements, Quantity
from tessera.text import one_line

#: Throttle reasons of a card that is too hot or lacks power (nvml.h, ``nvmlClocksEventReasons``), in words.
HARDWARE_THROTTLES: Mapping[str, str] = {
    "hw_slowdown": "the hardware slows the card down: heat, or a power brake",
    "sw_thermal": "the driver slows the card down to keep it below its temperature limit",
    "hw_thermal": "the card is too hot, and the hardware slows it down",
    "hw_power_brake": "the server's power supply slows the card down",
}
#: The driver reports ``hw_slowdown`` beside each of these.
_CAUSES_OF_SLOWDOWN = frozenset({"hw_thermal", "hw_power_brake"})
#: Flags of a card's memory: their source, and what it means if they are set.
_MEMORY: Mapping[Quantity, tuple[str, str]] = {
    Quantity.ROW_REMAP_PENDING: (
        ROW_REMAPPING,
        "a spare row of memory is used from the next reset on: reset the card when it is free",
    ),
    Quantity.ROW_REMAP_FAILED: (NO_SPARE_ROW, "memory has no spare row left for a bad one"),
    Quantity.SRAM_THRESHOLD_EXCEEDED: (
        SRAM_ECC,
        "uncorrected errors of on-chip memory exceed NVIDIA's threshold",
    ),
}
#: Checksum errors a second on all NVLinks of a card that are an error (DCGM, ``DCGM_LIMIT_MAX_NVLINK_CRC_ERROR``).
CRC_RATE = 100.0
#: Counters of NVLinks: the growth in a second from which on it is an error, and its words.
_NVLINK: Mapping[Quantity, tuple[float, str]] = {
    Quantity.NVLINK_REPLAYS: (0.0, "packets are sent again"),
    Quantity.NVLINK_RECOVERIES: (0.0, "links are trained again"),
    Quantity.NVLINK_CRC_FLIT_ERRORS: (CRC_RATE, "many checksums of flow control are wrong"),
    Quantity.NVLINK_CRC_DATA_ERRORS: (CRC_RATE, "many checksums of data are wrong"),
}

Values = Mapping[Quantity, float]


def find_errors(measured: Measurements, before: Values, seconds: float) -> dict[str, str]:
    """The errors of a card, in words by source; empty words for a source that shows none.

    A source that the driver failed to measure is missing: whether its error is over is not known.

    Args:
        measured: the measurements of the card.
        before: its values of the sample before; empty for the first one.
        seconds: the time between the two samples.
    """
    values = measured.values
    found = {
        source: text if values.get(flag) else ""
        for flag, (source, text) in _MEMORY.items()
        if _is_known(flag, measured)
    }
    if _is_known(Quantity.FABRIC_HEALTH, measured):
        problems = ", ".join(_fabric_problems(int(values.get(Quantity.FABRIC_HEALTH, 0))))
        found[FABRIC] = f"NVLink fabric of the card: {problems}" if problems else ""
    if seconds > 0 and any(_is_known(counter, measured) for counter in _NVLINK):
        growing = ", ".join(_growing_counters(values, before, seconds))
        found[NVLINK_ERRORS] = f"NVLinks of the card have errors: {growing}" if growing else ""
    if _is_known(Quantity.THROTTLE_REASONS, measured):
        slow = _slowdowns(int(values.get(Quantity.THROTTLE_REASONS, 0)))
        found |= {
            reason.replace("_", "-"): text if reason in slow else "" for reason, text in HARDWARE_THROTTLES.items()
        }
    return found


def _is_known(quantity: Quantity, measured: Measurements) -> bool:
    """True if the quantity has a value, or the card has no such thing."""
    return quantity in measured.values or measured.absent.get(quantity) in {Absence.NOT_SUPPORTED, Absence.MIG_MODE}


def _fabric_problems(mask: int) -> Iterator[str]:
    for flag in FABRIC_FLAGS:
        if problem := flag.problems.get(mask >> flag.shift & flag.width):
            yield problem


def _growing_counters(values: Values, before: Values, seconds: float) -> Iterator[str]:
    for counter, (limit, text) in _NVLINK.items():
        growth = values.get(counter, 0.0) - before.get(counter, values.get(counter, 0.0))
        if growth > 0 and growth >= limit * seconds:
            yield text


def _slowdowns(bits: int) -> set[str]:
    reasons = {reason for bit, reason in THROTTLE_REASONS.items() if bits & bit and reason in HARDWARE_THROTTLES}
    return reasons - {"hw_slowdown"} if reasons & _CAUSES_OF_SLOWDOWN else reasons


#: States of cards that have to be empty.
_TO_EMPTY = frozenset({CardState.NEEDS_RESET, CardState.NEEDS_REBOOT, CardState.LOST})


class HealthSource(Protocol):
    """Knows the health of cards; see :class:`tessera.agent.health.monitor.HealthMonitor`."""

    def describe(self, gpu: str) -> CardHealth:
        """The health of a card by its faults."""
        ...

    def describe_part(self, gpu: str, gi_id: int) -> str:
        """The sentence about the worst fault of a GPU instance, -1 for the whole card; empty without one."""
        ...

    def note_measured(self, gpu: str, errors: Mapping[str, str]) -> None:
        """Takes in the measured errors of a card, see :func:`.find_errors`."""
        ...

    def note_unmeasured(self, gpu: str) -> None:
        """Takes in that a card could not be measured."""
        ...

    def gpus_to_empty(self) -> frozenset[str]:
        """UUIDs of the cards that must be reset or booted."""
        ...


class CardStates:
    """Describes the cards of one node, sample by sample.

    Args:
        health: the faults of the cards.
    """

    def __init__(self, health: HealthSource) -> None:
        self._health = health
        #: The measurements of each card of the last sample, and the monotonic seconds of that sample.
        self._last: dict[str, tuple[Mapping[Quantity, float], float]] = {}

    def handle(self, sample: NodeSample) -> dict[str, CardHealth]:
        """Takes a sample in; returns the health of each of its cards by UUID."""
        found: dict[str, CardHealth] = {}
        last, self._last = self._last, {}
        for gpu in sample.gpus:
            measured = gpu.card.measured
            before, taken = last.get(gpu.info.uuid, ({}, sample.taken))
            self._health.note_measured(gpu.info.uuid, find_errors(measured, before, sample.taken - taken))
            self._last[gpu.info.uuid] = measured.values, sample.taken
            devices = {device.uuid for device in gpu.devices}
            pods = [(each.namespace, each.pod) for each in sample.leases if each.device in devices]
            found[gpu.info.uuid] = _add_holders(self._health.describe(gpu.info.uuid), pods, list(_host_processes(gpu)))
        for silent in sample.silent:
            self._health.note_unmeasured(silent.info.uuid)
            pods = [(each.namespace, each.pod) for each in silent.leases]
            found[silent.info.uuid] = _add_holders(self._health.describe(silent.info.uuid), pods, [])
        return found


def _host_processes(gpu: GpuSample) -> Iterator[Holder]:
    """The processes on a card that the kernel proves for no pod."""
    for pid, name in sorted(
        {(each.pid, each.name) for device in gpu.devices for each in device.processes if each.pod is None}
    ):
        yield Holder(pid=pid, process=one_line(name))


def _add_holders(health: CardHealth, pods: Sequence[tuple[str, str]], processes: Sequence[Holder]) -> CardHealth:
    """Adds who holds a card that is allocated to nobody else; processes without a pod to one that has to be empty."""
    if health.state not in TAKEN:
        return health
    to_empty = health.state in _TO_EMPTY
    names = sorted(set(pods))
    holders = [*(Holder(namespace=namespace, pod=pod) for namespace, pod in names), *(processes if to_empty else ())]
    waiting = "; nobody holds it" if to_empty and not holders else ""
    return msgspec.structs.replace(
        health,
        holders=tuple(holders[:CARD_HOLDERS]),
        next=f"{health.next}{waiting}",
        cut=health.cut + max(0, len(holders) - CARD_HOLDERS),
    )
