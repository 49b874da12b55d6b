"""Collects the facts behind the labels from the inventory and from the sharing in force. Pure.

From the moment the slice manager has a card, the labels count it as a card in MIG mode without MIG devices: neither
its first slice nor its last one changes a label. The sharing of a card is the sharing in force, never the desired one.

If the cards of one resource are shared differently (by ``devices``, or by model), its labels give the sharing of most
of them; the annotation ``tessera.dev/offers`` gives the sharing of each.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
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
from tessera.api.sharing.devices import AdvertisedDevice, Advertisement, MigDevice
from tessera.api.sharing.kinds import SharingKind
from tessera.api.sharing.profile import MigStrategy, SharingProfile
from tessera.mig.names import resource_spelling
from tessera.nvml.attributes import CardAttributes, MigAttributes

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
