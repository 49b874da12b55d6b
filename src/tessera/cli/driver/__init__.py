"""``tessera driver``: shows the nodes' drivers, and finds, builds and mirrors driver images."""

import click

from tessera.cli.base.command_group import LazyCommands, Table

#: Each command is one file.
COMMANDS: Table = {
    "status": ("tessera.cli.driver.status", "Show each node's driver, how it is installed, and its progress."),
    "apply": ("tessera.cli.install.drivers", "Apply the driver settings of a file of NVIDIA's gpu-operator."),
    "images": ("tessera.cli.driver.images", "List a registry's driver images for a kernel, and the one Tessera uses."),
    "build": ("tessera.cli.driver.build", "Build a driver image with precompiled modules for one kernel."),
    "coverage": ("tessera.cli.driver.coverage", "Check that the next kernels have a driver image, before a reboot."),
    "mirror": ("tessera.cli.driver.mirror", "Copy the driver images that kernels need into another registry."),
}


@click.command(cls=LazyCommands, table=COMMANDS, no_args_is_help=True)
def command() -> None:
    """Show the nodes' drivers; find, build and mirror driver images.

    \b
    Examples:
      tessera driver status
      tessera driver images --cluster
    """
