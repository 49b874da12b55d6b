"""Provisioning as a part of the controller: what is seen goes to the tracker, what it finds is written.

Three kinds of writes, each with its own pace: startup taints and conditions at once, since pods wait for them; a node's
annotation after its changes have gathered for a second; the book of records a few seconds later. Everything that is
written can be lost at any moment: the tracker starts again from what objects say.
"""

import asyncio
import random
from collections.abc import Callable
from functools import partial

from tessera.clock import Clock, until_set
from tessera.kube.client.client import Client
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.resources import (
    CAPI_MACHINES,
    EVENTS,
    NODECLAIMS,
    OPENSHIFT_MACHINES,
    CoreEvent,
    Machine,
    Node,
    Pod,
    Resource,
)
from tessera.kube.watch.informer import Event, EventKind, Informer
from tessera.provisioning.metrics import ProvisioningMetrics
from tessera.provisioning.options import ProvisioningOptions
from tessera.provisioning.recording.history_store import BookStore
from tessera.provisioning.recording.node_annotations import Annotating
from tessera.provisioning.recording.workload_records import Workloads
from tessera.provisioning.startup.replacer import Replacer
from tessera.provisioning.startup.startup_taints import StartupGate
from tessera.provisioning.tracking.machines import request_of
from tessera.provisioning.tracking.optional_kind import Followed
from tessera.provisioning.tracking.timestamps import moment, node_sighting, pod_sighting
from tessera.provisioning.tracking.tracker import Keep, Tracker


class Provisioning:
    """Follows all nodes on their way, and looks after their start.

    Args:
        client: the API server; needs what ``deploy/`` grants to the controller.
        clock: the time.
        nodes: all nodes; run by somebody else.
        pods: all pods; run by somebody else.
        events: tells about nodes.
        metrics: counts; made once a process, since a registry takes a metric once.
        options: see :class:`~tessera.provisioning.options.ProvisioningOptions`.
        rng: for jitter.
        may_act: whether this replica still leads; asked before each write.

    Attributes:
        tracker: what is known.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        *,
        nodes: Informer[Node],
        pods: Informer[Pod],
        events: EventRecorder,
        metrics: ProvisioningMetrics,
        options: ProvisioningOptions,
        rng: random.Random,
        may_act: Callable[[], bool],
    ) -> None:
        self._metrics = metrics
        self.tracker = Tracker()
        self._client = client
        self._clock = clock
        self._nodes = nodes
        self._pods = pods
        self._events = events
        self._options = options
        self._rng = rng
        self._may_act = may_act
        self._live = False
        self._stirred = asyncio.Event()
        self._changed: set[str] = set()
        self._store = BookStore(
            client,
            clock,
            namespace=options.namespace,
            most=options.records,
            events=events,
            rng=rng,
            may_act=may_act,
        )
        self._annotating = Annotating(client, clock, tracker=self.tracker, metrics=metrics, rng=rng, may_act=may_act)
        self._workloads = Workloads(client, store=self._store, metrics=metrics)
        seen = self._machine_seen
        self._machines = (
            Followed(client, CAPI_MACHINES, clock=clock, rng=rng, on_event=partial(seen, CAPI_MACHINES)),
            Followed(client, OPENSHIFT_MACHINES, clock=clock, rng=rng, on_event=partial(seen, OPENSHIFT_MACHINES)),
            Followed(client, NODECLAIMS, clock=clock, rng=rng, on_event=partial(seen, NODECLAIMS)),
        )

    async def run(self) -> None:
        """Follows and writes until cancelled."""
        await self._nodes.wait_synced()
        await self._pods.wait_synced()
        await self._store.load()
        gate = self._gate()
        scale_ups = Informer(
            self._client, EVENTS, clock=self._clock, rng=self._rng, field_selector="reason=TriggeredScaleUp"
        )
        scale_ups.add_handler(self._scale_up_seen)
        async with asyncio.TaskGroup() as group:
            group.create_task(scale_ups.run())
            await scale_ups.reflector.looked.wait()  # what an autoscaler said of a pod counts when the pod is seen
            # Pods before nodes: that there is none which brings a node its driver says that the host has it.
            self._pods.add_handler(self._pod_seen)
            self._nodes.add_handler(lambda event: self._node_seen(event, gate))
            self._live = True
            followed = (each.run() for each in self._machines)
            for part in (*followed, self._store.run(), self._annotating.run(), self._workloads.run()):
                group.create_task(part)
            await self._look_after(gate)

    def _gate(self) -> StartupGate:
        replacer = Replacer(
            self._client,
            self._clock,
            pods=self._pods.cache,
            tracker=self.tracker,
            store=self._store,
            served=self._served,
        )
        return StartupGate(
            self._client,
            self._clock,
            nodes=self._nodes.cache,
            tracker=self.tracker,
            store=self._store,
            replacer=replacer,
            events=self._events,
            metrics=self._metrics,
            options=self._options,
            rng=self._rng,
            may_act=self._may_act,
        )

    def _served(self, resource: Resource[Machine]) -> Resource[Machine]:
        """A kind of machine at the version that is read."""
        return next((each.resource for each in self._machines if each.resource.label == resource.label), resource)

    # What is seen

    def _node_seen(self, event: Event[Node], gate: StartupGate) -> None:
        meta = event.object.metadata
        if event.kind is EventKind.DELETED:
            self.tracker.lose_node(meta.name, self._clock.now())
            gate.forget(meta.name, meta.uid)
        else:
            self.tracker.see_node(node_sighting(event.object), self._clock.now(), live=self._live)
        self._stir(meta.name)

    def _pod_seen(self, event: Event[Pod]) -> None:
        if event.kind is EventKind.DELETED:
            self.tracker.lose_pod(event.object.metadata.uid)
            return
        found = pod_sighting(event.object)
        if found is not None:
            self.tracker.see_pod(found, self._clock.now())
            self._stir(found.node)

    def _machine_seen(self, resource: Resource[Machine], event: Event[Machine]) -> None:
        if event.kind is EventKind.DELETED:
            self.tracker.lose_request(event.object.metadata.uid)
        else:
            self.tracker.see_request(request_of(event.object, resource))
        self._stir("")

    def _scale_up_seen(self, event: Event[CoreEvent]) -> None:
        told = event.object
        if event.kind is EventKind.DELETED:
            self.tracker.lose_scale_up(told.involved_object.uid)
            return
        at = moment(told.first_timestamp) or moment(told.event_time) or moment(told.metadata.creation_timestamp)
        if at is not None:
            self.tracker.see_scale_up(told.involved_object.uid, at)

    def _stir(self, node: str) -> None:
        if node:
            self._changed.add(node)
        self._stirred.set()

    # What follows

    async def _look_after(self, gate: StartupGate) -> None:
        while True:
            await self._wait(gate.next_due())
            self._stirred.clear()
            changed, self._changed = self._changed, set()
            self._keep()
            self._annotating.look()
            self._metrics.under_way(sum(1 for each in self.tracker.records.values() if not each.usable))
            await gate.look(changed)

    async def _wait(self, due: float | None) -> None:
        """Until something was seen, or until ``due``."""
        await until_set(self._stirred, None if due is None else max(0.0, due - self._clock.now()))

    def _keep(self) -> None:
        """Puts into the book what is worth keeping."""
        book = self._store.book
        for found in self.tracker.take():
            if not isinstance(found, Keep):
                self._workloads.keep(found.record)
                continue
            before = book.nodes.get(found.record.uid)
            if book.nodes.put(found.record):
                self._metrics.recorded(found.record, before)
                self._store.changed()
