"""Reads the attributes of real cards, their links to others, their places, and the processes that may compute on them.

Functions take NVML handles from their caller, :mod:`tessera.nvml.real.real_nvml`, and pass them nowhere else. If a card
or driver does not know an attribute, that is a value here and no error: labels of a node must not fail on its oldest
card.

Places of devices in the machine are read from the kernel's ``/sys``. A folder of a PCI device is a link to its place
below its root complex: ``/sys/devices/pci0000:15/0000:15:01.0/...``. RDMA network cards are those of
``/sys/class/infiniband``, which ``nvidia-smi topo -m`` lists too.
"""

import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tessera.nvml.errors import (
    DRIVER_CODES,
    LOST_CODES,
    InvalidArgument,
    NotSupported,
    NvmlError,
    NvmlNotFound,
    UnknownNvmlError,
    translate_errors,
)
from tessera.nvml.interface import (
    CardAttributes,
    ComputeMode,
    GpuInfo,
    GpuUuid,
    MigAttributes,
    MigUuid,
    NvLink,
    PciPlace,
    pcie_bandwidth,
)
from tessera.nvml.real.library import fabric_info
from tessera.nvml.real.mig import decode_text

_MIB = 1024 * 1024
#: NVIDIA's vendor id, and PCI classes of GPUs with and without a display (PCI-SIG, class codes 03 00 and 03 02).
_NVIDIA, _DISPLAY = 0x10DE, 0x0300
_GPUS = frozenset({_DISPLAY, 0x0302})
#: NVML's brands and addressing modes (nvml.h, ``nvmlBrandType_t``, ``nvmlDeviceAddressingModeType_t``) in the words of
#: NVIDIA's DRA driver (go-nvlib).
_BRANDS = {
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "Grid",
    5: "GeForce",
    6: "Titan",
    7: "NvidiaVApps",
    8: "NvidiaVPC",
    9: "NvidiaVCS",
    10: "NvidiaVWS",
    11: "NvidiaCloudGaming",
    12: "QuadroRTX",
    13: "NvidiaRTX",
    14: "Nvidia",
    15: "GeForceRTX",
    16: "TitanRTX",
}
_ADDRESSING_MODES = {0: "None", 1: "HMM", 2: "ATS"}
T = TypeVar("T")

#: Current and pending MIG mode of a card without MIG.
_NO_MIG: tuple[int | None, int | None] = (None, None)


class _CardReading:
    """The values of one card, and the errors of those that cannot be read.

    Args:
        errors: translates NVML's errors of a named call.
        index: of the card.
    """

    def __init__(self, errors: Callable[[str], AbstractContextManager[None]], index: int) -> None:
        self._translate, self._index = errors, index
        self._errors: list[NvmlError] = []

    def read(self, what: str, call: Callable[[], T], default: T, *, absent: bool = False) -> T:
        """The value; ``default`` if it cannot be read, which is no error where a card may be without it (``absent``).

        Raises:
            NvmlError: the driver may be gone.
        """
        try:
            with self._translate(f"{what} of card {self._index}"):
                return call()
        except NvmlError as error:
            if error.code in DRIVER_CODES:
                raise
            if not (absent and isinstance(error, NotSupported | InvalidArgument)):
                self._errors.append(error)
            return default

    @property
    def lost(self) -> bool:
        """True if the card fell off the bus."""
        return any(error.code in LOST_CODES for error in self._errors)

    @property
    def error(self) -> str:
        """The first error; empty if everything was read."""
        return str(self._errors[0]) if self._errors else ""


