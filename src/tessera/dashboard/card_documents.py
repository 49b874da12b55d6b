"""Makes the documents of cards, of pods that wait, of failures, and the summary, from what was read. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from tessera.access.agent_pages import FleetUsage
from tessera.api.instaslice import Instaslice
from tessera.api.names import GATE, GPU_RESOURCES, PINNED_ANNOTATION, resource_of
from tessera.api.nodes.health import CardHealth, CardState, name_source
from tessera.api.nodes.usage import CardUsage, DeviceUsage, LeaseUsage, NodeUsage
from tessera.clock import parse_time_or_zero
from tessera.dashboard.documents import (
    CardDocument,
    Document,
    EvidenceDocument,
    FailureDocument,
    HealthDocument,
    HolderDocument,
    LeaseDocument,
    OfferDocument,
    PromiseDocument,
    SummaryDocument,
    TileDocument,
    WaitingDocument,
)
from tessera.explain.card_map import CardHolder, MappedCard, NodeResource, Tile
from tessera.explain.explanation import Explanation
from tessera.explain.fleet_map import map_fleet, waits_by_claims
from tessera.explain.topology_text import describe_each
from tessera.forecast.queue_page import QueuedPod, QueuePage, whole_minute
from tessera.kube.resources import Node, Pod
from tessera.kube.resources.meta import key_of
from tessera.limits import CARD_EVIDENCE, CARD_HOLDERS
from tessera.mig.names import is_device_profile
from tessera.observe.usage_rows import activity, card_activity, held_part, throttle_reasons
from tessera.reasons.words import verdict

#: Prefix of the resources whose pods wait for cards.
_RESOURCES = "nvidia.com/"
#: The quantity whose absence says why a card's activity is not known.
_ACTIVITY = "gpu_utilization"
#: States of slices that differ from "a container holds it" and "nobody holds it".
_TOLD = ("creating", "deleting", "foreign", "kept")
#: Reasons for which the activity of a card, or of its MIG devices, stays unknown if it was not measured so far.
_LASTING = ("not_supported", "mig_mode", "no_gpm")
#: Seconds after which a device in use has had several samples: what was not measured by then will not be.
_SAMPLED = 60.0
#: States of cards on which nothing works.
_LOST = (CardState.NEEDS_RESET, CardState.NEEDS_REBOOT, CardState.LOST)
#: States of promised slices.
_COMING = ("creating", "ungated", "created")


def make_documents(
    fleet: FleetUsage,
    pods: Iterable[Pod],
    instaslices: Iterable[Instaslice],
    reasons: Mapping[str, Explanation] | None = None,
    nodes: Iterable[Node] = (),
    *,
    queue: QueuePage | str | None = None,
    simulated: bool = False,
) -> dict[str, Document]:
    """Makes all documents by key.

    Args:
        fleet: the agents' pages.
        pods: the pods that the user may read.
        instaslices: the Instaslice objects that the user may read.
        reasons: for pods that wait, by ``namespace/name``, why they do.
        nodes: for the offers of nodes whose agent does not answer, and for those that take no new pods.
        queue: the controller's queue, or why it cannot be read; None if it was not asked yet.
        simulated: True if an agent that is silent now had simulated cards.
    """
    pods, reasons = list(pods), reasons or {}
    queued = {row.key: row for row in queue.pods} if isinstance(queue, QueuePage) else {}
    answering = {usage.node: usage for usage in fleet.nodes}
    documents: dict[str, Document] = {}
    #: Pods that have whole cards on record which no agent lists as theirs yet.
    starting: set[str] = set()
    offers: dict[str, Sequence[NodeResource]] = {}
    for node in map_fleet(instaslices, fleet.nodes, nodes=nodes, pods=pods):
        usage, offers[node.node] = answering.get(node.node), node.resources
        mapped = {card.uuid: card for card in node.cards}
        if usage is not None:
            starting |= {each.pod for card in node.cards for each in card.holders if not each.container}
        cards = _cards(usage, mapped) if usage else (_silent_card(node.node, card) for card in node.cards)
        for each in cards:
            documents[f"card/{each.node}/{each.uuid}"] = msgspec.structs.replace(each, closed=node.closed)
    for failure in fleet.failures:
        documents[f"failure/{failure.node}"] = FailureDocument(
            node=failure.node,
            reason=failure.reason,
            since=failure.since,
            next=failure.next,
            offers=tuple(
                OfferDocument(resource=each.resource, model=each.product, count=each.count, used=each.used)
                for each in offers.get(failure.node, ())
            ),
        )
    for pod in pods:
        row = queued.get(key_of(pod))
        waiting = waiting_pod(pod, row)
        if waiting is not None:
            why = reasons.get(f"{waiting.namespace}/{waiting.pod}")
            if why is not None:
                waiting = msgspec.structs.replace(waiting, case=why.case, reason=why.verdict)
            documents[f"waiting/{waiting.namespace}/{waiting.pod}"] = _in_queue(waiting, row) if row else waiting
    count = len(starting) + _count_starting(fleet, pods)
    summary = _summary(fleet, documents.values(), count, simulated=simulated)
    if isinstance(queue, str):
        summary = msgspec.structs.replace(summary, unqueued=True, unqueued_detail=queue)
    documents["summary"] = summary
    return documents


def _cards(usage: NodeUsage, mapped: Mapping[str, MappedCard]) -> Iterator[CardDocument]:
    by_device: dict[str, list[LeaseDocument]] = {}
    unmeasurable = _unmeasurable(usage)
    devices: dict[str, CardUsage | DeviceUsage] = {card.uuid: card for card in usage.cards}
    devices |= {each.uuid: each for card in usage.cards for each in card.devices}
    joined = {} if usage.topology is None else describe_each(usage.topology, usage.cards_by_pod())
    for lease in usage.leases:
        found = _lease(lease, devices.get(lease.device), lease.device in unmeasurable)
        if sentence := joined.get((lease.namespace, lease.pod)):
            found = msgspec.structs.replace(found, joined=sentence)
        by_device.setdefault(lease.device, []).append(found)
    for card in usage.cards:
        busy, values = card_activity(card), card.values
        yield CardDocument(
            node=usage.node,
            index=card.index,
            uuid=card.uuid,
            model=card.model,
            mig=card.mig,
            slots=card.slots if card.mig else 0,
            held=held_part(usage, card),
            busy=busy,
            busy_absent=card.absent.get(_ACTIVITY, "") if busy is None else "",
            memory=values.get("memory_used"),
            memory_total=values.get("memory_total"),
            power=values.get("power"),
            power_limit=values.get("power_limit"),
            temperature=values.get("temperature"),
            throttled=throttle_reasons(card) or (),
            tiles=_tiles(card, by_device, mapped[card.uuid].tiles),
            leases=tuple(by_device.get(card.uuid, ())),
            free=mapped[card.uuid].possible,
            kind=mapped[card.uuid].kind,
            replicas=card.replicas,
            health=_health(card.health),
            blocked=mapped[card.uuid].blocked,
        )


def _silent_card(node: str, card: MappedCard) -> CardDocument:
    """A card on record; nothing new is promised on it meanwhile."""
    return CardDocument(
        node=node,
        index=card.index,
        uuid=card.uuid,
        model=card.model,
        mig=card.kind in {"slice", "mig"},
        slots=card.slots,
        held=card.used / card.slots if card.slots else min(1.0, sum(each.share for each in card.holders)),
        tiles=tuple(_recorded(tile) for tile in card.tiles if tile.state != "deleted"),
        leases=tuple(map(_recorded_lease, card.holders)),
        kind=card.kind,
        replicas=card.replicas,
        silent=True,
    )


def _recorded_lease(holder: CardHolder) -> LeaseDocument:
    """A pod's hold of a whole card, as Tessera's records have it."""
    namespace, _, pod = holder.pod.partition("/")
    return LeaseDocument(
        namespace=namespace,
        pod=pod,
        container="",
        owner="",
        kind="whole",
        share=holder.share,
        state="unknown",
        evidence="on record; the agent of its node does not answer",
        held=0.0,
        wasted=0.0,
    )


def _health(health: CardHealth) -> HealthDocument | None:
    if health.state in {CardState.HEALTHY, CardState.UNKNOWN}:
        return None
    cut = max(0, len(health.evidence) - CARD_EVIDENCE) + max(0, len(health.holders) - CARD_HOLDERS)
    return HealthDocument(
        state=health.state,
        since=health.since,
        evidence=tuple(
            EvidenceDocument(
                source=name_source(each.source),
                text=each.text,
                asks=each.asks,
                since=each.since,
                count=each.count,
                spared=each.spared,
            )
            for each in health.evidence[:CARD_EVIDENCE]
        ),
        next=health.next,
        holders=tuple(
            HolderDocument(namespace=each.namespace, pod=each.pod, pid=each.pid, process=each.process)
            for each in health.holders[:CARD_HOLDERS]
        ),
        cut=max(0, health.cut) + cut,
    )


def _tiles(
    card: CardUsage, leases: Mapping[str, Sequence[LeaseDocument]], recorded: Iterable[Tile]
) -> tuple[TileDocument, ...]:
    """The MIG devices that exist, and the slices that are promised and whose place is free already."""
    records = {(each.start, each.size): each for each in recorded if each.state != "deleted"}
    found = []
    for each in card.devices:
        held = tuple(leases.get(each.uuid, ()))
        record = records.pop((each.start, each.size), None)
        tile = TileDocument(start=each.start, size=each.size, profile=each.profile)
        found.append(
            msgspec.structs.replace(
                tile if record is None or held else _recorded(record, each.profile),
                busy=activity(each.values),
                memory=each.values.get("memory_used"),
                memory_total=each.values.get("memory_total"),
                leases=held,
            )
        )
    # "created" here means that the agent's sample is older than the slice.
    coming = [msgspec.structs.replace(each, state="creating") for each in records.values() if each.state in _COMING]
    taken = {slot for each in card.devices for slot in range(each.start, each.start + each.size)}
    found += [_recorded(each) for each in coming if taken.isdisjoint(range(each.start, each.start + each.size))]
    return tuple(sorted(found, key=lambda each: each.start))


def _recorded(tile: Tile, profile: str = "") -> TileDocument:
    """A slice as Tessera's records have it; the pod of a MIG device of a layout is no promise."""
    namespace, _, pod = tile.pod.partition("/") if tile.uid else ("", "", "")
    return TileDocument(
        start=tile.start,
        size=tile.size,
        profile=tile.profile or profile,
        state=tile.state if tile.state in _TOLD else "",
        promise=PromiseDocument(namespace=namespace, pod=pod) if pod else None,
    )


