"""Load and memory of a pod on its cards, as functions of time. Pure.

The same seed and pod give the same curve in each run. Times are in seconds since the pod began to follow the curve.
"""

import math
import random
import re
from enum import Enum

import msgspec

from tessera.kube.quantity import integer_value
from tessera.nvml.simulated.machine_state import ORDINARY, WORKS
from tessera.text import one_line

_SPAN = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)(s|m|h)")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_PERCENT = re.compile(r"([0-9]{1,3})%")
#: Seconds for which one random number of a load holds.
_STEP = 10.0
#: Largest deviation of a load from its curve, as a part of the distance between low and high.
_NOISE = 0.1
#: Share of a period in which bursts compute.
_BURST = 0.3


def parse_span(text: str) -> float:
    """Returns seconds: ``90s``, ``10m``, ``1.5h``.

    Raises:
        ValueError: the text is no span.
    """
    match = _SPAN.fullmatch(text)
    if match is None:
        raise ValueError(f"span {one_line(text)!r}: a span is a number with s, m or h, e.g. 90s, 10m")
    return float(match[1]) * _UNITS[match[2]]


class LoadShape(Enum):
    """Curve of a load."""

    #: ``high`` all the time.
    STEADY = "steady"
    #: Between ``low`` and ``high`` and back in a period.
    WAVE = "wave"
    #: ``high`` for a part of each period, else ``low``.
    BURSTS = "bursts"


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Share of time in which a pod computes, 0 to 1.

    Attributes:
        high: the highest share.
        low: the lowest.
        shape: the curve between them.
        period: its period.
    """

    high: float
    low: float = 0.0
    shape: LoadShape = LoadShape.STEADY
    period: str = "10m"

    def __post_init__(self) -> None:
        """Checks the values."""
        if not 0 <= self.low <= self.high <= 1:
            raise ValueError(f"load from {self.low:g} to {self.high:g}: both are 0 to 1, and low is not above high")
        if parse_span(self.period) <= 0:
            raise ValueError(f"period {self.period!r}: it is longer than 0")


class Growth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Memory that grows evenly, and then stays.

    Attributes:
        to: memory at the end, as a quantity (``12Gi``) or a part of the device (``90%``).
        start: memory at the beginning, likewise.
        over: the time in between.
    """

    to: str
    start: str = "0%"
    over: str = "0s"

    def __post_init__(self) -> None:
        """Checks the values."""
        memory_bytes(self.to, 1)
        memory_bytes(self.start, 1)
        parse_span(self.over)


class Use(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Load and memory of a pod on each of its devices.

    Attributes:
        load: its load; a number stands for a steady one.
        work: what it does while it computes, a name in :data:`tessera.nvml.simulated.machine_state.WORKS`.
        memory: its memory; a text stands for an amount that it has from the beginning. ``None``: not changed.
    """

    load: float | Load = 0.0
    work: str = ORDINARY
    memory: str | Growth | None = None

    def __post_init__(self) -> None:
        """Checks the values."""
        self.curve()
        self.growth()
        if self.work not in WORKS:
            raise ValueError(f"work {one_line(self.work)!r}: there are {', '.join(WORKS)}")

    def curve(self) -> Load:
        """Returns the load."""
        return self.load if isinstance(self.load, Load) else Load(self.load, self.load)

    def growth(self) -> Growth | None:
        """Returns the memory."""
        return Growth(self.memory, self.memory) if isinstance(self.memory, str) else self.memory


def memory_bytes(text: str, total: int) -> int:
    """Returns bytes.

    Args:
        text: a quantity, or a part of the device in percent.
        total: bytes of the device.

    Raises:
        ValueError: the text is neither.
    """
    match = _PERCENT.fullmatch(text)
    if match is not None:
        if int(match[1]) > 100:
            raise ValueError(f"memory {text!r}: a device has 100%")
        return total * int(match[1]) // 100
    size = integer_value(text)
    if size < 0:
        raise ValueError(f"memory {text!r}: it must not be negative")
    return size


def activity_at(load: Load, elapsed: float, seed: str) -> float:
    """Returns the share of time in which the pod computes.

    Args:
        load: the curve.
        elapsed: the time.
        seed: makes the curves of two pods different.
    """
    if load.high == load.low:
        return load.high
    phase = random.Random(seed).random()
    step = int(elapsed / _STEP)
    noise = _NOISE * (2 * random.Random(f"{seed}/{step}").random() - 1)
    turn = (elapsed / parse_span(load.period) + phase) % 1.0
    match load.shape:
        case LoadShape.STEADY:
            height = 1.0
        case LoadShape.WAVE:
            height = (1 - math.cos(2 * math.pi * turn)) / 2
        case LoadShape.BURSTS:
            height = 1.0 if turn < _BURST else 0.0
    share = load.low + (load.high - load.low) * (height + noise)
    return min(load.high, max(load.low, share))


def memory_at(growth: Growth, elapsed: float, total: int) -> int:
    """Returns the bytes that the pod holds.

    Args:
        growth: the curve.
        elapsed: the time.
        total: bytes of the device.
    """
    start, end, over = memory_bytes(growth.start, total), memory_bytes(growth.to, total), parse_span(growth.over)
    part = 1.0 if over <= 0 else min(1.0, elapsed / over)
    return int(start + (end - start) * part)
