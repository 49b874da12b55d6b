"""Explains one pod: the first obstacle, in the order in which a pod meets them.

The order is: the request itself, gates of other operators, Tessera's gate (controller, room on the cards),
kube-scheduler, the node (agent, kubelet); then the pod runs. A pod that asks for whole cards, shares or fixed slices
meets kube-scheduler alone: :mod:`tessera.explain.fixed_resources`.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from tessera.api.names import LENDS_ANNOTATION, PodUid
from tessera.api.nodes.node_groups import NEW_NODE_REASON, NO_HELP_REASON
from tessera.api.pod_annotations import CHOSEN, CHOSEN_REASON
from tessera.api.resource_advice import misplaced_on_pod
from tessera.api.slice_requests import lends_to
from tessera.controller.objects.pod_info import CLAIMS, FINISHED, PodInfo
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.allocation import Allocation
from tessera.controller.slicing.state.messages import profiles_text
from tessera.explain.capacity import explain_no_room
from tessera.explain.explanation import Explanation
from tessera.explain.offered_resources import extended_requests, format_requests
from tessera.explain.pod_health import add_pod_health, explain_ended, put_silent_nodes_first
from tessera.explain.pod_requests import (
    explain_request,
    misplaced_on_namespace,
    set_by_limit_range,
    uncounted_quotas,
    unmatched_selectors,
)
from tessera.explain.pod_startup import explain_bound, explain_unscheduled
from tessera.explain.queue import admitted_facts, count_group, explain_held_pod
from tessera.explain.rollouts import name_rollout
from tessera.explain.scheduler_words import (
    Told,
    absent_scheduler,
    place_facts,
    scheduler_facts,
    scheduler_name,
    told_by_condition,
)
from tessera.explain.snapshot import REQUIRED_KINDS, ClusterView
from tessera.explain.topology_text import describe_joined
from tessera.kube.resources import CoreEvent, Pod
from tessera.kueue.objects import PREFIX, QUEUE_LABEL
from tessera.reasons.reason import OtherGate, Planning
from tessera.reasons.words import CONTROLLER_LOG, name_blockers, sentence, steps, verdict
from tessera.text import REINSTALL, one_line

#: Misplaced keys that are told of one object.
_MISPLACED = 5

#: What became of the slices of a pod that a later gate held.
_HELD_TOO_LONG = (
    "the gate held it for too long, so its slices went to the next pod; it starts when there is room on its node"
)


def explain_pod(view: ClusterView, pod: Pod) -> Explanation:
    """Explains a pod: the reason that it does not run, or that it runs.

    Args:
        view: the cluster as it was read, this pod included.
        pod: the pod.
    """
    facts = view.read_pod(pod)
    found = (
        explain_ended(view, pod, facts) or explain_request(view, pod, facts) or _explain_other_gate(view, pod, facts)
    )
    if found is None:
        found = _explain_by_page(view, pod, facts) or (
            _explain_with_state(view, view.slicer, pod, facts)
            if view.slicer is not None
            else _explain_by_events(view, pod, facts)
        )
        found = _with_queue(view, found, pod)
    if facts.node and found.case == "runs" and (fault := view.agent_fault(facts.node)):
        unknown = f"the state of its card is unknown, since the agent of its node does not answer: {fault}"
        found = msgspec.structs.replace(found, facts=(unknown, *found.facts))
    elif not facts.node:
        found = name_rollout(view, put_silent_nodes_first(view, found, pod, facts), pod, explain_pod)
    more = (
        *_joined(view, pod),
        *_loans(view, pod),
        *_new_node(view, facts),
        *_place(view, facts, pod),
        *_misplaced(view, pod),
        *_unmatched(view, pod),
    )
    return add_pod_health(view, _with_pod(found, pod, more), pod)


def _with_queue(view: ClusterView, found: Explanation, pod: Pod) -> Explanation:
    """Adds what Kueue did to a pod that waits for Tessera or the scheduler: a coming eviction, a node selector."""
    if view.snapshot.queues is None or pod.spec.node_name:
        return found
    more = tuple(admitted_facts(view.snapshot.queues, pod, view.snapshot.now))
    return msgspec.structs.replace(found, facts=(*found.facts, *more))


def _with_pod(found: Explanation, pod: Pod, more: Sequence[str]) -> Explanation:
    """Adds the pod's name, further facts and, if the webhook chose the pod's request, the reason for that choice."""
    chosen = pod.metadata.annotations.get(CHOSEN_REASON)
    return Explanation(
        case=found.case,
        verdict=found.verdict,
        facts=(
            *found.facts,
            *more,
            *([f"Tessera chose its request: {chosen}"] if chosen else []),
        ),
        help=found.help,
        pods=(pod.metadata.name,),
    )


def may_hold_several(pod: Pod) -> bool:
    """True for a pod that runs and asks for several cards or slices, or for some by claims."""
    several = sum(extended_requests(pod).values()) > 1 or bool(pod.spec.resource_claims)
    return pod.status.phase == "Running" and several


def _joined(view: ClusterView, pod: Pod) -> Iterator[str]:
    """How the cards of a pod with several are joined, as its node's agent reads them."""
    name = pod.metadata.name
    for page in view.snapshot.pages:
        if page.node == pod.spec.node_name and page.topology is not None:
            sentence = describe_joined(page.topology, page.cards_of(pod.metadata.namespace, name))
            yield from [f"{sentence}: tessera topo {name} -n {pod.metadata.namespace}"] if sentence else []


