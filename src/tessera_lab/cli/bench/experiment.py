"""What both experiments of ``tessera bench`` share: options, the cluster that a live one measures, and runs in the lab.

Nodes of a lab are recognized by their container runtime. Nothing is measured on a cluster on virtual time: its waits
are skipped, so the seconds of this machine's clock mean nothing there.
"""

import functools
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from tessera.cli.base.connection import CommandError, connect
from tessera.cli.base.console import say
from tessera.cli.base.durations import Duration
from tessera_lab.cli.bench.results import lines, save_results
from tessera_lab.experiments import runs
from tessera_lab.experiments.clusters import SCENARIOS
from tessera_lab.experiments.results import RED_HAT, Samples
from tessera_lab.experiments.runs import PERIOD, UNEXPLAINED, Attribution, attribute
from tessera_lab.reference_operator.manifests import REFERENCE, ReferenceWaits

if TYPE_CHECKING:
    from tessera.kube.client import Client


T = TypeVar("T")

FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
_EXPERIMENTS = {"policy-reset": runs.policy_reset, "autoscale": runs.autoscale}


class Trial(NamedTuple):
    """Values of the options of both experiments.

    Attributes:
        lab: simulate here instead of measuring a cluster.
        scenarios: names of the scenarios that the lab plays; empty for all.
        operator: the order of steps that the lab plays: ``reference``, ``tessera`` or ``both``.
        breakdown: the lab shows the cause of every saved second.
        repeat: samples of each scenario; None for the default.
        seed: of the lab's random numbers.
        json_file: the file for the samples; None for no file.
    """

    lab: bool
    scenarios: Sequence[str]
    operator: str
    breakdown: bool
    repeat: int | None
    seed: int
    json_file: Path | None

    @property
    def orders(self) -> Sequence[str]:
        """The orders of steps that the lab plays."""
        return ("reference", "tessera") if self.operator == "both" else (self.operator,)


def trial_options(scenarios: Sequence[str]) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Adds ``--lab`` and its options, ``--repeat`` and ``--json``; the function gets them as one :class:`Trial`.

    Args:
        scenarios: names of the lab's scenarios.
    """
    options = [
        click.option("--lab", is_flag=True, help="Simulate it on this machine, on virtual time."),
        click.option(
            "--scenario",
            "scenarios",
            multiple=True,
            type=click.Choice(list(scenarios)),
            help="Only this way to get drivers; repeatable. Only with --lab.",
        ),
        click.option(
            "--operator",
            type=click.Choice(["both", "reference", "tessera"]),
            default="both",
            help="Simulate this operator's order of steps. Only with --lab.",
        ),
        click.option("--breakdown", is_flag=True, help="Show the cause of every saved second. Only with --lab."),
        click.option(
            "--repeat",
            type=click.IntRange(1, 1000),
            metavar="N",
            help="Number of samples of each scenario.  [default: 30 in the lab, 5 on a cluster]",
        ),
        click.option(
            "--seed", type=int, default=0, show_default=True, help="Seed of the random numbers. Only with --lab."
        ),
        click.option(
            "--json",
            "json_file",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            callback=_check_writable,
            help="Write the samples into FILE, for tessera provisioning report --experiment.",
        ),
    ]

    def add(function: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(function)
        def with_trial(**given: Any) -> T:
            trial = Trial(**{name: given.pop(name) for name in Trial._fields})
            return function(**given, trial=trial)

        for option in reversed(options):
            with_trial = option(with_trial)
        return with_trial

    return add


def timeout_option(default: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Adds ``--timeout``: the longest time that a step may take on a live cluster."""
    return click.option(
        "--timeout",
        type=Duration(),
        default=default,
        show_default=True,
        metavar="TIME",
        help="Give up when one step on the cluster takes longer.",
    )


def _check_writable(_context: click.Context, _parameter: click.Parameter, file: Path | None) -> Path | None:
    """Refuses a file that cannot be written before anything is measured."""
    if file is not None:
        if not file.parent.is_dir():
            raise click.BadParameter(f"{file} cannot be written: there is no folder {file.parent}; make it first")
        if not os.access(file if file.exists() else file.parent, os.W_OK):
            raise click.BadParameter(f"{file} cannot be written: permission denied; name another file")
    return file


class ClusterTarget(NamedTuple):
    """The cluster that the options name.

    Attributes:
        kubeconfig: value of ``--kubeconfig``.
        context: value of ``--context``.
        step_timeout: seconds that one step may take there.
    """

    kubeconfig: Path | None
    context: str | None
    step_timeout: float


@asynccontextmanager
async def connect_measurable(target: ClusterTarget, command: str) -> AsyncIterator["Client"]:
    """A client for a cluster that is not on virtual time.

    Args:
        target: the cluster.
        command: the experiment's name.

    Raises:
        CommandError: the cluster is a lab on virtual time.
    """
    from tessera.cli.base.simulated_cluster import has_virtual_time
    from tessera.kube.resources import NODES

    async with connect("tessera-bench", target.kubeconfig, target.context) as client:
        if await has_virtual_time(client, (await client.list(NODES)).items):
            raise CommandError(
                "error: this cluster is a lab on virtual time: waits are skipped, so measured seconds mean nothing. "
                f"Use tessera bench {command} --lab, which measures simulated time, or start the lab without "
                "--virtual-time"
            )
        yield client


def run_experiment(experiment: str, scenarios: Sequence[str], trial: Trial) -> None:
    """Plays an experiment, and prints and writes its results.

    Args:
        experiment: its name.
        scenarios: names of all its scenarios.
        trial: values of the options.
    """
    one = _measure(experiment, trial.repeat or 30, trial.seed)
    results: list[Samples] = []
    breakdowns: list[str] = []
    for name in trial.scenarios or scenarios:
        if trial.breakdown:
            found = attribute(partial(one, name), built=not SCENARIOS[name].precompiled, report=_print_result(name))
            results += [found.reference, found.ours]
            breakdowns += format_attribution(found)
            continue
        for order in trial.orders:
            _print_result(name)(order)
            results.append(one(name, order, REFERENCE))
    titles = {name: scenario.title for name, scenario in SCENARIOS.items()}
    say(*lines(results, titles, RED_HAT), *breakdowns)
    save_results(results, trial.json_file)


def _measure(experiment: str, repeats: int, seed: int) -> Callable[[str, str, ReferenceWaits], Samples]:
    from tessera_lab.cli.own_commands import own_commands
    from tessera_lab.installation.install import build_entrypoint

    make = build_entrypoint(own_commands())
    played = _EXPERIMENTS[experiment]
    return lambda name, order, waits: played(
        SCENARIOS[name], repeats, operator=order, make=make, waits=waits, seed=seed
    )


def _print_result(scenario: str) -> Callable[[str], None]:
    return lambda step: say(f"{scenario}: {step} ...", err=True)


def format_attribution(attribution: Attribution) -> Iterator[str]:
    """The seconds that each wait adds to the difference between two means."""
    yield f"  {attribution.reference.scenario}: where {attribution.total_saving:.1f} s come from (simulated)"
    for each in attribution.savings:
        yield f"    {round(each.seconds, 1) + 0.0:>7.1f} s  {each.wait}"  # no minus before a zero
    yield f"    {attribution.total_saving:>7.1f} s  together"
    if any(round(each.seconds, 1) < 0 for each in attribution.savings if each.wait not in {UNEXPLAINED, PERIOD}):
        yield "  below 0: without that wait, a periodic check came later by chance; more samples reduce this"
