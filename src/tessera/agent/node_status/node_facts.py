"""The facts behind the Node's labels and annotations, and these as they follow from the facts. Pure.

The annotation ``tessera.dev/offers`` describes one device of each of the node's resources. Cards that are not cut on
demand offer the devices that the device plugin lists. Cards that are cut on demand offer each of their profiles as
often as it fits on an empty card. The sum of these offers exceeds the cards' capacity; the controller decides which
slices are made. A slice that does not exist yet counts with its share of the memory slots; the driver keeps a little of
that for itself.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

import msgspec

from tessera.agent.inventory.gpu_inventory import GpuInventory, GpuState
from tessera.agent.node_status.label_facts import SharingFacts, collect_label_facts, mig_devices_of
from tessera.agent.node_status.labels import VgpuFacts, node_labels
from tessera.api.names import MIG_CONFIG_STATE_LABEL, MPS_HOST_LABEL
from tessera.api.nodes.card_faults import CARDS_ANNOTATION, CardFault, ListedCard, encode_cards
from tessera.api.nodes.card_links import LINKS_ANNOTATION, CardLinks, encode_links
from tessera.api.nodes.driver_status import HOST_DRIVER_ANNOTATION
from tessera.api.nodes.offers import OFFERS_ANNOTATION, NodeOffer, OfferKind, encode_offers
from tessera.api.nodes.preflights import PREFLIGHT_ANNOTATION, CardTest, encode_tests
from tessera.api.sharing.devices import AdvertisedDevice, AdvertisedResource, Advertisement
from tessera.kube.resources import Node


class MachineFacts(msgspec.Struct, frozen=True):
    """The machine: its product name (``None`` if unreadable), and the host's driver where its GPUs are vGPUs.

    ``host_driver`` is true if the driver in use is this machine's own, and no container's.
    """

    product: str | None = None
    vgpu: VgpuFacts | None = None
    host_driver: bool = False


class NodeMetadata(msgspec.Struct, frozen=True):
    """Labels and annotations that the agent writes on the Node."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    def is_shown(self, node: Node) -> bool:
        """True if the Node shows all of it."""
        shown = node.metadata
        return is_part(self.labels, shown.labels) and is_part(self.annotations, shown.annotations)


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All facts behind the metadata.

    Attributes:
        inventory: the GPUs as last read.
        sharing: sharing on the static GPUs.
        on_demand: UUIDs of the GPUs that are cut on demand.
        leaving: UUIDs of the on-demand GPUs that give no further slice because the static side is to get them.
        mig_state: the value of ``nvidia.com/mig.config.state``; empty for no such label.
        needs_mps_host: true if MPS daemons run on the node, or must. Without the label, the MPS host's pod is deleted,
            and all daemons with it.
        faults: the faults that take cards away unless the breaker spares them.
        tests: the last preflight of each card that had one.
        links: how the whole cards are joined, and which are free; ``None`` if there are no two.
        held_withheld: by resource, the withheld entries that pods hold.
    """

    inventory: GpuInventory
    sharing: SharingFacts
    on_demand: frozenset[str]
    leaving: frozenset[str]
    mig_state: str
    needs_mps_host: bool
    faults: tuple[CardFault, ...]
    tests: tuple[CardTest, ...]
    links: CardLinks | None
    held_withheld: Mapping[str, int]

    def metadata(self, machine: MachineFacts, began: int) -> NodeMetadata:
        """Builds the metadata from the facts.

        Raises:
            ValueError: a fact cannot be read, or the metadata is too long.
        """
        facts = collect_label_facts(
            self.inventory,
            self.sharing,
            on_demand=self.on_demand,
            machine=machine.product,
            timestamp=began,
            vgpu=machine.vgpu,
        )
        offers = node_offers(self.inventory, self.sharing.offer, on_demand=self.on_demand - self.leaving)
        state = {MIG_CONFIG_STATE_LABEL: self.mig_state} if self.mig_state else {}
        state |= {MPS_HOST_LABEL: "true"} if self.needs_mps_host else {}
        cards = [ListedCard(gpu.info.index, gpu.uuid) for gpu in self.inventory.gpus]
        annotations = {
            OFFERS_ANNOTATION: encode_offers(offers),
            CARDS_ANNOTATION: encode_cards(cards, self.faults, self.held_withheld),
        }
        if machine.host_driver:
            annotations[HOST_DRIVER_ANNOTATION] = self.inventory.driver_version
        if self.tests:
            annotations[PREFLIGHT_ANNOTATION] = encode_tests(self.tests)
        if self.links is not None:
            annotations[LINKS_ANNOTATION] = encode_links(self.links)
        return NodeMetadata(node_labels(facts) | state, annotations)


def is_part(desired: Mapping[str, object], shown: Mapping[str, object]) -> bool:
    """True if all that is desired is shown."""
    return all(shown.get(name) == value for name, value in desired.items())


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
