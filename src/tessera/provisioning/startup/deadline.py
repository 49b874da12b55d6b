"""Judges the startup of a node: whether its startup taint goes, and what its condition says at the deadline. Pure.

A node group may give its nodes a startup taint, so that the scheduler puts nothing there too early and the cluster
autoscaler counts the node as coming. Rules:

- The taint is removed once kubelet offers the resources that the node's agent advertises, with the requested MIG layout
  and sharing: not at the first GPU, and not while a layout is half applied.
- A node that is not ready at its deadline gets a condition that names the blocking phase. Its taint stays, since
  nothing can run there.
- While the node's driver is held back by a cause that would hold back another node's too, the deadline stops. If the
  cause is a wait (the build of its kernel, an answer of a registry), the node counts as well for at most
  :data:`BUILD_TIMEOUT`. If people have to act (no image fits), the condition says so at the ordinary deadline. Such a
  node is not replaced in either case, and gets the rest of its time once its driver can come.
- Only the named taint keys are touched. Startup taints of others wait for something else.
"""

from collections.abc import Collection
from typing import Literal

import msgspec

from tessera.api.nodes.driver_status import BUILD_TIMEOUT, DriverStatus
from tessera.api.nodes.node_cards import keep_off_label
from tessera.api.nodes.node_marks import AGENT_CONDITIONS, is_marked_silent
from tessera.api.nodes.node_marks import PROVISIONED as PROVISIONED_CONDITION
from tessera.api.nodes.offers import OFFERS_ANNOTATION
from tessera.clock import parse_rfc3339, rfc3339
from tessera.kube.resources import Node, Taint
from tessera.limits import CONDITION_MESSAGE
from tessera.provisioning.milestones import Milestone, ProvisioningRecord, current_phase
from tessera.provisioning.node_readiness import (
    allocatable_text,
    driver_status,
    driver_text,
    missing_offer,
)

#: By the phase that blocks: reason of the condition, and the thing that the node waits for.
BLOCKING = {
    Milestone.READY: ("NodeNotReady", "kubelet does not say that the node is Ready"),
    Milestone.LABELLED: ("FactsMissing", "a fact that its driver depends on is not known"),
    Milestone.PULLED: ("DriverNotPulled", "no container of a driver has started there"),
    Milestone.DRIVER: ("DriverNotReady", "its driver is not ready"),
    Milestone.TOOLKIT: ("ToolkitNotReady", "the container toolkit is not ready"),
    Milestone.VALIDATED: ("NotValidated", "no container has used the driver yet"),
    Milestone.ALLOCATABLE: ("NotAllocatable", "its cards are not given out as they should be"),
}
_DRIVERS = frozenset({Milestone.LABELLED, Milestone.PULLED, Milestone.DRIVER})
#: Reasons that say that the driver is missing.
DRIVER_REASONS = frozenset(BLOCKING[each][0] for each in _DRIVERS)
#: Reason of the condition of a node that has started.
PROVISIONED = "Provisioned"
#: Reason of the condition of a node that missed its ordinary deadline while the extended one is not over.
EXTENDED = "DeadlineExtended"


class ProvisionedCondition(msgspec.Struct, frozen=True, kw_only=True):
    """The condition ``GpuProvisioned`` of a node.

    Attributes:
        provisioned: the node offers all its GPUs as requested.
        reason: the phase that blocks, as a word.
        text: the phase that blocks, with details, for people.
    """

    provisioned: bool
    reason: str
    text: str

    @property
    def status(self) -> Literal["True", "False"]:
        """The condition's status."""
        return "True" if self.provisioned else "False"

    @property
    def overdue(self) -> bool:
        """True if the node's deadline is over."""
        return not self.provisioned and self.reason != EXTENDED


class StartupJudgement(msgspec.Struct, frozen=True, kw_only=True):
    """The actions that are due for a node that starts.

    Attributes:
        remove_taints: remove the startup taints.
        condition: its condition; None for none yet.
        due: when it is overdue, seconds since 1970; None if nothing is awaited.
    """

    remove_taints: bool = False
    condition: ProvisionedCondition | None = None
    due: float | None = None


class StartupDeadline(msgspec.Struct, frozen=True, kw_only=True):
    """The time that a node may take; seconds.

    Attributes:
        seconds: from its registration, or from its driver's request if the node existed before.
        began: start of this controller, seconds since 1970: earlier delays may not have been reported.
        grace: time after that for a node that is already overdue.
    """

    seconds: float
    began: float
    grace: float

    def end(self, registered: float, still: float = 0.0) -> float:
        """The end of a deadline that was stopped for ``still`` seconds, seconds since 1970."""
        return max(registered + self.seconds + still, self.began + min(self.grace, self.seconds))


def startup_taints(node: Node, keys: Collection[str]) -> tuple[Taint, ...]:
    """The taints to remove from a node once it has started."""
    return tuple(each for each in node.spec.taints if each.key in keys)


# The deadline


