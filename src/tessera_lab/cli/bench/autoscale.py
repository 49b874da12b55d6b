"""``tessera bench autoscale``: from a new node's Ready to a workload that runs on its card."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tessera.cli.base.connection import CommandError, cluster_options, report_errors
from tessera.cli.base.process import run_command
from tessera_lab.cli.bench.experiment import (
    FILE,
    ClusterTarget,
    Trial,
    connect_measurable,
    timeout_option,
    trial_options,
)

if TYPE_CHECKING:
    from tessera_lab.experiments.results import Samples

_SCENARIOS = ["built", "precompiled-public", "precompiled-internal"]


class AutoscaleRun(NamedTuple):
    """One run on a live cluster.

    Attributes:
        scenario: its name in the results.
        namespace: namespace of the workload.
        spec: the workload's pod spec.
        repeats: number of samples.
    """

    scenario: str
    namespace: str
    spec: Mapping[str, Any]
    repeats: int


@click.command()
@click.option(
    "--name", "scenario", metavar="NAME", help="Name of the results: how drivers get onto this cluster's nodes."
)
@click.option("-n", "--namespace", default="default", show_default=True, help="Namespace of the workload.")
@click.option(
    "--workload",
    type=FILE,
    metavar="FILE",
    help="The pod to run.  [default: a pod that sleeps and requests nvidia.com/gpu: 1]",
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
    """Measure the time from a new node's Ready until a GPU workload starts on it.

    For each sample, Tessera creates a pod that needs a card, the cluster's autoscaler adds a node for it, and Tessera
    measures from the node's Ready to the start of the pod's container, as Red Hat did. Then Tessera deletes the pod and
    waits until the autoscaler has removed the node. The cluster needs an autoscaler that adds nodes with cards, and no
    free card. Each sample costs a machine for some minutes. With --lab everything is simulated, on virtual time.

    \b
    Examples:
      tessera bench autoscale --lab
      tessera bench autoscale --lab --scenario precompiled-public --breakdown --repeat 10
      tessera bench autoscale --name precompiled --repeat 5 --json results.json
    """
    if trial.lab:
        from tessera_lab.cli.bench.experiment import run_experiment

        run_experiment("autoscale", _SCENARIOS, trial)
        return
    if scenario is None:
        raise click.UsageError("give the results a name with --name, such as precompiled, or simulate with --lab")
    run_ = AutoscaleRun(scenario, namespace, _spec(workload), trial.repeat or 5)
    from tessera_lab.cli.bench.results import collect_results

    with collect_results(trial.json_file) as results:
        run_command(_live(run_, ClusterTarget(kubeconfig, context, timeout), results))


def _spec(file: Path | None) -> Mapping[str, Any]:
    from tessera_lab.experiments.measuring import WORKLOAD

    if file is None:
        return WORKLOAD
    from tessera.api.documents import load_document
    from tessera.cli.base.inputs import display_name, read_text

    loaded = load_document(read_text(file))
    if not isinstance(loaded, Mapping) or loaded.get("kind") != "Pod" or not isinstance(loaded.get("spec"), Mapping):
        raise CommandError(
            f"error: {display_name(file)} is not a Pod; write kind: Pod with a spec that requests a card"
        )
    spec: Mapping[str, Any] = loaded["spec"]
    return spec


async def _live(run: AutoscaleRun, target: ClusterTarget, results: "list[Samples]") -> None:
    """Measures, and adds the scenario to ``results``; if it fails, with the samples measured before."""
    import random

    from tessera.clock import SystemClock
    from tessera_lab.cli.bench.results import progress_printer, sample_collector
    from tessera_lab.experiments.measuring import Autoscale
    from tessera_lab.experiments.results import AUTOSCALE, Samples

    tell, samples = progress_printer(run.scenario), list[float]()

    async with connect_measurable(target, AUTOSCALE) as client:
        experiment = Autoscale(
            client,
            SystemClock(),
            namespace=run.namespace,
            rng=random.Random(),
            step_timeout=target.step_timeout,
            report=tell,
        )
        try:
            await experiment.run(run.spec, run.repeats, each=sample_collector(samples, tell))
        finally:
            simulated = experiment.simulated
            results.append(
                Samples(experiment=AUTOSCALE, scenario=run.scenario, samples=tuple(samples), simulated=simulated)
            )
