"""Turns a pod's requirements into the resource that fulfils them: takes pod and cluster, returns a patch.

Rules:

- A pod without requirements is not changed.
- Only offers of nodes count that the author's node selector and required node affinity admit.
- The container that ``kubectl.kubernetes.io/default-container`` names gets the resource, else the first container.
- A restriction to nodes is added to the author's own and never replaces it: every alternative of a required node
  affinity gets it too.
- A request for whole cards becomes one for slices of whole cards only if the pod says so (``tessera.dev/whole-card``).
- The webhook records its choice and the reason on the pod. It does not change a pod that has the record and the
  resource, so a second call (reinvocation) patches nothing.

A later step decides on the gate and the charge that a chosen slice on demand needs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.api.names import HOSTNAME_LABEL, WHOLE_CARDS, resource_of
from tessera.api.nodes.gpu_labels import count_label
from tessera.api.pods.requirements import (
    CHOSEN,
    CHOSEN_REASON,
    SLICE,
    WHOLE_CARD,
    RequirementError,
    requirements_of,
)
from tessera.api.pods.size_limits import PodSize
from tessera.offers.requirements import Requirements
from tessera.offers.selection import Nodes, NoOfferFits, OfferChoice, RestrictionKind, choose_offer
from tessera.text import one_line
from tessera.webhook.admission.json_patch import Operation, add_operation
from tessera.webhook.base.budget import PodRefused, Rule, SpendTime, refuse_oversized, spend_nothing
from tessera.webhook.nodes.capabilities import WHOLE_PROFILES, Capabilities
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
    if (requirements is None and WHOLE_CARD not in annotations) or not spec.get("containers"):
        return ()  # the API server reports that a pod without containers is wrong
    nodes = capabilities.selected_by(spec, spend)
    if requirements is None:
        return _slices_for_cards(spec, whole_card_slice(pod, nodes, capabilities, spend))
    spend()
    choice = _choose(requirements, nodes, capabilities, _SELECTED if read_restriction(spec) else "the cluster")
    spend()
    return [
        *_add_resource(spec, annotations, choice.resource),
        *_add_affinity(spec, _expressions(choice, nodes, capabilities)),
        *_record_choice(choice),
    ]


def whole_card_slice(
    pod: Json, nodes: Nodes, capabilities: Capabilities, spend: SpendTime = spend_nothing
) -> str | None:
    """Returns the slice of a whole card that a pod gets instead of a whole card; None if it stays as it is.

    It does without the annotation; where a node of the pod's choice, or one that may come, offers whole cards; and
    where no card is cut on demand. Of several models, that of most nodes counts, and of equal ones the smallest card.

    Args:
        pod: the pod to be created.
        nodes: the nodes that its author selects.
        capabilities: the GPU resources of the cluster.
        spend: called before each piece of work.

    Raises:
        PodRefused: the annotation has another value.
    """
    spec, annotations = pod.get("spec") or {}, (pod.get("metadata") or {}).get("annotations") or {}
    given = annotations.get(WHOLE_CARD)
    if given is None:
        return None
    if given != SLICE:
        raise PodRefused(
            Rule.REQUIREMENT,
            f'annotation {WHOLE_CARD}: "{one_line(str(given), 40)}" is no value; the only one is {SLICE}',
        )
    sets = (capabilities.undescribed, capabilities.single_share, capabilities.multiple_shares)
    coming = (name for group in capabilities.groups_for(spec, spend) for name, _ in group.devices)
    if WHOLE_CARDS not in _requested_resources(spec) or WHOLE_CARDS in coming:
        return None
    if any(each.get(WHOLE_CARDS, 0) & nodes for each in sets):
        return None
    found = {each: (capabilities.on_demand.get(each, 0) & nodes).bit_count() for each in WHOLE_PROFILES}
    best = max(found, key=lambda each: (found[each], -WHOLE_PROFILES[each]))
    return best if found[best] else None


def _slices_for_cards(spec: Json, profile: str | None) -> list[Operation]:
    """Returns the operations that put slices of whole cards in the place of whole cards."""
    if profile is None:
        return []
    resource, operations = resource_of(profile), []
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group) or ()):
            for field, amounts in (container.get("resources") or {}).items():
                if field in {"limits", "requests"} and WHOLE_CARDS in (amounts or {}):
                    left = {name: amount for name, amount in amounts.items() if name != WHOLE_CARDS}
                    path = ("spec", group, str(index), "resources", field)
                    operations.append(add_operation(path, {**left, resource: amounts[WHOLE_CARDS]}))
    reason = f"{WHOLE_CARD}: {SLICE}, and no node offers {WHOLE_CARDS}; {resource} is all of a card"
    return [*operations, *_record(resource, reason)]


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
    return _record(choice.resource, choice.reason)


def _record(resource: str, reason: str) -> list[Operation]:
    """Returns the operations that record a choice; the pod has annotations, since they hold its requirements."""
    return [
        add_operation(("metadata", "annotations", key), value)
        for key, value in ((CHOSEN, resource), (CHOSEN_REASON, reason))
    ]
