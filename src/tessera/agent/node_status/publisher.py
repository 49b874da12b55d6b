"""Publishes the state of the node's cards on the Node: labels, the annotation of offers, conditions and Events.

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
import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from tessera.agent.base.change_notifier import ChangeNotifier
from tessera.agent.base.node_conditions import NodeCondition, bound_messages, conditions_manifest, read_conditions
from tessera.agent.base.node_objects import NodeSource
from tessera.agent.inventory.gpu_inventory import GpuInventory
from tessera.agent.node_status.label_facts import SharingFacts, collect_label_facts
from tessera.agent.node_status.labels import VgpuFacts, node_labels
from tessera.agent.node_status.offers import node_offers
from tessera.api.names import MIG_CONFIG_STATE_LABEL
from tessera.api.nodes.offers import OFFERS_ANNOTATION, encode_offers
from tessera.clock import Clock, rfc3339
from tessera.kube.backoff import Backoff
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError, Forbidden
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.resources import NODES, Node

_log = logging.getLogger(__name__)

#: Seconds in which changes are collected before one write.
SETTLE = 0.02
#: Seconds after a write before it is repeated because the Node shows other values.
REPAIR_PAUSE = 30.0


class Metadata(msgspec.Struct, frozen=True):
    """Labels and annotations that the agent writes on the Node."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    def stands_on(self, node: Node) -> bool:
        """True if the Node shows all of it."""
        shown = node.metadata
        return _within(self.labels, shown.labels) and _within(self.annotations, shown.annotations)


class _Facts(msgspec.Struct, frozen=True):
    """All facts behind the metadata."""

    stock: GpuInventory
    sharing: SharingFacts
    on_demand: frozenset[str]
    leaving: frozenset[str]
    mig_state: str

    def metadata(self, machine: str | None, vgpu: VgpuFacts | None, began: int) -> Metadata:
        """Builds the metadata from the facts.

        Raises:
            ValueError: a fact cannot be read, or the metadata is too long.
        """
        facts = collect_label_facts(
            self.stock,
            self.sharing,
            on_demand=self.on_demand,
            machine=machine,
            timestamp=began,
            vgpu=vgpu,
        )
        offers = node_offers(self.stock, self.sharing.offer, on_demand=self.on_demand - self.leaving)
        state = {MIG_CONFIG_STATE_LABEL: self.mig_state} if self.mig_state else {}
        return Metadata(node_labels(facts) | state, {OFFERS_ANNOTATION: encode_offers(offers)})


class _Written(msgspec.Struct, frozen=True):
    """The last applied value, and its time on the monotonic clock."""

    value: object
    at: float


class NodeStatusSource(Protocol):
    """The facts to publish; see :class:`tessera.agent.node_status.report.NodeReport`."""

    @property
    def inventory(self) -> GpuInventory:
        """The GPUs as last read."""
        ...

    @property
    def sharing(self) -> SharingFacts | None:
        """Sharing on the static GPUs; ``None`` while unknown, and then labels and annotation stay as they are."""
        ...

    @property
    def on_demand(self) -> frozenset[str]:
        """UUIDs of the GPUs that are cut on demand."""
        ...

    @property
    def leaving(self) -> frozenset[str]:
        """UUIDs of the on-demand GPUs that give no further slice because the static side is to get them."""
        ...

    @property
    def mig_state(self) -> str:
        """Value of ``nvidia.com/mig.config.state``; empty for no such label."""
        ...

    @property
    def conditions(self) -> Sequence[NodeCondition] | None:
        """All conditions of the agent; ``None`` while unknown, and then they stay as they are."""
        ...


class MachineFacts(msgspec.Struct, frozen=True):
    """The machine: its product name (``None`` if unreadable), and the host's driver where its GPUs are vGPUs."""

    product: str | None = None
    vgpu: VgpuFacts | None = None


