"""Finds mistakes in a node group's autoscaling, and describes them in sentences, the worst first.

A missing accelerator label matters more than any timer. Without the label the autoscaler counts a node as ready before
it has a GPU. Pods that still do not fit then cause one more node after the other, and the nodes look empty. If nodes
offer slices or renamed shares, the opposite holds: with the label they never count as ready, and only the startup taint
shows when they are.

Advice is in the words of each autoscaler: an OpenShift object, Cluster API annotations, flags, Karpenter settings.

Global timers apply to all node groups, so each is the longest that any group needs. Annotations are per group.
"""

import math
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any

import msgspec

from tessera.api.names import NODE_GROUPS_MAP
from tessera.api.nodes.node_groups import Pause
from tessera.clock import rfc3339
from tessera.provisioning.start_times import GroupTimes, needed_samples
from tessera.provisioning.startup_deadline import STARTUP_TAINT
from tessera.provisioning.timers import WANTED, Advice, Bound, ReplaceLoop, Timers, empty_loop, provision_loop
from tessera.text import count_noun, list_names


class Rank(IntEnum):
    """The severity of a finding; the worst first."""

    NEVER_READY = 0
    LABEL_MISSING = 1
    LOOP = 2
    OF_NO_USE = 3
    LOST = 4
    TIMER_SHORT = 5
    NO_DEADLINE = 6
    EXPENDABLE = 7
    LABEL_UNMATCHED = 8
    LABEL_UNKNOWN = 9
    TOO_FEW = 10
    NO_VALUES = 11
    TIMER_LONG = 12
    TAINT_ALONE = 13


