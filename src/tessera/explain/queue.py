"""Explains a pod or a Job that Kueue holds: a sentence for each kind of waiting, with position and amounts."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tessera.api.names import MIG_RESOURCE_PREFIX, QUOTA_RESOURCE
from tessera.api.pod_annotations import KUEUE_COUNT_ANNOTATION, kueue_group
from tessera.clock import parse_rfc3339
from tessera.explain.explanation import Explanation
from tessera.kube.resources import CoreEvent, Pod
from tessera.kueue.objects import (
    CHARGED_RESOURCE,
    PREFIX,
    QUEUE_LABEL,
    TOPOLOGY_GATE,
    Case,
    WaitingReason,
    Workload,
    waiting_reason,
)
from tessera.kueue.positions import QueueReading
from tessera.text import age

#: The event by which Kueue tells that a group has no Workload yet.
_COMPOSE = "ErrWorkloadCompose"
#: Begin of the message of ``Evicted`` in a Workload that has reserved its quota again.
_PREVIOUSLY = "Previously: "


def is_queued(pod: Pod) -> bool:
    """True if Kueue may hold a pod, or has let it go: its Workload says more than the pod."""
    gates = any(gate.name.startswith(PREFIX) for gate in pod.spec.scheduling_gates)
    return gates or (not pod.spec.node_name and any(name.startswith(PREFIX) for name in pod.metadata.labels))


def explain_held_pod(
    reading: QueueReading, pod: Pod, group: int, events: Sequence[CoreEvent], now: float
) -> Explanation | None:
    """Explains a pod that a gate of Kueue holds; ``None`` if Kueue's objects say nothing about it.

    Args:
        reading: what Kueue says.
        pod: the pod.
        group: number of existing pods of its group; 0 if it is in none.
        events: the pod's events, newest last.
        now: seconds since 1970.
    """
    meta = pod.metadata
    queue = meta.labels.get(QUEUE_LABEL, "")
    if not reading.installed:
        return Explanation(
            case="kueue-not-installed",
            verdict="is held by a gate of Kueue, and Kueue is not installed in this cluster",
            help=("install Kueue, or create the pod again without the label " + QUEUE_LABEL,),
        )
    owners = [owner.uid for owner in meta.owner_references if owner.controller]
    item = reading.workload_of(meta.uid) or reading.workload_of(*owners)
    if item is not None:
        gates = [gate.name for gate in pod.spec.scheduling_gates]
        return explain_workload_in_queue(reading, item, now, topology=TOPOLOGY_GATE in gates)
    if any("workloads" in each for each in reading.forbidden):
        return _unreadable(reading, meta.namespace, queue)
    if kueue_group(meta.labels, meta.annotations):
        return _incomplete_group(pod, group, events)
    if queue and queue not in reading.queues and not reading.forbidden:
        return _missing(f"LocalQueue {queue}", meta.namespace)
    return None


def _unreadable(reading: QueueReading, namespace: str, queue: str) -> Explanation:
    what = ", ".join(reading.forbidden)
    return Explanation(
        case="kueue-unreadable",
        verdict="is held by Kueue, and you may not read why",
        facts=(
            f"you may not list {what} in namespace {namespace}",
            *([f"it is in the queue {queue}"] if queue else []),
        ),
        help=(
            "ask an administrator for the role tessera-edit in this namespace, or for Kueue's kueue-batch-user-role",
        ),
    )


def _incomplete_group(pod: Pod, group: int, events: Sequence[CoreEvent]) -> Explanation:
    meta = pod.metadata
    name, wanted = kueue_group(meta.labels, meta.annotations), meta.annotations.get(KUEUE_COUNT_ANNOTATION, "")
    told = [event.message for event in events if event.reason == _COMPOSE][-1:]
    return Explanation(
        case="kueue-incomplete-group",
        verdict=f"waits for the other pods of its group {name}; Kueue queues a group when all of its pods exist",
        facts=(
            f"{group} of {wanted} pods exist" if wanted else f"it has no annotation {KUEUE_COUNT_ANNOTATION}",
            *(f"Kueue says: {text}" for text in told),
        ),
        help=(f"create the missing pods, or correct {KUEUE_COUNT_ANNOTATION} of all of them",),
    )


def explain_workload_in_queue(
    reading: QueueReading, item: Workload, now: float, *, topology: bool = False
) -> Explanation:
    """Explains the state of a Workload; the verdict is about the object that it is for.

    Args:
        reading: what Kueue says of its namespace.
        item: the Workload.
        now: seconds since 1970.
        topology: the gate of topologies holds its pods too.
    """
    reason = waiting_reason(item)
    verdict, steps = _VERDICTS[reason.case](reason, item)
    case = f"kueue-{reason.case.value}"
    if reason.case is Case.ADMITTED and topology:
        case, verdict = "kueue-topology", "is admitted by Kueue, which still chooses its place in the topology"
    until = _back_at(item, now)
    if until and reason.case not in {Case.ADMITTED, Case.CHECK, Case.DEACTIVATED}:
        case, verdict = f"kueue-{Case.SENT_BACK.value}", f"was sent back by Kueue and counts again in {age(until)}"
    facts = [
        f"it is in the queue {item.spec.queue_name}",
        *_position(reading, item),
        *([f"Kueue says: {reason.message}"] if reason.message else []),
        *_last_eviction(item, now, reason),
    ]
    return Explanation(case=case, verdict=verdict, facts=tuple(facts), help=steps)


def _back_at(item: Workload, now: float) -> float:
    """Seconds until a Workload that was sent back counts again; 0 if it counts."""
    state = item.status.requeue_state
    try:
        return max(0.0, parse_rfc3339(state.requeue_at) - now) if state is not None and state.requeue_at else 0.0
    except ValueError:
        return 0.0


def _position(reading: QueueReading, item: Workload) -> Iterator[str]:
    if item.is_true("QuotaReserved"):
        return
    at = reading.positions.get(item.metadata.name)
    if at is not None:
        size = reading.sizes.get(item.spec.queue_name)
        of = f" of {'at least ' if size.more else ''}{size.count:,}" if size is not None else ""
        yield (
            f"it is number {at.position_in_local_queue + 1}{of} in that queue, and number "
            f"{at.position_in_cluster_queue + 1} among all queues that share its quota"
        )
    elif reading.silent:
        yield f"its position is not known: {reading.silent}"


def _last_eviction(item: Workload, now: float, reason: WaitingReason) -> Iterator[str]:
    found = item.condition("Evicted")
    if found is None or found.message in reason.message:
        return
    count = item.status.requeue_state.count if item.status.requeue_state is not None else 0
    often = f"{count} times in all" if count > 1 else ""
    if found.status != "True":  # it has its quota again, since the time of this condition
        before = found.message.removeprefix(_PREVIOUSLY)
        if before != found.message:
            yield f"Kueue sent it back before{f' ({often})' if often else ''}: {before}"
        return
    try:
        ago = f" {age(now - parse_rfc3339(found.last_transition_time or ''))} ago"
    except ValueError:
        ago = ""
    yield f"Kueue sent it back{ago} ({', '.join(filter(None, (found.reason, often)))}): {found.message}"


# One sentence for each kind of waiting, and what would help

_Sentence = tuple[str, tuple[str, ...]]


def _missing(queue: str, namespace: str) -> Explanation:
    verdict, steps = _missing_queue(queue, namespace)
    return Explanation(case=f"kueue-{Case.MISSING_QUEUE.value}", verdict=verdict, help=steps)


def _missing_queue(queue: str, namespace: str) -> _Sentence:
    return (
        f"waits in Kueue for a queue that does not exist: {queue}",
        (
            f"look which queues there are: kubectl get localqueues -n {namespace}",
            f"correct the label {QUEUE_LABEL}, or make the queue: tessera kueue queues --help",
        ),
    )


def _quota(reason: WaitingReason, _item: Workload) -> _Sentence:
    needs = f"it needs {reason.missing} more of {_resource(reason)} than the queue has free"
    in_flavor = f" in flavor {reason.flavor}" if reason.flavor else ""
    detail = f"; {needs}{in_flavor}" if reason.missing else ""
    return f"waits in Kueue for quota{detail}", ("it is admitted when others of the queue end, in the queue's order",)


def _never(reason: WaitingReason, _item: Workload) -> _Sentence:
    detail = f"it asks for {reason.missing} of {_resource(reason)}, and the queue has {reason.most} at most"
    return (
        f"can never run in its queue{f'; {detail}' if reason.missing and reason.most else ''}",
        ("ask for less, or for a larger quota; Kueue says this again for every attempt",),
    )


def _uncovered(reason: WaitingReason, _item: Workload) -> _Sentence:
    verdict = f"can never run in its queue, which does not cover {reason.subject}"
    ours = reason.subject in {CHARGED_RESOURCE, QUOTA_RESOURCE} or reason.subject.startswith(MIG_RESOURCE_PREFIX)
    if not ours:
        return verdict, (
            f"an administrator adds {reason.subject} to spec.resourceGroups of its ClusterQueue, with a quota",
            "or name a queue that covers it: kubectl get clusterqueues -o yaml",
        )
    return (
        verdict,
        (
            "an administrator lets Kueue charge GPU memory: tessera kueue config --extend FILE (docs/kueue.md)",
            "or, if the queue counts nvidia.com/mig-* itself: tessera kueue config --count-slices --extend FILE",
            "tessera doctor says what else is missing in Kueue's configuration",
        ),
    )


def _deactivated(_reason: WaitingReason, item: Workload) -> _Sentence:
    meta = item.metadata
    patch = f'kubectl patch workload -n {meta.namespace} {meta.name} --type merge -p \'{{"spec":{{"active":true}}}}\''
    return "was deactivated by Kueue and will not run", (f"when the reason is gone, activate it: {patch}",)


def _check(reason: WaitingReason, item: Workload) -> _Sentence:
    return (
        f"has its quota and waits for an admission check of Kueue: {reason.subject}",
        (f"look at its state: kubectl describe workload -n {item.metadata.namespace} {item.metadata.name}",),
    )


_LOOK = "look at its queue: kubectl describe localqueue -n {} {}"


def _look(item: Workload) -> tuple[str, ...]:
    return (_LOOK.format(item.metadata.namespace, item.spec.queue_name),)


_VERDICTS: Mapping[Case, Callable[[WaitingReason, Workload], _Sentence]] = {
    Case.FINISHED: lambda _reason, _item: ("has finished, as far as Kueue knows", ()),
    Case.DEACTIVATED: _deactivated,
    Case.MISSING_QUEUE: lambda reason, item: _missing_queue(reason.subject, item.metadata.namespace),
    Case.STOPPED_QUEUE: lambda reason, item: (
        f"waits in Kueue for a queue that admits nothing now: {reason.subject or item.spec.queue_name}",
        (*_look(item), "a queue is inactive while a flavor or an admission check of it is missing or not active"),
    ),
    Case.NAMESPACE: lambda _reason, item: (
        f"waits in Kueue for ever: the ClusterQueue of {item.spec.queue_name} takes nothing of this namespace",
        ("an administrator adds the namespace to the namespaceSelector of the ClusterQueue",),
    ),
    Case.UNCOVERED: _uncovered,
    Case.NEVER: _never,
    Case.QUOTA: _quota,
    Case.NO_FLAVOR: lambda _reason, item: ("waits in Kueue; no flavor of its queue suits it", _look(item)),
    Case.PREEMPTING: lambda _reason, _item: (
        "waits in Kueue until workloads that it preempts have given their quota back",
        ("their pods are being ended; nothing has to be done",),
    ),
    Case.CHECK: _check,
    Case.SENT_BACK: lambda _reason, _item: ("was sent back by Kueue and waits in its queue again", ()),
    Case.EVALUATING: lambda _reason, item: ("waits in Kueue, which has not looked at it yet", _look(item)),
    Case.OTHER: lambda _reason, item: ("waits in Kueue", _look(item)),
    Case.ADMITTED: lambda _reason, _item: ("is admitted by Kueue, which is about to start it", ()),
}


def _resource(reason: WaitingReason) -> str:
    return "GPU memory" if reason.subject in {CHARGED_RESOURCE, QUOTA_RESOURCE} else reason.subject


# Pods that Kueue has let go


def admitted_facts(reading: QueueReading, pod: Pod, now: float) -> Iterator[str]:
    """Facts about a pod that Kueue admitted and that waits for Tessera or the scheduler."""
    owners = [owner.uid for owner in pod.metadata.owner_references if owner.controller]
    item = reading.workload_of(pod.metadata.uid) or reading.workload_of(*owners)
    if item is None or not item.is_true("Admitted"):
        return
    ready = item.condition("PodsReady")
    if ready is not None and ready.status == "False":
        yield f"Kueue admitted it {_since(item, now)}and evicts it if its pods are not ready in time (waitForPodsReady)"
    admission = item.status.admission
    names = {
        flavor for each in (admission.pod_set_assignments if admission else ()) for flavor in each.flavors.values()
    }
    for flavor in sorted(names):
        for key, value in sorted(reading.node_labels.get(flavor, {}).items()):
            if pod.spec.node_selector.get(key) == value:
                yield f"its node selector {key}={value} is that of Kueue's flavor {flavor}"


def _since(item: Workload, now: float) -> str:
    found = item.condition("Admitted")
    try:
        return f"{age(now - parse_rfc3339(found.last_transition_time or ''))} ago " if found is not None else ""
    except ValueError:
        return ""


def count_group(pods: Iterable[Pod], pod: Pod) -> int:
    """The number of pods of a pod's group among these; 0 if it is in none."""
    name = kueue_group(pod.metadata.labels, pod.metadata.annotations)
    if not name:
        return 0
    namespace = pod.metadata.namespace
    members = (each for each in pods if each.metadata.namespace == namespace)
    return sum(kueue_group(each.metadata.labels, each.metadata.annotations) == name for each in members)
