"""Runs an experiment in the lab, for the reference operator's order of steps or for Tessera's.

The same code that measures a live cluster measures here, on virtual time.
"""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from tessera.gpu_operator.assignment import CLUSTER_POLICIES
from tessera_lab.cloud.autoscaler.rules import AutoscalerTimers
from tessera_lab.experiments import clusters
from tessera_lab.experiments.clusters import ExperimentCluster, MakeEntrypoint
from tessera_lab.experiments.measuring.autoscale import WORKLOAD, Autoscale
from tessera_lab.experiments.measuring.policy_reset import PolicyReset
from tessera_lab.experiments.results import AUTOSCALE, POLICY_RESET, Samples
from tessera_lab.experiments.scenarios import ArticleScenario
from tessera_lab.reference_operator.waits import REFERENCE, ReferenceWaits
from tessera_lab.simulation.cost_model import CostModel
from tessera_lab.simulation.virtual_time import run_virtual

#: Names of the two orders of steps.
UPSTREAM, OURS = "reference", "tessera"
#: Timers under which nodes go soon once they are empty, so that the next sample can begin, seconds.
SOON = AutoscalerTimers(unneeded=60, delay_after_add=60)
#: Simulated seconds in which a cluster comes to rest before anything is measured.
SETTLE_SECONDS = 120.0

Progress = Callable[[float], None]


def silence_progress(seconds: float) -> None:
    """Ignores progress."""
    del seconds


def policy_reset(
    scenario: ArticleScenario,
    repeats: int,
    *,
    operator: str,
    make: MakeEntrypoint,
    costs: CostModel | None = None,
    waits: ReferenceWaits = REFERENCE,
    seed: int = 0,
    each: Progress = silence_progress,
) -> Samples:
    """Policy reset in a fresh cluster of one node with a card.

    Args:
        scenario: how drivers come.
        repeats: samples that count.
        operator: :data:`UPSTREAM` or :data:`OURS`.
        make: makes what runs Tessera's containers.
        costs: how long things take; the declared ones if None.
        waits: of the reference.
        seed: of chance.
        each: called with each sample.
    """

    async def play() -> list[float]:
        async with _start_cluster(operator, scenario, costs, waits, seed, make=make, cards=True) as cluster:
            await cluster.clock.sleep(SETTLE_SECONDS)
            experiment = PolicyReset(cluster.client, cluster.clock, node="node-1", rng=random.Random(seed))
            return await experiment.run(scenario.policy(), repeats, each=each)

    first, *samples = run_virtual(play())
    return Samples(
        experiment=POLICY_RESET,
        scenario=scenario.name,
        operator=operator,
        first=first,
        samples=tuple(samples),
        simulated=True,
    )


def autoscale(
    scenario: ArticleScenario,
    repeats: int,
    *,
    operator: str,
    make: MakeEntrypoint,
    costs: CostModel | None = None,
    waits: ReferenceWaits = REFERENCE,
    seed: int = 0,
    each: Progress = silence_progress,
) -> Samples:
    """Autoscaling in a fresh cluster whose nodes with cards are made on demand; arguments as :func:`policy_reset`."""

    async def play() -> list[float]:
        async with (
            _start_cluster(operator, scenario, costs, waits, seed, make=make, cards=False) as cluster,
            cluster.run_autoscaler(SOON),
        ):
            await cluster.client.create(CLUSTER_POLICIES, scenario.policy())
            await cluster.clock.sleep(SETTLE_SECONDS)
            experiment = Autoscale(cluster.client, cluster.clock, namespace="default", rng=random.Random(seed))
            return await experiment.run(WORKLOAD, repeats, each=each)

    return Samples(
        experiment=AUTOSCALE,
        scenario=scenario.name,
        operator=operator,
        samples=tuple(run_virtual(play())),
        simulated=True,
    )


@asynccontextmanager
async def _start_cluster(
    operator: str,
    scenario: ArticleScenario,
    costs: CostModel | None,
    waits: ReferenceWaits,
    seed: int,
    *,
    make: MakeEntrypoint,
    cards: bool,
) -> AsyncIterator[ExperimentCluster]:
    model = costs or CostModel()
    created: AbstractAsyncContextManager[ExperimentCluster]
    if operator == UPSTREAM:
        created = clusters.start_reference(scenario, model, cards=cards, seed=seed, waits=waits)
    else:
        created = clusters.start_tessera(model, cards=cards, seed=seed, make=make, publish_every=waits.publish_every)
    async with created as cluster:
        yield cluster
