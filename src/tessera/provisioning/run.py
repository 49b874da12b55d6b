"""Provisioning as a part of the controller: what is seen goes to the tracker, what it finds is written.

Three kinds of writes, each with its own pace: startup taints and conditions at once, since pods wait for them; a node's
annotation after its changes have gathered for a second; the book of records a few seconds later. Everything that is
written can be lost at any moment: the tracker starts again from what objects say.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from tessera.clock import Clock
from tessera.kube.backoff import Backoff
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, Conflict, NotFound
from tessera.kube.events import EventRecorder
from tessera.kube.informer import Event, EventKind, Informer
from tessera.kube.resources import (
    CAPI_MACHINES,
    EVENTS,
    NODECLAIMS,
    NODES,
    OPENSHIFT_MACHINES,
    CoreEvent,
    Machine,
    Node,
    Pod,
    Resource,
)
from tessera.provisioning.gate import StartupGate
from tessera.provisioning.machines import request_of
from tessera.provisioning.metrics import ProvisioningMetrics
from tessera.provisioning.milestones import PROVISIONING_ANNOTATION, Step, WorkloadRecord
from tessera.provisioning.options import ProvisioningOptions
from tessera.provisioning.records import encode_record
from tessera.provisioning.replacing import Replacer
from tessera.provisioning.sightings import moment, node_sighting, pod_sighting
from tessera.provisioning.store import BookStore
from tessera.provisioning.tracker import Keep, Tracker
from tessera.provisioning.watching import Followed

_log = logging.getLogger(__name__)

#: Seconds in which changes of a record gather before the node is annotated.
SETTLE = 1.0
#: Pods whose image's arrival waits to be looked up; of more it stays unknown.
_LOOK_UPS = 200
#: Times in objects are whole seconds: a start can look this much earlier than the pull before it.
_ROUNDED = 1.0


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
        self._unwritten = asyncio.Event()
        self._changed: set[str] = set()
        self._look_ups: deque[WorkloadRecord] = deque(maxlen=_LOOK_UPS)
        self._looked = asyncio.Event()
        self._store = BookStore(
            client,
            clock,
            namespace=options.namespace,
            most=options.records,
            events=events,
            rng=rng,
            may_act=may_act,
        )
        self._machines = tuple(self._sources())

    def _sources(self) -> Iterator[Followed[Machine]]:
        client, clock, rng = self._client, self._clock, self._rng
        yield Followed(client, CAPI_MACHINES, clock=clock, rng=rng, on_event=self._machine_seen(CAPI_MACHINES))
        yield Followed(
            client, OPENSHIFT_MACHINES, clock=clock, rng=rng, on_event=self._machine_seen(OPENSHIFT_MACHINES)
        )
        yield Followed(client, NODECLAIMS, clock=clock, rng=rng, on_event=self._machine_seen(NODECLAIMS))

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
            for part in (*(each.run() for each in self._machines), self._store.run()):
                group.create_task(part)
            group.create_task(self._annotate())
            group.create_task(self._look_up())
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

    def _machine_seen(self, resource: Resource[Machine]) -> Callable[[Event[Machine]], None]:
        def seen(event: Event[Machine]) -> None:
            if event.kind is EventKind.DELETED:
                self.tracker.lose_request(event.object.metadata.uid)
            else:
                self.tracker.see_request(request_of(event.object, resource))
            self._stir("")

        return seen

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
            if self.tracker.changed:
                self._unwritten.set()
            self._metrics.under_way(sum(1 for each in self.tracker.records.values() if not each.usable))
            await gate.look(changed)

    async def _wait(self, due: float | None) -> None:
        """Until something was seen, or until ``due``."""
        pause = None if due is None else max(0.0, due - self._clock.now())
        try:
            async with asyncio.timeout(pause):
                await self._stirred.wait()
        except TimeoutError:
            return

    def _keep(self) -> None:
        """Puts into the book what is worth keeping."""
        book = self._store.book
        for found in self.tracker.take():
            if isinstance(found, Keep):
                before = book.nodes.get(found.record.uid)
                if book.nodes.put(found.record):
                    self._metrics.recorded(found.record, before)
                    self._store.changed()
            elif book.workloads.get(found.record.uid) is None:
                self._look_ups.append(found.record)
                self._looked.set()

    # The annotation

    async def _annotate(self) -> None:
        backoff = Backoff(self._rng)
        while True:
            await self._unwritten.wait()
            await self._clock.sleep(SETTLE)
            self._unwritten.clear()
            names, self.tracker.changed = self.tracker.changed, set()
            failed = {name for name in sorted(names) if not await self._annotate_one(name)}
            if failed:
                self.tracker.changed |= failed
                self._unwritten.set()
                await self._clock.sleep(backoff.next())
            else:
                backoff.reset()

    async def _annotate_one(self, name: str) -> bool:
        """Writes a node's record; whether there is nothing left to write."""
        record = self.tracker.records.get(name)
        if record is None:
            return True
        if not self._may_act():
            return False
        patch = {"metadata": {"annotations": {PROVISIONING_ANNOTATION: encode_record(record)}}}
        try:
            await self._client.merge_patch(NODES, name, patch, uid=record.uid)
        except (NotFound, Conflict):
            return True  # the node is gone, or another one
        except (ApiError, ConnectionError, TimeoutError) as error:
            self._metrics.failed("annotation")
            _log.info("node %s: its record cannot be written, it is tried again: %s", name, error)
            return False
        return True

    # Pods

    async def _look_up(self) -> None:
        """Keeps pods' records; where a node was made for the pod, with the moment when its images were there.

        Only kubelet's Events say that, and asking for those of one pod has a server look through all of a namespace.
        So it is done for the few pods whose pull is a part of a new node's way.
        """
        while True:
            await self._looked.wait()
            self._looked.clear()
            while self._look_ups:
                record = self._look_ups.popleft()
                if record.fresh:
                    record = await self._with_pull(record)
                if self._store.book.workloads.put(record):
                    self._metrics.started(record)
                    self._store.changed()

    async def _with_pull(self, record: WorkloadRecord) -> WorkloadRecord:
        fields = f"involvedObject.uid={record.uid},reason=Pulled"
        try:
            found = (await self._client.list(EVENTS, record.namespace, field_selector=fields)).items
        except (ApiError, ConnectionError, TimeoutError):
            return record
        times = [moment(each.first_timestamp) or moment(each.event_time) for each in found]
        started = record.at[Step.STARTED]
        before = [each for each in times if each is not None and each <= started + _ROUNDED]
        if not before:
            return record
        return msgspec.structs.replace(record, at={**record.at, Step.PULLED: min(max(before), started)})
