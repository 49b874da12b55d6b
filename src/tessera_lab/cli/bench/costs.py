"""``tessera bench costs``: lists the costs that simulated experiments assume."""

import click

from tessera.cli.base.connection import report_errors
from tessera.cli.base.console import say, say_json
from tessera_lab.simulation.cost_model import CostModel, list_costs


@click.command()
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="Output format.")
@report_errors
def command(output: str) -> None:
    """Print the cost model of experiments in the lab.

    Numbers marked "calibrated" are not measured: they were chosen so that the reference operator's order of steps gives
    Red Hat's means. The others name their source.

    \b
    Example:
      tessera bench costs
    """
    costs = list_costs(CostModel())
    if output == "json":
        say_json({"simulated": True, "costs": costs})
        return
    width = max(len(each.name) for each in costs)
    for each in costs:
        say(f"{each.name:<{width}} {each.value:>8g} {each.unit:<6} {each.meaning}  [{each.source}]")
