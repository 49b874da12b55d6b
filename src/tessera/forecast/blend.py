"""Blends the simulation's forecast with that of past waits, by weights that follow who was right of late.

Each end of a range has one weight for the past waits. After each start the pinball losses of both forecasts are
compared, and the weight moves by exponentiated gradient with a fixed share (Herbster and Warmuth, *Tracking the best
expert*, 1998): the worse forecast keeps about a tenth, so the blend follows when it becomes the better one. A loss
counts as its part of both losses. So a wait of days moves the weights no more than one of minutes.

The middle is mixed in logarithms: a tenth of a forecast that is 50 times too late makes it half as late again, not six
times. The late end is mixed in seconds, as it has to hold: with logarithms more pods start after it.
"""

import math
from collections.abc import Sequence

import msgspec

#: Shares of the starts that come before the two ends of a range.
_SHARES = (0.5, 0.9)
#: Speed of the weights, and the part that is shared out evenly after each start.
_SPEED, _EVEN = 0.1, 0.02

#: The two ends of a range, in seconds.
Range = tuple[float, float]


class Blend(msgspec.Struct, array_like=True):
    """The weights of past waits in the two ends of a range, from 0 to 1; the rest is the simulation's."""

    middle: float = 0.5
    late: float = 0.5

    def mix(self, simulated: Range, waits: Range) -> Range:
        """Returns the blended range."""
        logarithm = (1 - self.middle) * math.log1p(simulated[0]) + self.middle * math.log1p(waits[0])
        p50, p90 = math.expm1(logarithm), (1 - self.late) * simulated[1] + self.late * waits[1]
        return p50, max(p50, p90)

    def note(self, wait: float, simulated: Range, waits: Range) -> None:
        """Takes in that a pod started, ``wait`` seconds after both had been forecast."""
        self.middle, self.late = (
            _moved(weight, pinball(wait, one, share), pinball(wait, other, share))
            for weight, one, other, share in zip(self._weights, simulated, waits, _SHARES, strict=True)
        )

    @property
    def _weights(self) -> Sequence[float]:
        return self.middle, self.late


def pinball(wait: float, forecast: float, share: float) -> float:
    """The loss of one end of a range: least in the long run for the quantile of that share."""
    return (share if wait >= forecast else share - 1) * (wait - forecast)


def _moved(weight: float, simulated: float, waits: float) -> float:
    both = simulated + waits
    if both <= 0:
        return weight
    one, other = (1 - weight) * math.exp(-_SPEED * simulated / both), weight * math.exp(-_SPEED * waits / both)
    return (1 - _EVEN) * other / (one + other) + _EVEN / 2
