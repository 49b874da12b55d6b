"""Decides which faults take no card away, since their rule has taken enough of them, and keeps that on the Nodes.

Each agent decides alone which of its cards are bad. A rule that is wrong, or a driver that reports nonsense, would so
take the whole fleet away. So at most a bound of cards is away for one rule at a time; every further card with that
error is *spared*: it stays allocated and is shown as degraded. The bound is the largest of a share of all cards, a
number of cards, and the cards of the largest node: one broken server is no reason to doubt a rule.

The oldest faults count first, so that a card that is away stays away while others join. The decision rests on the
annotations of the Nodes alone: a new leader decides as the former one did. Lost cards are no matter of the breaker:
agents do not list them, and never give them out.

The informer of nodes is one that the controller has anyway. Nothing is sent while no fault of a node changes:
heartbeats of Nodes are compared by two annotations. A write that fails is tried again with growing pauses; until it
succeeds, the agent keeps the card away, which is the safe side.
"""

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from tessera.api.nodes.card_faults import (
    CARDS_ANNOTATION,
    SPARED_ANNOTATION,
    CardRule,
    NodeCards,
    decode_cards,
    decode_spared,
    encode_spared,
)
from tessera.clock import Clock
from tessera.controller.base import BreakerLimits, ControllerMetrics
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, NotFound
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.informer import EventKind, Informer, WatchEvent, read_parts
from tessera.kube.resources import NAMESPACES, NODES, Node
from tessera.kube.retries import Backoff
from tessera.replay.recorder import Recorders


class RuleCount(msgspec.Struct, frozen=True, kw_only=True):
    """Cards with an error of one rule: those that it takes away, and those that are spared."""

    rule: str
    taken: int
    spared: int


class BreakerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Result of :func:`plan_breaker`.

    Attributes:
        bound: the most cards that one rule takes away.
        spared: by node, its faults that take no card away; nodes without one are missing.
        rules: the count of each rule with a fault, by name.
    """

    bound: int
    spared: Mapping[str, frozenset[CardRule]]
    rules: Sequence[RuleCount]


def plan_breaker(nodes: Mapping[str, NodeCards], limits: BreakerLimits) -> BreakerPlan:
    """Decides which faults are spared.

    Args:
        nodes: the cards of each node, as its agent reports them.
        limits: the bound of a rule.
    """
    bound = limits.bound(each.count for each in nodes.values())
    # Of a card that is listed twice, the first time counts.
    by_rule: dict[str, dict[tuple[str, CardRule], int]] = {}
    for name, cards in nodes.items():
        for fault in cards.faults:
            since = by_rule.setdefault(fault.rule, {})
            since[name, fault.key] = min(fault.since, since.get((name, fault.key), fault.since))
    spared: dict[str, set[CardRule]] = {}
    counts = []
    for rule in sorted(by_rule):
        faults = sorted((since, name, key) for (name, key), since in by_rule[rule].items())
        for _, name, key in faults[bound:]:
            spared.setdefault(name, set()).add(key)
        beyond = max(0, len(faults) - bound)
        counts.append(RuleCount(rule=rule, taken=len(faults) - beyond, spared=beyond))
    return BreakerPlan(
        bound=bound, spared={name: frozenset(faults) for name, faults in spared.items()}, rules=tuple(counts)
    )


#: Most rules of the breaker in the controller's metrics and Events. A fleet has a few kinds of errors at a time; a node
#: that lies cannot make thousands of series.
BREAKER_RULES = 64

_log = logging.getLogger(__name__)

#: Seconds in which faults of several nodes are collected before one decision.
SETTLE = 0.2


class _SeenNode(NamedTuple):
    """A node: its UID, its cards, and the text of the annotation of spared faults."""

    uid: str
    cards: NodeCards
    spared: str


class FaultBreaker:
    """Spares cards of a rule that has taken enough of them.

    Args:
        client: the API server; its identity needs ``patch`` on nodes.
        nodes: all nodes.
        events: records that a rule's breaker opens or closes.
        metrics: shows the state.
        limits: the bound of a rule.
        namespace: Tessera's own; Events are about it.
        clock: the time.
        rng: for jitter.
        recorders: keep the last decisions.
    """

    def __init__(
        self,
        client: Client,
        *,
        nodes: Informer[Node],
        events: EventRecorder,
        metrics: ControllerMetrics,
        limits: BreakerLimits,
        namespace: str,
        clock: Clock,
        rng: random.Random,
        recorders: Recorders,
    ) -> None:
        self._client = client
        self._events = events
        self._metrics = metrics
        self._limits = limits
        self._about = make_reference(NAMESPACES, namespace)
        self._clock = clock
        self._backoff = Backoff(rng)
        self._recorders = recorders
        self._wake = asyncio.Event()
        #: The nodes as last seen, by name.
        self._nodes: dict[str, _SeenNode] = {}
        #: Rules whose breaker was open in the last decision; ``None`` before the first one.
        self._open: set[str] | None = None
        nodes.add_handler(self._node_changed, reads=read_parts(annotations=(CARDS_ANNOTATION, SPARED_ANNOTATION)))

    def _node_changed(self, event: WatchEvent[Node]) -> None:
        meta = event.object.metadata
        if event.kind is EventKind.DELETED:
            self._nodes.pop(meta.name, None)
            self._wake.set()
            return
        cards = decode_cards(meta.annotations.get(CARDS_ANNOTATION, ""))
        seen = _SeenNode(meta.uid, cards, meta.annotations.get(SPARED_ANNOTATION, ""))
        if self._nodes.get(meta.name) != seen:
            self._nodes[meta.name] = seen
            self._wake.set()

    async def run(self) -> None:
        """Decides and writes until cancelled."""
        self._wake.set()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                cards = {name: node.cards for name, node in self._nodes.items()}
                plan = self._recorders.call("breaker", plan_breaker, cards, self._limits)
                self._show(plan)
                if await self._write(plan):
                    self._backoff.reset()
                    await self._clock.sleep(SETTLE)
                else:
                    self._wake.set()
                    await self._clock.sleep(self._backoff.next())
        finally:
            self._metrics.show_breaker(None, {})

    def _show(self, plan: BreakerPlan) -> None:
        counts: dict[tuple[str, str], int] = {}
        for each in sorted(plan.rules, key=lambda each: (-each.spared, -each.taken, each.rule))[:BREAKER_RULES]:
            counts[each.rule, "taken"], counts[each.rule, "spared"] = each.taken, each.spared
        self._metrics.show_breaker(plan.bound, counts)
        found = {each.rule: each for each in plan.rules if each.spared}
        if self._open is None:  # a former leader has reported these
            self._open = {fault.rule for node in self._nodes.values() for fault in decode_spared(node.spared)}
        for rule in sorted(set(found) - self._open)[:BREAKER_RULES]:
            self._events.record(self._about, "HealthBreakerOpened", _opened(found[rule], plan.bound), type="Warning")
        for rule in sorted(self._open - set(found))[:BREAKER_RULES]:
            text = f"{rule}: no more than {plan.bound} cards report it; all of them are away until they are well"
            self._events.record(self._about, "HealthBreakerClosed", text, type="Normal")
        self._open = set(found)

    async def _write(self, plan: BreakerPlan) -> bool:
        """Writes the annotation of each node that shows another one; returns false if a write failed."""
        complete = True
        for name, node in list(self._nodes.items()):
            faults = plan.spared.get(name, frozenset())
            desired = encode_spared(faults) if faults else ""
            if node.spared == desired:
                continue
            body = {"metadata": {"annotations": {SPARED_ANNOTATION: desired or None}}}
            try:
                await self._client.merge_patch(NODES, name, body, uid=node.uid)
            except NotFound:
                continue
            except (ApiError, ConnectionError, TimeoutError) as error:
                _log.warning("node %s: %s cannot be written, tried again: %s", name, SPARED_ANNOTATION, error)
                complete = False
        return complete


def _opened(count: RuleCount, bound: int) -> str:
    return (
        f"{count.rule}: {count.taken + count.spared} cards report it: {count.taken} not allocated, {count.spared} still"
        f" allocated, since one rule takes at most {bound} cards away; tessera health lists them"
    )
