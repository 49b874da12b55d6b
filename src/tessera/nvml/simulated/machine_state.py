"""State of a simulated machine as one value: its cards, their instances and processes, its driver, injected faults.

The classes hold data and the rules of driver and reboot; :mod:`tessera.nvml.simulated.mig_rules` and
:mod:`tessera.nvml.simulated.mig_rules` have the rules of instances and processes.
:mod:`tessera.nvml.simulated.machine_access` stores the value where a killed process cannot lose it.

Every name is derived, none is random: a card's UUID from the machine's seed and the card's index, a MIG device's from
the card and the slice. So two runs agree, and a slice that is created again has its former UUID, as on real cards.

A :class:`Work` is what simulated processes do while they compute, as data: what of a card an activity uses.

A process has an activity, the share of its device's time in which it computes, and a kind of work. Ordinary work uses
some of everything; each other kind is a bottleneck that a monitoring system has to recognise. The shares are rules, not
measured on hardware.
"""

import re
import uuid
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec

from tessera.mig.geometry import Geometry, GpuModel, Placement, Profile
from tessera.mig.models import model_by_short_name
from tessera.nvml.errors import XID_OFF_THE_BUS, InUse, NvmlNotFound
from tessera.nvml.interface import CardAttributes, ComputeMode, GpuEventKind, GpuUuid, MigUuid, NvLink
from tessera.nvml.known_cards import UNREAD
from tessera.nvml.measurements import Quantity

#: Rule: bytes per second over PCIe of a card that is always busy, and over each of its NVLinks.
_PCIE_RATE, _NVLINK_RATE = 2e9, 1e9
#: Bytes per second of copies without end over PCIe 4 with 16 lanes, and over an NVLink of Ampere or Hopper, which carry
#: 32e9 and 25e9 (NVIDIA's data sheets).
_FULL_PCIE, _FULL_NVLINK = 26e9, 20e9

