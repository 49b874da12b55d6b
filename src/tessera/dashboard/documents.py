"""The documents of the live page: one for each card, each pod that waits, each node that fails, and one summary. Pure.

A document is a small JSON object under a key such as ``card/NODE/UUID``. The page keeps all documents and replaces one
when it changes. Values that were not measured are missing, never 0. The type of each text says who may see it
(:mod:`tessera.dashboard.visibility`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from tessera.api.instaslice import Instaslice
from tessera.api.names import GATE
from tessera.api.nodes.usage import CardUsage, NodeUsage
from tessera.clock import parse_rfc3339
from tessera.dashboard.visibility import ClusterText, NodeName, PodName, PodNamespace, PodText, Public
from tessera.explain.card_map import cards_of
from tessera.kube.resources import Pod
from tessera.observe.agent_pages import FleetUsage
from tessera.observe.usage_rows import LeaseRow, activity, card_rows, lease_rows, owners_of

#: Prefix of the resources whose pods wait for cards.
_RESOURCES = "nvidia.com/"


class LeaseDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Hold of a container on a device; see :class:`tessera.api.nodes.usage.LeaseUsage`."""

    namespace: PodNamespace
    pod: PodName
    container: PodText
    owner: PodText
    kind: Public
    share: float
    state: Public
    evidence: PodText
    held: float
    wasted: float
    busy: float | None = None
    memory: float | None = None


class TileDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A MIG device on a card: its place in memory slots, and who holds it."""

    start: int
    size: int
    profile: Public
    busy: float | None = None
    memory: float | None = None
    memory_total: float | None = None
    leases: tuple[LeaseDocument, ...] = ()


class CardDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A card.

    Attributes:
        node: its node.
        index: of the driver.
        uuid: of the card.
        model: the product's name.
        mig: True if MIG mode is on.
        slots: its memory slots; 0 without MIG.
        held: part of the card that containers hold.
        busy: share of time in which it computed.
        memory: bytes in use.
        memory_total: bytes of the card.
        power: watts.
        power_limit: watts.
        temperature: degrees Celsius.
        throttled: reasons for which it is slowed down.
        tiles: its MIG devices by their place.
        leases: what containers hold of the card itself.
        free: by profile, how many more slices of it alone would fit; only for cards with slices on demand.
    """

    node: NodeName
    index: int
    uuid: NodeName
    model: Public
    mig: bool
    slots: int
    held: float
    busy: float | None = None
    memory: float | None = None
    memory_total: float | None = None
    power: float | None = None
    power_limit: float | None = None
    temperature: float | None = None
    throttled: tuple[Public, ...] = ()
    tiles: tuple[TileDocument, ...] = ()
    leases: tuple[LeaseDocument, ...] = ()
    free: Mapping[Public, int] = {}


class WaitingDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A pod that asks for cards and has no node.

    Attributes:
        namespace: of the pod.
        pod: its name.
        requests: the resources that it asks for, as text.
        since: Unix time of its creation.
        gated: True while Tessera holds it until a slice has room.
    """

    namespace: PodNamespace
    pod: PodName
    requests: Public
    since: float
    gated: bool = False


class FailureDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A node whose agent does not answer, and the reason."""

    node: NodeName
    reason: ClusterText


class SummaryDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The cluster as a whole.

    Attributes:
        nodes: nodes whose agents answer.
        cards: cards that answer.
        pods: pods that hold cards.
        waiting: pods that wait for cards.
        held: cards that containers hold, parts added.
        wasted_leases: leases in the states never_used, idle and resident.
        measured: cards whose activity is measured.
        busy: mean activity of these cards.
        power: watts of all cards that measure it.
        simulated: True if cards exist only in a lab.
    """

    nodes: int
    cards: int
    pods: int
    waiting: int
    held: float
    wasted_leases: int
    measured: int
    busy: float | None = None
    power: float | None = None
    simulated: bool = False


Document = CardDocument | WaitingDocument | FailureDocument | SummaryDocument


def make_documents(fleet: FleetUsage, pods: Iterable[Pod], instaslices: Iterable[Instaslice]) -> dict[str, Document]:
    """Makes all documents by key.

    Args:
        fleet: the agents' pages.
        pods: the pods that the user may read.
        instaslices: the Instaslice objects that the user may read.
    """
    pods = list(pods)
    free = {card.uuid: card.possible for node in cards_of(instaslices) for card in node.cards}
    owners = owners_of(pods)
    documents: dict[str, Document] = {}
    for usage in fleet.nodes:
        for document in _cards(usage, owners, free):
            documents[f"card/{document.node}/{document.uuid}"] = document
    for each in fleet.failures:
        documents[f"failure/{each.node}"] = FailureDocument(node=each.node, reason=each.reason)
    for pod in pods:
        waiting = waiting_pod(pod)
        if waiting is not None:
            documents[f"waiting/{waiting.namespace}/{waiting.pod}"] = waiting
    documents["summary"] = _summary(fleet, documents.values())
    return documents


def _cards(
    usage: NodeUsage, owners: Mapping[str, str], free: Mapping[str, Mapping[str, int]]
) -> Iterator[CardDocument]:
    by_device: dict[str, list[LeaseDocument]] = {}
    for row in lease_rows([usage], owners):
        by_device.setdefault(row.lease.device, []).append(_lease(row))
    for card, row_of_card in zip(usage.cards, card_rows([usage]), strict=True):
        yield CardDocument(
            node=usage.node,
            index=card.index,
            uuid=card.uuid,
            model=card.model,
            mig=card.mig,
            slots=card.slots if card.mig else 0,
            held=row_of_card.held,
            busy=row_of_card.busy,
            memory=row_of_card.memory,
            memory_total=row_of_card.memory_total,
            power=row_of_card.power,
            power_limit=row_of_card.power_limit,
            temperature=row_of_card.temperature,
            throttled=row_of_card.throttled,
            tiles=_tiles(card, by_device),
            leases=tuple(by_device.get(card.uuid, ())),
            free=free.get(card.uuid, {}),
        )


def _tiles(card: CardUsage, leases: Mapping[str, Sequence[LeaseDocument]]) -> tuple[TileDocument, ...]:
    return tuple(
        TileDocument(
            start=each.start,
            size=each.size,
            profile=each.profile,
            busy=activity(each.values),
            memory=each.values.get("memory_used"),
            memory_total=each.values.get("memory_total"),
            leases=tuple(leases.get(each.uuid, ())),
        )
        for each in sorted(card.devices, key=lambda each: each.start)
    )


def _lease(row: LeaseRow) -> LeaseDocument:
    lease = row.lease
    return LeaseDocument(
        namespace=lease.namespace,
        pod=lease.pod,
        container=lease.container,
        owner=row.owner,
        kind=lease.kind,
        share=lease.share,
        state=lease.state,
        evidence=lease.evidence,
        held=round(lease.held),
        wasted=round(lease.wasted),
        busy=lease.busy,
        memory=lease.memory,
    )


def waiting_pod(pod: Pod) -> WaitingDocument | None:
    """The document of a pod that asks for cards and has no node; None for any other pod."""
    if pod.spec.node_name or pod.status.phase not in ("Pending", "") or pod.metadata.deletion_timestamp:
        return None
    gated = any(gate.name == GATE for gate in pod.spec.scheduling_gates)
    amounts: dict[str, int] = {}
    for container in pod.spec.containers:
        for name, amount in container.resources.limits.items():
            if name.startswith(_RESOURCES) and amount.isdecimal():
                amounts[name] = amounts.get(name, 0) + int(amount[:9])
    if not gated and not amounts:
        return None
    return WaitingDocument(
        namespace=pod.metadata.namespace,
        pod=pod.metadata.name,
        requests=", ".join(f"{count} x {name.removeprefix(_RESOURCES)}" for name, count in sorted(amounts.items())),
        since=_created(pod),
        gated=gated,
    )


def _created(pod: Pod) -> float:
    try:
        return parse_rfc3339(pod.metadata.creation_timestamp or "")
    except ValueError:
        return 0.0


def _summary(fleet: FleetUsage, documents: Iterable[Document]) -> SummaryDocument:
    cards, waiting = [], 0
    for each in documents:
        if isinstance(each, CardDocument):
            cards.append(each)
        elif isinstance(each, WaitingDocument):
            waiting += 1
    leases = [
        lease for card in cards for lease in (*card.leases, *(each for tile in card.tiles for each in tile.leases))
    ]
    busy = [card.busy for card in cards if card.busy is not None]
    power = [card.power for card in cards if card.power is not None]
    return SummaryDocument(
        nodes=len(fleet.nodes),
        cards=len(cards),
        pods=len({(lease.namespace, lease.pod) for lease in leases}),
        waiting=waiting,
        held=sum(card.held for card in cards),
        wasted_leases=sum(lease.state in ("never_used", "idle", "resident") for lease in leases),
        measured=len(busy),
        busy=sum(busy) / len(busy) if busy else None,
        power=sum(power) if power else None,
        simulated=any(each.simulated for each in fleet.nodes),
    )
