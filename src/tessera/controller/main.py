"""The controller process: election, HTTP endpoints, and one term of leadership after another.

Its metrics of the fleet and its queue (slots, slices, room by profile, fragmentation, quota, and waiting pods by
reason) are computed at each scrape from what the slicer holds in memory. Cards of the same state count as one, so the
cost grows with the number of different states and of waiting pods, not with the number of cards.

While the slicer takes in many changes by parts, nodes and pods are missing in its state. Then the figures of the last
scrape before that stay; a new leader shows none until it has caught up.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from typing import get_args

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tessera.access.page_reader import CONTROLLER_AUDIENCE
from tessera.access.reviewer import PageGuard, Reviewer
from tessera.api.names import QUOTA_RESOURCE
from tessera.api.nodes.silence import SilentNode
from tessera.clock import Clock, parse_time_or_zero
from tessera.controller.base import ControllerMetrics
from tessera.controller.leader_session import LeaderSession
from tessera.controller.satellite import ControllerOptions, Process, Term
from tessera.controller.silent_agents import SilenceCollector
from tessera.controller.slicing.kinds import RequestKind
from tessera.controller.slicing.proposals import Proposer
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.allocation import Allocation
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.kube.client import Client
from tessera.kube.leader_election import KubeRuntime, LeaderElector
from tessera.mig.geometry import free_slots, free_starts
from tessera.mig.names import parse_profile_name
from tessera.reasons.reason import Reason, Refusal
from tessera.replay.recorder import Recorders, serve_records
from tessera.serving.status_server import serve_status

#: Most namespaces with a series of their own in the controller's metrics of quota, those with the largest amounts. A
#: tenant may make namespaces; the others are one series, `other`.
NAMESPACES_SHOWN = 1_000
#: Most profiles with series of their own in the controller's metrics of slices, the most frequent ones. All models
#: together have some 50; records of nodes may name more, which are one series, `other`.
PROFILES_SHOWN = 100

#: Values of the label ``reason`` by class; ``not_decided`` for a pod that no decision has refused yet.
REASONS: Mapping[type[Reason | None], str] = {
    **{kind: kind.metric() for kind in get_args(Refusal)},
    type(None): "not_decided",
}
#: Label of what is beyond a limit, or has no valid name.
OTHER = "other"

_Family = GaugeMetricFamily | CounterMetricFamily
Families = Iterator[_Family]


class FleetCollector(Collector):
    """Shows the fleet of the leading replica; another replica shows nothing of it.

    Args:
        slicer: returns the state machine, None while another replica leads.
        clock: the time, for ages.
    """

    def __init__(self, slicer: Callable[[], Slicer | None], clock: Clock) -> None:
        self._slicer = slicer
        self._clock = clock
        #: The families of the last scrape at which this slicer had caught up.
        self._last: tuple[Slicer | None, Sequence[_Family]] = (None, ())

    def collect(self) -> Families:
        """Yields the families."""
        slicer = self._slicer()
        if slicer is not None and slicer.is_caught_up:
            self._last = (slicer, tuple(self._families(slicer)))
        elif self._last[0] is not slicer:
            self._last = (slicer, ())
        yield from self._last[1]

    def _families(self, slicer: Slicer) -> Families:
        count = len(slicer.state.allocations)
        yield GaugeMetricFamily("tessera_slices_promised", "Slices promised to pods, by pod.", count)
        yield from self._waiting(slicer.state)
        yield from _cards(slicer.state)
        yield from _slices(slicer.state)
        yield from _quota(slicer.state)
        yield from _counters(slicer)

    def _waiting(self, state: SlicerState) -> Iterator[GaugeMetricFamily]:
        waiting = GaugeMetricFamily(
            "tessera_pods_waiting", "Pods that wait for a slice, by the reason of the last decision.", labels=["reason"]
        )
        counts = Counter(REASONS[type(one.reason)] for one in state.waiting.values())
        for reason in REASONS.values():
            waiting.add_metric([reason], counts[reason])
        yield waiting
        times = [
            parse_time_or_zero(state.cluster.pods[pod].created) for pod in state.waiting if pod in state.cluster.pods
        ]
        oldest = self._clock.now() - min(times) if times else 0.0
        yield GaugeMetricFamily(
            "tessera_oldest_wait_seconds", "Age of the oldest pod that waits for a slice; 0 if none waits.", oldest
        )


def _cards(state: SlicerState) -> Iterator[GaugeMetricFamily]:
    slots = GaugeMetricFamily(
        "tessera_slots", "Memory slots of cards that are cut on demand, by model and state.", labels=["model", "state"]
    )
    room = GaugeMetricFamily(
        "tessera_free_slices",
        "Cards on which one more slice of a profile can be made now, by model.",
        labels=["model", "profile"],
    )
    fragmentation = GaugeMetricFamily(
        "tessera_fragmentation_ratio",
        "Share of a model's slots that are free and that a random profile could not use, mean of its profiles.",
        labels=["model"],
    )
    fleet = state.inventory.fleet
    cut: Counter[tuple[str, str]] = Counter()
    fitting: Counter[tuple[str, str]] = Counter()
    cards: Counter[str] = Counter()
    lost: dict[str, float] = {}
    # Nodes may report different tables for one model, so that several geometries share a label.
    for geometry, states in fleet.histogram().items():
        model, count = geometry.family, states.total()
        free = sum(free_slots(geometry, occupancy) * alike for occupancy, alike in states.items())
        cut[model, "free"] += free
        cut[model, "held"] += geometry.slots * count - free
        for profile in geometry.profiles:
            fits = (alike for occupancy, alike in states.items() if free_starts(geometry, profile, occupancy))
            fitting[model, profile.name] += sum(fits)
        cards[model] += count
        lost[model] = lost.get(model, 0.0) + count * fleet.fragmentation(geometry, states)
    for labels, number in cut.items():
        slots.add_metric(labels, number)
    for labels, number in fitting.items():
        room.add_metric(labels, number)
    for model, share in lost.items():
        fragmentation.add_metric([model], share / cards[model])
    yield from (slots, room, fragmentation)


def _slices(state: SlicerState) -> Families:
    """Slices by profile and by the progress of their allocation."""
    held: Counter[tuple[str, str]] = Counter()
    for allocation in state.allocations:
        if not allocation.freed and allocation.in_object:
            held.update((_profile(each.profile), _progress(allocation)) for each in allocation.slices)
    family = GaugeMetricFamily(
        "tessera_allocated_slices", "Slices that the controller gave to pods.", labels=["profile", "state"]
    )
    shown = {profile for profile, _ in Counter(profile for profile, _ in held.elements()).most_common(PROFILES_SHOWN)}
    for (profile, progress), number in _merged(held, shown).items():
        family.add_metric([profile, progress], number)
    yield family


def _profile(name: str) -> str:
    """The name of a profile; records are written by others and may say anything."""
    try:
        return str(parse_profile_name(name))
    except ValueError:
        return OTHER


def _progress(allocation: Allocation) -> str:
    if allocation.given_up:
        return "reclaimed"
    created = allocation.result is not None and allocation.result[1] == "created"
    return "created" if created else "promised"


def _merged(counts: Counter[tuple[str, str]], shown: Container[str]) -> Counter[tuple[str, str]]:
    """The counts with the first labels that are not shown merged to :data:`OTHER`."""
    merged: Counter[tuple[str, str]] = Counter()
    for (first, second), number in counts.items():
        merged[first if first in shown else OTHER, second] += number
    return merged


def _quota(state: SlicerState) -> Families:
    """The charged amounts of pods with slices, or that wait for them, and what all nodes have."""
    used: Counter[str] = Counter()
    for uid in {each.uid for each in state.allocations} | state.waiting.keys():
        pod = state.cluster.pods.get(uid)
        if pod is not None and not pod.finished:
            used[pod.namespace] += pod.amounts.get(QUOTA_RESOURCE, 0)
    family = GaugeMetricFamily(
        "tessera_quota_used_bytes", "GPU memory that the pods of a namespace are charged.", labels=["namespace"]
    )
    shown = dict(used.most_common(NAMESPACES_SHOWN))
    if rest := used.total() - sum(shown.values()):
        shown[OTHER] = shown.get(OTHER, 0) + rest
    for namespace, amount in shown.items():
        family.add_metric([namespace], amount)
    yield family
    capacity = sum(node.allocatable.get(QUOTA_RESOURCE, 0) for node in state.cluster.nodes.values())
    yield GaugeMetricFamily(
        "tessera_quota_capacity_bytes", "GPU memory of all nodes with cards that are cut on demand.", capacity
    )


def _counters(slicer: Slicer) -> Families:
    refusals = CounterMetricFamily(
        "tessera_placement_refusals", "Times that planning refused a pod for a new reason.", labels=["reason"]
    )
    for kind in get_args(Refusal):
        refusals.add_metric([REASONS[kind]], slicer.settlement.refusals[kind.metric()])
    yield refusals
    yield CounterMetricFamily(
        "tessera_moves", "Pods that got other slices after theirs were taken back.", slicer.settlement.moves
    )
    yield GaugeMetricFamily(
        "tessera_room_by_moves_pods",
        "Waiting pods for which moves that are worth their price would make room.",
        len(slicer.mover.rooms),
    )
    outcomes = CounterMetricFamily("tessera_room_moves", "Moves to make room, by outcome.", labels=["outcome"])
    outcomes.add_metric(["evicted"], slicer.mover.evicted)
    outcomes.add_metric(["given-up"], slicer.mover.refused)
    yield outcomes


async def run(
    options: ControllerOptions,
    client: Client,
    clock: Clock,
    *,
    rng: random.Random | None = None,
) -> None:
    """Runs one replica until cancelled. The process may be killed at any moment and started again.

    Args:
        options: the controller's options.
        client: the API server; its identity needs the rights that ``deploy/`` grants to the controller.
        clock: gives the time.
        rng: for jitter and the identity's random part; seeded in tests.

    Raises:
        ExceptionGroup: a part failed, and only a restart of the process can repair it.
    """
    await Controller(options, client, clock, rng=rng or random.Random()).run()


class Controller:
    """One replica; a :class:`~tessera.status_pages.ProcessStatus`.

    Attributes:
        metrics: this replica's metrics.
        slicer: the state machine of the current term of leadership; None while another replica leads.
    """

    def __init__(self, options: ControllerOptions, client: Client, clock: Clock, *, rng: random.Random) -> None:
        self.metrics = ControllerMetrics()
        self.slicer: Slicer | None = None
        self._options = options
        self._recorders = Recorders(options.record)
        self._client = client
        self._clock = clock
        self._rng = rng
        self._unready_reason = "the election has not begun"
        #: The satellites of this process; each joins a term of leadership.
        self._joins: Sequence[Callable[[Term], None]] = ()
        #: Make the kinds of requests that they add, and the proposers.
        self._kinds: Sequence[Callable[[SlicerState], RequestKind]] = ()
        self._proposers: Sequence[Callable[[SlicerState], Sequence[Proposer]]] = ()
        #: The present term of leadership; None while another replica leads.
        self._session: LeaderSession | None = None
        self.metrics.registry.register(FleetCollector(lambda: self.slicer, clock))
        self.metrics.registry.register(SilenceCollector(self._silent))

    def _silent(self) -> Mapping[str, SilentNode]:
        return self._session.silent_agents.silent if self._session else {}

    def metrics_text(self) -> bytes:
        """See :meth:`~tessera.status_pages.ProcessStatus.metrics_text`."""
        return generate_latest(self.metrics.registry)

    def unready_reason(self) -> str:
        """See :meth:`~tessera.status_pages.ProcessStatus.unready_reason`."""
        return self._unready_reason

    async def run(self) -> None:
        """Takes part in the election, and decides while this replica leads, until cancelled."""
        options = self._options
        process = Process(client=self._client, clock=self._clock, rng=self._rng, registry=self.metrics.registry)
        async with process.at_end as stack:
            self._joins = [each.open(process) for each in options.satellites]
            self._kinds, self._proposers = process.kinds, process.proposers
            group = await stack.enter_async_context(asyncio.TaskGroup())
            if options.http_port is not None:
                group.create_task(
                    serve_status(
                        self,
                        options.http_port,
                        address=options.http_address,
                        on_listening=options.on_listening,
                        documents=process.pages,
                        guard=PageGuard(
                            Reviewer(self._client),
                            self._clock,
                            audience=CONTROLLER_AUDIENCE,
                            open_metrics=options.open_metrics,
                        ),
                    )
                )
            group.create_task(serve_records(self._recorders, options.record_socket))
            self._unready_reason = ""
            if options.leader_election:
                elector = self._elector()
                await elector.run(partial(self._lead_session, partial(getattr, elector, "is_leader")))
            else:
                await self._lead_session(_always)

    def _elector(self) -> LeaderElector:
        return LeaderElector(
            self._client,
            namespace=self._options.namespace,
            name=self._options.lease_name,
            identity=f"{self._options.identity}_{self._rng.getrandbits(32):08x}",
            clock=self._clock,
            rng=self._rng,
        )

    async def _lead_session(self, may_act: Callable[[], bool]) -> None:
        self.metrics.leading.set(1)
        if self._options.on_leading is not None:
            self._options.on_leading()
        try:
            runtime = KubeRuntime(
                client=self._client, clock=self._clock, rng=self._rng, may_act=may_act, recorders=self._recorders
            )
            self._session = LeaderSession(
                self._options,
                runtime,
                metrics=self.metrics,
                joins=self._joins,
                kinds=self._kinds,
                proposers=self._proposers,
            )
            await self._session.run(self._set_slicer)
        finally:
            self._session = None
            self.slicer = None
            self.metrics.leading.set(0)

    def _set_slicer(self, slicer: Slicer) -> None:
        self.slicer = slicer
        self._recorders.attach("slicer", slicer)


def _always() -> bool:
    """The only replica may always act."""
    return True