def _limit(lease: LeaseUsage, device: CardUsage | DeviceUsage | None) -> float | None:
    """The memory that a lease may use: that of its device, of a shared one its part; None if that is not known."""
    size = device.share if isinstance(device, DeviceUsage) else 1.0
    memory = device.values.get("memory_total") if device is not None else None
    if lease.limit is not None or memory is None or size <= 0:
        return lease.limit
    return memory * min(1.0, lease.share / size)


def _unmeasurable(usage: NodeUsage) -> frozenset[str]:
    """UUIDs of the devices with processes whose activity the driver reports neither now nor later."""
    blind = (card for card in usage.cards if card.absent.get(_ACTIVITY) in _LASTING)
    devices = (each for card in blind for each in (card.devices or (card,)))
    return frozenset(each.uuid for each in devices if each.processes and activity(each.values) is None)


def _lease(lease: LeaseUsage, device: CardUsage | DeviceUsage | None, unmeasurable: bool) -> LeaseDocument:
    return LeaseDocument(
        namespace=lease.namespace,
        pod=lease.pod,
        container=lease.container,
        owner=lease.owner,
        kind=lease.kind,
        share=lease.share,
        state=lease.state,
        evidence=lease.evidence,
        held=round(lease.held),
        wasted=round(lease.wasted),
        busy=lease.busy,
        memory=lease.memory,
        limit=_limit(lease, device),
        blind=unmeasurable and lease.state == "unknown" and lease.busy is None and lease.held >= _SAMPLED,
        fault=lease.fault,
        power=None if lease.power is None else round(lease.power, 1),
        counts_from=lease.counts_from,
        findings=tuple(each.sentence for each in lease.findings),
    )


