"""What schedulers said of a pod, and whether a scheduler with the pod's ``spec.schedulerName`` shows any sign of life.

A scheduler's word is a copy: it was true when the scheduler last looked. While a pod has gates, no scheduler looks at
it, and the word about its gates stays in the pod until one has looked again.

A :class:`Told` is what the controller says of a waiting pod: by its page, if the reader may read it, else by the pod's
condition.

The condition is a copy, written at most once a minute, and only when position, reason or start changed. It is shown
as it is, with its age.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tessera.api.names import SLICE_PROMISED_CONDITION
from tessera.clock import parse_time_or_zero
from tessera.explain.explanation import Explanation
from tessera.explain.snapshot import ClusterView
from tessera.forecast.queue_page import QueuedPod, case_of, position_text, start_text
from tessera.kube.resources import Condition, Pod
from tessera.kube.resources.pods import DEFAULT_SCHEDULER
from tessera.text import age, count_noun, one_line

#: Reason with which a scheduler says that gates hold the pod, which the pod's own gates show better.
_GATED = "SchedulingGated"
_GATES = "scheduling gates"


def scheduler_name(pod: Pod) -> str:
    """The scheduler that the pod asks for, by the name that people know."""
    name = pod.spec.scheduler_name or DEFAULT_SCHEDULER
    return "kube-scheduler" if name == DEFAULT_SCHEDULER else one_line(name, 60)


def scheduler_word(view: ClusterView, pod: Pod) -> str:
    """Why the scheduler found no node when it last looked; empty if it has not said, or the pod is on a node."""
    if pod.spec.node_name or pod.spec.scheduling_gates:
        return ""
    condition = _condition(pod)
    if condition is not None:
        return condition.message if (condition.status, condition.reason) != ("False", _GATED) else ""
    failed = [each for each in view.events_of(pod.metadata.uid) if each.reason == "FailedScheduling"]
    return next((each.message for each in reversed(failed) if _GATES not in each.message), "")


def scheduler_facts(view: ClusterView, pod: Pod) -> Iterator[str]:
    """The scheduler's last word, and the node on which it ends pods of lower priority for this one."""
    word = scheduler_word(view, pod)
    if word:
        yield f"{scheduler_name(pod)} last said: {word}"
    if pod.status.nominated_node_name and not pod.spec.node_name:
        yield f"{scheduler_name(pod)} ends pods of lower priority for it on node {pod.status.nominated_node_name}"


def absent_scheduler(view: ClusterView, pod: Pod) -> str:
    """The name of the pod's scheduler if nothing shows that it runs; empty for Kubernetes' own, and if it does.

    Signs of life are its word about this pod, its events, and other pods with its name that are on nodes.
    """
    name = pod.spec.scheduler_name
    if name in {"", DEFAULT_SCHEDULER}:
        return ""
    condition = _condition(pod)
    if condition is not None and condition.reason != _GATED:
        return ""
    served = any(each.spec.scheduler_name == name and each.spec.node_name for each in view.snapshot.pods)
    told = any(name in {each.reporting_component, each.source.component} for each in view.snapshot.events)
    return "" if served or told else one_line(name, 60)


def absence_facts(view: ClusterView, pod: Pod) -> Iterator[str]:
    """What was looked at before a scheduler is called absent."""
    waiting = sum(each.spec.scheduler_name == pod.spec.scheduler_name for each in view.snapshot.pods)
    where = "pods of its namespace" if "pods" in view.snapshot.forbidden else "pods"
    others = f"; {count_noun(waiting, 'pod')} of them {'asks' if waiting == 1 else 'ask'} for it" if waiting > 1 else ""
    yield f"no scheduler of this name has said anything about it, and none of the {where} with it is on a node{others}"


def scheduler_steps(pod: Pod) -> tuple[str, ...]:
    """The ways out for a pod whose scheduler shows no sign of life."""
    leave = "or leave spec.schedulerName out of the manifest, and create the pod again: kube-scheduler then places it"
    return (f"see if it is installed: {_find_pods(pod)}", leave)


