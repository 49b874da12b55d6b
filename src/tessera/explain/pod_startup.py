"""Explains a pod without gates: one that is not bound to a node yet, or one that is bound and starts.

Obstacles here: kube-scheduler, a node that is down, an agent that does not run or cannot make the slice, and everything
that stops containers in general (images, configuration).
"""

from collections.abc import Iterator, Mapping

import msgspec

from tessera.api.names import MIG_RESOURCE_PREFIX, QUOTA_RESOURCE, resource_of
from tessera.api.nodes.node_marks import AGENT_LABEL
from tessera.controller.objects.pod_constraints import ANYWHERE
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.allocation import Allocation
from tessera.controller.slicing.state.messages import profiles_text
from tessera.explain.explanation import Explanation
from tessera.explain.fixed_resources import (
    explain_absent_scheduler,
    explain_fixed_request,
    explain_taken_back,
    replace_facts,
    waiting_containers,
)
from tessera.explain.offered_resources import (
    extended_requests,
    format_requests,
    offered_count,
    offered_totals,
    resources_on_demand,
)
from tessera.explain.scheduler_words import scheduler_facts, scheduler_name, scheduler_word, silence_step
from tessera.explain.snapshot import ClusterView
from tessera.kube.resources import CoreEvent, Pod
from tessera.reasons.words import verdict
from tessera.text import count_noun

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
    if promise is not None:
        return _explain_promised(view, pod, promise)
    if (taken_back := explain_taken_back(view, pod)) is not None:
        return replace_facts(taken_back, f"it requests {profiles_text(facts)}", *taken_back.facts)
    if slicer.state.cluster.required_node(facts) is not None and _was_gated(facts):
        return _explain_lost(view, slicer, facts)
    asked = extended_requests(pod)
    on_demand = resources_on_demand(view)
    fixed = any(name in offered_totals(view) for name in asked)
    if fixed or not all(name in on_demand for name in map(resource_of, facts.profiles)):
        return explain_fixed_request(view, pod)
    return _explain_not_gated(view, pod, asked)


def _was_gated(facts: PodInfo) -> bool:
    """True if the webhook has reviewed the pod as one for slices on demand: it sets gate and charge together."""
    return QUOTA_RESOURCE in facts.amounts


def _explain_promised(view: ClusterView, pod: Pod, promise: Allocation) -> Explanation:
    made = promise.result is not None and promise.result[1] == "created"
    agent = "" if made else view.agent_fault(promise.node)
    has = "has its slice" if made else "is promised a slice"
    absent = explain_absent_scheduler(view, pod)
    then = "where its ResourceClaims are allocated" if pod.spec.resource_claims else "which it is pinned to"
    where = f"promised: {view.slices(promise.slices)}, on node {promise.node}, {then}"
    facts = (where, *scheduler_facts(view, pod), *([agent] if agent else []))
    if agent:
        return Explanation(
            case="agent-down",
            verdict=f"waits for its slice: the agent on node {promise.node}, which makes it, does not answer",
            facts=facts,
            help=(f"see it: tessera why node/{promise.node}",),
        )
    if absent is not None:
        return msgspec.structs.replace(absent, verdict=f"{has}, and {absent.verdict}", facts=(*facts, *absent.facts))
    return Explanation(
        case="unscheduled",
        verdict=f"{has} and waits for {scheduler_name(pod)} to bind it",
        facts=facts,
        help=_scheduling_help(view, pod, promise.node),
    )


def _explain_not_gated(view: ClusterView, pod: Pod, asked: Mapping[str, int]) -> Explanation:
    """Explains a pod for slices that nodes make on demand only, and only for pods with the gate."""
    webhooks = [each for each in view.snapshot.pods if _WEBHOOK.items() <= each.metadata.labels.items()]
    ready = sum(each.status.is_ready for each in webhooks)
    runs = f"of its {count_noun(len(webhooks), 'pod')} {ready} {'is' if ready == 1 else 'are'} ready now"
    look = f"see the webhook: kubectl get pods -n tessera-system -l {'='.join(*_WEBHOOK.items())}"
    again = "create the pod again: the webhook sets the gate when a pod is created"
    return Explanation(
        case="not-gated",
        verdict="has no gate of Tessera, so no slice is made for it; kube-scheduler looks for a fixed one, and there is"
        " none",
        facts=(
            f"it requests {format_requests(asked)}, which nodes make on demand only",
            f"Tessera's webhook sets the gate: {runs if webhooks else 'no pod of it exists'}",
            *scheduler_facts(view, pod),
        ),
        help=(again, look) if ready else (look, f"then {again}"),
    )


