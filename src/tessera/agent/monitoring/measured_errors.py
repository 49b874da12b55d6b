"""Finds what the measurements of a card show to be wrong with it. Pure.

An error lasts as long as the card measures it. The health of the card takes it in as a fault
(:class:`tessera.agent.health.events.ErrorsMeasured`), so condition, Event, metric and page tell it alike. The cap of a
card's power is no error: every card under load reaches it.

Counters of NVLinks grow with errors, so two samples are compared. The limits are those of DCGM's health checks
(``dcgm_health_watch``): one packet sent again or one link trained again is an error, and checksum errors count from 100
a second on, since a link corrects fewer by itself.
"""

from collections.abc import Iterator, Mapping

from tessera.api.nodes.health import FABRIC, NO_SPARE_ROW, NVLINK_ERRORS, ROW_REMAPPING, SRAM_ECC
from tessera.nvml.measurements import FABRIC_FLAGS, THROTTLE_REASONS, Absence, Measurements, Quantity

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
