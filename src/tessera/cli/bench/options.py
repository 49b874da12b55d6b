"""Options that both experiments have, and what they say together."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

if TYPE_CHECKING:
    from tessera.provisioning.experiments.results import Samples

T = TypeVar("T")

FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


class Trial(NamedTuple):
    """What the options say.

    Attributes:
        lab: simulated here instead of on a cluster.
        scenarios: names of scenarios that the lab plays; all if none is named.
        operator: whose order of steps the lab plays; ``both`` or one.
        attribute: the lab tells where every saved second comes from.
        repeat: samples of each scenario; None for as many as are usual.
        seed: of chance in the lab.
        json_file: where the samples go; None for nowhere.
    """

    lab: bool
    scenarios: Sequence[str]
    operator: str
    attribute: bool
    repeat: int | None
    seed: int
    json_file: Path | None

    @property
    def orders(self) -> Sequence[str]:
        """The orders of steps that the lab plays."""
        return ("reference", "tessera") if self.operator == "both" else (self.operator,)


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
        click.option("--attribute", is_flag=True, help="In the lab: tell where every saved second comes from."),
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


def told(results: "Sequence[Samples]", file: Path | None) -> None:
    """Prints what was measured on a live cluster, and writes it where that was asked for."""
    from tessera.cli.bench.tables import lines
    from tessera.provisioning.experiments.results import write_results

    print("\n".join(lines(results, {}, {})))
    if file is not None:
        file.write_bytes(write_results(results))
