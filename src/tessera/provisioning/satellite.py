"""Provisioning as a satellite of the controller: observations go to the tracker, and its records are written.

Three kinds of writes have their own pace: startup taints and conditions at once, since pods wait for them; a node's
annotation after its changes were gathered for a second; the history a few seconds later. Any of them may be lost: the
tracker starts again from the objects.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tessera.api.names import OWN_DOMAIN
from tessera.api.nodes.node_marks import PROVISIONED
from tessera.clock import until_set
from tessera.controller.satellite import Process, Task, Term
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.informer import EventKind, Informer, OptionalKind, WatchEvent, read_parts
from tessera.kube.leader_election import KubeRuntime
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
from tessera.provisioning.recording import HistoryStore, NodeAnnotator, ProvisioningMetrics, WorkloadRecorder
from tessera.provisioning.replacement import Replacer
from tessera.provisioning.startup_deadline import ProvisioningOptions
from tessera.provisioning.startup_taints import StartupController
from tessera.provisioning.timestamps import parse_time, read_machine, read_node, read_pod
from tessera.provisioning.tracker import SaveRecord, Tracker

#: Reads the Node of a node that came up.
_read_settled = read_parts("spec", "status.conditions", annotations=(OWN_DOMAIN,))


class Provisioning:
    """Follows all starting nodes, removes startup taints and writes records.

    Args:
        runtime: see :class:`~tessera.kube.leader_election.KubeRuntime`.
        nodes: all nodes; run by the caller.
        pods: all pods; run by the caller.
        events: writes events about nodes.
        metrics: the metrics; made once in a process, since a registry takes a metric only once.
        options: see :class:`~tessera.provisioning.startup_deadline.ProvisioningOptions`.

    Attributes:
        tracker: the records of all nodes.
    """

    def __init__(
        self,
        runtime: KubeRuntime,
        *,
        nodes: Informer[Node],
        pods: Informer[Pod],
        events: EventRecorder,
        metrics: ProvisioningMetrics,
        options: ProvisioningOptions,
    ) -> None:
        client, clock, rng = runtime.client, runtime.clock, runtime.rng
        self._metrics = metrics
        self.tracker = Tracker()
        self._runtime = runtime
        self._clock = clock
        self._nodes = nodes
        self._pods = pods
        self._events = events
        self._options = options
        #: True once all existing objects were observed. Only then does an observation date a change.
        self._live = False
        #: Set while a round is due.
        self._woken = asyncio.Event()
        #: Names of nodes with an observation since the last round.
        self._changed: set[str] = set()
        self._store = HistoryStore(
            runtime,
            namespace=options.namespace,
            most=options.records,
            events=events,
        )
        self._annotator = NodeAnnotator(runtime, tracker=self.tracker, metrics=metrics)
        self._workload_recorder = WorkloadRecorder(client, store=self._store, metrics=metrics)
        self._machines = (
            OptionalKind(
                client, CAPI_MACHINES, clock=clock, rng=rng, on_event=partial(self._on_machine, CAPI_MACHINES)
            ),
            OptionalKind(
                client, OPENSHIFT_MACHINES, clock=clock, rng=rng, on_event=partial(self._on_machine, OPENSHIFT_MACHINES)
            ),
            OptionalKind(client, NODECLAIMS, clock=clock, rng=rng, on_event=partial(self._on_machine, NODECLAIMS)),
        )

    async def run(self) -> None:
        """Observes and writes until cancelled."""
        await self._nodes.wait_synced()
        await self._pods.wait_synced()
        await self._store.load()
        self.tracker.skip_workloads(each.uid for each in self._store.history.workloads.values())
        startup = self._startup_controller()
        scale_ups = Informer(
            self._runtime.client,
            EVENTS,
            clock=self._clock,
            rng=self._runtime.rng,
            field_selector="reason=TriggeredScaleUp",
        )
        scale_ups.add_handler(self._on_scale_up)
        async with asyncio.TaskGroup() as group:
            group.create_task(scale_ups.run())
            await scale_ups.reflector.attempted.wait()  # an autoscaler's event about a pod must precede the pod
            # Pods before nodes: if no pod brings a node its driver, the host has it.
            self._pods.add_handler(self._on_pod)
            self._nodes.add_handler(lambda event: self._on_node(event, startup))
            self._live = True
            followed = (each.run() for each in self._machines)
            for part in (*followed, self._store.run(), self._annotator.run(), self._workload_recorder.run()):
                group.create_task(part)
            await self._check_nodes(startup)

    def _startup_controller(self) -> StartupController:
        replacer = Replacer(
            self._runtime,
            pods=self._pods.cache,
            tracker=self.tracker,
            store=self._store,
            served=self._served_kind,
        )
        return StartupController(
            self._runtime,
            nodes=self._nodes.cache,
            tracker=self.tracker,
            store=self._store,
            replacer=replacer,
            events=self._events,
            metrics=self._metrics,
            options=self._options,
        )

    def _served_kind(self, resource: Resource[Machine]) -> Resource[Machine]:
        """A kind of machine, at the version that Tessera reads."""
        return next((each.resource for each in self._machines if each.resource.label == resource.label), resource)

    # Observations

    def _on_node(self, event: WatchEvent[Node], startup: StartupController) -> None:
        meta = event.object.metadata
        if event.kind is EventKind.DELETED:
            self.tracker.remove_node(meta.name, self._clock.now())
            startup.remove_node(meta.name, meta.uid)
        elif self._is_settled(event):
            return
        else:
            self.tracker.observe_node(read_node(event.object), self._clock.now(), live=self._live)
        self._wake(meta.name)

    def _is_settled(self, event: WatchEvent[Node]) -> bool:
        """True for a change of a node that came up that concerns neither its record nor its startup taints."""
        before, node = event.old, event.object
        if before is None or self.tracker.usable.get(node.metadata.name) != node.metadata.uid:
            return False
        shown = node.status.condition(PROVISIONED)
        return (
            shown is not None
            and shown.status == "True"
            and not any(each.key in self._options.startup_taints for each in node.spec.taints)
            and _read_settled(before) == _read_settled(node)
        )

    def _on_pod(self, event: WatchEvent[Pod]) -> None:
        if event.kind is EventKind.DELETED:
            self.tracker.remove_pod(event.object.metadata.uid)
            return
        found = read_pod(event.object)
        if found is not None:
            self.tracker.observe_pod(found, self._clock.now())
            if found.node in self.tracker.changed:
                self._wake(found.node)
            else:
                self._save()

    def _on_machine(self, resource: Resource[Machine], event: WatchEvent[Machine]) -> None:
        if event.kind is EventKind.DELETED:
            self.tracker.remove_machine(event.object.metadata.uid)
        else:
            self.tracker.observe_machine(read_machine(event.object, resource))
        self._wake("")

    def _on_scale_up(self, event: WatchEvent[CoreEvent]) -> None:
        scale_up = event.object
        if event.kind is EventKind.DELETED:
            self.tracker.remove_scale_up(scale_up.involved_object.uid)
            return
        at = (
            parse_time(scale_up.first_timestamp)
            or parse_time(scale_up.event_time)
            or parse_time(scale_up.metadata.creation_timestamp)
        )
        if at is not None:
            self.tracker.observe_scale_up(scale_up.involved_object.uid, at)

    def _wake(self, node: str) -> None:
        if node:
            self._changed.add(node)
        self._woken.set()

    # Writes

    async def _check_nodes(self, startup: StartupController) -> None:
        while True:
            await self._wait(startup.next_due())
            self._woken.clear()
            changed, self._changed = self._changed, set()
            self._save()
            self._annotator.wake()
            self._metrics.set_nodes_in_progress(len(self.tracker.records) - len(self.tracker.usable))
            await startup.check_nodes(changed)

    async def _wait(self, due: float | None) -> None:
        """Waits for an observation, or until ``due``."""
        await until_set(self._woken, None if due is None else max(0.0, due - self._clock.now()))

    def _save(self) -> None:
        """Puts the tracker's outputs into the history."""
        history = self._store.history
        for found in self.tracker.pop_saves():
            if not isinstance(found, SaveRecord):
                started = self._workload_recorder.started
                if started.full():  # many pods start at once, or no answer about a pull comes: the oldest goes without
                    started.get_nowait()
                started.put_nowait(found.record)
                continue
            before = history.nodes.get(found.record.uid)
            if history.nodes.put(found.record):
                self._metrics.observe_record(found.record, before)
                self._store.request_write()


@dataclass(frozen=True, kw_only=True)
class ProvisioningSatellite:
    """Follows each new node until its cards can be used.

    Attributes:
        options: see :class:`~tessera.provisioning.startup_deadline.ProvisioningOptions`.
    """

    options: ProvisioningOptions = field(default_factory=ProvisioningOptions)

    def open(self, process: Process) -> Callable[[Term], None]:
        """See :class:`~tessera.controller.satellite.Satellite`."""
        metrics = ProvisioningMetrics(process.registry)

        def join(term: Term) -> None:
            provisioning = Provisioning(
                term.runtime,
                nodes=term.nodes,
                pods=term.pods,
                events=term.events,
                metrics=metrics,
                options=self.options,
            )
            term.tasks.append(Task(name="provisioning", run=provisioning.run, at_once=True))

        return join
