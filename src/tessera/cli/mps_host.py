"""``tessera mps-host``: starts the MPS daemons of a node for its agent."""

from pathlib import Path

import click

from tessera.cli.base.connection import report_errors
from tessera.cli.base.process import log_option, start_log


@click.command()
@click.option(
    "--socket",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("/mps/host.sock"),
    show_default=True,
    help="Where to listen for the agent, its --mps-host.",
)
@log_option
@report_errors
def command(path: Path, log_level: str) -> None:
    """Start the MPS daemons of this node for its agent.

    The daemons end with this process's container, not with the agent's, so an update of the agent leaves their clients
    alone. It runs as the DaemonSet tessera-mps (deploy/mps.yaml) on nodes with MPS shares, and needs the host's
    processes, the driver, and the folders of MPS.

    \b
    Example:
      tessera mps-host
    """
    from tessera.agent.mps.spawning import MpsHost

    start_log(log_level)
    MpsHost(path).serve()