#: Of an activity of 1: shares of time, and bytes per second.
_ORDINARY: Mapping[Quantity, float] = {
    Quantity.ENGINE_ACTIVE: 1.0,
    Quantity.SM_ACTIVE: 0.8,
    Quantity.SM_OCCUPANCY: 0.5,
    Quantity.TENSOR_ACTIVE: 0.4,
    Quantity.DRAM_ACTIVE: 0.35,
    Quantity.FP64_ACTIVE: 0.0,
    Quantity.FP32_ACTIVE: 0.15,
    Quantity.FP16_ACTIVE: 0.1,
    Quantity.PCIE_TRANSMITTED: _PCIE_RATE,
    Quantity.PCIE_RECEIVED: _PCIE_RATE,
    Quantity.NVLINK_TRANSMITTED: _NVLINK_RATE,
    Quantity.NVLINK_RECEIVED: _NVLINK_RATE,
    Quantity.ENCODER_UTILIZATION: 0.05,
    Quantity.DECODER_UTILIZATION: 0.1,
}


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of work.

    Attributes:
        meaning: what such a program does, for people.
        differs: the quantities whose share of the activity is not that of ordinary work.
        power: the share of its power limit that the card draws at least, however little it computes.
        cpu: CPU cores that the process keeps busy.
    """

    meaning: str
    differs: Mapping[Quantity, float] = {}
    power: float = 0.0
    cpu: float = 0.3

    def share(self, quantity: Quantity) -> float:
        """How much of a quantity an activity of 1 is; a rate is of each NVLink."""
        return self.differs.get(quantity, _ORDINARY[quantity])


#: The kind of a process that says nothing.
ORDINARY = "ordinary"
#: The kinds by name.
WORKS: Mapping[str, Work] = {
    ORDINARY: Work(meaning="some of everything"),
    "memory": Work(meaning="it waits for the memory of the card", differs={Quantity.DRAM_ACTIVE: 0.95}),
    "copies": Work(
        meaning="it copies between card and host all the time",
        differs={Quantity.PCIE_RECEIVED: _FULL_PCIE, Quantity.SM_ACTIVE: 0.25},
    ),
    "exchange": Work(
        meaning="it sends most of its results to other cards",
        differs={Quantity.NVLINK_TRANSMITTED: _FULL_NVLINK, Quantity.NVLINK_RECEIVED: _FULL_NVLINK},
    ),
    "small": Work(meaning="its kernels are too small for the card", differs={Quantity.SM_OCCUPANCY: 0.08}),
    "video": Work(
        meaning="it decodes and encodes video",
        differs={Quantity.DECODER_UTILIZATION: 0.8, Quantity.ENCODER_UTILIZATION: 0.6, Quantity.SM_ACTIVE: 0.3},
    ),
    "spinning": Work(meaning="it holds the clocks up while it waits", power=0.6),
    "single": Work(
        meaning="one block at a time keeps the card awake",
        differs={Quantity.SM_ACTIVE: 0.01, Quantity.SM_OCCUPANCY: 0.01, Quantity.DRAM_ACTIVE: 0.01},
        power=0.6,
    ),
    "host": Work(meaning="it prepares data on one CPU core", cpu=1.0),
}


#: Version of the simulated driver: new enough for every model that can be simulated.
DRIVER_VERSION = "595.58.03"
#: Operation of a fault, or of a latency, that holds for every call.
ANY = "*"
#: Limit on unread events; beyond it the oldest are dropped, as in the driver's own queue.
MOST_EVENTS = 1024

#: Root of every simulated UUID.
_NAMESPACE = uuid.UUID("6b1d6d2c-5c1a-5d5f-9a53-7465737365a1")
#: PID of the first simulated process; far from the default PIDs of a kernel.
_FIRST_PID = 5_000_000
#: PCI bus of the first card.
_FIRST_BUS = 0x10
_ITEM = re.compile(r"\s*(?:(\d+)\s*[x*]\s*)?(\S.*?)\s*")


class SimProcess(msgspec.Struct):
    """A process that holds memory on a card or on one of its MIG devices.

    ``activity`` is the share of the device's time in which it computes, 0 to 1, and ``work`` what it does then: a name
    in :data:`WORKS`.
    """

    pid: int
    memory_bytes: int
    gi_id: int | None = None
    ci_id: int | None = None
    activity: float = 0.0
    work: str = ORDINARY


class SimComputeInstance(msgspec.Struct):
    """A compute instance."""

    ci_id: int
    profile_index: int
    slices: int


class SimGpuInstance(msgspec.Struct):
    """A GPU instance."""

    gi_id: int
    profile: str
    start: int
    size: int
    compute_instances: list[SimComputeInstance] = []

    @property
    def placement(self) -> Placement:
        """Returns the memory slots that the instance covers."""
        return Placement(self.profile, self.start, self.size)


#: Each property of a card asks for its model.
_model = lru_cache(maxsize=64)(model_by_short_name)


class SimCard(msgspec.Struct, omit_defaults=True):
    """A card.

    ``model`` is the short name of a model of :mod:`tessera.mig.models`. ``attributes`` and ``nvlinks`` are ``None`` for
    the model's values in :mod:`tessera.nvml.simulated.boards`, else a test has set them. ``measured`` has quantities
    that were set, by the value of :class:`~tessera.nvml.measurements.Quantity`; they replace the rules of
    :mod:`tessera.nvml.simulated.load`. ``growth`` has counters that were set to grow, with their growth in a second.
    ``unreported`` has quantities that the card does not support. ``memory`` is in MiB, 0 for the model's.
    """

    model: str
    index: int
    uuid: GpuUuid
    mig_enabled: bool = False
    mig_pending: bool = False
    lost: bool = False
    instances: list[SimGpuInstance] = []
    processes: list[SimProcess] = []
    compute_mode: ComputeMode = ComputeMode.DEFAULT
    attributes: CardAttributes | None = None
    nvlinks: list[NvLink] | None = None
    measured: dict[str, float] = {}
    growth: dict[str, float] = {}
    unreported: list[str] = []
    memory: int = 0

    @property
    def memory_mib(self) -> int:
        """Returns the card's memory in MiB: its own, else its model's."""
        return self.memory or self.gpu_model.memory_mib

    @property
    def pci_bus_id(self) -> str:
        """Returns the card's PCI address, which follows from its index."""
        return f"00000000:{_FIRST_BUS + self.index:02X}:00.0"

    @property
    def gpu_model(self) -> GpuModel:
        """Returns the card's model."""
        return _model(self.model)

    @property
    def geometry(self) -> Geometry:
        """Returns the card's MIG geometry."""
        return self.gpu_model.geometry

    def instance_memory_mib(self, profile: Profile) -> int:
        """Returns the memory of a GPU instance of ``profile`` in MiB; if it is unpublished, its part of the card's."""
        return profile.memory_mib or self.gpu_model.memory_mib * profile.size // self.geometry.slots

    @property
    def needs_reset(self) -> bool:
        """True if MIG mode changes only with a reset: so on Ampere, not on later cards."""
        return self.gpu_model.compute_capability < (9, 0)

    def apply_pending_mode(self) -> None:
        """Sets MIG mode to the requested one. A change of mode destroys every instance."""
        if self.mig_enabled != self.mig_pending:
            self.mig_enabled = self.mig_pending
            self.instances = []
            self.compute_mode = ComputeMode.DEFAULT

    def restart(self) -> None:
        """Common part of reset and reboot: no instances, a pending mode and row in force, no recovery action."""
        self.instances = []
        if self.measured.pop(Quantity.ROW_REMAP_PENDING.value, 0.0):
            remapped = Quantity.ROWS_REMAPPED_UNCORRECTABLE.value
            self.measured[remapped] = self.measured.get(remapped, 0.0) + 1
        self.apply_pending_mode()
        if self.attributes is not None and self.attributes.recovery_action is not None:
            self.attributes = msgspec.structs.replace(self.attributes, recovery_action=0)


