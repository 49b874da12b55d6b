"""Computes how many nodes to keep warm, so that a pod rarely waits for a new node.

Pods that each need a node arrive at random at a known rate. A warm node that is taken is replaced at once, which takes
the time to a GPU. So the number of nodes being made at any moment is a Poisson number with the mean "rate x time"
(Palm's theorem: for any distribution of the time). A pod waits if it finds the pool empty: if at least as many nodes
are being made as are kept. That is the base-stock model of a spare-parts store.

A placeholder keeps a node warm: a pod of low priority that requests the node's GPUs, and that ends for a real pod. The
scheduler preempts it; where Tessera places pods, Tessera evicts it, because its annotation asks for that. Its priority
must not be below the autoscaler's cutoff of -10, or the autoscaler never makes a node for it. Where the cluster serves
CapacityBuffers, one does the same without pods.
"""

import itertools
import math
from typing import Any

import msgspec

from tessera.api.names import PAUSE_IMAGE, YIELDS_ANNOTATION
from tessera.kube.resources.meta import Resource

#: The lowest priority for which the cluster autoscaler still makes nodes (``--expendable-pods-priority-cutoff``).
CUTOFF = -10

#: Warm nodes of a pool; more is a cluster of its own. Each number up to the answer is tried.
_WARM_NODES = 1_000

#: Spare capacity that an autoscaler makes without pods.
CAPACITY_BUFFERS = Resource(
    "autoscaling.x-k8s.io", "v1beta1", "capacitybuffers", "CapacityBuffer", True, dict[str, Any]
)


class WarmPool(msgspec.Struct, frozen=True, kw_only=True):
    """A size of the pool and its effects.

    Attributes:
        nodes: number of warm nodes.
        waits: share of pods that find the pool empty.
        idle_nodes: average number of unused warm nodes.
        idle_cost: their cost an hour, in the currency of the node's price.
        wait_cost: cost of waiting an hour, by the price of an hour's wait.
        saved_seconds: time to a GPU that the pool saves an average pod.
    """

    nodes: int
    waits: float
    idle_nodes: float
    idle_cost: float
    wait_cost: float
    saved_seconds: float

    @property
    def cost(self) -> float:
        """Cost of idle nodes and of waiting together, an hour."""
        return self.idle_cost + self.wait_cost


def pool(nodes: int, *, per_hour: float, seconds: float, node_price: float, wait_price: float = 0.0) -> WarmPool:
    """The effects of a pool of a given size.

    Args:
        nodes: its size.
        per_hour: pods that need a node of their own, an hour.
        seconds: mean time to a GPU of a new node.
        node_price: price of a node, an hour.
        wait_price: price of a pod's waiting, an hour.
    """
    busy = per_hour * seconds / 3600
    below = list(itertools.accumulate(_exactly(k, busy) for k in range(nodes)))
    waits = 1 - below[-1] if nodes else 1.0
    # The mean of the remaining pool: sum over k < nodes of P(no more than k are being made).
    idle = math.fsum(below)
    # Little's law on requested nodes that do not exist yet: the mean backlog divided by the rate is the mean wait.
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
        ValueError: `_WARM_NODES` nodes do not suffice.
    """
    for nodes in range(_WARM_NODES + 1):
        found = pool(nodes, per_hour=per_hour, seconds=seconds, node_price=node_price, wait_price=wait_price)
        if found.waits <= target:
            return found
    raise ValueError(
        f"{per_hour:g} pods an hour at {seconds:g} s each need too many warm nodes: at most {_WARM_NODES:,} nodes are"
        " reckoned with"
    )


def cheapest(*, per_hour: float, seconds: float, node_price: float, wait_price: float) -> WarmPool:
    """The pool that costs least, idle nodes and waiting together; the smaller one of two that cost the same."""
    best = pool(0, per_hour=per_hour, seconds=seconds, node_price=node_price, wait_price=wait_price)
    for nodes in range(1, _WARM_NODES + 1):
        found = pool(nodes, per_hour=per_hour, seconds=seconds, node_price=node_price, wait_price=wait_price)
        if found.cost >= best.cost:  # the cost is convex in the size
            return best
        best = found
    return best


class Placeholder(msgspec.Struct, frozen=True, kw_only=True):
    """What keeps one node warm.

    Attributes:
        name: name of the pool and of its objects.
        resource: the resource that it requests.
        count: the amount of it; all of a node's, so that one pod fills one node.
        selector: labels of the nodes.
    """

    name: str
    resource: str = "nvidia.com/gpu"
    count: int = 1
    selector: dict[str, str] = {}

    @property
    def labels(self) -> dict[str, str]:
        """Labels of its pods."""
        return {"app.kubernetes.io/name": self.name, "app.kubernetes.io/part-of": "tessera"}

    @property
    def spec(self) -> dict[str, Any]:
        """The spec of its pods, at most one on a node."""
        spread = {"labelSelector": {"matchLabels": self.labels}, "topologyKey": "kubernetes.io/hostname"}
        limits = {"cpu": "10m", "memory": "16Mi", self.resource: str(self.count)}
        confined = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        container = {
            "name": "placeholder",
            "image": PAUSE_IMAGE,
            "resources": {"requests": dict(limits), "limits": limits},
            "securityContext": confined,
        }
        return {
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [spread]}},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            **({"nodeSelector": self.selector} if self.selector else {}),
        }


def placeholders(one: Placeholder, nodes: int, *, priority: int = CUTOFF) -> list[dict[str, Any]]:
    """The objects that keep a pool warm: a PriorityClass and a Deployment with one placeholder pod for each node.

    Args:
        one: the placeholder.
        nodes: number of placeholders.
        priority: priority of the placeholders: not below the autoscaler's cutoff, and below that of real pods.
    """
    template = {
        "metadata": {"labels": one.labels, "annotations": {YIELDS_ANNOTATION: "true"}},
        "spec": {"priorityClassName": one.name, **one.spec},
    }
    return [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": one.name},
            "value": priority,
            "preemptionPolicy": "Never",
            "globalDefault": False,
            "description": "Placeholders that keep GPU nodes warm; any other pod takes their place.",
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": one.name, "labels": one.labels},
            "spec": {"replicas": nodes, "selector": {"matchLabels": one.labels}, "template": template},
        },
    ]


def capacity_buffer(one: Placeholder, nodes: int) -> list[dict[str, Any]]:
    """The same as a CapacityBuffer, for which the autoscaler reckons with pods that do not exist, and their template.

    Its shape is that of Cluster Autoscaler's ``autoscaling.x-k8s.io/v1beta1``, the version that is stored.
    """
    return [
        {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": one.name, "labels": one.labels},
            "template": {"metadata": {"labels": one.labels}, "spec": one.spec},
        },
        {
            "apiVersion": CAPACITY_BUFFERS.api_version,
            "kind": CAPACITY_BUFFERS.kind,
            "metadata": {"name": one.name, "labels": one.labels},
            "spec": {
                "provisioningStrategy": "buffer.x-k8s.io/active-capacity",
                "podTemplateRef": {"name": one.name},
                "replicas": nodes,
            },
        },
    ]


def _exactly(k: int, mean: float) -> float:
    """Probability of the value ``k`` of a Poisson number."""
    if not mean:
        return 0.0 if k else 1.0
    return math.exp(k * math.log(mean) - mean - math.lgamma(k + 1))
