"""``tessera bench autoscale``: from a new node's Ready to a workload that runs on its card."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tessera.cli.base.connection import CommandError, cluster_options, report_errors
from tessera.cli.bench.experiment_options import FILE, Trial, timeout_option, trial_options

if TYPE_CHECKING:
    from tessera.cli.bench.live import ClusterTarget
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
@timeout_option("4h")
@trial_options(_SCENARIOS)
@cluster_options
@report_errors
def command(
    *,
    scenario: str | None,
    namespace: str,
    workload: Path | None,
    timeout: float,
    trial: Trial,
    kubeconfig: Path | None,
    context: str | None,
) -> None:
    """Have the autoscaler make a node for a GPU workload, measure, remove the workload, wait until the node is gone.

    Measured is from the new node's Ready to the start of the workload's container, as Red Hat did. A live cluster needs
    an autoscaler that makes nodes with cards, and no free card; every sample costs a machine for some minutes. What is
    awaited is told meanwhile. With --lab everything is simulated, on virtual time.

    \b
    Examples:
      tessera bench autoscale --lab
      tessera bench autoscale --lab --scenario precompiled-public --breakdown --repeat 10
      tessera bench autoscale --name precompiled --repeat 5 --json results.json
    """
    if trial.lab:
        from tessera.cli.bench.experiment_options import experiments_of_the_lab

        experiments_of_the_lab()("autoscale", _SCENARIOS, trial)
        return
    if scenario is None:
        raise click.UsageError("say with --name how drivers come in this cluster, or try it with --lab")
    run_ = AutoscaleRun(scenario, namespace, _spec(workload), trial.repeat or 5)
    from tessera.cli.bench.live import ClusterTarget, collect_results

    with collect_results(trial.json_file) as results:
        asyncio.run(_live(run_, ClusterTarget(kubeconfig, context, timeout), results))


def _spec(file: Path | None) -> Mapping[str, Any]:
    from tessera.provisioning.experiments.autoscale import WORKLOAD

    if file is None:
        return WORKLOAD
    from tessera.api.documents import load_document
    from tessera.cli.base.input_files import display_name, read_text

    loaded = load_document(read_text(file))
    if not isinstance(loaded, Mapping) or loaded.get("kind") != "Pod" or not isinstance(loaded.get("spec"), Mapping):
        raise CommandError(f"error: {display_name(file)} is no Pod; write kind: Pod with a spec that asks for a card")
    spec: Mapping[str, Any] = loaded["spec"]
    return spec


async def _live(run: AutoscaleRun, reached: "ClusterTarget", results: "list[Samples]") -> None:
    """Measures; ``results`` gets the scenario, also what there is of it when it fails."""
    import random

    from tessera.cli.bench.live import connect_measurable, progress_printer
    from tessera.clock import SystemClock
    from tessera.provisioning.experiments.autoscale import Autoscale
    from tessera.provisioning.experiments.results import AUTOSCALE, Samples

    tell, samples = progress_printer(run.scenario), list[float]()

    def each(seconds: float) -> None:
        samples.append(seconds)
        tell(f"{seconds:.1f} s")

    async with connect_measurable(reached, AUTOSCALE) as client:
        experiment = Autoscale(
            client,
            SystemClock(),
            namespace=run.namespace,
            rng=random.Random(),
            patience=reached.patience,
            told=tell,
        )
        try:
            await experiment.run(run.spec, run.repeats, each=each)
        finally:
            simulated = experiment.simulated
            results.append(
                Samples(experiment=AUTOSCALE, scenario=run.scenario, samples=tuple(samples), simulated=simulated)
            )
