"""Simulates an autoscaler with given timers and pods that ask for cards; the result is a timeline.

A cluster without cards gets pods that each need one. The simulated autoscaler makes nodes; whether they are left alone
until their cards can be used depends on its timers and on the accelerator label. Nothing of this is measured.
"""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from tessera.clock import Clock
from tessera.gpu_operator.assignment import CLUSTER_POLICIES
from tessera.kube.informer import EventKind, Informer, InformerGroup, WatchEvent
from tessera.kube.resources import NODES, PODS, Node, Pod
from tessera.provisioning.start_times import GroupTimes
from tessera_lab.cloud.autoscaler.process import RESOURCE, ClusterAutoscaler
from tessera_lab.cloud.autoscaler.rules import ActionKind, AutoscalerTimers
from tessera_lab.experiments import clusters
from tessera_lab.experiments.clusters import ArticleScenario, ExperimentCluster, MakeEntrypoint
from tessera_lab.experiments.measuring import WORKLOAD
from tessera_lab.experiments.runs import OURS, SETTLE_SECONDS, UPSTREAM
from tessera_lab.simulation.cost_model import CostModel
from tessera_lab.simulation.virtual_time import run_virtual

_KINDS = {ActionKind.INCREASE: "scale-up", ActionKind.TIMED_OUT: "time-out", ActionKind.REMOVE: "removal"}


class AutoscalingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Input of a simulation.

    Attributes:
        scenario: how drivers come.
        timers: the autoscaler's timers.
        operator: :data:`~tessera_lab.experiments.runs.UPSTREAM` or ``OURS``: whose order of steps.
        labelled: nodes carry the accelerator label from registration on.
        tainted: nodes carry Tessera's startup taint from registration on; only Tessera takes it away.
        maximum: nodes of the group at most.
        pods: how many ask for a card, all at once.
        hours: simulated hours until the end.
        costs: how long things take.
        seed: of chance.
    """

    scenario: ArticleScenario
    timers: AutoscalerTimers
    operator: str = UPSTREAM
    labelled: bool = True
    tainted: bool = False
    maximum: int = 10
    pods: int = 1
    hours: float = 1.0
    costs: CostModel = CostModel()
    seed: int = 0


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One line of the timeline.

    Attributes:
        at: seconds after the pods were made.
        kind: scale-up, time-out, removal, node or pod.
        text: what happened.
    """

    at: float
    kind: str
    text: str


