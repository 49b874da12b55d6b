"""Reports the state of an agent's parts as the Node shows it: sharing in force, state of the MIG layout, conditions.

Nothing is decided here; every answer comes from the parts at that moment.
"""

from collections.abc import Iterator, Sequence

from tessera.agent.base.node_conditions import (
    HEALTH,
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
from tessera.api.sharing.profile import MigStrategy


class NodeReport:
    """Collects the state of the agent's parts.

    Args:
        inventory: the GPUs as last read.
        ownership: the side of the agent that has each GPU.
        following: the desired configuration.
        shelf: the resources that are advertised.
        layouts: the state of the MIG layout.
        health: the health of the cards.
        mps: the state of the MPS daemons.
        mig_strategy: how the installation advertises MIG devices.
    """

    def __init__(
        self,
        *,
        inventory: InventoryReader,
        ownership: CardOwnership,
        following: ConfigWatcher,
        shelf: ResourceAdvertiser,
        layouts: LayoutReconciler,
        health: HealthMonitor,
        mps: MpsDaemons,
        mig_strategy: MigStrategy,
    ) -> None:
        self._inventory = inventory
        self._ownership = ownership
        self._following = following
        self._shelf = shelf
        self._layouts = layouts
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
    def leaving(self) -> frozenset[str]:
        """UUIDs of the GPUs that their present owner is about to release."""
        return frozenset(gpu.uuid for gpu in self.inventory.gpus if self._ownership.is_leaving(gpu.uuid))

    @property
    def known(self) -> bool:
        """True once the offer on the static cards is known."""
        return self._shelf.in_force is not None

    @property
    def sharing(self) -> SharingFacts | None:
        """The sharing in force on the static cards; ``None`` while unknown."""
        found = self._shelf.in_force
        if found is None:
            return None
        strategy = found.profile.flags.mig_strategy or self._mig_strategy
        return SharingFacts(offer=found.offer, profile=found.profile, mig_strategy=strategy)

    @property
    def mig_state(self) -> str:
        """The value of ``nvidia.com/mig.config.state``; empty if no layout is desired."""
        status = self._layouts.status
        return status.state.value if status.layout else ""

    @property
    def conditions(self) -> Sequence[NodeCondition] | None:
        """All conditions of the Node; ``None`` while unknown."""
        return list(self._conditions()) if self.known else None

    def _conditions(self) -> Iterator[NodeCondition]:
        problem = self._shelf.problem
        yield sharing_condition(
            self._following.sharing,
            self._shelf.profile,
            offer=self._shelf.offer,
            problem=problem.text if problem is not None else None,
            problem_reason=problem.reason if problem is not None else None,
        )
        layout = self._layouts.status
        if layout.layout and (told := layout_condition(layout)) is not None:
            yield told
        health = self._health.condition()
        yield NodeCondition(HEALTH, health.status, health.reason, health.message)
        if (mps := mps_condition(self._mps.summary())) is not None:
            yield mps
