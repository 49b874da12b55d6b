"""The replace loop: a node takes longer than the autoscaler waits, so the autoscaler replaces it, again and again.

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
from collections.abc import Callable, Sequence

import msgspec

from tessera.provisioning.advise.samples import GroupTimes
from tessera.provisioning.advise.timers import Timers
from tessera.provisioning.statistics import CONFIDENCE, at_most, quantile

#: Seconds of the back-off of a node group after a scale-up that failed: first and longest (cluster autoscaler).
BACKOFF = (300.0, 1800.0)


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
