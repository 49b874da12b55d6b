"""Attributes of cards and MIG devices beyond MIG geometry: the values of :mod:`tessera.nvml.interface`.

A value that a driver does not report, or a card does not have, is shown as ``None``, 0 or an empty list. So code that
labels a node never has to handle an error for a card that is merely old.
"""

from enum import Enum

import msgspec


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
