"""Decides which pods are evicted from cards that must be reset, or whose node must be rebooted. Pure.

A card is reset only when no pod holds it, and its pods wait for a card that works: without an eviction, both wait for
ever. The facts are on the Nodes and pods: ``tessera.dev/cards`` has the faults, and the reason of a pod's condition
``tessera.dev/GpuHealthy`` says that its own card must be empty. So a new leader decides as the former one did, and
nothing has to be remembered.

Rules:

1. A pod is evicted only if it has an owner that makes it anew elsewhere: no pod without a controller, of a DaemonSet or
   of a Node, and none in namespaces of Kubernetes itself or Tessera's own.
2. Not before the delay is over, and not before the time that the pod's annotation asks for, up to the administrator's
   most.
3. Nothing is done for faults that the breaker spares, and for cards that a person has cordoned.
4. Pods of at most a number of nodes are evicted at a time. Nodes with pods that are ending go first, then those with
   the oldest fault. A node whose pods the API server keeps (a disruption budget) takes nobody's turn.
"""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from tessera.api.nodes.card_faults import CardFault, CardRule, NodeCards
from tessera.api.nodes.repairs import Repairs, is_made_anew

#: Needs of a card that only an empty card can get.
_NEEDS_EMPTY = frozenset({"reset", "reboot"})
#: Seconds after the end of its grace period for which a pod that is being deleted takes its node's turn.
STUCK = 300.0


class FaultyNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node as far as evictions need it.

    Attributes:
        cards: its cards and their faults.
        spared: the faults that the breaker spares.
        cordoned: UUIDs of the cards that a person has cordoned.
    """

    cards: NodeCards
    spared: frozenset[CardRule] = frozenset()
    cordoned: frozenset[str] = frozenset()

    def since(self) -> int | None:
        """Unix time of the oldest fault for which a card must be empty; None if there is none."""
        return min((fault.since for fault in self.cards.all_faults() if self._needs_empty(fault)), default=None)

    def _needs_empty(self, fault: CardFault) -> bool:
        open_ = fault.asks in _NEEDS_EMPTY and not (fault.asks == "reset" and fault.reset)
        spared = fault.counts_for_breaker and fault.key in self.spared
        return open_ and not spared and fault.gpu not in self.cordoned


class HoldingPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that holds a part of a card which must be empty.

    Attributes:
        uid: its UID.
        namespace: its namespace.
        name: its name.
        node: its node.
        since: Unix time at which it was told so.
        toleration: seconds for which it wants to stay.
        owner: kind of the controller that owns it; empty for none.
        ends: Unix time by which it has to end; None if it is not being deleted.
    """

    uid: str
    namespace: str
    name: str
    node: str
    since: float
    toleration: float = 0.0
    owner: str = ""
    ends: float | None = None

    def may_be_evicted(self, own_namespace: str) -> bool:
        """True if its owner makes it anew elsewhere; ``own_namespace`` is Tessera's."""
        return is_made_anew(self.namespace, self.owner, own_namespace)

    def is_ending(self, now: float) -> bool:
        """True if it is being deleted, and its end is not overdue, as on a node that is gone."""
        return self.ends is not None and now < self.ends + STUCK

    def due(self, repairs: Repairs) -> float:
        """Unix time from which it may be evicted."""
        return repairs.eviction_time(self.since, self.toleration)


class EvictionPlan(msgspec.Struct, frozen=True):
    """Result of :func:`plan_evictions`: the pods to evict now, and when more may be due (Unix time)."""

    evictions: tuple[HoldingPod, ...] = ()
    next_due: float | None = None


def plan_evictions(
    nodes: Mapping[str, FaultyNode],
    pods: Iterable[HoldingPod],
    repairs: Repairs,
    *,
    refused: Collection[str],
    own_namespace: str,
    now: float,
) -> EvictionPlan:
    """Decides which pods are evicted now.

    Args:
        nodes: the nodes by name.
        pods: the pods on cards that must be empty.
        repairs: what may be done.
        refused: UIDs of pods that the API server keeps for now.
        own_namespace: Tessera's namespace.
        now: Unix time.
    """
    if not repairs.evict:
        return EvictionPlan()
    oldest = {name: since for name, node in nodes.items() if (since := node.since()) is not None}
    held: dict[str, list[HoldingPod]] = {}
    for pod in sorted(pods, key=lambda each: (each.namespace, each.name, each.uid)):
        if pod.node in oldest and pod.may_be_evicted(own_namespace):
            held.setdefault(pod.node, []).append(pod)
    leaving = {name for name, found in held.items() if any(pod.is_ending(now) for pod in found)}
    due = {name: [pod for pod in found if pod.ends is None and pod.due(repairs) <= now] for name, found in held.items()}
    open_ = {name: [pod for pod in found if pod.uid not in refused] for name, found in due.items()}
    working = [name for name in held if name in leaving or open_[name]]
    turn = sorted(working, key=lambda name: (name not in leaving, oldest[name], name))[: repairs.evict_nodes]
    times = [pod.due(repairs) if pod.ends is None else pod.ends + STUCK for found in held.values() for pod in found]
    later = [at for at in times if at > now]
    return EvictionPlan(tuple(pod for name in sorted(turn) for pod in open_[name]), min(later, default=None))
