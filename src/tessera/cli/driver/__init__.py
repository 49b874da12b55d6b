"""``tessera driver``: which driver image a node gets, whether it is there, and how it comes to where it is needed."""

import click

from tessera.cli.lazy import LazyCommands, Table

#: A command a file.
COMMANDS: Table = {
    "images": ("tessera.cli.driver.images", "Say which driver images a registry has for a kernel, and which is taken."),
    "mirror": ("tessera.cli.driver.mirror", "Copy the driver images that kernels need into another registry."),
}


@click.command(cls=LazyCommands, table=COMMANDS, no_args_is_help=True)
def command() -> None:
    """Look after driver images."""
