"""``tessera autoscaler``: computes an autoscaler's timers and the size of a warm pool from measured start times."""

import click

from tessera.cli.base.command_group import LazyCommands, Table

#: Each command is one file.
COMMANDS: Table = {
    "advise": (
        "tessera.cli.autoscaler.advise",
        "Compute the timers that a node group needs, and find mistakes in its settings.",
    ),
    "warm": (
        "tessera.cli.autoscaler.warm",
        "Compute the size of a pool of warm nodes, and print its placeholder pods.",
    ),
}


@click.command(cls=LazyCommands, table=COMMANDS, group="autoscaler", no_args_is_help=True)
def command() -> None:
    """Compute an autoscaler's timers, and the size of a pool of warm nodes, from measured start times.

    \b
    Example:
      tessera autoscaler advise
    """
