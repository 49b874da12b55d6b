"""A node on its way to usable cards: the phase it is in, since when, how long that may take still, and what would help.

It rests on the record that the controller keeps on the node, on the driver's status there, and on records of other
nodes for what is to be expected.
"""

from collections.abc import Iterator, Mapping

from tessera.explain.explanation import Explanation
from tessera.explain.snapshot import ClusterView
from tessera.kube.resources import Condition, Node
from tessera.phrasing import age, count_noun
from tessera.provisioning.milestones import PROVISIONED_CONDITION, Milestone, Record
from tessera.provisioning.node_readiness import driver_status, lack
from tessera.provisioning.phases import Span, now_in, phases_of, remaining, since, span
from tessera.provisioning.startup.deadline import EXTENDED
from tessera.provisioning.tracking.timestamps import record_on
from tessera.provisioning.tracking.tracker import FRESH

#: What each phase waits for.
_AWAITED: Mapping[Milestone, str] = {
    Milestone.READY: "kubelet does not say Ready yet",
    Milestone.LABELLED: "what its driver depends on is not known yet",
    Milestone.PULLED: "its driver's image is on its way",
    Milestone.DRIVER: "its driver is being built or loaded",
    Milestone.TOOLKIT: "the container toolkit starts",
    Milestone.VALIDATED: "a container tries the driver out",
    Milestone.ALLOCATABLE: "its cards are not given out yet",
}
_SYSTEM = "tessera-system"
_PODS = "see its pods: kubectl get pods -A -o wide --field-selector spec.nodeName={node}"
_HELP: Mapping[Milestone, tuple[str, ...]] = {
    Milestone.READY: ("kubectl describe node {node}",),
    Milestone.LABELLED: ("see what is missing: kubectl describe node {node}",),
    Milestone.PULLED: (_PODS, "see whether the image exists: tessera driver images"),
    Milestone.DRIVER: (_PODS, f"its log: kubectl logs -n {_SYSTEM} -l app.kubernetes.io/name=tessera-driver --prefix"),
    Milestone.TOOLKIT: (
        _PODS,
        f"its log: kubectl logs -n {_SYSTEM} -l app.kubernetes.io/name=tessera-container-toolkit --prefix",
    ),
    Milestone.VALIDATED: (
        _PODS,
        f"its log: kubectl logs -n {_SYSTEM} -l app.kubernetes.io/name=tessera-validation --prefix",
    ),
    Milestone.ALLOCATABLE: (
        f"the agent's log: kubectl logs -n {_SYSTEM} -l app.kubernetes.io/name=tessera-agent --prefix",
    ),
}


def explain_startup(view: ClusterView, node: Node) -> Explanation | None:
    """The answer of a node on its way; None if it is on none, or has come up.

    A node that a controller follows no more, since it is older than that, is judged by what it shows now.
    """
    record = record_on(node)
    if record is None or record.usable:
        return None
    overdue, extended = _late(node)
    registered = record.at.get(Milestone.REGISTERED, view.snapshot.now)
    phase = now_in(record)
    if phase is None or (overdue is None and view.snapshot.now - registered > FRESH):
        return None
    return Explanation(
        case="overdue" if overdue is not None else "coming-up",
        verdict=_verdict(view, node, record, phase, overdue),
        facts=tuple(_facts(view, node, record, overdue or extended)),
        help=tuple(step.format(node=node.metadata.name) for step in _HELP.get(phase, ())),
    )


def describe_startup(node: Node) -> Iterator[str]:
    """How long a node took that came up, as a fact; one that stood there before, from when a driver was asked for."""
    record = record_on(node)
    if record is None:
        return
    part, began = (
        (Span.AFTER_LABELLED, "a driver was asked for") if record.late else (Span.STARTUP, "it was registered")
    )
    took = span(record, part)
    if took is None:
        return
    simulated = ", simulated" if record.simulated else ""
    parts = _parts(record)
    yield f"came up {took:.0f} s after {began}{simulated}" + (f": {parts}" if parts else "")


def _late(node: Node) -> tuple[Condition | None, Condition | None]:
    """What is said of a node whose deadline is over, and of one whose deadline is extended."""
    found = next((each for each in node.status.conditions if each.type == PROVISIONED_CONDITION), None)
    if found is None or found.status != "False":
        return None, None
    return (None, found) if found.reason == EXTENDED else (found, None)


def _verdict(view: ClusterView, node: Node, record: Record, phase: Milestone, overdue: Condition | None) -> str:
    began = since(record)
    for_ = f" since {age(view.snapshot.now - began)}" if began is not None else ""
    if overdue is not None:
        return f"has not come up in time ({overdue.reason}): it is in phase {phase.value}{for_}"
    told = driver_status(node)
    shared = told is not None and told.awaits_shared
    awaited = "its driver waits for what another node's would wait for, too" if shared else _AWAITED.get(phase)
    return f"is on its way to usable cards: it is in phase {phase.value}{for_}, {awaited or 'not over yet'}"


def _facts(view: ClusterView, node: Node, record: Record, late: Condition | None) -> Iterator[str]:
    if late is not None:
        yield late.message
    told = driver_status(node)
    if told is not None:
        reason = f": {told.reason}" if told.reason else ""
        yield f"driver ({told.strategy.value}) is {told.phase.value}{reason}"
    elif record.asked is None and Milestone.PULLED not in record.at:
        yield "nobody asks Tessera for its driver: no policy governs it, or none is in force; its host may have one"
    parts = _parts(record)
    if parts:
        yield f"until now: {parts}"
    yield from _expected(view, record)
    missing = lack(node)
    if missing:
        yield f"it can be used when nothing is missing any more: {missing}"


def _parts(record: Record) -> str:
    """The phases that are known and took a second or more."""
    known = [(each.value, took) for each, took in phases_of(record).seconds.items() if took is not None]
    return ", ".join(f"{name} {took:.0f} s" for name, took in known if took >= 1)


def _expected(view: ClusterView, record: Record) -> Iterator[str]:
    found = remaining(record, view.snapshot.history, view.snapshot.now)
    if not found.n:
        return
    alike = f"{count_noun(found.n, 'node')} that came to the driver in the same way"
    if found.seconds is None:
        yield f"it takes longer than each of {alike}"
    else:
        yield f"about {age(found.seconds)} more, after {alike}"