class NodeStatusPublisher:
    """Keeps the Node's labels, annotation and conditions up to date.

    Args:
        client: the API server; its field manager owns the written fields.
        node: the Node as last seen.
        source: the facts to publish.
        machine: product name and host driver of the node's machine.
        events: records changes of conditions.
        changes: announces that a fact may have changed.
        clock: the time.
        rng: for jitter.
    """

    def __init__(
        self,
        client: Client,
        *,
        node: NodeSource,
        source: NodeStatusSource,
        machine: MachineFacts,
        events: EventRecorder,
        changes: ChangeNotifier,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._client = client
        self._name = node.node_name
        self._node = node
        self._source = source
        self._machine = machine
        self._events = events
        self._changes = changes
        self._clock = clock
        self._backoff = Backoff(rng)
        self._began = int(clock.now())
        self._refused = False
        self._made: tuple[_Facts, Metadata | None] | None = None
        self._forget("")

    async def run(self) -> None:
        """Publishes until cancelled."""
        while True:
            await self._clock.sleep(SETTLE)
            seen = self._changes.count
            node = self._node.node()
            waits: float | None = None
            if node is not None:
                waits, trouble = await self._tell(node)
                if trouble is not None:
                    await self._clock.sleep(self._troubled(trouble))
                    continue
                self._backoff.reset()
                self._refused = False
            await self._changes.wait(seen, waits)

    async def _tell(self, node: Node) -> tuple[float | None, Exception | None]:
        """Writes what is due; returns the seconds until the next look, and the error if a write failed."""
        if node.metadata.uid != self._uid:
            self._forget(node.metadata.uid)
        waits: list[float] = []
        trouble: Exception | None = None
        for write in (self._tell_metadata, self._tell_conditions):
            try:
                again = await write(node)
            except (ApiError, ConnectionError, TimeoutError) as error:
                trouble = error
            else:
                waits += [] if again is None else [again]
        return min(waits, default=None), trouble

    def _troubled(self, error: Exception) -> float:
        """Logs an error, a refusal only once; returns the pause before the next try."""
        pause = self._backoff.next()
        if not isinstance(error, Forbidden):
            _log.warning("node %s cannot be told of its cards, again in %.1f s: %s", self._name, pause, error)
        elif not self._refused:
            self._refused = True
            hint = "grant the agent patch on nodes and on nodes/status"
            _log.warning("node %s may not be told of its cards, %s: %s", self._name, hint, error)
        return pause

    def _forget(self, uid: str) -> None:
        """Forgets all writes to the Node; ``uid`` is the UID of the present one."""
        self._uid = uid
        self._metadata_written: _Written | None = None
        self._conditions_written: _Written | None = None
        self._told: dict[str, NodeCondition] | None = None
        self._since: dict[str, tuple[str, str]] = {}

    # Metadata ---------------------------------------------------------------------------------------------------

    async def _tell_metadata(self, node: Node) -> float | None:
        wanted = self._metadata()
        if wanted is None:
            return None
        due = self._due(self._metadata_written, wanted, stands=wanted.stands_on(node))
        if due == 0:
            await self._apply(node, {"labels": wanted.labels, "annotations": wanted.annotations})
            self._metadata_written = _Written(wanted, self._clock.monotonic())
            return None
        return due

    def _metadata(self) -> Metadata | None:
        """The metadata to publish; ``None`` while a fact is unknown. Computed only when a fact has changed."""
        facts = self._facts()
        if facts is not None and (self._made is None or self._made[0] != facts):
            try:
                self._made = (facts, facts.metadata(self._machine.product, self._machine.vgpu, self._began))
            except ValueError as error:
                # The metadata on the Node stays: pods would move if labels vanished.
                self._made = (facts, None)
                _log.warning("node %s keeps its labels and offers as they were: %s", self._name, error)
        return None if facts is None or self._made is None else self._made[1]

    def _facts(self) -> "_Facts | None":
        stock, sharing = self._source.inventory, self._source.sharing
        if sharing is None or not stock.driver_version:
            return None
        return _Facts(
            stock, sharing, frozenset(self._source.on_demand), frozenset(self._source.leaving), self._source.mig_state
        )

    # Conditions -------------------------------------------------------------------------------------------------

    async def _tell_conditions(self, node: Node) -> float | None:
        found = self._source.conditions
        if found is None:
            return None
        wanted, shown = bound_messages(found), read_conditions(node.status.conditions)
        if self._told is None:
            self._begin(node, wanted, shown)
        self._tell_events(node, wanted)
        due = self._due(self._conditions_written, wanted, stands=_within(wanted, shown))
        if due == 0:
            listed = conditions_manifest(wanted.values(), self._since, rfc3339(self._clock.now()))
            await self._apply(node, {}, {"conditions": listed})
            self._conditions_written = _Written(wanted, self._clock.monotonic())
            return None
        return due

    def _begin(self, node: Node, wanted: Mapping[str, NodeCondition], shown: Mapping[str, NodeCondition]) -> None:
        """Takes over the conditions that a former agent left on the Node."""
        well = {name: each for name, each in wanted.items() if each.status == "True"}
        self._told = {**well, **shown}
        self._conditions_written = _Written(shown, self._clock.monotonic())
        self._since = {
            each.type: (each.status, each.last_transition_time)
            for each in node.status.conditions
            if each.type in shown and each.last_transition_time is not None
        }

    def _tell_events(self, node: Node, wanted: Mapping[str, NodeCondition]) -> None:
        assert self._told is not None
        about = make_reference(NODES, self._name, uid=node.metadata.uid)
        for each in wanted.values():
            if self._told.get(each.type) != each:
                kind: Literal["Normal", "Warning"] = "Warning" if each.status == "False" else "Normal"
                self._events.record(about, each.reason, each.message, type=kind)
        self._told = dict(wanted)

    # Writing ----------------------------------------------------------------------------------------------------

    def _due(self, written: _Written | None, wanted: object, *, stands: bool) -> float | None:
        """Seconds until the write is due: 0 for now, ``None`` if it is not due while nothing changes."""
        if written is None or written.value != wanted:
            return 0.0
        if stands:
            return None
        return max(0.0, written.at + REPAIR_PAUSE - self._clock.monotonic())

    async def _apply(self, node: Node, metadata: Mapping[str, Any], status: Mapping[str, Any] | None = None) -> None:
        body: dict[str, Any] = {"metadata": {"uid": node.metadata.uid, **metadata}}
        if status is None:
            await self._client.apply(NODES, self._name, body)
        else:
            await self._client.apply(NODES, self._name, body | {"status": status}, subresource="status")


def _within(wanted: Mapping[str, object], shown: Mapping[str, object]) -> bool:
    return all(shown.get(name) == value for name, value in wanted.items())
