"""The JSON document of an agent's page ``/usage``: the use of its node's cards.

The page has the values of ``/metrics`` by card, MIG device and lease, for readers that show them: ``tessera top``,
``tessera idle`` and the live page. Values are in base units (bytes, watts, hertz, degrees Celsius, ratios of 0 to 1)
under the names of :class:`tessera.nvml.measurements.Quantity`; a quantity that is not measured is missing.

A node may be hostile, and readers draw a tile for each slot and each share, sum all values, and send all texts to each
browser. So a page beyond the bounds does not decode, and its node is shown as one whose page cannot be read. The matrix
of how the cards are joined is read when cards come, go or change their mode; one that does not fit its cards counts as
none.
"""

import re
from collections.abc import Collection, Mapping
from typing import Annotated

import msgspec

from tessera.api.nodes.health import CardHealth, Finding, Index, Name, Part, Replicas, Slots, Value, Words
from tessera.limits import CARD_SLOTS, NODE_CARDS

#: Most network cards of a node in the matrix of its cards; more are left out. HGX machines with 36 are known.
NETWORK_CARDS = 64
#: Stands for a connection or a value that could not be read.
UNKNOWN = "N/A"

NVLINK = re.compile(r"NV([1-9]\d?)")
#: What each way through PCIe is, in the words of NVIDIA's legend; the slowest first.
LEGEND: Mapping[str, str] = {
    "SYS": "Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)",
    "NODE": "Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node",
    "PHB": "Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)",
    "PXB": "Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)",
    "PIX": "Connection traversing at most a single PCIe bridge",
}


