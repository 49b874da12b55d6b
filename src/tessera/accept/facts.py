"""What an acceptance reads of a machine: plain values that go into the document as they are.

A fact that cannot be read is ``None``, and :attr:`Facts.absent` has the reason under the fact's name. The checks of
:mod:`tessera.accept.checks` know nothing but these values, so a document from a foreign machine can be judged again.
"""

from collections.abc import Mapping
from enum import Enum

import msgspec

from tessera.nvml.interface import GpuInfo


class Outcome(Enum):
    """The outcome of one call of the interface."""

    VALUE = "value"
    #: The card or its driver does not have it; the text says why.
    ABSENT = "absent"
    ERROR = "error"


class CallResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call of :class:`~tessera.nvml.interface.Nvml`.

    Attributes:
        call: its name.
        card: NVML's index of the card; ``None`` for a call about the machine.
        arguments: the other arguments: the other card, the MIG device or the instance.
        outcome: a value, none with a reason, or an error.
        value: the answer, as JSON.
        code: NVML's number of the error.
        text: the reason of an absent value, or the error.
        milliseconds: the time that the call took.
    """

    call: str
    card: int | None = None
    arguments: Mapping[str, str | int | float] = {}
    outcome: Outcome
    value: object = None
    code: int = 0
    text: str = ""
    milliseconds: float = 0.0


class PciFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A display or 3D controller of NVIDIA in ``/sys``; a number is 0 if the kernel does not report it.

    Attributes:
        address: ``0000:07:00.0``.
        device: device and vendor as NVML writes them, ``0x20B010DE``.
        generation: PCIe generation of the link now; an idle card lowers it.
        most_generation: the highest that the card and its slot both have.
        lanes: lanes in use.
        most_lanes: the most that the card and its slot both have.
    """

    address: str
    device: str
    generation: int = 0
    most_generation: int = 0
    lanes: int = 0
    most_lanes: int = 0


class DriverVersions(msgspec.Struct, frozen=True, kw_only=True):
    """The driver's version by its parts; empty for a part that cannot be read.

    Attributes:
        library: as NVML says.
        library_file: of the file that is loaded, ``libnvidia-ml.so.570.133.20``.
        module: ``/sys/module/nvidia/version``.
        running: ``/proc/driver/nvidia/version``.
    """

    library: str = ""
    library_file: str = ""
    module: str = ""
    running: str = ""


class NvidiaRuntime(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of NVIDIA's container runtime on the machine; the defaults are its own.

    Attributes:
        obeys_images: a container that is not privileged gets the cards that its image names.
        reads_mounts: it finds devices that are listed as mounts.
        mode: how it gives devices.
    """

    obeys_images: bool = True
    reads_mounts: bool = False
    mode: str = "auto"


class SmiCard(msgspec.Struct, frozen=True, kw_only=True):
    """A card in the log of ``nvidia-smi -q -x``: its PCI address, and the text of each element that is compared."""

    pci_bus_id: str
    values: Mapping[str, str]


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the cluster says of the node.

    Attributes:
        name: of the Node object.
        capacity: its ``status.capacity`` of NVIDIA's resources.
        driver_label: the label ``nvidia.com/cuda.driver-version.full``; empty for none.
        kubelet: kubelet's version.
        shares: the label ``nvidia.com/gpu.replicas``: how many shares of a card the capacity counts.
        system: ``PRETTY_NAME`` of the node's os-release.
    """

    name: str
    capacity: Mapping[str, str] = {}
    shares: str = ""
    system: str = ""
    driver_label: str = ""
    kubelet: str = ""


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and the versions on it.

    Attributes:
        hostname: its name.
        kernel: release of the kernel.
        architecture: ``x86_64``.
        system: ``PRETTY_NAME`` of ``/etc/os-release``; of the container, when the command runs in one.
        tessera: version of Tessera.
        binding: version of ``nvidia-ml-py``.
    """

    hostname: str
    kernel: str
    architecture: str
    system: str
    tessera: str
    binding: str


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was read of one machine.

    Attributes:
        simulated: the cards exist only in memory or in a file.
        taken: seconds since 1970 at which the reading began.
        host: the machine and versions.
        cards: as NVML lists them.
        calls: every call, in order; a card is measured a second time after ``nvidia-smi`` ran.
        pci: the cards in ``/sys``.
        device_minors: ``N`` of each ``/dev/nvidiaN``.
        driver: the driver's version by its parts.
        nvlink_off: the driver's parameter ``NvLinkDisable`` is set, as on virtual machines with one card of a board.
        smi: the cards of ``nvidia-smi``.
        runtime: the settings of NVIDIA's container runtime.
        node: what the cluster says of the node.
        absent: why a fact is ``None``, by its name.
    """

    simulated: bool
    taken: float
    host: HostFacts
    cards: tuple[GpuInfo, ...]
    calls: tuple[CallResult, ...]
    pci: tuple[PciFunction, ...] | None = None
    device_minors: tuple[int, ...] | None = None
    driver: DriverVersions | None = None
    nvlink_off: bool = False
    smi: tuple[SmiCard, ...] | None = None
    runtime: NvidiaRuntime | None = None
    node: NodeFacts | None = None
    absent: Mapping[str, str] = {}

    def of_card(self, call: str, card: int) -> list[CallResult]:
        """The results of one call on a card, in the order of the calls."""
        return [each for each in self.calls if each.call == call and each.card == card]
