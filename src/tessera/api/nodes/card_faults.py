"""Two annotations of a Node: the faults of its cards, and those that take no card away for now.

``tessera.dev/cards``, by the agent: the node's cards, and their faults. Whoever may read the Node, but not the agents'
pages, learns there what is wrong with a card.
``tessera.dev/spared-faults``, by the controller: the faults of this node that take no card away for now. The agent
reads it from the watch of its own Node that it has anyway. See docs/decisions/health-breaker.md.

While pods hold withheld devices, good ones stay empty (:class:`WithheldHold`): kubelet takes a withheld device, one
that is faulty, cordoned or about to change, from the Node's allocatable amount, and kube-scheduler still counts its pod
as a user of the resource. The good device is free for that pod's successor: once the pod is deleted, its owner's next
pod gets it. The agent says how many withheld devices pods hold; kubelet says how many are withheld, capacity less
allocatable, a few seconds later. The smaller number is what kube-scheduler knows by now.

``tessera.dev/spared-faults`` keeps one rule from taking too many cards away. Both annotations are bounded. A reader
takes a value that cannot be read for none: then no fault is spared, which is the safe side.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, TypeVar

import msgspec

from tessera.api.nodes.health import TAKE_AWAY, UNREADABLE, Evidence, describe_xid
from tessera.kube.quantity import count_or_zero
from tessera.kube.resources import Node
from tessera.limits import NODE_CARDS, NODE_INDEXES, OFFERS, RESOURCE_ENTRIES
from tessera.text import count_noun, one_line

#: Most faults in a node's annotation tessera.dev/cards, and in tessera.dev/spared-faults. 64 cards with four kinds of
#: errors each.
CARD_FAULTS = 256
#: Most characters: each of these two annotations. All faults that are allowed have 50 KiB without their words, and the
#: UUIDs of all cards 5 KiB.
CARD_FAULTS_TEXT = 64 * 1024
#: Most characters: words of one fault in a node's annotation tessera.dev/cards. NVML's texts of errors fit; XIDs have
#: none, since readers have their meaning.
CARD_FAULT_WORDS = 120

_T = TypeVar("_T")

CARDS_ANNOTATION = "tessera.dev/cards"
SPARED_ANNOTATION = "tessera.dev/spared-faults"

#: ``GPU-`` with NVML's UUID.
_UUID = re.compile(r"^GPU-[0-9a-zA-Z-]{1,64}\Z")
#: ``XID 48``, ``driver``, ``probe``, ``double-bit-ecc``.
_RULE = re.compile(r"^(XID [0-9]{1,5}|[a-z][a-z-]{0,31})\Z")
_Uuid = Annotated[str, msgspec.Meta(pattern=_UUID.pattern)]
_Rule = Annotated[str, msgspec.Meta(pattern=_RULE.pattern)]
_Resource = Annotated[str, msgspec.Meta(max_length=317, pattern=r"^[A-Za-z0-9][A-Za-z0-9./_-]*\Z")]
#: Most characters of a product's name; NVML's have at most 96, and those of cards some 30.
_PRODUCT = 96
_Devices = Annotated[int, msgspec.Meta(ge=1, le=int(RESOURCE_ENTRIES))]


class CardRule(msgspec.Struct, frozen=True, order=True):
    """A fault by its card and its rule: the source of the error."""

    gpu: _Uuid
    rule: _Rule


class CardFault(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """A fault of a card or of a GPU instance on it.

    Attributes:
        gpu: UUID of the card.
        rule: the source of the error.
        since: Unix time of the first error, whole seconds.
        index: of the driver; -1 if it is not known.
        part: id of the GPU instance; -1 for the whole card.
        asks: as :attr:`tessera.api.nodes.health.Evidence.asks`.
        text: the error in words; empty if ``rule`` says it.
        lost: True if the driver cannot reach the card.
        reset: True if the card was reset since.
        evicted: as :attr:`tessera.api.nodes.health.Evidence.evicted`, whole seconds.
        reboot: as :attr:`tessera.api.nodes.health.Evidence.reboot`.
    """

    gpu: _Uuid
    rule: _Rule
    since: Annotated[int, msgspec.Meta(ge=0, le=2**40)] = 0
    index: Annotated[int, msgspec.Meta(ge=-1, le=int(NODE_INDEXES))] = -1
    part: Annotated[int, msgspec.Meta(ge=-1, le=9999)] = -1
    asks: Annotated[str, msgspec.Meta(pattern=r"^[a-z]{1,16}\Z")] = "withhold"
    text: Annotated[str, msgspec.Meta(max_length=int(CARD_FAULT_WORDS))] = ""
    lost: bool = False
    reset: bool = False
    evicted: Annotated[int, msgspec.Meta(ge=0, le=2**40)] = 0
    reboot: Annotated[str, msgspec.Meta(pattern=r"^[a-z]{0,16}\Z")] = ""

    @property
    def key(self) -> CardRule:
        """Card and rule, as the breaker knows the fault."""
        return CardRule(self.gpu, self.rule)

    @property
    def counts_for_breaker(self) -> bool:
        """True if the fault takes its card away, or a part of it, unless it is spared.

        A card that cannot be read is never spared, and a cordon is no error.
        """
        takes_away = self.asks in TAKE_AWAY
        return takes_away and not self.lost and self.rule != UNREADABLE

    @property
    def name(self) -> str:
        """``GPU 0``, ``GPU 0 GPU instance 7``; the UUID for a card without an index."""
        card = f"GPU {self.index}" if self.index >= 0 else self.gpu
        return card if self.part < 0 else f"{card} GPU instance {self.part}"

    def evidence(self, *, spared: bool = False) -> Evidence:
        """The error as agents' pages have it, for the sentence about it."""
        xid = self.rule.removeprefix("XID ")
        text = self.text or (describe_xid(int(xid)) if xid != self.rule else self.rule)
        return Evidence(
            source=self.rule,
            text=text,
            asks=self.asks,
            part="" if self.part < 0 else f"GPU instance {self.part}",
            since=self.since,
            spared=spared and self.counts_for_breaker,
            lost=self.lost,
            reset=self.reset,
            evicted=self.evicted,
            reboot=self.reboot,
        )


