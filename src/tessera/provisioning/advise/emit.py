"""Advice in the words of each autoscaler: an OpenShift object, Cluster API annotations, flags, Karpenter settings.

Global timers apply to all node groups, so each is the longest that any group needs. Annotations are per group.
"""

from collections.abc import Sequence
from typing import Any

from tessera.provisioning.advise.findings import span
from tessera.provisioning.advise.timers import Advice, Timers

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