def _loans(view: ClusterView, pod: Pod) -> Iterator[str]:
    """Which pod lends it a slice, or has its slice (:mod:`tessera.agent.slices.further_ways`)."""
    meta = pod.metadata
    to = meta.annotations.get(LENDS_ANNOTATION)
    if to is not None and any(each.kind == "Pod" for each in meta.owner_references):
        named = one_line(to, 80)
        if any(each.status.has_ended for each in view.snapshot.pods if lends_to(pod, each)):
            back = f"tessera resize {named} --back -n {meta.namespace}"
            yield f"pod {named} has ended, and no other uses the slice: {back}"
        else:
            yield f"its own container sees no card: the slice is for pod {named}, from that pod's next start on"
    if pod.status.has_ended:
        return
    for each in view.snapshot.pods:
        if lends_to(each, pod):
            has = each.metadata.annotations.get(CHOSEN, "a slice")
            has_it = _starts(pod) > _starts(each) > ""
            when = "has had it since its last start" if has_it else "gets it at its next start"
            yield f"pod {each.metadata.name} lends it {has}, beside its own; its container {when}"


def _starts(pod: Pod) -> str:
    """When the container that runs with a card started; empty if it does not run."""
    chosen = pod.metadata.annotations.get(CHOSEN)
    names = {each.name for each in pod.spec.containers if chosen in each.resources.limits}
    states = (each.state.running for each in pod.status.container_statuses if each.name in names and each.state)
    return next((each.started_at or "" for each in states if each is not None), "")


def _place(view: ClusterView, facts: PodInfo, pod: Pod) -> Iterator[str]:
    """What is ahead of a pod that waits for Tessera: its place, and a scheduler that shows no sign of life."""
    if not facts.is_held:
        return
    yield from place_facts(view, pod)
    if name := absent_scheduler(view, pod):
        yield f"it needs scheduler {name} (spec.schedulerName) after its gate, and nothing shows that this runs"


def _unmatched(view: ClusterView, pod: Pod) -> Iterator[str]:
    return iter(()) if pod.spec.node_name or pod.status.phase in FINISHED else unmatched_selectors(view, pod)


def _misplaced(view: ClusterView, pod: Pod) -> Iterator[str]:
    """Keys of the pod, its namespace and its quotas that nobody reads where they stand; none of a pod that ended."""
    if pod.status.phase in FINISHED:
        return
    labels = view.once("labels of nodes", lambda: {key for each in view.snapshot.nodes for key in each.metadata.labels})
    yield from islice(misplaced_on_pod(pod, labels.__contains__), _MISPLACED)
    yield from misplaced_on_namespace(view.snapshot.order.namespaces, pod.metadata.namespace)
    own = (each for each in view.snapshot.quotas if each.metadata.namespace == pod.metadata.namespace)
    yield from islice(uncounted_quotas(own, extended_requests(pod)), _MISPLACED)
    yield from set_by_limit_range(pod, extended_requests(pod))


#: The controller's events about new nodes, with what they mean.
_OF_NEW_NODES = {NEW_NODE_REASON: "a new node was asked for", NO_HELP_REASON: "no new node is asked for now"}


