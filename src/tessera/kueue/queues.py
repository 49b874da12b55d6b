"""Kueue's objects for teams that share the cluster's cards: flavors, queues, admission check; in Gi of GPU memory.

One ClusterQueue and one LocalQueue for each team, all with the same flavors. A ResourceFlavor's node labels become the
node selector of the pods that it admits, so a flavor for each model needs nodes with cards of one model only.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.names import QUOTA_RESOURCE
from tessera.kube.quantity import integer_value
from tessera.kube.resources import Node
from tessera.kueue.names import CHARGED_RESOURCE, CHECK_CONTROLLER, CHECK_NAME, GROUP, Version
from tessera.text import one_line

Json = dict[str, Any]

#: The label with the product of a node's cards, which Tessera's agent and GPU feature discovery write.
PRODUCT_LABEL = "nvidia.com/gpu.product"
#: The flavor of all cards.
ALL_CARDS = "gpu-memory"
_GIB = 2**30


class CardPool(msgspec.Struct, frozen=True, kw_only=True):
    """Cards that share a flavor.

    Attributes:
        flavor: the flavor's name.
        node_labels: of the nodes; empty for all nodes.
        gigabytes: Gi of GPU memory that slices can have together; 0 if unknown.
        cpu: cores of the nodes.
        memory: bytes of memory of the nodes.
    """

    flavor: str
    node_labels: Mapping[str, str] = {}
    gigabytes: int = 0
    cpu: int = 0
    memory: int = 0


class TeamQuota(msgspec.Struct, frozen=True, kw_only=True):
    """A team's part.

    Attributes:
        namespace: the team's namespace; its ClusterQueue has the same name.
        gigabytes: Gi of GPU memory by flavor.
    """

    namespace: str
    gigabytes: Mapping[str, int]


class SideQuota(msgspec.Struct, frozen=True, kw_only=True):
    """Quantities of a team beside GPU memory; an empty text covers nothing of that resource."""

    cpu: str = ""
    memory: str = ""


def pools_of(nodes: Iterable[Node], *, by_model: bool) -> list[CardPool]:
    """Returns the pools of the nodes whose cards have slices on demand: one of all, or one of each product label.

    Args:
        nodes: all nodes.
        by_model: a pool for each value of :data:`PRODUCT_LABEL`; nodes without the label are left out.
    """
    pools: dict[str, CardPool] = {}
    for node in nodes:
        gigabytes = _amount(node, QUOTA_RESOURCE) // _GIB
        product = node.metadata.labels.get(PRODUCT_LABEL, "")
        if not gigabytes or (by_model and not product):
            continue
        flavor = flavor_name(product) if by_model else ALL_CARDS
        before = pools.get(flavor, CardPool(flavor=flavor))
        pools[flavor] = CardPool(
            flavor=flavor,
            node_labels={PRODUCT_LABEL: product} if by_model else {},
            gigabytes=before.gigabytes + gigabytes,
            cpu=before.cpu + _amount(node, "cpu"),
            memory=before.memory + _amount(node, "memory"),
        )
    return [pools[name] for name in sorted(pools)]


def flavor_name(product: str) -> str:
    """Returns the name of a product's flavor: lower case, as objects are named."""
    return product.lower().replace("_", "-").strip("-.")


def _amount(node: Node, resource: str) -> int:
    try:
        return integer_value(node.status.allocatable.get(resource, "0"))
    except ValueError:
        return 0  # kubelet corrects it with its next status


def make_queues(
    pools: Sequence[CardPool],
    teams: Sequence[TeamQuota],
    *,
    version: Version,
    side: SideQuota,
    local_queue: str,
    checked: bool,
) -> list[Json]:
    """Returns the objects in the order in which they can be applied.

    Args:
        pools: the cluster's cards.
        teams: the teams' parts.
        version: of Kueue's API.
        side: quantities of each team beside GPU memory, in each flavor.
        local_queue: the name of each team's LocalQueue.
        checked: let Tessera answer whether the slices can be placed, before a workload is admitted.
    """
    objects = [_object(version, "ResourceFlavor", pool.flavor, _spec_of(pool)) for pool in pools]
    if checked:
        objects.append(_object(version, "AdmissionCheck", CHECK_NAME, {"controllerName": CHECK_CONTROLLER}))
    for team in teams:
        objects.append(_object(version, "ClusterQueue", team.namespace, _cluster_queue(pools, team, side, checked)))
        objects.append(
            _object(version, "LocalQueue", local_queue, {"clusterQueue": team.namespace}, namespace=team.namespace)
        )
    return objects


def find_excess(pools: Sequence[CardPool], teams: Sequence[TeamQuota]) -> list[str]:
    """Returns one sentence for each flavor of which the teams may use more than the cards have."""
    found = []
    for pool in pools:
        sum_ = sum(team.gigabytes.get(pool.flavor, 0) for team in teams)
        if pool.gigabytes and sum_ > pool.gigabytes:
            found.append(
                f"flavor {one_line(pool.flavor)}: the teams' quotas are {sum_}Gi together, and slices can have "
                f"{pool.gigabytes}Gi: Kueue admits workloads that wait for room on the cards"
            )
    return found


def _spec_of(pool: CardPool) -> Json:
    return {"nodeLabels": dict(pool.node_labels)} if pool.node_labels else {}


def _cluster_queue(pools: Sequence[CardPool], team: TeamQuota, side: SideQuota, checked: bool) -> Json:
    amounts = {"cpu": side.cpu, "memory": side.memory}
    beside = [{"name": name, "nominalQuota": amount} for name, amount in amounts.items() if amount]
    flavors = [
        {
            "name": pool.flavor,
            "resources": [
                *beside,
                {"name": CHARGED_RESOURCE, "nominalQuota": f"{team.gigabytes.get(pool.flavor, 0)}Gi"},
            ],
        }
        for pool in pools
    ]
    spec: Json = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": team.namespace}},
        "resourceGroups": [
            {"coveredResources": [*(each["name"] for each in beside), CHARGED_RESOURCE], "flavors": flavors}
        ],
    }
    if checked:
        spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": CHECK_NAME}]}
    return spec


def _object(version: Version, kind: str, name: str, spec: Json, namespace: str = "") -> Json:
    metadata = {"name": name, "namespace": namespace} if namespace else {"name": name}
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": kind,
        "metadata": metadata,
        **({"spec": spec} if spec else {}),
    }