def waiting_pod(pod: Pod, row: QueuedPod | None = None) -> WaitingDocument | None:
    """The document of a pod that asks for cards and has no node; None for any other pod.

    Args:
        pod: the pod.
        row: what the controller's queue says of it, which alone tells the slices of its ResourceClaims.
    """
    if pod.spec.node_name or pod.status.phase not in ("Pending", "") or pod.metadata.deletion_timestamp:
        return None
    gated = any(gate.name == GATE for gate in pod.spec.scheduling_gates)
    amounts: dict[str, int] = {}
    for container in pod.spec.containers:
        for name, amount in container.resources.limits.items():
            if name.startswith(_RESOURCES) and amount.isdecimal():
                amounts[name] = amounts.get(name, 0) + int(amount[:9])
    if pod.spec.resource_claims and not amounts and row is not None:
        amounts = dict(Counter(name if is_device_profile(name) else resource_of(name) for name in row.profiles))
    if not gated and not amounts and not waits_by_claims(pod):
        return None
    return WaitingDocument(
        namespace=pod.metadata.namespace,
        pod=pod.metadata.name,
        requests=", ".join(f"{count} x {name.removeprefix(_RESOURCES)}" for name, count in sorted(amounts.items())),
        since=parse_time_or_zero(pod.metadata.creation_timestamp),
        owner=pod.workload,
        gated=gated,
    )


