"""Requests above one of a resource that gives each container a single share.

A sharing profile may say ``failRequestsGreaterThanOne``, and MPS always means it: several shares are no larger part of
a card. The node refuses such a container when its pod is already bound, and the pod has failed for good; here its
author reads it when the pod is created.

Refused is what no node would take. If one node allows it, or does not say, the pod is let in, and not kept off the
others: the scheduler decides, and a node that does not allow it refuses.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tessera.kube.quantity import parse_quantity
from tessera.webhook.gpu_nodes import GpuNode

Json = Mapping[str, Any]


def refused_amount(spec: Json, nodes: Sequence[GpuNode]) -> str:
    """Why a container's amount cannot be served anywhere; empty if it may be.

    Args:
        spec: the pod's.
        nodes: where the pod may run.
    """
    for container, resource, amount in _above_one(spec):
        if _one_each(resource, nodes):
            return (
                f'container "{container}": asks for {amount} of {resource}, and every node that has it gives a '
                "container one share at most (failRequestsGreaterThanOne, or MPS): ask for one; several shares give no "
                "larger part of a card"
            )
    return ""


def _above_one(spec: Json) -> Iterator[tuple[str, str, str]]:
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        resources = container.get("resources") or {}
        for resource, amount in {**(resources.get("requests") or {}), **(resources.get("limits") or {})}.items():
            if _is_above_one(amount):
                yield container.get("name", ""), resource, str(amount)


def _is_above_one(amount: Any) -> bool:
    try:
        return parse_quantity(str(amount)) > 1
    except ValueError:
        return False  # the API server says what is wrong with it


def _one_each(resource: str, nodes: Sequence[GpuNode]) -> bool:
    """Whether there are nodes with the resource, and all of them give one share at most."""
    if any(resource in node.undescribed for node in nodes):
        return False
    offers = [offer for node in nodes for offer in node.offers if offer.resource == resource]
    return bool(offers) and all(offer.one_per_request for offer in offers)