class SimDevice(NamedTuple):
    """A place where a process can compute: a card, or a MIG device of it.

    Attributes:
        card: the card.
        instance: the GPU instance; None for the whole card.
        ci_id: the compute instance in it; None for the whole card.
    """

    card: SimCard
    instance: SimGpuInstance | None = None
    ci_id: int | None = None

    @property
    def gi_id(self) -> int | None:
        """Returns the id of the GPU instance; None for the whole card."""
        return None if self.instance is None else self.instance.gi_id

    @property
    def processes(self) -> list[SimProcess]:
        """Returns the processes that compute on it; on a whole card those of all its instances."""
        return [
            one
            for one in self.card.processes
            if self.instance is None or (one.gi_id, one.ci_id) == (self.gi_id, self.ci_id)
        ]


class SimEvent(msgspec.Struct, frozen=True):
    """A hardware event that waits to be read."""

    kind: GpuEventKind
    gpu: GpuUuid | None
    xid: int | None = None
    gi_id: int | None = None
    ci_id: int | None = None


class SimulatedFault(msgspec.Struct):
    """An injected fault: calls that fail.

    Attributes:
        operation: name of the call, e.g. ``create_gpu_instance``, or :data:`ANY`.
        code: NVML's error number that the call returns.
        skip: how many matching calls still succeed first.
        times: how many fail then; ``None`` for every one.
        gpu: only calls on this card; any card if ``None``.
    """

    operation: str
    code: int
    skip: int = 0
    times: int | None = 1
    gpu: GpuUuid | None = None


class SimMpsDaemon(msgspec.Struct):
    """An MPS control daemon, a process of the machine.

    Attributes:
        id: identifies it.
        resource: the extended resource whose shares it serves.
        cards: UUIDs of its cards.
        clients: ids of the containers that are its clients.
    """

    id: str
    resource: str
    cards: tuple[str, ...]
    clients: list[str] = []