def _new_node(view: ClusterView, facts: PodInfo) -> Sequence[str]:
    """The controller's last word about new nodes, for a pod that still waits."""
    if not facts.ready_to_place:
        return ()
    told = [event for event in view.events_of(facts.uid) if event.reason in _OF_NEW_NODES]
    return tuple(f"{_OF_NEW_NODES[event.reason]}: {view.describe_event(event)}" for event in told[-1:])


# Gates of others


def _explain_other_gate(view: ClusterView, pod: Pod, facts: PodInfo) -> Explanation | None:
    others = facts.earlier_gates if facts.gated else facts.gates
    if not others:
        return None
    kueue = any(gate.startswith(PREFIX) for gate in others)
    queue = pod.metadata.labels.get(QUEUE_LABEL)
    snapshot = view.snapshot
    if kueue and snapshot.queues is not None:
        events = view.events_of(pod.metadata.uid)
        found = explain_held_pod(snapshot.queues, pod, count_group(snapshot.pods, pod), events, snapshot.now)
        if found is not None:
            asks = f"it requests {profiles_text(facts) or format_requests(extended_requests(pod))}"
            return msgspec.structs.replace(found, facts=(asks, *found.facts))
    steps: tuple[str, ...] = (
        f"find the gate's owner: kubectl get pods -A | grep -i {re.split('[./]', others[0])[0]}",
        "if the cluster has none, create the pod again without the gate: nobody else removes it",
    )
    if kueue:
        steps = (
            f"see why Kueue has not admitted it: kubectl get workloads.kueue.x-k8s.io -n {facts.namespace}",
            *([f"look at its queue: kubectl describe localqueue -n {facts.namespace} {queue}"] if queue else []),
        )
    return Explanation(
        case="other-gate",
        verdict=verdict(OtherGate(others)),
        facts=(
            f"it requests {profiles_text(facts) or format_requests(extended_requests(pod))}",
            *([f"it is in the queue {queue}"] if queue else []),
            *(
                ["Tessera places its slice when that gate is removed, and then removes its own gate"]
                if facts.gated
                else []
            ),
            *(["Tessera has gone first: its slices are promised"] if _has_promise(view, facts) else []),
            *([_HELD_TOO_LONG] if facts.later_gates and facts.slices_withdrawn else []),
        ),
        help=steps,
    )


def _has_promise(view: ClusterView, facts: PodInfo) -> bool:
    promise = None if view.slicer is None else view.slicer.state.allocations.current_of(facts.uid)
    return promise is not None and promise.recorded


# By the controller's page


def _explain_by_page(view: ClusterView, pod: Pod, facts: PodInfo) -> Explanation | None:
    """Explains a pod that the controller lists as waiting: by its reason, whatever a plan of the reader would say."""
    row = view.queue_row(pod)
    if row is None or not facts.is_held or view.controller_fault():
        return None
    asks = f"it requests {profiles_text(facts)}"
    if row.why is None:
        return Explanation(case=row.reason, verdict=f"waits; {row.detail}", facts=(asks,))
    if facts.kind is CLAIMS and not view.snapshot.plans_claims:  # a plan would not know which nodes serve claims
        blockers = (name_blockers(row.why, view.indexes),) if row.blockers else ()
        told = (asks, *blockers, *view.cordoned_cards())
        return Explanation(
            case=row.why.case, verdict=verdict(row.why), facts=told, help=steps(row.why, facts.namespace)
        )
    return None if _has_promise(view, facts) else explain_no_room(view, facts, row.why)


# With the controller's state


def _explain_with_state(view: ClusterView, slicer: Slicer, pod: Pod, facts: PodInfo) -> Explanation:
    promise = slicer.state.allocations.current_of(PodUid(pod.metadata.uid))
    recorded = promise if promise is not None and promise.recorded else None
    if facts.gated or (facts.kind is CLAIMS and facts.is_held and recorded is None):
        return _explain_held(view, slicer, pod, facts, promise)
    if not facts.node:
        return explain_unscheduled(view, slicer, pod, facts, recorded)
    return explain_bound(view, slicer, pod, facts, recorded)


