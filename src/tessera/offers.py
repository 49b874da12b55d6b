"""Chooses the smallest resource of a cluster that fulfils a pod's requirements: a MIG slice, a share or a whole card.

An *offer* is an extended resource as one node has it; nodes with the same offer are compared once, as a set
(:class:`OfferTable`). Of all offers that fulfil the requirements, the smallest is chosen by these rules, in this order:

1. the least memory;
2. the least part of a card's compute;
3. a plain profile before one that takes a part that a card has once (``+me``, ``+gfx``);
4. a slice of a fixed layout, then a slice on demand, then a share, which is not isolated, then a whole card.

Present free room does not matter: otherwise a cluster that is busy for a minute would give a pod more than it asked
for, for the pod's whole life.

One resource name may mean different cards: ``nvidia.com/gpu`` is a T4 on one node and an H100 on another. The answer
names the selected nodes, and a restriction that keeps the pod off the others: none if there are no others, by the model
if every node has one model and the models differ, else by name. A node with fitting and unfitting cards under one name
is not selected.

NVLink needs a whole card: neither MIG devices nor shares reach other cards. This module knows neither pods nor the time
of the call.

A pod's :class:`Requirements` are on properties of a GPU, not on a resource name. Memory is counted as cards and
profiles state it: a card counts with its GB rounded up, a slice with the GB of its name. A program can always allocate
a few percent less, since the driver and ECC use some. So a pod that asks for 10Gi gets a ``2g.10gb``, for which quotas
also charge 10Gi.
"""

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, IntEnum
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import msgspec

GIB = 2**30

#: Comparisons of versions by their sign, longest sign first.
OPERATORS: Mapping[str, Callable[[tuple[int, int], tuple[int, int]], bool]] = MappingProxyType(
    {
        ">=": operator.ge,
        "<=": operator.le,
        "==": operator.eq,
        "!=": operator.ne,
        ">": operator.gt,
        "<": operator.lt,
        "=": operator.eq,
    }
)


class CapabilityBound(msgspec.Struct, frozen=True):
    """A bound on the compute capability: a sign of :data:`OPERATORS` and a version."""

    sign: str
    version: tuple[int, int]

    def admits(self, capability: tuple[int, int]) -> bool:
        """True if the bound admits a card of that compute capability."""
        return OPERATORS[self.sign](capability, self.version)

    def __str__(self) -> str:
        return f"{self.sign}{self.version[0]}.{self.version[1]}"


class Requirements(msgspec.Struct, frozen=True, kw_only=True):
    """Requirements that must all hold; a default value requires nothing.

    Attributes:
        memory: bytes.
        nvlink: the card is joined to others by NVLink and the pod may use that.
        ecc: the card's memory is protected by ECC.
        capability: bounds on the compute capability.
        products: any of these models.
    """

    memory: int = 0
    nvlink: bool = False
    ecc: bool = False
    capability: tuple[CapabilityBound, ...] = ()
    products: tuple[str, ...] = ()

    def describe(self) -> dict[str, str]:
        """Returns the requirements as text, by their names."""
        texts = {
            "memory": format_gib(self.memory) if self.memory else "",
            "compute capability": ",".join(map(str, self.capability)),
            "product": " or ".join(self.products),
            "ECC": "on" if self.ecc else "",
            "NVLink": "on" if self.nvlink else "",
        }
        return {name: text for name, text in texts.items() if text}

    def __str__(self) -> str:
        return ", ".join(name if text == "on" else f"{name} {text}" for name, text in self.describe().items())


def is_product_name(wanted: str, product: str) -> bool:
    """True if a product is of the named model: the product has all words of the name, in order and each as a whole.

    ``A100`` is ``NVIDIA A100-SXM4-40GB`` and so is ``a100-40gb``; ``A10`` and ``SXM4-A100`` are not.
    """
    words = iter(_words(product))
    asked = _words(wanted)
    return bool(asked) and all(word in words for word in asked)


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", text.lower()) if word]


def format_gib(amount: int) -> str:
    """Bytes as ``10Gi``, ``7.5Gi``."""
    return f"{amount / GIB:.4g}Gi"


#: A set of nodes: bit ``n`` is the node that the caller numbers ``n``.
Nodes = int
#: Returns the names of the nodes of a set, sorted.
Names = Callable[[Nodes], Sequence[str]]

_SUFFIXES = ("", "-me", "+gfx", "+me", "+me.all")
_NONE: Mapping[str, Nodes] = MappingProxyType({})
#: Most lines of a refusal that list the cluster's offers.
_LISTED = 8


