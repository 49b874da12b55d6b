"""Judges the startup of a node: whether its startup taint goes, and what its condition says at the deadline. Pure.

A node group may give its nodes a startup taint, so that the scheduler puts nothing there too early and the cluster
autoscaler counts the node as coming. Rules:

- The taint goes once kubelet offers what the node's agent says, with the MIG layout and the sharing that are asked for:
  not at the first GPU, and not while a layout is half applied.
- A node that is not ready at its deadline gets a condition that names the blocking phase. Its taint stays, since
  nothing can run there.
- While the node's driver is held back by a cause that would hold back another node's too, the deadline stops. If the
  cause is a wait (the build of its kernel, an answer of a registry), the node counts as well for at most
  :data:`BUILD_PATIENCE`. If people have to act (no image fits), the condition says so at the ordinary deadline. Such a
  node is not replaced in either case, and gets the rest of its time once its driver can come.
- Only the named taint keys are touched. Startup taints of others wait for something else.
"""

from collections.abc import Collection
from typing import Literal

import msgspec

from tessera.api.driver.node_status import BUILD_PATIENCE, DriverStatus
from tessera.api.nodes.offers import OFFERS_ANNOTATION
from tessera.clock import parse_rfc3339, rfc3339
from tessera.kube.resources import Node, Taint
from tessera.limits import CONDITION_MESSAGE
from tessera.provisioning.milestones import PROVISIONED_CONDITION, Milestone, ProvisioningRecord
from tessera.provisioning.node_readiness import (
    allocatable_text,
    condition_of,
    driver_status,
    driver_text,
    missing_offer,
)
from tessera.provisioning.phases import current_phase

#: By the phase that blocks: reason of the condition, and what is awaited.
BLOCKING = {
    Milestone.READY: ("NodeNotReady", "kubelet does not say that the node is Ready"),
    Milestone.LABELLED: ("FactsMissing", "what its driver depends on is not known"),
    Milestone.PULLED: ("DriverNotPulled", "no container of a driver has started there"),
    Milestone.DRIVER: ("DriverNotReady", "its driver is not ready"),
    Milestone.TOOLKIT: ("ToolkitNotReady", "the container toolkit is not ready"),
    Milestone.VALIDATED: ("NotValidated", "no container has used the driver yet"),
    Milestone.ALLOCATABLE: ("NotAllocatable", "its cards are not given out as they should be"),
}
_DRIVERS = frozenset({Milestone.LABELLED, Milestone.PULLED, Milestone.DRIVER})
#: Reasons that say that the driver is missing.
DRIVER_REASONS = frozenset(BLOCKING[each][0] for each in _DRIVERS)
#: Reason of the condition of a node that came up.
PROVISIONED = "Provisioned"
#: Reason of the condition of one that did not by its ordinary deadline, while the one that stood still is not over.
EXTENDED = "DeadlineExtended"


class ProvisionedCondition(msgspec.Struct, frozen=True, kw_only=True):
    """The condition ``GpuProvisioned`` of a node.

    Attributes:
        well: it offers what it should.
        reason: the phase that blocks, as a word.
        text: the same for people, with what is known of it.
    """

    provisioned: bool
    reason: str
    text: str

    @property
    def status(self) -> Literal["True", "False"]:
        """As conditions have it."""
        return "True" if self.provisioned else "False"

    @property
    def overdue(self) -> bool:
        """Whether its deadline is over."""
        return not self.provisioned and self.reason != EXTENDED


