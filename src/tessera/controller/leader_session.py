"""One term of leadership: informers, the slicer and its executor, health, default settings, and the satellites.

The informers list after the Lease was won, so they see everything that the previous leader wrote. The slicer takes in
events as they come and decides once it has absorbed all of them. Satellites share the informers of nodes and pods.
Between two events the process sleeps.
"""

import asyncio
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack
from dataclasses import replace

from tessera.api.instaslice import INSTASLICES
from tessera.api.names import INSTASLICE_NAMESPACE, PodUid
from tessera.controller.base import PREFERENCE_PRICES, ControllerMetrics
from tessera.controller.cluster.filters import AVOIDANCE_SECONDS
from tessera.controller.defaults import DefaultSettings, exempt_add_ons
from tessera.controller.execution import SliceExecutor
from tessera.controller.fault_breaker import FaultBreaker
from tessera.controller.fault_evictions import FaultEvictions, RebootAnnotations, RepairSettings
from tessera.controller.informers import (
    ConstraintInformers,
    GateOwners,
    PodGroupInformer,
    PodOwners,
    QueueInformer,
    SliceInformers,
)
from tessera.controller.satellite import ControllerOptions, Term
from tessera.controller.silent_agents import SilentAgents
from tessera.controller.slicing.kinds import RequestKind
from tessera.controller.slicing.proposals import Proposer
from tessera.controller.slicing.slicer import KINDS, Slicer
from tessera.controller.slicing.state.events import RefusalTimedOut, TimePassed
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.eviction import Evictor
from tessera.kube.informer import Informer
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import NODES, PODS


class HandOvers:
    """The hand-overs under way. They are only in memory: a new leader does not know those that it did not begin.

    Args:
        observe: receives the seconds of each hand-over that ended.

    Attributes:
        since: by pod whose hand-over is under way, when it began.
    """

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self.since: dict[PodUid, float] = {}

    def update(self, state: SlicerState, now: float) -> None:
        """Notes hand-overs that began or ended in a decision; ``now`` is the time at which the decision began."""
        for uid in self.since.keys() - state.pods.handed_over:
            since, pod = self.since.pop(uid), state.cluster.pods.get(uid)
            if pod is not None and not pod.gated:
                self._observe(now - since)
        for uid in state.pods.handed_over:
            self.since.setdefault(uid, now)


#: Seconds after which a refused pod loses its slices. A node's kubelet publishes an agent's resources within 10 s, and
#: those of a restarted agent within half a minute.
REFUSAL_TIMEOUT = 60.0

#: Least seconds until a step that only time makes due: the calendar's clock may stand or go back.
_LEAST_PAUSE = 0.1


class RefusedPods:
    """Refused pods, and the time since when each is refused.

    The scheduler may refuse a pinned pod, and an agent may fail before a bound pod's containers start. A pod that is
    refused for too long loses its slices. The times are only in memory: a restarted controller counts from its start.

    """

    def __init__(self) -> None:
        self._since: dict[PodUid, float] = {}

    def update(self, refused: AbstractSet[PodUid], now: float) -> None:
        """Replaces the set of refused pods."""
        for uid in self._since.keys() - refused:
            del self._since[uid]
        for uid in refused:
            self._since.setdefault(uid, now)

    def next_expiry(self) -> float | None:
        """Time at which the first refused pod loses its slices; None if no pod is refused."""
        return min(self._since.values()) + REFUSAL_TIMEOUT if self._since else None

    def pop_expired(self, now: float) -> list[PodUid]:
        """Returns the pods whose time is over, and counts from now for a pod that stays refused."""
        found = [uid for uid, since in self._since.items() if since + REFUSAL_TIMEOUT <= now]
        for uid in found:
            self._since[uid] = now
        return found


async def decide_until_settled(slicer: Slicer, step: Callable[[], None]) -> None:
    """Calls ``step`` until the slicer has no more work.

    Between two steps the process does its other work: it renews the lease, receives events and sends writes.
    """
    while True:
        step()
        if not slicer.has_work:
            return
        await asyncio.sleep(0)


