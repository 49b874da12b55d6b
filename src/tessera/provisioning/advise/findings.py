"""What is wrong with a node group's autoscaling, worst first, in sentences.

A missing accelerator label comes before any timer: without it the autoscaler takes a node for ready while it has no
card yet, so pods that still do not fit cause one more node after the other, and the nodes look empty.
"""

import math
from collections.abc import Iterator
from enum import IntEnum

import msgspec

from tessera.provisioning.advise.loop import ReplaceLoop, replace_loop
from tessera.provisioning.advise.samples import GroupTimes
from tessera.provisioning.advise.timers import WANTED, Advice, Bound, Timers
from tessera.provisioning.statistics import needed

#: Labels by which autoscalers know a node that will have cards, by provider.
ACCELERATOR_LABELS = {
    "cluster-api/accelerator": "Cluster API and OpenShift",
    "k8s.amazonaws.com/accelerator": "AWS",
    "cloud.google.com/gke-accelerator": "GKE",
    "kubernetes.azure.com/accelerator": "Azure",
    "accelerator": "Azure, older",
    "aliyun.accelerator/nvidia_name": "Alibaba Cloud",
}


class Rank(IntEnum):
    """How bad a finding is; the worst first."""

    LABEL_MISSING = 1
    LOOP = 2
    TIMER_SHORT = 3
    NO_DEADLINE = 4
    LABEL_UNKNOWN = 5
    TOO_FEW = 6
    NO_VALUES = 7
    TIMER_LONG = 8


class Finding(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One thing to know.

    Attributes:
        rank: how bad it is.
        group: the node group.
        text: what is wrong.
        remedy: what to do.
    """

    rank: Rank
    group: str
    text: str
    remedy: str = ""


def findings(
    times: GroupTimes, advice: Advice, current: Timers, *, labelled: bool | None, karpenter: bool = False
) -> tuple[Finding, ...]:
    """Everything that is to be said of a group, worst first.

    Args:
        times: what was measured.
        advice: the timers that follow.
        current: the timers that are in force.
        labelled: whether nodes carry an accelerator label from registration on; None if not known.
        karpenter: Karpenter makes the nodes; it needs no label, and has other timers.
    """
    found = [*_label(times, labelled), *_timers(times, advice, current, labelled)] if not karpenter else [*_karpenter()]
    found += _sizes(advice)
    return tuple(sorted(msgspec.structs.replace(each, group=times.group) for each in found))


def loop_of(times: GroupTimes, timer: float | None) -> ReplaceLoop | None:
    """The replace loop of a timer; None where the timer or the times are not known."""
    return replace_loop(times.provision, timer) if timer is not None and times.provision else None


def _label(times: GroupTimes, labelled: bool | None) -> Iterator[Finding]:
    remedy = (
        "put the provider's label on the nodes from registration on, e.g. cluster-api/accelerator in the MachineSet's "
        "spec.template.spec.metadata.labels, with the type that --gpu-total or ClusterAutoscaler gpus[].type names"
    )
    if labelled is False:
        text = (
            "the accelerator label is missing: the autoscaler takes a node without its cards for ready, makes more "
            "nodes for the same pod, and removes the first as empty"
        )
        yield Finding(rank=Rank.LABEL_MISSING, group=times.group, text=text, remedy=remedy)
    if labelled is None:
        text = "it is not known whether its nodes carry an accelerator label; without one no timer helps"
        yield Finding(rank=Rank.LABEL_UNKNOWN, group=times.group, text=text, remedy=remedy)


def _timers(times: GroupTimes, advice: Advice, current: Timers, labelled: bool | None) -> Iterator[Finding]:
    loop = loop_of(times, current.max_node_provision)
    if loop is not None and loop.late:
        yield _loop(times.group, loop, advice)
    names = [
        ("maxNodeStartupTime", current.max_node_startup, advice.startup, advice.timers.max_node_startup),
        ("delayAfterAdd", current.delay_after_add, advice.ready, advice.timers.delay_after_add),
    ]
    if not loop or not loop.late:
        pair = (current.max_node_provision, advice.provision, advice.timers.max_node_provision)
        names.insert(0, ("maxNodeProvisionTime", *pair))
    if labelled is not True:
        names.append(("unneededTime", current.unneeded, advice.ready, advice.timers.unneeded))
    for name, now, measured, better in names:
        if now is not None and measured is not None and better is not None:
            yield from _timer(times.group, name, now, measured, better)


def _loop(group: str, loop: ReplaceLoop, advice: Advice) -> Finding:
    attempts = "no attempt ever is in time" if math.isinf(loop.attempts) else f"{loop.attempts:.1f} attempts expected"
    wasted = (
        "node time is paid for nothing without end"
        if math.isinf(loop.wasted_node_hours)
        else f"{loop.wasted_node_hours:.2f} node hours paid for nothing per node"
    )
    text = (
        f"replace loop: {loop.late:.0%} of its nodes take longer than maxNodeProvisionTime {span(loop.timer)} "
        f"(between {loop.late_low:.0%} and {loop.late_high:.0%} at 95 %); {attempts}, {wasted}"
    )
    better = advice.timers.max_node_provision
    remedy = f"set maxNodeProvisionTime to {span(better)}" if better is not None else ""
    return Finding(rank=Rank.LOOP if loop.loops else Rank.TIMER_SHORT, group=group, text=text, remedy=remedy)


def _timer(group: str, name: str, now: float, measured: Bound, better: float) -> Iterator[Finding]:
    if now < measured.seconds:
        text = f"{name} {span(now)} is shorter than what its nodes take: up to {span(measured.seconds)}"
        yield Finding(rank=Rank.TIMER_SHORT, group=group, text=text, remedy=f"set {name} to {span(better)}")
    elif now > 2 * better and measured.supported:
        text = f"{name} {span(now)} is more than twice what its nodes need; a broken node is paid for that long"
        yield Finding(rank=Rank.TIMER_LONG, group=group, text=text, remedy=f"set {name} to {span(better)}")


def _karpenter() -> Iterator[Finding]:
    text = (
        "Karpenter waits without a deadline for the resources of a node that has registered: one whose cards never "
        "come blocks its pods for ever"
    )
    remedy = "let Tessera end it: tessera controller --replace-failed, with a startup taint on the NodePool"
    yield Finding(rank=Rank.NO_DEADLINE, group="", text=text, remedy=remedy)


def _sizes(advice: Advice) -> Iterator[Finding]:
    named = {"request to usable card": advice.provision, "registration to usable card": advice.startup}
    named["Ready to usable card"] = advice.ready
    for name, measured in named.items():
        if measured is None:
            yield Finding(rank=Rank.NO_VALUES, group="", text=f"no node was measured from {name}")
        elif not measured.supported:
            text = (
                f"{measured.n} nodes were measured from {name}: that cannot support p99, which needs "
                f"{needed(WANTED)}; bounded is p{measured.share * 100:.0f}"
            )
            yield Finding(rank=Rank.TOO_FEW, group="", text=text, remedy="measure more nodes before timers are cut")


def span(seconds: float) -> str:
    """Seconds as autoscalers write them: ``5m30s``, ``45s``, ``15m``."""
    minutes, rest = divmod(round(seconds), 60)
    return (f"{minutes}m" if minutes else "") + (f"{rest}s" if rest or not minutes else "")
