"""``tessera bench``: the experiments of Red Hat's article, on a live cluster or in the lab."""

import click

from tessera.cli.base.command_group import LazyCommands, Table

#: A command a file.
COMMANDS: Table = {
    "policy-reset": (
        "tessera.cli.bench.policy_reset",
        "Apply a ClusterPolicy until a node counts its cards, delete it, again.",
    ),
    "autoscale": (
        "tessera.cli.bench.autoscale",
        "Add and remove a GPU workload; from a new node's Ready to the workload's start.",
    ),
}


@click.command(cls=LazyCommands, table=COMMANDS, group="bench", no_args_is_help=True)
def command() -> None:
    """Measure how long it takes until cards can be used, and compare ways for drivers to come."""
