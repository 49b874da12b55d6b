"""``tessera kueue``: writes Kueue's configuration and queues for GPU memory."""

import click

from tessera.cli.base.command_group import LazyCommands, Table

#: Each command is one file.
COMMANDS: Table = {
    "config": ("tessera.cli.kueue.config", "Write the part of Kueue's Configuration that charges slices."),
    "queues": ("tessera.cli.kueue.queues", "Write flavors and queues with GPU memory as quota."),
}


@click.command(cls=LazyCommands, table=COMMANDS, no_args_is_help=True)
def command() -> None:
    """Write Kueue's configuration and queues, so that slices are charged their GPU memory.

    \b
    Examples:
      tessera kueue config
      tessera kueue queues
    """
