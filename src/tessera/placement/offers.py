"""The smallest thing of a cluster that fulfils a pod's requirements: a MIG slice, a share of a card, or a whole one.

An *offer* is an extended resource as one node has it. Of all offers that fulfil the requirements the one with the least
memory is chosen, then the one with the least part of a card's compute, then a plain profile before one that takes what
a card has once (``+me``, ``+gfx``), then a slice that is cut before one that would have to be, a slice before a share,
since nobody reaches into it, and a whole card last. How much is free at the moment does not matter: a pod would get
more than it asked for, and keep it, because the cluster was busy for a minute.

One resource name may mean different cards: ``nvidia.com/gpu`` is a T4 here and an H100 there. The answer names the
nodes that are meant, and how to keep the pod off the others: not at all if there are none, by the model if every node
has one model and that tells them apart, else by name. A node that gives out cards that fit and cards that do not under
one name is not meant.

NVLink needs a whole card: neither MIG devices nor shares reach other cards. This module does not know pods, and nothing
of when it is asked.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum, IntEnum
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import msgspec

from tessera.placement.requirements import GIB, Requirements, gib, is_product

_SUFFIXES = ("", "-me", "+gfx", "+me", "+me.all")
_NONE: Mapping[str, Collection[str]] = MappingProxyType({})
#: Lines of a refusal that list what the cluster has.
_LISTED = 8


class Kind(IntEnum):
    """What an offer is; of equals the lower number is chosen."""

    FIXED_SLICE = 0
    DYNAMIC_SLICE = 1
    SHARE = 2
    WHOLE = 3


_WORDS = {
    Kind.FIXED_SLICE: "MIG slice",
    Kind.DYNAMIC_SLICE: "MIG slice on demand",
    Kind.SHARE: "share",
    Kind.WHOLE: "whole card",
}


class CardKind(msgspec.Struct, frozen=True, kw_only=True):
    """What matters of a card.

    Attributes:
        product: NVML's name.
        memory_mib: as NVML reports it.
        compute_capability: major and minor.
        nvlink: it is joined to other cards.
        ecc: its memory is protected.
    """

    product: str
    memory_mib: int
    compute_capability: tuple[int, int]
    nvlink: bool = False
    ecc: bool = False

    @property
    def memory(self) -> int:
        """Bytes as the card is sold: its GB rounded up."""
        return -(-self.memory_mib // 1024) * GIB


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """An extended resource of a node.

    Attributes:
        node: whose.
        resource: ``nvidia.com/mig-3g.20gb``.
        kind: what one of it is.
        card: of which card.
        memory: bytes that one of it has.
        portion: part of the card's compute that one of it has.
        count: how many the node has, in use or not; of slices on demand the most that fit.
        suffix: of a MIG profile, ``+me``.
    """

    node: str
    resource: str
    kind: Kind
    card: CardKind
    memory: int
    portion: Fraction
    count: int
    suffix: str = ""

    @property
    def nvlink(self) -> bool:
        """Whether a container can talk to other cards through NVLink."""
        return self.kind is Kind.WHOLE and self.card.nvlink

    @property
    def cost(self) -> tuple[int, float, int, Kind]:
        """What one of it takes; the least is chosen."""
        known = _SUFFIXES.index(self.suffix) if self.suffix in _SUFFIXES else len(_SUFFIXES)
        return self.memory, float(self.portion), known, self.kind

    def __str__(self) -> str:
        card = self.card
        extras = [text for text, has in (("ECC", card.ecc), ("NVLink", self.nvlink)) if has]
        capability = "{}.{}".format(*card.compute_capability)
        facts = ", ".join([gib(self.memory), f"compute capability {capability}", *extras])
        return f"{self.resource} ({_WORDS[self.kind]} of {card.product}: {facts})"


class KeptBy(Enum):
    """What keeps the pod off nodes whose resource of this name does not fulfil what it asks for."""

    NOTHING = "nothing"
    #: A label that tells the model.
    PRODUCT = "product"
    NODES = "nodes"


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What the pod asks for.

    Attributes:
        resource: one of this.
        kept_by: which restriction it needs.
        products: NVML's names of the cards that are meant.
        nodes: the nodes that are meant.
        reason: why this, for the pod's author.
    """

    resource: str
    kept_by: KeptBy
    products: tuple[str, ...]
    nodes: tuple[str, ...]
    reason: str


class Impossible(msgspec.Struct, frozen=True):
    """Nothing of the cluster fulfils the requirements; ``text`` says what the cluster has."""

    text: str