class StartupJudgement(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done about a node that starts.

    Attributes:
        free: take the startup taints off.
        told: what its condition should say; None for nothing yet.
        due: when it is overdue, seconds since 1970; None if nothing is awaited.
    """

    remove_taints: bool = False
    condition: ProvisionedCondition | None = None
    due: float | None = None


class StartupDeadline(msgspec.Struct, frozen=True, kw_only=True):
    """How long a node may take; seconds.

    Attributes:
        deadline: from its registration, or from when its driver was asked for if it stood there before.
        began: when this controller began to look, seconds since 1970: what went on before may not be told yet.
        grace: after that, for a node that is overdue by then.
    """

    seconds: float
    began: float
    grace: float

    def due(self, registered: float, still: float = 0.0) -> float:
        """When a node is overdue whose deadline stood still for so many seconds, seconds since 1970."""
        return max(registered + self.seconds + still, self.began + min(self.grace, self.seconds))


def startup_taints(node: Node, keys: Collection[str]) -> tuple[Taint, ...]:
    """The taints of a node that are taken off when it has started."""
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
    came = record is not None and record.usable
    shown = condition_of(node, PROVISIONED_CONDITION)
    untold = came and shown is None
    if not (tainted or untold or (record is not None and not came) or (shown is not None and shown.status != "True")):
        return StartupJudgement()
    missing = missing_offer(node)
    # Where no agent runs, another device plugin gives cards out, and nothing more is expected of it.
    foreign = came and not tainted and OFFERS_ANNOTATION not in node.metadata.annotations
    if not missing or foreign:
        told = ProvisionedCondition(
            provisioned=True,
            reason=PROVISIONED,
            text=f"{_elapsed(node, record, now)}, {allocatable_text(node)}"[:CONDITION_MESSAGE],
        )
        return StartupJudgement(remove_taints=tainted, condition=None if record is None and shown is None else told)
    began, status = deadline_began(node, record, now), driver_status(node)
    due, later = deadline.due(began), deadline.due(began, _stopped_seconds(record, now))
    if now < due:
        again = record is not None and record.late and shown is not None
        text = f"its driver is asked for since {rfc3339(began)} only; the deadline is extended to {rfc3339(due)}"
        return StartupJudgement(
            condition=ProvisionedCondition(provisioned=False, reason=EXTENDED, text=text) if again else None, due=due
        )
    if record is not None and status is not None and now < later and (status.awaits_shared or not status.shared):
        # It goes on to stand still for as long as it waits; that it does no more is seen.
        later = deadline.due(began, BUILD_PATIENCE) if status.awaits_shared else later
        return StartupJudgement(condition=_extended_condition(node, status, record, later), due=later)
    return StartupJudgement(condition=_overdue_condition(node, record, missing, now), due=due)


def _stopped_seconds(record: ProvisioningRecord | None, now: float) -> float:
    """Seconds for which a node's deadline stood still until now; none for one that is not even Ready."""
    if record is None or current_phase(record) is Milestone.READY:
        return 0.0
    waits = max(0.0, now - record.waits) if record.waits is not None else 0.0
    return min(record.waited + waits, BUILD_PATIENCE)


def _extended_condition(
    node: Node, status: DriverStatus, record: ProvisioningRecord, until: float
) -> ProvisionedCondition:
    text = f"{held_back_text(record)}; the deadline is extended to {rfc3339(until)}"
    if status.awaits_shared:
        text = (
            f"the deadline stands still, and is extended to {rfc3339(until)} at most, while its driver waits for what "
            f"another node's would wait for, too: {driver_text(node)}"
        )
    return ProvisionedCondition(provisioned=False, reason=EXTENDED, text=text[:CONDITION_MESSAGE])


def held_back_text(record: ProvisioningRecord) -> str:
    """For how long a driver was kept from coming by what would have kept another node's, in a sentence."""
    return f"what kept its driver from coming for {record.waited:.0f} s would have kept another node's, too"


def deadline_began(node: Node, record: ProvisioningRecord | None, now: float) -> float:
    """When a node's deadline began to run, seconds since 1970: its registration, or when its driver was asked for."""
    if record is not None and record.late and record.asked is not None:
        return record.asked
    return _registered(node, now)


def _elapsed(node: Node, record: ProvisioningRecord | None, now: float) -> str:
    """For how long a node's deadline has been running, and since what."""
    event = "a driver was asked for" if record is not None and record.late else "it was registered"
    return f"{now - deadline_began(node, record, now):.0f} s after {event}"


def _registered(node: Node, now: float) -> float:
    try:
        return parse_rfc3339(node.metadata.creation_timestamp or "")
    except (ValueError, OverflowError):
        return now


def _overdue_condition(node: Node, record: ProvisioningRecord | None, missing: str, now: float) -> ProvisionedCondition:
    phase = current_phase(record) if record is not None else Milestone.ALLOCATABLE
    # The moments may all be there while a card is missing again.
    reason, text = BLOCKING.get(phase or Milestone.ALLOCATABLE, BLOCKING[Milestone.ALLOCATABLE])
    told = driver_text(node) if phase in _DRIVERS else missing if reason == "NotAllocatable" else ""
    more = f": {told}" if told else ""
    return ProvisionedCondition(
        provisioned=False, reason=reason, text=f"{_elapsed(node, record, now)}, {text}{more}"[:CONDITION_MESSAGE]
    )