class JoinedCard(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A card of the matrix.

    Attributes:
        index: of the driver.
        uuid: ``GPU-…``.
        cpus: the CPUs near it, ``0-55,112-167``; empty if not known.
        numa: the NUMA node near it.
        memory_node: the NUMA node that its own memory is, as on GH200; None elsewhere.
    """

    index: Index
    uuid: Name
    cpus: Name = ""
    numa: Index | None = None
    memory_node: Index | None = None


class NodeTopology(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The matrix of a node.

    Attributes:
        cards: the cards, by index.
        network: names of the RDMA network cards, ``mlx5_0``.
        rows: for each card, then each network card, its connections with those after it: ``NV18 PIX SYS``.
        clique: cluster and clique of the NVLink fabric that the cards have joined, as in ``nvidia.com/gpu.clique``.
    """

    cards: Annotated[tuple[JoinedCard, ...], msgspec.Meta(max_length=int(NODE_CARDS))] = ()
    network: Annotated[tuple[Name, ...], msgspec.Meta(max_length=NETWORK_CARDS)] = ()
    rows: Annotated[
        tuple[Annotated[str, msgspec.Meta(max_length=8 * (int(NODE_CARDS) + NETWORK_CARDS))], ...],
        msgspec.Meta(max_length=int(NODE_CARDS) + NETWORK_CARDS),
    ] = ()
    clique: Name = ""

    @property
    def size(self) -> int:
        """The number of cards and network cards."""
        return len(self.cards) + len(self.network)

    def cells(self) -> list[list[str]]:
        """The connection of each two, in both directions; empty if the rows do not fit the cards."""
        rows = [row.split() for row in self.rows]
        count = self.size
        if [len(row) for row in rows] != list(range(count - 1, -1, -1)):
            return []
        found = [[" X "] * count for _ in range(count)]
        for one, row in enumerate(rows):
            for other, text in enumerate(row, one + 1):
                known = text if text in LEGEND or NVLINK.fullmatch(text) else UNKNOWN
                found[one][other] = found[other][one] = known
        return found

    def of_cards(self, uuids: Collection[str]) -> "NodeTopology":
        """The matrix of these cards with the network cards."""
        cells, count = self.cells(), len(self.cards)
        if not cells:
            return NodeTopology()
        kept = [*(n for n, card in enumerate(self.cards) if card.uuid in uuids), *range(count, self.size)]
        return msgspec.structs.replace(
            self,
            cards=tuple(card for card in self.cards if card.uuid in uuids),
            rows=tuple(" ".join(cells[one][other] for other in kept[at + 1 :]) for at, one in enumerate(kept)),
        )


#: Most quantities of a card or MIG device on the page `/usage` of an agent. More than twice as many as an agent
#: measures.
USAGE_QUANTITIES = 128

#: The page's path, and the port of an agent's pages.
USAGE_PATH = "/usage"
AGENT_PORT = 8082

#: Measured values by quantity, and the reasons of quantities without a value.
Values = Annotated[Mapping[Name, Value], msgspec.Meta(max_length=int(USAGE_QUANTITIES))]
Reasons = Annotated[Mapping[Name, Name], msgspec.Meta(max_length=int(USAGE_QUANTITIES))]


class DeviceUsage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A MIG device.

    Attributes:
        uuid: ``MIG-…``.
        profile: of its GPU instance.
        start: first memory slot of its GPU instance.
        size: memory slots of its GPU instance.
        share: its part of the card, 0 to 1.
        values: what was measured.
        processes: the number of processes that compute on it.
    """

    uuid: Name
    profile: Name = ""
    start: Slots = 0
    size: Slots = 0
    share: Part = 0.0
    values: Values = {}
    processes: int = 0


class CardUsage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A card. One that does not answer, such as a lost card, has no values, and the devices that it had last.

    Attributes:
        uuid: ``GPU-…``.
        index: of the driver.
        model: the product's name.
        mig: True if MIG mode is on.
        slots: its memory slots; 0 if it has no MIG.
        kind: its offer: ``whole``, ``time-slicing``, ``mps`` or ``mig`` (of a layout); empty if it is cut on demand, or
            not offered.
        replicas: shares of the card, or of each of its MIG devices.
        values: what was measured.
        absent: by quantity, the reason that it was not measured.
        throttled: the reasons for which the card is slowed down.
        processes: the number of processes that compute on the card itself.
        devices: its MIG devices.
        health: its state, with evidence.
    """

    uuid: Name
    index: Index = 0
    model: Name = ""
    mig: bool = False
    slots: Slots = 0
    kind: Name = ""
    replicas: Replicas = 1
    values: Values = {}
    absent: Reasons = {}
    throttled: Annotated[tuple[Name, ...], msgspec.Meta(max_length=int(USAGE_QUANTITIES))] = ()
    processes: int = 0
    devices: Annotated[tuple[DeviceUsage, ...], msgspec.Meta(max_length=int(CARD_SLOTS))] = ()
    health: CardHealth = CardHealth()


class LeaseUsage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Hold of one container on one device, and the use that it makes of it.

    Attributes:
        namespace: of the pod.
        pod: name of the pod.
        uid: of the pod.
        container: its name; empty if kubelet does not list it yet.
        device: UUID of the card or MIG device.
        owner: ``Kind/name`` of the workload that made the pod; empty if it has none.
        kind: ``whole``, ``time-slicing``, ``mps``, ``mig`` (of a layout) or ``slice`` (made for the pod).
        share: part of the card, 0 to 1.
        state: ``never_used``, ``resident``, ``idle``, ``busy`` or ``unknown``.
        evidence: the reason for the state, in words.
        held: seconds since the agent first saw the lease.
        wasted: GPU-seconds in the states never_used, idle and resident.
        active: GPU-seconds in the state busy.
        memory: bytes that its processes hold; ``None`` if not measured.
        busy: share of time in which the device computed for it; ``None`` if not measured.
        findings: what is wrong with the use; empty also if nothing could be measured.
        fault: the sentence about the fault of its card or GPU instance; empty if that is well.
        limit: bytes that its pod may hold of a shared device; ``None`` for a device of its own, or if not known.
        power: its part of the card's watts, mean of the last minute; ``None`` if not known.
        energy: its part of the card's joules in the metered time.
        metered: GPU-seconds of the lease whose energy is known.
        counts_from: seconds without use from which on a lease of unknown state, which looks unused so far, gets the
            state never_used, idle or resident; ``None`` for any other lease.
    """

    namespace: Name
    pod: Name
    uid: Name = ""
    container: Name = ""
    device: Name = ""
    owner: Name = ""
    kind: Name = ""
    share: Part = 0.0
    state: Name = "unknown"
    evidence: Words = ""
    held: Value = 0.0
    wasted: Value = 0.0
    active: Value = 0.0
    memory: Value | None = None
    busy: Value | None = None
    findings: tuple[Finding, ...] = ()
    fault: Words = ""
    limit: Value | None = None
    power: Value | None = None
    energy: Value = 0.0
    metered: Value = 0.0
    counts_from: Value | None = None


class EndedLease(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A lease that ended a short time ago, so that readers who come seldom count it to its end.

    Attributes:
        namespace: of the pod.
        pod: name of the pod.
        uid: of the pod.
        container: its name; empty if kubelet did not list it.
        device: UUID of the card or MIG device, which may be gone.
        gpu: UUID of the card.
        share: part of the card, 0 to 1.
        ago: seconds between its end and the sample.
        held: seconds from the time that the agent first saw it to its end.
        wasted: GPU-seconds in the states never_used, idle and resident.
        active: GPU-seconds in the state busy.
        energy: joules of the metered time.
        metered: GPU-seconds of the lease whose energy is known.
    """

    namespace: Name
    pod: Name
    uid: Name = ""
    container: Name = ""
    device: Name = ""
    gpu: Name = ""
    share: Part = 0.0
    ago: Value = 0.0
    held: Value = 0.0
    wasted: Value = 0.0
    active: Value = 0.0
    energy: Value = 0.0
    metered: Value = 0.0


class Bucket(msgspec.Struct, frozen=True, array_like=True):
    """A bucket of a histogram: its upper bound in seconds, None for none, and the count of all up to it."""

    bound: Value | None
    count: Value


class ServiceUsage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What the model server in a pod with cards says of its load on its page; None for what it does not say.

    Attributes:
        namespace: of the pod.
        pod: name of the pod.
        uid: of the pod.
        requests: that ended well, per second, in the last minute.
        running: requests that are computed.
        waiting: requests that wait.
        kv_cache: part of the KV cache in use.
        first_token: times to the first token in the last minute, as cumulative buckets.
        error: why the page could not be read; empty if it was.
    """

    namespace: Name
    pod: Name
    uid: Name = ""
    requests: Value | None = None
    running: Value | None = None
    waiting: Value | None = None
    kv_cache: Part | None = None
    first_token: Annotated[tuple[Bucket, ...], msgspec.Meta(max_length=int(USAGE_QUANTITIES))] = ()
    error: Words = ""


class NodeUsage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The use of one node's cards.

    Attributes:
        node: the node's name.
        taken: Unix time of the sample; 0 before the first one.
        age: seconds from the sample to the answer, by the agent's clock.
        driver: version of the kernel module.
        cards: the node's cards, by index.
        leases: what containers hold, by namespace, pod and container.
        ended: leases that ended a short time ago, oldest first.
        ended_window: seconds before the sample; of leases that ended within them, none is missing in ``ended``.
        services: the load of pods whose page the agent reads, by namespace and pod.
        cut: number of leases beyond the agent's ``--max-series``.
        simulated: True if the cards exist only in a lab.
        topology: how the cards are joined; None before it was read.
    """

    node: Name = ""
    taken: Value = 0.0
    age: Value = 0.0
    driver: Name = ""
    cards: tuple[CardUsage, ...] = ()
    leases: tuple[LeaseUsage, ...] = ()
    ended: tuple[EndedLease, ...] = ()
    ended_window: Value = 0.0
    services: tuple[ServiceUsage, ...] = ()
    cut: int = 0
    simulated: bool = False
    topology: NodeTopology | None = None

    def cards_by_pod(self) -> dict[tuple[str, str], set[str]]:
        """UUIDs of the cards on which each pod has devices, by namespace and name of the pod."""
        cards = {card.uuid: card.uuid for card in self.cards}
        cards |= {device.uuid: card.uuid for card in self.cards for device in card.devices}
        found: dict[tuple[str, str], set[str]] = {}
        for lease in self.leases:
            if lease.device in cards:
                found.setdefault((lease.namespace, lease.pod), set()).add(cards[lease.device])
        return found

    def cards_of(self, namespace: str, pod: str) -> set[str]:
        """UUIDs of the cards on which a pod has devices."""
        return self.cards_by_pod().get((namespace, pod), set())