class LeaderSession:
    """One term of leadership; begins with an empty slicer and a LIST of every kind.

    Args:
        options: the controller's options.
        runtime: access to the cluster; ``may_act`` is True while this replica leads.
        metrics: the process's metrics.
        joins: the satellites of this process; each joins the term.
        kinds: make the kinds of requests that satellites add to the core's.
        proposers: make the proposers that they add.

    Attributes:
        silent_agents: the nodes whose agents should answer and do not.
    """

    def __init__(
        self,
        options: ControllerOptions,
        runtime: KubeRuntime,
        *,
        metrics: ControllerMetrics,
        joins: Sequence[Callable[[Term], None]] = (),
        kinds: Sequence[Callable[[SlicerState], RequestKind]] = (),
        proposers: Sequence[Callable[[SlicerState], Sequence[Proposer]]] = (),
    ) -> None:
        client, clock, rng = runtime.client.fence_writes(runtime.may_act), runtime.clock, runtime.rng
        runtime = replace(runtime, client=client)
        self._clock = clock
        self._metrics = metrics
        self._slicer = Slicer(
            options.reserve_after,
            preempts=options.preempt,
            moves=options.moves,
            preference_price=PREFERENCE_PRICES[options.preferences],
            kinds=(*KINDS, *kinds),
            proposers=proposers,
        )
        self._wake = asyncio.Event()
        self._pods = Informer(client, PODS, clock=clock, rng=rng)
        self._nodes = Informer(client, NODES, clock=clock, rng=rng)
        self._objects = Informer(client, INSTASLICES, namespace=INSTASLICE_NAMESPACE, clock=clock, rng=rng)
        self._events = EventRecorder(
            client, component="tessera-controller", instance=options.identity, clock=clock, rng=rng
        )
        self._executor = SliceExecutor(
            client,
            self._slicer,
            events=self._events,
            metrics=metrics,
            wake=self._wake.set,
            clock=clock,
            rng=rng,
        )

        self._refused = RefusedPods()
        self._hand_overs = HandOvers(metrics.hand_overs.observe)
        self._timer: asyncio.TimerHandle | None = None
        reach = runtime, self._slicer, self._wake.set
        self._constraints = ConstraintInformers(*reach)
        self._queues = QueueInformer(*reach)
        self._gate_owners = GateOwners(*reach)
        self._pod_groups = PodGroupInformer(*reach)
        self._breaker = FaultBreaker(
            client,
            nodes=self._nodes,
            events=self._events,
            metrics=metrics,
            limits=options.breaker,
            namespace=options.namespace,
            clock=clock,
            rng=rng,
            recorders=runtime.recorders,
        )
        self.silent_agents = SilentAgents(
            client, nodes=self._nodes, pods=self._pods, objects=self._objects, clock=clock
        )
        self._repairs = RepairSettings(client, namespace=options.namespace, clock=clock, rng=rng)
        self._reboot_annotations = RebootAnnotations(client, self._repairs, clock, nodes=self._nodes)
        self._fault_evictions = FaultEvictions(
            Evictor(client),
            nodes=self._nodes,
            pods=self._pods,
            events=self._events,
            metrics=metrics,
            settings=self._repairs,
            namespace=options.namespace,
            clock=clock,
        )
        self._runtime, self._namespace = runtime, options.namespace
        self._defaults = DefaultSettings(runtime, namespace=options.namespace)
        self._joins = joins
        self._term = Term(
            runtime=runtime,
            namespace=options.namespace,
            slicer=self._slicer,
            pods=self._pods,
            nodes=self._nodes,
            events=self._events,
            wake=self._wake.set,
        )
        self._pod_owners = PodOwners(*reach, self._term.owner_readers)

    async def run(self, on_started: Callable[[Slicer], None]) -> None:
        """Decides and writes until cancelled; calls ``on_started`` once everything is listed."""
        self._slicer.handle(TimePassed(self._clock.monotonic(), self._clock.now()))  # ages begin by it
        SliceInformers(self._slicer, self._wake.set).follow(self._pods, self._nodes, self._objects)
        informers = (self._pods, self._nodes, self._objects)
        async with AsyncExitStack() as stack:
            stack.callback(self._executor.stop)
            stack.callback(self._stop_waiting)
            stack.enter_context(self._term.at_end)
            for join in self._joins:
                join(self._term)
            group = await stack.enter_async_context(asyncio.TaskGroup())
            for informer in informers:
                group.create_task(informer.run())
            group.create_task(self._events.run())
            self._start_satellites(group, at_once=True)
            group.create_task(self._constraints.run(), name="claims and namespaces")
            group.create_task(self._queues.run(), name="queues")
            group.create_task(self._pod_groups.run(), name="PodGroups")
            group.create_task(self._defaults.run(), name="default settings")
            group.create_task(exempt_add_ons(self._runtime, namespace=self._namespace), name="exempt namespaces")
            for informer in informers:
                await informer.wait_synced()
            await self._constraints.wait_synced()
            await self._queues.wait_synced()
            for task in self._term.tasks:
                if task.wait_listed is not None:
                    await task.wait_listed()
            await self._gate_owners.look()
            group.create_task(self._gate_owners.run(), name="owners of gates")
            group.create_task(self._pod_owners.run(), name="owners of pods")
            group.create_task(self._breaker.run(), name="health breaker")
            group.create_task(self.silent_agents.run(), name="silent agents")
            group.create_task(self._repairs.run(), name="settings of repairs")
            group.create_task(self._reboot_annotations.run(), name="annotations for reboots")
            group.create_task(self._fault_evictions.run(), name="evictions from faulty cards")
            self._start_satellites(group, at_once=False)
            on_started(self._slicer)
            group.create_task(self._decide(group), name="decisions")

    async def _decide(self, group: asyncio.TaskGroup) -> None:
        """Decides whenever something has changed, until cancelled."""
        self._wake.set()
        while True:
            await self._wake.wait()
            self._wake.clear()
            await decide_until_settled(self._slicer, lambda: self._step(group))

    def _start_satellites(self, group: asyncio.TaskGroup, *, at_once: bool) -> None:
        for task in self._term.tasks:
            if task.at_once is at_once:
                group.create_task(task.run(), name=task.name)

    def _step(self, group: asyncio.TaskGroup) -> None:
        """Runs one decision of the slicer, and starts the due writes."""
        before, began = self._slicer.settlement.decisions, self._clock.monotonic()
        self._slicer.handle(TimePassed(began, self._clock.now()))
        self._slicer.decide()
        if self._slicer.settlement.decisions > before:
            self._metrics.decisions.inc(self._slicer.settlement.decisions - before)
            self._metrics.decision_seconds.observe(self._clock.monotonic() - began)
        if self._hand_overs.since or self._slicer.state.pods.handed_over:
            self._hand_overs.update(self._slicer.state, began)
        self._reclaim_slices()
        for event in self._term.after_step:
            event.set()
        state, asks = self._slicer.state, any(each.asks for each in self._slicer.proposers)
        if state.ages.unknown_owners or state.reservations or asks:  # kept slots are reservations
            self._pod_owners.look()
        for event in self._term.asked if asks else ():
            event.set()
        for instruction in self._slicer.pop_writes():
            self._executor.start(instruction, group)

    def _reclaim_slices(self) -> None:
        """Takes slices back from pods that the scheduler refuses for too long, and sets the time of the next step."""
        now = self._clock.monotonic()
        self._refused.update(self._slicer.state.pods.cannot_start, now)
        for uid in self._refused.pop_expired(now):
            self._slicer.handle(RefusalTimedOut(uid, now + AVOIDANCE_SECONDS))
        self._stop_waiting()
        due = self._slicer.next_due
        times = [
            when
            for when in (
                self._refused.next_expiry(),
                self._slicer.state.avoidance.next_expiry() if self._slicer.state.avoidance.refusals else None,
                None if due is None else now + max(_LEAST_PAUSE, due - self._clock.now()),
            )
            if when is not None
        ]
        if times:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, min(times) - now), self._wake.set)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
