"""The map of all cards of the cluster, whatever their kind: cut on demand, fixed layouts, whole, shared. Pure.

Cards that are cut on demand come from Instaslice objects, all others from the agents' pages. Of a node whose page
cannot be read, the map shows what the node itself says: its offers, and the pods that ask for them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import msgspec

from tessera.api.instaslice import Instaslice
from tessera.api.names import SLICE_PROMISED_CONDITION
from tessera.api.nodes.card_faults import CARDS_ANNOTATION, decode_cards, read_withheld_holds
from tessera.api.nodes.health import TAKEN, CardState
from tessera.api.nodes.offers import OFFERS_ANNOTATION, NodeOffer, OfferKind, decode_offers
from tessera.api.nodes.silence import NONE_SILENT, Silence, SilentNode
from tessera.api.nodes.usage import CardUsage, LeaseUsage, NodeUsage
from tessera.explain.card_map import SHARE, WHOLE_CARD, CardHolder, MappedCard, NodeCards, NodeResource, Tile, cards_of
from tessera.kube.resources import Node, Pod

#: End of the name of a share of a MIG device, as in the name of its resource.
SHARED = ".shared"
#: State of a MIG device of a layout that a container holds, and of one that is free.
HELD, FREE = "held", "free"
_ENDED = ("Succeeded", "Failed")
_GIB = 2**30


class CardFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The cards to show; an empty attribute selects all.

    Attributes:
        namespace: pods of this namespace hold a part of the card.
        model: a part of the product's name, in any case.
        free: a profile, ``gpu`` or ``share`` that has room on the card.
        held_by: a part of ``namespace/name`` of a pod that holds a part of the card.
        pods: ``namespace/name`` of pods, of which one holds a part of the card; None selects all.
    """

    namespace: str = ""
    model: str = ""
    free: str = ""
    held_by: str = ""
    pods: frozenset[str] | None = None

    def selects(self, card: MappedCard) -> bool:
        """True if the card is shown."""
        pods = pods_of(card)
        return (
            (not self.namespace or any(each.partition("/")[0] == self.namespace for each in pods))
            and self.model.lower() in card.model.lower()
            and (not self.free or card.possible.get(self.free, 0) > 0)
            and (not self.held_by or any(self.held_by in each for each in pods))
            and (self.pods is None or not self.pods.isdisjoint(pods))
        )


