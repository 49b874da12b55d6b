"""Filters that are asked about one pod and one node: amounts that the pod requests, and nodes that its owner avoids.

:class:`tessera.controller.cluster.node_index.NodeIndex` answers a pod's constraints (selector, affinity, taints) for
all nodes at once. A filter is then asked about one pod and one node that the constraints admit. A filter is made for
one batch: it starts from the pods on the nodes, and learns each pod that the batch places or takes back. So the filter
counts the pods of a batch together. The scheduler's filter of amounts is NodeResourcesFit.

The scheduler decides by many rules that the controller cannot check. After the scheduler refused a pod on a node, the
owner's next pod avoids that node; otherwise the controller would pin it there again. An owner whose pods are refused
again and again, on one node after the other, pauses on all nodes, each time for longer: else each of its pods would
hold slices for a minute and be evicted, without end. These entries live only in memory: a restarted controller has
none.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Protocol

from tessera.api.names import NodeName
from tessera.controller.objects.node_info import NodeInfo
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.objects.resource_amounts import Amounts, add_amounts, freed_with_cards
from tessera.reasons.node_rules import NodeRule, RuleKind, shortage


class Filter(Protocol):
    """One rule. Its cost must not grow with the pod's spec, which :mod:`tessera.api.slice_requests` bounds.

    Attributes:
        freed_with_cards: True if the resource is freed together with slots of the cards. Such a filter is not asked
            about a node whose cards have no room.
    """

    freed_with_cards: bool = False

    def refusal(self, pod: PodInfo, node: NodeName) -> NodeRule | None:
        """Returns the rule by which the pod cannot run on the node beside its pods and the batch's; None if it can."""
        ...

    def kind(self, pod: PodInfo) -> Hashable:
        """Returns a key; the filter gives the same answers for pods with equal keys; by default the amounts."""
        return tuple(sorted(pod.amounts.items()))

    def reserve(self, pod: PodInfo, node: NodeName) -> None:
        """Notes that the batch puts the pod on the node; by default that changes nothing."""
        del pod, node

    def unreserve(self, pod: PodInfo, node: NodeName) -> None:
        """Notes that the batch takes the pod back."""
        del pod, node


class FreeAmounts(Filter):
    """NodeResourcesFit: CPU, memory, number of pods and all other counted resources.

    Args:
        nodes: the nodes, with their allocatable amounts.
        used: the amounts that pods hold on each node.
    """

    def __init__(self, nodes: Mapping[NodeName, NodeInfo], used: Mapping[NodeName, Amounts]) -> None:
        self._nodes = nodes
        self._used = used
        self._reserved: dict[NodeName, Amounts] = {}

    def refusal(self, pod: PodInfo, node: NodeName) -> NodeRule | None:
        """Returns the first shortage."""
        return first_shortage(pod.amounts, self._used_amounts(pod, node), self._nodes[node])

    @property
    def reserved(self) -> Mapping[NodeName, Amounts]:
        """The amounts that the batch gave to pods, by node."""
        return self._reserved

    def _used_amounts(self, pod: PodInfo, node: NodeName) -> Amounts:
        used = self._used.get(node, {})
        taken = self._reserved.get(node)
        return used if not taken else {name: used.get(name, 0) + taken.get(name, 0) for name in pod.amounts}

    def reserve(self, pod: PodInfo, node: NodeName) -> None:
        """Counts the amounts that the pod will hold; a bound pod is counted already."""
        if not pod.node:
            add_amounts(self._reserved.setdefault(node, {}), pod.amounts)

    def unreserve(self, pod: PodInfo, node: NodeName) -> None:
        """Removes the pod's amounts from the count."""
        if not pod.node:
            add_amounts(self._reserved[node], pod.amounts, sign=-1)


class FreeDevices(FreeAmounts):
    """NodeResourcesFit for what ends with slots of cards: whole cards, shares, slices, and the memory quota."""

    freed_with_cards = True

    def refusal(self, pod: PodInfo, node: NodeName) -> NodeRule | None:
        """Returns the first shortage."""
        return next(device_shortages(pod.amounts, self._used_amounts(pod, node), self._nodes[node]), None)


class OfferedDevices(Filter):
    """Shortages of agent resources that remain when slices end: kubelet publishes too little, or other pods hold them.

    Kubelet publishes 0 devices as soon as the agent is gone.

    Args:
        nodes: the nodes, with their allocatable amounts.
        used: the amounts that pods hold on each node.
        used_without_slices: returns the amounts that pods without slices hold on a node; called only when needed.
    """

    def __init__(
        self,
        nodes: Mapping[NodeName, NodeInfo],
        used: Mapping[NodeName, Amounts],
        used_without_slices: Callable[[NodeName], Amounts],
    ) -> None:
        self._nodes, self._used, self._used_without_slices = nodes, used, used_without_slices
        self._used_by_others: dict[NodeName, Amounts] = {}

    def refusal(self, pod: PodInfo, node: NodeName) -> NodeRule | None:
        """Returns the first shortage."""
        facts = self._nodes[node]
        if not any(device_shortages(pod.amounts, self._used.get(node, {}), facts)):
            return None
        if node not in self._used_by_others:
            self._used_by_others[node] = self._used_without_slices(node)
        return next(device_shortages(pod.amounts, self._used_by_others[node], facts), None)


def first_shortage(wanted: Mapping[str, int], used: Mapping[str, int], node: NodeInfo) -> NodeRule | None:
    """Returns the first of :func:`shortages`; None if the amounts fit."""
    return next(shortages(wanted, used, node), None)


