"""Turns a pod's requirements into the resource that fulfils them: pod and cluster in, patch out.

Rules:

- A pod without requirements is not changed.
- Offers count of the nodes that the author leaves by node selector and required node affinity.
- The container that ``kubectl.kubernetes.io/default-container`` names gets the resource, else the first one.
- A restriction to nodes is added to what the author wrote, never put in its place: every alternative of a required node
  affinity gets it as well.
- What was chosen and why is recorded on the pod, and a pod that has the record and the resource is left alone, so that
  a second call (reinvocation) patches nothing.

What the chosen resource itself entails, a gate and a charge for a slice on demand, is decided after this.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.api.names import HOSTNAME_LABEL
from tessera.api.nodes.product_labels import count_label
from tessera.api.pods.requirements import CHOSEN, CHOSEN_REASON, RequirementError, requirements_of
from tessera.api.pods.size_limits import PodSize
from tessera.offers.requirements import Requirements
from tessera.offers.selection import NodeRestriction, Nodes, NoOfferFits, OfferChoice, choose_offer
from tessera.webhook.admission.json_patch import Operation, add_operation
from tessera.webhook.base.budget import PodRefused, SpendTime, refuse_oversized, spend_nothing
from tessera.webhook.nodes.capabilities import Capabilities
from tessera.webhook.nodes.restriction import read_restriction, required_terms

Json = Mapping[str, Any]

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_SELECTED = "the part of the cluster that the pod's node selector and affinity leave"


def translate_requirements(
    pod: Json, capabilities: Capabilities, spend: SpendTime = spend_nothing
) -> Sequence[Operation]:
    """The operations of a JSON patch that give a pod the smallest offer it can work with.

    Args:
        pod: as it is to be created.
        capabilities: what the cluster has.
        spend: asked before each piece of work.

    Raises:
        Refused: an annotation is wrong, or nothing of the cluster fulfils them.
    """
    spend()
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    spec = pod.get("spec") or {}
    asked = _asked(spec)
    if annotations.get(CHOSEN) in asked:
        return ()
    try:
        requirements = requirements_of(annotations, asked, capabilities.gpu_resources)
    except RequirementError as error:
        raise PodRefused(str(error)) from None
    if requirements is None or not spec.get("containers"):
        return ()  # the API server says what a pod without containers lacks
    nodes = capabilities.selected_by(spec, spend)
    spend()
    choice = _choice(requirements, nodes, capabilities, _SELECTED if read_restriction(spec) else "the cluster")
    spend()
    return [
        *_resource(spec, annotations, choice.resource),
        *_affinity(spec, _expressions(choice, nodes, capabilities)),
        *_record(choice),
    ]


def _asked(spec: Json) -> list[str]:
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    fields = [(each.get("resources") or {}).get(field) for each in containers for field in ("limits", "requests")]
    return [name for field in fields for name in field or ()]


def _choice(requirements: Requirements, nodes: Nodes, capabilities: Capabilities, where: str) -> OfferChoice:
    choice = choose_offer(
        requirements,
        capabilities.offers,
        nodes,
        capabilities.names,
        undescribed=capabilities.undescribed,
        where=where,
    )
    if isinstance(choice, NoOfferFits):
        raise PodRefused(choice.text)
    return choice


def _resource(spec: Json, annotations: Json, resource: str) -> list[Operation]:
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
    """The tests of which one must hold on a pod's node; none if every node will do."""
    if choice.kept_by is NodeRestriction.NOTHING:
        return ()
    chosen = frozenset(choice.nodes)
    meant = [node for node in capabilities.nodes(nodes) if node.name in chosen]
    keys = [count_label(product) for product in choice.products]
    if choice.kept_by is NodeRestriction.PRODUCT and all(node.labels.keys() & set(keys) for node in meant):
        return [{"key": key, "operator": "Exists"} for key in keys]
    names = sorted(node.labels.get(HOSTNAME_LABEL, node.name) for node in meant)
    return [{"key": HOSTNAME_LABEL, "operator": "In", "values": names}]


def _affinity(spec: Json, ours: Sequence[Json]) -> list[Operation]:
    """Required node affinity: its terms are alternatives, so each is crossed with each alternative of ours."""
    if not ours:
        return []
    affinity = dict(spec.get("affinity") or {})
    node = dict(affinity.get("nodeAffinity") or {})
    theirs = required_terms(spec)
    if theirs is None:
        terms: list[Json] = [{"matchExpressions": [expression]} for expression in ours]
    else:
        terms = [each for term in theirs for each in _crossed(term, ours)]
    refuse_oversized(_size(terms))
    node["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
    return [add_operation(("spec", "affinity"), {**affinity, "nodeAffinity": node})]


def _size(terms: Sequence[Json]) -> PodSize:
    """The size of node affinity with the names of nodes that were added."""
    tests = [test for term in terms for field in ("matchExpressions", "matchFields") for test in term.get(field) or ()]
    return PodSize(
        terms=len(terms), expressions=len(tests), values=sum(len(test.get("values") or ()) for test in tests)
    )


def _crossed(term: Json, ours: Sequence[Json]) -> list[Json]:
    """A term with each of our expressions. One that says nothing matches no node, and has to stay so."""
    written = term.get("matchExpressions") or ()
    if not written and not term.get("matchFields"):
        return [term]
    return [{**term, "matchExpressions": [*written, expression]} for expression in ours]


def _record(choice: OfferChoice) -> list[Operation]:
    """The pod has annotations: its requirements stand there."""
    return [
        add_operation(("metadata", "annotations", key), value)
        for key, value in ((CHOSEN, choice.resource), (CHOSEN_REASON, choice.reason))
    ]
