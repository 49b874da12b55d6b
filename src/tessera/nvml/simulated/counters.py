"""Counters of simulated cards that grow with time: energy, NVLink bytes, seconds of slow-downs, errors that are set.

A counter is over the time since this process measured the card first. Between two measurements the card counts as it is
at the second one.
"""

from collections.abc import Callable, Mapping

from tessera.nvml.interface import GpuUuid
from tessera.nvml.measurements import Quantity
from tessera.nvml.simulated.load import card_power, nvlink_rates
from tessera.nvml.simulated.machine_state import SimCard

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
