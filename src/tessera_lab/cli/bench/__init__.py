"""``tessera bench``: the experiments of Red Hat's article, on a live cluster or in the lab."""

import click

from tessera.cli.base.command_group import LazyCommands, Table

#: Each command is one file.
COMMANDS: Table = {
    "policy-reset": (
        "tessera_lab.cli.bench.policy_reset",
        "Measure the time from applying a ClusterPolicy until a node lists its cards.",
    ),
    "autoscale": (
        "tessera_lab.cli.bench.autoscale",
        "Measure the time from a new node's Ready until a GPU workload starts on it.",
    ),
    "costs": ("tessera_lab.cli.bench.costs", "Print the cost model of the lab: each number, its meaning, its source."),
}


@click.command(cls=LazyCommands, table=COMMANDS, no_args_is_help=True)
def command() -> None:
    """Measure how long nodes take until their cards can be used, and compare ways to install the driver.

    \b
    Example:
      tessera bench costs
    """
