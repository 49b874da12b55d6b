"""The part of NVML that Tessera needs.

:class:`Nvml` is the interface between the node agent and the GPUs. :mod:`tessera.nvml.real.real_nvml` carries it over
NVIDIA's library, :mod:`tessera.nvml.simulated.simulated_machine` over cards that exist only in memory or in a file.
Both give the same values and the same errors, so callers cannot distinguish them.

Rules:

* calls are synchronous and may block; :mod:`tessera.nvml.asynchronous` makes them safe for an event loop;
* values are plain and frozen, no NVML handle leaves a back end;
* a GPU instance is always created at an explicit start, so the order of creation never decides the layout;
* every failure is a :class:`~tessera.nvml.errors.NvmlError` of a kind that the caller can act on.

The interface knows nothing of Kubernetes, of pods or of the owner of an instance.

Attributes of cards and MIG devices beyond MIG geometry are values of their own.

A value that a driver does not report, or a card does not have, is shown as ``None``, 0 or an empty list. So code that
labels a node never has to handle an error for a card that is merely old.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NewType, Protocol

import msgspec

from tessera.nvml.measurements import Measurements, ProcessActivity


class ComputeMode(Enum):
    """The processes that may compute on a card; the values are NVML's (nvml.h, ``nvmlComputeMode_t``)."""

    DEFAULT = 0
    #: No process may compute on it.
    PROHIBITED = 2
    #: One process at a time: the MPS server, which then serves the others.
    EXCLUSIVE_PROCESS = 3


