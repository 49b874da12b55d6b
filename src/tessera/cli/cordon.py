"""``tessera cordon`` and ``tessera uncordon``: take one card out of service by hand, and give it back to pods.

A person names the card as NODE/INDEX; it is found by what the node's agent has published on the Node.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from tessera.cli.base.connection import cluster_options, connect, report_errors
from tessera.cli.base.console import say
from tessera.cli.base.process import run_command
from tessera.text import UserError

if TYPE_CHECKING:
    from tessera.kube.client import Client
    from tessera.kube.resources import Node

_INDEX = re.compile(r"[0-9]{1,4}")


class _NamedCard(msgspec.Struct, frozen=True):
    """A card as a person wrote it: its node, and the driver's index or the UUID."""

    node: str
    card: str

    def __str__(self) -> str:
        return f"{self.node}/{self.card}"


class _FoundCard(msgspec.Struct, frozen=True):
    """A card of a node that exists: the Node, the card's UUID, and both in words."""

    node: "Node"
    gpu: str
    name: str


def _parse_card(_ctx: click.Context, _param: click.Parameter, text: str) -> _NamedCard:
    """A click callback: reads ``NODE/INDEX`` or ``NODE/UUID``."""
    node, slash, card = text.partition("/")
    if not (node and slash and (_INDEX.fullmatch(card) or card.startswith("GPU-"))):
        raise click.BadParameter(
            f'"{text}" names no card: write NODE/INDEX, such as gpu-1/0, or NODE/UUID; tessera health NODE lists both'
        )
    return _NamedCard(node, str(int(card)) if _INDEX.fullmatch(card) else card)


async def _find_card(client: "Client", named: _NamedCard) -> _FoundCard:
    """Reads the Node, and finds the card among those that its agent has published.

    Raises:
        UserError: there is no such node, or it has no such card; the text names the cards that it has.
        ApiError: the API server refuses.
    """
    from tessera.api.nodes.card_faults import CARDS_ANNOTATION, decode_cards
    from tessera.kube.errors import NotFound
    from tessera.kube.resources import NODES

    try:
        node = await client.get(NODES, named.node)
    except NotFound:
        raise UserError(f"there is no node {named.node}; kubectl get nodes lists them") from None
    cards = decode_cards(node.metadata.annotations.get(CARDS_ANNOTATION, "")).gpus
    found = next((each for each in cards if named.card in {str(each.index), each.gpu}), None)
    if found is not None:
        return _FoundCard(node, found.gpu, f"{named.node}/{found.index} ({found.gpu})")
    if not cards:
        raise UserError(
            f"node {named.node} has published no cards: no agent of Tessera has run there yet, or it found none;"
            f" tessera why node/{named.node} says why"
        )
    listed = ", ".join(f"{each.index} ({each.gpu})" for each in cards)
    raise UserError(f"node {named.node} has no card {named.card}; it has {listed}")


def _parse_reason(_ctx: click.Context, _param: click.Parameter, text: str) -> str:
    from tessera.limits import CORDON_REASON

    reason = text.strip()
    if not reason or not reason.isprintable() or len(reason) > CORDON_REASON:
        raise click.BadParameter(f"a reason is one printable line of {CORDON_REASON}, such as --reason 'fan is loud'")
    return reason


@click.command(no_args_is_help=True)
@click.argument("card", metavar="NODE/INDEX", callback=_parse_card)
@click.option(
    "--reason", required=True, metavar="TEXT", callback=_parse_reason, help="Why, for everybody who looks at the card."
)
@cluster_options
@report_errors
def command(*, card: _NamedCard, reason: str, kubeconfig: Path | None, context: str | None) -> None:
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
    run_command(_cordon(card, reason, kubeconfig, context))


async def _cordon(named: _NamedCard, reason: str, kubeconfig: Path | None, context: str | None) -> None:
    from tessera.api.nodes.node_marks import cordon_key
    from tessera.kube.resources import NODES

    async with connect("tessera-cordon", kubeconfig, context) as client:
        card = await _find_card(client, named)
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


@click.command(no_args_is_help=True)
@click.argument("card", metavar="NODE/INDEX", callback=_parse_card)
@cluster_options
@report_errors
def uncordon(*, card: _NamedCard, kubeconfig: Path | None, context: str | None) -> None:
    """Give a card that was cordoned by hand back to pods.

    The command removes the annotation tessera.dev/cordon.UUID of the Node. A card with a fault of its own stays out of
    service until that is over; tessera health NODE shows it.

    \b
    Examples:
      tessera uncordon gpu-1/0
    """
    run_command(_uncordon(card, kubeconfig, context))


async def _uncordon(named: _NamedCard, kubeconfig: Path | None, context: str | None) -> None:
    from tessera.api.nodes.node_marks import cordon_key
    from tessera.kube.resources import NODES

    async with connect("tessera-cordon", kubeconfig, context) as client:
        card = await _find_card(client, named)
        key, meta = cordon_key(card.gpu), card.node.metadata
        if key not in meta.annotations:
            raise UserError(f"{card.name} is not cordoned; tessera health {named.node} shows the state of its cards")
        await client.merge_patch(NODES, meta.name, {"metadata": {"annotations": {key: None}}}, uid=meta.uid)
    say(f"{card.name} is not cordoned any more: pods get it once nothing else is wrong with it.")