class Finding(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One mistake in the settings.

    Attributes:
        rank: its severity.
        group: the node group.
        text: the mistake.
        remedy: the action that corrects it.
    """

    rank: Rank
    group: str
    text: str
    remedy: str = ""


class Labels(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the accelerator label of a group's nodes.

    Attributes:
        present: True if nodes carry it from registration on; None if not known.
        name: name of the label.
        value: value of the label.
        types: GPU types for which the autoscaler has limits: ``--gpu-total``, ClusterAutoscaler ``gpus[].type``.
        sliced: True if its nodes offer slices or renamed shares, and no ``nvidia.com/gpu``.
    """

    present: bool | None = None
    name: str = ""
    value: str = ""
    types: tuple[str, ...] = ()
    sliced: bool = False

    @property
    def starts(self) -> bool | None:
        """True if the label shows when a node has started; None if that is not known, or the taint shows it."""
        return None if self.sliced else self.present


def findings(
    times: GroupTimes, advice: Advice, current: Timers, *, labels: Labels, karpenter: bool = False
) -> tuple[Finding, ...]:
    """All findings about a group, worst first.

    Args:
        times: the measured times.
        advice: the timers derived from them.
        current: the timers in force.
        labels: facts about the accelerator label.
        karpenter: True if Karpenter makes the nodes; it needs no label, and has other timers.
    """
    found = [*_karpenter()] if karpenter else [*_label(labels), *_timers(times, advice, current, labels.starts)]
    found += [*_lost_node_findings(times), *_sizes(advice)]
    return tuple(sorted(msgspec.structs.replace(each, group=times.group) for each in found))


def expendable_pod_findings(pods: Sequence[str], cutoff: int) -> tuple[Finding, ...]:
    """Findings about pods that request GPUs and are below the autoscaler's priority cutoff.

    Args:
        pods: ``namespace/name`` of each.
        cutoff: ``--expendable-pods-priority-cutoff``, ClusterAutoscaler ``podPriorityThreshold``.
    """
    if not pods:
        return ()
    named = list_names(pods, 3)
    text = f"no node is ever made for {named}: their priority is below the autoscaler's cutoff of {cutoff}"
    remedy = f"give them a PriorityClass of at least {cutoff}, below that of the pods that may push them aside"
    return (Finding(rank=Rank.EXPENDABLE, group="", text=text, remedy=remedy),)


def useless_node_findings(paused: Sequence[tuple[str, str, Pause]]) -> tuple[Finding, ...]:
    """Findings about pods for which no new node is asked for, as those that came were of no use; one for each group.

    Args:
        paused: ``namespace/name`` of each, the group of ``tessera-node-groups``, and the pause.
    """
    found = []
    for group in sorted({group for _, group, _ in paused}):
        pods = sorted(pod for pod, of, _ in paused if of == group)
        last = max((pause for _, of, pause in paused if of == group), key=lambda pause: pause.until)
        text = (
            f"new nodes of group {group} did not help {list_names(pods, 3)}: {last.why}; none is asked for before"
            f" {rfc3339(last.until)}"
        )
        remedy = (
            f"correct the pods' requests (tessera why pod {pods[0]}), or taints, labels and allocatable of the group"
            f" in ConfigMap {NODE_GROUPS_MAP}"
        )
        found.append(Finding(rank=Rank.OF_NO_USE, group="", text=text, remedy=remedy))
    return tuple(found)


def unmanaged_node_findings(nodes: Sequence[tuple[str, str]]) -> tuple[Finding, ...]:
    """Findings about nodes outside autoscaled groups that carry an accelerator label and offer no GPU.

    Args:
        nodes: name and label of each.
    """
    if not nodes:
        return ()
    named = list_names([name for name, _ in nodes], 3)
    labels = ", ".join(sorted({label for _, label in nodes}))
    text = (
        f"{named}: of no autoscaled node group, with {labels} and without nvidia.com/gpu; one such node can stop "
        "scale-up for the whole cluster (kubernetes/autoscaler #10301)"
    )
    name, label = nodes[0]
    remedy = (
        f"take the label off: kubectl label node {name} {label}-; where the cloud writes it again, keep the cards "
        "whole, or share them as nvidia.com/gpu"
    )
    return (Finding(rank=Rank.NEVER_READY, group="", text=text, remedy=remedy),)


def _label_of_slices_findings(labels: Labels) -> Iterator[Finding]:
    taint = f"give its nodes the taint {STARTUP_TAINT}:NoSchedule from registration on, which Tessera takes off"
    if labels.present:
        text = (
            f"its nodes carry {labels.name or 'the accelerator label'} and offer slices or renamed shares: the "
            "autoscaler looks for nvidia.com/gpu alone, never counts them as ready, and with too many of them makes no "
            "node at all (kubernetes/autoscaler #8095); outside an autoscaled group one can stop scale-up for the "
            "whole cluster (#10301)"
        )
        remedy = f"take the label off the group and its nodes, and {taint}"
        yield Finding(rank=Rank.NEVER_READY, group="", text=text, remedy=remedy)
    else:
        text = "its nodes offer slices or renamed shares: an accelerator label would keep them unready for ever"
        yield Finding(rank=Rank.TAINT_ALONE, group="", text=text, remedy=f"give them none; {taint}")


def _label(labels: Labels) -> Iterator[Finding]:
    if labels.sliced:
        yield from _label_of_slices_findings(labels)
        return
    remedy = (
        "put the provider's label on the nodes from registration on, e.g. cluster-api/accelerator in the MachineSet's "
        "spec.template.spec.metadata.labels, with the type that --gpu-total or ClusterAutoscaler gpus[].type names; "
        "not where it offers slices or renamed shares: there the startup taint takes its place"
    )
    if labels.present is False:
        text = (
            "the accelerator label is missing: the autoscaler takes a node without its cards for ready, makes more "
            "nodes for the same pod, and removes the first as empty"
        )
        yield Finding(rank=Rank.LABEL_MISSING, group="", text=text, remedy=remedy)
    if labels.present is None:
        text = "it is not known whether its nodes carry an accelerator label; without one no timer helps"
        yield Finding(rank=Rank.LABEL_UNKNOWN, group="", text=text, remedy=remedy)
    if labels.present and labels.name and labels.types and labels.value not in labels.types:
        types = ", ".join(labels.types)
        text = (
            f'label {labels.name} has the value "{labels.value}", and the autoscaler has limits for {types}: '
            "no limit on cards holds for this group"
        )
        remedy = f'name "{labels.value}" in --gpu-total or ClusterAutoscaler gpus[].type, or give the label that value'
        if not labels.value:
            remedy = f"give the label one of these values: {types}"
        yield Finding(rank=Rank.LABEL_UNMATCHED, group="", text=text, remedy=remedy)


def _timers(times: GroupTimes, advice: Advice, current: Timers, labelled: bool | None) -> Iterator[Finding]:
    better = advice.timers
    named = [
        ("maxNodeStartupTime", current.max_node_startup, advice.startup, better.max_node_startup),
        ("delayAfterAdd", current.delay_after_add, advice.ready, better.delay_after_add),
    ]
    late = provision_loop(times, current)
    if late is not None and late.late:
        yield _loop(late, f"maxNodeProvisionTime {span(late.timer)}", "maxNodeProvisionTime", better.max_node_provision)
    else:
        pair = (current.max_node_provision, advice.provision, better.max_node_provision)
        named.insert(0, ("maxNodeProvisionTime", *pair))
    empty = empty_loop(times, current) if labelled is not True else None
    if empty is not None and empty.late:
        timeout = (
            f"the {span(empty.timer)} for which an empty node is kept (unneededTime {span(current.unneeded or 0)})"
        )
        finding = _loop(empty, timeout, "unneededTime", better.unneeded)
        yield finding if labelled is False else msgspec.structs.replace(finding, rank=Rank.TIMER_SHORT)
    elif labelled is not True:
        named.append(("unneededTime", current.unneeded, advice.ready, better.unneeded))
    # A short delayAfterAdd matters only together with unneededTime, and the loop of unneededTime includes it.
    named = [each for each in named if each[0] != "delayAfterAdd" or _long(*each[1:])]
    for name, now, measured, advised in named:
        if now is not None and measured is not None and advised is not None:
            yield from _timer(name, now, measured, advised)


def _loop(loop: ReplaceLoop, timeout: str, name: str, better: float | None) -> Finding:
    attempts = "no attempt ever is in time" if math.isinf(loop.attempts) else f"{loop.attempts:.1f} attempts expected"
    wasted = (
        "node time is paid for nothing without end"
        if math.isinf(loop.wasted_node_hours)
        else f"{loop.wasted_node_hours:.2f} node hours paid for nothing per node"
    )
    text = (
        f"replace loop: {loop.late:.0%} of its nodes take longer than {timeout} "
        f"(between {loop.late_low:.0%} and {loop.late_high:.0%} at 95 %); {attempts}, {wasted}"
    )
    remedy = f"set {name} to {span(better)}" if better is not None else ""
    return Finding(rank=Rank.LOOP if loop.loops else Rank.TIMER_SHORT, group="", text=text, remedy=remedy)


def _timer(name: str, now: float, measured: Bound, better: float) -> Iterator[Finding]:
    if now < measured.seconds:
        text = f"{name} {span(now)} is shorter than what its nodes take: up to {span(measured.seconds)}"
        yield Finding(rank=Rank.TIMER_SHORT, group="", text=text, remedy=f"set {name} to {span(better)}")
    elif _long(now, measured, better):
        text = f"{name} {span(now)} is more than twice what its nodes need; a broken node is paid for that long"
        yield Finding(rank=Rank.TIMER_LONG, group="", text=text, remedy=f"set {name} to {span(better)}")


def _long(now: float | None, measured: Bound | None, better: float | None) -> bool:
    return now is not None and better is not None and now > 2 * better and measured is not None and measured.supported


def _lost_node_findings(times: GroupTimes) -> Iterator[Finding]:
    if not times.lost:
        return
    text = (
        f"{count_noun(len(times.lost), 'node')} went away before the cards could be used, after "
        f"{span(max(times.lost))} at most; what the others took is too little for a bound"
    )
    remedy = "set timers well above that, and measure again before they are cut"
    yield Finding(rank=Rank.LOST, group="", text=text, remedy=remedy)


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
                f"{count_noun(measured.n, 'node')} {'was' if measured.n == 1 else 'were'} measured from {name}: "
                f"that cannot support p99, which needs {needed_samples(WANTED)}; bounded is p{measured.share * 100:.0f}"
            )
            yield Finding(rank=Rank.TOO_FEW, group="", text=text, remedy="measure more nodes before timers are cut")


