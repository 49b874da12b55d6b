"""Options that both experiments have."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from tessera.provisioning.experiments.results import Samples

C = TypeVar("C", bound=Callable[..., Any])

FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


def lab_options(scenarios: Sequence[str]) -> Callable[[C], C]:
    """``--lab`` and what belongs to it, ``--repeat`` and ``--json``."""
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

    def add(function: C) -> C:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def orders_of(operator: str) -> tuple[str, ...]:
    """The orders of steps that an option names."""
    return ("reference", "tessera") if operator == "both" else (operator,)


def told(results: "Sequence[Samples]", file: Path | None) -> None:
    """Prints what was measured on a live cluster, and writes it where that was asked for."""
    from tessera.cli.bench.tables import lines
    from tessera.provisioning.experiments.results import write_results

    print("\n".join(lines(results, {}, {})))
    if file is not None:
        file.write_bytes(write_results(results))
