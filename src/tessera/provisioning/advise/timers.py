"""Derives timers of a cluster autoscaler from measured times.

A timer that is too short removes nodes that would have become usable; one that is too long only keeps a broken node
longer. So each timer is the upper bound of a high quantile, times a margin, plus the delays of the autoscaler itself.

The bound assumes no distribution. If the sample is too small for the requested quantile, the highest quantile that it
supports is used, and the advice says so. Such a sample can make a timer longer, never shorter: the timer keeps its
present value, or the autoscaler's default if that is larger or the present value is not known. The same holds if nodes
were lost, since the times of the others are too short.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

from tessera.provisioning.advise.samples import GroupTimes
from tessera.provisioning.statistics import CONFIDENCE, quantile, supported_share, upper_bound

#: The quantile that a timer should cover: one healthy node in a hundred may be given up.
WANTED = 0.99
#: The factor on a measured bound: future times may be longer.
MARGIN = 1.2
#: Seconds of the autoscaler's scan interval, its default (``--scan-interval``).
SCAN = 10.0
#: Seconds for which it collects pending pods that request GPUs before it acts; fixed in its code.
GPU_BUFFER = 30.0
#: Timers are rounded up to whole multiples of this, seconds.
STEP = 30.0


class Timers(msgspec.Struct, frozen=True, kw_only=True):
    """Timers of an autoscaler for one node group, seconds; None where they are not known.

    Attributes:
        max_node_provision: from a scale-up to a registered node with its GPUs.
        max_node_startup: from registration to a node that counts as started.
        unneeded: time that a node must be unneeded before it is removed.
        delay_after_add: time after a scale-up during which no node is removed.
    """

    max_node_provision: float | None = None
    max_node_startup: float | None = None
    unneeded: float | None = None
    delay_after_add: float | None = None


#: The cluster autoscaler's defaults (its FAQ, version 1.35).
DEFAULTS = Timers(max_node_provision=900, max_node_startup=900, unneeded=600, delay_after_add=600)
_UNKNOWN = Timers()
#: Reasons why a timer is not shortened.
TOO_FEW, LOST = "too few samples", "nodes were lost"


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """The upper bound of a duration.

    Attributes:
        n: number of values.
        share: the quantile that is bounded; less than :data:`WANTED` if there are too few values.
        seconds: the bound, at 95 % confidence.
        median: median of the sample.
        p99: the sample's own 99th percentile; unreliable with few values.
    """

    n: int
    share: float
    seconds: float
    median: float
    p99: float

    @property
    def supported(self) -> bool:
        """True if the sample is large enough for the wanted quantile."""
        return self.share >= WANTED


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The recommended timers of one node group.

    Attributes:
        group: its name.
        provision: bound for a request; None without values.
        startup: bound for a registered node.
        ready: bound for a Ready node.
        timers: the recommended timers.
        kept: timers that are longer than the values suggest, with the reason: :data:`TOO_FEW` or :data:`LOST`.
        floors: the minimum of each timer until enough is measured; None if it is not known.
    """

    group: str
    provision: Bound | None
    startup: Bound | None
    ready: Bound | None
    timers: Timers
    kept: Mapping[str, str] = {}
    floors: Timers = _UNKNOWN


def bound(values: Sequence[float]) -> Bound | None:
    """The bound of the wanted quantile, or of the highest that the sample supports; None for no values."""
    if not values:
        return None
    exact = upper_bound(values, WANTED)
    return Bound(
        n=len(values),
        share=WANTED if exact is not None else supported_share(len(values)),
        seconds=exact if exact is not None else max(values),
        median=quantile(values, 0.5),
        p99=quantile(values, WANTED),
    )


def advise(
    times: GroupTimes, *, labelled: bool | None, current: Timers = _UNKNOWN, defaults: Timers = DEFAULTS
) -> Advice:
    """Recommends timers for a group.

    Args:
        times: the measured times.
        labelled: True if its nodes carry the accelerator label from registration on; None (not known) counts as False.
        current: the timers in force.
        defaults: the autoscaler's defaults.
    """
    provision, startup, ready = bound(times.provision), bound(times.startup), bound(times.ready)
    after_ready = _timer(ready, SCAN)
    idle = provision or ready if labelled else ready
    rows = {
        "max_node_provision": (provision, _timer(provision, SCAN + GPU_BUFFER)),
        "max_node_startup": (startup, _timer(startup, SCAN)),
        "unneeded": (idle, _idle(idle) if labelled else after_ready),
        "delay_after_add": (ready, after_ready),
    }
    floors = {name: _floor(getattr(current, name), getattr(defaults, name)) for name in rows}
    timers, kept = {}, {}
    for name, (measured, seconds) in rows.items():
        why = "" if measured is None else TOO_FEW if not measured.supported else LOST if times.lost else ""
        timers[name], short = _no_shorter(seconds, floors[name]) if why else (seconds, False)
        if short:
            kept[name] = why
    return Advice(
        group=times.group,
        provision=provision,
        startup=startup,
        ready=ready,
        timers=Timers(**timers),
        kept=kept,
        floors=Timers(**floors),
    )


def _floor(current: float | None, default: float | None) -> float | None:
    """The larger of both; None if neither is known."""
    known = [each for each in (current, default) if each is not None]
    return math.ceil(max(known)) if known else None


def _no_shorter(seconds: float | None, floor: float | None) -> tuple[float | None, bool]:
    """A timer that is at least a floor, and True if the floor decided it; no timer if no floor is known."""
    if seconds is None or floor is None:
        return None, seconds is not None
    return max(seconds, floor), floor > seconds


def _timer(measured: Bound | None, added: float) -> float | None:
    return None if measured is None else _round_up(measured.seconds * MARGIN + added)


def _idle(measured: Bound | None) -> float | None:
    """Time to keep an unneeded node: as long as making another one takes.

    Then the cost is at most twice that of a decision with knowledge of the future (the ski rental argument). Labelled
    nodes do not count as empty before their GPUs are usable, so there is no other bound.
    """
    return None if measured is None else _round_up(measured.median)


def _round_up(seconds: float) -> float:
    return math.ceil(seconds / STEP) * STEP


def confidence() -> str:
    """The confidence of all bounds, for tables."""
    return f"{CONFIDENCE:.0%}"
