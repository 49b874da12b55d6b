"""Explains pods that have ended, were rejected by their node, or are being deleted before they had one."""

from collections.abc import Iterator

from tessera.api.names import PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.explain.explanation import Explanation
from tessera.explain.snapshot import ClusterView
from tessera.kube.resources import Pod

#: Reasons with which kubelet rejects a bound pod for good (``pkg/kubelet/lifecycle``), with the step against each.
_REJECTED = (
    ("UnexpectedAdmissionError", "if it happens again, see if the node's agent answers kubelet: tessera why node/NODE"),
    ("OutOf", "if it happens again, compare what the node's pods request: kubectl describe node NODE"),
    ("NodeAffinity", "if it happens again, compare its nodeSelector and affinity with the labels of node NODE"),
    ("TaintToleration", "if it happens again, compare its tolerations with the taints of node NODE"),
    ("AdmissionError", "if it happens again, read kubelet's log on node NODE"),
)
#: Words of the device plugin's error when a container asks for several shares where one is the most; NVIDIA's words.
_TOO_MANY_SHARES = "maximum request size for shared resources"


def explain_ended(view: ClusterView, pod: Pod, facts: PodInfo) -> Explanation | None:
    """Explains a pod that will not run any more; None for any other."""
    status = pod.status
    if status.phase == "Succeeded":
        return Explanation(case="finished", verdict=f"has finished (Succeeded){_left(view, facts)}")
    if status.phase == "Failed":
        steps = [step for reason, step in _REJECTED if status.reason.startswith(reason)]
        return _explain_rejected(pod, facts, steps[0]) if steps else _explain_failed(view, pod, facts)
    if facts.terminating and not facts.node:
        return Explanation(case="leaving", verdict="is being deleted", facts=_finalizers(pod))
    return None


def _left(view: ClusterView, facts: PodInfo) -> str:
    """What became of its cards or slices, as far as it is known."""
    if facts.devices:
        return "; its cards are free again"
    if view.slicer is None or not facts.profiles:
        return ""
    record = view.slicer.state.allocations.current_of(PodUid(facts.uid))
    return "; its slices are free again" if record is None else "; its slices are being removed"


def _explain_rejected(pod: Pod, facts: PodInfo, step: str) -> Explanation:
    message = pod.status.message
    steps: tuple[str, ...] = (
        "delete this pod, so that its owner creates another; a pod without an owner must be created again by hand",
        step.replace("NODE", facts.node),
    )
    if _TOO_MANY_SHARES in message:
        steps = ("request one share in each container, in the manifest of the pod's owner, and create the pod again",)
    return Explanation(
        case="rejected",
        verdict=f"was rejected by the node's kubelet, and will not run ({pod.status.reason})",
        facts=(f"node {facts.node} said: {message}",),
        help=steps,
    )


def _explain_failed(view: ClusterView, pod: Pod, facts: PodInfo) -> Explanation:
    cause = ": ".join(each for each in (pod.status.reason, pod.status.message) if each)
    return Explanation(
        case="failed",
        verdict=f"has failed{_left(view, facts)}",
        facts=(*([cause] if cause else []), *_exits(pod)),
        help=(f"read its log: kubectl logs -n {facts.namespace} {facts.name}",),
    )


def _exits(pod: Pod) -> Iterator[str]:
    for each in pod.status.container_statuses:
        if each.state is not None and each.state.terminated is not None:
            ended = each.state.terminated
            yield f"container {each.name} ended with exit code {ended.exit_code} ({ended.reason or 'no reason given'})"


def _finalizers(pod: Pod) -> tuple[str, ...]:
    names = ", ".join(pod.metadata.finalizers)
    return (f"waits for the finalizers {names}",) if names else ()
