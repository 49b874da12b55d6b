"""Finds what the measurements of a card show to be wrong with it. Pure.

An error lasts as long as the card measures it. The health of the card takes it in as a fault
(:class:`tessera.agent.health.events.ErrorsMeasured`), so condition, Event, metric and page tell it alike. The cap of a
card's power is no error: every card under load reaches it.
"""

from collections.abc import Mapping

from tessera.api.nodes.health import ROW_REMAPPING
from tessera.nvml.measurements import THROTTLE_REASONS, Quantity

#: Throttle reasons of a card that is too hot or lacks power (nvml.h, ``nvmlClocksEventReasons``), in words.
HARDWARE_THROTTLES: Mapping[str, str] = {
    "hw_slowdown": "the hardware slows the card down: heat, or a power brake",
    "sw_thermal": "the driver slows the card down to keep it below its temperature limit",
    "hw_thermal": "the card is too hot, and the hardware slows it down",
    "hw_power_brake": "the server's power supply slows the card down",
}
#: The driver reports ``hw_slowdown`` beside each of these.
_CAUSES_OF_SLOWDOWN = frozenset({"hw_thermal", "hw_power_brake"})
#: What the state of the row remapper means, by its flag.
_ROWS: Mapping[Quantity, str] = {
    Quantity.ROW_REMAP_FAILED: "memory has no spare row left for a bad one: replace the card",
    Quantity.ROW_REMAP_PENDING: "a spare row of memory is used from the next reset on: reset the card when it is free",
}


def find_errors(values: Mapping[Quantity, float]) -> dict[str, str]:
    """The errors of a card, in words by source; empty words for a source that shows none.

    A source whose quantity has no value is missing: whether its error is over is not known.

    Args:
        values: the measurements of the card.
    """
    found: dict[str, str] = {}
    if Quantity.ROW_REMAP_FAILED in values:
        found[ROW_REMAPPING] = next((text for flag, text in _ROWS.items() if values.get(flag)), "")
    if Quantity.THROTTLE_REASONS in values:
        slow = _slowdowns(int(values[Quantity.THROTTLE_REASONS]))
        found |= {
            reason.replace("_", "-"): text if reason in slow else "" for reason, text in HARDWARE_THROTTLES.items()
        }
    return found


def _slowdowns(bits: int) -> set[str]:
    reasons = {reason for bit, reason in THROTTLE_REASONS.items() if bits & bit and reason in HARDWARE_THROTTLES}
    return reasons - {"hw_slowdown"} if reasons & _CAUSES_OF_SLOWDOWN else reasons
