"""``tessera map``: each card as a row of tiles."""

import asyncio
from pathlib import Path

import click

from tessera.cli.base.connection import CommandError, cluster_options, connect, report_errors
from tessera.cli.base.console import say_coloured, say_json, shows_colours
from tessera.cli.base.tiles import draw
from tessera.explain.card_map import NodeCards, PendingNode, cards_of, pending_nodes


@click.command()
@click.argument("nodes", nargs=-1, metavar="[NODE]...")
@click.option("-o", "--output", type=click.Choice(["tiles", "json"]), default="tiles", help="Output format.")
@click.option(
    "--colour/--no-colour", "--color/--no-color", default=None, help="Use colours.  [default: on a terminal only]"
)
@cluster_options
@report_errors
def command(
    nodes: tuple[str, ...], output: str, colour: bool | None, kubeconfig: Path | None, context: str | None
) -> None:
    """Show each card's slices, the pods that have them, and the free memory slots.

    Each row is a card, and each tile a slice or a free memory slot. A slice is as wide as the number of its memory
    slots; the list below the cards names its pod. Without NODE, the command shows all nodes with slices on demand
    (label nvidia.com/mig.config=dynamic).

    \b
    Examples:
      tessera map
      tessera map gpu-node-1
      tessera map -o json | jq '.nodes[].cards[].possible'
    """
    found, pending = asyncio.run(_read(kubeconfig, context))
    missing = set(nodes) - {each.node for each in found} - {each.node for each in pending}
    if missing:
        names = ", ".join(each.node for each in found) or "none"
        raise click.ClickException(f"node {min(missing)!r} has no cards for slices; nodes with such cards: {names}")
    shown = [each for each in found if not nodes or each.node in nodes]
    coming = [each for each in pending if not nodes or each.node in nodes]
    if output == "json":
        say_json({"nodes": shown, "pending": coming})
        return
    say_coloured(*draw(shown, coming, colour=shows_colours() if colour is None else colour))


async def _read(kubeconfig: Path | None, context: str | None) -> tuple[list[NodeCards], list[PendingNode]]:
    from tessera.api.instaslice import INSTASLICES
    from tessera.api.names import INSTASLICE_NAMESPACE, MIG_CONFIG_LABEL
    from tessera.kube.client.errors import Forbidden, NotFound
    from tessera.kube.resources import NODES

    async with connect("tessera-map", kubeconfig, context) as client:
        try:
            found = cards_of((await client.list(INSTASLICES, INSTASLICE_NAMESPACE)).items)
        except NotFound as error:
            raise CommandError(
                "error: Tessera is not installed in this cluster: the kind Instaslice is missing; run tessera install"
            ) from error
        try:
            labelled = (await client.list(NODES, label_selector=MIG_CONFIG_LABEL)).items
        except Forbidden:  # the cards can be shown without the nodes' labels
            labelled = []
        return found, pending_nodes(labelled, {each.node for each in found})
