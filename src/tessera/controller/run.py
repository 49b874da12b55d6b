"""The controller process: election, mirrors of the cluster, the state machine, and its hands.

What is mirrored is listed after the lease was won, so that everything the leader before us wrote is seen. Observations
go to the machine as they come; deciding happens once all that has arrived is absorbed, and then everything that waits
is planned together. Between two observations the process sleeps.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack

from tessera.api.instaslice import INSTASLICES, Instaslice
from tessera.api.names import INSTASLICE_NAMESPACE, NodeName, PodUid
from tessera.clock import Clock
from tessera.controller.acting import Actor
from tessera.controller.facts import node_facts, pod_facts
from tessera.controller.http import serve_http
from tessera.controller.machine import Slicer
from tessera.controller.metrics import Metrics
from tessera.controller.options import ControllerOptions
from tessera.kube.cache import Event, EventKind
from tessera.kube.client import Client
from tessera.kube.events import EventRecorder
from tessera.kube.informer import Informer
from tessera.kube.lease import LeaderElector
from tessera.kube.resources import NODES, PODS, Node, Pod


async def run(options: ControllerOptions, client: Client, clock: Clock, *, rng: random.Random | None = None) -> None:
    """Runs one replica until cancelled. It may be killed at any moment and started again.

    Args:
        options: who and where.
        client: the API server; its identity needs what ``deploy/`` grants to the controller.
        clock: the time.
        rng: for jitter and the identity's random part; seeded in tests.

    Raises:
        ExceptionGroup: a part failed in a way that only a fresh start can mend.
    """
    await Controller(options, client, clock, rng=rng or random.Random()).run()


class Controller:
    """One replica.

    Attributes:
        metrics: what it counts.
        slicer: the state machine of the current time of leadership; None while another replica leads.
    """

    def __init__(self, options: ControllerOptions, client: Client, clock: Clock, *, rng: random.Random) -> None:
        self.metrics = Metrics()
        self.slicer: Slicer | None = None
        self._options = options
        self._client = client
        self._clock = clock
        self._rng = rng
        self._starting = "the election has not begun"
        self.metrics.watch(
            lambda: len(self.slicer.waiting) if self.slicer else 0,
            lambda: len(self.slicer.ledger) if self.slicer else 0,
        )

    async def run(self) -> None:
        """Takes part in the election and decides while it leads, until cancelled."""
        options = self._options
        async with asyncio.TaskGroup() as group:
            if options.http_port is not None:
                group.create_task(
                    serve_http(
                        options.http_address,
                        options.http_port,
                        self.metrics.registry,
                        lambda: self._starting,
                        options.on_listening,
                    )
                )
            self._starting = ""
            if options.leader_election:
                await self._elector().run(self._lead)
            else:
                await self._reign(lambda: True)

    def _elector(self) -> LeaderElector:
        self._election = LeaderElector(
            self._client,
            namespace=self._options.namespace,
            name=self._options.lease_name,
            identity=f"{self._options.identity}_{self._rng.getrandbits(32):08x}",
            clock=self._clock,
            rng=self._rng,
        )
        return self._election

    async def _lead(self) -> None:
        await self._reign(lambda: self._election.is_leader)

    async def _reign(self, may_act: Callable[[], bool]) -> None:
        self.metrics.leading(leads=True)
        if self._options.on_leading is not None:
            self._options.on_leading()
        try:
            reign = Reign(
                self._options, self._client, self._clock, metrics=self.metrics, may_act=may_act, rng=self._rng
            )
            await reign.run(self._begin)
        finally:
            self.slicer = None
            self.metrics.leading(leads=False)

    def _begin(self, slicer: Slicer) -> None:
        self.slicer = slicer


class Reign:
    """One time of leadership: begins with an empty machine and a LIST of everything."""

    def __init__(
        self,
        options: ControllerOptions,
        client: Client,
        clock: Clock,
        *,
        metrics: Metrics,
        may_act: Callable[[], bool],
        rng: random.Random,
    ) -> None:
        self._clock = clock
        self._metrics = metrics
        self._slicer = Slicer()
        self._stirred = asyncio.Event()
        self._pods = Informer(client, PODS, clock=clock, rng=rng)
        self._nodes = Informer(client, NODES, clock=clock, rng=rng)
        self._objects = Informer(client, INSTASLICES, namespace=INSTASLICE_NAMESPACE, clock=clock, rng=rng)
        self._events = EventRecorder(
            client, component="tessera-controller", instance=options.identity, clock=clock, rng=rng
        )
        self._actor = Actor(
            client,
            self._slicer,
            events=self._events,
            metrics=metrics,
            may_act=may_act,
            wake=self._stirred.set,
            rng=rng,
        )

    async def run(self, begun: Callable[[Slicer], None]) -> None:
        """Decides and writes until cancelled; ``begun`` is told once everything is listed."""
        self._pods.add_handler(self._pod_seen)
        self._nodes.add_handler(self._node_seen)
        self._objects.add_handler(self._object_seen)
        informers = (self._pods, self._nodes, self._objects)
        async with AsyncExitStack() as stack:
            stack.callback(self._actor.stop)
            group = await stack.enter_async_context(asyncio.TaskGroup())
            for informer in informers:
                group.create_task(informer.run())
            group.create_task(self._events.run())
            for informer in informers:
                await informer.wait_synced()
            begun(self._slicer)
            self._stirred.set()
            while True:
                await self._stirred.wait()
                self._stirred.clear()
                self._decide(group)

    def _decide(self, group: asyncio.TaskGroup) -> None:
        """Absorbs and plans until nothing new comes of it, and starts what is to be written."""
        while True:
            before, began = self._slicer.decisions, self._clock.monotonic()
            self._slicer.decide()
            if self._slicer.decisions > before:
                self._metrics.decided(self._slicer.decisions - before, self._clock.monotonic() - began)
            for instruction in self._slicer.take():
                self._actor.start(instruction, group)
            if not self._slicer.stirred:
                return

    def _pod_seen(self, event: Event[Pod]) -> None:
        if event.kind is EventKind.DELETED:
            self._slicer.lose_pod(PodUid(event.object.metadata.uid))
        else:
            self._slicer.see_pod(pod_facts(event.object))
        self._stirred.set()

    def _node_seen(self, event: Event[Node]) -> None:
        if event.kind is EventKind.DELETED:
            self._slicer.lose_node(NodeName(event.object.metadata.name))
        else:
            self._slicer.see_node(node_facts(event.object))
        self._stirred.set()

    def _object_seen(self, event: Event[Instaslice]) -> None:
        if event.kind is EventKind.DELETED:
            self._slicer.lose_object(NodeName(event.object.metadata.name))
        else:
            self._slicer.see_object(event.object)
        self._stirred.set()
