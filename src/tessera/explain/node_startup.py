"""Explains a node that starts up: its phase and since when, the expected remaining time, and steps that help.

Sources: the record that the controller keeps on the node, the driver's status there, and records of other nodes, which
predict the remaining time.
"""

from collections.abc import Iterator, Mapping

from tessera.api.names import SYSTEM_NAMESPACE
from tessera.api.nodes.node_marks import PROVISIONED, DriverPhase, DriverStatus, DriverStrategy
from tessera.explain.explanation import Explanation
from tessera.explain.snapshot import ClusterView
from tessera.kube.resources import Condition, Node
from tessera.provisioning.milestones import (
    Milestone,
    ProvisioningRecord,
    Span,
    current_phase,
    estimate_remaining,
    node_phases,
    phase_began,
    span_seconds,
)
from tessera.provisioning.startup_deadline import EXTENDED, driver_status, missing_offer
from tessera.provisioning.timestamps import record_on
from tessera.provisioning.tracker import FRESH
from tessera.text import age, count_noun

#: The awaited event of each phase, as the end of the verdict.
_AWAITED: Mapping[Milestone, str] = {
    Milestone.READY: "waiting for kubelet to report Ready",
    Milestone.LABELLED: "waiting for the facts that its driver depends on, such as the kernel version",
    Milestone.PULLED: "pulling its driver's image",
    Milestone.DRIVER: "building or loading its driver",
    Milestone.TOOLKIT: "starting the container toolkit",
    Milestone.VALIDATED: "testing the driver in a container",
    Milestone.ALLOCATABLE: "waiting for kubelet to count its cards",
}
_PODS = "see its pods: kubectl get pods -A -o wide --field-selector spec.nodeName={node}"
_BLOCKED = (
    "see each way that was tried: tessera driver status {node} -v",
    "see which images there are: tessera driver images",
)
_HELP: Mapping[Milestone, tuple[str, ...]] = {
    Milestone.READY: ("kubectl describe node {node}",),
    Milestone.LABELLED: ("see what is missing: kubectl describe node {node}",),
    Milestone.PULLED: (_PODS, "see whether the image exists: tessera driver images"),
    Milestone.DRIVER: (
        _PODS,
        f"its log: kubectl logs -n {SYSTEM_NAMESPACE} -l app.kubernetes.io/name=tessera-driver --prefix",
    ),
    Milestone.TOOLKIT: (
        _PODS,
        f"its log: kubectl logs -n {SYSTEM_NAMESPACE} -l app.kubernetes.io/name=tessera-container-toolkit --prefix",
    ),
    Milestone.VALIDATED: (
        _PODS,
        f"its log: kubectl logs -n {SYSTEM_NAMESPACE} -l app.kubernetes.io/name=tessera-validation --prefix",
    ),
    Milestone.ALLOCATABLE: (
        f"the agent's log: kubectl logs -n {SYSTEM_NAMESPACE} -l app.kubernetes.io/name=tessera-agent --prefix",
    ),
}


def explain_startup(view: ClusterView, node: Node) -> Explanation | None:
    """Explains a node that starts up; None for any other node.

    A node that is too old, so that the controller no longer follows it, is not starting up.
    """
    record = record_on(node)
    if record is None or record.usable:
        return None
    overdue, extended = _deadline(node)
    registered = record.at.get(Milestone.REGISTERED, view.snapshot.now)
    phase = current_phase(record)
    if phase is None or (overdue is None and view.snapshot.now - registered > FRESH):
        return None
    status = driver_status(node)
    blocked = status is not None and status.phase is DriverPhase.BLOCKED
    case, verdict = "overdue", _verdict(view, node, record, phase, overdue)
    if overdue is None:
        case = "driver-blocked" if blocked else "starting-up"
        verdict = "gets no driver from Tessera as things are" if blocked else verdict
    return Explanation(
        case=case,
        verdict=verdict,
        facts=tuple(_facts(view, node, record, overdue or extended)),
        help=tuple(step.format(node=node.metadata.name) for step in (_BLOCKED if blocked else _HELP.get(phase, ()))),
    )


def describe_startup(node: Node) -> Iterator[str]:
    """A fact: how long a node took to come up.

    The time runs from registration, or from the request for a driver if the node was there before it.
    """
    record = record_on(node)
    if record is None:
        return
    part, began = (
        (Span.AFTER_LABELLED, "a driver was requested") if record.late else (Span.STARTUP, "it was registered")
    )
    took = span_seconds(record, part)
    if took is None:
        return
    simulated = ", simulated" if record.simulated else ""
    parts = _parts(record)
    yield f"came up {took:.0f} s after {began}{simulated}" + (f": {parts}" if parts else "")


def _deadline(node: Node) -> tuple[Condition | None, Condition | None]:
    """The condition of a missed deadline and the condition of an extended one; at most one of them is there."""
    found = node.status.condition(PROVISIONED)
    if found is None or found.status != "False":
        return None, None
    return (None, found) if found.reason == EXTENDED else (found, None)


def _verdict(
    view: ClusterView, node: Node, record: ProvisioningRecord, phase: Milestone, overdue: Condition | None
) -> str:
    began = phase_began(record)
    where = f"in phase {phase.value}" + (f" for {age(view.snapshot.now - began)}" if began is not None else "")
    if overdue is not None:
        return f"has not come up in time ({overdue.reason}): it is {where}"
    status = driver_status(node)
    shared = status is not None and status.awaits_shared
    awaited = (
        "its driver waits for the same work as other nodes, such as an image build"
        if shared
        else _AWAITED.get(phase, "not finished")
    )
    return f"is starting up, {where}: {awaited}"


def _facts(view: ClusterView, node: Node, record: ProvisioningRecord, late: Condition | None) -> Iterator[str]:
    if late is not None:
        yield late.message
    status = driver_status(node)
    if status is not None:
        yield describe_driver(status)
    elif record.asked is None and Milestone.PULLED not in record.at:
        yield "Tessera does not install its driver: no policy in force selects the node; its host may have a driver"
    parts = _parts(record)
    if parts:
        yield f"until now: {parts}"
    yield from _expected_duration(view, record)
    missing = missing_offer(node)
    if missing:
        yield f"missing until its cards can be used: {missing}"


def _parts(record: ProvisioningRecord) -> str:
    """Phases whose duration is known and at least a second."""
    known = [(each.value, took) for each, took in node_phases(record).seconds.items() if took is not None]
    return ", ".join(f"{name} {took:.0f} s" for name, took in known if took >= 1)


def _expected_duration(view: ClusterView, record: ProvisioningRecord) -> Iterator[str]:
    found = estimate_remaining(record, view.snapshot.history, view.snapshot.now)
    if not found.n:
        return
    alike = f"{count_noun(found.n, 'node')} with the same driver strategy"
    if found.seconds is None:
        yield f"already slower than each of {alike}"
    else:
        yield f"about {age(found.seconds)} more, as measured on {alike}"


def describe_driver(status: DriverStatus) -> str:
    """The driver's strategy, phase and reason in a line; without a strategy only waiting or blocked, and the reason."""
    reason = f": {status.reason}" if status.reason else ""
    if status.strategy is not DriverStrategy.BLOCKED:
        return f"driver ({status.strategy.value}) is {status.phase.value}{reason}"
    return f"driver {'waiting' if status.phase is DriverPhase.WAITING else 'blocked'}{reason}"
