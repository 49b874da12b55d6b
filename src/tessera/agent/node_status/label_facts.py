"""Collects the facts behind the labels: from the inventory, the sharing in force, and the machine.

From the moment the slice manager has a card, the labels count it as a card in MIG mode without MIG devices: neither
its first slice nor its last one changes a label. The sharing of a card is the sharing in force, never the desired one.

If the cards of one resource are shared differently (by ``devices``, or by model), its labels give the sharing of most
of them; the annotation ``tessera.dev/offers`` gives the sharing of each.

On a virtual machine whose cards are vGPUs, NVML gives the guest's own driver only. The host writes its driver's version
and branch into the PCI configuration space of the cards that it emulates, as a capability that is NVIDIA's own: the
letters VF, then records of a type, a length and data. The record of type 0 has ten characters for the version and ten
for the branch, padded with zeros. GPU feature discovery reads the same (``internal/vgpu`` of NVIDIA's device plugin);
the walk along capabilities is that of the PCI specification, 6.7.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from tessera.agent.inventory.gpu_inventory import GpuInventory, GpuState, sharing_gpus
from tessera.agent.node_status.labels import (
    GPU,
    PREFIX,
    CardFacts,
    LabelFacts,
    MigFacts,
    Share,
    VgpuFacts,
    described_cards,
)
from tessera.api.sharing.devices import AdvertisedDevice, Advertisement, MigDevice, SharingKind
from tessera.api.sharing.profile import MigStrategy, SharingProfile
from tessera.mig.names import resource_spelling
from tessera.nvml.interface import CardAttributes, MigAttributes

#: File in which Linux gives the machine's product name (Documentation/ABI/testing/sysfs-class-dmi).
DMI_PRODUCT = Path("/sys/class/dmi/id/product_name")
#: Value of ``gpu.machine`` where the cards exist only in memory.
SIMULATED_MACHINE = "Simulated"


class SharingFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Sharing in force on the cards that are not cut on demand.

    Attributes:
        offer: the resources and their devices.
        profile: the sharing profile in force.
        mig_strategy: how MIG devices are advertised.
    """

    offer: Advertisement
    profile: SharingProfile = SharingProfile()
    mig_strategy: MigStrategy = MigStrategy.NONE


def collect_label_facts(
    inventory: GpuInventory,
    sharing: SharingFacts,
    *,
    on_demand: Collection[str] = frozenset(),
    machine: str | None = None,
    timestamp: int | None = None,
    vgpu: VgpuFacts | None = None,
) -> LabelFacts:
    """Collects the facts behind the labels.

    Args:
        inventory: all cards of the node; labels leave out those of which nothing is known.
        sharing: the sharing in force.
        on_demand: UUIDs of the cards that are cut on demand.
        machine: the machine's product name; ``None`` if it cannot be read.
        timestamp: seconds since 1970 at which discovery began.
        vgpu: the host's driver, in a virtual machine with vGPUs; ``None`` elsewhere.
    """
    cards = {
        card.uuid: _card(card, on_demand=card.uuid in on_demand) for card in inventory.gpus if card.info.identified
    }
    return LabelFacts(
        cards=tuple(cards.values()),
        driver_version=inventory.driver_version,
        cuda_version=inventory.cuda_version,
        machine=machine,
        mig_strategy=sharing.mig_strategy,
        shares=_shares(cards, sharing),
        mps=any(device.kind is SharingKind.MPS for device in _devices(sharing.offer)),
        timestamp=timestamp if sharing.profile.flags.timestamp else None,
        vgpu=vgpu,
    )


def read_machine(path: Path = DMI_PRODUCT) -> str | None:
    """The machine's product name; ``None`` where the firmware gives none."""
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None


def mig_devices_of(card: GpuState) -> list[tuple[MigDevice, MigAttributes]]:
    """The MIG devices that a container could be given, each with the engines and memory that it may use."""
    (gpu,) = sharing_gpus([card])
    return [(device, card.mig_attributes.get(device.uuid, MigAttributes())) for device in gpu.mig_devices]


def _card(card: GpuState, *, on_demand: bool) -> CardFacts:
    info, attributes = card.info, card.attributes or CardAttributes()
    readable = card.attributes is not None
    return CardFacts(
        product=info.name,
        memory_mib=info.memory_mib,
        compute_capability=info.compute_capability,
        mig_capable=info.mig_capable,
        mig_enabled=on_demand or info.mig_enabled,
        mig_devices=() if on_demand else tuple(_mig(*each) for each in mig_devices_of(card)),
        on_demand=on_demand,
        pci_class=attributes.pci_class,
        nvlink=bool(card.links) if readable else None,
        ecc=attributes.ecc if readable else None,
        fabric=attributes.fabric,
    )


