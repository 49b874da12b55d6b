"""A node whose agent judges leases with the production code, and whose leases a test makes and ends."""

from collections.abc import Mapping

import msgspec

from tessera.agent.monitoring.exporter import LeaseEnergy, report_usage
from tessera.agent.monitoring.exposition import ExpositionOptions
from tessera.agent.monitoring.lease_states import LeaseStates
from tessera.agent.monitoring.sample import DeviceSample, GpuSample, Lease, NodeSample, ProcessUse
from tessera.api.names import PodUid
from tessera.api.nodes.health import CardHealth
from tessera.api.nodes.usage import NodeUsage
from tessera.nvml.interface import GpuInfo, GpuUuid
from tessera.nvml.measurements import Measurements, Quantity
from tessera.usage.ledger import LeaseOwner, PageRead

EPOCH = 1_800_000_000.0
MODEL = "NVIDIA A100-SXM4-40GB"
#: Of each card, all the time.
WATTS = 200.0


class HeldPart(msgspec.Struct, frozen=True):
    """A lease of a part of a card; ``busy`` is the activity of its process."""

    card: int
    share: float
    busy: float = 0.9


class AgentNode:
    """One node. Time is seconds since :data:`EPOCH`; nothing passes unless a test says so.

    Args:
        cards: number of its cards.
        name: of the node.

    Attributes:
        held: what each pod holds now; the pod's name is its UID.
        true: GPU-seconds that each pod has held so far.
        now: the time.
    """

    def __init__(self, cards: int = 2, name: str = "n1") -> None:
        self.name = name
        self.held: dict[str, HeldPart] = {}
        self.true: dict[str, float] = {}
        self.now = 0.0
        self._cards = cards
        self._health: Mapping[str, CardHealth] = {}
        self.restart()

    def restart(self) -> None:
        """A new process of the agent, which knows nothing of before."""
        self._states = LeaseStates()
        self._energy = LeaseEnergy()
        self._page = NodeUsage(node=self.name)

    def hold(self, pod: str, card: int = 0, share: float = 1.0, busy: float = 0.9) -> None:
        """A pod gets a part of a card."""
        self.held[pod] = HeldPart(card, share, busy)
        self.sample()

    def end(self, pod: str) -> None:
        """A pod ends."""
        del self.held[pod]
        self.sample()

    def fail(self, card: int, health: CardHealth) -> None:
        """The health of a card changes."""
        self._health = {**self._health, f"GPU-{card}": health}
        self.sample()

    def passes(self, seconds: float, step: float = 10.0) -> None:
        """Time passes; the agent takes a sample each ``step`` seconds and at the end."""
        end = self.now + seconds
        while self.now < end:
            passed = min(step, end - self.now)
            for pod, part in self.held.items():
                self.true[pod] = self.true.get(pod, 0.0) + passed * part.share
            self.now += passed
            self.sample()

    def sample(self) -> None:
        """The agent takes a sample."""
        gpus = tuple(self._gpu(number) for number in range(self._cards))
        leases = tuple(
            Lease(
                namespace=pod.partition("-")[0],
                pod=pod,
                uid=PodUid(pod),
                container="main",
                device=f"GPU-{part.card}",
                kind="mps",
                ratio=part.share,
            )
            for pod, part in self.held.items()
        )
        sample = NodeSample(taken=self.now, gpus=gpus, leases=leases)
        judged, options = (
            self._states.handle(sample, self._energy.handle(sample)),
            ExpositionOptions(node=self.name, simulated=True),
        )
        self._page = report_usage(
            sample, options, unix_time=EPOCH + self.now, judged=judged, health=self._health, states=self._states
        )

    def _gpu(self, number: int) -> GpuSample:
        info = GpuInfo(
            uuid=GpuUuid(f"GPU-{number}"),
            index=number,
            minor=number,
            name=MODEL,
            memory_mib=40960,
            pci_bus_id=f"00000000:0{number}:00.0",
            pci_device_id="0x20B010DE",
            compute_capability=(8, 0),
        )
        processes = tuple(
            ProcessUse(PodUid(pod), 1 << 30, part.busy)
            for pod, part in self.held.items()
            if part.card == number and part.busy > 0
        )
        busy = max((part.busy for part in self.held.values() if part.card == number), default=0.0)
        measured = Measurements({Quantity.GPU_UTILIZATION: busy, Quantity.POWER: WATTS})
        return GpuSample(info=info, card=DeviceSample(uuid=info.uuid, measured=measured, processes=processes))

    def page(self) -> NodeUsage:
        """The page ``/usage``, over the wire."""
        return msgspec.json.decode(msgspec.json.encode(self._page), type=NodeUsage)

    def read(self, *, schedulable: bool = True) -> PageRead:
        """The page is read now. The API server has all pods; the user of a pod is its name's first letter."""
        page = self.page()
        owners = {
            uid: LeaseOwner(uid.partition("-")[0], uid[0])
            for uid in (*(each.uid for each in page.leases), *(each.uid for each in page.ended))
        }
        return PageRead(page, EPOCH + self.now, schedulable, owners)
