"""``tessera bench autoscale``: from a new node's Ready to a workload that runs on its card."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tessera.cli.bench.options import FILE, Trial, told, trial_options
from tessera.cli.connect import Failure, cluster_options, connected, reported

if TYPE_CHECKING:
    from tessera.provisioning.experiments.results import Samples

_SCENARIOS = ["built", "precompiled-public", "precompiled-internal"]


class AutoscaleRun(NamedTuple):
    """What is tried on a live cluster: the scenario's name, where the workload runs, its spec, how many samples."""

    scenario: str
    namespace: str
    spec: Mapping[str, Any]
    repeats: int


@click.command()
@click.option(
    "--name", "scenario", metavar="NAME", help="What to call the scenario, on a live cluster: how drivers come there."
)
@click.option("-n", "--namespace", default="default", show_default=True, help="Where the workload runs.")
@click.option(
    "--workload",
    type=FILE,
    metavar="FILE",
    help="Pod to run.  [default: one that sleeps and asks for nvidia.com/gpu: 1]",
)
@trial_options(_SCENARIOS)
@cluster_options
@reported
def command(
    *,
    scenario: str | None,
    namespace: str,
    workload: Path | None,
    trial: Trial,
    kubeconfig: Path | None,
    context: str | None,
) -> None:
    """Have the autoscaler make a node for a GPU workload, measure, remove the workload, wait until the node is gone.

    Measured is from the new node's Ready to the start of the workload's container, as Red Hat did. A live cluster needs
    an autoscaler that makes nodes with cards, and no free card; every sample costs a machine for some minutes. In the
    lab everything is simulated, on virtual time.

    \b
    Examples:
      tessera bench autoscale --lab
      tessera bench autoscale --lab --scenario precompiled-public --attribute --repeat 10
      tessera bench autoscale --name precompiled --repeat 5 --json results.json
    """
    if trial.lab:
        from tessera.cli.bench.labside import run

        run("autoscale", _SCENARIOS, trial)
        return
    if scenario is None:
        raise click.UsageError("say with --name how drivers come in this cluster, or try it with --lab")
    run_ = AutoscaleRun(scenario, namespace, _spec(workload), trial.repeat or 5)
    told([asyncio.run(_live(run_, kubeconfig, context))], trial.json_file)


def _spec(file: Path | None) -> Mapping[str, Any]:
    from tessera.lab.experiments.scenarios import WORKLOAD

    if file is None:
        return WORKLOAD
    from tessera.api.documents import load
    from tessera.cli.checks.source import named, text_of

    loaded = load(text_of(file))
    if not isinstance(loaded, Mapping) or loaded.get("kind") != "Pod" or not isinstance(loaded.get("spec"), Mapping):
        raise Failure(f"error: {named(file)} is no Pod; write kind: Pod with a spec that asks for a card")
    spec: Mapping[str, Any] = loaded["spec"]
    return spec


async def _live(run: AutoscaleRun, kubeconfig: Path | None, context: str | None) -> "Samples":
    import random

    from tessera.clock import SystemClock
    from tessera.provisioning.experiments.autoscale import Autoscale
    from tessera.provisioning.experiments.results import AUTOSCALE, Samples

    async with connected("tessera-bench", kubeconfig, context) as client:
        experiment = Autoscale(client, SystemClock(), namespace=run.namespace, rng=random.Random())
        samples = await experiment.run(
            run.spec, run.repeats, each=lambda seconds: click.echo(f"{run.scenario}: {seconds:.1f} s", err=True)
        )
    return Samples(experiment=AUTOSCALE, scenario=run.scenario, samples=tuple(samples))