def judge_startup(
    node: Node, record: ProvisioningRecord | None, *, keys: Collection[str], deadline: StartupDeadline, now: float
) -> StartupJudgement:
    """Judges the startup of one node.

    Args:
        node: the Node as it is now.
        record: its provisioning record; None if it has none.
        keys: keys of the startup taints that Tessera removes.
        deadline: how long the node may take.
        now: seconds since 1970.
    """
    tainted = bool(startup_taints(node, keys))
    if keep_off_label(node.metadata.labels):  # nothing of Tessera comes there, so nothing is waited for
        return StartupJudgement(remove_taints=tainted)
    came = record is not None and record.usable
    shown = node.status.condition(PROVISIONED_CONDITION)
    if came and not tainted and shown is not None and is_marked_silent(shown):
        return StartupJudgement(condition=_condition_after_silence(node, record, now))
    hidden = came and shown is None
    if not (tainted or hidden or (record is not None and not came) or (shown is not None and shown.status != "True")):
        return StartupJudgement()
    missing = missing_offer(node)
    # Without an agent, another device plugin offers GPUs, and nothing more is expected of the node.
    foreign = came and not tainted and OFFERS_ANNOTATION not in node.metadata.annotations
    if not missing or foreign:
        condition = _provisioned_condition(node, record, now)
        return StartupJudgement(
            remove_taints=tainted, condition=None if record is None and shown is None else condition
        )
    began, status = deadline_began(node, record, now), driver_status(node)
    due, later = deadline.end(began), deadline.end(began, _stopped_seconds(record, now))
    if now < due:
        again = record is not None and record.late and shown is not None
        text = f"its driver was requested only at {rfc3339(began)}; the deadline is extended to {rfc3339(due)}"
        return StartupJudgement(
            condition=ProvisionedCondition(provisioned=False, reason=EXTENDED, text=text) if again else None, due=due
        )
    if record is not None and status is not None and now < later and (status.awaits_shared or not status.shared):
        # The deadline stays stopped while the wait lasts; a watch shows its end.
        later = deadline.end(began, BUILD_TIMEOUT) if status.awaits_shared else later
        return StartupJudgement(condition=_extended_condition(node, status, record, later), due=later)
    return StartupJudgement(condition=_overdue_condition(node, record, missing, now), due=due)


def _provisioned_condition(node: Node, record: ProvisioningRecord | None, now: float) -> ProvisionedCondition:
    text = f"{_describe_elapsed(node, record, now)}, {allocatable_text(node)}"[:CONDITION_MESSAGE]
    return ProvisionedCondition(provisioned=True, reason=PROVISIONED, text=text)


def _condition_after_silence(node: Node, record: ProvisioningRecord | None, now: float) -> ProvisionedCondition | None:
    """The condition of a node that had come up, once its agent speaks again; None until then. It has no deadline."""
    silent = any(is_marked_silent(each) for each in node.status.conditions if each.type in AGENT_CONDITIONS)
    return None if silent else _provisioned_condition(node, record, now)


def _stopped_seconds(record: ProvisioningRecord | None, now: float) -> float:
    """Seconds for which a node's deadline was stopped so far; none for a node that is not Ready."""
    if record is None or current_phase(record) is Milestone.READY:
        return 0.0
    waits = max(0.0, now - record.waits) if record.waits is not None else 0.0
    return min(record.waited + waits, BUILD_TIMEOUT)


def _extended_condition(
    node: Node, status: DriverStatus, record: ProvisioningRecord, until: float
) -> ProvisionedCondition:
    text = f"{shared_cause_text(record)}; the deadline is extended to {rfc3339(until)}"
    if status.awaits_shared:
        text = (
            f"the deadline is stopped, and extended to {rfc3339(until)} at most, while its driver waits for a "
            f"cause that would delay another node's too: {driver_text(node)}"
        )
    return ProvisionedCondition(provisioned=False, reason=EXTENDED, text=text[:CONDITION_MESSAGE])


def shared_cause_text(record: ProvisioningRecord) -> str:
    """A sentence on the time for which a cause delayed this driver that would have delayed another node's too."""
    return f"the cause that delayed its driver for {record.waited:.0f} s would have delayed another node's too"


def deadline_began(node: Node, record: ProvisioningRecord | None, now: float) -> float:
    """The start of a node's deadline, seconds since 1970: its registration, or its driver's request."""
    if record is not None and record.late and record.asked is not None:
        return record.asked
    return _registration_time(node, now)


def _describe_elapsed(node: Node, record: ProvisioningRecord | None, now: float) -> str:
    """The time for which a node's deadline has been running, and the moment at which it began."""
    event = "a driver was requested" if record is not None and record.late else "it was registered"
    return f"{now - deadline_began(node, record, now):.0f} s after {event}"


def _registration_time(node: Node, now: float) -> float:
    try:
        return parse_rfc3339(node.metadata.creation_timestamp or "")
    except (ValueError, OverflowError):
        return now


def _overdue_condition(node: Node, record: ProvisioningRecord | None, missing: str, now: float) -> ProvisionedCondition:
    phase = current_phase(record) if record is not None else Milestone.ALLOCATABLE
    # All moments may be known while a GPU is missing again.
    reason, text = BLOCKING.get(phase or Milestone.ALLOCATABLE, BLOCKING[Milestone.ALLOCATABLE])
    detail = driver_text(node) if phase in _DRIVERS else missing if reason == "NotAllocatable" else ""
    more = f": {detail}" if detail else ""
    return ProvisionedCondition(
        provisioned=False,
        reason=reason,
        text=f"{_describe_elapsed(node, record, now)}, {text}{more}"[:CONDITION_MESSAGE],
    )