def shortages(wanted: Mapping[str, int], used: Mapping[str, int], node: NodeInfo) -> Iterator[NodeRule]:
    """Yields each resource of which a node lacks the wanted amount, without devices, slices and the memory quota.

    Resources of which the node has too little even without other pods come first: no pod's end makes room there.
    """
    yield from amounts_short(wanted, used, lambda name: None if freed_with_cards(name) else _most(name, node))


def _most(resource: str, node: NodeInfo) -> int | None:
    known = node.allocatable.get(resource)
    return node.allocatable_amount(resource) if known is None else known


def amounts_short(
    wanted: Mapping[str, int], used: Mapping[str, int], most_of: Callable[[str], int | None]
) -> Iterator[NodeRule]:
    """Yields the shortages of a node that has so much of each resource, in the order of :func:`shortages`.

    Args:
        wanted: the amounts that a pod requests.
        used: the amounts that pods hold on the node.
        most_of: returns the node's amount of a resource; None leaves the resource out.
    """
    short = []
    for resource, amount in wanted.items():
        most = most_of(resource)
        if most is None or amount <= most - used.get(resource, 0):
            continue
        if amount > most and resource != "pods":
            yield NodeRule(RuleKind.TOO_SMALL, resource)
        else:
            short.append(shortage(resource))
    yield from short


def device_shortages(wanted: Mapping[str, int], used: Mapping[str, int], node: NodeInfo) -> Iterator[NodeRule]:
    """Yields the shortages of whole cards, shares, devices of MIG profiles, and the memory quota."""
    for resource, amount in wanted.items():
        most = _most(resource, node) if freed_with_cards(resource) else None
        if most is not None and amount > most - used.get(resource, 0):
            yield shortage(resource)


#: Seconds for which an owner's pods avoid a node that refused one of them.
AVOIDANCE_SECONDS = 600.0
#: The reason shown to a pod about a node that its owner avoids.
AVOIDED = NodeRule(RuleKind.AVOIDED)
#: The same about all nodes, for an owner that pauses.
PAUSED = NodeRule(RuleKind.PAUSED)
#: Refusals after which an owner pauses, and seconds of its first and its longest pause. An owner without a refusal for
#: twice the longest begins anew.
FREE_REFUSALS, FIRST_PAUSE, LONGEST_PAUSE = 2, 60.0, 3_600.0
#: Seconds in which refusals of several pods of an owner count as one: they were placed together.
TOGETHER = 50.0


class NodeAvoidance:
    """The nodes that each owner's pods avoid, by the owner's UID; a pod without an owner counts as its own.

    Attributes:
        refusals: by owner, its refusals, and the time of the last one; without one, nobody avoids a node.
    """

    def __init__(self) -> None:
        #: By owner and node, the time at which the entry ends. No inner dict is empty.
        self._nodes: dict[str, dict[NodeName, float]] = {}
        #: By owner that pauses, the time at which it goes on.
        self._pauses: dict[str, float] = {}
        self.refusals: dict[str, tuple[int, float]] = {}

    def add(self, owner: str, node: NodeName, until: float) -> None:
        """Makes an owner's pods avoid a node until :data:`AVOIDANCE_SECONDS` from now, and in time all nodes."""
        self._nodes.setdefault(owner, {})[node] = until
        now = until - AVOIDANCE_SECONDS
        count, last = self.refusals.get(owner, (0, now - TOGETHER))
        if now < last + TOGETHER:
            return
        count += 1
        self.refusals[owner] = count, now
        if count > FREE_REFUSALS:
            self._pauses[owner] = now + min(FIRST_PAUSE * 2 ** min(count - FREE_REFUSALS - 1, 16), LONGEST_PAUSE)

    def pauses(self, owner: str) -> bool:
        """True if an owner's pods avoid all nodes."""
        return owner in self._pauses

    def avoids(self, owner: str, node: NodeName) -> bool:
        """True if an owner's pods avoid a node."""
        return node in self._nodes.get(owner, ())

    def nodes_of(self, owner: str) -> frozenset[NodeName]:
        """Returns all nodes that an owner's pods avoid."""
        return frozenset(self._nodes.get(owner, ()))

    def next_expiry(self) -> float | None:
        """Returns the time at which the next entry ends; None if there is none."""
        ends = (min(nodes.values()) for nodes in self._nodes.values())
        return min((*ends, *self._pauses.values()), default=None)

    def expire_pauses(self, now: float) -> frozenset[str]:
        """Ends pauses that are over, and forgets old refusals; returns the owners that go on."""
        over = frozenset(owner for owner, until in self._pauses.items() if until <= now)
        for owner in over:
            del self._pauses[owner]
        for owner in [owner for owner, (_, last) in self.refusals.items() if last + 2 * LONGEST_PAUSE <= now]:
            del self.refusals[owner]
        return over

    def expire(self, now: float) -> frozenset[NodeName]:
        """Removes entries that have ended; returns the nodes that became usable again."""
        over = [(owner, node) for owner, nodes in self._nodes.items() for node, until in nodes.items() if until <= now]
        for owner, node in over:
            del self._nodes[owner][node]
            if not self._nodes[owner]:
                del self._nodes[owner]
        return frozenset(node for _, node in over)


class AvoidedNodes(Filter):
    """Refuses nodes that the pod's owner avoids."""

    def __init__(self, avoidance: NodeAvoidance) -> None:
        self._avoidance = avoidance

    def refusal(self, pod: PodInfo, node: NodeName) -> NodeRule | None:
        """Refuses a node that the pod's owner avoids."""
        if self._avoidance.pauses(pod.avoids_as):
            return PAUSED
        return AVOIDED if self._avoidance.avoids(pod.avoids_as, node) else None

    def kind(self, pod: PodInfo) -> Hashable:
        """Returns the nodes that the pod's owner avoids, and if it pauses."""
        return (self._avoidance.pauses(pod.avoids_as), self._avoidance.nodes_of(pod.avoids_as))