def _in_queue(waiting: WaitingDocument, row: QueuedPod) -> WaitingDocument:
    """Adds reason, place and start."""
    if row.why is not None:
        waiting = msgspec.structs.replace(waiting, case=row.why.case, why=verdict(row.why))
    if not row.position:
        return waiting
    p50, p90 = (None if each is None else whole_minute(each) for each in (row.start.p50, row.start.p90))
    return msgspec.structs.replace(
        waiting,
        position=row.position,
        of=row.of,
        ahead=row.position - 1 if row.ahead is None else row.ahead,
        p50=p50,
        p90=p90,
        basis="waits" if row.start.waits else row.start.basis,
        starts=row.start.starts,
    )


def _count_starting(fleet: FleetUsage, pods: Iterable[Pod]) -> int:
    """Pods with a place for whole cards or shares on a node whose agent does not list these as theirs yet."""
    listed = {lease.uid for usage in fleet.nodes for lease in usage.leases}
    answering = {usage.node for usage in fleet.nodes}
    return sum(
        pod.metadata.uid not in listed
        and pod.status.phase == "Pending"
        and not pod.metadata.deletion_timestamp
        and (pod.spec.node_name in answering if pod.spec.node_name else _is_pinned(pod))
        and any(name in GPU_RESOURCES for each in pod.spec.containers for name in each.resources.limits)
        for pod in pods
    )


def _is_pinned(pod: Pod) -> bool:
    """True if Tessera has given a pod its node, and kube-scheduler has not bound it yet."""
    return pod.metadata.annotations.get(PINNED_ANNOTATION) == pod.metadata.uid


def _summary(fleet: FleetUsage, documents: Iterable[Document], starting: int, *, simulated: bool) -> SummaryDocument:
    cards, waiting = [], 0
    for each in documents:
        if isinstance(each, CardDocument):
            cards.append(each)
        elif isinstance(each, WaitingDocument):
            waiting += 1
    leases = [
        lease for card in cards for lease in (*card.leases, *(each for tile in card.tiles for each in tile.leases))
    ]
    lost = (card.held for card in cards if card.health is not None and card.health.state in _LOST)
    busy = [card.busy for card in cards if card.busy is not None]
    power = [card.power for card in cards if card.power is not None]
    return SummaryDocument(
        nodes=len({usage.node for usage in fleet.nodes} | {card.node for card in cards}),
        cards=len(cards),
        pods=len({(lease.namespace, lease.pod) for lease in leases}),
        waiting=waiting,
        starting=starting,
        held=sum(card.held for card in cards),
        held_lost=sum(lost),
        measured=len(busy),
        silent=sum(card.silent for card in cards),
        unwell=sum(card.health is not None and card.health.state != CardState.CORDONED for card in cards),
        cordoned=sum(card.health is not None and card.health.state == CardState.CORDONED for card in cards),
        busy=sum(busy) / len(busy) if busy else None,
        power=sum(power) if power else None,
        simulated=simulated or any(each.simulated for each in fleet.nodes),
    )
