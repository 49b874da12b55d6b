"""Decides whether an overdue node is replaced: a limited number, and never against an annotation that forbids it. Pure.

Replacing helps against a broken machine, not against a driver that does not exist. So a node whose driver is held back
by a cause that would hold back another node's too is not replaced. That cannot always be known, so the number of
replacements per group and hour is limited. Replacements are counted in the history, so a controller that restarts
continues the count; a node is in the history before it is deleted.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

import msgspec

from tessera.clock import rfc3339
from tessera.kube.resources import Node
from tessera.provisioning.milestones import ProvisioningRecord
from tessera.provisioning.node_readiness import driver_status, driver_text
from tessera.provisioning.startup.deadline import (
    DRIVER_REASONS,
    ProvisionedCondition,
    StartupDeadline,
    deadline_began,
    shared_cause_text,
)
from tessera.text import count_noun

#: Seconds in which replacements of a group are counted.
HOUR = 3600.0

#: Annotations of a node or its Machine that forbid its removal: Karpenter's, the cluster autoscaler's, and those by
#: which Cluster API leaves a machine alone.
PROTECTING: Mapping[str, frozenset[str] | None] = {
    "karpenter.sh/do-not-disrupt": frozenset({"true"}),
    "cluster-autoscaler.kubernetes.io/scale-down-disabled": frozenset({"true"}),
    "cluster.x-k8s.io/skip-remediation": None,
    "cluster.x-k8s.io/paused": None,
}


class ReplacementAnswer(Enum):
    """The outcomes for an overdue node."""

    #: Replacement is off, or in progress.
    NOTHING = "nothing"
    REPLACE = "replace"
    #: An annotation or a cordon forbids it, or the limit is reached.
    HELD = "held"


class ReplacementDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, with the reason in a sentence."""

    answer: ReplacementAnswer
    text: str = ""


def shared_cause(
    node: Node, record: ProvisioningRecord, condition: ProvisionedCondition, *, deadline: StartupDeadline, now: float
) -> str:
    """Reason that another node in place of an overdue one would fail too; empty if it might not."""
    status, until = driver_status(node), deadline.end(deadline_began(node, record, now), record.waited)
    if status is not None and status.shared and condition.reason in DRIVER_REASONS:
        return f"another node in its place would have the same driver status: {driver_text(node)}"
    return f"{shared_cause_text(record)}; it has until {rfc3339(until)}" if now < until else ""


def has_no_driver_status(node: Node, condition: ProvisionedCondition) -> bool:
    """True if an overdue node has no driver and no status that explains it."""
    return condition.reason in DRIVER_REASONS and driver_status(node) is None


def decide_replacement(
    record: ProvisioningRecord,
    history: Iterable[ProvisioningRecord],
    *,
    limit: int,
    now: float,
    deleting: bool,
    cordoned: bool,
    shared_cause: str,
    annotations: Sequence[Mapping[str, str]],
) -> ReplacementDecision:
    """Decides whether an overdue node is replaced.

    Args:
        record: the node's provisioning record.
        history: the records of the history.
        limit: maximum number of nodes of one group to replace in an hour; 0 for none.
        now: seconds since 1970.
        deleting: the node or its Machine is being deleted.
        cordoned: somebody cordoned the node.
        shared_cause: why another node in its place would fail too; empty if it might not.
        annotations: annotations of the node and of its Machine.
    """
    if limit <= 0 or deleting or record.usable:
        return ReplacementDecision(answer=ReplacementAnswer.NOTHING)
    if cordoned:
        return ReplacementDecision(answer=ReplacementAnswer.HELD, text="somebody cordoned it")
    for name, values in PROTECTING.items():
        if any(name in each and (values is None or each[name] in values) for each in annotations):
            return ReplacementDecision(answer=ReplacementAnswer.HELD, text=f"its annotation {name} forbids it")
    if shared_cause:
        return ReplacementDecision(answer=ReplacementAnswer.HELD, text=shared_cause)
    if record.replaced is not None:
        return ReplacementDecision(answer=ReplacementAnswer.REPLACE)  # it is counted already, but its deletion failed
    recent = sum(1 for each in history if _counts(each, record, now))
    if recent >= limit:
        group = f"group {record.group}" if record.group else "no known group"
        most = f"{count_noun(limit, 'node')} of {group} in an hour"
        return ReplacementDecision(
            answer=ReplacementAnswer.HELD, text=f"{most} were replaced already, which is the limit"
        )
    return ReplacementDecision(answer=ReplacementAnswer.REPLACE)


def _counts(other: ProvisioningRecord, record: ProvisioningRecord, now: float) -> bool:
    return other.group == record.group and other.replaced is not None and now - other.replaced < HOUR
