"""The simulated machine: all attributes and state of its cards, as one value.

Pure data and the rules that hardware follows; :mod:`tessera.nvml.simulated.simulated_machine` gives it NVML's face, and
:mod:`tessera.nvml.simulated.state_file` keeps it where a killed process cannot lose it.

Every name is derived, never drawn: a card's UUID from the machine's seed and the card's index, a MIG device's from the
card and the slice. So two runs agree, and a slice that is made again has the UUID that it had, as on real cards.
"""

import re
import uuid

import msgspec

from tessera.mig.geometry import Geometry, Placement, Profile
from tessera.mig.gpu_model import GpuModel
from tessera.mig.models import model_by_short_name
from tessera.nvml.attributes import CardAttributes, ComputeMode, NvLink
from tessera.nvml.interface import GpuEventKind, GpuUuid, MigUuid

#: Root of every simulated UUID.
_NAMESPACE = uuid.UUID("6b1d6d2c-5c1a-5d5f-9a53-7465737365a1")
#: PID of the first simulated process; far from the default PIDs of a kernel.
_FIRST_PID = 5_000_000
#: PCI bus of the first card.
_FIRST_BUS = 0x10
_ITEM = re.compile(r"\s*(?:(\d+)\s*[x*]\s*)?(\S.*?)\s*")


class SimProcess(msgspec.Struct):
    """A process that holds memory on a card or on one of its MIG devices."""

    pid: int
    memory_bytes: int
    gi_id: int | None = None
    ci_id: int | None = None


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
        """Where it is."""
        return Placement(self.profile, self.start, self.size)


class SimCard(msgspec.Struct, omit_defaults=True):
    """A card.

    ``model`` is the short name of a model of :mod:`tessera.mig.models`. ``attributes`` and ``nvlinks`` are ``None`` for
    the model's values in :mod:`tessera.nvml.simulated.boards`, else a test has set them.
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

    @property
    def pci_bus_id(self) -> str:
        """Its PCI address; follows from its index."""
        return f"00000000:{_FIRST_BUS + self.index:02X}:00.0"

    @property
    def gpu_model(self) -> GpuModel:
        """Returns the card's model."""
        return model_by_short_name(self.model)

    @property
    def geometry(self) -> Geometry:
        """Returns the card's MIG geometry."""
        return self.gpu_model.geometry

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
        """Common part of reset and reboot: removes instances, applies a pending mode, clears the recovery action."""
        self.instances = []
        self.apply_pending_mode()
        if self.attributes is not None and self.attributes.recovery_action is not None:
            self.attributes = msgspec.structs.replace(self.attributes, recovery_action=0)


class SimEvent(msgspec.Struct, frozen=True):
    """A hardware event that waits to be read."""

    kind: GpuEventKind
    gpu: GpuUuid | None
    xid: int | None = None
    gi_id: int | None = None
    ci_id: int | None = None


class SimulatedFault(msgspec.Struct):
    """Calls that shall fail.

    Attributes:
        operation: name of the call, e.g. ``create_gpu_instance``.
        code: NVML's error number to answer with.
        skip: how many matching calls still succeed first.
        times: how many fail then; ``None`` for every one.
        gpu: only calls on this card; any card if ``None``.
    """

    operation: str
    code: int
    skip: int = 0
    times: int | None = 1
    gpu: GpuUuid | None = None


class MachineState(msgspec.Struct):
    """Everything that outlives a process: cards, injected faults, unread events.

    Attributes:
        seed: makes its UUIDs different from those of other machines.
        spec: the requested cards.
        driver_version: the kernel module that is loaded; empty for none.
        host_driver: the driver that the host itself has and loads at every boot; empty for none.
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


def parse_spec(spec: str) -> list[str]:
    """Short names of a machine's cards, in order: ``2xA100-40GB,A30`` is two A100 and one A30.

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
    """A machine as it comes up.

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
            _ = (
                card.geometry
            )  # a model of unknown placements cannot be simulated: it says so here, not at the first call
            card.mig_enabled = card.mig_pending = mig
    return MachineState(seed=seed, spec=spec, driver_version=driver_version, cards=cards, host_driver=driver_version)


def gpu_uuid(seed: str, index: int) -> GpuUuid:
    """The UUID of a machine's card."""
    return GpuUuid(f"GPU-{uuid.uuid5(_NAMESPACE, f'{seed}/{index}')}")


def mig_uuid(gpu: GpuUuid, instance: SimGpuInstance, ci_id: int) -> MigUuid:
    """The UUID of a compute instance: the same whenever the same slice is made on the same card."""
    slice_ = f"{gpu}/{instance.profile}/{instance.start}/{ci_id}"
    return MigUuid(f"MIG-{uuid.uuid5(_NAMESPACE, slice_)}")


def gi_id(geometry: Geometry, profile: Profile, start: int) -> int:
    """The id that a GPU instance gets: as seen on real cards, a binary tree's node for its part of the card.

    On a card of 8 slots 0 is the whole card, 1 and 2 its halves, 3 to 6 the quarters, 7 to 14 the single slots.
    """
    parts = geometry.slots // profile.size
    return parts - 1 + start // profile.size