class AutoscalingRun(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a simulation.

    Attributes:
        moments: the timeline.
        ran: when each pod ran that did, seconds after it was made; the first one first.
        made: nodes that were asked for.
        lost: nodes that were removed before their cards could be used.
        idle: nodes that were removed after that.
        timed_out: scale-ups that took longer than the autoscaler waits.
        node_hours: of machines that were paid for.
        times: what the nodes took.
        simulated: always.
    """

    moments: tuple[TimelineEntry, ...]
    ran: tuple[float, ...]
    made: int
    lost: int
    idle: int
    timed_out: int
    node_hours: float
    times: GroupTimes
    simulated: bool = True


def simulate_autoscaling(settings: AutoscalingSettings, make: MakeEntrypoint) -> AutoscalingRun:
    """Runs the simulation on virtual time.

    Args:
        settings: the input.
        make: makes the entrypoint that runs Tessera's containers.
    """

    async def simulate() -> AutoscalingRun:
        async with (
            _start_cluster(settings, make) as cluster,
            cluster.run_autoscaler(
                settings.timers, labelled=settings.labelled, tainted=settings.tainted, maximum=settings.maximum
            ) as scaler,
        ):
            await cluster.client.create(CLUSTER_POLICIES, settings.scenario.policy())
            await cluster.clock.sleep(SETTLE_SECONDS)
            return await _observe(cluster, scaler, settings)

    return run_virtual(simulate())


@asynccontextmanager
async def _start_cluster(settings: AutoscalingSettings, make: MakeEntrypoint) -> AsyncIterator[ExperimentCluster]:
    created = (
        clusters.start_tessera(settings.costs, cards=False, seed=settings.seed, make=make)
        if settings.operator == OURS
        else clusters.start_reference(settings.scenario, settings.costs, cards=False, seed=settings.seed)
    )
    async with created as cluster:
        yield cluster


async def _observe(
    cluster: ExperimentCluster, scaler: ClusterAutoscaler, settings: AutoscalingSettings
) -> AutoscalingRun:
    watcher = _TimelineRecorder(cluster.clock, scaler)
    rng = random.Random(settings.seed)
    nodes: Informer[Node] = Informer(cluster.client, NODES, clock=cluster.clock, rng=rng)
    pods: Informer[Pod] = Informer(cluster.client, PODS, clock=cluster.clock, rng=rng, namespace="default")
    async with InformerGroup(nodes, pods).running():
        nodes.add_handler(watcher.on_node)
        pods.add_handler(watcher.on_pod)
        for number in range(settings.pods):
            await cluster.client.create(
                PODS.as_dicts(), {"metadata": {"name": f"pod-{number + 1}"}, "spec": dict(WORKLOAD)}, "default"
            )
        await cluster.clock.sleep(settings.hours * 3600)
    return watcher.finish()


class _TimelineRecorder:
    """Records the milestones of the autoscaler's nodes and of the pods, with their times."""

    def __init__(self, clock: Clock, scaler: ClusterAutoscaler) -> None:
        self._clock = clock
        self._scaler = scaler
        self._began = clock.now()
        self._moments: list[TimelineEntry] = []
        self._steps: dict[str, dict[str, float]] = {}
        self._ran: dict[str, float] = {}

    def on_node(self, event: WatchEvent[Node]) -> None:
        node = event.object
        name = node.metadata.name
        if event.kind is EventKind.DELETED or self._scaler.cloud.instance(name) is None:
            return
        cards = int(node.status.allocatable.get(RESOURCE, "0"))
        self._record_step(name, "registered", "is registered")
        if node.status.is_ready:
            self._record_step(name, "ready", "is Ready" + ("" if cards else ", and offers no card yet"))
        if node.status.is_ready and cards:
            self._record_step(name, "usable", "offers its card")

    def _record_step(self, name: str, step: str, text: str) -> None:
        times = self._steps.setdefault(name, {})
        if step not in times:
            times[step] = self._now()
            if step != "registered":
                self._moments.append(TimelineEntry(at=self._now(), kind="node", text=f"{name} {text}"))

    def on_pod(self, event: WatchEvent[Pod]) -> None:
        name = event.object.metadata.name
        if event.object.status.phase == "Running" and name not in self._ran:
            self._ran[name] = self._now()
            text = f"{name} runs on {event.object.spec.node_name}"
            self._moments.append(TimelineEntry(at=self._now(), kind="pod", text=text))

    def _now(self) -> float:
        return self._clock.now() - self._began

    def finish(self) -> AutoscalingRun:
        """Returns the whole result."""
        actions = [(at - self._began, action) for at, action in self._scaler.actions]
        moments = [
            TimelineEntry(
                at=at,
                kind=_KINDS[action.kind],
                text=f"{action.node}: {action.why}"
                if action.node
                else f"+{action.count}: {action.why}"
                if action.count
                else action.why,
            )
            for at, action in actions
        ]
        removed = [action.node for _, action in actions if action.kind is ActionKind.REMOVE]
        lost = [name for name in removed if "usable" not in self._steps.get(name, {})]
        return AutoscalingRun(
            moments=tuple(sorted(moments + self._moments, key=lambda each: each.at)),
            ran=tuple(sorted(self._ran.values())),
            made=sum(action.count for _, action in actions if action.kind is ActionKind.INCREASE),
            lost=len(lost),
            idle=len(removed) - len(lost),
            timed_out=sum(action.kind is ActionKind.TIMED_OUT for _, action in actions),
            node_hours=self._scaler.cloud.machine_seconds() / 3600,
            times=self._times(),
        )

    def _times(self) -> GroupTimes:
        """Durations of the nodes whose cards became usable; a removed node has no time of request any more."""
        cloud = self._scaler.cloud
        usable = {name: times for name, times in self._steps.items() if "usable" in times}
        requested = {each.name: each.requested - self._began for each in cloud.instances()}
        return GroupTimes(
            group=next(iter(cloud.groups)),
            provision=tuple(times["usable"] - requested[name] for name, times in usable.items() if name in requested),
            startup=tuple(times["usable"] - times["registered"] for times in usable.values()),
            ready=tuple(times["usable"] - times["ready"] for times in usable.values()),
            simulated=True,
        )
