"""Decides everything about a pod at admission, in one patch.

Three steps, each on the pod that the step before has made: requirements become a resource, counts of shares are
checked, slices on demand are gated and charged. A second decision on the result, as when the API server reinvokes the
webhook, changes nothing.

Counts of shares: a sharing profile may say ``failRequestsGreaterThanOne``, and MPS always implies it, because several
shares are no larger part of a card. The node refuses such a container only after its pod is bound, and the pod then
fails for good; the webhook tells the author when the pod is created. It refuses a count only if no node would take it.
If one node allows the count, or does not say, the webhook admits the pod everywhere, and a node that does not allow the
count refuses the pod.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tessera.kube.quantity import parse_quantity
from tessera.offers.selection import Nodes
from tessera.text import one_line
from tessera.webhook.admission.json_patch import Operation, apply_operations
from tessera.webhook.admission.requirements import translate_requirements
from tessera.webhook.admission.slice_admission import patch_for_slices
from tessera.webhook.base.budget import PodRefused, Rule, SpendTime, spend_nothing
from tessera.webhook.nodes.capabilities import Capabilities


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


Json = Mapping[str, Any]


def refuse_share_counts(spec: Json, nodes: Nodes, capabilities: Capabilities) -> None:
    """Refuses an amount of shares that no node can serve.

    Raises:
        PodRefused: see :func:`share_count_refusal`.
    """
    if why := share_count_refusal(spec, nodes, capabilities):
        raise PodRefused(Rule.SHARE_COUNT, why)


def share_count_refusal(spec: Json, nodes: Nodes, capabilities: Capabilities) -> str:
    """Returns the reason that no node can serve a container's amount; empty if a node may.

    Args:
        spec: the pod's ``spec``.
        nodes: where the pod may run.
        capabilities: the GPU resources of the nodes.
    """
    for container, resource, amount in _requested_amounts(spec):
        if _gives_one_share_only(resource, nodes, capabilities) and _is_above_one(amount):
            return (
                f'container "{one_line(container)}": asks for {amount} of {resource}, and every node that has it gives '
                "a container one share at most (failRequestsGreaterThanOne, or MPS): ask for one; several shares give "
                "no larger part of a card"
            )
    return ""


def _requested_amounts(spec: Json) -> Iterator[tuple[str, str, str]]:
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        resources = container.get("resources") or {}
        for resource, amount in {**(resources.get("requests") or {}), **(resources.get("limits") or {})}.items():
            yield container.get("name") or "", resource, str(amount)


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
