"""The documents of the live page: one for each card, node and pod that waits, for failures, curves, and one summary.

A document is a small JSON object under a key such as ``card/NODE/UUID``. The page keeps all documents and replaces one
when it changes. Values that were not measured are missing, never 0. The type of each text says who may see it
(:mod:`tessera.visibility`).
"""

from collections.abc import Mapping

import msgspec

from tessera.forecast.queue_page import SpareSlices
from tessera.observe.service_rows import ServiceRow
from tessera.visibility import (
    ClusterText,
    NodeName,
    NodeText,
    OwnedText,
    PodName,
    PodNamespace,
    PodText,
    Public,
    WorkloadText,
)


class EvidenceDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An error of a card that is not over; see :class:`tessera.api.nodes.health.Evidence`. ``source`` is in words.

    The class of a fault is no secret of another tenant, and its sentence names nobody: everybody may see it.
    """

    source: Public
    text: Public
    asks: Public
    since: float = 0.0
    count: int = 1
    spared: bool = False


class HolderDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A pod, or a process of the host, that holds a card which must be reset or booted."""

    namespace: PodNamespace = ""
    pod: PodName = ""
    pid: int = 0
    process: NodeText = ""


class HealthDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The health of a card that is not well; see :class:`tessera.api.nodes.health.CardHealth`."""

    state: Public
    since: float = 0.0
    evidence: tuple[EvidenceDocument, ...] = ()
    next: Public = ""
    holders: tuple[HolderDocument, ...] = ()
    cut: int = 0


class LeaseDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Hold of a container on a device; see :class:`tessera.api.nodes.usage.LeaseUsage`.

    ``limit`` is the memory of the device in bytes; of a shared device, the part that belongs to the lease. ``fault`` is
    the sentence about the fault of its card or GPU instance. ``blind`` is true if processes hold the device, and its
    activity cannot be measured: its state stays unknown. ``joined`` says how the cards are joined that its pod has.
    ``power`` is its part of the card's watts. ``counts_from``, of a lease that looks unused so far: seconds without use
    from which on it counts as not used.
    """

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
    limit: float | None = None
    blind: bool = False
    findings: tuple[PodText, ...] = ()
    fault: PodText = ""
    joined: PodText = ""
    power: float | None = None
    counts_from: float | None = None


class PromiseDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A pod that a slice is reserved for."""

    namespace: PodNamespace
    pod: PodName


class TileDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A MIG device on a card: its place in memory slots, and who holds it.

    Attributes:
        start: first memory slot.
        size: memory slots.
        profile: NVIDIA's name; empty for a foreign slice of unknown profile.
        state: ``creating``, ``deleting``, ``foreign`` or ``kept`` of a slice that no container holds in the usual way;
            see :class:`tessera.explain.card_map.Tile`.
        promise: the pod that the slice is reserved for.
        busy: share of time in which it computed.
        memory: bytes in use.
        memory_total: bytes of the device.
        leases: the containers that hold it.
    """

    start: int
    size: int
    profile: Public
    state: Public = ""
    promise: PromiseDocument | None = None
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
        busy_absent: why that was not measured, a value of :class:`tessera.nvml.measurements.Absence`.
        memory: bytes in use.
        memory_total: bytes of the card.
        power: watts.
        power_limit: watts.
        temperature: degrees Celsius.
        throttled: reasons for which it is slowed down.
        tiles: its MIG devices by their place.
        leases: what containers hold of the card itself.
        free: what more would fit, each alone: slices by profile, ``gpu`` for the whole card, ``share`` for shares.
        kind: its offer, ``slice`` (on demand), ``mig``, ``whole``, ``time-slicing``, ``mps``, of a
            silent card ``shares`` of either; empty if not offered.
        replicas: shares of the card, or of each of its MIG devices.
        health: its state and evidence; None for a card that is well.
        silent: True if the node's agent does not answer: what is shown are Tessera's records.
        closed: True if the node takes no new pods: it is cordoned, or not ready. Nothing more fits then.
        blocked: its free devices that kube-scheduler gives to no pod (:mod:`tessera.api.nodes.card_faults`).
    """

    node: NodeName
    index: int
    uuid: NodeName
    model: Public
    mig: bool
    slots: int
    held: float
    busy: float | None = None
    busy_absent: Public = ""
    memory: float | None = None
    memory_total: float | None = None
    power: float | None = None
    power_limit: float | None = None
    temperature: float | None = None
    throttled: tuple[Public, ...] = ()
    tiles: tuple[TileDocument, ...] = ()
    leases: tuple[LeaseDocument, ...] = ()
    free: Mapping[Public, int] = {}
    kind: Public = ""
    replicas: int = 1
    health: HealthDocument | None = None
    silent: bool = False
    closed: bool = False
    blocked: int = 0


class WaitingDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A pod that asks for cards and has no node.

    Attributes:
        namespace: of the pod.
        pod: its name.
        requests: the resources that it asks for, as text.
        since: Unix time of its creation.
        owner: the workload that made it, ``Kind/name``; empty if none did.
        gated: True while Tessera holds it until a slice has room.
        case: the kind of reason, as ``tessera why`` has it; empty while it is not known.
        why: the first line of ``tessera why`` by the controller's reason; it names no other pod and no node.
        reason: that line for a pod of which the controller says none.
        position: its place in the order of the pods that compete with each other for room, from 1; 0 while it is not
            known.
        of: the number of pods in that order.
        ahead: those before it that want cards that it may use; the others wait for other cards.
        p50: Unix time before which half of such pods start, a whole minute; None if nothing is known.
        p90: that of nine of ten; None if it is too far away to say.
        basis: what the start rests on: ``deadline``, ``history``, ``waits`` (history and past waits), ``rate`` or
            ``unknown``; empty without a position.
        starts: pods with the same slices that started in the last hour.
    """

    namespace: PodNamespace
    pod: PodName
    requests: Public
    since: float
    owner: PodText = ""
    gated: bool = False
    case: Public = ""
    why: PodText = ""
    reason: ClusterText = ""
    position: int = 0
    of: int = 0
    ahead: int = 0
    p50: float | None = None
    p90: float | None = None
    basis: Public = ""
    starts: int = 0


class KueueDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Kueue is there.

    Attributes:
        notes: what is not known of its queues, and why: sentences of Tessera that name no object of the cluster.
        detail: what the server said about it.
        read: if the last reading failed, the Unix time of the last one that did not; 0 if there is none.
    """

    notes: tuple[Public, ...] = ()
    detail: ClusterText = ""
    read: float = 0.0


class UnshownDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The number of Workloads of a namespace that wait in Kueue, beside those that have a document."""

    namespace: WorkloadText
    workloads: int


class WorkloadDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A Workload that waits in Kueue; see :class:`tessera.explain.kueue_rows.KueueRow`.

    Attributes:
        namespace: its namespace.
        workload: its name.
        owner: what it is for: ``Job/train``, or the name of a pod; empty if nothing owns it.
        queue: its LocalQueue.
        since: Unix time of its creation.
        position: its place in the LocalQueue, from 1; 0 while it is not known.
        of: the number of pending Workloads of that queue.
        of_more: True if the queue may have more than ``of``.
        among_all: its place among all queues that share the quota, from 1; 0 while it is not known.
        case: the kind of waiting, as ``tessera why`` has it.
        verdict: why it waits.
    """

    namespace: WorkloadText
    workload: WorkloadText
    owner: WorkloadText = ""
    queue: WorkloadText = ""
    since: float = 0.0
    position: int = 0
    of: int = 0
    of_more: bool = False
    among_all: int = 0
    case: Public = ""
    verdict: WorkloadText = ""


class OfferDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A resource of a node whose agent does not answer: its devices, and those that pods ask for."""

    resource: Public
    model: Public
    count: int
    used: int


class FailureDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node whose agent should answer and does not.

    Attributes:
        node: its name.
        reason: why.
        since: Unix time since when; 0 if that is not known.
        next: what to do.
        offers: what the node offers, as far as the node itself says.
    """

    node: NodeName
    reason: ClusterText
    since: float = 0.0
    next: ClusterText = ""
    offers: tuple[OfferDocument, ...] = ()


class SummaryDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The cluster as a whole.

    Attributes:
        nodes: nodes whose agents answer, and those of silent cards.
        cards: cards, with the silent ones.
        pods: pods that hold cards.
        waiting: pods that wait for cards.
        starting: pods that have a place for whole cards or shares, which no agent lists as theirs yet: what fits now
            still counts these.
        held: cards that containers hold, parts added; of silent cards, what Tessera's records say.
        held_lost: those of them that work for nobody until a reset or a reboot.
        silent: cards whose agent does not answer, known from Tessera's records.
        unwell: cards with which something is wrong.
        cordoned: cards with which nothing is wrong, and that a person has taken out of service.
        measured: cards whose activity is measured.
        busy: mean activity of these cards.
        power: watts of all cards that measure it.
        simulated: True if cards exist only in a lab, also while their agents are silent.
        unqueued: True if the controller's queue cannot be read: nobody knows places and expected starts.
        unqueued_detail: why it cannot.
        unserved: True if the controller does not tell the services.
        unserved_detail: why it does not.
        services_cut: services that the controller does not tell, beyond its most.
    """

    nodes: int
    cards: int
    pods: int
    waiting: int
    held: float
    measured: int
    starting: int = 0
    silent: int = 0
    unwell: int = 0
    cordoned: int = 0
    held_lost: float = 0.0
    busy: float | None = None
    power: float | None = None
    simulated: bool = False
    unqueued: bool = False
    unqueued_detail: ClusterText = ""
    unserved: bool = False
    unserved_detail: ClusterText = ""
    services_cut: int = 0


class TeamDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A namespace whose label names a team; the others are teams of their own."""

    namespace: OwnedText
    team: PodText


class DriverDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A node's driver.

    Attributes:
        strategy: how it is installed: ``precompiled``, ``built``, ``pre-installed``, ...
        phase: ``ready``, ``pulling``, ``failed``, ...
        version: the version or branch that the policy asks for.
        since: when the phase began, RFC 3339.
        reason: why this strategy, or what the node waits for.
        upgrade: state of the node in a rollout, in NVIDIA's words.
        offered: a better driver that is possible now.
    """

    strategy: Public
    phase: Public
    version: Public = ""
    since: Public = ""
    reason: NodeText = ""
    upgrade: Public = ""
    offered: NodeText = ""


class PhaseDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A phase of a node's start that is over, and its seconds."""

    name: Public
    seconds: float


class StartupDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A node that comes up.

    Attributes:
        verdict: the phase that it is in, and what it waits for.
        overdue: True if its deadline has passed.
        facts: what is known of its start.
        phases: the phases that are over.
    """

    verdict: NodeText
    overdue: bool = False
    facts: tuple[NodeText, ...] = ()
    phases: tuple[PhaseDocument, ...] = ()


class NodeDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A node with a driver of Tessera, or on its way to usable cards.

    Attributes:
        node: its name.
        driver: its driver; None if Tessera does not install it.
        startup: its way; None once its cards can be used.
    """

    node: NodeName
    driver: DriverDocument | None = None
    startup: StartupDocument | None = None


class HistoryDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The last hours of the fleet; ``None`` for a value that was not measured.

    Attributes:
        until: Unix time of the last value.
        step: seconds between two values.
        held: cards that containers hold, parts added.
        busy: mean activity of the cards that measure it.
        power: watts of all cards that measure it.
        waiting: pods that wait for cards.
    """

    until: float
    step: float
    held: tuple[float | None, ...]
    busy: tuple[float | None, ...]
    power: tuple[float | None, ...]
    waiting: tuple[float | None, ...]


class CardHistoryDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The last hours of a card; ``None`` for a value that was not measured.

    Attributes:
        node: its node.
        uuid: of the card.
        until: Unix time of the last value.
        step: seconds between two values.
        held: part of the card that containers hold.
        busy: its activity, 0 to 1.
        memory: part of its memory that is in use.
    """

    node: NodeName
    uuid: NodeName
    until: float
    step: float
    held: tuple[float | None, ...]
    busy: tuple[float | None, ...]
    memory: tuple[float | None, ...]


Document = (
    CardDocument
    | ServiceRow
    | WaitingDocument
    | WorkloadDocument
    | KueueDocument
    | UnshownDocument
    | FailureDocument
    | SummaryDocument
    | NodeDocument
    | TeamDocument
    | SpareSlices
    | HistoryDocument
    | CardHistoryDocument
)
