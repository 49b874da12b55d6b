"""``tessera autoscaler``: what measured times to a GPU mean for the timers of an autoscaler, and for warm nodes."""

import click

from tessera.cli.base.command_group import LazyCommands, Table

#: A command a file.
COMMANDS: Table = {
    "advise": (
        "tessera.cli.autoscaler.advise",
        "Say which timers a node group needs, and what is wrong with its own.",
    ),
    "warm": ("tessera.cli.autoscaler.warm", "Size a pool of warm nodes, and make its placeholder pods."),
}


@click.command(cls=LazyCommands, table=COMMANDS, group="autoscaler", no_args_is_help=True)
def command() -> None:
    """Set an autoscaler's timers by measured times to a GPU, and size a pool of warm nodes."""
