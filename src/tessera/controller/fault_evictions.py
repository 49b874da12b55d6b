"""Evicts pods from cards that must be reset, or whose node must be rebooted.

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

The facts come from the informers of nodes and pods that the controller has anyway. While no card must be empty, nobody
looks at an event of a pod. An eviction is the only write, with the pod's UID as precondition; the API server marks the
pod before it answers, so a new leader sees it and does not evict it again. Where the API server keeps a pod or answers
with a conflict, the next attempt comes with growing pauses.

A :class:`RebootAnnotations` sets the administrator's annotation on Nodes whose agent asks for a reboot, and removes it
once they have booted.

An agent may write only annotations of Tessera's on its Node (deploy/policies/agent.yaml), and the administrator's has a
key of their own, which another controller watches: that one drains and reboots the node. An agent's request names the
boot that is to end, so it is over with the boot, also if nobody was there to take it back.

:class:`RepairSettings` follows the ConfigMap of what is done about cards with faults
(:mod:`tessera.api.nodes.repairs`).
"""

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

import msgspec

from tessera.api.names import (
    GPU_CONDITION,
    GPU_NEEDS_REBOOT,
    GPU_NEEDS_RESET,
    OWN_DOMAIN,
    REBOOT_REQUESTED,
    REPAIRS_KEY,
    REPAIRS_MAP,
)
from tessera.api.nodes.card_faults import (
    CARDS_ANNOTATION,
    SPARED_ANNOTATION,
    CardFault,
    CardRule,
    NodeCards,
    decode_cards,
    decode_spared,
)
from tessera.api.nodes.node_marks import HEALTH, is_marked_silent, read_cordons
from tessera.api.nodes.repairs import (
    RebootWay,
    Repairs,
    asks_for_reboot,
    is_made_anew,
    parse_repairs,
    read_toleration,
)
from tessera.clock import Clock, parse_time_or_zero, until_set
from tessera.controller.base import ControllerMetrics
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, Conflict, NotFound
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.eviction import Blocked, Evicted, Evictor
from tessera.kube.informer import EventKind, Informer, ObjectInformer, WatchEvent, read_annotated, read_parts
from tessera.kube.resources import CONFIGMAPS, NODES, PODS, ConfigMap, Node, Pod


