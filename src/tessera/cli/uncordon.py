"""``tessera uncordon``: gives a card that was cordoned by hand back to pods."""

import asyncio
from pathlib import Path

import click

from tessera.cli.base.cards import NamedCard, find_card, parse_card
from tessera.cli.base.connection import cluster_options, connect, report_errors
from tessera.cli.base.console import say
from tessera.text import UserError


@click.command(no_args_is_help=True)
@click.argument("card", metavar="NODE/INDEX", callback=parse_card)
@cluster_options
@report_errors
def command(*, card: NamedCard, kubeconfig: Path | None, context: str | None) -> None:
    """Give a card that was cordoned by hand back to pods.

    The command removes the annotation tessera.dev/cordon.UUID of the Node. A card with a fault of its own stays out of
    service until that is over; tessera health NODE shows it.

    \b
    Examples:
      tessera uncordon gpu-1/0
    """
    asyncio.run(_uncordon(card, kubeconfig, context))


async def _uncordon(named: NamedCard, kubeconfig: Path | None, context: str | None) -> None:
    from tessera.api.nodes.node_marks import cordon_key
    from tessera.kube.resources import NODES

    async with connect("tessera-cordon", kubeconfig, context) as client:
        card = await find_card(client, named)
        key, meta = cordon_key(card.gpu), card.node.metadata
        if key not in meta.annotations:
            raise UserError(f"{card.name} is not cordoned; tessera health {named.node} shows the state of its cards")
        await client.merge_patch(NODES, meta.name, {"metadata": {"annotations": {key: None}}}, uid=meta.uid)
    say(f"{card.name} is not cordoned any more: pods get it once nothing else is wrong with it.")