def whole_gib(mib: int) -> int:
    """Bytes of a device that reports this many MiB, rounded up to GiB: 4864 MiB of a 1g.5gb are 5 GiB."""
    return -(-mib // 1024) * GIB


class OfferedKind(IntEnum):
    """The kind of an offer; of equal offers the lower number is chosen."""

    FIXED_SLICE = 0
    DYNAMIC_SLICE = 1
    SHARE = 2
    WHOLE = 3


_WORDS = {
    OfferedKind.FIXED_SLICE: "MIG slice",
    OfferedKind.DYNAMIC_SLICE: "MIG slice on demand",
    OfferedKind.SHARE: "share",
    OfferedKind.WHOLE: "whole card",
}


class CardProperties(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a card that matter here.

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
        return whole_gib(self.memory_mib)


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """An extended resource of a node.

    Attributes:
        resource: ``nvidia.com/mig-3g.20gb``.
        kind: the kind of one device.
        card: the card that it is of.
        memory: bytes of one device.
        portion: part of the card's compute that one device has.
        count: number on the node, in use or not; of slices on demand the most that fit.
        suffix: of a MIG profile, ``+me``.
    """

    resource: str
    kind: OfferedKind
    card: CardProperties
    memory: int
    portion: Fraction
    count: int
    suffix: str = ""

    @property
    def nvlink(self) -> bool:
        """True if a container can talk to other cards through NVLink."""
        return self.kind is OfferedKind.WHOLE and self.card.nvlink

    @property
    def cost(self) -> tuple[int, float, int, OfferedKind]:
        """Returns the sort key of an offer's size; the smallest offer is chosen."""
        known = _SUFFIXES.index(self.suffix) if self.suffix in _SUFFIXES else len(_SUFFIXES)
        return self.memory, float(self.portion), known, self.kind

    def __str__(self) -> str:
        card = self.card
        extras = [text for text, has in (("ECC", card.ecc), ("NVLink", self.nvlink)) if has]
        capability = "{}.{}".format(*card.compute_capability)
        facts = ", ".join([format_gib(self.memory), f"compute capability {capability}", *extras])
        return f"{self.resource} ({_WORDS[self.kind]} of {card.product}: {facts})"


class RestrictionKind(Enum):
    """The restriction that keeps the pod off nodes whose resource of this name does not fulfil its requirements."""

    NOTHING = "nothing"
    #: A label with the model.
    PRODUCT = "product"
    NODES = "nodes"


class OfferChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The resource that the pod will ask for.

    Attributes:
        resource: the extended resource; the pod asks for one.
        restriction: the restriction that it needs.
        products: NVML's names of the selected cards.
        nodes: the selected nodes.
        reason: the reason of the choice, for the pod's author.
    """

    resource: str
    restriction: RestrictionKind
    products: tuple[str, ...]
    nodes: tuple[str, ...]
    reason: str


class NoOfferFits(msgspec.Struct, frozen=True):
    """No offer in the cluster fulfils the requirements; ``text`` lists the offers."""

    text: str


class OfferTable:
    """Offers of all nodes: each different offer once, with the set of nodes that have it.

    A cluster has few kinds of offers, however many nodes it has, so a walk over this table is short.
    """

    def __init__(self) -> None:
        self._nodes: dict[Offer, Nodes] = {}

    def add(self, offers: Iterable[Offer], node: Nodes) -> None:
        """Adds the offers of a node, given as the set of that node alone."""
        for offer in offers:
            if offer.count > 0:
                self._nodes[offer] = self._nodes.get(offer, 0) | node

    def remove(self, offers: Iterable[Offer], node: Nodes) -> None:
        """Removes the offers that :meth:`add` added."""
        for offer in offers:
            left = self._nodes.get(offer, 0) & ~node
            if left:
                self._nodes[offer] = left
            else:
                self._nodes.pop(offer, None)

    def resources(self) -> frozenset[str]:
        """Returns the names of all offered resources."""
        return frozenset(offer.resource for offer in self._nodes)

    def among(self, nodes: Nodes) -> list["OfferOnNodes"]:
        """Returns the offers of these nodes, the smallest first."""
        found = (OfferOnNodes(offer, has & nodes) for offer, has in self._nodes.items())
        return sorted((group for group in found if group.nodes), key=_offer_order)


class OfferOnNodes(msgspec.Struct, frozen=True):
    """An offer and the nodes that have it."""

    offer: Offer
    nodes: Nodes


def _unmet(requirements: Requirements, offer: Offer, *, named: bool) -> tuple[str, ...]:
    card = offer.card
    verdicts = {
        "memory": offer.memory >= requirements.memory,
        "compute capability": all(each.admits(card.compute_capability) for each in requirements.capability),
        "product": named or not requirements.products,
        "ECC": card.ecc or not requirements.ecc,
        "NVLink": offer.nvlink or not requirements.nvlink,
    }
    return tuple(name for name, holds in verdicts.items() if not holds)


class CheckedOffer(msgspec.Struct, frozen=True):
    """An offer, the nodes that have it, and the names of the requirements that it does not fulfil."""

    offer: Offer
    nodes: Nodes
    missing: tuple[str, ...]


def _check_offers(requirements: Requirements, groups: Sequence[OfferOnNodes]) -> list[CheckedOffer]:
    products = {group.offer.card.product for group in groups} if requirements.products else set[str]()
    named = {each for each in products if any(is_product_name(wanted, each) for wanted in requirements.products)}
    return [
        CheckedOffer(offer, nodes, _unmet(requirements, offer, named=offer.card.product in named))
        for offer, nodes in ((group.offer, group.nodes) for group in groups)
    ]


def choose_offer(
    requirements: Requirements,
    table: OfferTable,
    nodes: Nodes,
    names: Names,
    *,
    undescribed: Mapping[str, Nodes] = _NONE,
    where: str = "the cluster",
) -> OfferChoice | NoOfferFits:
    """Returns the smallest offer that fulfils the requirements, or the reason that there is none.

    Args:
        requirements: the pod's requirements.
        table: the offers of the nodes.
        nodes: the nodes whose offers are considered.
        names: returns the names of those nodes.
        undescribed: by resource, nodes that do not report the cards behind it; they are never selected.
        where: the name of these nodes together, for a refusal.
    """
    every = _check_offers(requirements, table.among(nodes))
    unfit: dict[str, Nodes] = {}
    for each in every:
        if each.missing:
            unfit[each.offer.resource] = unfit.get(each.offer.resource, 0) | each.nodes
    fitting = [each for each in every if not each.missing]
    good = (OfferOnNodes(each.offer, each.nodes & ~unfit.get(each.offer.resource, 0)) for each in fitting)
    sure = [group for group in good if group.nodes]
    if not sure:
        return NoOfferFits(_refusal_text(requirements, every, fitting, names, where))
    best = sure[0].offer
    selected = _unite_nodes(
        each for each in sure if each.offer.resource == best.resource and each.offer.cost == best.cost
    )
    same = [each for each in every if each.offer.resource == best.resource]
    unknown = undescribed.get(best.resource, 0) & nodes & ~selected
    others = _unite_nodes(same) & ~selected
    return OfferChoice(
        resource=best.resource,
        restriction=RestrictionKind.NODES if unknown else _choose_restriction(selected, others, every),
        # A node with the resource on several cards, all of them sufficient, is still selected.
        products=tuple(sorted({each.offer.card.product for each in same if each.nodes & selected})),
        nodes=tuple(names(selected)),
        reason=_choice_text(requirements, best, [group.offer for group in sure]),
    )


def _offer_order(group: OfferOnNodes) -> tuple[Any, ...]:
    offer = group.offer
    return offer.cost, offer.resource, msgspec.structs.astuple(offer.card), offer.count


def _unite_nodes(groups: Iterable[OfferOnNodes | CheckedOffer]) -> Nodes:
    united = 0
    for group in groups:
        united |= group.nodes
    return united


def _choose_restriction(nodes: Nodes, others: Nodes, every: Sequence[CheckedOffer]) -> RestrictionKind:
    if not others:
        return RestrictionKind.NOTHING
    products: dict[str, Nodes] = {}
    for each in every:
        products[each.offer.card.product] = products.get(each.offer.card.product, 0) | each.nodes
    with_one = with_several = 0
    for has in products.values():
        with_several |= with_one & has
        with_one |= has
    uniform = not with_several & (nodes | others)
    apart = not any(has & nodes and has & others for has in products.values())
    return RestrictionKind.PRODUCT if uniform and apart else RestrictionKind.NODES


def _choice_text(requirements: Requirements, best: Offer, sure: Sequence[Offer]) -> str:
    larger = next((offer for offer in sure if offer.cost > best.cost and offer.resource != best.resource), None)
    following = f"; the next larger is {larger}" if larger else ""
    return f"{best} is the smallest that fulfils {requirements or 'no requirement'}{following}"


def _refusal_text(
    requirements: Requirements, every: Sequence[CheckedOffer], fitting: Sequence[CheckedOffer], names: Names, where: str
) -> str:
    if not every:
        return f"{requirements}: {where} offers no GPUs; is the agent running on its nodes?"
    if fitting:
        why = (
            f"{fitting[0].offer} on node {names(fitting[0].nodes)[0]} would do, but that node gives out other cards "
            "under the same name; have them renamed in its sharing profile"
        )
    else:
        why = _missing_text(requirements, every)
    return f"no GPU of {where} fulfils {requirements}: {why}. {where[0].upper()}{where[1:]} has {_list_offers(every)}"


def _missing_text(requirements: Requirements, every: Sequence[CheckedOffer]) -> str:
    nowhere = [name for name in requirements.describe() if all(name in each.missing for each in every)]
    if nowhere[:1] == ["memory"]:
        return f"the most memory that one has is {format_gib(max(each.offer.memory for each in every))}"
    if nowhere:
        return f"none has the {nowhere[0]} asked for"
    closest = min(every, key=lambda each: len(each.missing))
    return (
        f"each requirement alone can be met, all together cannot; the closest, {closest.offer}, fails in "
        f"{', '.join(closest.missing)}"
    )


def _list_offers(every: Sequence[CheckedOffer]) -> str:
    counts: Counter[str] = Counter()
    for each in reversed(every):
        counts[str(each.offer)] += each.offer.count * each.nodes.bit_count()
    lines = [f"{count} {text}" for text, count in counts.items()]
    more = f", and {len(lines) - _LISTED} more kinds with less memory" if len(lines) > _LISTED else ""
    return ", ".join(lines[:_LISTED]) + more