class RepairSettings:
    """What the administrator lets Tessera do; nothing while there is no file.

    A file with a mistake changes nothing while this process runs; one that starts with it does nothing.

    Args:
        client: the API server.
        namespace: Tessera's own.
        clock: for pauses between attempts.
        rng: for jitter.

    Attributes:
        repairs: what is in force.
    """

    def __init__(self, client: Client, *, namespace: str, clock: Clock, rng: random.Random) -> None:
        self.repairs = Repairs()
        self._listeners: list[Callable[[], None]] = []
        self._file = ObjectInformer(client, CONFIGMAPS, REPAIRS_MAP, namespace=namespace, clock=clock, rng=rng)
        self._file.add_handler(self._changed)

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Calls ``listener`` at each change."""
        self._listeners.append(listener)

    async def run(self) -> None:
        """Follows the file until cancelled."""
        await self._file.run()

    def _changed(self, event: WatchEvent[ConfigMap]) -> None:
        text = "" if event.kind is EventKind.DELETED else event.object.data.get(REPAIRS_KEY, "")
        try:
            found = parse_repairs(text)
        except ValueError as error:
            _log.warning("%s; what was in force before stays in force", error)
            return
        if found != self.repairs:
            self.repairs = found
            for listener in self._listeners:
                listener()


_log = logging.getLogger(__name__)

#: Seconds until a write that failed is tried again.
RETRY = 15.0
#: Seconds in which changes are collected before one round.
SETTLE = 0.2


class RebootAnnotations:
    """Keeps the annotation in step with the agents' requests.

    Args:
        client: the API server.
        settings: the annotation.
        clock: the time.
        nodes: all nodes.
    """

    def __init__(self, client: Client, settings: RepairSettings, clock: Clock, *, nodes: Informer[Node]) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self._wake = asyncio.Event()
        #: The nodes with a request of their agents, by name.
        self._nodes: dict[str, Node] = {}
        settings.add_listener(self._wake.set)
        nodes.add_handler(self._node_changed, reads=read_annotated(REBOOT_REQUESTED))

    def _node_changed(self, event: WatchEvent[Node]) -> None:
        node = event.object
        if event.kind is EventKind.DELETED or REBOOT_REQUESTED not in node.metadata.annotations:
            self._nodes.pop(node.metadata.name, None)
            return
        self._nodes[node.metadata.name] = node
        self._wake.set()

    async def run(self) -> None:
        """Writes until cancelled."""
        pause: float | None = None
        while True:
            await until_set(self._wake, pause)
            self._wake.clear()
            await self._clock.sleep(SETTLE)
            changes = [(node, _find_change(node, self._settings.repairs)) for node in self._nodes.values()]
            done = [await self._write(node, change) for node, change in changes if change]
            pause = None if all(done) else RETRY

    async def _write(self, node: Node, change: dict[str, str | None]) -> bool:
        """Writes a change to the Node that was judged: a request that came since must not go with the one before."""
        name, version = node.metadata.name, node.metadata.resource_version
        try:
            body = {"metadata": {"resourceVersion": version, "annotations": change}}
            await self._client.merge_patch(NODES, name, body)
        except NotFound:
            return True
        except Conflict:
            return False
        except (ApiError, ConnectionError, TimeoutError) as error:
            _log.warning("the annotation of node %s for its reboot cannot be written: %s", name, error)
            return False
        return True


def _find_change(node: Node, repairs: Repairs) -> dict[str, str | None]:
    """The annotations to set, or to remove by ``None``; empty if all is as it should be.

    A value of another's stays. A request that is over goes too, so that the same value from a person stays later.
    """
    boot = node.status.node_info.boot_id
    if repairs.reboot is not RebootWay.ANNOTATION or not boot:
        return {}
    key, value = repairs.annotation
    present = node.metadata.annotations.get(key)
    if asks_for_reboot(node.metadata.annotations, boot):
        return {} if present == value else {key: value}
    return {REBOOT_REQUESTED: None, **({key: None} if present == value else {})}


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


_T = TypeVar("_T")

#: Reasons of a pod's condition that say that its card must be empty.
_REASONS = frozenset({GPU_NEEDS_RESET, GPU_NEEDS_REBOOT})
#: Seconds to the next attempt for a pod that was not evicted: first, and at most.
RETRY, LONGEST_RETRY = 15.0, 300.0


class FaultEvictions:
    """Empties cards that must be reset, or whose node must be rebooted.

    Args:
        evictor: evicts pods.
        nodes: all nodes.
        pods: all pods; followed while a card must be empty.
        events: tells the pod's owner why.
        metrics: counts evictions.
        settings: what may be done.
        namespace: Tessera's own.
        clock: the time.
    """

    def __init__(
        self,
        evictor: Evictor,
        *,
        nodes: Informer[Node],
        pods: Informer[Pod],
        events: EventRecorder,
        metrics: ControllerMetrics,
        settings: RepairSettings,
        namespace: str,
        clock: Clock,
    ) -> None:
        self._evictor = evictor
        self._informer = pods
        #: Ends the following of pods; None while no card must be empty.
        self._unfollow: Callable[[], None] | None = None
        self._events = events
        self._metrics = metrics
        self._settings = settings
        self._namespace = namespace
        self._clock = clock
        self._wake = asyncio.Event()
        #: The nodes with a card that must be empty, and the pods that hold such a card, by name and UID.
        self._nodes: dict[str, FaultyNode] = {}
        self._pods: dict[str, HoldingPod] = {}
        #: Pods that were not evicted: number of refusals, and the time of the next attempt.
        self._refused: dict[str, tuple[int, float]] = {}
        settings.add_listener(self._wake.set)
        nodes.add_handler(self._node_changed, reads=read_parts("status.conditions", annotations=(OWN_DOMAIN,)))

    def _node_changed(self, event: WatchEvent[Node]) -> None:
        node = None if event.kind is EventKind.DELETED else _read_node(event.object)
        self._take(self._nodes, event.object.metadata.name, node)
        if self._nodes and self._unfollow is None:
            self._unfollow = self._informer.add_handler(self.pod_changed)
        elif not self._nodes and self._unfollow is not None:
            self._unfollow()
            self._unfollow = None
            self._pods.clear()

    def pod_changed(self, event: WatchEvent[Pod]) -> None:
        """Handles an event of a pod."""
        pod = None if event.kind is EventKind.DELETED else _read_pod(event.object)
        self._take(self._pods, event.object.metadata.uid, pod)

    def _take(self, known: dict[str, _T], key: str, value: _T | None) -> None:
        if known.get(key) != value:
            if value is None:
                known.pop(key, None)
            else:
                known[key] = value
            self._wake.set()

    async def run(self) -> None:
        """Evicts until cancelled."""
        self._wake.set()
        while True:
            await until_set(self._wake, await self._decide())
            self._wake.clear()
            await self._clock.sleep(SETTLE)

    async def _decide(self) -> float | None:
        """Evicts what is due; returns the seconds until more may be due."""
        now = self._clock.now()
        self._refused = {uid: each for uid, each in self._refused.items() if uid in self._pods}
        refused = frozenset(uid for uid, (_, at) in self._refused.items() if at > now)
        plan = plan_evictions(
            self._nodes,
            self._pods.values(),
            self._settings.repairs,
            refused=refused,
            own_namespace=self._namespace,
            now=now,
        )
        for pod in plan.evictions:
            await self._evict(pod)
        due = [plan.next_due, *(at for _, at in self._refused.values())]
        soonest = min((at for at in due if at is not None), default=None)
        return None if soonest is None else max(SETTLE, soonest - self._clock.now())

    async def _evict(self, pod: HoldingPod) -> None:
        answer = await self._evictor.evict(pod.namespace, pod.name, pod.uid)
        about = make_reference(PODS, pod.name, pod.namespace, pod.uid)
        self._metrics.fault_evictions.labels(type(answer).__name__.lower()).inc()
        if isinstance(answer, Evicted):
            self._refused.pop(pod.uid, None)
            self._pods[pod.uid] = msgspec.structs.replace(pod, ends=self._clock.now())  # as the watch will show it
            text = f"evicted from node {pod.node}: its card must be empty to be repaired"
            self._events.record(about, "GpuFaultEvicted", text, type="Normal")
            return
        # A pod that is gone is forgotten when the watch shows it; after a conflict it is still there.
        count = self._refused.get(pod.uid, (0, 0.0))[0] + 1
        self._refused[pod.uid] = count, self._clock.now() + min(RETRY * 2 ** min(count - 1, 16), LONGEST_RETRY)
        if isinstance(answer, Blocked):
            text = f"its card must be empty to be repaired, and the pod stays for now: {answer.text}"
            self._events.record(about, "GpuFaultEvictionBlocked", text, type="Warning")


def _read_node(node: Node) -> FaultyNode | None:
    """The node, if a card of it must be empty; None else, and while its agent is silent: nobody would repair it."""
    annotations, condition = node.metadata.annotations, node.status.condition(HEALTH)
    if condition is not None and is_marked_silent(condition):
        return None
    cards = decode_cards(annotations.get(CARDS_ANNOTATION, ""))
    if not any(fault.asks in {"reset", "reboot"} for fault in cards.all_faults()):
        return None
    spared = decode_spared(annotations.get(SPARED_ANNOTATION, ""))
    return FaultyNode(cards=cards, spared=spared, cordoned=frozenset(each.gpu for each in read_cordons(annotations)))


def _read_pod(pod: Pod) -> HoldingPod | None:
    """The pod, if its card must be empty; None else."""
    condition = pod.status.condition(GPU_CONDITION)
    if condition is None or condition.status != "False" or condition.reason not in _REASONS:
        return None
    if pod.status.phase in {"Succeeded", "Failed"}:
        return None
    meta = pod.metadata
    return HoldingPod(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        node=pod.spec.node_name,
        since=parse_time_or_zero(condition.last_transition_time or ""),
        toleration=read_toleration(meta.annotations),
        owner=next((each.kind for each in meta.owner_references if each.controller), ""),
        ends=parse_time_or_zero(meta.deletion_timestamp) if meta.deletion_timestamp is not None else None,
    )