class ModelSummary(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All cards of a model.

    Attributes:
        model: the product's name.
        cards: their number.
        kinds: their number by kind.
        held: cards that pods hold, parts added.
        possible: what more would fit, by profile; each alone.
    """

    model: str
    cards: int
    kinds: dict[str, int]
    held: float
    possible: dict[str, int]


def pods_of(card: MappedCard) -> list[str]:
    """``namespace/name`` of the pods that hold a part of a card."""
    held = (pod for tile in card.tiles for pod in (tile.pod, *tile.users) if pod)
    return list(dict.fromkeys((*held, *(each.pod for each in card.holders))))


def map_fleet(
    instaslices: Iterable[Instaslice],
    usages: Iterable[NodeUsage] = (),
    silent: Mapping[str, SilentNode] = NONE_SILENT,
    nodes: Iterable[Node] = (),
    pods: Iterable[Pod] = (),
) -> list[NodeCards]:
    """Makes the map, in the order of the nodes' names.

    Args:
        instaslices: the records of nodes with slices on demand.
        usages: the agents' pages.
        silent: the nodes whose agents should answer and do not.
        nodes: for the offers of nodes without a page, for those that take no new pods, and for blocked devices.
        pods: for the use of these offers.
    """
    nodes = list(nodes)
    sliced = {each.node: each.cards for each in cards_of(instaslices)}
    pages = {each.node: each for each in usages}
    resources = _resources_without_page(nodes, pods, pages.keys())
    names = sorted({*sliced, *pages, *resources, *silent})
    closed = {node.metadata.name for node in nodes if _is_closed(node)}
    roomless = closed | {name for name, each in silent.items() if each.kind is not Silence.UNREACHABLE}
    objects = {node.metadata.name: node for node in nodes}
    found = []
    for name in names:
        cards = _merge(sliced.get(name, ()), pages.get(name))
        if name in objects and name not in pages:
            cards = tuple(_last_reported(cards, objects[name]))
        cards = _without_room(cards, closed=name in roomless)
        cards, blocked = _without_blocked(cards, objects.get(name))
        found.append(
            NodeCards(
                node=name,
                closed=name in closed,
                cards=cards,
                resources=resources.get(name, ()),
                unread=silent[name].reason if name in silent and name not in pages else "",
                blocked=blocked,
            )
        )
    return found


def _is_closed(node: Node) -> bool:
    """True if a node takes no new pods: it is cordoned, or kubelet does not report it as ready."""
    return node.spec.unschedulable or not node.status.is_ready


def _without_room(cards: tuple[MappedCard, ...], *, closed: bool) -> tuple[MappedCard, ...]:
    if not closed:
        return cards
    return tuple(msgspec.structs.replace(each, possible=dict.fromkeys(each.possible, 0)) for each in cards)


def _without_blocked(
    cards: tuple[MappedCard, ...], node: Node | None
) -> tuple[tuple[MappedCard, ...], tuple[str, ...]]:
    """The cards without the room that kube-scheduler gives to no pod, the last cards first; and the sentences about it.

    See :mod:`tessera.api.nodes.card_faults`.
    """
    holds = read_withheld_holds(node) if node is not None else {}
    names = _room_names(_offers(node)) if node is not None and holds else {}
    sentences = []
    for resource, hold in holds.items():
        rooms = names.get(resource, frozenset())
        free = sum(card.possible.get(room, 0) for card in cards for room in rooms)
        if blocked := hold.count_blocked(free):
            cards = _take_away(cards, rooms, blocked)
            sentences.append(hold.describe(free))
    return cards, tuple(sentences)


def _room_names(offers: Iterable[NodeOffer]) -> dict[str, frozenset[str]]:
    """What :attr:`MappedCard.possible` calls the devices of each resource."""
    found: dict[str, set[str]] = {}
    for each in offers:
        if each.kind is OfferKind.SHARE:
            name = f"{each.profile}{SHARED}" if each.profile else SHARE
        else:
            name = each.profile if each.kind is OfferKind.SLICE else WHOLE_CARD
        found.setdefault(each.resource, set()).add(name)
    return {resource: frozenset(names) for resource, names in found.items()}


def _take_away(cards: tuple[MappedCard, ...], rooms: frozenset[str], count: int) -> tuple[MappedCard, ...]:
    found = []
    for card in reversed(cards):
        possible, before = dict(card.possible), count
        for room in rooms & possible.keys():
            less = min(count, possible[room])
            possible[room] -= less
            count -= less
        found.append(msgspec.structs.replace(card, possible=possible, blocked=before - count))
    return tuple(reversed(found))


def _merge(sliced: Sequence[MappedCard], page: NodeUsage | None) -> tuple[MappedCard, ...]:
    """The cards of a node: those that are cut on demand as recorded, the others as the agent reports them."""
    if page is None:
        return tuple(sliced)
    recorded = {card.uuid: card for card in sliced}
    leases: dict[str, list[LeaseUsage]] = {}
    for lease in page.leases:
        leases.setdefault(lease.device, []).append(lease)
    found = [
        _recorded(recorded.pop(card.uuid), card, leases) if card.uuid in recorded else _card(card, leases)
        for card in page.cards
    ]
    return tuple(sorted([*found, *recorded.values()], key=lambda card: (card.index, card.uuid)))


def _last_reported(cards: Iterable[MappedCard], node: Node) -> Iterator[MappedCard]:
    """The cards on record with what the silent agent last wrote at its node: indexes, and cards that are lost.

    The record does not list such a card. It is of the node's model if the node's offers know one.
    """
    written = decode_cards(node.metadata.annotations.get(CARDS_ANNOTATION, ""))
    indexes = {each.gpu: each.index for each in written.gpus}
    lost = {each.gpu for each in written.all_faults() if each.lost}
    offers: Sequence[NodeOffer] = ()
    with suppress(ValueError):  # other parts of the map tell of an annotation that cannot be read
        text = node.metadata.annotations.get(OFFERS_ANNOTATION, "")
        offers = decode_offers(text) if text else ()
    models = {each.model for each in cards if each.model} | {each.product for each in offers if each.product}
    (model,) = models if len(models) == 1 else ("",)
    for card in cards:
        yield msgspec.structs.replace(
            card,
            index=indexes.get(card.uuid, card.index),
            model=card.model or model,
            health=str(CardState.LOST) if card.uuid in lost else card.health,
        )


def _recorded(mapped: MappedCard, card: CardUsage, leases: Mapping[str, Sequence[LeaseUsage]]) -> MappedCard:
    """A card on record, as the agent reports it; all pods of a claim have the card, the record names one of them."""
    is_whole = mapped.kind not in ("slice", "mig")
    possible = mapped.possible if card.health.state not in TAKEN else dict.fromkeys(mapped.possible, 0)
    return msgspec.structs.replace(
        mapped,
        index=card.index,
        model=mapped.model or card.model,
        memory=mapped.memory or _memory(card),
        slots=mapped.slots if mapped.model or is_whole else card.slots or mapped.slots,
        health=_health(card),
        kind=card.kind if mapped.replicas > 1 and card.kind else mapped.kind,  # the record does not tell how it shares
        possible=possible,
        tiles=tuple(_with_users(mapped.tiles, card, leases)),
        holders=(_holders(leases.get(card.uuid, ())) if is_whole else ()) or mapped.holders,
    )


def _with_users(tiles: Iterable[Tile], card: CardUsage, leases: Mapping[str, Sequence[LeaseUsage]]) -> Iterator[Tile]:
    """The slices on record, with the pods that have borrowed them (:mod:`tessera.agent.slices.further_ways`)."""
    used = {each.start: _pods_of(leases.get(each.uuid, ())) for each in card.devices}
    for tile in tiles:
        users = used.get(tile.start, ())
        is_used_by_others = bool(tile.pod) and tile.pod not in users
        yield msgspec.structs.replace(tile, users=users) if is_used_by_others else tile


def _pods_of(leases: Iterable[LeaseUsage]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"{each.namespace}/{each.pod}" for each in leases))


def _health(card: CardUsage) -> str:
    state = card.health.state
    return "" if state in {CardState.HEALTHY, CardState.UNKNOWN} else str(state)


def _card(card: CardUsage, leases: Mapping[str, Sequence[LeaseUsage]]) -> MappedCard:
    tiles = tuple(_tiles(card, leases))
    holders = _holders(leases.get(card.uuid, ()))
    return MappedCard(
        index=card.index,
        uuid=card.uuid,
        model=card.model,
        memory=_memory(card),
        slots=card.slots if card.mig else 0,
        used=sum(tile.size for tile in tiles if tile.state == HELD),
        tiles=tiles,
        possible=_possible(card, leases, holders),
        kind=card.kind,
        replicas=card.replicas,
        holders=holders,
        health=_health(card),
    )


def _holders(leases: Iterable[LeaseUsage]) -> tuple[CardHolder, ...]:
    return tuple(
        CardHolder(pod=f"{each.namespace}/{each.pod}", container=each.container, share=each.share) for each in leases
    )


def _memory(card: CardUsage) -> str:
    total = card.values.get("memory_total")
    return "" if total is None else f"{total / _GIB:.0f}Gi"


def _tiles(card: CardUsage, leases: Mapping[str, Sequence[LeaseUsage]]) -> Iterator[Tile]:
    for device in sorted(card.devices, key=lambda each: each.start):
        held = leases.get(device.uuid, ())
        yield Tile(
            start=device.start,
            size=device.size,
            profile=device.profile,
            pod=", ".join(_pods_of(held)),
            uid=held[0].uid if held else "",
            state=HELD if held else FREE,
        )


def _possible(
    card: CardUsage, leases: Mapping[str, Sequence[LeaseUsage]], holders: Sequence[CardHolder]
) -> dict[str, int]:
    """What a pod could still get of the card; nothing of a card that is not offered.

    A share of a MIG device is not counted as the device: it has neither its memory nor its cores alone.
    """
    if not card.kind or card.health.state in TAKEN:
        return {}
    if card.kind == "whole":
        return {WHOLE_CARD: 0 if holders else 1}
    if not card.devices:
        return {SHARE: _free_shares(card.replicas, 1.0, holders)}
    room: Counter[str] = Counter()
    for device in card.devices:
        held = leases.get(device.uuid, ())
        if card.replicas > 1:
            room[f"{device.profile}{SHARED}"] += _free_shares(card.replicas, device.share, held)
        else:
            room[device.profile] += 0 if held else 1
    return dict(room)


def _free_shares(replicas: int, size: float, holders: Iterable[CardHolder | LeaseUsage]) -> int:
    """Shares that nobody holds of a device; ``size`` is the part of the card that the device has."""
    taken = sum(max(1, round(each.share / size * replicas)) if size > 0 else 1 for each in holders)
    return max(0, replicas - taken)


# Nodes without a page


def _resources_without_page(
    nodes: Iterable[Node], pods: Iterable[Pod], read: Iterable[str]
) -> dict[str, tuple[NodeResource, ...]]:
    known = set(read)
    offers = {node.metadata.name: tuple(_offers(node)) for node in nodes if node.metadata.name not in known}
    asking: dict[tuple[str, str], Counter[str]] = {}
    for pod in pods:
        if offers.get(pod.spec.node_name) and pod.status.phase not in _ENDED:
            for container in pod.spec.containers:
                for resource, amount in container.resources.limits.items():
                    if amount.isdecimal():
                        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
                        asking.setdefault((pod.spec.node_name, resource), Counter())[name] += int(amount[:6])
    return {
        node: tuple(_resource(offer, asking.get((node, offer.resource), Counter())) for offer in found)
        for node, found in offers.items()
        if found
    }


def _offers(node: Node) -> Iterator[NodeOffer]:
    text = node.metadata.annotations.get(OFFERS_ANNOTATION, "")
    try:
        found = decode_offers(text) if text else ()
    except ValueError:
        return  # its agent writes it again
    yield from (each for each in found if each.kind is not OfferKind.DYNAMIC_SLICE)


def _resource(offer: NodeOffer, asking: Counter[str]) -> NodeResource:
    return NodeResource(
        resource=offer.resource,
        product=offer.product,
        kind=offer.kind.value,
        count=offer.count,
        used=min(offer.count, asking.total()),
        pods=tuple(sorted(asking)),
    )


def count_waiting(pods: Iterable[Pod]) -> int:
    """Pods that ask for cards and have no node."""
    return sum(
        not pod.spec.node_name
        and pod.status.phase not in _ENDED
        and (
            waits_by_claims(pod)
            or any(name.startswith("nvidia.com/") for each in pod.spec.containers for name in each.resources.limits)
        )
        for pod in pods
    )


def waits_by_claims(pod: Pod) -> bool:
    """True if the controller told a pod with ResourceClaims that it waits: then some of them are for its devices."""
    if not pod.spec.resource_claims or pod.spec.node_name:
        return False
    told = pod.status.condition(SLICE_PROMISED_CONDITION)
    return told is not None and told.status == "False"


# Choices and sums


def select(nodes: Iterable[NodeCards], chosen: CardFilter) -> list[NodeCards]:
    """The nodes with the cards that a filter selects; nodes without such cards are left out."""
    if chosen == CardFilter():
        return list(nodes)
    found = []
    for node in nodes:
        cards = tuple(card for card in node.cards if chosen.selects(card))
        if cards:
            found.append(msgspec.structs.replace(node, cards=cards, resources=()))
    return found


def known_room(nodes: Iterable[NodeCards]) -> list[str]:
    """What :attr:`CardFilter.free` may name on these cards: their profiles, then ``gpu`` and ``share``."""
    cards = [card for node in nodes for card in node.cards]
    profiles = {name for card in cards for name in (*card.possible, *(tile.profile for tile in card.tiles)) if name}
    return [*sorted(profiles - {WHOLE_CARD, SHARE}), WHOLE_CARD, SHARE]


def summarize(nodes: Iterable[NodeCards]) -> list[ModelSummary]:
    """A summary of each model, the most cards first."""
    cards: dict[str, list[MappedCard]] = {}
    for node in nodes:
        for card in node.cards:
            cards.setdefault(card.model, []).append(card)
    found = [
        ModelSummary(
            model=model,
            cards=len(of_model),
            kinds=dict(Counter(card.kind for card in of_model)),
            held=sum(_held(card) for card in of_model),
            possible=_sum(card.possible for card in of_model),
        )
        for model, of_model in cards.items()
    ]
    return sorted(found, key=lambda each: (-each.cards, each.model))


def _held(card: MappedCard) -> float:
    if card.slots:
        return card.used / card.slots
    return min(1.0, sum(each.share for each in card.holders))


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return {name: number for name, number in sorted(total.items()) if number}
