"""``tessera cordon``: takes one card out of service by hand."""

import asyncio
from pathlib import Path

import click

from tessera.cli.base.cards import NamedCard, find_card, parse_card
from tessera.cli.base.connection import cluster_options, connect, report_errors
from tessera.cli.base.console import say
from tessera.text import UserError


def _parse_reason(_ctx: click.Context, _param: click.Parameter, text: str) -> str:
    from tessera.limits import CORDON_REASON

    reason = text.strip()
    if not reason or not reason.isprintable() or len(reason) > CORDON_REASON:
        raise click.BadParameter(f"a reason is one printable line of {CORDON_REASON}, such as --reason 'fan is loud'")
    return reason


@click.command(no_args_is_help=True)
@click.argument("card", metavar="NODE/INDEX", callback=parse_card)
@click.option(
    "--reason", required=True, metavar="TEXT", callback=_parse_reason, help="Why, for everybody who looks at the card."
)
@cluster_options
@report_errors
def command(*, card: NamedCard, reason: str, kubeconfig: Path | None, context: str | None) -> None:
    """Take one card out of service: no new pod gets a part of it, running pods stay.

    INDEX is the number of the card in tessera health NODE and nvidia-smi. The card stays out of service, over restarts
    of the agent and reboots of the node, until tessera uncordon. While it lasts, Tessera neither resets the card nor
    evicts pods from it. It is no fault: no alert fires for it.

    The command writes the annotation tessera.dev/cordon.UUID of the Node, and needs the right to patch nodes, as the
    ClusterRole tessera-admin has it. Without the command:

    \b
      kubectl annotate node NODE tessera.dev/cordon.UUID='fan is loud'
      kubectl annotate node NODE tessera.dev/cordon.UUID-

    \b
    Examples:
      tessera cordon gpu-1/0 --reason 'fan is loud'
      tessera cordon gpu-1/0 --reason 'ECC errors, ticket 4711'
    """
    asyncio.run(_cordon(card, reason, kubeconfig, context))


async def _cordon(named: NamedCard, reason: str, kubeconfig: Path | None, context: str | None) -> None:
    from tessera.api.nodes.node_marks import cordon_key
    from tessera.kube.resources import NODES

    async with connect("tessera-cordon", kubeconfig, context) as client:
        card = await find_card(client, named)
        key, meta = cordon_key(card.gpu), card.node.metadata
        if key in meta.annotations:
            raise UserError(
                f"{card.name} is cordoned already: {meta.annotations[key]}; to change the reason, first run tessera"
                f" uncordon {named}"
            )
        await client.merge_patch(NODES, meta.name, {"metadata": {"annotations": {key: reason}}}, uid=meta.uid)
    say(
        f"{card.name} is cordoned: no new pod gets a part of it, running pods stay.",
        f"See it: tessera health {named.node}. End it: tessera uncordon {named}",
    )
