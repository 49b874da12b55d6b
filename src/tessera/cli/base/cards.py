"""Finds the card that a person names as NODE/INDEX, by what the node's agent has published on the Node."""

import re
from typing import TYPE_CHECKING

import click
import msgspec

from tessera.text import UserError

if TYPE_CHECKING:
    from tessera.kube.client.client import Client
    from tessera.kube.resources import Node

_INDEX = re.compile(r"[0-9]{1,4}")


class NamedCard(msgspec.Struct, frozen=True):
    """A card as a person wrote it: its node, and the driver's index or the UUID."""

    node: str
    card: str

    def __str__(self) -> str:
        return f"{self.node}/{self.card}"


class FoundCard(msgspec.Struct, frozen=True):
    """A card of a node that exists: the Node, the card's UUID, and both in words."""

    node: "Node"
    gpu: str
    name: str


def parse_card(_ctx: click.Context, _param: click.Parameter, text: str) -> NamedCard:
    """A click callback: reads ``NODE/INDEX`` or ``NODE/UUID``."""
    node, slash, card = text.partition("/")
    if not (node and slash and (_INDEX.fullmatch(card) or card.startswith("GPU-"))):
        raise click.BadParameter(
            f'"{text}" names no card: write NODE/INDEX, such as gpu-1/0, or NODE/UUID; tessera health NODE lists both'
        )
    return NamedCard(node, str(int(card)) if _INDEX.fullmatch(card) else card)


async def find_card(client: "Client", named: NamedCard) -> FoundCard:
    """Reads the Node, and finds the card among those that its agent has published.

    Raises:
        UserError: there is no such node, or it has no such card; the text names the cards that it has.
        ApiError: the API server refuses.
    """
    from tessera.api.nodes.card_faults import CARDS_ANNOTATION, decode_cards
    from tessera.kube.client.errors import NotFound
    from tessera.kube.resources import NODES

    try:
        node = await client.get(NODES, named.node)
    except NotFound:
        raise UserError(f"there is no node {named.node}; kubectl get nodes lists them") from None
    cards = decode_cards(node.metadata.annotations.get(CARDS_ANNOTATION, "")).gpus
    found = next((each for each in cards if named.card in {str(each.index), each.gpu}), None)
    if found is not None:
        return FoundCard(node, found.gpu, f"{named.node}/{found.index} ({found.gpu})")
    if not cards:
        raise UserError(
            f"node {named.node} has published no cards: no agent of Tessera has run there yet, or it found none;"
            f" tessera why node/{named.node} says why"
        )
    listed = ", ".join(f"{each.index} ({each.gpu})" for each in cards)
    raise UserError(f"node {named.node} has no card {named.card}; it has {listed}")