_WEBHOOK = {"app.kubernetes.io/name": "tessera-webhook"}


def _scheduling_help(view: ClusterView, pod: Pod, node: str) -> tuple[str, ...]:
    says = scheduler_word(view, pod)
    if MIG_RESOURCE_PREFIX in says:
        return (f"wait: kubelet on {node} publishes changed devices within about 10 seconds",)
    if says:
        return (f"make node {node} fit the pod again, or delete the pod so that its replacement is placed again",)
    return (silence_step(pod),)


def _explain_lost(view: ClusterView, slicer: Slicer, facts: PodInfo) -> Explanation:
    asks = f"it requests {profiles_text(facts)} and must run on node {slicer.state.cluster.required_node(facts)}"
    has = (
        "passed the gate but has no recorded slice" if _was_gated(facts) else "has neither a gate nor a recorded slice"
    )
    planned = slicer.state.allocations.current_of(facts.uid)
    if planned is not None:
        return Explanation(
            case="placing",
            verdict=f"{has}; there is room, and the controller will record one",
            facts=(asks, f"free for it: {view.slices(planned.slices)}", *filter(None, [view.controller_fault()])),
            help=("check again in a moment; if nothing changes, read the controller's log",),
        )
    reason = slicer.state.pods.reason_of(facts.uid)
    why = (verdict(reason),) if reason is not None else ()
    return Explanation(
        case="no-record",
        verdict=has,
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
    if promise is None and _is_made_on_demand(view, slicer, facts):
        return _explain_lost(view, slicer, facts)
    where = view.slices(promise.slices) if promise is not None else _unrecorded(view, facts)
    if facts.terminating:
        return Explanation(case="leaving", verdict=f"is being deleted; it has {where}, on node {facts.node}")
    if pod.status.phase == "Running":
        return Explanation(
            case="runs",
            verdict=f"runs on node {facts.node}",
            facts=(
                f"it has {where}",
                *_preferences(slicer, facts),
                *view.cordons(promise.slices if promise is not None else ()),
                *waiting_containers(pod),
                *_restarts(pod),
            ),
        )
    return _explain_starting(view, pod, facts, promise, where)


def _unrecorded(view: ClusterView, facts: PodInfo) -> str:
    """Slices of which there is no record: fixed ones of the node, or of unknown origin."""
    if _has_fixed(view, facts):
        return f"{profiles_text(facts)} of a fixed layout"
    return f"{profiles_text(facts)}; where is unknown, since node {facts.node} has no Instaslice object that says it"


def _has_fixed(view: ClusterView, facts: PodInfo) -> bool:
    """True if the pod's node offers all of its slices as fixed ones."""
    node = view.node(facts.node)
    return node is not None and all(offered_count(node, resource_of(each)) for each in facts.profiles)


def _preferences(slicer: Slicer, facts: PodInfo) -> Iterator[str]:
    """What the pod prefers of its node, and has there or not."""
    for preference, (met, nodes, opened) in slicer.planner.preferences_met(facts, facts.node).items():
        said = "by default" if preference.rule is ANYWHERE else f"weight {preference.weight}"
        unmet = _NOT_MET if opened else "not met; such nodes do not take the pod" if nodes else "not met; no node is so"
        yield f"it prefers {preference.text} ({said}): {'met' if met else unmet}"
    others, on_node, on_cards = slicer.planner.replicas_beside(facts) if facts.replica_of is not None else (0, 0, 0)
    if others:
        met_on = f"met by cards; by nodes {_NOT_MET}" if on_node and not on_cards else _NOT_MET if on_node else "met"
        yield f"it prefers apart from other pods of {facts.maker} (by default): {met_on}"


_NOT_MET = "not met; where it would be, there was no room, or a place would have cost the cards more"


def _is_made_on_demand(view: ClusterView, slicer: Slicer, facts: PodInfo) -> bool:
    """True if the pod's node makes slices on demand, and offers none of the pod's as fixed ones."""
    return facts.node in slicer.state.inventory.fleet and not _has_fixed(view, facts)


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
            f"{'has its slice but ' if promise is not None else ''}does not start: {stuck[0]}"
            if stuck
            else f"is starting on node {facts.node}{'; its slice is made' if promise is not None else ''}"
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
            verdict=f"cannot start: the agent on node {facts.node}, which makes its slice, does not answer",
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
        verdict=f"is starting: the agent on node {facts.node} has not reported its slice as made yet",
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
            yield f"container {each.name} was restarted {count_noun(each.restart_count, 'time')}"
