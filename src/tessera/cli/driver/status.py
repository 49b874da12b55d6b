"""``tessera driver status``: how each node comes to its driver, how far it is, and why not by a better way."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tessera.cli.base.connection import cluster_options, connected, reported
from tessera.cli.base.console import say, say_json
from tessera.cli.driver.image_options import output_option

if TYPE_CHECKING:
    from tessera.cli.driver.node_drivers import NodeDriver


@click.command()
@click.argument("nodes", nargs=-1, metavar="[NODE]...")
@click.option("-v", "--verbose", is_flag=True, help="Say why no better way was taken, and show whole digests.")
@output_option
@cluster_options
@reported
def command(nodes: tuple[str, ...], *, verbose: bool, output: str, kubeconfig: Path | None, context: str | None) -> int:
    """Show how each node with cards comes to its driver.

    Strategy, image by digest, version, pool, phase and since when, and the reason. In a lab on virtual time it is not
    known how long that is by this machine's clock; -o json has the moment. Nothing is written; it needs the
    right to list nodes. The exit code is 1 if a node's driver has failed or nothing fits it.

    \b
    Examples:
      tessera driver status
      tessera driver status gpu-1 -v
      tessera driver status -o json | jq -r '.[] | select(.phase != "ready") | .node'
    """
    from tessera.cli.driver.node_drivers import is_stuck, lines

    found = asyncio.run(_read(nodes, kubeconfig, context))
    if output == "json":
        say_json(found)
    else:
        say(*lines(found, verbose=verbose))
    return 1 if any(map(is_stuck, found)) else 0


async def _read(names: tuple[str, ...], kubeconfig: Path | None, context: str | None) -> "list[NodeDriver]":
    from tessera.cli.base.simulated_cluster import leaps
    from tessera.cli.driver.node_drivers import node_drivers
    from tessera.clock import SystemClock
    from tessera.kube.resources import NODES

    async with connected("tessera-driver", kubeconfig, context) as client:
        every = [] if names else (await client.list(NODES)).items
        named = [await client.get(NODES, name) for name in names]
        found = [*every, *named]
        now = None if await leaps(client, found) else SystemClock().now()
    return node_drivers(found, now=now, named=bool(names))