class ListedCard(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """A card of a node.

    Attributes:
        index: the driver's.
        gpu: its UUID.
        product: NVML's name, as in ``tessera.dev/offers``; empty if all cards of the node have the same.
    """

    index: Annotated[int, msgspec.Meta(ge=0, le=int(NODE_INDEXES))]
    gpu: _Uuid
    product: Annotated[str, msgspec.Meta(max_length=_PRODUCT)] = ""


class NodeCards(msgspec.Struct, frozen=True, omit_defaults=True):
    """The cards of a node.

    Attributes:
        count: number of cards.
        faults: the faults that take cards away unless they are spared, sorted.
        others: those of cards that are lost or cannot be read, of cards that stay allocated, and cordons; the breaker
            does not count them.
        gpus: the cards by index, so that a person's ``NODE/INDEX`` can be resolved without the agent; empty if the
            agent's version is too old to write them.
        held: by resource, the withheld devices that pods hold (:class:`WithheldHold`).
    """

    count: Annotated[int, msgspec.Meta(ge=0, le=int(NODE_CARDS))] = 0
    faults: Annotated[tuple[CardFault, ...], msgspec.Meta(max_length=int(CARD_FAULTS))] = ()
    others: Annotated[tuple[CardFault, ...], msgspec.Meta(max_length=int(CARD_FAULTS))] = ()
    gpus: Annotated[tuple[ListedCard, ...], msgspec.Meta(max_length=int(NODE_CARDS))] = ()
    held: Annotated[dict[_Resource, _Devices], msgspec.Meta(max_length=int(OFFERS))] = {}

    def all_faults(self) -> tuple[CardFault, ...]:
        """The faults, whether the breaker counts them or not."""
        return (*self.faults, *self.others)


#: Of a node without withheld devices that pods hold.
NOTHING_HELD: Mapping[str, int] = {}
_CARDS = msgspec.json.Decoder(NodeCards)
_SPARED = msgspec.json.Decoder(Annotated[tuple[CardRule, ...], msgspec.Meta(max_length=int(CARD_FAULTS))])


def encode_cards(
    gpus: Iterable[ListedCard], faults: Iterable[CardFault], held: Mapping[str, int] = NOTHING_HELD
) -> str:
    """The value of ``tessera.dev/cards``; faults that no reader accepts are left out, so they take their cards away."""
    cards = sorted(gpus)
    known = [fault for fault in map(_shorten, sorted(faults)) if _is_accepted(fault)]
    counted = [fault for fault in known if fault.counts_for_breaker][:CARD_FAULTS]
    others = [fault for fault in known if not fault.counts_for_breaker][: CARD_FAULTS - len(counted)]
    text = _encode(cards, counted, others, held)
    if len(text) > CARD_FAULTS_TEXT:  # nothing that anybody decides by is in the words
        counted, others = ([msgspec.structs.replace(each, text="") for each in part] for part in (counted, others))
        text = _encode(cards, counted, others, held)
    return text


def _shorten(fault: CardFault) -> CardFault:
    """The fault without words that its rule says already."""
    known = fault.text == msgspec.structs.replace(fault, text="").evidence().text
    return msgspec.structs.replace(fault, text="" if known else one_line(fault.text, CARD_FAULT_WORDS))


def _is_accepted(item: CardFault | ListedCard) -> bool:
    """True if readers accept it: one that is beyond a bound would spoil the whole annotation."""
    try:
        msgspec.convert(msgspec.to_builtins(item), type(item))
    except msgspec.ValidationError:
        return False
    return True


def _encode(
    cards: Sequence[ListedCard], faults: Iterable[CardFault], others: Iterable[CardFault], held: Mapping[str, int]
) -> str:
    named = [card for card in cards if _is_accepted(card)]
    found = NodeCards(
        min(len(cards), int(NODE_CARDS)),
        tuple(faults),
        tuple(others),
        tuple(named[:NODE_CARDS]),
        dict(sorted(held.items())[:OFFERS]),
    )
    return msgspec.json.encode(found).decode()


def decode_cards(text: str) -> NodeCards:
    """The content of ``tessera.dev/cards``; no cards if it cannot be read."""
    return _decode(_CARDS, text) or NodeCards()


def read_node_faults(node: Node) -> list[tuple[CardFault, Evidence]]:
    """The faults of a node's cards, each with the error for the sentence about it; none if they cannot be read."""
    cards = decode_cards(node.metadata.annotations.get(CARDS_ANNOTATION, ""))
    spared = decode_spared(node.metadata.annotations.get(SPARED_ANNOTATION, ""))
    return [(each, each.evidence(spared=each.key in spared)) for each in cards.all_faults()]


def encode_spared(faults: Iterable[CardRule]) -> str:
    """The value of ``tessera.dev/spared-faults``."""
    return msgspec.json.encode(tuple(sorted(faults))).decode()


def decode_spared(text: str) -> frozenset[CardRule]:
    """The content of ``tessera.dev/spared-faults``; nothing if it cannot be read."""
    return frozenset(_decode(_SPARED, text) or ())


def _decode(decoder: msgspec.json.Decoder[_T], text: str) -> _T | None:
    if not text or len(text) > CARD_FAULTS_TEXT:
        return None
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None


class WithheldHold(msgspec.Struct, frozen=True, kw_only=True):
    """Withheld devices of one resource that pods hold on a node.

    Attributes:
        node: the node's name.
        resource: the extended resource.
        left: the devices that kubelet still offers: the allocatable amount.
        held: the withheld devices that pods hold.
    """

    node: str
    resource: str
    left: int
    held: int

    def count_free(self, used: int) -> int:
        """The good devices that no pod holds, of those that pods use by kube-scheduler's count."""
        return max(0, self.left - max(0, used - self.held))

    def count_blocked(self, free: int) -> int:
        """How many of these free devices kube-scheduler gives to no pod."""
        return min(self.held, max(0, free))

    def describe(self, free: int | None = None) -> str:
        """The sentence about it; ``free`` is the number of good devices that no pod holds, None if not known."""
        these = "this one" if self.held == 1 else f"these {self.held}"
        against = f"kube-scheduler counts {these} against the {self.left} that are left"
        holds = f"node {self.node}: pods hold {self.held} withheld {self.resource}"
        if free is None:
            return f"{holds}; {against}, and leaves up to {count_noun(self.held, 'free one')} empty"
        blocked = self.count_blocked(free)
        return f"{holds}; {against}, and leaves {blocked} of {count_noun(free, 'free one')} empty"


def read_withheld_holds(node: Node) -> dict[str, WithheldHold]:
    """The withheld devices that pods hold on a node, by resource; a resource without one is missing."""
    held = decode_cards(node.metadata.annotations.get(CARDS_ANNOTATION, "")).held
    found = {}
    for resource, count in sorted(held.items()):
        capacity, left = (
            count_or_zero(each.get(resource, "0")) for each in (node.status.capacity, node.status.allocatable)
        )
        if known := min(count, capacity - left):
            found[resource] = WithheldHold(node=node.metadata.name, resource=resource, left=left, held=known)
    return {name: each for name, each in found.items() if each.held > 0}


def unblocking_steps(node: Node) -> Iterator[str]:
    """What a person does so that the free devices of a node are given out again."""
    name = node.metadata.name
    yield (
        f"delete the pods on withheld cards of {name}, so that their owners start them on good ones; see them:"
        f" tessera health {name}"
    )
    cordoned = sorted({fault.index for fault, error in read_node_faults(node) if error.asks == "uncordon"})
    for index in (each for each in cordoned[:1] if each >= 0):
        yield f"or give a cordoned card back: tessera uncordon {name}/{index}"
