"""The facts behind the Node's labels, annotations and conditions, and these as they follow from the facts.

The annotation ``tessera.dev/offers`` describes one device of each of the node's resources. Cards that are not cut on
demand offer the devices that the device plugin lists. Cards that are cut on demand offer each of their profiles as
often as it fits on an empty card. The sum of these offers exceeds the cards' capacity; the controller decides which
slices are made. A slice that does not exist yet counts with its share of the memory slots; the driver keeps a little of
that for itself.

:class:`NodeReport` has the state of the agent's parts: sharing in force, state of the MIG layout, conditions. Every
answer comes from the parts at that moment. In the annotation ``tessera.dev/card-links``, where every pair of cards has
NVLinks, the way through PCIe is left out: nothing goes that way.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations

import msgspec

from tessera.agent.base.node_objects import ConditionStatus, NodeCondition
from tessera.agent.base.settings import DesiredSharing
from tessera.agent.config import ConfigWatcher
from tessera.agent.health.monitor import HealthMonitor
from tessera.agent.inventory.gpu_inventory import CardOwnership, GpuInventory, GpuState, InventoryReader
from tessera.agent.mig_config.events import LayoutState, LayoutStatus
from tessera.agent.mig_config.reconciler import LayoutReconciler
from tessera.agent.mps.daemons import MpsDaemons
from tessera.agent.node_status.label_facts import SharingFacts, collect_label_facts, mig_devices_of
from tessera.agent.node_status.labels import VgpuFacts, node_labels
from tessera.agent.sharing.resource_advertiser import ResourceAdvertiser
from tessera.api.names import MIG_CONFIG_STATE_LABEL, MPS_HOST_LABEL, WHOLE_CARDS
from tessera.api.nodes.card_faults import CARDS_ANNOTATION, CardFault, ListedCard, encode_cards
from tessera.api.nodes.node_cards import LINKS_ANNOTATION, CardLinks, encode_links, make_links
from tessera.api.nodes.node_marks import HEALTH, HOST_DRIVER_ANNOTATION, LAYOUT, MPS, SHARING
from tessera.api.nodes.offers import OFFERS_ANNOTATION, NodeOffer, OfferKind, encode_offers
from tessera.api.nodes.preflights import PREFLIGHT_ANNOTATION, CardTest, encode_tests
from tessera.api.sharing.devices import AdvertisedDevice, AdvertisedResource, Advertisement
from tessera.api.sharing.profile import MigStrategy
from tessera.kube.resources import Node
from tessera.placement.topology import NVLINK_POINTS, Topology


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
        infos = [gpu.info for gpu in self.inventory.gpus]
        mixed = len({info.name for info in infos}) > 1
        cards = [ListedCard(info.index, info.uuid, info.name if mixed else "") for info in infos]
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


def card_links(offer: Advertisement, topology: Topology, held: Collection[str] | None) -> CardLinks | None:
    """Returns how the whole cards are joined that a node offers; None if it offers none, or a single one.

    Args:
        offer: the offer in force.
        topology: how the cards are joined.
        held: cards that containers have or must not get; None if not known.
    """
    offered = offer.resources.get(WHOLE_CARDS)
    devices = offered.devices if offered is not None else ()
    if any(each.shared or each.profile for each in devices):
        return None
    cards = [each.uuid for each in devices]
    points = tuple(topology.score(one, other) for one, other in combinations(cards, 2))
    if points and min(points) >= NVLINK_POINTS:
        points = tuple(each // NVLINK_POINTS * NVLINK_POINTS for each in points)
    free = None if held is None else [number for number, card in enumerate(cards) if card not in held]
    return make_links(len(cards), points, free)


def sharing_condition(
    desired: DesiredSharing,
    in_force: str,
    *,
    offer: Advertisement | None = None,
    problem: str | None = None,
    problem_reason: str | None = None,
) -> NodeCondition:
    """Returns the condition of the desired sharing profile: true if it is in force.

    Args:
        desired: the desired profile.
        in_force: name of the profile behind the present offer; empty for none.
        offer: the present offer: its counts show that new content of a profile is in force, its notices name fields
            without effect.
        problem: reason that the desired profile cannot be offered on these cards; ``None`` if it can.
        problem_reason: the same as a word; ``ProfileRefused`` unless given.
    """
    now = f'profile "{in_force}" is in force' if in_force else "no profile is in force, nothing is shared"
    if problem is not None:
        return NodeCondition(SHARING, "False", problem_reason or "ProfileRefused", f"{problem}; {now}")
    if desired.problem is not None:
        return NodeCondition(SHARING, "False", desired.problem_reason or "ProfileRefused", f"{desired.problem}; {now}")
    if desired.name != in_force:
        coming = f'profile "{desired.name}" ({desired.reason})' if desired.name else f"no profile ({desired.reason})"
        return NodeCondition(SHARING, "Unknown", "ProfilePending", f"{coming} is next; {now}")
    texts = [f"{now}: {desired.reason}", *_effects(offer)]
    return NodeCondition(SHARING, "True", "ProfileInForce" if in_force else "NoProfile", "; ".join(texts))


def _effects(offer: Advertisement | None) -> Iterator[str]:
    if offer is not None and offer.counts:
        yield f"offered: {', '.join(f'{count} {resource}' for resource, count in sorted(offer.counts.items()))}"
    if offer is not None:
        yield from map(str, offer.notices)


def layout_condition(layout: LayoutStatus) -> NodeCondition | None:
    """Returns the condition of the desired MIG layout: true if it is in force; ``None`` if none is desired."""
    if not layout.layout:
        return None
    truths: Mapping[LayoutState, ConditionStatus] = {LayoutState.SUCCESS: "True", LayoutState.FAILED: "False"}
    return NodeCondition(LAYOUT, truths.get(layout.state, "Unknown"), layout.reason, layout.message)


def mps_condition(waiting: Mapping[str, str]) -> NodeCondition | None:
    """Returns the condition of the MPS daemons: true if all serve; ``None`` if MPS shares no resource.

    Args:
        waiting: by resource that MPS shares, the reason that its daemons do not serve; empty text if they do.
    """
    if not waiting:
        return None
    unready = [f"{resource}: {reason}" for resource, reason in sorted(waiting.items()) if reason]
    if unready:
        return NodeCondition(MPS, "False", "DaemonNotReady", "; ".join(unready))
    return NodeCondition(MPS, "True", "DaemonsReady", f"MPS serves {', '.join(sorted(waiting))}")


class NodeReport:
    """Collects the state of the agent's parts.

    Args:
        inventory: the GPUs as last read.
        ownership: the side of the agent that has each GPU.
        config: the desired configuration.
        advertiser: the resources that are advertised.
        mig_config: the state of the MIG layout.
        health: the health of the cards.
        mps: the state of the MPS daemons.
        mig_strategy: how the installation advertises MIG devices.
    """

    def __init__(
        self,
        *,
        inventory: InventoryReader,
        ownership: CardOwnership,
        config: ConfigWatcher,
        advertiser: ResourceAdvertiser,
        mig_config: LayoutReconciler,
        health: HealthMonitor,
        mps: MpsDaemons,
        mig_strategy: MigStrategy,
    ) -> None:
        self._inventory = inventory
        self._ownership = ownership
        self._config = config
        self._advertiser = advertiser
        self._mig_config = mig_config
        self._health = health
        self._mps = mps
        self._mig_strategy = mig_strategy

    def facts(self) -> NodeFacts | None:
        """The facts behind labels and annotations; ``None`` while unknown."""
        inventory, applied, needs_mps_host = self._inventory.inventory, self._advertiser.in_force, self._mps.needs_host
        if applied is None or needs_mps_host is None or not inventory.driver_version:
            return None
        strategy = applied.profile.flags.mig_strategy or self._mig_strategy
        layout = self._mig_config.status
        taken = self._advertiser.taken_devices(WHOLE_CARDS)
        return NodeFacts(
            inventory=inventory,
            sharing=SharingFacts(offer=applied.offer, profile=applied.profile, mig_strategy=strategy),
            on_demand=self._ownership.on_demand_gpus(),
            leaving=frozenset(gpu.uuid for gpu in inventory.gpus if self._ownership.is_leaving(gpu.uuid)),
            mig_state=layout.state.value if layout.layout else "",
            needs_mps_host=needs_mps_host,
            faults=self._health.card_faults(),
            tests=self._health.card_tests(),
            links=card_links(self._advertiser.offer, self._advertiser.topology, taken),
            held_withheld=self._advertiser.held_withheld,
        )

    def conditions(self) -> Sequence[NodeCondition] | None:
        """All conditions of the agent; ``None`` while unknown."""
        return list(self._conditions()) if self._advertiser.in_force is not None else None

    def _conditions(self) -> Iterator[NodeCondition]:
        problem = self._advertiser.problem
        yield sharing_condition(
            self._config.sharing,
            self._advertiser.profile,
            offer=self._advertiser.offer,
            problem=problem.text if problem is not None else None,
            problem_reason=problem.reason if problem is not None else None,
        )
        if (condition := layout_condition(self._mig_config.status)) is not None:
            yield condition
        health = self._health.condition()
        yield NodeCondition(HEALTH, health.status, health.reason, health.message)
        if (condition := mps_condition(self._mps.summary())) is not None:
            yield condition