class CardAttributes(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes of a card beyond :class:`~tessera.nvml.interface.GpuInfo`.

    Attributes:
        pci_class: class and interface, ``0x030200`` for a card without a display; ``None`` when it cannot be read.
        pci_subsystem_id: of the board, device and vendor as one number; 0 when it cannot be read.
        ecc: ECC is on now; ``False`` on a card without.
        fabric: cluster UUID and clique id of a card that has joined an NVLink fabric; ``None`` for any other.
        recovery_action: the driver's verdict, ``NVML_GPU_RECOVERY_ACTION_*`` (0: nothing is to be done); ``None``
            where the driver gives none.
        brand: NVML's brand as NVIDIA's DRA driver writes it, ``Nvidia``, ``GeForceRTX``; empty when it cannot be read.
        addressing_mode: how it reaches memory of the host: ``HMM``, ``ATS`` or ``None``; empty when it cannot be read.
        pcie_bandwidth: bytes per second that its PCIe link carries in each direction; 0 when it cannot be read.
    """

    pci_class: int | None = None
    pci_subsystem_id: int = 0
    ecc: bool = False
    fabric: tuple[str, str] | None = None
    recovery_action: int | None = None
    brand: str = ""
    addressing_mode: str = ""
    pcie_bandwidth: float = 0.0


#: Bytes per second of one PCIe lane in one direction by generation, without the coding (PCI-SIG's data rates).
_LANE_RATES = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}


def pcie_bandwidth(generation: int, lanes: int) -> float:
    """Bytes per second that a PCIe link carries in each direction; 0 for a generation that is not known."""
    return _LANE_RATES.get(generation, 0.0) * lanes


class NvLink(msgspec.Struct, frozen=True):
    """One NVLink that is up.

    Attributes:
        remote_pci: PCI address at its other end, ``00000000:07:00.0``.
        switch: an NVSwitch is there, not a card.
    """

    remote_pci: str
    switch: bool = False


class PciPlace(msgspec.Struct, frozen=True):
    """The place of a card or network card in its machine; empty values are not known.

    Attributes:
        folders: the kernel's names from the root complex to the device: ``pci0000:15``, bridges, ``0000:1b:00.0``.
        numa_node: the NUMA node near it.
        cpus: the CPUs near it, ``0-55,112-167``.
        memory_node: the NUMA node that a card's own memory is, as on GH200; ``None`` elsewhere.
    """

    folders: tuple[str, ...] = ()
    numa_node: int | None = None
    cpus: str = ""
    memory_node: int | None = None


class MigAttributes(msgspec.Struct, frozen=True, kw_only=True):
    """Engines and memory of a MIG device; 0 if the driver does not report one (nvml.h, ``nvmlDeviceAttributes_t``).

    Attributes:
        memory_mib: memory of its GPU instance in MiB.
        multiprocessors: SMs of its own.
        gi_slices: compute slices of its GPU instance.
        ci_slices: compute slices of its own.
        copy_engines: engines of each kind that it shares with the other compute instances of its GPU instance.
        decoders: likewise.
        encoders: likewise.
        jpeg_engines: likewise.
        ofa_engines: likewise.
    """

    memory_mib: int = 0
    multiprocessors: int = 0
    gi_slices: int = 0
    ci_slices: int = 0
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0


#: ``GPU-`` and a UUID; survives reboots. ``GPU-unread-<index>`` for a card whose UUID nobody could read yet.
GpuUuid = NewType("GpuUuid", str)
#: ``MIG-`` and a UUID; names a compute instance. The same slice created again has the same one.
MigUuid = NewType("MigUuid", str)


#: What a lost card is called, for people.
LOST_TEXT = "the card is lost: it fell off the bus"


_FAMILIES = {
    1: "tesla",
    2: "fermi",
    3: "kepler",
    5: "maxwell",
    6: "pascal",
    9: "hopper",
    10: "blackwell",
    12: "blackwell",
    13: "rubin",
}


def family(compute_capability: tuple[int, int]) -> str:
    """Name of the architecture in lower case; ``undefined`` for an unknown one."""
    major, minor = compute_capability
    if major == 7:
        return "volta" if minor < 5 else "turing"
    if major == 8:
        return "ampere" if minor < 9 else "ada-lovelace"
    return _FAMILIES.get(major, "undefined")


class GpuInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One physical card.

    Attributes:
        uuid: the card's name for life.
        index: NVML's index; may change with a reboot or when a card is lost.
        minor: ``N`` of ``/dev/nvidiaN``; may change when MIG mode does.
        name: product name, e.g. ``NVIDIA A100-SXM4-40GB``.
        memory_mib: total memory in MiB as NVML reports it; 0 if the card does not report it.
        pci_bus_id: ``00000000:07:00.0``.
        pci_device_id: device and vendor as one number, ``0x20B010DE``.
        compute_capability: ``(major, minor)``.
        mig_capable: the card has a MIG mode.
        mig_enabled: MIG mode is on now.
        mig_pending: MIG mode after the card's next reset.
        numa_node: ``None`` if the platform does not report it.
        pcie_root: the root complex, ``pci0000:00``; empty if the platform does not report it.
        lost: the card fell off the bus; all other fields are the last known values.
        error: NVML's words if the card cannot be read for another reason; the other fields are then those that could be
            read or were known before. Empty if the card was read or is lost.
    """

    uuid: GpuUuid
    index: int
    minor: int
    name: str
    memory_mib: int
    pci_bus_id: str
    pci_device_id: str
    compute_capability: tuple[int, int]
    mig_capable: bool = False
    mig_enabled: bool = False
    mig_pending: bool = False
    numa_node: int | None = None
    pcie_root: str = ""
    lost: bool = False
    error: str = ""

    @property
    def readable(self) -> bool:
        """True if the card was read: it is not lost, and no call for its values failed."""
        return not self.lost and not self.error

    @property
    def problem(self) -> str:
        """Why the card cannot be read, for people; empty if it was read."""
        if self.lost:
            return f"{LOST_TEXT}; drain the node and reboot it"
        return f"the card cannot be read: {self.error}" if self.error else ""

    @property
    def identified(self) -> bool:
        """True if its product is known: it was read now, or earlier since the node's boot."""
        return bool(self.name)


class GiProfileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance profile of one card, read from the card.

    Attributes:
        name: ``3g.20gb``, ``1g.5gb+me``.
        index: NVML's enumeration (``NVML_GPU_INSTANCE_PROFILE_*``).
        id: the profile id that ``nvidia-smi mig -lgip`` shows.
        compute_slices: compute slices.
        size: memory slots that a placement takes.
        starts: every legal first slot, ascending.
        max_count: how many fit on an empty card.
        memory_mib: memory of one instance in MiB.
        multiprocessors: SMs of one instance, 0 when unknown; then the engines are unknown too.
        copy_engines: engines of one instance.
        decoders: likewise.
        encoders: likewise.
        jpeg_engines: likewise.
        ofa_engines: likewise.
    """

    name: str
    index: int
    id: int
    compute_slices: int
    size: int
    starts: tuple[int, ...]
    max_count: int
    memory_mib: int
    multiprocessors: int = 0
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0


class ComputeInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A compute instance: a container sees it as its MIG device.

    Attributes:
        ci_id: unique within its GPU instance.
        profile_index: ``NVML_COMPUTE_INSTANCE_PROFILE_*``, follows from the number of compute slices.
        mig_uuid: its name for CUDA.
    """

    ci_id: int
    profile_index: int
    mig_uuid: MigUuid


class GpuInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance and its compute instances; none while it is incomplete."""

    gi_id: int
    profile: str
    start: int
    size: int
    compute_instances: tuple[ComputeInstance, ...] = ()


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that computes on a card.

    Attributes:
        pid: on the host.
        memory_bytes: memory that it holds; ``None`` if the driver does not tell.
        gi_id: its GPU instance; ``None`` on a card without MIG.
        ci_id: likewise.
    """

    pid: int
    memory_bytes: int | None
    gi_id: int | None = None
    ci_id: int | None = None


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a card or a MIG device in bytes; ``reserved`` is ``None`` where the driver's part counts as used."""

    total: int
    used: int
    reserved: int | None = None


class GpuEventKind(Enum):
    """Kinds of hardware events that are watched."""

    XID = "xid"
    DOUBLE_BIT_ECC = "double-bit-ecc"
    SINGLE_BIT_ECC = "single-bit-ecc"


class GpuEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A hardware event that the driver reported.

    Attributes:
        kind: the kind of event.
        gpu: the card; ``None`` if the driver cannot name it, so that any card may be affected.
        xid: the XID number, for :attr:`GpuEventKind.XID` only.
        gi_id: the GPU instance of the event, ``None`` for the whole card.
        ci_id: the compute instance, likewise.
    """

    kind: GpuEventKind
    gpu: GpuUuid | None
    xid: int | None = None
    gi_id: int | None = None
    ci_id: int | None = None


class MigModeResult(Enum):
    """The result of a change of MIG mode."""

    APPLIED = "applied"
    #: Stays pending until the card is reset (a card passed through to a virtual machine).
    RESET_REQUIRED = "reset-required"
    #: Stays pending: a process holds the card.
    IN_USE = "in-use"


class DeviceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A character device that a container must be given to use a card or a MIG device."""

    path: str
    major: int
    minor: int


class Nvml(Protocol):
    """The cards of one machine.

    Every call may raise :class:`~tessera.nvml.errors.NvmlError`. A call on a lost card raises ``GpuLost``.
    """

    def driver_version(self) -> str:
        """The kernel module's version, e.g. ``570.133.20``."""
        ...

    def cuda_version(self) -> int:
        """The highest CUDA version that the driver runs, as NVML writes it: 12040 is 12.4."""
        ...

    def devices(self) -> list[GpuInfo]:
        """Every card by index, also those that cannot be read (:attr:`GpuInfo.readable`).

        Raises:
            NvmlError: the driver does not answer at all; never because of one card.
        """
        ...

    def set_known_cards(self, cards: Iterable[GpuInfo]) -> None:
        """Sets the cards that were read earlier since the node's boot, in place of all that this session knows.

        Such a card is listed by its own name while it cannot be read.
        """
        ...

    def set_mig_mode(self, gpu: GpuUuid, enabled: bool) -> MigModeResult:
        """Asks for MIG mode. Turning it off destroys every instance of the card.

        Raises:
            NotSupported: the card has no MIG.
            NoPermission: not allowed.
        """
        ...

    def gi_profiles(self, gpu: GpuUuid) -> list[GiProfileInfo]:
        """The card's GPU instance profiles, by NVML's index.

        Raises:
            NotSupported: the card has no MIG, or MIG mode is off.
        """
        ...

    def instances(self, gpu: GpuUuid) -> list[GpuInstance]:
        """The GPU instances by start; empty without MIG mode."""
        ...

    def create_gpu_instance(self, gpu: GpuUuid, profile: str, start: int) -> int:
        """Creates a GPU instance of ``profile`` at memory slot ``start``; returns its id.

        Raises:
            InvalidArgument: no such profile on this card, or ``start`` is not legal for it.
            InsufficientResources: the slots are taken.
            NotSupported: MIG mode is off.
        """
        ...

    def create_compute_instance(self, gpu: GpuUuid, gi_id: int, profile_index: int) -> ComputeInstance:
        """Creates a compute instance (``Profile.ci_profile_index`` spans the whole GPU instance).

        Raises:
            NotFound: no such GPU instance.
            InvalidArgument: the profile does not fit into it.
            InsufficientResources: its compute slices are taken.
        """
        ...

    def destroy_compute_instance(self, gpu: GpuUuid, gi_id: int, ci_id: int) -> None:
        """Destroys a compute instance.

        Raises:
            InUse: a process computes on it.
            NotFound: it is gone already.
        """
        ...

    def destroy_gpu_instance(self, gpu: GpuUuid, gi_id: int) -> None:
        """Destroys an empty GPU instance.

        Raises:
            InUse: it holds a compute instance.
            NotFound: it is gone already.
        """
        ...

    def processes(self, device: GpuUuid | MigUuid) -> list[GpuProcess]:
        """The processes that compute on a card (all its instances included) or on one MIG device."""
        ...

    def memory(self, device: GpuUuid | MigUuid) -> DeviceMemory:
        """Total and used memory of a card or of one MIG device."""
        ...

    def measure(self, gpu: GpuUuid) -> Measurements:
        """Measures a card. Means are over the time since the previous call for it."""
        ...

    def measure_instance(self, gpu: GpuUuid, gi_id: int) -> Measurements:
        """Measures the activity of a GPU instance since the previous call for it.

        Raises:
            NotFound: no such GPU instance.
        """
        ...

    def process_activity(self, gpu: GpuUuid) -> list[ProcessActivity]:
        """The processes that computed on a card without MIG mode since the previous call, and their shares of its time.

        Raises:
            NotSupported: the card is in MIG mode, or its driver does not report it.
        """
        ...

    def device_files(self, gpu: GpuUuid, gi_id: int, ci_id: int) -> list[DeviceFile]:
        """Every device file that a container needs to use one MIG device: the driver's, the card's, its capabilities'.

        Empty on simulated cards.

        Raises:
            NotFound: no such instance.
            NotSupported: the driver's files in ``/proc`` cannot be read.
        """
        ...

    def card_files(self, gpu: GpuUuid) -> list[DeviceFile]:
        """Every device file that a container needs to use a whole card: the card's and the driver's.

        Empty on simulated cards.

        Raises:
            NotSupported: the driver's files in ``/proc`` cannot be read.
        """
        ...

    def attributes(self, gpu: GpuUuid) -> CardAttributes:
        """The card's attributes. Those that it does not report are ``None`` or 0, never an error."""
        ...

    def mig_attributes(self, device: MigUuid) -> MigAttributes:
        """Returns engines and memory of a MIG device; all 0 if the driver does not report them.

        Raises:
            NotFound: no such MIG device.
        """
        ...

    def nvlinks(self, gpu: GpuUuid) -> list[NvLink]:
        """The card's NVLinks that are up, by number; empty without NVLink and in MIG mode, which has none."""
        ...

    def common_ancestor(self, gpu: GpuUuid, other: GpuUuid) -> int:
        """The level of the PCIe tree at which two cards meet, as ``nvmlGpuTopologyLevel_t``.

        0 on one board, 10 and 20 at one or several PCIe switches, 30 at a host bridge, 40 at a NUMA node, 50 farther.

        Raises:
            NotSupported: the platform does not report it.
        """
        ...

    def place(self, gpu: GpuUuid) -> PciPlace:
        """The card's place in its machine."""
        ...

    def network_cards(self) -> Mapping[str, PciPlace]:
        """The places of the machine's RDMA network cards by name, ``mlx5_0``, in the order of their numbers."""
        ...

    def compute_mode(self, gpu: GpuUuid) -> ComputeMode:
        """The card's compute mode."""
        ...

    def set_compute_mode(self, gpu: GpuUuid, mode: ComputeMode) -> None:
        """Sets the compute mode until the next reboot. Processes that compute already continue.

        Raises:
            NotSupported: the card is in MIG mode, where the mode is always ``DEFAULT``.
            NoPermission: not allowed.
        """
        ...

    def reset(self, gpu: GpuUuid) -> None:
        """Resets one card: applies a pending MIG mode, and destroys its instances. Takes seconds on real cards.

        Raises:
            InUse: a process holds the card; the text is the driver's.
            NotSupported: the card cannot be reset, or the tool that does it is not there.
            GpuLost: a lost card comes back with a reboot only.
        """
        ...

    def event_kinds(self, gpu: GpuUuid) -> list[GpuEventKind]:
        """The kinds of hardware events that the card reports; an event set is registered for them and freed again.

        Raises:
            NotSupported: the card reports no events.
        """
        ...

    def wait_event(self, seconds: float) -> GpuEvent | None:
        """The next hardware event of any card, ``None`` when ``seconds`` passed without one."""
        ...

    def unheard_cards(self) -> Mapping[GpuUuid, str]:
        """The cards whose events the driver refused to report, each with its error; tried again now and then."""
        ...

    def latency(self, operation: str) -> float:
        """Seconds that a caller waits before the call named ``operation``; 0 on real cards, whose calls block."""
        ...

    def close(self) -> None:
        """Ends the session with the driver. The object is of no use afterwards."""
        ...
