"""Timers of a cluster autoscaler that follow from measured times.

A timer that is too short takes nodes away that would have become usable; one that is too long only lets a broken node
stay longer. So each is the upper bound of a high quantile, times a margin, plus what the autoscaler itself adds.

The bound assumes no distribution. Where the sample is too small for the quantile that was asked for, the highest
quantile that it supports is used, and said. Such a sample can make a timer longer, never shorter: the timer stays at
what it is, or at the autoscaler's default where that is more or the present one is not known. So it is where nodes were
lost: what the others took is too little.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

from tessera.provisioning.advise.samples import GroupTimes
from tessera.provisioning.statistics import CONFIDENCE, quantile, supported, upper_bound

#: The quantile that a timer should cover: one node in a hundred may be taken for broken by mistake.
WANTED = 0.99
#: What is added to a measured bound: the next month is not like the last one.
MARGIN = 1.2
#: Seconds of the autoscaler's scan interval, its default (``--scan-interval``).
SCAN = 10.0
#: Seconds for which it gathers pending pods that ask for GPUs before it acts; fixed in its code.
GPU_BUFFER = 30.0
#: Timers are rounded up to whole multiples of this, seconds.
STEP = 30.0


class Timers(msgspec.Struct, frozen=True, kw_only=True):
    """Timers of an autoscaler for one node group, seconds; None where they are not known.

    Attributes:
        max_node_provision: from a scale-up to a registered node with its cards.
        max_node_startup: from registration to a node that counts as started.
        unneeded: how long a node must be unneeded before it is removed.
        delay_after_add: how long after a scale-up no node is removed.
    """

    max_node_provision: float | None = None
    max_node_startup: float | None = None
    unneeded: float | None = None
    delay_after_add: float | None = None


#: What the cluster autoscaler does when nobody says otherwise (its FAQ, version 1.35).
DEFAULTS = Timers(max_node_provision=900, max_node_startup=900, unneeded=600, delay_after_add=600)
_UNKNOWN = Timers()
#: Why a timer is not shortened.
TOO_FEW, LOST = "too few samples", "nodes were lost"


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """How long something takes at most.

    Attributes:
        n: how many values say so.
        share: the quantile that is bounded; less than :data:`WANTED` where the values are too few.
        seconds: the bound, at 95 % confidence.
        median: of the sample.
        p99: the sample's own 99th percentile, which with few values says little.
    """

    n: int
    share: float
    seconds: float
    median: float
    p99: float

    @property
    def supported(self) -> bool:
        """Whether the sample is large enough for the quantile that was wanted."""
        return self.share >= WANTED


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What one node group should have.

    Attributes:
        group: its name.
        provision: how long a request takes; None without values.
        startup: how long a registered node takes.
        ready: how long a Ready node takes.
        timers: what follows.
        kept: timers that are not as short as the values say, and why: :data:`TOO_FEW` or :data:`LOST`.
        floors: what each timer is not below until enough is measured; None where that is not known.
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
        share=WANTED if exact is not None else supported(len(values)),
        seconds=exact if exact is not None else max(values),
        median=quantile(values, 0.5),
        p99=quantile(values, WANTED),
    )


def advise(
    times: GroupTimes, *, labelled: bool | None, current: Timers = _UNKNOWN, defaults: Timers = DEFAULTS
) -> Advice:
    """The timers for a group.

    Args:
        times: what was measured.
        labelled: whether its nodes carry the accelerator label from registration on; None if that is not known, which
            is advised like no.
        current: the timers in force.
        defaults: what the autoscaler does where nobody says otherwise.
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
    """The larger of both; None where neither is known."""
    known = [each for each in (current, default) if each is not None]
    return math.ceil(max(known)) if known else None


def _no_shorter(seconds: float | None, floor: float | None) -> tuple[float | None, bool]:
    """A timer that is not below a floor, and whether the floor decided it; no timer where no floor is known."""
    if seconds is None or floor is None:
        return None, seconds is not None
    return max(seconds, floor), floor > seconds


def _timer(measured: Bound | None, added: float) -> float | None:
    return None if measured is None else _rounded(measured.seconds * MARGIN + added)


def _idle(measured: Bound | None) -> float | None:
    """How long to keep a node that nobody needs: as long as it takes to make another one.

    Then, whatever comes, no more than twice is paid of what somebody who knew the future would have paid (the ski
    rental argument). Labelled nodes are not taken for empty before their cards are there, so nothing else bounds it.
    """
    return None if measured is None else _rounded(measured.median)


def _rounded(seconds: float) -> float:
    return math.ceil(seconds / STEP) * STEP


def confidence() -> str:
    """The confidence of all bounds, for tables."""
    return f"{CONFIDENCE:.0%}"