def _mig(device: MigDevice, attributes: MigAttributes) -> MigFacts:
    return MigFacts(
        profile=device.profile,
        memory_mib=attributes.memory_mib,
        gi_slices=attributes.gi_slices,
        ci_slices=attributes.ci_slices,
        multiprocessors=attributes.multiprocessors,
        copy_engines=attributes.copy_engines,
        decoders=attributes.decoders,
        encoders=attributes.encoders,
        jpeg_engines=attributes.jpeg_engines,
        ofa_engines=attributes.ofa_engines,
    )


def _shares(cards: Mapping[str, CardFacts], sharing: SharingFacts) -> dict[str, Share]:
    """Sharing of the devices behind each resource of the labels; leaves out resources whose devices are not shared."""
    devices: dict[str, list[Share]] = {}
    described = {id(card) for card in described_cards(list(cards.values()))} if cards else set()
    for resource in sharing.offer.resources.values():
        for device in {each.uuid: each for each in resource.devices}.values():
            label = _label_resource(device, sharing.mig_strategy)
            card = cards.get(device.gpu)
            if device.profile or card is None or (id(card) in described and not card.mig_enabled):
                devices.setdefault(label, []).append(_share(device, resource.name, sharing.profile))
    found = {label: _most_common(shares) for label, shares in devices.items()}
    return {label: share for label, share in found.items() if share.kind is not SharingKind.NONE}


def _label_resource(device: AdvertisedDevice, strategy: MigStrategy) -> str:
    if device.profile and strategy is MigStrategy.MIXED:
        return f"{PREFIX}mig-{resource_spelling(device.profile)}"
    return GPU


def _share(device: AdvertisedDevice, resource: str, profile: SharingProfile) -> Share:
    names = {
        entry.name
        for block in profile.blocks
        if block.kind is device.kind
        for entry in block.resources
        if entry.advertised == resource
    }
    return Share(device.kind, device.replicas, renamed=device.shared and resource not in names)


def _most_common(shares: Iterable[Share]) -> Share:
    counted = Counter(shares)
    return min(counted, key=lambda each: (-counted[each], each.kind.value, each.replicas, each.renamed))


def _devices(offer: Advertisement) -> Iterable[AdvertisedDevice]:
    return (device for resource in offer.resources.values() for device in resource.devices)


#: Folder in which Linux lists PCI devices (Documentation/ABI/testing/sysfs-bus-pci).
PCI_DEVICES = Path("/sys/bus/pci/devices")

_NVIDIA = "0x10de"
#: Bytes of a configuration space that a privileged process can read; without privileges Linux gives 64.
_WHOLE = 256
_STATUS, _HAS_CAPABILITIES, _FIRST_CAPABILITY = 0x06, 0x10, 0x34
_VENDOR_SPECIFIC = 0x09
_SIGNATURE = slice(3, 5)
_FIRST_RECORD = 5
_HOST_DRIVER = 0
_TEXT = 10


def read_vgpu(devices: Path = PCI_DEVICES) -> VgpuFacts | None:
    """The host's driver; ``None`` if no card is a vGPU, or if the host's driver cannot be read.

    Args:
        devices: the folder of PCI devices.
    """
    found = (vgpu_of(config) for config in _configurations(devices))
    return next((each for each in found if each is not None), None)


def vgpu_of(config: bytes) -> VgpuFacts | None:
    """The host's driver as a card's PCI configuration space gives it; ``None`` for a card that is no vGPU."""
    capability = next((each for each in _vendor_specific(config) if each[_SIGNATURE] == b"VF"), b"")
    at = _FIRST_RECORD
    while at + 2 <= len(capability):
        kind, length = capability[at], capability[at + 1]
        data = capability[at + 2 : at + 2 + 2 * _TEXT]
        if kind == _HOST_DRIVER:
            return VgpuFacts(_text(data[:_TEXT]), _text(data[_TEXT:])) if len(data) == 2 * _TEXT else None
        if length < 2:
            return None
        at += length
    return None


def _configurations(devices: Path) -> Iterator[bytes]:
    """The configuration spaces of NVIDIA's devices, in the order of their addresses."""
    try:
        folders = sorted(devices.iterdir())
    except OSError:
        return
    for folder in folders:
        try:
            if (folder / "vendor").read_text().strip() == _NVIDIA:
                yield (folder / "config").read_bytes()
        except OSError:
            continue


def _vendor_specific(config: bytes) -> Iterator[bytes]:
    """The vendor's own capabilities; the walk ends if the chain leads in a circle."""
    if len(config) < _WHOLE or not config[_STATUS] & _HAS_CAPABILITIES:
        return
    at, visited = config[_FIRST_CAPABILITY], set[int]()
    while at and at not in visited and at + 2 < _WHOLE:
        visited.add(at)
        if config[at] == _VENDOR_SPECIFIC:
            yield config[at : at + config[at + 2]]
        at = config[at + 1]


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode("ascii", errors="ignore")
