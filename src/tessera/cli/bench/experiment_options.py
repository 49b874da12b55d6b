"""Options that both experiments have."""

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from tessera.cli.base.connection import CommandError
from tessera.cli.base.extensions import LAB_PACKAGE, extension
from tessera.cli.base.option_types import Duration

T = TypeVar("T")

FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


class Trial(NamedTuple):
    """What the options say.

    Attributes:
        lab: simulated here instead of on a cluster.
        scenarios: names of scenarios that the lab plays; all if none is named.
        operator: whose order of steps the lab plays; ``both`` or one.
        breakdown: the lab tells where every saved second comes from.
        repeat: samples of each scenario; None for as many as are usual.
        seed: of chance in the lab.
        json_file: where the samples go; None for nowhere.
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


def experiments_of_the_lab() -> Callable[[str, Sequence[str], Trial], None]:
    """The function that plays an experiment on simulated nodes, given its name, its scenarios' names and the options.

    Raises:
        CommandError: no installed package has it.
    """
    run: Callable[[str, Sequence[str], Trial], None] | None = extension("experiments")
    if run is None:
        raise CommandError(
            f"error: --lab needs the package {LAB_PACKAGE}; pip install {LAB_PACKAGE}, or leave --lab out"
        )
    return run


def trial_options(scenarios: Sequence[str]) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """``--lab`` and what belongs to it, ``--repeat`` and ``--json``; the function gets them as one, ``trial``.

    Args:
        scenarios: those that the lab has.
    """
    options = [
        click.option("--lab", is_flag=True, help="Simulate it here, on virtual time."),
        click.option(
            "--scenario",
            "scenarios",
            multiple=True,
            type=click.Choice(list(scenarios)),
            help="In the lab: only this one; repeatable.",
        ),
        click.option(
            "--operator",
            type=click.Choice(["both", "reference", "tessera"]),
            default="both",
            help="In the lab: whose order of steps.",
        ),
        click.option("--breakdown", is_flag=True, help="In the lab: tell where every saved second comes from."),
        click.option(
            "--repeat",
            type=click.IntRange(1, 1000),
            metavar="N",
            help="Samples that count, of each scenario.  [default: 30 in the lab, 5 on a cluster]",
        ),
        click.option("--seed", type=int, default=0, show_default=True, help="In the lab: of chance."),
        click.option(
            "--json",
            "json_file",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            callback=_writable,
            help="Write the samples there, for tessera provisioning report --experiment.",
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


def timeout_option(usual: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """``--timeout``: how long a live cluster may take.

    Args:
        usual: if the option is left out.
    """
    return click.option(
        "--timeout",
        type=Duration(),
        default=usual,
        show_default=True,
        metavar="TIME",
        help="On a cluster: give up when one step takes longer.",
    )


def _writable(_context: click.Context, _parameter: click.Parameter, file: Path | None) -> Path | None:
    """Refuses a file that cannot be written before anything is measured."""
    if file is not None:
        if not file.parent.is_dir():
            raise click.BadParameter(f"{file} cannot be written: there is no folder {file.parent}; make it first")
        if not os.access(file if file.exists() else file.parent, os.W_OK):
            raise click.BadParameter(f"{file} cannot be written: permission denied; name another file")
    return file
