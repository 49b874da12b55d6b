"""Requests above one of a resource that gives each container a single share.

A sharing profile may say ``failRequestsGreaterThanOne``, and MPS always means it: several shares are no larger part of
a card. The node refuses such a container when its pod is already bound, and the pod has failed for good; here its
author reads it when the pod is created.

Refused is what no node would take. If one node allows it, or does not say, the pod is let in, and not kept off the
others: the scheduler decides, and a node that does not allow it refuses.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tessera.kube.quantity import parse_quantity
from tessera.offers.selection import Nodes
from tessera.text import one_line
from tessera.webhook.nodes.capabilities import Capabilities

Json = Mapping[str, Any]


def refused_amount(spec: Json, nodes: Nodes, capabilities: Capabilities) -> str:
    """Why a container's amount cannot be served anywhere; empty if it may be.

    Args:
        spec: the pod's.
        nodes: where the pod may run.
        capabilities: what the nodes have.
    """
    for container, resource, amount in _asked(spec):
        if _one_each(resource, nodes, capabilities) and _is_above_one(amount):
            return (
                f'container "{one_line(container)}": asks for {amount} of {resource}, and every node that has it gives '
                "a container one share at most (failRequestsGreaterThanOne, or MPS): ask for one; several shares give "
                "no larger part of a card"
            )
    return ""


def _asked(spec: Json) -> Iterator[tuple[str, str, str]]:
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        resources = container.get("resources") or {}
        for resource, amount in {**(resources.get("requests") or {}), **(resources.get("limits") or {})}.items():
            yield container.get("name") or "", resource, str(amount)


def _is_above_one(amount: str) -> bool:
    try:
        return parse_quantity(amount) > 1
    except ValueError:
        return False  # the API server says what is wrong with it


def _one_each(resource: str, nodes: Nodes, capabilities: Capabilities) -> bool:
    """Whether there are nodes with the resource, and all of them give one share at most."""
    if not capabilities.one_each.get(resource, 0) & nodes:
        return False
    others = capabilities.undescribed.get(resource, 0) | capabilities.several_each.get(resource, 0)
    return not others & nodes
