"""How many nodes to keep warm, so that a pod that needs one seldom waits for it to be made.

Pods that each need a node come at random at a known rate. A warm node that is taken is made anew at once, which takes
as long as the time to a GPU. So the number of nodes that are being made at any moment is a Poisson number with the mean
"rate x time" (Palm's theorem: whatever the distribution of the time), and a pod waits when it meets an empty pool:
when at least as many are being made as are kept. That is the base-stock model of a spare-parts store.

Kept warm is a node by a placeholder: a pod of low priority that asks for the node's cards and is preempted by a real
one. Its priority must not be below the autoscaler's cutoff of -10, or no node is ever made for it.
"""

import itertools
import math
from typing import Any

import msgspec

from tessera.limits import WARM_NODES

#: The lowest priority for which the cluster autoscaler still makes nodes (``--expendable-pods-priority-cutoff``).
CUTOFF = -10

PLACEHOLDER_IMAGE = "registry.k8s.io/pause:3.10"


class WarmPool(msgspec.Struct, frozen=True, kw_only=True):
    """A size of the pool and what comes of it.

    Attributes:
        nodes: warm nodes that are kept.
        waits: share of pods that meet an empty pool.
        idle_nodes: warm nodes that are there unused, on average.
        idle_cost: what they cost an hour, in the currency of the node's price.
        wait_cost: what waiting costs an hour, by the price of an hour's wait.
        saved_seconds: time to a GPU that an average pod no longer waits.
    """

    nodes: int
    waits: float
    idle_nodes: float
    idle_cost: float
    wait_cost: float
    saved_seconds: float

    @property
    def cost(self) -> float:
        """Idle nodes and waiting together, an hour."""
        return self.idle_cost + self.wait_cost


def pool(nodes: int, *, per_hour: float, seconds: float, node_price: float, wait_price: float = 0.0) -> WarmPool:
    """What a pool of a given size does.

    Args:
        nodes: its size.
        per_hour: pods that need a node of their own, an hour.
        seconds: mean time to a GPU of a new node.
        node_price: of a node, an hour.
        wait_price: of a pod's waiting, an hour.
    """
    busy = per_hour * seconds / 3600
    below = list(itertools.accumulate(_exactly(k, busy) for k in range(nodes)))
    waits = 1 - below[-1] if nodes else 1.0
    # The mean of what is left of the pool: sum over k < nodes of P(no more than k are being made).
    idle = math.fsum(below)
    # Little's law on what is asked for and not there: the mean backlog divided by the rate is the mean wait.
    backlog = busy - nodes + idle
    wait_seconds = max(0.0, backlog) / per_hour * 3600 if per_hour else 0.0
    return WarmPool(
        nodes=nodes,
        waits=waits,
        idle_nodes=idle,
        idle_cost=idle * node_price,
        wait_cost=per_hour * wait_seconds / 3600 * wait_price,
        saved_seconds=seconds - wait_seconds,
    )


def smallest(target: float, *, per_hour: float, seconds: float, node_price: float, wait_price: float = 0.0) -> WarmPool:
    """The smallest pool in which no more than a share of ``target`` of the pods waits.

    Raises:
        ValueError: as many nodes as `WARM_NODES` do not suffice.
    """
    for nodes in range(WARM_NODES + 1):
        found = pool(nodes, per_hour=per_hour, seconds=seconds, node_price=node_price, wait_price=wait_price)
        if found.waits <= target:
            return found
    raise ValueError(
        f"{per_hour:g} pods an hour at {seconds:g} s each need too many warm nodes: {WARM_NODES} are reckoned with"
    )


def cheapest(*, per_hour: float, seconds: float, node_price: float, wait_price: float) -> WarmPool:
    """The pool that costs least, idle nodes and waiting together; the smaller one of two that cost the same."""
    best = pool(0, per_hour=per_hour, seconds=seconds, node_price=node_price, wait_price=wait_price)
    for nodes in range(1, WARM_NODES + 1):
        found = pool(nodes, per_hour=per_hour, seconds=seconds, node_price=node_price, wait_price=wait_price)
        if found.cost >= best.cost:  # the cost is convex in the size
            return best
        best = found
    return best


def placeholders(
    name: str,
    nodes: int,
    *,
    resource: str = "nvidia.com/gpu",
    count: int = 1,
    selector: dict[str, str] | None = None,
    priority: int = CUTOFF,
) -> list[dict[str, Any]]:
    """The objects that keep a pool warm: a PriorityClass and a Deployment of placeholder pods, one a node.

    Args:
        name: of both.
        nodes: how many.
        resource: what a placeholder asks for.
        count: how much of it; all of a node's, so that one pod is one node.
        selector: labels of the nodes.
        priority: of the placeholders: not below the autoscaler's cutoff, and below that of the pods to come.
    """
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "tessera"}
    spread = {"labelSelector": {"matchLabels": dict(labels)}, "topologyKey": "kubernetes.io/hostname"}
    limits = {"cpu": "10m", "memory": "16Mi", resource: str(count)}
    container = {
        "name": "placeholder",
        "image": PLACEHOLDER_IMAGE,
        "resources": {"requests": dict(limits), "limits": limits},
    }
    spec: dict[str, Any] = {
        "priorityClassName": name,
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [spread]}},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {**container, "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}
        ],
    }
    if selector:
        spec["nodeSelector"] = selector
    return [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": priority,
            "preemptionPolicy": "Never",
            "globalDefault": False,
            "description": "Placeholders that keep GPU nodes warm; any other pod takes their place.",
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "labels": dict(labels)},
            "spec": {
                "replicas": nodes,
                "selector": {"matchLabels": dict(labels)},
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        },
    ]


def _exactly(k: int, mean: float) -> float:
    """Probability of a Poisson number."""
    if not mean:
        return 0.0 if k else 1.0
    return math.exp(k * math.log(mean) - mean - math.lgamma(k + 1))
