"""Decides everything about a pod at admission, in one patch: takes pod and cluster, returns operations.

Three steps, each on the pod that the step before has made: requirements become a resource, counts of shares are
checked, slices on demand are gated and charged (:mod:`tessera.webhook.slice_admission`). A second decision on
the result, as when the API server reinvokes the webhook, changes nothing.

Rules for requirements:

- A pod without requirements is not changed.
- Only offers of nodes count that the author's node selector and required node affinity admit.
- The container that ``kubectl.kubernetes.io/default-container`` names gets the resource, else the first container.
- A restriction to nodes is added to the author's own and never replaces it: every alternative of a required node
  affinity gets it too.
- A request for whole cards becomes one for slices of whole cards only if the pod says so (``tessera.dev/whole-card``).
- The webhook records its choice and the reason on the pod. It does not change a pod that has the record and the
  resource.

Counts of shares: a sharing profile may say ``failRequestsGreaterThanOne``, and MPS always implies it, because several
shares are no larger part of a card. The node refuses such a container only after its pod is bound, and the pod then
fails for good; the webhook tells the author when the pod is created. It refuses a count only if no node would take it.
If one node allows the count, or does not say, the webhook admits the pod everywhere, and a node that does not allow the
count refuses the pod.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.api.names import HOSTNAME_LABEL, WHOLE_CARDS, resource_of
from tessera.api.nodes.node_cards import count_label
from tessera.api.pod_annotations import (
    CHOSEN,
    CHOSEN_REASON,
    SLICE,
    WHOLE_CARD,
    RequirementError,
    requirements_of,
)
from tessera.api.slice_requests import PodSize
from tessera.kube.quantity import parse_quantity
from tessera.mig.models import MODELS
from tessera.mig.names import resource_spelling
from tessera.offers import Nodes, NoOfferFits, OfferChoice, Requirements, RestrictionKind, choose_offer
from tessera.text import one_line
from tessera.webhook.base import PodRefused, Rule, SpendTime, refuse_oversized, spend_nothing
from tessera.webhook.capabilities import Capabilities
from tessera.webhook.pod_json import Operation, add_operation, apply_operations, requested_amounts
from tessera.webhook.restriction import read_restriction, required_terms
from tessera.webhook.slice_admission import patch_for_slices

Json = Mapping[str, Any]

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_SELECTED = "the part of the cluster that the pod's node selector and affinity leave"


def _whole_profiles() -> Mapping[str, int]:
    tables = [model.table for model in MODELS if model.table is not None]
    plain = [[row for row in table.profiles if row.name.partition("gb")[2] == ""] for table in tables]
    largest = [max(rows, key=lambda row: (row.size, row.compute_slices)) for rows in plain]
    return {resource_spelling(row.name): row.memory_gb for row in largest}


#: The profile that is a whole card, of every model, with its GB; of no model is it a part of a card.
WHOLE_PROFILES = _whole_profiles()


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
    requested = [resource for _, resource, _ in requested_amounts(spec)]
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
    if all(resource != WHOLE_CARDS for _, resource, _ in requested_amounts(spec)) or WHOLE_CARDS in coming:
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


def decide_admission(
    pod: Mapping[str, Any], capabilities: Capabilities, spend: SpendTime = spend_nothing
) -> Sequence[Operation]:
    """Returns the operations of a JSON patch; none if the pod needs no change.

    Args:
        pod: the pod to be created.
        capabilities: the GPU resources of the cluster.
        spend: called before each piece of work.

    Raises:
        PodRefused: the pod must not be created.
    """
    first = translate_requirements(pod, capabilities, spend)
    translated = apply_operations(pod, first)
    spec = translated.get("spec") or {}
    nodes = capabilities.selected_by(spec, spend)
    refuse_share_counts(spec, nodes, capabilities)
    return [*first, *patch_for_slices(translated, capabilities, nodes, spend)]


def refuse_share_counts(spec: Json, nodes: Nodes, capabilities: Capabilities) -> None:
    """Refuses an amount of shares that no node can serve.

    Args:
        spec: the pod's ``spec``.
        nodes: where the pod may run.
        capabilities: the GPU resources of the nodes.

    Raises:
        PodRefused: every node with the resource gives a container fewer.
    """
    for container, resource, amount in requested_amounts(spec):
        if _gives_one_share_only(resource, nodes, capabilities) and _is_above_one(amount):
            raise PodRefused(
                Rule.SHARE_COUNT,
                f'container "{one_line(container)}": asks for {amount} of {resource}, and every node that has it gives '
                "a container one share at most (failRequestsGreaterThanOne, or MPS): ask for one; several shares give "
                "no larger part of a card",
            )


def _is_above_one(amount: str) -> bool:
    try:
        return parse_quantity(amount) > 1
    except ValueError:
        return False  # the API server reports the error


def _gives_one_share_only(resource: str, nodes: Nodes, capabilities: Capabilities) -> bool:
    """True if there are nodes with the resource, and all of them give at most one share."""
    if not capabilities.single_share.get(resource, 0) & nodes:
        return False
    others = capabilities.undescribed.get(resource, 0) | capabilities.multiple_shares.get(resource, 0)
    return not others & nodes
