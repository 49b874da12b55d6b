"""Explains a pod without gates: one that is not bound to a node yet, or one that is bound and starts.

Obstacles here: kube-scheduler, a node that is down, an agent that does not run or cannot make the slice, and everything
that stops containers in general (images, configuration).
"""

from collections.abc import Iterator

from tessera.api.nodes.agent_pod import AGENT_LABEL
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.allocation import Allocation
from tessera.controller.slicing.state.messages import profiles_text
from tessera.explain.capacity import explain_no_room
from tessera.explain.explanation import Explanation
from tessera.explain.fixed_resources import any_node_offers, explain_fixed_request, fixed_requests, waiting_containers
from tessera.explain.snapshot import ClusterView
from tessera.kube.resources import CoreEvent, Pod

#: Reasons of the agent's events for a slice that it cannot make (:mod:`tessera.agent.slices.state_machine`).
_FAILED = frozenset({"SliceFailed", "SliceImpossible", "SliceBlocked", "SliceInUse"})
#: Events shown at most.
_EVENTS = 3


# Not bound to a node


def explain_unscheduled(
    view: ClusterView, slicer: Slicer, pod: Pod, facts: PodInfo, promise: Allocation | None
) -> Explanation:
    """Explains a pod that has no gate and no node.

    Args:
        view: the cluster as it was read.
        slicer: the controller's state, made from the snapshot.
        pod: the pod.
        facts: the pod as the controller sees it.
        promise: its recorded slices, if any.
    """
    says = tuple(f"kube-scheduler says: {each}" for each in _scheduler_messages(view, pod))
    if promise is not None:
        made = promise.result is not None and promise.result[1] == "created"
        agent = view.agent_fault(promise.node)
        return Explanation(
            case="agent-down" if agent and not made else "unscheduled",
            verdict=(
                f"waits for its slice: the agent on node {promise.node}, which makes it, does not run"
                if agent and not made
                else f"{'has its slice' if made else 'is promised a slice'} and waits for kube-scheduler to bind it"
            ),
            facts=(
                f"promised: {view.slices(promise.slices)}, on node {promise.node}, which it is pinned to",
                *says,
                *([agent] if agent else []),
            ),
            help=_scheduling_help(" ".join(says), promise.node, agent),
        )
    if slicer.state.cluster.required_node(facts) is not None:
        return _explain_lost(view, slicer, facts)
    asked = fixed_requests(pod)
    if any_node_offers(view, asked):
        return explain_fixed_request(view, pod, asked)
    return Explanation(
        case="not-gated",
        verdict="was created without Tessera's gate, so kube-scheduler looks for a node with fixed slices",
        facts=(f"it requests {profiles_text(facts)}", *says),
        help=(
            "for a slice on demand create the pod again once the webhook runs; the webhook sets the gate",
            "see the webhook: kubectl get pods -n tessera-system -l app.kubernetes.io/name=tessera-webhook",
        ),
    )


def _scheduler_messages(view: ClusterView, pod: Pod) -> Iterator[str]:
    conditions = [c for c in pod.status.conditions if c.type == "PodScheduled" and c.status == "False" and c.message]
    if conditions:
        yield conditions[0].message
        return
    events = [each for each in view.events_of(pod.metadata.uid) if each.reason == "FailedScheduling"]
    if events:
        yield events[-1].message


def _scheduling_help(says: str, node: str, agent: str) -> tuple[str, ...]:
    if "nvidia.com/mig-" in says:
        if agent:
            return (f"start the agent on {node}: kubectl get pods -n tessera-system -o wide",)
        return (f"wait: kubelet on {node} publishes changed devices within about 10 seconds",)
    if says:
        return (f"make node {node} fit the pod again, or delete the pod so that its replacement is placed again",)
    return ("check again in a moment; if nothing changes, check that kube-scheduler runs",)


def _explain_lost(view: ClusterView, slicer: Slicer, facts: PodInfo) -> Explanation:
    asks = f"it requests {profiles_text(facts)} and must run on node {slicer.state.cluster.required_node(facts)}"
    planned = slicer.state.allocations.current_of(facts.uid)
    if planned is not None:
        return Explanation(
            case="placing",
            verdict="passed the gate but has no recorded slice; there is room, and the controller will record one",
            facts=(asks, f"free for it: {view.slices(planned.slices)}", *filter(None, [view.controller_fault()])),
            help=("check again in a moment; if nothing changes, read the controller's log",),
        )
    reason = slicer.state.waiting.get(facts.uid)
    why = (explain_no_room(view, slicer, facts, reason).verdict,) if reason is not None else ()
    return Explanation(
        case="no-record",
        verdict="passed the gate but has no recorded slice",
        facts=(asks, *why),
        help=("delete the pod, so that its replacement is placed again",),
    )


