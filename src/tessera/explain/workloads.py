"""Explains a workload: the state of its pods, and the reasons that some wait or cannot be created.

Pods that wait for the same reason share one explanation. A pod that the API server refused (quota, admission) does not
exist; only a condition or an event of its controller reports it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tessera.api.names import (
    DEVICE_ACCESS_ALLOWED,
    DEVICE_ACCESS_LABEL,
    DEVICE_ACCESS_POLICY,
    QUOTA_RESOURCE,
)
from tessera.api.resource_advice import DOMAIN
from tessera.explain.explanation import Explanation, ExplanationReport, merge_alike
from tessera.explain.pods import explain_pod
from tessera.explain.queue import explain_workload_in_queue
from tessera.explain.snapshot import ClusterView, event_time
from tessera.kube.quantity import parse_quantity
from tessera.kube.resources import Condition, CronJob, DaemonSet, Job, Pod, ResourceQuota
from tessera.kueue.objects import QUEUE_LABEL
from tessera.kueue.positions import QueueReading
from tessera.reasons.words import ways_out
from tessera.text import count_noun

#: The condition of a ReplicaSet whose pods the API server refuses.
_FAILURE = "ReplicaFailure"
#: Pods of a workload that does not say how many it wants.
DEFAULT_REPLICAS = 1
#: Cases of pods that need nobody's attention.
_FINE = frozenset({"runs", "finished", "leaving"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadState:
    """A workload, as far as its pods depend on it.

    Attributes:
        kind: its kind in lower case.
        namespace: its namespace.
        name: its name.
        controller_uids: UIDs of the workload and of its ReplicaSets: the controllers of its pods.
        desired: number of pods it should have now.
        suspended: True if it is suspended and should have no pods.
        queue: the queue of Kueue that its label names; empty if none.
        keeps_old: True for a Deployment that ends no old pod of an update before a new one is ready.
        conditions: its own conditions and those of its ReplicaSets.
    """

    kind: str
    namespace: str
    name: str
    controller_uids: frozenset[str]
    desired: int
    suspended: bool = False
    queue: str = ""
    keeps_old: bool = False
    conditions: tuple[Condition, ...] = ()


def daemon_set(item: DaemonSet) -> WorkloadState:
    """A DaemonSet runs one pod on each node that its controller counts."""
    return WorkloadState(
        kind="daemonset",
        namespace=item.metadata.namespace,
        name=item.metadata.name,
        controller_uids=frozenset({item.metadata.uid}),
        desired=item.status.desired_number_scheduled,
    )


def cron_job(item: CronJob, jobs: Sequence[Job]) -> WorkloadState:
    """A CronJob has the pods of its Jobs that have not ended.

    Args:
        item: the CronJob.
        jobs: the Jobs that it made.
    """
    parts = [job(each) for each in jobs]
    return WorkloadState(
        kind="cronjob",
        namespace=item.metadata.namespace,
        name=item.metadata.name,
        controller_uids=frozenset({item.metadata.uid}).union(*(each.controller_uids for each in parts)),
        desired=sum(each.desired for each in parts),
        suspended=item.spec.suspend and not any(each.desired for each in parts),
    )


def job(item: Job) -> WorkloadState:
    """A Job runs as many pods at a time as its parallelism, but no more than it has completions missing."""
    ended = any(each.type in {"Complete", "Failed"} and each.status == "True" for each in item.status.conditions)
    wanted = DEFAULT_REPLICAS if item.spec.parallelism is None else item.spec.parallelism
    if item.spec.completions is not None:
        wanted = min(wanted, max(0, item.spec.completions - item.status.succeeded))
    return WorkloadState(
        kind="job",
        namespace=item.metadata.namespace,
        name=item.metadata.name,
        controller_uids=frozenset({item.metadata.uid}),
        desired=0 if ended or item.spec.suspend else wanted,
        suspended=item.spec.suspend,
        queue=item.metadata.labels.get(QUEUE_LABEL, ""),
        conditions=item.status.conditions,
    )


def explain_workload(view: ClusterView, workload: WorkloadState, told: Iterable[Explanation] = ()) -> ExplanationReport:
    """Explains each reason that pods of a workload do not run.

    Args:
        view: the cluster as it was read.
        workload: the workload.
        told: explanations of its pods by somebody who may read more of the cluster; they count before others.
    """
    pods = [pod for pod in view.snapshot.pods if _controlled_by(pod, workload.controller_uids)]
    known = {each.pods[0]: each for each in told if each.pods}
    answers = [
        known.get(pod.metadata.name) or explain_pod(view, pod)
        for pod in sorted(pods, key=lambda pod: pod.metadata.name)
    ]
    living = sum(pod.status.phase not in {"Succeeded", "Failed"} for pod in pods)
    missing = max(0, workload.desired - living)
    # In a rolling update there may be as many pods as there should be, and none of the new template.
    failing = any(each.type == _FAILURE and each.status == "True" for each in workload.conditions)
    updating = failing and not missing
    uncreated = _explain_uncreated(view, workload, updating) if missing or failing else None
    shown = [answer for answer in answers if answer.case not in _FINE]
    if not shown and uncreated is None:
        shown = answers
    return ExplanationReport(
        kind=workload.kind,
        namespace=workload.namespace,
        name=workload.name,
        summary=_summary(workload, answers, missing, uncreated),
        answers=(*([uncreated] if uncreated else []), *_explain_queued(view, workload), *merge_alike(shown)),
    )


def _explain_queued(view: ClusterView, workload: WorkloadState) -> Iterator[Explanation]:
    """Explains a suspended workload by its Workload in Kueue, if it has one."""
    reading = view.snapshot.queues
    if not workload.suspended:
        return
    item = reading.workload_of(*workload.controller_uids) if reading is not None else None
    if reading is not None and item is not None:
        yield explain_workload_in_queue(reading, item, view.snapshot.now)
    else:
        yield _explain_suspended(reading, workload)


def _explain_suspended(reading: QueueReading | None, workload: WorkloadState) -> Explanation:
    """Explains a suspended Job of which Kueue knows nothing, as far as the user may read."""
    installed = reading is not None and reading.installed
    resume = f'kubectl patch job -n {workload.namespace} {workload.name} -p \'{{"spec":{{"suspend":false}}}}\''
    why = ""
    if workload.queue:
        there = "has no Workload for it" if installed else "is not installed"
        if reading is not None and reading.forbidden:
            there = f"you may not read ({', '.join(reading.forbidden)})"
        why = f"; its label names the queue {workload.queue} of Kueue, which {there}"
    return Explanation(
        case="suspended",
        verdict=f"are created once the {workload.kind} is resumed (spec.suspend){why}",
        help=(
            *((f"see its queue: kubectl get localqueues -n {workload.namespace}",) if why and installed else ()),
            f"resume it by hand: {resume}",
        ),
    )


def _controlled_by(pod: Pod, controller_uids: frozenset[str]) -> bool:
    return any(owner.controller and owner.uid in controller_uids for owner in pod.metadata.owner_references)


def _summary(
    workload: WorkloadState, answers: Sequence[Explanation], missing: int, uncreated: Explanation | None
) -> str:
    if workload.suspended:
        return "it is suspended (spec.suspend), so it has no pods"
    if not workload.desired and not answers:
        return "it should have no pods now"
    runs = sum(answer.case == "runs" for answer in answers)
    waits = sum(answer.case not in _FINE for answer in answers)
    ended = sum(answer.case == "finished" for answer in answers)
    verb = "cannot be created" if uncreated is not None else "not created yet"
    parts = [f"{runs} {'runs' if runs == 1 else 'run'}"] * bool(runs)
    parts += [f"{waits} {'does' if waits == 1 else 'do'} not run"] * bool(waits)
    parts += [f"{ended} finished"] * bool(ended) + [f"{missing} {verb}"] * bool(missing)
    parts += ["pods of its new template cannot be created"] * bool(uncreated is not None and not missing)
    wanted = f"it should have {count_noun(workload.desired, 'pod')}"
    if runs + waits > workload.desired:
        rollout = " during its rollout" if workload.kind == "deployment" else ""
        wanted += f" and has {runs + waits} now{rollout}"
    return f"{wanted}: {', '.join(parts) or 'none is left'}"


# Pods that the API server refused


def _explain_uncreated(view: ClusterView, workload: WorkloadState, updating: bool) -> Explanation | None:
    message = next(_failure_messages(view, workload), None)
    if message is None:
        return None
    if "exceeded quota" in message:
        named = [quota for quota in view.snapshot.quotas if f"exceeded quota: {quota.metadata.name}," in message]
        waits_for_old = updating and workload.keeps_old
        used = "; its old pods use it until a new one is ready (maxUnavailable 0)" if waits_for_old else ""
        return Explanation(
            case="quota",
            verdict=f"cannot be created; a quota of the namespace is used up{used}",
            facts=(message, *_quotas(named or view.snapshot.quotas, message=message if named else "")),
            help=(
                *(ways_out(workload.namespace, workload.name)[:1] if waits_for_old else ()),
                f"delete pods of namespace {workload.namespace} that use it",
                *(f"raise it: kubectl edit resourcequota -n {workload.namespace} {q.metadata.name}" for q in named),
            ),
        )
    if "failed calling webhook" in message:
        return Explanation(
            case="webhook-down",
            verdict="cannot be created; an admission webhook does not answer",
            facts=(message,),
            help=(
                "if it is Tessera's: kubectl get pods -n tessera-system -l app.kubernetes.io/name=tessera-webhook",
                "their owner creates the pods when it answers again",
            ),
        )
    if f"'{DEVICE_ACCESS_POLICY}'" in message:
        allowed = f"{DEVICE_ACCESS_LABEL}={DEVICE_ACCESS_ALLOWED}"
        return Explanation(
            case="device-access",
            verdict="cannot be created; they would use GPUs that they do not request",
            facts=(message.partition("denied request: ")[2] or message,),
            help=(
                f"correct the pod template of {workload.kind} {workload.name}",
                f"or an administrator allows it: kubectl label namespace {workload.namespace} {allowed}",
            ),
        )
    steps = [text for words, text in _REFUSALS if words in message] or ["do what the message asks for"]
    return Explanation(
        case="refused",
        verdict="cannot be created; the API server refuses them",
        facts=(message,),
        help=(*steps, f"the pod template: kubectl edit -n {workload.namespace} {workload.kind} {workload.name}"),
    )


#: Steps against a refusal, by words of the API server's message.
_REFUSALS = (
    ("RuntimeClass", "remove runtimeClassName from the template: Tessera's cards and slices need none; or create it"),
    ("serviceaccount", "create the service account, or name another one in the template"),
    (
        "PodSecurity",
        "change what the message names, or have an administrator allow it by the namespace's Pod Security label",
    ),
    ("must specify", "write the requests and limits that the quota asks of every pod into the template"),
    ("denied the request", "correct the pod template as the message says"),
    ("PriorityClass", "name a PriorityClass that exists: kubectl get priorityclasses"),
)


def _failure_messages(view: ClusterView, workload: WorkloadState) -> Iterator[str]:
    for condition in workload.conditions:
        if condition.type == _FAILURE and condition.status == "True" and condition.message:
            yield condition.message
    events = [each for uid in workload.controller_uids for each in view.events_of(uid)]
    for event in sorted(events, key=lambda each: (event_time(each), each.reason == "FailedCreate"), reverse=True):
        if event.reason == "SuccessfulCreate":
            return  # what was refused before it is over
        if event.reason == "FailedCreate":
            yield event.message


def exhausted_quotas(quotas: Iterable[ResourceQuota]) -> Iterator[str]:
    """Lines about the quotas on slices of a namespace that are used up."""
    return (line for line in _quotas(quotas) if line.endswith("nothing is left"))


def _quotas(quotas: Iterable[ResourceQuota], *, message: str = "") -> Iterator[str]:
    """Lines about the quotas on GPUs, and on what a refusal names."""
    for quota in quotas:
        for name, hard in sorted(quota.status.hard.items()):
            resource = name.removeprefix("requests.")
            used = quota.status.used.get(name, "0")
            left = ", nothing is left" if _is_used_up(hard, used) else ""
            if resource == QUOTA_RESOURCE or resource.startswith(DOMAIN) or f" {name}=" in message:
                yield f"quota {quota.metadata.name}: {used} of {hard} of {name} used{left}"


def _is_used_up(hard: str, used: str) -> bool:
    try:
        return parse_quantity(used) >= parse_quantity(hard)
    except ValueError:
        return False