def span(seconds: float) -> str:
    """Seconds as autoscalers write them: ``5m30s``, ``45s``, ``15m``."""
    minutes, rest = divmod(round(seconds), 60)
    return (f"{minutes}m" if minutes else "") + (f"{rest}s" if rest or not minutes else "")


FORMATS = ("openshift", "capi", "flags", "karpenter")

#: Prefixes of annotations on a MachineSet or MachineDeployment. The autoscaler's environment variable CAPI_GROUP
#: selects one; OpenShift sets it to its own (clusterapi provider of the cluster autoscaler).
CAPI_GROUP, OPENSHIFT_GROUP = "cluster.x-k8s.io", "machine.openshift.io"
#: The part of the annotation's name after the group and before the option.
CAPI_OPTIONS = "/autoscaling-options-"


def longest(advices: Sequence[Advice]) -> Timers:
    """One set of timers under which no group is given up too early.

    If a group has no advice on a timer, for want of values, the timer is not shorter than that group's minimum.
    """

    def most(name: str) -> float | None:
        advised = [getattr(each.timers, name) for each in advices]
        if all(each is None for each in advised):
            return None
        floors = [getattr(each.floors, name) for each in advices]
        return max(
            (each if each is not None else floor or 0.0 for each, floor in zip(advised, floors, strict=True)),
            default=None,
        )

    return Timers(**{name: most(name) for name in Timers.__struct_fields__})


