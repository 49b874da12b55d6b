"""Explains pods by what they request: nothing, what is misspelt or impossible, or what kube-scheduler alone places."""

from collections.abc import Iterable, Iterator

from tessera.api.names import GATE
from tessera.api.pods.resource_advice import find_correction
from tessera.controller.objects.pod_info import CLAIMS, PodInfo
from tessera.explain.explanation import Explanation
from tessera.explain.fixed_resources import explain_fixed_request
from tessera.explain.offered_resources import extended_requests, format_requests, offered_resources
from tessera.explain.scheduler_words import scheduler_facts
from tessera.explain.snapshot import ClusterView
from tessera.kube.resources import Pod
from tessera.text import list_names, one_line


def explain_request(view: ClusterView, pod: Pod, facts: PodInfo) -> Explanation | None:
    """Explains a pod that does not wait for slices on demand, or cannot; None for any other."""
    if facts.fault and facts.kind == CLAIMS:
        from tessera.explain.pod_claims import explain_refused

        return explain_refused(facts)
    if facts.fault:
        return Explanation(
            case="bad-request",
            verdict="cannot run as written"
            if facts.devices
            else "cannot run as written; Tessera cannot make the slices that it requests",
            facts=(facts.fault,),
            help=("correct the manifest and create the pod again",),
        )
    if facts.profiles:
        return None
    asked = extended_requests(pod)
    if facts.device_claims and not asked:
        from tessera.explain.pod_claims import explain_claims

        return explain_claims(view, pod)
    if facts.gated:
        return _explain_needless_gate(pod)
    mistaken = dict(_find_misspelt(view, asked))
    if mistaken and not pod.spec.node_name:
        return Explanation(
            case="misspelt",
            verdict=f"cannot run as written; no node offers {list_names(list(mistaken))}",
            facts=(f"it requests {format_requests(asked)}", *scheduler_facts(view, pod)),
            help=(
                *(f"request {right} instead of {wrong}" for wrong, right in mistaken.items()),
                "correct the manifest and create the pod again: the resources of an existing pod cannot be changed",
            ),
        )
    if asked:
        return None if facts.gates else explain_fixed_request(view, pod)
    return _explain_no_request(view, pod)


def _explain_no_request(view: ClusterView, pod: Pod) -> Explanation:
    runs = pod.status.phase == "Running"
    phase, limit = pod.status.phase or "unknown", "set a limit, e.g. nvidia.com/mig-1g.5gb: 1; see tessera map"
    by_class = f"runtimeClassName {pod.spec.runtime_class_name} gives it no card; only a limit does"
    return Explanation(
        case="runs" if runs else "no-slices",
        verdict="does not request a GPU, so Tessera does nothing for it",
        facts=(
            f"no container has a limit nvidia.com/*; its phase is {phase}",
            *([by_class] if "nvidia" in pod.spec.runtime_class_name else []),
            *scheduler_facts(view, pod),
        ),
        help=(f"to request one, {limit}",),
    )


def _explain_needless_gate(pod: Pod) -> Explanation:
    asked = format_requests(extended_requests(pod))
    return Explanation(
        case="held",
        verdict="is held by Tessera's gate, but requests no slice, card or share, so nothing will remove the gate",
        facts=(f"it requests {asked}" if asked else "no container has a limit nvidia.com/*",),
        help=(f"create the pod again, without the gate {GATE} in spec.schedulingGates",),
    )


def _find_misspelt(view: ClusterView, asked: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Misspelt resource names that no node offers, each with the likely right name."""
    for name in asked:
        right = find_correction(name, offered_resources(view))
        if right and not any(name in node.status.allocatable for node in view.snapshot.nodes):
            yield one_line(name), right
