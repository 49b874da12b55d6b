"""Builds the annotation ``tessera.dev/offers``, which describes one device of each of the node's resources. Pure.

Cards that are not cut on demand offer the devices that the device plugin lists. Cards that are cut on demand offer each
of their profiles as often as it fits on an empty card. The sum of these offers exceeds the cards' capacity; the
controller decides which slices are made. A slice that does not exist yet counts with its share of the memory slots; the
driver keeps a little of that for itself.
"""

from collections import Counter
from collections.abc import Collection, Iterator

import msgspec

from tessera.agent.inventory.gpu_inventory import GpuInventory, GpuState
from tessera.agent.node_status.label_facts import mig_devices_of
from tessera.api.nodes.offers import NodeOffer, OfferKind
from tessera.api.sharing.devices import AdvertisedDevice, AdvertisedResource, Advertisement


def node_offers(
    inventory: GpuInventory, offer: Advertisement, *, on_demand: Collection[str] = frozenset()
) -> list[NodeOffer]:
    """Returns one entry for each resource and kind of device behind it.

    Args:
        inventory: all cards of the node.
        offer: the offer in force on the cards that are not cut on demand.
        on_demand: UUIDs of the cards that are cut on demand.
    """
    ones: Counter[NodeOffer] = Counter()
    for resource in offer.resources.values():
        for device in resource.devices:
            card = inventory.gpu(device.gpu)
            if card is not None:
                ones[_make_offer(resource, device, card, _readable(card, inventory))] += 1
    for card in inventory.gpus:
        if card.uuid in on_demand:
            for one, count in _on_demand(card, _readable(card, inventory)):
                ones[one] += count
    return [msgspec.structs.replace(one, count=count) for one, count in ones.items()]


def _readable(card: GpuState, inventory: GpuInventory) -> GpuState:
    """The card; while it cannot be read, another card of its kind, so that its entry does not change for that time."""
    if card.attributes is not None:
        return card
    alike = (each for each in inventory.gpus if each.info.name == card.info.name and each.attributes is not None)
    return next(alike, card)


def _make_offer(resource: AdvertisedResource, device: AdvertisedDevice, card: GpuState, like: GpuState) -> NodeOffer:
    memory = _memory(device, card)
    kind = OfferKind.SHARE if device.shared else OfferKind.SLICE if device.profile else OfferKind.WHOLE
    return NodeOffer(
        resource=resource.name,
        kind=kind,
        product=card.info.name,
        card_memory_mib=card.info.memory_mib,
        memory_mib=memory // device.replicas,
        compute_capability=_capability(card),
        nvlink=bool(like.links) and not card.info.mig_enabled,
        ecc=_ecc(like),
        count=0,
        replicas=device.replicas,
        one_per_request=resource.one_per_request and device.shared,
        profile=device.profile,
    )


def _memory(device: AdvertisedDevice, card: GpuState) -> int:
    """Memory of the whole device, MiB."""
    if not device.profile:
        return card.info.memory_mib
    return next((each.memory_mib for made, each in mig_devices_of(card) if made.uuid == device.uuid), 0)


def _on_demand(card: GpuState, like: GpuState) -> Iterator[tuple[NodeOffer, int]]:
    if card.geometry is None:
        return
    for profile in card.geometry.profiles:
        one = NodeOffer(
            resource=profile.resource,
            kind=OfferKind.DYNAMIC_SLICE,
            product=card.info.name,
            card_memory_mib=card.info.memory_mib,
            memory_mib=profile.memory_mib or card.info.memory_mib * profile.size // card.geometry.slots,
            compute_capability=_capability(card),
            ecc=_ecc(like),
            count=0,
            profile=profile.name,
        )
        yield one, profile.max_count


def _ecc(card: GpuState) -> bool:
    return card.attributes is not None and card.attributes.ecc


def _capability(card: GpuState) -> str:
    return ".".join(map(str, card.info.compute_capability))