def openshift(timers: Timers, *, scale_down: bool = True) -> dict[str, Any]:
    """The fields of the ClusterAutoscaler ``default`` for these timers.

    Use ``oc apply --server-side`` with a field manager of its own, so that the other fields stay. Under the field
    manager that wrote them, the server would remove them. It has no field for ``maxNodeStartupTime``: see :func:`capi`.

    Args:
        timers: its timers.
        scale_down: True if nodes are removed at all; the object must say this beside the timers.
    """
    spec: dict[str, Any] = _format_times(maxNodeProvisionTime=timers.max_node_provision)
    down = _format_times(unneededTime=timers.unneeded, delayAfterAdd=timers.delay_after_add)
    if down:
        spec["scaleDown"] = {"enabled": scale_down, **down}
    return {
        "apiVersion": "autoscaling.openshift.io/v1",
        "kind": "ClusterAutoscaler",
        "metadata": {"name": "default"},
        "spec": spec,
    }


def capi(advice: Advice, group: str = CAPI_GROUP) -> dict[str, str]:
    """Annotations of the node group's MachineSet or MachineDeployment.

    Args:
        advice: advice for the group.
        group: :data:`CAPI_GROUP`, or :data:`OPENSHIFT_GROUP` for a MachineSet of OpenShift's own kind.
    """
    timers = advice.timers
    return {
        group + CAPI_OPTIONS + name: text
        for name, text in _format_times(
            maxnodeprovisiontime=timers.max_node_provision,
            maxnodestartuptime=timers.max_node_startup,
            scaledownunneededtime=timers.unneeded,
        ).items()
    }


def flags(timers: Timers) -> list[str]:
    """Flags of the cluster autoscaler; ``--max-node-startup-time`` exists since its version 1.35."""
    named = {
        "max-node-provision-time": timers.max_node_provision,
        "max-node-startup-time": timers.max_node_startup,
        "scale-down-unneeded-time": timers.unneeded,
        "scale-down-delay-after-add": timers.delay_after_add,
    }
    return [f"--{name}={span(value)}" for name, value in named.items() if value is not None]


def karpenter(advice: Advice, taint: str) -> dict[str, Any]:
    """Fields of the group's NodePool: the time to keep an unneeded node, and a taint until its GPUs are there.

    Its consolidationPolicy is left out, since its owner decides that. Karpenter's own deadlines (launch 5 minutes,
    registration 15) cannot be set.
    """
    spec: dict[str, Any] = {"template": {"spec": {"startupTaints": [{"key": taint, "effect": "NoSchedule"}]}}}
    if advice.timers.unneeded is not None:
        spec["disruption"] = {"consolidateAfter": span(advice.timers.unneeded)}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": advice.group or "NODEPOOL"},
        "spec": spec,
    }


def _format_times(**values: float | None) -> dict[str, str]:
    return {name: span(value) for name, value in values.items() if value is not None}
