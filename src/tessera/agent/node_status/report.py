"""Reports the state of an agent's parts as the Node shows it: sharing in force, state of the MIG layout, conditions.

Every answer comes from the parts at that moment. In the annotation ``tessera.dev/card-links``, where every pair of
cards has NVLinks, the way through PCIe is left out: nothing goes that way.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations

from tessera.agent.base.node_conditions import (
    NodeCondition,
    layout_condition,
    mps_condition,
    sharing_condition,
)
from tessera.agent.config.config_watcher import ConfigWatcher
from tessera.agent.health.monitor import HealthMonitor
from tessera.agent.inventory.card_ownership import CardOwnership
from tessera.agent.inventory.gpu_inventory import GpuInventory, InventoryReader
from tessera.agent.mig_config.reconciler import LayoutReconciler
from tessera.agent.mps.daemons import MpsDaemons
from tessera.agent.node_status.label_facts import SharingFacts
from tessera.agent.sharing.resource_advertiser import ResourceAdvertiser
from tessera.api.names import WHOLE_CARDS
from tessera.api.nodes.card_faults import CardFault
from tessera.api.nodes.card_links import CardLinks, make_links
from tessera.api.nodes.conditions import HEALTH
from tessera.api.nodes.preflights import CardTest
from tessera.api.sharing.devices import Advertisement
from tessera.api.sharing.profile import MigStrategy
from tessera.placement.topology import NVLINK_POINTS, Topology


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

    @property
    def inventory(self) -> GpuInventory:
        """The GPUs as last read."""
        return self._inventory.inventory

    @property
    def on_demand(self) -> frozenset[str]:
        """UUIDs of the GPUs that are cut on demand."""
        return self._ownership.on_demand_gpus()

    @property
    def leaving_gpus(self) -> frozenset[str]:
        """UUIDs of the GPUs that their present owner is about to release."""
        return frozenset(gpu.uuid for gpu in self.inventory.gpus if self._ownership.is_leaving(gpu.uuid))

    @property
    def sharing(self) -> SharingFacts | None:
        """The sharing in force on the static cards; ``None`` while unknown."""
        found = self._advertiser.in_force
        if found is None:
            return None
        strategy = found.profile.flags.mig_strategy or self._mig_strategy
        return SharingFacts(offer=found.offer, profile=found.profile, mig_strategy=strategy)

    @property
    def needs_mps_host(self) -> bool | None:
        """True if the node needs an MPS host; ``None`` while unknown."""
        return self._mps.needs_host

    @property
    def mig_state(self) -> str:
        """The value of ``nvidia.com/mig.config.state``; empty if no layout is desired."""
        status = self._mig_config.status
        return status.state.value if status.layout else ""

    @property
    def card_faults(self) -> tuple[CardFault, ...]:
        """The faults that take cards away unless the breaker spares them."""
        return self._health.card_faults()

    @property
    def card_tests(self) -> tuple[CardTest, ...]:
        """The last preflight of each card that had one."""
        return self._health.card_tests()

    @property
    def card_links(self) -> CardLinks | None:
        """How the whole cards are joined, and which are free; None if there are no two."""
        taken = self._advertiser.taken_devices(WHOLE_CARDS)
        return card_links(self._advertiser.offer, self._advertiser.topology, taken)

    @property
    def held_withheld(self) -> Mapping[str, int]:
        """By resource, the withheld entries that pods hold."""
        return self._advertiser.held_withheld

    @property
    def conditions(self) -> Sequence[NodeCondition] | None:
        """All conditions of the Node; ``None`` while unknown."""
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
        layout = self._mig_config.status
        if layout.layout and (condition := layout_condition(layout)) is not None:
            yield condition
        health = self._health.condition()
        yield NodeCondition(HEALTH, health.status, health.reason, health.message)
        if (condition := mps_condition(self._mps.summary())) is not None:
            yield condition
