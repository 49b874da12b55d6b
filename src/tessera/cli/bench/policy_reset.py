"""``tessera bench policy-reset``: how long a ClusterPolicy takes until a node counts its cards."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tessera.cli.base.connection import CommandError, cluster_options, report_errors
from tessera.cli.bench.experiment_options import FILE, Trial, timeout_option, trial_options

if TYPE_CHECKING:
    from tessera.cli.bench.live import ClusterTarget
    from tessera.provisioning.experiments.results import Samples

_SCENARIOS = ["built", "precompiled-public"]


class PolicyRun(NamedTuple):
    """What is tried on a live cluster: the node, the policies by scenario, what capacity must list, samples of each."""

    node: str
    policies: Mapping[str, Mapping[str, Any]]
    resource: str
    repeats: int


@click.command()
@click.option("--node", metavar="NAME", help="The node that is watched, on a live cluster.")
@click.option(
    "--policy",
    "policies",
    type=FILE,
    multiple=True,
    metavar="FILE",
    help="A ClusterPolicy to try, on a live cluster; repeatable. Its scenario is called after the file.",
)
@click.option("--resource", default="nvidia.com/gpu", show_default=True, help="What the node's capacity must list.")
@click.option("--yes", is_flag=True, help="Do it: the cluster's drivers are taken away and brought back each time.")
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
    """Clear the node's capacity, apply a ClusterPolicy, wait until the node counts its cards; again and again.

    The first sample of each scenario is shown and not counted, since it may pull images that later ones find. With
    --lab everything is simulated, on virtual time: the reference operator's order of steps and Tessera's, on the same
    declared costs.

    \b
    Examples:
      tessera bench policy-reset --lab
      tessera bench policy-reset --lab --breakdown --repeat 10
      tessera bench policy-reset --node gpu-1 --policy built.yaml --policy precompiled.yaml --yes --json results.json
    """
    if trial.lab:
        from tessera.cli.bench.experiment_options import experiments_of_the_lab

        experiments_of_the_lab()("policy-reset", _SCENARIOS, trial)
        return
    if node is None or not policies:
        raise click.UsageError("name --node and at least one --policy, or try it with --lab")
    read = {path.stem: _policy(path) for path in policies}
    if len(read) < len(policies):
        raise click.UsageError("scenarios are called after their files: give --policy files of different names")
    if not yes:
        raise CommandError(
            "error: this deletes the cluster's ClusterPolicy and with it the driver of every node, each time; "
            "say --yes if nothing needs them"
        )
    from tessera.cli.bench.live import ClusterTarget, collect_results

    run_ = PolicyRun(node, read, resource, trial.repeat or 5)
    with collect_results(trial.json_file) as results:
        asyncio.run(_live(run_, ClusterTarget(kubeconfig, context, timeout), results))


def _policy(path: Path) -> Mapping[str, Any]:
    import yaml

    from tessera.api.documents import FileRefused, load_document
    from tessera.api.driver.cluster_policy import read_cluster_policy
    from tessera.cli.base.input_files import display_name, read_text

    try:
        loaded = load_document(read_text(path))
        if not isinstance(loaded, Mapping) or loaded.get("kind") != "ClusterPolicy":
            raise CommandError(
                f"error: {display_name(path)} is no ClusterPolicy; kind must be ClusterPolicy of nvidia.com/v1"
            )
        read_cluster_policy(loaded)
    except (FileRefused, yaml.YAMLError) as error:
        raise CommandError(f"error: {display_name(path)}: {error}") from error
    return loaded


async def _live(run: PolicyRun, reached: "ClusterTarget", results: "list[Samples]") -> None:
    """Measures; ``results`` gets every scenario, also what there is of one that fails."""
    import random

    from tessera.cli.bench.live import connect_measurable, progress_printer
    from tessera.clock import SystemClock
    from tessera.provisioning.experiments.policyreset import PolicyReset
    from tessera.provisioning.experiments.results import POLICY_RESET, Samples

    async with connect_measurable(reached, POLICY_RESET) as client:
        for name, policy in run.policies.items():
            tell, samples = progress_printer(name), list[float]()
            experiment = PolicyReset(
                client,
                SystemClock(),
                node=run.node,
                resource=run.resource,
                rng=random.Random(),
                patience=reached.patience,
                told=tell,
            )

            def each(seconds: float, tell: Callable[[str], None] = tell, samples: list[float] = samples) -> None:
                samples.append(seconds)
                tell(f"{seconds:.1f} s")

            try:
                await experiment.run(policy, run.repeats, each=each)
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
