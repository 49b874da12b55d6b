"""Milestones of a node, from the request for it to its running workload, and those of a pod that requests GPUs.

An unobserved milestone is unknown, and stays unknown. Durations next to it are unknown too, never zero or negative. A
phase is named after the milestone that ends it, so the phases of a complete record sum to its total.

Functions turn these moments into durations: the phases of a node, its current phase, and the expected remaining time.

Rules:

1. Milestones may overlap: a driver's image can be on the node before the node is Ready. A phase is what its milestone
   added to the latest moment before it, so phases are never negative, each second belongs to one phase, and those of a
   complete record sum to its total. The raw moments stay in the record.
2. An unknown moment makes its own phase unknown. The phases after it are unknown too, up to a known moment that is
   later than all before, since earlier time may belong to the unknown one. Nothing is guessed, so with an unknown
   moment in between the known phases sum to less than the total; the rest is shown as unattributed.
3. An impossible moment counts as unknown: nothing is pulled before the node is registered, and no node is requested
   after it exists. So a wrong clock makes a phase unknown, and never zero.
4. For a node that existed before anybody requested its driver, the record begins at that request. Durations from the
   node's request, registration or Ready are unknown.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import TypeVar

import msgspec

#: Annotation of a node: its :class:`ProvisioningRecord` as JSON.
PROVISIONING_ANNOTATION = "tessera.dev/provisioning"


class Milestone(Enum):
    """Moments of a node in the expected sequence."""

    REQUESTED = "requested"
    VM = "vm"
    REGISTERED = "registered"
    READY = "ready"
    LABELLED = "labelled"
    PULLED = "pulled"
    DRIVER = "driver"
    TOOLKIT = "toolkit"
    VALIDATED = "validated"
    ALLOCATABLE = "allocatable"
    WORKLOAD = "workload"


class ProvisioningRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The known milestones of one node.

    Attributes:
        node: the node's name.
        uid: UID of the Node object; a new object of the same name has another one.
        at: seconds since 1970 by milestone; unknown milestones are missing.
        group: its node group, as the autoscaler names it; empty if unknown.
        pool: the driver pool as text.
        strategy: the way in which it got its driver.
        image: the driver's image.
        simulated: True for a node of the lab.
        asked: time since which somebody requests its driver, if observed; None without a request, and if the host has
            the driver.
        unseen: its GPUs are usable, but nobody observed since when.
        lost: time at which it was removed before its GPUs were usable, so that its times are lower bounds; else None.
        replaced: time at which Tessera requested its replacement; else None.
        waits: time since which its driver is held back by a cause that would hold back another node's too; else None.
        waited: seconds for which its driver was held back before; they still count in the durations.
    """

    node: str
    uid: str = ""
    at: Mapping[Milestone, float] = {}
    group: str = ""
    pool: str = ""
    strategy: str = ""
    image: str = ""
    simulated: bool = False
    asked: float | None = None
    unseen: bool = False
    lost: float | None = None
    replaced: float | None = None
    waits: float | None = None
    waited: float = 0.0

    @property
    def usable(self) -> bool:
        """True if its GPUs are usable: everything that an autoscaler waits for is over."""
        return self.unseen or Milestone.ALLOCATABLE in self.at

    @property
    def late(self) -> bool:
        """True if the node existed before anybody requested its driver; then it has no request and no registration.

        The time before the driver's request does not count, so no duration begins there.
        """
        return self.asked is not None and Milestone.REGISTERED not in self.at

    @property
    def short_image(self) -> str:
        """The image without registry and folders, with twelve digits of its digest, which identify it."""
        name, _, digest = self.image.rpartition("/")[2].partition("@")
        return f"{name}@{digest.removeprefix('sha256:')[:12]}" if digest else name or "unknown"


class WorkloadStep(Enum):
    """Moments of a pod that requests GPUs, in the expected sequence."""

    CREATED = "created"
    SCALED_UP = "scaled-up"
    BOUND = "bound"
    PULLED = "pulled"
    STARTED = "started"


class WorkloadRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The known steps of one pod up to its first container's start.

    Attributes:
        namespace: the pod's namespace.
        name: the pod's name.
        uid: the pod's UID.
        node: the node that it runs on.
        node_uid: UID of that Node object.
        at: seconds since 1970 by step; unknown steps are missing. Most pods need no scale-up.
        fresh: the node was made while the pod waited, so the node's phases are part of the pod's wait.
        group: the node's group.
        strategy: the way in which the node got its driver.
        simulated: True for a pod of the lab.
    """

    namespace: str
    name: str
    uid: str
    node: str
    node_uid: str = ""
    at: Mapping[WorkloadStep, float] = {}
    fresh: bool = False
    group: str = ""
    strategy: str = ""
    simulated: bool = False


#: A milestone of a node or a step of a pod.
M = TypeVar("M", bound=Enum)

#: The milestones in sequence.
ORDER = tuple(Milestone)
#: Seconds by which two moments may seem to be in the wrong sequence: times in objects are whole seconds.
ROUNDED = 1.0
#: Milestones that each need the one before, so that a later one proves an earlier one that nobody observed.
_CHAIN = (
    Milestone.REGISTERED,
    Milestone.LABELLED,
    Milestone.PULLED,
    Milestone.DRIVER,
    Milestone.TOOLKIT,
    Milestone.VALIDATED,
    Milestone.ALLOCATABLE,
    Milestone.WORKLOAD,
)


class Span(Enum):
    """Named spans: from one milestone to another."""

    #: From the request for a node to the workload's start: all phases.
    TOTAL = (Milestone.REQUESTED, Milestone.WORKLOAD)
    #: The span that an autoscaler's timers wait for.
    PROVISIONED = (Milestone.REQUESTED, Milestone.ALLOCATABLE)
    #: The span that startup taints and maxNodeStartupTime wait for.
    STARTUP = (Milestone.REGISTERED, Milestone.ALLOCATABLE)
    #: The span that Red Hat's article measures for autoscaled nodes.
    READY_TO_WORKLOAD = (Milestone.READY, Milestone.WORKLOAD)
    #: The time of the driver and all that follows it, for new nodes and for existing ones.
    AFTER_LABELLED = (Milestone.LABELLED, Milestone.ALLOCATABLE)


#: Names of the sums of phases in metrics and reports.
TOTALS = {
    "total": Span.TOTAL,
    "total-provisioned": Span.PROVISIONED,
    "total-startup": Span.STARTUP,
    "total-ready-to-workload": Span.READY_TO_WORKLOAD,
    "total-labelled-to-allocatable": Span.AFTER_LABELLED,
}


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in seconds.

    Attributes:
        seconds: by the milestone that ends the phase; None if unknown. The first milestone ends no phase.
        total: from the first milestone to the last; None if one of both is unknown.
        unattributed: the part of the total in unknown phases; None if the total is unknown.
    """

    seconds: Mapping[Milestone, float | None]
    total: float | None
    unattributed: float | None


class Remaining(msgspec.Struct, frozen=True, kw_only=True):
    """The expected time until a node's GPUs are usable, from the records of similar nodes.

    Attributes:
        seconds: median of the nodes that took longer than this one has so far; None if there are none.
        n: number of nodes that the median is based on.
    """

    seconds: float | None
    n: int


def node_phases(record: ProvisioningRecord) -> Phases:
    """The phases of a whole record."""
    seconds = added_seconds(plausible_milestones(record.at), ORDER)
    total = span_seconds(record, Span.TOTAL)
    known = sum(each for each in seconds.values() if each is not None)
    return Phases(seconds=seconds, total=total, unattributed=None if total is None else max(0.0, total - known))


def plausible_milestones(at: Mapping[Milestone, float]) -> dict[Milestone, float]:
    """The moments without impossible ones.

    All others follow the registration. The request precedes all others: a later request belongs to another node, since
    the alternative would be that all other moments are wrong.
    """
    registered = at.get(Milestone.REGISTERED)
    after = ORDER.index(Milestone.REGISTERED)
    found = {
        each: moment
        for each, moment in at.items()
        if registered is None or ORDER.index(each) < after or moment >= registered - ROUNDED
    }
    requested = found.get(Milestone.REQUESTED)
    if requested is not None and min(found.values()) < requested - ROUNDED:
        del found[Milestone.REQUESTED]
    return found


def added_seconds(at: Mapping[M, float], order: Sequence[M]) -> dict[M, float | None]:
    """The seconds that each moment except the first adds to the latest one before it; None if that is unknown.

    Args:
        at: the known moments.
        order: their expected sequence.
    """
    found: dict[M, float | None] = {}
    latest = at.get(order[0])
    sure = latest is not None
    for each in order[1:]:
        moment = at.get(each)
        if moment is None:
            found[each], sure = None, False
            continue
        found[each] = max(0.0, moment - latest) if sure and latest is not None else None
        sure = sure or latest is None or moment >= latest
        latest = moment if latest is None else max(latest, moment)
    return found


