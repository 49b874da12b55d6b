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

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec

from tessera.api.names import MIG_CONFIG_LABEL, SYSTEM_NAMESPACE, gives_by_claims, is_on_demand
from tessera.api.nodes.node_cards import DISCOVERY_SECONDS, keep_off_label
from tessera.api.nodes.node_marks import (
    ADVERTISED_CONDITION,
    AGENT_CONDITIONS,
    BUILD_TIMEOUT,
    DRIVER_ANNOTATION,
    LAYOUT,
    SHARING,
    DriverPhase,
    DriverStatus,
    is_marked_silent,
)
from tessera.api.nodes.node_marks import PROVISIONED as PROVISIONED_CONDITION
from tessera.api.nodes.offers import OFFERS_ANNOTATION, NodeOffer, OfferKind, decode_offers
from tessera.clock import parse_rfc3339, rfc3339
from tessera.kube.quantity import count_or_zero
from tessera.kube.resources import Node, Taint
from tessera.limits import CONDITION_MESSAGE
from tessera.provisioning.milestones import Milestone, ProvisioningRecord, current_phase

#: Cluster autoscalers read taints with these prefixes as "not started yet"; the second prefix is the older one.
PREFIXES = ("startup-taint.cluster-autoscaler.kubernetes.io/", "ignore-taint.cluster-autoscaler.kubernetes.io/")
#: The taint to remove if the options name no others.
STARTUP_TAINT = f"{PREFIXES[0]}tessera-gpu"
#: Seconds from registration.
DEADLINE = DISCOVERY_SECONDS


@dataclass(frozen=True, kw_only=True)
class ProvisioningOptions:
    """Options of :class:`tessera.provisioning.satellite.Provisioning`; times in seconds.

    Attributes:
        namespace: namespace of the ConfigMap of records, which is the deployment's.
        records: maximum number of nodes' records, and of pods'.
        startup_taints: keys of taints to remove from nodes that have started.
        deadline: time that a node may take from its registration.
        grace: time for which a node that is overdue at this controller's start is observed before it is reported.
        replace_failed: maximum number of nodes of one group to replace in an hour; 0 replaces none.
    """

    namespace: str = SYSTEM_NAMESPACE
    records: int = 1000
    startup_taints: tuple[str, ...] = (STARTUP_TAINT,)
    deadline: float = DEADLINE
    grace: float = 60.0
    replace_failed: int = 0


# The node


def missing_offer(node: Node) -> str:
    """The first reason why a node does not offer all its GPUs as requested; empty if it does."""
    return next(_missing_offers(node), "")


def offers_gpus(node: Node) -> bool:
    """True if kubelet offers any GPU, with any device plugin, or the node gives slices by ResourceClaims."""
    given = [name for name, amount in node.status.allocatable.items() if count_or_zero(amount) > 0]
    return any(name.startswith("nvidia.com/") for name in given) or _has_claim_slices(node)


def _has_claim_slices(node: Node) -> bool:
    """True if the agent has reported cards that go to ResourceClaims, in slices or whole: kubelet counts none of them.

    Whole ones are no offer, since only a request for a device of kubelet's needs to know them.
    """
    if not gives_by_claims(node.metadata.labels):
        return False
    try:
        offers = decode_offers(node.metadata.annotations[OFFERS_ANNOTATION])
    except (KeyError, ValueError):
        return False
    return not offers or any(each.kind is OfferKind.DYNAMIC_SLICE for each in offers)


def _missing_offers(node: Node) -> Iterator[str]:
    if not node.status.is_ready:
        yield "the node is not Ready"
    advertised = node.status.condition(ADVERTISED_CONDITION)
    if advertised is not None and advertised.status != "True":
        yield f"{advertised.message or 'its agent waits'} ({advertised.reason})"
    text = node.metadata.annotations.get(OFFERS_ANNOTATION)
    if text is None:
        yield f"its agent has not reported what its cards offer (annotation {OFFERS_ANNOTATION})"
        return
    try:
        offers = decode_offers(text)
    except ValueError as error:
        yield str(error)
        return
    yield from _not_in_force(node)
    if not offers and not gives_by_claims(node.metadata.labels):
        yield "its cards offer nothing"
    yield from _not_allocatable(node, offers)


def _not_in_force(node: Node) -> Iterator[str]:
    """Yields the requested settings that are not in force."""
    sharing, layout = node.status.condition(SHARING), node.status.condition(LAYOUT)
    asked = node.metadata.labels.get(MIG_CONFIG_LABEL, "")
    if layout is None and asked and not is_on_demand(asked):
        yield f"its MIG layout {asked[:63]} is requested, and its agent has not reported it"
    for each in (layout, sharing):
        if each is not None and each.status != "True":
            yield f"condition {each.type} is {each.status} ({each.reason}): {each.message}"
    if sharing is None:
        yield f"its agent has not reported how its cards are shared (condition {SHARING})"


def _not_allocatable(node: Node, offers: Collection[NodeOffer]) -> Iterator[str]:
    """Yields offered resources that are not allocatable. Of on-demand slices one suffices: their numbers interact.

    Slices that go to ResourceClaims are never allocatable.
    """
    by_claims = gives_by_claims(node.metadata.labels)
    counted = [each for each in offers if not (by_claims and each.kind is OfferKind.DYNAMIC_SLICE)]
    for resource in sorted({each.resource for each in counted}):
        fixed = [
            each.count for each in counted if each.resource == resource and each.kind is not OfferKind.DYNAMIC_SLICE
        ]
        wanted = sum(fixed) if fixed else 1
        given = count_or_zero(node.status.allocatable.get(resource, "0"))
        if given < wanted:
            yield f"kubelet gives {given} of {wanted} {resource}"


def allocatable_text(node: Node) -> str:
    """Text that lists the GPU resources in ``status.allocatable``, and slices by ResourceClaims."""
    found = [f"{n} {name}" for name, n in sorted(node.status.allocatable.items()) if name.startswith("nvidia.com/")]
    given = ", ".join(each for each in found if not each.startswith("0 "))
    kubelet = f"kubelet gives {given}" if given else ""
    claims = "cards go to ResourceClaims" if _has_claim_slices(node) else ""
    return ", ".join(each for each in (kubelet, claims) if each)


def driver_status(node: Node) -> DriverStatus | None:
    """The controller's status of a node's driver; None if there is none, or it cannot be decoded."""
    text = node.metadata.annotations.get(DRIVER_ANNOTATION)
    if text is None or len(text) > 64 * 1024:
        return None
    try:
        return msgspec.json.decode(text, type=DriverStatus)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def driver_text(node: Node) -> str:
    """A sentence with the status of a node's driver; empty if there is none."""
    status = driver_status(node)
    if status is None:
        return ""
    word = "" if status.phase in {DriverPhase.STARTING, DriverPhase.PULLING} else f"{status.phase.value}: "
    return f"{word}{status.reason}" if status.reason else status.phase.value


# The judgement

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
