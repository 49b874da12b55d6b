"""``tessera bench costs``: what the lab's experiments assume."""

import click

from tessera.cli.base.connection import report_errors
from tessera.cli.base.console import say, say_json


@click.command()
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="How to show it.")
@report_errors
def command(output: str) -> None:
    """Print the cost model that experiments in the lab run on.

    Numbers marked "calibrated" were chosen so that the reference operator's order of steps comes to Red Hat's means;
    nobody measured them. The others name their source.
    """
    from tessera_lab.simulation.cost_model import CostModel, list_costs

    costs = list_costs(CostModel())
    if output == "json":
        say_json({"simulated": True, "costs": costs})
        return
    width = max(len(each.name) for each in costs)
    for each in costs:
        say(f"{each.name:<{width}} {each.value:>8g} {each.unit:<6} {each.meaning}  [{each.source}]")