class RealCardReader:
    """Reads cards as a whole.

    Args:
        binding: the module ``pynvml``, with NVML open.
        sys: the host's ``/sys``.
    """

    def __init__(self, binding: Any, sys: Path) -> None:
        self._nvml, self._sys = binding, sys

    def info(self, index: int) -> GpuInfo:
        """The card of NVML's index. An error of a call for one of its values is listed with it.

        Raises:
            NvmlError: its UUID cannot be read, or the driver may be gone.
        """
        nvml = self._nvml
        with self._errors(f"card {index}"):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = GpuUuid(decode_text(nvml.nvmlDeviceGetUUID(handle)))
        card = _CardReading(self._errors, index)
        pci = card.read("PCI address", lambda: nvml.nvmlDeviceGetPciInfo(handle), None)
        current, pending = card.read("MIG mode", lambda: nvml.nvmlDeviceGetMigMode(handle), _NO_MIG, absent=True)
        major, revision = card.read(
            "compute capability", lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle), (0, 0), absent=True
        )
        info = GpuInfo(
            uuid=uuid,
            index=index,
            minor=card.read("minor number", lambda: nvml.nvmlDeviceGetMinorNumber(handle), -1),
            name=card.read("name", lambda: decode_text(nvml.nvmlDeviceGetName(handle)), ""),
            # A card that shares the machine's memory (GB10) reports no memory of its own.
            memory_mib=card.read("memory", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total // _MIB, 0, absent=True),
            pci_bus_id="" if pci is None else decode_text(pci.busId),
            pci_device_id=f"0x{0 if pci is None else pci.pciDeviceId:08X}",
            compute_capability=(major, revision),
            mig_capable=(current, pending) != _NO_MIG,
            mig_enabled=bool(current),
            mig_pending=bool(pending),
            numa_node=self._numa_node(pci),
            pcie_root="" if pci is None else self._pcie_root(pci),
        )
        return msgspec.structs.replace(info, lost=card.lost, error="" if card.lost else card.error)

    def _numa_node(self, pci: Any) -> int | None:
        """The NUMA node at a PCI address; None if the address or the node is not known, -1 to the kernel."""
        return None if pci is None else read_place(self._pci_folder(pci)).numa_node

    def _pcie_root(self, pci: Any) -> str:
        """The root complex of a PCI address."""
        return next(iter(read_place(self._pci_folder(pci)).folders), "")

    def bus(self) -> Mapping[str, bool]:
        """The GPUs on the PCI bus by address in NVML's form; false for one that another driver has (``vfio-pci``).

        A GPU with a display that no driver has is left out: the driver does not support every old one. So is a GPU that
        the administrator has excluded (parameter ``NVreg_ExcludedGpus`` of the kernel module).
        """
        found: dict[str, bool] = {}
        for folder in sorted((self._sys / "bus/pci/devices").glob("*:*:*.*")):
            kind = (read_number(folder / "class") or 0) >> 8
            if read_number(folder / "vendor") != _NVIDIA or kind not in _GPUS or (folder / "physfn").exists():
                continue
            driver = folder / "driver"
            if driver.exists() or kind != _DISPLAY:
                domain, _, rest = folder.name.upper().partition(":")
                found[f"{domain.zfill(8)}:{rest}"] = not driver.exists() or driver.resolve().name == "nvidia"
        excluded = self._excluded() if found else frozenset()
        return {address: ours for address, ours in found.items() if address not in excluded}

    def _excluded(self) -> frozenset[str]:
        """PCI addresses of the GPUs that the administrator has excluded; none if the driver cannot say."""
        nvml = self._nvml
        with suppress(NvmlError), self._errors("excluded GPUs"):
            infos = [nvml.nvmlGetExcludedDeviceInfoByIndex(each) for each in range(nvml.nvmlGetExcludedDeviceCount())]
            return frozenset(decode_text(each.pci.busId).upper() for each in infos)
        return frozenset()

    def mig_mode(self, handle: Any) -> tuple[int | None, int | None]:
        """Current and pending mode; ``None`` for a card without MIG."""
        return self._read_or(lambda: tuple(self._nvml.nvmlDeviceGetMigMode(handle)), "MIG mode", (None, None))

    def attributes(self, gpu: GpuUuid, handle: Any) -> CardAttributes:
        """See :meth:`.Nvml.attributes`."""
        nvml = self._nvml
        with self._errors(f"PCI address of {gpu}"):
            pci = nvml.nvmlDeviceGetPciInfo(handle)
        return CardAttributes(
            pci_class=self._pci_number(pci, "class"),
            pci_subsystem_id=pci.pciSubSystemId,
            ecc=bool(self._read_or(lambda: nvml.nvmlDeviceGetEccMode(handle)[0], f"ECC mode of {gpu}", 0)),
            fabric=self._read_or(lambda: self._fabric(handle), f"NVLink fabric of {gpu}", None),
            recovery_action=self._read_or(lambda: self._recovery_action(handle), f"recovery action of {gpu}", None),
            brand=_BRANDS.get(self._read_or(lambda: nvml.nvmlDeviceGetBrand(handle), f"brand of {gpu}", 0), ""),
            addressing_mode=self._addressing_mode(gpu, handle),
            pcie_bandwidth=self._read_or(lambda: self._pcie_bandwidth(handle), f"PCIe link of {gpu}", 0.0),
        )

    def _pcie_bandwidth(self, handle: Any) -> float:
        """Of the highest generation of card and slot, since an idle card lowers it; and of the lanes in use."""
        generation = self._nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
        return pcie_bandwidth(generation, self._nvml.nvmlDeviceGetCurrPcieLinkWidth(handle))

    def _addressing_mode(self, gpu: GpuUuid, handle: Any) -> str:
        mode = self._read_or(lambda: self._nvml.nvmlDeviceGetAddressingMode(handle), f"addressing mode of {gpu}", None)
        return "" if mode is None else _ADDRESSING_MODES.get(mode, "")

    def _fabric(self, handle: Any) -> tuple[str, str] | None:
        """Cluster UUID and clique of a card that has joined a fabric; the switches of one machine are none."""
        info = fabric_info(self._nvml, handle)
        cluster = uuid.UUID(bytes=bytes(info.clusterUuid))
        joined = info.state == self._nvml.NVML_GPU_FABRIC_STATE_COMPLETED and info.status == 0
        return (str(cluster), str(info.cliqueId)) if joined and cluster.int else None

    def _recovery_action(self, handle: Any) -> int | None:
        (field,) = self._nvml.nvmlDeviceGetFieldValues(handle, [self._nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
        return int(field.value.uiVal) if field.nvmlReturn == 0 else None

    def mig_attributes(self, device: MigUuid, handle: Any) -> MigAttributes:
        """See :meth:`.Nvml.mig_attributes`."""
        call = f"attributes of {device}"
        values = self._read_or(lambda: self._nvml.nvmlDeviceGetAttributes_v2(handle), call, None)
        if values is None:
            return MigAttributes()
        return MigAttributes(
            memory_mib=values.memorySizeMB,
            multiprocessors=values.multiprocessorCount,
            gi_slices=values.gpuInstanceSliceCount,
            ci_slices=values.computeInstanceSliceCount,
            copy_engines=values.sharedCopyEngineCount,
            decoders=values.sharedDecoderCount,
            encoders=values.sharedEncoderCount,
            jpeg_engines=values.sharedJpegCount,
            ofa_engines=values.sharedOfaCount,
        )

    def nvlinks(self, gpu: GpuUuid, handle: Any) -> list[NvLink]:
        """See :meth:`.Nvml.nvlinks`."""
        found = []
        for link in range(self._nvml.NVML_NVLINK_MAX_LINKS):
            try:
                with self._errors(f"NVLink {link} of {gpu}"):
                    if not self._nvml.nvmlDeviceGetNvLinkState(handle, link):
                        continue
            except InvalidArgument:  # the card has no link of this number, so none of a higher one
                break
            except NotSupported:  # no NVLink at all, or none in MIG mode
                break
            found.append(self._nvlink(f"other end of NVLink {link} of {gpu}", handle, link))
        return found

    def _nvlink(self, call: str, handle: Any, link: int) -> NvLink:
        """The other end; a switch outside of the machine has no PCI address here."""
        nvml, remote = self._nvml, ""
        kind = self._read_or(lambda: nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link), call, None)
        with suppress(NotSupported, NvmlNotFound, InvalidArgument, UnknownNvmlError), self._errors(call):
            remote = decode_text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)
        return NvLink(remote, switch=kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH)

    def place(self, gpu: GpuUuid, handle: Any) -> PciPlace:
        """See :meth:`.Nvml.place`; only a card whose memory is a NUMA node (GH200) has a number of it."""
        call, memory_node = f"NUMA node of the memory of {gpu}", None
        with self._errors(f"PCI address of {gpu}"):
            pci = self._nvml.nvmlDeviceGetPciInfo(handle)
        with suppress(NotSupported, InvalidArgument, UnknownNvmlError), self._errors(call):
            memory_node = self._nvml.nvmlDeviceGetNumaNodeId(handle)
        return read_place(self._pci_folder(pci), memory_node)

    def network_cards(self) -> Mapping[str, PciPlace]:
        """See :meth:`.Nvml.network_cards`."""
        return network_places(self._sys)

    def compute_mode(self, gpu: GpuUuid, handle: Any) -> ComputeMode:
        """See :meth:`.Nvml.compute_mode`. A card that is not asked (MIG mode) has ``DEFAULT``."""
        default = ComputeMode.DEFAULT.value
        mode = self._read_or(lambda: self._nvml.nvmlDeviceGetComputeMode(handle), f"compute mode of {gpu}", default)
        # EXCLUSIVE_THREAD is the former name of EXCLUSIVE_PROCESS (nvml.h); drivers no longer set it.
        return ComputeMode.EXCLUSIVE_PROCESS if mode == 1 else ComputeMode(mode)

    def set_compute_mode(self, gpu: GpuUuid, handle: Any, mode: ComputeMode) -> None:
        """See :meth:`.Nvml.set_compute_mode`."""
        call = f"compute mode {mode.name} of {gpu}"
        try:
            with self._errors(call):
                self._nvml.nvmlDeviceSetComputeMode(handle, mode.value)
        except InvalidArgument as error:  # how newer drivers refuse the handle of a card in MIG mode
            if self.mig_mode(handle)[0]:
                raise NotSupported(f"{call}: the card is in MIG mode, where it is always DEFAULT") from error
            raise

    def _pci_number(self, pci: Any, file: str) -> int | None:
        """Returns a number from the kernel about a card, in any base; ``None`` if the kernel does not report it."""
        return read_number(self._pci_folder(pci) / file)

    def _pci_folder(self, pci: Any) -> Path:
        """The kernel's folder of a card."""
        domain, _, rest = decode_text(pci.busId).lower().partition(":")
        return self._sys / f"bus/pci/devices/{domain[-4:]}:{rest}"

    def _read_or(self, read: Callable[[], T], call: str, default: T) -> T:
        """Returns the card's answer; ``default`` if the card does not support the call."""
        try:
            with self._errors(call):
                return read()
        except (NotSupported, InvalidArgument):
            return default

    def _errors(self, call: str) -> AbstractContextManager[None]:
        return translate_errors(self._nvml.NVMLError, call)


_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")


def read_place(folder: Path, memory_node: int | None = None) -> PciPlace:
    """Reads the place of a device; a value that the kernel does not report is empty.

    Args:
        folder: the kernel's folder of the device, or a link to it.
        memory_node: see :class:`~tessera.nvml.interface.PciPlace`.
    """
    node = read_number(folder / "numa_node")
    return PciPlace(
        folders=tuple(_below_root(folder)),
        numa_node=node if node is not None and node >= 0 else None,
        cpus=_read(folder / "local_cpulist"),
        memory_node=memory_node,
    )


def network_places(sys: Path) -> Mapping[str, PciPlace]:
    """The places of the RDMA network cards, in the order of their numbers; without those that are no PCI device."""
    folders = sorted((sys / "class/infiniband").glob("*"), key=_number_last)
    found = {each.name: read_place(each / "device") for each in folders}
    return {name: place for name, place in found.items() if place.folders}


def read_number(path: Path) -> int | None:
    """A number of the kernel in any base; ``None`` if it cannot be read."""
    try:
        return int(_read(path), 0)
    except ValueError:
        return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _below_root(folder: Path) -> Iterator[str]:
    below = False
    for part in folder.resolve().parts:
        below = below or _ROOT.fullmatch(part) is not None
        if below:
            yield part


def _number_last(folder: Path) -> tuple[str, int, str]:
    """Orders ``mlx5_2`` before ``mlx5_10``."""
    stem = folder.name.rstrip("0123456789")
    return stem, int(folder.name[len(stem) :] or 0), folder.name
