"""Turns a pod's requirements into the resource that fulfils them: takes pod and cluster, returns a patch.

Rules:

- A pod without requirements is not changed.
- Only offers of nodes count that the author's node selector and required node affinity admit.
- The container that ``kubectl.kubernetes.io/default-container`` names gets the resource, else the first container.
- A restriction to nodes is added to the author's own and never replaces it: every alternative of a required node
  affinity gets it too.
- The webhook records its choice and the reason on the pod. It does not change a pod that has the record and the
  resource, so a second call (reinvocation) patches nothing.

A later step decides on the gate and the charge that a chosen slice on demand needs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.api.names import HOSTNAME_LABEL
from tessera.api.nodes.gpu_labels import count_label
from tessera.api.pods.requirements import CHOSEN, CHOSEN_REASON, RequirementError, requirements_of
from tessera.api.pods.size_limits import PodSize
from tessera.offers.requirements import Requirements
from tessera.offers.selection import Nodes, NoOfferFits, OfferChoice, RestrictionKind, choose_offer
from tessera.webhook.admission.json_patch import Operation, add_operation
from tessera.webhook.base.budget import PodRefused, Rule, SpendTime, refuse_oversized, spend_nothing
from tessera.webhook.nodes.capabilities import Capabilities
from tessera.webhook.nodes.restriction import read_restriction, required_terms

Json = Mapping[str, Any]

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_SELECTED = "the part of the cluster that the pod's node selector and affinity leave"


def translate_requirements(
    pod: Json, capabilities: Capabilities, spend: SpendTime = spend_nothing
) -> Sequence[Operation]:
    """Returns the operations of a JSON patch that give a pod the smallest offer that fulfils its requirements.

    Args:
        pod: the pod to be created.
        capabilities: the GPU resources of the cluster.
        spend: called before each piece of work.

    Raises:
        PodRefused: an annotation is wrong, or nothing in the cluster fulfils the requirements.
    """
    spend()
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    spec = pod.get("spec") or {}
    requested = _requested_resources(spec)
    if annotations.get(CHOSEN) in requested:
        return ()
    try:
        requirements = requirements_of(annotations, requested, capabilities.gpu_resources)
    except RequirementError as error:
        raise PodRefused(Rule.REQUIREMENT, str(error)) from None
    if requirements is None or not spec.get("containers"):
        return ()  # the API server reports that a pod without containers is wrong
    nodes = capabilities.selected_by(spec, spend)
    spend()
    choice = _choose(requirements, nodes, capabilities, _SELECTED if read_restriction(spec) else "the cluster")
    spend()
    return [
        *_add_resource(spec, annotations, choice.resource),
        *_add_affinity(spec, _expressions(choice, nodes, capabilities)),
        *_record_choice(choice),
    ]


def _requested_resources(spec: Json) -> list[str]:
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    fields = [(each.get("resources") or {}).get(field) for each in containers for field in ("limits", "requests")]
    return [name for field in fields for name in field or ()]


def _choose(requirements: Requirements, nodes: Nodes, capabilities: Capabilities, where: str) -> OfferChoice:
    choice = choose_offer(
        requirements,
        capabilities.offers,
        nodes,
        capabilities.names,
        undescribed=capabilities.undescribed,
        where=where,
    )
    if isinstance(choice, NoOfferFits):
        raise PodRefused(Rule.NO_OFFER, choice.text)
    return choice


def _add_resource(spec: Json, annotations: Json, resource: str) -> list[Operation]:
    containers = spec["containers"]
    names = [container.get("name") for container in containers]
    default = annotations.get(DEFAULT_CONTAINER)
    index = names.index(default) if default in names else 0
    path = ("spec", "containers", str(index), "resources")
    present = containers[index].get("resources")
    if present is None:
        return [add_operation(path, {"limits": {resource: "1"}, "requests": {resource: "1"}})]
    return [
        add_operation((*path, field), {**(present.get(field) or {}), resource: "1"}) for field in ("limits", "requests")
    ]


def _expressions(choice: OfferChoice, nodes: Nodes, capabilities: Capabilities) -> Sequence[Json]:
    """Returns the tests of which one must hold on a pod's node; none if any node will do."""
    if choice.restriction is RestrictionKind.NOTHING:
        return ()
    chosen = frozenset(choice.nodes)
    selected = [node for node in capabilities.nodes(nodes) if node.name in chosen]
    keys = [count_label(product) for product in choice.products]
    if choice.restriction is RestrictionKind.PRODUCT and all(node.labels.keys() & set(keys) for node in selected):
        return [{"key": key, "operator": "Exists"} for key in keys]
    names = sorted(node.labels.get(HOSTNAME_LABEL, node.name) for node in selected)
    return [{"key": HOSTNAME_LABEL, "operator": "In", "values": names}]


def _add_affinity(spec: Json, expressions: Sequence[Json]) -> list[Operation]:
    """Crosses each term of the required node affinity with each of ours, since both are alternatives."""
    if not expressions:
        return []
    affinity = dict(spec.get("affinity") or {})
    node = dict(affinity.get("nodeAffinity") or {})
    pod_terms = required_terms(spec)
    if pod_terms is None:
        terms: list[Json] = [{"matchExpressions": [expression]} for expression in expressions]
    else:
        terms = [each for term in pod_terms for each in _cross(term, expressions)]
    refuse_oversized(_size(terms))
    node["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
    return [add_operation(("spec", "affinity"), {**affinity, "nodeAffinity": node})]


def _size(terms: Sequence[Json]) -> PodSize:
    """Returns the size of node affinity including the added node names."""
    tests = [test for term in terms for field in ("matchExpressions", "matchFields") for test in term.get(field) or ()]
    return PodSize(
        terms=len(terms), expressions=len(tests), values=sum(len(test.get("values") or ()) for test in tests)
    )


def _cross(term: Json, expressions: Sequence[Json]) -> list[Json]:
    """Combines a term with each of our expressions. An empty term matches no node, and must stay empty."""
    written = term.get("matchExpressions") or ()
    if not written and not term.get("matchFields"):
        return [term]
    return [{**term, "matchExpressions": [*written, expression]} for expression in expressions]


def _record_choice(choice: OfferChoice) -> list[Operation]:
    """Returns the operations that record the choice; the pod has annotations, since they hold its requirements."""
    return [
        add_operation(("metadata", "annotations", key), value)
        for key, value in ((CHOSEN, choice.resource), (CHOSEN_REASON, choice.reason))
    ]