class MachineState(msgspec.Struct):
    """Everything that outlives a process: cards, injected faults, unread events.

    Attributes:
        seed: makes its UUIDs different from those of other machines.
        spec: the requested cards.
        driver_version: the kernel module that is loaded; empty for none.
        host_driver: the driver that the host itself has and loads at every boot; empty for none.
        mps_host: true while the container runs that starts MPS daemons; ``None`` on a machine without such containers.
        mps_daemons: the MPS daemons that run.
    """

    seed: str
    spec: str
    driver_version: str
    cards: list[SimCard]
    host_driver: str = ""
    faults: list[SimulatedFault] = []
    latencies: dict[str, float] = {}
    events: list[SimEvent] = []
    next_pid: int = _FIRST_PID
    mps_host: bool | None = None
    mps_daemons: list[SimMpsDaemon] = []

    def find_card(self, gpu: str) -> SimCard:
        """Returns the card of that UUID, or of the index in ``GPU-unread-<index>``.

        Raises:
            NotFound: the machine has no such card.
        """
        for card in self.cards:
            if gpu in (card.uuid, f"{UNREAD}{card.index}"):
                return card
        raise NvmlNotFound(f"{gpu}: the machine has no such card; it has {', '.join(card.uuid for card in self.cards)}")

    def find_device(self, device: str) -> SimDevice:
        """Returns the card or the MIG device of that UUID.

        Raises:
            NotFound: the machine has neither.
        """
        if not device.startswith("MIG-"):
            return SimDevice(self.find_card(device))
        for card in self.cards:
            for instance in card.instances:
                for compute in instance.compute_instances:
                    if mig_uuid(card.uuid, instance, compute.ci_id) == device:
                        return SimDevice(card, instance, compute.ci_id)
        raise NvmlNotFound(f"{device}: no such MIG device")

    def queue_event(self, event: SimEvent) -> None:
        """Appends an event that a caller has not read yet."""
        self.events.append(event)
        del self.events[:-MOST_EVENTS]

    def lose_card(self, gpu: GpuUuid) -> None:
        """Makes a card fall off the bus, with its XID; its processes die."""
        card = self.find_card(gpu)
        card.lost = True
        card.processes.clear()
        self.queue_event(SimEvent(GpuEventKind.XID, gpu, XID_OFF_THE_BUS))

    def load_driver(self, version: str) -> None:
        """Loads a kernel module; does nothing when that version is loaded already.

        Raises:
            InUse: another version is loaded.
            ValueError: no driver has such a version.
        """
        if not version.partition(".")[0].isdigit():
            raise ValueError(f"driver {version!r}: a version begins with its branch, e.g. 595.58.03")
        if self.driver_version not in ("", version):
            raise InUse(f"driver {version}: {self.driver_version} is loaded; unload it first")
        self.driver_version = version

    def unload_driver(self, sessions: int) -> None:
        """Unloads the kernel module, which destroys all instances; does nothing when none is loaded.

        Args:
            sessions: how many sessions with the driver are open.

        Raises:
            InUse: a session is open, or a process computes on a card.
        """
        pids = sorted({process.pid for card in self.cards for process in card.processes})
        if self.driver_version and (pids or sessions):
            who = f"processes {pids}" if pids else f"{sessions} open sessions"
            raise InUse(f"driver {self.driver_version}: module nvidia is in use by {who}")
        self.driver_version = ""
        for card in self.cards:
            card.restart()

    def reboot(self) -> None:
        """Ends all processes and instances, brings lost cards back, and loads the host's own driver if it has one.

        MIG mode survives on Ampere, where the card stores it, and is off on later cards. Compute modes are lost.
        """
        self.driver_version = self.host_driver
        self.events.clear()
        self.mps_daemons.clear()
        for card in self.cards:
            card.lost = False
            card.processes = []
            card.mig_pending = card.mig_pending and card.needs_reset
            card.compute_mode = ComputeMode.DEFAULT
            card.restart()


def parse_spec(spec: str) -> list[str]:
    """Returns short names of a machine's cards, in order: ``2xA100-40GB,A30`` is two A100 and one A30.

    Raises:
        ValueError: no cards, a count of 0, or a model that is not known; the text lists those that are.
    """
    names: list[str] = []
    for item in filter(str.strip, spec.split(",")):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise ValueError(f'cards "{spec}": "{item}" is not of the form <count>x<model>, e.g. 4xA100-40GB')
        count = int(match[1] or 1)
        if count < 1:
            raise ValueError(f'cards "{spec}": "{item}": a count is at least 1')
        names += [model_by_short_name(match[2]).short_name] * count
    if not names:
        raise ValueError(f'cards "{spec}": a machine has at least one card, e.g. 4xA100-40GB')
    return names


def build_machine(spec: str, seed: str, driver_version: str, *, mig: bool) -> MachineState:
    """Returns a machine that has just booted.

    Args:
        spec: its cards, see :func:`parse_spec`.
        seed: makes its UUIDs different from those of other machines; the node's name.
        driver_version: the driver that the host has; empty for a host without one.
        mig: True if MIG mode is on, on cards that have it.
    """
    cards = [
        SimCard(model=name, index=index, uuid=gpu_uuid(seed, index)) for index, name in enumerate(parse_spec(spec))
    ]
    for card in cards:
        if card.gpu_model.mig_capable:
            _ = card.geometry  # raises ValueError now, not at the first call, for a model of unknown placements
            card.mig_enabled = card.mig_pending = mig
    return MachineState(seed=seed, spec=spec, driver_version=driver_version, cards=cards, host_driver=driver_version)


def gpu_uuid(seed: str, index: int) -> GpuUuid:
    """Returns the UUID of a machine's card."""
    return GpuUuid(f"GPU-{uuid.uuid5(_NAMESPACE, f'{seed}/{index}')}")


def mig_uuid(gpu: GpuUuid, instance: SimGpuInstance, ci_id: int) -> MigUuid:
    """Returns the UUID of a compute instance; the same slice created again on the same card has the same one."""
    slice_ = f"{gpu}/{instance.profile}/{instance.start}/{ci_id}"
    return MigUuid(f"MIG-{uuid.uuid5(_NAMESPACE, slice_)}")
