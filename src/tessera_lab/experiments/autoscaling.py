"""Simulates an autoscaler with given timers and pods that ask for cards; the result is a timeline.

A cluster without cards gets pods that each need one. The simulated autoscaler makes nodes; whether they are left alone
until their cards can be used depends on its timers and on the accelerator label. Nothing of this is measured.
"""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from tessera.api.driver.assignment import CLUSTER_POLICIES
from tessera.clock import Clock
from tessera.kube.resources import NODES, PODS, Node, Pod
from tessera.kube.watch.conditions import Watched
from tessera.kube.watch.informer import Event, EventKind, Informer
from tessera.provisioning.advise.samples import GroupTimes
from tessera.provisioning.experiments.autoscale import WORKLOAD
from tessera_lab.cloud.autoscaler.process import RESOURCE, ClusterAutoscaler
from tessera_lab.cloud.autoscaler.rules import Kind, Timers
from tessera_lab.experiments import clusters
from tessera_lab.experiments.clusters import MakeEntrypoint, World
from tessera_lab.experiments.runs import OURS, REST, UPSTREAM
from tessera_lab.experiments.scenarios import Scenario
from tessera_lab.simulation.cost_model import CostModel
from tessera_lab.simulation.virtual_time import run_virtual

_KINDS = {Kind.INCREASE: "scale-up", Kind.TIMED_OUT: "time-out", Kind.REMOVE: "removal"}


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Input of a simulation.

    Attributes:
        scenario: how drivers come.
        timers: the autoscaler's.
        operator: :data:`~tessera_lab.experiments.runs.UPSTREAM` or ``OURS``: whose order of steps.
        labelled: nodes carry the accelerator label from registration on.
        tainted: nodes carry Tessera's startup taint from registration on; only Tessera takes it away.
        maximum: nodes of the group at most.
        pods: how many ask for a card, all at once.
        hours: simulated hours until the end.
        costs: how long things take.
        seed: of chance.
    """

    scenario: Scenario
    timers: Timers
    operator: str = UPSTREAM
    labelled: bool = True
    tainted: bool = False
    maximum: int = 10
    pods: int = 1
    hours: float = 1.0
    costs: CostModel = CostModel()
    seed: int = 0


class Moment(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One line of the timeline.

    Attributes:
        at: seconds after the pods were made.
        kind: scale-up, time-out, removal, node or pod.
        text: what happened.
    """

    at: float
    kind: str
    text: str


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a simulation.

    Attributes:
        moments: the timeline.
        ran: when each pod ran that did, seconds after it was made; the first one first.
        made: nodes that were asked for.
        lost: nodes that were taken away before their cards could be used.
        idle: nodes that were taken away after that.
        timed_out: scale-ups that took longer than the autoscaler waits.
        node_hours: of machines that were paid for.
        times: what the nodes took.
        simulated: always.
    """

    moments: tuple[Moment, ...]
    ran: tuple[float, ...]
    made: int
    lost: int
    idle: int
    timed_out: int
    node_hours: float
    times: GroupTimes
    simulated: bool = True


def play(setting: Setting, make: MakeEntrypoint) -> Played:
    """Plays it on virtual time.

    Args:
        setting: what.
        make: makes what runs Tessera's containers.
    """

    async def told() -> Played:
        async with (
            _world(setting, make) as world,
            world.autoscaled(
                setting.timers, labelled=setting.labelled, tainted=setting.tainted, maximum=setting.maximum
            ) as scaler,
        ):
            await world.client.create(CLUSTER_POLICIES, setting.scenario.policy())
            await world.clock.sleep(REST)
            return await _told(world, scaler, setting)

    return run_virtual(told())


@asynccontextmanager
async def _world(setting: Setting, make: MakeEntrypoint) -> AsyncIterator[World]:
    made = (
        clusters.tessera(setting.costs, cards=False, seed=setting.seed, make=make)
        if setting.operator == OURS
        else clusters.reference(setting.scenario, setting.costs, cards=False, seed=setting.seed)
    )
    async with made as world:
        yield world


async def _told(world: World, scaler: ClusterAutoscaler, setting: Setting) -> Played:
    watcher = _Watcher(world.clock, scaler)
    rng = random.Random(setting.seed)
    nodes: Informer[Node] = Informer(world.client, NODES, clock=world.clock, rng=rng)
    pods: Informer[Pod] = Informer(world.client, PODS, clock=world.clock, rng=rng, namespace="default")
    async with Watched(nodes, pods).running():
        nodes.add_handler(watcher.node)
        pods.add_handler(watcher.pod)
        for number in range(setting.pods):
            await world.client.create(
                PODS.untyped(), {"metadata": {"name": f"pod-{number + 1}"}, "spec": dict(WORKLOAD)}, "default"
            )
        await world.clock.sleep(setting.hours * 3600)
    return watcher.played()


class _Watcher:
    """Notes when nodes of the autoscaler and pods got how far."""

    def __init__(self, clock: Clock, scaler: ClusterAutoscaler) -> None:
        self._clock = clock
        self._scaler = scaler
        self._began = clock.now()
        self._moments: list[Moment] = []
        self._seen: dict[str, dict[str, float]] = {}
        self._ran: dict[str, float] = {}

    def node(self, event: Event[Node]) -> None:
        node = event.object
        name = node.metadata.name
        if event.kind is EventKind.DELETED or self._scaler.cloud.instance(name) is None:
            return
        cards = int(node.status.allocatable.get(RESOURCE, "0"))
        ready = any(each.type == "Ready" and each.status == "True" for each in node.status.conditions)
        self._reached(name, "registered", "is registered")
        if ready:
            self._reached(name, "ready", "is Ready" + ("" if cards else ", and offers no card yet"))
        if ready and cards:
            self._reached(name, "usable", "offers its card")

    def _reached(self, name: str, step: str, text: str) -> None:
        seen = self._seen.setdefault(name, {})
        if step not in seen:
            seen[step] = self._now()
            if step != "registered":
                self._moments.append(Moment(at=self._now(), kind="node", text=f"{name} {text}"))

    def pod(self, event: Event[Pod]) -> None:
        name = event.object.metadata.name
        if event.object.status.phase == "Running" and name not in self._ran:
            self._ran[name] = self._now()
            text = f"{name} runs on {event.object.spec.node_name}"
            self._moments.append(Moment(at=self._now(), kind="pod", text=text))

    def _now(self) -> float:
        return self._clock.now() - self._began

    def played(self) -> Played:
        """All of it."""
        deeds = [(at - self._began, deed) for at, deed in self._scaler.deeds]
        moments = [
            Moment(
                at=at,
                kind=_KINDS[deed.kind],
                text=f"{deed.node}: {deed.why}"
                if deed.node
                else f"+{deed.count}: {deed.why}"
                if deed.count
                else deed.why,
            )
            for at, deed in deeds
        ]
        removed = [deed.node for _, deed in deeds if deed.kind is Kind.REMOVE]
        lost = [name for name in removed if "usable" not in self._seen.get(name, {})]
        return Played(
            moments=tuple(sorted(moments + self._moments, key=lambda each: each.at)),
            ran=tuple(sorted(self._ran.values())),
            made=sum(deed.count for _, deed in deeds if deed.kind is Kind.INCREASE),
            lost=len(lost),
            idle=len(removed) - len(lost),
            timed_out=sum(deed.kind is Kind.TIMED_OUT for _, deed in deeds),
            node_hours=self._scaler.cloud.machine_seconds() / 3600,
            times=self._times(),
        )

    def _times(self) -> GroupTimes:
        """Durations of the nodes whose cards became usable; a removed node has no time of request any more."""
        cloud = self._scaler.cloud
        usable = {name: seen for name, seen in self._seen.items() if "usable" in seen}
        asked = {each.name: each.requested - self._began for each in cloud.instances()}
        return GroupTimes(
            group=next(iter(cloud.groups)),
            provision=tuple(seen["usable"] - asked[name] for name, seen in usable.items() if name in asked),
            startup=tuple(seen["usable"] - seen["registered"] for seen in usable.values()),
            ready=tuple(seen["usable"] - seen["ready"] for seen in usable.values()),
            simulated=True,
        )