def workload_steps(record: WorkloadRecord) -> dict[WorkloadStep, float | None]:
    """The seconds of each step of a pod. A missing step did not happen: most pods need no new node."""
    at = _since_creation(record)
    order = tuple(step for step in WorkloadStep if step in at)
    return added_seconds(at, order) if order else {}


def workload_wait(record: WorkloadRecord) -> float | None:
    """Seconds from a pod's creation to its start; None if one of both is unknown."""
    at = _since_creation(record)
    return (
        max(at.values()) - at[WorkloadStep.CREATED]
        if {WorkloadStep.CREATED, WorkloadStep.STARTED} <= at.keys()
        else None
    )


def _since_creation(record: WorkloadRecord) -> dict[WorkloadStep, float]:
    """A pod's moments without impossible ones from before its creation."""
    created = record.at.get(WorkloadStep.CREATED)
    return {each: moment for each, moment in record.at.items() if created is None or moment >= created - ROUNDED}


def span_seconds(record: ProvisioningRecord, part: Span) -> float | None:
    """Seconds from one milestone to another: the sum of the phases between them.

    None if one of both is unknown, or if the second was reached before everything that precedes the first.
    """
    first, last = part.value
    at = plausible_milestones(record.at)
    if first not in at or last not in at or at[last] < _latest(at, first) - ROUNDED:
        return None
    return _latest(at, last) - _latest(at, first)


def _latest(at: Mapping[Milestone, float], until: Milestone) -> float:
    return max(at[each] for each in ORDER[: ORDER.index(until) + 1] if each in at)


def current_phase(record: ProvisioningRecord) -> Milestone | None:
    """The current phase of a node: the first milestone that it has not reached; None if it has reached all.

    An unobserved milestone counts as reached if a later one proves it. Request and machine count as reached once the
    node is registered; for a node that existed before its driver's request, so does everything before that request.
    """
    reached = _implied_milestones({*record.at, Milestone.ALLOCATABLE} if record.usable else record.at)
    order = ORDER if Milestone.REGISTERED not in reached else ORDER[ORDER.index(Milestone.REGISTERED) :]
    if record.late:
        order = ORDER[ORDER.index(Milestone.LABELLED) :]
    return next((each for each in order if each not in reached), None)


def _implied_milestones(at: Collection[Milestone]) -> set[Milestone]:
    last = max((_CHAIN.index(each) for each in at if each in _CHAIN), default=-1)
    ready = {Milestone.READY} if Milestone.WORKLOAD in at else set()
    return {*at, *_CHAIN[: last + 1], *ready}


def phase_began(record: ProvisioningRecord) -> float | None:
    """The time at which a node's current phase began, seconds since 1970; None if nothing is known of it."""
    phase = current_phase(record)
    before = ORDER if phase is None else ORDER[: ORDER.index(phase)]
    return max((record.at[each] for each in before if each in record.at), default=record.asked)


def estimate_remaining(record: ProvisioningRecord, history: Iterable[ProvisioningRecord], now: float) -> Remaining:
    """Estimates the time until a node's GPUs are usable.

    It compares nodes that get their driver in the same way; of the same group if there are any.

    Args:
        record: the node, which is starting.
        history: records of other nodes.
        now: seconds since 1970.
    """
    phase, began = current_phase(record), phase_began(record)
    if phase is None or began is None or record.usable:
        return Remaining(seconds=None, n=0)
    alike = [each for each in history if each.strategy == record.strategy and each.uid != record.uid]
    near = [each for each in alike if record.group and each.group == record.group]
    took = [time for each in near or alike if (time := _seconds_from_phase(each, phase)) is not None]
    longer = [time - (now - began) for time in took if time > now - began]
    if not longer:
        return Remaining(seconds=None, n=len(took))
    from statistics import median  # 2.5 ms of CPU, which no other command pays

    return Remaining(seconds=median(longer), n=len(took))


def _seconds_from_phase(record: ProvisioningRecord, phase: Milestone) -> float | None:
    """Seconds that a node took from the beginning of a phase until its GPUs were usable."""
    at = plausible_milestones(record.at)
    began = max((at[each] for each in ORDER[: ORDER.index(phase)] if each in at), default=None)
    if began is None or at.get(Milestone.ALLOCATABLE, -math.inf) < began - ROUNDED:
        return None
    return _latest(at, Milestone.ALLOCATABLE) - began