def _explain_held(
    view: ClusterView, slicer: Slicer, pod: Pod, facts: PodInfo, promise: Allocation | None
) -> Explanation:
    fault = view.controller_fault()
    if fault:
        return _explain_no_controller(view, slicer, facts, promise, fault)
    refused = [each for each in view.events_of(pod.metadata.uid) if each.reason == "SliceRefused"]
    if promise is not None:
        return _explain_placing(view, pod, facts, promise, refused)
    reason, told = slicer.state.pods.reason_of(facts.uid), told_by_condition(view, pod)
    if reason is not None:
        return _with_told(explain_no_room(view, facts, reason), told)
    return Explanation(
        case="held",
        verdict=_held(facts, told.text if told is not None else "nothing that you may read says why"),
        facts=(f"it requests {profiles_text(facts)}", *(view.describe_event(each) for each in refused[-1:])),
        help=("read the controller's log", CONTROLLER_LOG),
    )


def _held(facts: PodInfo, why: str) -> str:
    return f"is held by Tessera's gate; {why}" if facts.gated else f"waits for the slices of its ResourceClaims; {why}"


def _with_told(found: Explanation, told: Told | None) -> Explanation:
    """Adds the controller's last word to what a plan of the reader says, unless that has become another reason."""
    if told is None or told.case != found.case:
        return found
    return msgspec.structs.replace(found, facts=(*found.facts, told.text))


def _explain_placing(
    view: ClusterView, pod: Pod, facts: PodInfo, promise: Allocation, refused: Sequence[CoreEvent]
) -> Explanation:
    """Explains a pod with room: the controller is at it, or a rule holds it that only the controller sees."""
    where = f"{view.slices(promise.slices)}, on node {promise.node}"
    told = None if promise.recorded else told_by_condition(view, pod)
    events = [view.describe_event(each) for each in refused[-1:]]
    if told is not None:
        return Explanation(
            case=told.case,
            verdict=f"waits; {told.text}",
            facts=(f"it requests {profiles_text(facts)}", f"by all that you may read, this is free: {where}", *events),
            help=steps(Planning(), facts.namespace),
        )
    return Explanation(
        case="placing",
        verdict="waits for the controller to place it: there is room for it",
        facts=(f"{'promised and recorded' if promise.recorded else 'free for it'}: {where}", *events),
        help=steps(Planning(), facts.namespace),
    )


def _explain_no_controller(
    view: ClusterView, slicer: Slicer, facts: PodInfo, promise: Allocation | None, fault: str
) -> Explanation:
    reason = slicer.state.pods.reason_of(facts.uid)
    if promise is not None:
        then = f"there is room for it: {view.slices(promise.slices)}, on node {promise.node}"
    else:
        then = f"and then: {sentence(reason)}" if reason is not None else ""
    return Explanation(
        case="no-controller",
        verdict="waits for Tessera's controller, which does not run",
        facts=(f"it requests {profiles_text(facts)}", fault, *([then] if then else [])),
        help=(
            "start it: kubectl get deployment,pods -n tessera-system -l app.kubernetes.io/name=tessera-controller",
            f"see why it does not run: {CONTROLLER_LOG}",
        ),
    )


# Without the controller's state


_VIEW = "an administrator can bind you the ClusterRole tessera-view in this namespace: with it the reason is known"


def _explain_by_events(view: ClusterView, pod: Pod, facts: PodInfo) -> Explanation:
    """Explains a pod by itself and its events, for a user who may not read the cluster."""
    snapshot = view.snapshot
    again = (REINSTALL,) if snapshot.lacks_kind else ()
    forbidden = f"{snapshot.describe_missing()}: this is from the pod and its events alone"
    events = [view.describe_event(each) for each in view.events_of(pod.metadata.uid)[-3:]]
    asks = f"it requests {profiles_text(facts)}"
    if pod.status.phase == "Running":
        return Explanation(case="runs", verdict=f"runs on node {facts.node}", facts=(asks, forbidden), help=again)
    told = told_by_condition(view, pod)
    if facts.gated or (facts.kind is CLAIMS and told is not None):
        case = "held"
        says = _held(facts, told.text) if told is not None else "waits for a slice behind Tessera's gate"
    elif not facts.node:
        case, says = "unscheduled", f"waits for {scheduler_name(pod)} to bind it"
    else:
        case, says = "starting", f"is starting on node {facts.node}"
    return Explanation(
        case=case,
        verdict=says,
        facts=(asks, *scheduler_facts(view, pod), *events, forbidden),
        help=(
            f"see all that you may: kubectl describe pod -n {facts.namespace} {facts.name}",
            *again,
            *([_VIEW] if snapshot.forbidden & REQUIRED_KINDS - snapshot.failed.keys() else []),
        ),
    )
