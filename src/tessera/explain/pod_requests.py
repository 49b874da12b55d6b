"""Explains pods by what they request: nothing, what is misspelt or impossible, or what kube-scheduler alone places.

It names what a pod selects and no node has: the label, or its value, with those that nodes have instead. The scheduler
says only that nodes do not match. Where several alternatives of node affinity may do, none is named.

Keys of its namespace and quotas that stand where nobody reads them are named too, since Kubernetes takes any label,
annotation and selector; each fact names the place in which the key counts.
"""

from collections.abc import Iterable, Iterator, Mapping

from tessera.api.names import GATE, QUEUE_LABEL
from tessera.api.resource_advice import NAMESPACE_LABELS, find_correction
from tessera.controller.objects.pod_info import CLAIMS, PodInfo
from tessera.explain.explanation import Explanation
from tessera.explain.fixed_resources import explain_fixed_request
from tessera.explain.offered_resources import extended_requests, format_requests, offered_resources
from tessera.explain.scheduler_words import scheduler_facts
from tessera.explain.snapshot import ClusterView
from tessera.kube.resources import Namespace, NodeSelectorRequirement, Pod, ResourceQuota
from tessera.limits import FACT_SHOWN, NAMES_COMPARED
from tessera.text import list_names, one_line

#: Values that nodes have, as far as they are listed; requirements that are told.
_VALUES, _SHOWN = 4, 5
#: Annotation in which Kubernetes says what a LimitRange wrote into a pod.
_LIMIT_RANGER = "kubernetes.io/limit-ranger"


def unmatched_selectors(view: ClusterView, pod: Pod) -> Iterator[str]:
    """Yields the requirements on labels that no node fulfils; nothing for a user who may not list nodes."""
    if not view.snapshot.nodes:
        return
    for key, value in sorted(pod.spec.node_selector.items())[:_SHOWN]:
        yield from _unmatched(view, "spec.nodeSelector", key, (value,))
    for test in _required(pod)[:_SHOWN]:
        if test.operator in {"In", "Exists"}:
            yield from _unmatched(view, "its node affinity", test.key, test.values)


def _required(pod: Pod) -> tuple[NodeSelectorRequirement, ...]:
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    terms = affinity.required.node_selector_terms if affinity is not None and affinity.required is not None else ()
    return terms[0].match_expressions if len(terms) == 1 else ()


def _unmatched(view: ClusterView, where: str, key: str, values: tuple[str, ...]) -> Iterator[str]:
    nodes = view.snapshot.nodes
    there = view.once(
        ("label", key), lambda: frozenset(each.metadata.labels[key] for each in nodes if key in each.metadata.labels)
    )
    wanted = f"{one_line(key)}={' or '.join(map(one_line, values[:_VALUES]))}" if values else one_line(key)
    if not there:
        yield f"{where} asks for {wanted}, and no node has a label {one_line(key)}{_close_key(view, key)}"
    elif values and there.isdisjoint(values):
        has = "" if view.snapshot.hides_labels else f"; nodes have {list_names(sorted(there), _VALUES)}"
        yield f"{where} asks for {wanted}, and no node has this value{has}"


def _close_key(view: ClusterView, key: str) -> str:
    if view.snapshot.hides_labels:
        return ""
    nodes = view.snapshot.nodes
    keys = view.once("label keys", lambda: sorted({each for node in nodes for each in node.metadata.labels}))
    from difflib import get_close_matches

    close = get_close_matches(key[:253], keys[:NAMES_COMPARED], n=1, cutoff=0.8)
    return f"; did you mean {close[0]}?" if close else ""


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


def misplaced_on_namespace(namespaces: Iterable[Namespace], name: str) -> Iterator[str]:
    """The keys of a namespace that have no effect as annotations."""
    for each in namespaces:
        if each.metadata.name == name:
            for key in sorted(({QUEUE_LABEL} | NAMESPACE_LABELS) & each.metadata.annotations.keys()):
                if key not in each.metadata.labels:
                    step = f"kubectl label namespace {name} {key}={each.metadata.annotations[key]}"
                    yield f"the annotation {key} of namespace {name} has no effect: it is a label ({step})"


def set_by_limit_range(pod: Pod, asked: Mapping[str, int]) -> Iterator[str]:
    """The resources that a LimitRange of the namespace wrote into a pod that did not ask for them.

    A maximum without a default is the default of each container (``SetDefaults_LimitRangeItem`` of Kubernetes).
    """
    told = pod.metadata.annotations.get(_LIMIT_RANGER, "").partition(": ")[2]
    named = {name for name, count in asked.items() if count}
    parts = [part for part in told.split("; ") if named & {*part.partition(" limit for ")[0].split(", ")}]
    if parts:
        look = f"kubectl get limitranges -n {pod.metadata.namespace} -o yaml"
        yield (
            f"a LimitRange of its namespace wrote a limit into it: {one_line('; '.join(parts), FACT_SHOWN)}; a maximum"
            f" without a default is given to every container ({look})"
        )


def uncounted_quotas(quotas: Iterable[ResourceQuota], asked: Mapping[str, int]) -> Iterator[str]:
    """The quotas for resources of a pod that count nothing, since the key has another prefix than ``requests.``.

    Kubernetes counts an extended resource under this name only (``pkg/quota/v1/evaluator/core/pods.go``).
    """
    for quota in quotas:
        for name in sorted(asked):
            for key in (name, f"limits.{name}"):
                if key in quota.spec.hard:
                    yield (
                        f"quota {quota.metadata.name} counts nothing for {key}: Kubernetes counts such a resource as"
                        f" requests.{name} (kubectl edit resourcequota -n {quota.metadata.namespace}"
                        f" {quota.metadata.name})"
                    )
