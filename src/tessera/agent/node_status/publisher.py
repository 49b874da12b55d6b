"""Publishes the state of the node's cards on the Node: labels, annotations, conditions and Events.

Rules:

1. Server-side apply under one field manager: a write that no longer names a field removes it. The agent takes over
   labels that another tool wrote under the same names (NVIDIA's feature discovery). It never writes labels by which
   people ask for something.
2. One write for metadata and one for conditions, and only if the state differs from the last write. Changes that come
   together are written together.
3. If another writer changes these fields on the Node, the agent writes them again, but at most once in
   :data:`REPAIR_PAUSE`: two tools that disagree must not keep an API server busy. The same pause applies while the
   watch has not shown the agent's own write.
4. Every write names the Node's UID. So it never creates a Node, and never writes the state of a former Node on one
   that was registered anew.
5. An Event reports each change of a condition. A Node that comes up healthy gets no Event: a thousand nodes would cause
   thousands of Events that nobody reads.
6. No failure here may end the agent: a failed write is tried again, with growing pauses.

Other parts provide the state; nothing here decides it.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from tessera.agent.base.node_objects import (
    NodeCondition,
    NodeSource,
    bound_messages,
    conditions_manifest,
    read_conditions,
)
from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.base.wake_ups import Fact
from tessera.agent.node_status.node_facts import MachineFacts, NodeFacts, NodeMetadata, is_part
from tessera.api.nodes.node_marks import HEALTH, is_marked_silent
from tessera.clock import rfc3339
from tessera.kube.errors import ApiError, Forbidden
from tessera.kube.event_recorder import make_reference
from tessera.kube.resources import NODES, Node
from tessera.kube.retries import Backoff

_log = logging.getLogger(__name__)

#: Seconds in which changes are collected before one write.
SETTLE = 0.02
#: Seconds after a write before it is repeated because the Node shows other values.
REPAIR_PAUSE = 30.0
#: What the labels, annotations and conditions depend on.
_FACTS = Fact.NODE | Fact.CARDS | Fact.OWNERS | Fact.HEALTH | Fact.LAYOUT | Fact.MPS
_FACTS |= Fact.OFFER | Fact.ENTRIES | Fact.DESIRED_PROFILE


class _Written(msgspec.Struct, frozen=True):
    """The last applied value, and its time on the monotonic clock."""

    value: object
    at: float


class NodeStatusPublisher:
    """Keeps the Node's labels, annotation and conditions up to date.

    Args:
        runtime: the API server, whose field manager owns the written fields; the Node as last seen.
        facts: the facts behind labels and annotations; ``None`` while unknown, and then they stay as they are.
        conditions: all conditions of the agent; ``None`` while unknown, and then they stay as they are.
        machine: product name and host driver of the node's machine.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        *,
        facts: Callable[[], NodeFacts | None],
        conditions: Callable[[], Sequence[NodeCondition] | None],
        machine: MachineFacts,
    ) -> None:
        self._client = runtime.client
        self._name = runtime.mirror.node_name
        self._node: NodeSource = runtime.mirror
        self._facts = facts
        self._conditions = conditions
        self._machine = machine
        self._events = runtime.events
        self._changes = runtime.changes.about(_FACTS)
        self._clock = runtime.clock
        self._backoff = Backoff(runtime.rng)
        #: Seconds since 1970 at which this agent began to publish.
        self._began = int(runtime.clock.now())
        #: True while the API server refuses the agent's writes; a refusal is logged once.
        self._forbidden = False
        #: The last facts, and the metadata built from them; ``None`` instead of metadata that cannot be built.
        self._built: tuple[NodeFacts, NodeMetadata | None] | None = None
        self._reset("")

    def _reset(self, uid: str) -> None:
        """Forgets all writes; from now on the Node of this UID is written."""
        self._uid = uid
        #: The last writes; ``None`` before the first one to this Node.
        self._written_metadata: _Written | None = None
        self._written_conditions: _Written | None = None
        #: By type, the conditions of which Events were recorded; ``None`` until the Node's own were taken over.
        self._reported: dict[str, NodeCondition] | None = None
        #: By type, the status of a condition and the time of its last transition.
        self._since: dict[str, tuple[str, str]] = {}

    async def run(self) -> None:
        """Publishes until cancelled."""
        while True:
            await self._clock.sleep(SETTLE)
            count = self._changes.count
            node = self._node.node()
            recheck: float | None = None
            if node is not None:
                recheck, error = await self._publish(node)
                if error is not None:
                    pause = self._backoff.next()
                    self._log_error(error, pause)
                    await self._clock.sleep(pause)
                    continue
                self._backoff.reset()
                self._forbidden = False
            await self._changes.wait(count, recheck)

    async def _publish(self, node: Node) -> tuple[float | None, Exception | None]:
        """Makes the writes that are due; returns the seconds until the next one, and the error of a failed write."""
        if node.metadata.uid != self._uid:
            self._reset(node.metadata.uid)
        pauses: list[float] = []
        failure: Exception | None = None
        for write in (self._write_metadata, self._write_conditions):
            try:
                pause = await write(node)
            except (ApiError, ConnectionError, TimeoutError) as error:
                failure = error
            else:
                pauses += [] if pause is None else [pause]
        return min(pauses, default=None), failure

    def _log_error(self, error: Exception, pause: float) -> None:
        """Logs that a write failed, and the pause before the next attempt; a refusal only once."""
        if not isinstance(error, Forbidden):
            text = "node %s: labels and conditions cannot be written, next attempt in %.1f s: %s"
            _log.warning(text, self._name, pause, error)
        elif not self._forbidden:
            self._forbidden = True
            hint = "grant the agent patch on nodes and on nodes/status"
            _log.warning("node %s: no right to write labels and conditions, %s: %s", self._name, hint, error)

    # Metadata ---------------------------------------------------------------------------------------------------

    async def _write_metadata(self, node: Node) -> float | None:
        """Writes the metadata if a write is due; returns the seconds until the next one, ``None`` for none."""
        desired = self._metadata()
        if desired is None:
            return None
        pause = self._seconds_until_write(self._written_metadata, desired, shown=desired.is_shown(node))
        if pause != 0:
            return pause
        await self._apply(node, {"labels": desired.labels, "annotations": desired.annotations})
        self._written_metadata = _Written(desired, self._clock.monotonic())
        return None

    def _metadata(self) -> NodeMetadata | None:
        """The metadata to publish; ``None`` while a fact is unknown. Computed only when a fact has changed."""
        facts = self._facts()
        if facts is None:
            return None
        if self._built is None or self._built[0] != facts:
            try:
                self._built = (facts, facts.metadata(self._machine, self._began))
            except ValueError as error:
                # The metadata on the Node stays: pods would move if labels vanished.
                self._built = (facts, None)
                _log.warning("node %s keeps its labels and offers as they were: %s", self._name, error)
        return self._built[1]

    # Conditions -------------------------------------------------------------------------------------------------

    async def _write_conditions(self, node: Node) -> float | None:
        """Writes the conditions if a write is due; returns the seconds until the next one, ``None`` for none."""
        conditions = self._conditions()
        if conditions is None:
            return None
        desired, shown = bound_messages(conditions), read_conditions(node.status.conditions)
        self._record_changes(node, desired, shown)
        pause = self._seconds_until_write(self._written_conditions, desired, shown=is_part(desired, shown))
        if pause != 0:
            return pause
        # Those that the controller marked while this agent was silent begin anew.
        self._since |= {
            each.type: (each.status, each.last_transition_time or "")
            for each in node.status.conditions
            if each.type in self._since and is_marked_silent(each)
        }
        listed = conditions_manifest(desired.values(), self._since, rfc3339(self._clock.now()))
        await self._apply(node, {}, {"conditions": listed})
        self._written_conditions = _Written(desired, self._clock.monotonic())
        return None

    def _record_changes(
        self, node: Node, desired: Mapping[str, NodeCondition], shown: Mapping[str, NodeCondition]
    ) -> None:
        """Records an Event for each condition that differs from the reported one.

        Not for the health: each change of a card has an Event of its own (:mod:`tessera.agent.health.card_health`).
        """
        reported = self._adopt_conditions(node, desired, shown) if self._reported is None else self._reported
        about = make_reference(NODES, self._name, uid=node.metadata.uid)
        for each in desired.values():
            if each.type != HEALTH and reported.get(each.type) != each:
                kind: Literal["Normal", "Warning"] = "Warning" if each.status == "False" else "Normal"
                self._events.record(about, each.reason, each.message, type=kind)
        self._reported = dict(desired)

    def _adopt_conditions(
        self, node: Node, desired: Mapping[str, NodeCondition], shown: Mapping[str, NodeCondition]
    ) -> Mapping[str, NodeCondition]:
        """Takes over the conditions that a former agent left on the Node; returns those that need no Event."""
        self._written_conditions = _Written(shown, self._clock.monotonic())
        self._since = {
            each.type: (each.status, each.last_transition_time)
            for each in node.status.conditions
            if each.type in shown and each.last_transition_time is not None
        }
        return {name: each for name, each in desired.items() if each.status == "True"} | dict(shown)

    # Writing ----------------------------------------------------------------------------------------------------

    def _seconds_until_write(self, written: _Written | None, desired: object, *, shown: bool) -> float | None:
        """Seconds until the write is due: 0 for now, ``None`` if it is not due while nothing changes.

        Args:
            written: the last write.
            desired: the value to write.
            shown: true if the Node shows that value.
        """
        if written is None or written.value != desired:
            return 0.0
        if shown:
            return None
        return max(0.0, written.at + REPAIR_PAUSE - self._clock.monotonic())

    async def _apply(self, node: Node, metadata: Mapping[str, Any], status: Mapping[str, Any] | None = None) -> None:
        body: dict[str, Any] = {"metadata": {"uid": node.metadata.uid, **metadata}}
        if status is None:
            await self._client.apply(NODES, self._name, body)
        else:
            await self._client.apply(NODES, self._name, body | {"status": status}, subresource="status")
