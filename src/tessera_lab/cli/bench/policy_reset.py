"""``tessera bench policy-reset``: the time from applying a ClusterPolicy until a node lists its cards."""

from collections.abc import Mapping, Sequence
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

_SCENARIOS = ["built", "precompiled-public"]


class PolicyRun(NamedTuple):
    """One run on a live cluster.

    Attributes:
        node: name of the measured node.
        policies: the ClusterPolicies by the scenario's name.
        resource: the resource that the node's capacity must list.
        repeats: number of samples of each scenario.
    """

    node: str
    policies: Mapping[str, Mapping[str, Any]]
    resource: str
    repeats: int


@click.command()
@click.option("--node", metavar="NAME", help="The node to measure.")
@click.option(
    "--policy",
    "policies",
    type=FILE,
    multiple=True,
    metavar="FILE",
    help="File of a ClusterPolicy to measure; repeatable. The file's name is the name of its results.",
)
@click.option(
    "--resource",
    default="nvidia.com/gpu",
    show_default=True,
    help="Stop the clock when the node's capacity lists this.",
)
@click.option("--yes", is_flag=True, help="Confirm that each sample may remove the driver of every node.")
@timeout_option("1h")
@trial_options(_SCENARIOS)
@cluster_options
@report_errors
def command(
    *,
    node: str | None,
    policies: Sequence[Path],
    resource: str,
    yes: bool,
    timeout: float,
    trial: Trial,
    kubeconfig: Path | None,
    context: str | None,
) -> None:
    """Measure the time from applying a ClusterPolicy until a node lists its cards.

    For each sample, Tessera deletes the cluster's ClusterPolicy, clears the node's capacity, applies the given policy
    and waits until the node's capacity lists the resource. The first sample of each scenario is shown and not counted,
    since it may pull images that later ones find on the node. With --lab everything is simulated, on virtual time: the
    reference operator's order of steps and Tessera's, with the same costs (tessera bench costs).

    \b
    Examples:
      tessera bench policy-reset --lab
      tessera bench policy-reset --lab --breakdown --repeat 10
      tessera bench policy-reset --node gpu-1 --policy built.yaml --policy precompiled.yaml --yes --json results.json
    """
    if trial.lab:
        from tessera_lab.cli.bench.experiment import run_experiment

        run_experiment("policy-reset", _SCENARIOS, trial)
        return
    if node is None or not policies:
        raise click.UsageError("give --node and at least one --policy, or simulate with --lab")
    read = {path.stem: _policy(path) for path in policies}
    if len(read) < len(policies):
        raise click.UsageError("two --policy files have the same name, which names their results; rename one")
    if not yes:
        raise CommandError(
            "error: each sample deletes the cluster's ClusterPolicy, and with it the driver of every node; "
            "add --yes if no workload needs the cards"
        )
    from tessera_lab.cli.bench.results import collect_results

    run_ = PolicyRun(node, read, resource, trial.repeat or 5)
    with collect_results(trial.json_file) as results:
        run_command(_live(run_, ClusterTarget(kubeconfig, context, timeout), results))


def _policy(path: Path) -> Mapping[str, Any]:
    import yaml

    from tessera.api.documents import load_document
    from tessera.api.problems import FileRefused
    from tessera.cli.base.inputs import display_name, read_text
    from tessera.gpu_operator.policy_objects import read_cluster_policy

    try:
        loaded = load_document(read_text(path))
        if not isinstance(loaded, Mapping) or loaded.get("kind") != "ClusterPolicy":
            raise CommandError(
                f"error: {display_name(path)} is not a ClusterPolicy; its kind must be ClusterPolicy of nvidia.com/v1"
            )
        read_cluster_policy(loaded)
    except (FileRefused, yaml.YAMLError) as error:
        raise CommandError(f"error: {display_name(path)}: {error}") from error
    return loaded


async def _live(run: PolicyRun, target: ClusterTarget, results: "list[Samples]") -> None:
    """Measures, and adds every scenario to ``results``; one that fails with the samples measured before."""
    import random

    from tessera.clock import SystemClock
    from tessera_lab.cli.bench.results import progress_printer, sample_collector
    from tessera_lab.experiments.measuring import PolicyReset
    from tessera_lab.experiments.results import POLICY_RESET, Samples

    async with connect_measurable(target, POLICY_RESET) as client:
        for name, policy in run.policies.items():
            tell, samples = progress_printer(name), list[float]()
            experiment = PolicyReset(
                client,
                SystemClock(),
                node=run.node,
                resource=run.resource,
                rng=random.Random(),
                step_timeout=target.step_timeout,
                report=tell,
            )

            try:
                await experiment.run(policy, run.repeats, each=sample_collector(samples, tell))
            finally:
                results.append(
                    Samples(
                        experiment=POLICY_RESET,
                        scenario=name,
                        first=next(iter(samples), None),
                        samples=tuple(samples[1:]),
                        simulated=experiment.simulated,
                    )
                )
