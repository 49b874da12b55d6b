"""Properties of simulated cards besides MIG: NVLinks, common ancestors in PCIe, engines of slices.

Facts of products, as data. An unpublished value is 0 or missing, and is reported so.

NVLinks are those of the board that the model's first product name belongs to: SXM boards of Ampere and later reach each
other only through NVSwitches, V100 is on the hybrid cube mesh of a DGX-1, cards in a PCIe slot have no bridge.
"""

from collections.abc import Mapping, Sequence

import msgspec

from tessera.mig.geometry import Profile
from tessera.nvml.interface import CardAttributes, GpuInfo, MigAttributes, NvLink, PciPlace, pcie_bandwidth
from tessera.nvml.simulated.machine_state import SimCard

#: A data-centre card as it is sold: a 3D controller, ECC on, no recovery action, 16 lanes of PCIe 4 (as A100).
DEFAULT_ATTRIBUTES = CardAttributes(
    pci_class=0x030200, ecc=True, recovery_action=0, pcie_bandwidth=pcie_bandwidth(4, 16), brand="Nvidia"
)
#: PCI bus of the first NVSwitch of a simulated machine.
_FIRST_SWITCH_BUS = 0xC0

#: First driver branch of each CUDA version that it runs (NVIDIA, CUDA toolkit release notes, driver versions).
_CUDA: Sequence[tuple[int, int]] = (
    (450, 11000),
    (460, 11020),
    (470, 11040),
    (510, 11060),
    (515, 11070),
    (520, 11080),
    (525, 12000),
    (530, 12010),
    (535, 12020),
    (545, 12030),
    (550, 12040),
    (555, 12050),
    (560, 12060),
    (565, 12070),
    (570, 12080),
    (575, 12090),
    (580, 13000),
    (590, 13010),
    (595, 13020),
)

#: Links of a card, and NVSwitches that they are spread over (NVIDIA's pages on NVLink: 12 links on A100, 18 on Hopper
#: and Blackwell; HGX A100 has 6 switches, HGX H100 4, HGX B200 2; NVL72 has 18, one link to each).
_SWITCHED: Mapping[str, tuple[int, int]] = {
    "A100-40GB": (12, 6),
    "A100-64GB": (12, 6),
    "A100-80GB": (12, 6),
    "H100-80GB": (18, 4),
    "H100-SXM5-94GB": (18, 4),
    "H200": (18, 4),
    "B200": (18, 2),
    "B300": (18, 2),
    "GB200": (18, 18),
    "GB300": (18, 18),
}
#: Links between the cards of a DGX-1 with V100 by index (``nvidia-smi topo -m``); six on each card.
_CUBE_MESH: Mapping[tuple[int, int], int] = {
    **dict.fromkeys(((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)), 2),
    **dict.fromkeys(((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)), 1),
}
_MESHED = "V100-SXM2-16GB"
_CUBE_LINKS = 6
#: Beginnings of the models without NVENC.
_WITHOUT_ENCODERS = ("A100", "A30", "H100", "H20", "GH200", "B200", "B300", "GB200", "GB300", "PG506")


def cuda_version(driver_version: str) -> int:
    """The highest CUDA version that a driver runs, 13020 for 595.58.03; 0 for a driver that is too old to cut cards."""
    branch = int(driver_version.partition(".")[0])
    return max((cuda for first, cuda in _CUDA if first <= branch), default=0)


def gpu_info(card: SimCard) -> GpuInfo:
    """Returns the card as NVML lists it."""
    model = card.gpu_model
    device_id = int(model.pci_device_ids[0], 16) if model.pci_device_ids else 0
    return GpuInfo(
        uuid=card.uuid,
        index=card.index,
        minor=card.index,
        name=model.product_name,
        memory_mib=card.memory_mib,
        pci_bus_id=card.pci_bus_id,
        pci_device_id=f"0x{device_id:04X}10DE",
        compute_capability=model.compute_capability,
        mig_capable=model.mig_capable,
        mig_enabled=card.mig_enabled,
        mig_pending=card.mig_pending,
        lost=card.lost,
    )


def attributes_of(card: SimCard) -> CardAttributes:
    """Returns the card's attributes: those that a test has set, else the product's."""
    return DEFAULT_ATTRIBUTES if card.attributes is None else card.attributes


def nvlinks_of(card: SimCard, cards: Sequence[SimCard]) -> list[NvLink]:
    """The card's NVLinks that are up, on a machine of these cards. MIG mode has none (NVIDIA MIG user guide)."""
    if card.mig_enabled:
        return []
    if card.nvlinks is not None:
        return list(card.nvlinks)
    if card.model == _MESHED:
        return [
            NvLink(other.pci_bus_id)
            for other in cards
            if other.model == _MESHED and not other.lost
            for _ in range(_CUBE_MESH.get((min(card.index, other.index), max(card.index, other.index)), 0))
        ]
    links, switches = _SWITCHED.get(card.model, (0, 1))
    return [NvLink(f"00000000:{_FIRST_SWITCH_BUS + link % switches:02X}:00.0", switch=True) for link in range(links)]


def link_count(card: SimCard) -> int:
    """The number of the card's NVLinks that are up on a whole machine; 0 in MIG mode."""
    if card.mig_enabled:
        return 0
    if card.nvlinks is not None:
        return len(card.nvlinks)
    return _CUBE_LINKS if card.model == _MESHED else _SWITCHED.get(card.model, (0, 1))[0]


