"""Runs an experiment in the lab, and attributes Tessera's savings to waits of the reference operator.

The same code that measures a live cluster measures here, on virtual time.

The reference's waits are removed one by one, and each step is simulated anew. A step's saving is the difference of two
means, so savings sum to the whole difference exactly. The cost of a wait depends on its neighbours (a poll behind a
longer wait costs nothing), so the order of the steps matters: polls are removed first, from the last one on, since each
poll rounds the steps before it.

For the same reason the steps are measured under a kubelet that publishes at once: rounded to its ten seconds, a step
would save nothing or ten. What the rounding makes of both means has a line of its own. It is no saving: both orders of
steps are rounded, and which one more is chance. The rest, which no step explains, is listed as left over.
"""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec

from tessera.gpu_operator.assignment import CLUSTER_POLICIES
from tessera_lab.cloud.autoscaler.rules import AutoscalerTimers
from tessera_lab.experiments import clusters
from tessera_lab.experiments.clusters import ArticleScenario, ExperimentCluster, MakeEntrypoint
from tessera_lab.experiments.measuring import WORKLOAD, Autoscale, PolicyReset
from tessera_lab.experiments.results import AUTOSCALE, POLICY_RESET, Samples
from tessera_lab.reference_operator.manifests import PUBLISHED_AT_ONCE, REFERENCE, ReferenceWaits, remove_wait
from tessera_lab.simulation.cost_model import CostModel
from tessera_lab.simulation.virtual_time import run_virtual

#: Names of the two orders of steps.
UPSTREAM, OURS = "reference", "tessera"
#: Timers under which nodes go soon once they are empty, so that the next sample can begin, seconds.
SOON = AutoscalerTimers(unneeded=60, delay_after_add=60)
#: Simulated seconds in which a cluster comes to rest before anything is measured.
SETTLE_SECONDS = 120.0

Progress = Callable[[float], None]
UNEXPLAINED = "left over: what no wait and no overlap explains"
PERIOD = "rounding: kubelet publishes every 10 s, which rounds both means up"


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


class WaitSaving(msgspec.Struct, frozen=True, kw_only=True):
    """One step.

    Attributes:
        wait: the wait that was removed, or the overlap that was added.
        seconds: how much the mean went down by it; negative if it went up.
    """

    wait: str
    seconds: float


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """Every second between two means.

    Attributes:
        reference: samples of the reference operator's order of steps.
        ours: samples of Tessera's.
        savings: the steps between them, then :data:`UNEXPLAINED`, then :data:`PERIOD`.
    """

    reference: Samples
    ours: Samples
    savings: tuple[WaitSaving, ...]

    @property
    def total_saving(self) -> float:
        """Sum of all savings, seconds."""
        return self.reference.summary.mean - self.ours.summary.mean


def attribute(
    measure: Callable[[str, ReferenceWaits], Samples],
    *,
    built: bool,
    report: Callable[[str], None] = lambda _what: None,
) -> Attribution:
    """Measures the reference, the reference with fewer and fewer waits, and Tessera.

    Args:
        measure: samples of an order of steps, with the waits of the reference.
        built: the driver is built on the node.
        report: called with the name of the next measurement.
    """

    def mean(order: str, waits: ReferenceWaits, step: str) -> float:
        report(step)
        return measure(order, waits).summary.mean

    report("the reference operator")
    reference = measure(UPSTREAM, REFERENCE)
    began = before = mean(UPSTREAM, PUBLISHED_AT_ONCE, "the reference operator, published at once")
    savings = []
    for wait, waits in remove_wait(new_node=reference.experiment == AUTOSCALE, built=built):
        after = mean(UPSTREAM, waits, f"without {wait}")
        savings.append(WaitSaving(wait=wait, seconds=before - after))
        before = after
    after = mean(OURS, PUBLISHED_AT_ONCE, "Tessera, published at once")
    savings.append(WaitSaving(wait=UNEXPLAINED, seconds=before - after))
    report("Tessera")
    ours = measure(OURS, REFERENCE)
    rounding = (reference.summary.mean - ours.summary.mean) - (began - after)
    savings.append(WaitSaving(wait=PERIOD, seconds=rounding))
    return Attribution(reference=reference, ours=ours, savings=tuple(savings))
