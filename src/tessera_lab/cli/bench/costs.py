"""``tessera bench costs``: lists the costs that simulated experiments assume."""

import click

from tessera.cli.base.connection import report_errors
from tessera.cli.base.grammar import Output, output_option
from tessera_lab.simulation.cost_model import CostModel, list_costs


@click.command()
@output_option("table")
@report_errors
def command(output: Output) -> None:
    """Print the cost model of experiments in the lab.

    Numbers marked "calibrated" are not measured: they were chosen so that the reference operator's order of steps gives
    Red Hat's means. The others name their source.

    \b
    Example:
      tessera bench costs
    """
    costs = list_costs(CostModel())
    width = max(len(each.name) for each in costs)
    output.show(
        {"simulated": True, "costs": costs},
        (f"{each.name:<{width}} {each.value:>8g} {each.unit:<6} {each.meaning}  [{each.source}]" for each in costs),
        (f"cost/{each.name}" for each in costs),
    )
