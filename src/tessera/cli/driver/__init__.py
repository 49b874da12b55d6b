"""``tessera driver``: which driver image a node gets, whether it is there, and how it comes to where it is needed."""

import click

from tessera.cli.base.command_group import LazyCommands, Table

#: A command a file.
COMMANDS: Table = {
    "status": ("tessera.cli.driver.status", "Show how each node comes to its driver, how far it is, and why."),
    "images": ("tessera.cli.driver.images", "Say which driver images a registry has for a kernel, and which is taken."),
    "build": ("tessera.cli.driver.build", "Build a driver image with finished modules for one kernel, in the cluster."),
    "coverage": ("tessera.cli.driver.coverage", "Say whether kernels that are to come have a driver image; a gate."),
    "mirror": ("tessera.cli.driver.mirror", "Copy the driver images that kernels need into another registry."),
}


@click.command(cls=LazyCommands, table=COMMANDS, no_args_is_help=True)
def command() -> None:
    """Look after drivers and their images."""
