"""The map of the cards on record: those that are cut on demand by memory slot, and whole cards of ResourceClaims.

Pure. This part of the map is made from Instaslice objects alone, so it shows Tessera's records. Nodes are read only to
find those that are labelled for slices on demand and have no cards yet. :mod:`tessera.explain.fleet_map` adds the cards
of other kinds.
"""

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from tessera.api.instaslice import Instaslice, NodeGpu, ProfilePlacements, Slice, recorded_slices, slots_of
from tessera.api.names import MIG_CONFIG_LABEL, is_on_demand
from tessera.api.nodes.node_marks import ADVERTISED_CONDITION, LAYOUT
from tessera.api.nodes.silence import NONE_SILENT, SilentNode
from tessera.kube.resources import Node
from tessera.mig.names import CLAIMED_SHARE, is_device_profile

#: What :attr:`MappedCard.possible` calls a whole card.
WHOLE_CARD = "gpu"
#: Name of shares, beside that of whole cards and the profiles of slices.
SHARE = "share"


class Tile(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One slice on a card.

    Attributes:
        start: first memory slot.
        size: memory slots.
        profile: NVIDIA's name of the slice; empty for a foreign slice of unknown profile. Once the pod's request is
            removed, that of slices of this place without engines of their own; two names if two kinds have it.
        pod: ``namespace/name``; empty for a foreign slice, and once the pod's request is removed.
        uid: the pod's UID.
        state: ``creating``, ``created``, ``ungated``, ``deleting``, ``deleted``, ``foreign``, or ``kept`` for a slice
            of a running pod whose record is lost.
        users: ``namespace/name`` of the pods that have it, where ``pod`` is none of them: it lends the slice.
    """

    start: int
    size: int
    profile: str
    pod: str = ""
    uid: str = ""
    state: str
    users: tuple[str, ...] = ()


class CardHolder(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Hold of a container on a card that is not cut: ``namespace/name`` of its pod, and its part of the card.

    Tessera's records name no container.
    """

    pod: str
    container: str = ""
    share: float = 1.0


class MappedCard(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One card.

    Attributes:
        index: of the driver.
        uuid: of the card.
        model: the product's name.
        memory: of the card, as text.
        slots: its memory slots; 0 without MIG.
        used: memory slots that are in use.
        tiles: its slices, or the MIG devices of its layout.
        possible: how much more of each kind alone would fit now: slices by profile, ``gpu`` for the whole card,
            ``share`` for shares of it, ``3g.20gb.shared`` for shares of a MIG device.
        kind: ``slice`` (cut on demand), ``mig`` (a fixed layout), ``whole``, ``time-slicing``, ``mps``, ``shares`` of
            either kind, which a record does not tell; empty if it is not offered.
        replicas: shares of the card, or of each of its MIG devices.
        holders: the containers that hold the card itself.
        health: its state if it is not healthy.
        blocked: its free devices that kube-scheduler gives to no pod; they are not among the possible ones.
    """

    index: int
    uuid: str
    model: str
    memory: str
    slots: int
    used: int
    tiles: tuple[Tile, ...]
    possible: dict[str, int]
    kind: str = "slice"
    replicas: int = 1
    holders: tuple[CardHolder, ...] = ()
    health: str = ""
    blocked: int = 0


class NodeResource(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A resource of a node whose agent does not tell its cards.

    Attributes:
        resource: the extended resource.
        product: of the cards.
        kind: as in the annotation of offers: ``whole``, ``share``, ``slice``.
        count: devices of the node.
        used: devices that its pods ask for.
        pods: ``namespace/name`` of these pods.
    """

    resource: str
    product: str
    kind: str
    count: int
    used: int
    pods: tuple[str, ...] = ()


class NodeCards(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One node.

    Attributes:
        node: its name.
        cards: its cards in the order of the driver's indexes.
        resources: what is known of cards that are not listed.
        unread: the reason for which the agent's page could not be read; empty if it was, or was not needed.
        closed: True if it takes no new pods: it is cordoned, or not ready. Nothing is possible on its cards then.
        blocked: the sentences about free devices that kube-scheduler gives to no pod.
    """

    node: str
    cards: tuple[MappedCard, ...]
    resources: tuple[NodeResource, ...] = ()
    unread: str = ""
    closed: bool = False
    blocked: tuple[str, ...] = ()


class PendingNode(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A node that is labelled for slices on demand and has no cards yet; ``why`` is the reason as a sentence."""

    node: str
    why: str


def pending_nodes(
    nodes: Iterable[Node], joined: Collection[str], silent: Mapping[str, SilentNode] = NONE_SILENT
) -> list[PendingNode]:
    """The nodes that are labelled for slices on demand and are not among ``joined``, in the order of their names.

    Args:
        nodes: all nodes.
        joined: the nodes with cards.
        silent: the nodes whose agents should answer and do not.
    """
    labelled = [each for each in nodes if is_on_demand(each.metadata.labels.get(MIG_CONFIG_LABEL, ""))]
    return [
        PendingNode(node=each.metadata.name, why=_pending_reason(each, silent.get(each.metadata.name)))
        for each in sorted(labelled, key=lambda each: each.metadata.name)
        if each.metadata.name not in joined
    ]


def _pending_reason(node: Node, silence: SilentNode | None) -> str:
    """Why its agent is silent, or the message of the condition that is not true, the driver's before the layout's."""
    if silence is not None and not silence.speaks:
        return silence.reason
    wrong = {each.type: each for each in node.status.conditions if each.status != "True"}
    message = next((wrong[kind].message for kind in (ADVERTISED_CONDITION, LAYOUT) if kind in wrong), "")
    return message or "its agent has not reported its cards yet"


def cards_of(instaslices: Iterable[Instaslice]) -> list[NodeCards]:
    """The nodes and their cards, in the order of the nodes' names."""
    ordered = sorted(instaslices, key=lambda each: each.metadata.name)
    return [NodeCards(node=each.metadata.name, cards=_cards(each)) for each in ordered]


def _cards(instaslice: Instaslice) -> tuple[MappedCard, ...]:
    resources = instaslice.status.node_resources
    tiles = _tiles(instaslice)
    indexes = resources.indexes()
    listed = [
        _card(indexes[gpu.gpu_uuid], gpu, resources.placements_of(gpu), tiles.get(gpu.gpu_uuid, ()))
        for gpu in resources.node_gpus
    ]
    withheld = sorted(tiles.keys() - indexes.keys())
    free = (index for index in itertools.count() if index not in set(indexes.values()))
    slots = {gpu: max(tile.start + tile.size for tile in tiles[gpu]) for gpu in withheld}
    usual = max((card.slots for card in listed), default=0)
    others = [
        _withheld(index, gpu, max(usual, slots[gpu]), tiles[gpu]) for index, gpu in zip(free, withheld, strict=False)
    ]
    return tuple(sorted((*listed, *others), key=lambda card: card.index))


def _card(index: int, gpu: NodeGpu, placements: dict[str, ProfilePlacements], tiles: Sequence[Tile]) -> MappedCard:
    if CLAIMED_SHARE in placements:
        count = len(placements[CLAIMED_SHARE].placements)
        card = _whole_card(index, gpu, tiles, {SHARE: count - len(tiles)}, count)
        return msgspec.structs.replace(card, kind="shares", replicas=count)
    if any(map(is_device_profile, placements)):
        return _whole_card(index, gpu, tiles, dict.fromkeys((WHOLE_CARD,), 0 if tiles else 1))
    return MappedCard(
        index=index,
        uuid=gpu.gpu_uuid,
        model=gpu.gpu_name,
        memory=gpu.gpu_memory,
        slots=slots_of(placements),
        used=sum(tile.size for tile in tiles),
        tiles=tuple(sorted(tiles, key=lambda tile: tile.start)),
        possible={profile: _count_fitting(each, tiles) for profile, each in sorted(placements.items())},
    )


def _whole_card(
    index: int, gpu: NodeGpu, tiles: Iterable[Tile], possible: dict[str, int], parts: int = 1
) -> MappedCard:
    """A card that goes to ResourceClaims whole or in shares: its record is a slice for each of its parts."""
    held = Counter(each.pod for each in tiles if each.pod)
    return MappedCard(
        index=index,
        uuid=gpu.gpu_uuid,
        model=gpu.gpu_name,
        memory=gpu.gpu_memory,
        slots=0,
        used=0,
        tiles=(),
        possible=possible,
        kind="whole",
        holders=tuple(CardHolder(pod=pod, share=min(1.0, number / parts)) for pod, number in held.items()),
    )


def _withheld(index: int, gpu: str, slots: int, tiles: Sequence[Tile]) -> MappedCard:
    """A card that the agent does not list, such as a lost one, with the slices on it; its page tells the rest."""
    if any(is_device_profile(each.profile) for each in tiles):
        return _whole_card(index, NodeGpu(gpu_uuid=gpu, gpu_name="", gpu_memory=""), tiles, {})
    return MappedCard(
        index=index,
        uuid=gpu,
        model="",
        memory="",
        slots=slots,
        used=sum(tile.size for tile in tiles),
        tiles=tuple(sorted(tiles, key=lambda tile: tile.start)),
        possible={},
    )


def _count_fitting(profile: ProfilePlacements, tiles: Sequence[Tile]) -> int:
    """The largest number of further slices of one profile that fit."""
    taken = {slot for tile in tiles for slot in range(tile.start, tile.start + tile.size)}
    count = 0
    for position in sorted(profile.placements, key=lambda each: each.start):
        slots = set(range(position.start, position.start + position.size))
        if not slots & taken:
            taken |= slots
            count += 1
    return count if profile.max_count is None else min(count, profile.max_count)


def _tiles(instaslice: Instaslice) -> dict[str, list[Tile]]:
    """The tiles by card: promised slices, slices of deleted pods, and slices that Tessera did not make."""
    found: dict[str, list[Tile]] = {}
    for uid, request in instaslice.spec.pod_allocation_requests.items():
        state = _state(instaslice, uid)
        for each in recorded_slices(request, instaslice.status.pod_allocation_results.get(uid)):
            pod = f"{request.pod_ref.namespace}/{request.pod_ref.name}"
            found.setdefault(each.gpu_uuid, []).append(_tile(each, pod, uid, state))
    for uid, result in instaslice.status.pod_allocation_results.items():
        if uid not in instaslice.spec.pod_allocation_requests:
            for each in recorded_slices(None, result):
                named = msgspec.structs.replace(each, profile=each.profile or _profile_at(instaslice, each))
                found.setdefault(each.gpu_uuid, []).append(_tile(named, "", uid, "deleting"))
    for other in instaslice.status.node_resources.foreign:
        state = "kept" if other.pod_uid else "foreign"
        tile = Tile(start=other.start, size=other.size, profile=other.profile, state=state)
        found.setdefault(other.gpu_uuid, []).append(tile)
    return found


def _profile_at(instaslice: Instaslice, at: Slice) -> str:
    """The profiles that a card's table has at a place, which the record of a pod that is gone does not name."""
    resources = instaslice.status.node_resources
    listed = next((each for each in resources.node_gpus if each.gpu_uuid == at.gpu_uuid), None)
    table = resources.mig_placement if listed is None else resources.placements_of(listed)
    here = (at.start, at.size)
    names = [
        name
        for name, each in sorted(table.items())
        if "+" not in name and any((place.start, place.size) == here for place in each.placements)
    ]
    return " or ".join(names)


def _tile(each: Slice, pod: str, uid: str, state: str) -> Tile:
    return Tile(start=each.start, size=each.size, profile=each.profile, pod=pod, uid=uid, state=state)


def _state(instaslice: Instaslice, uid: str) -> str:
    """The state to show: the agent's state if it has set one, but ``deleting`` of the controller before ``created``."""
    result = instaslice.status.pod_allocation_results.get(uid)
    if result is None:
        return "creating"
    controller = result.allocation_status.allocation_status_controller
    daemonset = result.allocation_status.allocation_status_daemonset
    if daemonset == "deleted" or (controller != "deleting" and daemonset):
        return daemonset
    return controller
