"""Whether a node that did not come up is replaced: a bounded number, and never against somebody's word. Pure.

Replacing helps against a broken machine and not against a driver that does not exist. So a node whose driver is kept
from coming by what would keep another one's, too, is not replaced; and as that cannot always be told, it stops after a
number of nodes per group and hour. What was replaced is counted from the book of records, so a controller that starts
anew goes on counting; a node is in the book before it is deleted.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

import msgspec

from tessera.clock import rfc3339
from tessera.kube.resources import Node
from tessera.phrasing import count_noun
from tessera.provisioning.milestones import Record
from tessera.provisioning.node_readiness import driver_status, driver_text
from tessera.provisioning.startup.deadline import DRIVER_REASONS, Patience, Told, begun, kept_back

#: Seconds in which replacements of a group are counted.
HOUR = 3600.0

#: Annotations of a node or of what it was made from that forbid its removal: Karpenter's, the cluster autoscaler's, and
#: those with which Cluster API is told to leave a machine alone.
PROTECTING: Mapping[str, frozenset[str] | None] = {
    "karpenter.sh/do-not-disrupt": frozenset({"true"}),
    "cluster-autoscaler.kubernetes.io/scale-down-disabled": frozenset({"true"}),
    "cluster.x-k8s.io/skip-remediation": None,
    "cluster.x-k8s.io/paused": None,
}


class Answer(Enum):
    """What becomes of a node that is overdue."""

    #: Replacement is off, or under way.
    NOTHING = "nothing"
    REPLACE = "replace"
    #: Somebody forbids it, or there were enough.
    HELD = "held"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, and why in a sentence."""

    answer: Answer
    text: str = ""


def elsewhere(node: Node, record: Record, told: Told, *, patience: Patience, now: float) -> str:
    """Why another node in the place of one that is overdue would have come no further; empty if it might have."""
    status, until = driver_status(node), patience.due(begun(node, record, now), record.waited)
    if status is not None and status.shared and told.reason in DRIVER_REASONS:
        return f"another node in its place would be told the same of its driver: {driver_text(node)}"
    return f"{kept_back(record)}; it has until {rfc3339(until)}" if now < until else ""


def nothing_said(node: Node, told: Told) -> bool:
    """Whether a node that is overdue has no driver, and nothing says what becomes of it."""
    return told.reason in DRIVER_REASONS and driver_status(node) is None


def decide(
    record: Record,
    kept: Iterable[Record],
    *,
    limit: int,
    now: float,
    going: bool,
    cordoned: bool,
    elsewhere: str,
    annotations: Sequence[Mapping[str, str]],
) -> Decision:
    """What becomes of a node that is overdue.

    Args:
        record: its way.
        kept: the book.
        limit: how many of one group are replaced in an hour; 0 for none.
        now: seconds since 1970.
        going: it or what it was made from is being deleted.
        cordoned: somebody took it out of scheduling.
        elsewhere: why another node in its place would come no further; empty if it might.
        annotations: of the node, and of what it was made from.
    """
    if limit <= 0 or going or record.usable:
        return Decision(answer=Answer.NOTHING)
    if cordoned:
        return Decision(answer=Answer.HELD, text="somebody cordoned it")
    for name, values in PROTECTING.items():
        if any(name in each and (values is None or each[name] in values) for each in annotations):
            return Decision(answer=Answer.HELD, text=f"its annotation {name} forbids it")
    if elsewhere:
        return Decision(answer=Answer.HELD, text=elsewhere)
    if record.replaced is not None:
        return Decision(answer=Answer.REPLACE)  # it counts already, and the deletion did not come through
    recent = sum(1 for each in kept if _counts(each, record, now))
    if recent >= limit:
        group = f"group {record.group}" if record.group else "no known group"
        most = f"{count_noun(limit, 'node')} of {group} in an hour"
        return Decision(answer=Answer.HELD, text=f"{most} were replaced already, which is the limit")
    return Decision(answer=Answer.REPLACE)


def _counts(other: Record, record: Record, now: float) -> bool:
    return other.group == record.group and other.replaced is not None and now - other.replaced < HOUR