# On its node


def explain_bound(
    view: ClusterView, slicer: Slicer, pod: Pod, facts: PodInfo, promise: Allocation | None
) -> Explanation:
    """Explains a pod that is bound to a node and does not wait for a scheduler.

    Args:
        view: the cluster as it was read.
        slicer: the controller's state, made from the snapshot.
        pod: the pod.
        facts: the pod as the controller sees it.
        promise: its recorded slices, if any.
    """
    if promise is None and facts.node in slicer.state.inventory.fleet:
        return _explain_lost(view, slicer, facts)
    where = (
        f"{view.slices(promise.slices)}"
        if promise is not None
        else f"{profiles_text(facts)} of node {facts.node}, whose cards Tessera does not slice"
    )
    if facts.terminating:
        return Explanation(case="leaving", verdict=f"is being deleted; it has {where}, on node {facts.node}")
    if pod.status.phase == "Running":
        return Explanation(
            case="runs",
            verdict=f"runs on node {facts.node}",
            facts=(
                f"it has {where}",
                *view.cordons(promise.slices if promise is not None else ()),
                *waiting_containers(pod),
                *_restarts(pod),
            ),
        )
    return _explain_starting(view, pod, facts, promise, where)


def _explain_starting(
    view: ClusterView, pod: Pod, facts: PodInfo, promise: Allocation | None, where: str
) -> Explanation:
    down = _node_fault(view, facts.node)
    if down:
        return Explanation(
            case="node-down",
            verdict=f"cannot start: its node {facts.node} is not ready",
            facts=(down, f"its slice: {where}"),
            help=(f"kubectl describe node {facts.node}", "delete the pod, so that its replacement is placed again"),
        )
    if promise is not None and (promise.result is None or promise.result[1] != "created"):
        return _explain_slicing(view, pod, facts, where)
    stuck = tuple(waiting_containers(pod))
    trouble = [each for each in view.events_of(pod.metadata.uid, warnings=True) if each.reason != "FailedScheduling"]
    return Explanation(
        case="container-waits" if stuck else "starting",
        verdict=(
            f"has its slice but does not start: {stuck[0]}"
            if stuck
            else f"is starting on node {facts.node}; its slice is made"
        ),
        facts=(f"its slice: {where}", *stuck[1:], *map(view.describe_event, trouble[-_EVENTS:])),
        help=(f"kubectl describe pod -n {facts.namespace} {facts.name}",) if stuck or trouble else (),
    )


def _explain_slicing(view: ClusterView, pod: Pod, facts: PodInfo, where: str) -> Explanation:
    """Explains a bound pod whose slices the agent has not reported as made."""
    events = view.events_of(pod.metadata.uid)
    failed = [each for each in events if each.reason in _FAILED]
    agent = view.agent_fault(facts.node)
    log = f"kubectl logs -n tessera-system -l {'='.join(AGENT_LABEL)} --prefix"
    if agent:
        return Explanation(
            case="agent-down",
            verdict=f"cannot start: the agent on node {facts.node}, which makes its slice, does not run",
            facts=(agent, f"to be made: {where}", *_last_events(view, failed)),
            help=(f"start it: kubectl describe daemonset -n tessera-system {AGENT_LABEL[1]}", f"its log: {log}"),
        )
    if failed:
        return Explanation(
            case="slice-failed",
            verdict=f"cannot start: its slice could not be made ({failed[-1].message})",
            facts=(f"to be made: {where}", *_last_events(view, failed), "the agent tries again by itself"),
            help=(
                "check whether something else uses the card: tessera map, and nvidia-smi on the node",
                f"the agent's log: {log}",
                "delete the pod, so that its replacement is placed again",
            ),
        )
    return Explanation(
        case="slice-being-made",
        verdict=f"is starting: the agent on node {facts.node} is making its slice",
        facts=(f"to be made: {where}", *_last_events(view, events)),
        help=(f"check again in a moment; if nothing changes, read the agent's log: {log}",),
    )


def _last_events(view: ClusterView, events: list[CoreEvent]) -> Iterator[str]:
    yield from map(view.describe_event, events[-_EVENTS:])


def _node_fault(view: ClusterView, name: str) -> str:
    node = view.node(name)
    if node is None:
        return "" if "nodes" in view.snapshot.forbidden else f"there is no node {name} any more"
    return "" if node.status.is_ready else f"node {name}: {node.status.not_ready_reason}"


def _restarts(pod: Pod) -> Iterator[str]:
    for each in pod.status.container_statuses:
        if each.restart_count:
            yield f"container {each.name} was restarted {each.restart_count} times"