def silence_step(pod: Pod) -> str:
    """The step for a pod that its scheduler should bind at any moment."""
    return f"check again in a moment; if nothing changes, see if {scheduler_name(pod)} runs: {_find_pods(pod)}"


def _find_pods(pod: Pod) -> str:
    name = scheduler_name(pod)
    return f"kubectl get pods -A | grep -i {name if name == 'kube-scheduler' else name.partition('-')[0]}"


#: Causes that the comparison with nodes cannot see, by words of a refusal (``pkg/scheduler/framework/plugins``): the
#: case, the verdict and the step.
_UNSEEN = (
    (
        ("persistentvolumeclaim", "PersistentVolume", "volume"),
        "volume",
        "waits for its volumes",
        "look at its claims: kubectl get persistentvolumeclaims,storageclasses -n NAMESPACE",
    ),
    (
        ("resourceclaim", "ResourceClaim", "device class"),
        "claims",
        "waits for devices of its ResourceClaims, which Tessera does not serve",
        "look at its claims: kubectl get resourceclaims -n NAMESPACE; or request cards and slices in limits",
    ),
)
#: Refusals that hold on every node, whatever is free there.
_EVERYWHERE = ('persistentvolumeclaim "', "unbound immediate PersistentVolumeClaims", "resourceclaim")


def unseen_cause(word: str, pod: Pod) -> Explanation | None:
    """Explains a pod by a refusal about its volumes or claims of devices; None if the word is about something else."""
    for words, case, verdict, step in _UNSEEN:
        if any(each in word for each in words):
            look, key = (
                step.replace("NAMESPACE", pod.metadata.namespace),
                f"{pod.metadata.namespace} {pod.metadata.name}",
            )
            return Explanation(case=case, verdict=verdict, help=(look, f"kubectl describe pod -n {key}"))
    return None


def refused_everywhere(word: str) -> bool:
    """True if a refusal about volumes or claims holds on every node."""
    return any(each in word for each in _EVERYWHERE)


def _condition(pod: Pod) -> Condition | None:
    found = pod.status.condition("PodScheduled")
    return found if found is not None and found.status == "False" and found.message else None


#: Seconds up to which the page counts as the present: the controller makes it every 15 s.
_PRESENT = 20.0


class Told(NamedTuple):
    """What the pod was told by its condition.

    Attributes:
        case: the reason in one word.
        text: the whole message, and when it was told.
    """

    case: str
    text: str


def told_by_condition(view: ClusterView, pod: Pod) -> Told | None:
    """The controller's last word to a pod that the page does not list; None if it has not said any."""
    condition = _told(pod)
    if condition is None or not condition.message or view.queue_row(pod) is not None:
        return None
    message = condition.message[:1].lower() + condition.message[1:]
    return Told(case_of(condition.reason), f"the controller told it {_since(view, condition)}: {message}")


def place_facts(view: ClusterView, pod: Pod) -> Iterator[str]:
    """Position and expected start of a pod that waits in the controller's queue."""
    row = view.queue_row(pod)
    told = _said_of(row) if row is not None else ""
    if told:
        yield f"its place in the queue, {_says(view)}: {told}"


def _said_of(row: QueuedPod) -> str:
    return "; ".join(filter(None, (position_text(row), start_text(row.start) if row.position else "")))


def _says(view: ClusterView) -> str:
    page = view.snapshot.page
    old = page.age if page is not None else 0.0
    return "the controller says" if old <= _PRESENT else f"the controller said {age(old)} ago"


def _told(pod: Pod) -> Condition | None:
    found = pod.status.condition(SLICE_PROMISED_CONDITION)
    return found if found is not None and found.status == "False" else None


def _since(view: ClusterView, told: Condition) -> str:
    """How long ago, in whole minutes: the live page shows this text, and must not change every second."""
    at = parse_time_or_zero(told.last_probe_time or told.last_transition_time)
    minutes = int((view.snapshot.now - at) / 60)
    if not at:
        return "some time ago"
    return f"{age(60.0 * minutes)} ago" if minutes > 1 else "in the last two minutes"
