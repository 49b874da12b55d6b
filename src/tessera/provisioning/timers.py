"""Derives timers of a cluster autoscaler from measured times, and the loop that a timer causes which is too short.

A timer that is too short removes nodes that would have become usable; one that is too long only keeps a broken node
longer. So each timer is the upper bound of a high quantile, times a margin, plus the delays of the autoscaler itself.

The bound assumes no distribution. If the sample is too small for the requested quantile, the highest quantile that it
supports is used, and the advice says so. Such a sample can make a timer longer, never shorter: the timer keeps its
present value, or the autoscaler's default if that is larger or the present value is not known. The same holds if nodes
were lost, since the times of the others are too short.

**The replace loop.** A node takes longer than the autoscaler waits, so the autoscaler replaces it, again and again.

The autoscaler gives the node up and requests another one, which takes as long as the first. Let ``q`` be the share of
nodes that take longer than the timer ``tau``, and ``b`` the back-off of the node group:

* attempts until one is in time: ``1 / (1 - q)``, none ever for ``q = 1``;
* time until then: ``q / (1 - q) * (tau + b)`` plus the time of one that is in time;
* node time paid for nothing: ``q / (1 - q) * (tau + removal)``.

Without the accelerator label the autoscaler counts the node as ready and empty instead. Then the timer is ``unneeded``,
which runs from Ready on, and there is no back-off. ``delay_after_add`` runs from the request on and may be longer.

``q`` is counted in the sample. Few values say little about rare nodes, so its interval (Clopper and Pearson) is shown
too: after twenty nodes that were all in time, one in seven may still be late.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from tessera.provisioning.start_times import CONFIDENCE, GroupTimes, at_most, quantile, supported_share, upper_bound

#: Seconds of the back-off of a node group after a scale-up that failed: first and longest (cluster autoscaler).
BACKOFF = (300.0, 1800.0)
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


# The replace loop


class ReplaceLoop(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a timer on a node group.

    Attributes:
        timer: seconds that the autoscaler waits.
        late: share of nodes that take longer.
        late_low: lower end of its interval.
        late_high: upper end of its interval.
        attempts: expected attempts until a node is in time; infinite if none ever is.
        seconds: expected time until a node is in time; infinite if none ever is.
        wasted_node_hours: expected node hours paid for nothing, per needed node.
    """

    timer: float
    late: float
    late_low: float
    late_high: float
    attempts: float
    seconds: float
    wasted_node_hours: float

    @property
    def loops(self) -> bool:
        """True if the timer replaces nodes more often than not."""
        return self.late >= 0.5


def replace_loop(
    values: Sequence[float], timer: float, *, backoff: float = BACKOFF[0], removal: float = 0.0
) -> ReplaceLoop:
    """Computes the loop that a timer causes with measured times.

    Args:
        values: times of nodes, seconds; at least one.
        timer: seconds after which the autoscaler gives a node up.
        backoff: seconds for which it then leaves the group alone.
        removal: seconds for which a given-up node still costs money.
    """
    over = sum(value > timer for value in values)
    n = len(values)
    late = over / n
    in_time = [value for value in values if value <= timer]
    odds = late / (1 - late) if in_time else math.inf
    low, high = _interval(over, n)
    return ReplaceLoop(
        timer=timer,
        late=late,
        late_low=low,
        late_high=high,
        attempts=1 + odds,
        seconds=odds * (timer + backoff) + sum(in_time) / len(in_time) if in_time else math.inf,
        wasted_node_hours=odds * (timer + removal) / 3600,
    )


def provision_loop(times: GroupTimes, timers: Timers) -> ReplaceLoop | None:
    """The effect of ``max_node_provision`` on a group; None if the timer or the times are not known."""
    timer = timers.max_node_provision
    return replace_loop(times.provision, timer) if timer is not None and times.provision else None


def empty_loop(times: GroupTimes, timers: Timers) -> ReplaceLoop | None:
    """The effect of ``unneeded`` on a group whose nodes have no accelerator label; None if it is not known."""
    if timers.unneeded is None or not times.ready:
        return None
    timer = timers.unneeded
    if timers.delay_after_add is not None and times.provision:
        until_ready = quantile(times.provision, 0.5) - quantile(times.ready, 0.5)
        timer = max(timer, timers.delay_after_add - until_ready)
    return replace_loop(times.ready, timer, backoff=0.0)


def _interval(over: int, n: int) -> tuple[float, float]:
    """Clopper and Pearson's interval of a share, by bisection of the binomial tails."""
    tail = (1 - CONFIDENCE) / 2
    low = 0.0 if not over else _solve(lambda share: 1 - at_most(over - 1, n, share) >= tail)
    high = 1.0 if over == n else _solve(lambda share: at_most(over, n, share) <= tail)
    return low, high


def _solve(beyond: Callable[[float], bool]) -> float:
    """The smallest share for which a condition holds, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if beyond(middle) else (middle, high)
    return (low + high) / 2