def unmet(requirements: Requirements, offer: Offer) -> tuple[str, ...]:
    """The names of the requirements that an offer does not fulfil."""
    card = offer.card
    verdicts = {
        "memory": offer.memory >= requirements.memory,
        "compute capability": all(each.holds(card.compute_capability) for each in requirements.capability),
        "product": not requirements.products or any(is_product(each, card.product) for each in requirements.products),
        "ECC": card.ecc or not requirements.ecc,
        "NVLink": offer.nvlink or not requirements.nvlink,
    }
    return tuple(name for name, holds in verdicts.items() if not holds)


def choose(
    requirements: Requirements,
    offers: Iterable[Offer],
    *,
    undescribed: Mapping[str, Collection[str]] = _NONE,
    where: str = "the cluster",
) -> Choice | Impossible:
    """The smallest offer that fulfils the requirements, or why there is none.

    Args:
        requirements: what a pod needs.
        offers: what the nodes have.
        undescribed: nodes that give out a resource without saying of which cards, by resource; they are never meant.
        where: whose offers these are, for a refusal.
    """
    every = [offer for offer in offers if offer.count > 0]
    fitting, spoilt = [], set()
    for offer in every:
        if unmet(requirements, offer):
            spoilt.add((offer.node, offer.resource))
        else:
            fitting.append(offer)
    sure = sorted((offer for offer in fitting if (offer.node, offer.resource) not in spoilt), key=_order)
    if not sure:
        return Impossible(_refusal(requirements, sorted(every, key=_order), sorted(fitting, key=_order), where))
    best = sure[0]
    meant = [offer for offer in sure if offer.resource == best.resource and offer.cost == best.cost]
    alike = [each for each in every if each.resource == best.resource]
    nodes = {each.node for each in meant}
    unknown = set(undescribed.get(best.resource, ())) - nodes
    others = {each.node for each in alike} - nodes
    return Choice(
        resource=best.resource,
        kept_by=KeptBy.NODES if unknown else _kept_by(nodes, others, every),
        # A node that has the resource of several cards, all of them sufficient, is still meant.
        products=tuple(sorted({each.card.product for each in alike if each.node in nodes})),
        nodes=tuple(sorted(nodes)),
        reason=_reason(requirements, best, sure),
    )


def _order(offer: Offer) -> tuple[Any, ...]:
    return offer.cost, offer.resource, offer.node


def _kept_by(nodes: Collection[str], others: Collection[str], every: Sequence[Offer]) -> KeptBy:
    if not others:
        return KeptBy.NOTHING
    products: dict[str, set[str]] = {}
    for offer in every:
        products.setdefault(offer.node, set()).add(offer.card.product)
    uniform = all(len(products[node]) == 1 for node in (*nodes, *others))
    meant = {product for node in nodes for product in products[node]}
    apart = meant.isdisjoint(product for node in others for product in products[node])
    return KeptBy.PRODUCT if uniform and apart else KeptBy.NODES


def _reason(requirements: Requirements, best: Offer, sure: Sequence[Offer]) -> str:
    larger = next((offer for offer in sure if offer.cost > best.cost and offer.resource != best.resource), None)
    following = f"; the next larger is {larger}" if larger else ""
    return f"{best} is the smallest that fulfils {requirements or 'no requirement'}{following}"


def _refusal(requirements: Requirements, every: Sequence[Offer], fitting: Sequence[Offer], where: str) -> str:
    if not every:
        return f"{requirements}: {where} offers no GPUs; is the agent running on its nodes?"
    if fitting:
        why = (
            f"{fitting[0]} on node {fitting[0].node} would do, but that node gives out other cards under the same name;"
            " have them renamed in its sharing profile"
        )
    else:
        why = _what_is_missing(requirements, every)
    return f"no GPU of {where} fulfils {requirements}: {why}. {where[0].upper()}{where[1:]} has {_list(every)}"


def _what_is_missing(requirements: Requirements, every: Sequence[Offer]) -> str:
    missing = [unmet(requirements, offer) for offer in every]
    nowhere = [name for name in requirements.named() if all(name in names for names in missing)]
    if nowhere[:1] == ["memory"]:
        return f"the most memory that one has is {gib(max(offer.memory for offer in every))}"
    if nowhere:
        return f"none has the {nowhere[0]} asked for"
    names, closest = min(
        ((names, offer) for names, offer in zip(missing, every, strict=True)), key=lambda each: len(each[0])
    )
    return (
        f"each requirement alone can be met, all together cannot; the closest, {closest}, fails in {', '.join(names)}"
    )


def _list(every: Sequence[Offer]) -> str:
    counts: Counter[str] = Counter()
    for offer in reversed(every):
        counts[str(offer)] += offer.count
    lines = [f"{count} {text}" for text, count in counts.items()]
    more = f", and {len(lines) - _LISTED} more kinds with less memory" if len(lines) > _LISTED else ""
    return ", ".join(lines[:_LISTED]) + more