def has_encoders(card: SimCard) -> bool:
    """True if the card encodes video; cards for training only decode it (NVIDIA, video codec support matrix)."""
    return not card.model.startswith(_WITHOUT_ENCODERS)


def common_ancestor(card: SimCard, other: SimCard, cards: int) -> int:
    """Returns the level of the PCIe tree at which two cards of a machine meet, as ``nvmlGpuTopologyLevel_t``.

    As on boards of eight with two processors: two neighbours below the same PCIe switches, the pairs of either half at
    one processor.
    """
    if card.index == other.index:
        return 0
    if card.index // 2 == other.index // 2:
        return 20
    return 40 if _processor(card, cards) == _processor(other, cards) else 50


def _processor(card: SimCard, cards: int) -> int:
    pairs = -(-cards // 2)
    return min(card.index // 2 // max(-(-pairs // 2), 1), 1)


#: CPUs of either half of a simulated machine: as on DGX H100 with two processors of 56 cores and 112 threads.
_CPUS = ("0-55,112-167", "56-111,168-223")


def place_of(card: SimCard, cards: int) -> PciPlace:
    """Returns the place of a card by the rule of :func:`common_ancestor`: two neighbours below one root complex."""
    bus, node = card.index // 2, _processor(card, cards)
    address = card.pci_bus_id[4:].lower()
    port = card.index % 2 + 1
    bridges = (f"0000:{bus:02x}:01.0", f"0000:{bus:02x}:0{port}.1", f"0000:{bus:02x}:0{port}.2")
    folders = (f"pci0000:{bus:02x}", *bridges, address)
    return PciPlace(folders=folders, numa_node=node, cpus=_CPUS[node])


class _Row(msgspec.Struct, frozen=True):
    """SMs and engines of a GPU instance, in the order in which ``nvidia-smi mig -lgip`` lists them."""

    multiprocessors: int = 0
    decoders: int = 0
    encoders: int = 0
    copy_engines: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0


# `nvidia-smi mig -lgip` on A100-40GB; A100-80GB has the same.
_A100 = {
    "1g": _Row(14, 0, 0, 1, 0, 0),
    "1g+me": _Row(14, 1, 0, 1, 1, 1),
    "1g x2": _Row(14, 1, 0, 1, 0, 0),
    "2g": _Row(28, 1, 0, 2, 0, 0),
    "3g": _Row(42, 2, 0, 3, 0, 0),
    "4g": _Row(56, 2, 0, 4, 0, 0),
    "7g": _Row(98, 5, 0, 7, 1, 1),
}
# `nvidia-smi mig -lgip` on A30.
_A30 = {
    "1g": _Row(14, 1, 0, 1, 0, 0),
    "1g+me": _Row(14, 1, 0, 1, 1, 1),
    "2g": _Row(28, 2, 0, 2, 0, 0),
    "2g+me": _Row(28, 2, 0, 2, 1, 1),
    "4g": _Row(56, 4, 0, 4, 1, 1),
}
# `nvidia-smi mig -lgip` on H100-80GB; H200 has the same (driver 580.159.04).
_H100 = {
    "1g": _Row(16, 1, 0, 1, 1, 0),
    "1g+me": _Row(16, 1, 0, 1, 1, 1),
    "1g x2": _Row(26, 1, 0, 1, 1, 0),
    "2g": _Row(32, 2, 0, 2, 2, 0),
    "3g": _Row(60, 3, 0, 3, 3, 0),
    "4g": _Row(64, 4, 0, 4, 4, 0),
    "7g": _Row(132, 7, 0, 8, 7, 1),
}
_SLICES: Mapping[str, Mapping[str, _Row]] = {
    "A100-40GB": _A100,
    "A100-80GB": _A100,
    "A30": _A30,
    "H100-80GB": _H100,
    "H200": _H100,
}


def mig_attributes(card: SimCard, profile: Profile, ci_slices: int) -> MigAttributes:
    """Returns the engines and memory of a compute instance with this many slices in a GPU instance of ``profile``.

    Of a compute instance that leaves a part of its GPU instance the SMs are known where every slice has as many; the
    engines it shares.
    """
    row = _row(card, profile)
    slices = profile.compute_slices
    even = card.gpu_model.compute_capability < (9, 0)  # 14 SMs to each slice of A100 and A30
    return MigAttributes(
        memory_mib=card.instance_memory_mib(profile),
        multiprocessors=row.multiprocessors * ci_slices // slices if even or ci_slices == slices else 0,
        gi_slices=slices,
        ci_slices=ci_slices,
        copy_engines=row.copy_engines,
        decoders=row.decoders,
        encoders=row.encoders,
        jpeg_engines=row.jpeg_engines,
        ofa_engines=row.ofa_engines,
    )


def _row(card: SimCard, profile: Profile) -> _Row:
    return _SLICES.get(card.model, {}).get(_row_name(card, profile), _Row())


def _row_name(card: SimCard, profile: Profile) -> str:
    double = profile.compute_slices == 1 and profile.size > min(row.size for row in card.geometry.profiles)
    return f"{profile.compute_slices}g{' x2' if double else ''}{profile.name[profile.name.index('gb') + 2 :]}"
