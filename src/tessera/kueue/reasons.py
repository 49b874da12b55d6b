"""Kueue's reasons in data: what a condition of a Workload says, whichever release wrote it.

Releases before 0.19 have one reason, ``Pending`` or ``Inadmissible``, and the text in the message; newer ones have a
reason for each case. So the text decides, and the typed reason where the text is unknown.
"""

import re
from enum import Enum

import msgspec

from tessera.api.names import QUOTA_RESOURCE
from tessera.kube.quantity import parse_quantity
from tessera.kueue.names import CHARGED_RESOURCE
from tessera.kueue.objects import CheckState, Workload

_GIB = 2**30
#: Characters of a message that are looked through.
_READ = 4_000

_MISSING = re.compile(r"(LocalQueue|ClusterQueue) (\S+) doesn't exist")
_INACTIVE = re.compile(r"(LocalQueue|ClusterQueue) (\S+) is (?:inactive|stopped)")
_NAMESPACE = "workload namespace doesn't match ClusterQueue selector"
_UNCOVERED = re.compile(r"resource (\S+) unavailable in ClusterQueue")
_FULL = re.compile(r"insufficient unused quota for (\S+) in flavor (\S+), (\S+) more needed")
#: Kueue 0.13 ends in "maximum capacity (60Gi > 20Gi)", 0.19 in "podset request (60Gi) > maximum capacity (20Gi)".
_NEVER = re.compile(r"insufficient quota for (\S+) in flavor (\S+),")
_MAXIMUM = re.compile(r"maximum capacity \((?:(\S+) > )?(\S+)\)")
_REQUEST = re.compile(r"current podset request \((\S+)\)")
_PREEMPTING = re.compile(r"[Pp]ending the preemption of")


class Case(Enum):
    """The kinds of waiting in Kueue."""

    FINISHED = "finished"
    DEACTIVATED = "deactivated"
    MISSING_QUEUE = "missing-queue"
    STOPPED_QUEUE = "stopped-queue"
    NAMESPACE = "namespace"
    UNCOVERED = "uncovered"
    NEVER = "never"
    QUOTA = "quota"
    NO_FLAVOR = "no-flavor"
    PREEMPTING = "preempting"
    CHECK = "check"
    SENT_BACK = "sent-back"
    EVALUATING = "evaluating"
    OTHER = "other"
    ADMITTED = "admitted"


#: Typed reasons (Kueue 0.19 and newer) whose message has none of the known texts.
_TYPED = {
    "PendingEvaluation": Case.EVALUATING,
    "WaitingForQuota": Case.QUOTA,
    "ExceedsMaxQuota": Case.NEVER,
    "NoMatchingFlavor": Case.NO_FLAVOR,
    "TopologyPlacementFailed": Case.OTHER,
    "WaitingForPreemptedWorkloads": Case.PREEMPTING,
    "WaitingForPodsReady": Case.OTHER,
    "Misconfigured": Case.STOPPED_QUEUE,
    "Suspended": Case.STOPPED_QUEUE,
}


class WaitingReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a Workload waits.

    Attributes:
        case: the kind.
        message: Kueue's own text.
        subject: the queue or the resource that it is about; empty if none.
        flavor: the flavor that it is about; empty if none.
        missing: how much more is needed, or how much is asked for where that can never be, for people: ``20Gi``.
        most: the most that the queue can give, for people; empty if unknown.
    """

    case: Case
    message: str = ""
    subject: str = ""
    flavor: str = ""
    missing: str = ""
    most: str = ""


def waiting_reason(item: Workload) -> WaitingReason:
    """Returns the reason that a Workload is not admitted, or that it is."""
    if item.is_true("Finished"):
        return WaitingReason(case=Case.FINISHED)
    if not item.spec.active:
        return WaitingReason(case=Case.DEACTIVATED, message=_message(item, "Evicted"))
    if item.is_true("Admitted"):
        return WaitingReason(case=Case.ADMITTED)
    if item.is_true("QuotaReserved"):
        waiting = [each for each in item.status.admission_checks if each.state != "Ready"]
        text = "; ".join(f"{each.name}: {each.message or _silence(each)}" for each in waiting)
        return WaitingReason(case=Case.CHECK, message=text, subject=", ".join(each.name for each in waiting))
    found = item.condition("QuotaReserved")
    if found is None:
        return WaitingReason(case=Case.EVALUATING)
    read = _read_message(found.message[:_READ])
    if read is not None:
        return read
    if item.is_true("Evicted"):
        return WaitingReason(case=Case.SENT_BACK, message=_message(item, "Evicted"))
    return WaitingReason(case=_TYPED.get(found.reason, Case.OTHER), message=found.message)


def _silence(check: CheckState) -> str:
    """Text for a check without a message. Each check is ``Pending`` until its controller has looked at the Workload."""
    return "no answer yet" if check.state == "Pending" else f"{check.state}, without a reason"


def _message(item: Workload, type_: str) -> str:
    found = item.condition(type_)
    return found.message if found is not None else ""


def _read_message(text: str) -> WaitingReason | None:
    if found := _MISSING.search(text):
        return WaitingReason(case=Case.MISSING_QUEUE, message=text, subject=f"{found[1]} {found[2]}")
    if found := _INACTIVE.search(text):
        return WaitingReason(case=Case.STOPPED_QUEUE, message=text, subject=f"{found[1]} {found[2]}")
    if _NAMESPACE in text:
        return WaitingReason(case=Case.NAMESPACE, message=text)
    if found := _UNCOVERED.search(text):
        return WaitingReason(case=Case.UNCOVERED, message=text, subject=found[1])
    if _PREEMPTING.search(text):
        return WaitingReason(case=Case.PREEMPTING, message=text)
    if found := _FULL.search(text):
        missing = amount_text(found[1], found[3])
        return WaitingReason(case=Case.QUOTA, message=text, subject=found[1], flavor=found[2], missing=missing)
    if (found := _NEVER.search(text)) and (most := _MAXIMUM.search(text)):
        asked = _REQUEST.search(text)
        wanted = asked[1] if asked else most[1] or ""
        return WaitingReason(
            case=Case.NEVER,
            message=text,
            subject=found[1],
            flavor=found[2],
            missing=amount_text(found[1], wanted),
            most=amount_text(found[1], most[2]),
        )
    return None


def amount_text(resource: str, text: str) -> str:
    """An amount for people: GPU memory in Gi, everything else as it is written."""
    if resource not in {CHARGED_RESOURCE, QUOTA_RESOURCE}:
        return text[:40]
    try:
        amount = parse_quantity(text) / _GIB
    except ValueError:
        return text[:40]
    return f"{amount.normalize():f}Gi"
