"""What the parts of an agent came to, in the words of the Node: what is in force, the layout's state, the conditions.

Nothing is decided here; every answer is made of what the parts say at that moment.
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
    """Asks the parts.

    Args:
        inventory: the GPUs as last read.
        ownership: the side of the agent that has each GPU.
        following: what is wished.
        shelf: what is offered.
        layouts: what became of the layout.
        health: what is thought of the cards.
        mps: how the daemons stand.
        mig_strategy: the installation's.
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
        """UUIDs of the GPUs whose owner is about to hand them over."""
        return frozenset(gpu.uuid for gpu in self.inventory.gpus if self._ownership.is_leaving(gpu.uuid))

    @property
    def known(self) -> bool:
        """Whether it is known what is offered of the static cards."""
        return self._shelf.in_force is not None

    @property
    def sharing(self) -> SharingFacts | None:
        """What is in force on the static cards; ``None`` while that is not known."""
        found = self._shelf.in_force
        if found is None:
            return None
        strategy = found.profile.flags.mig_strategy or self._mig_strategy
        return SharingFacts(offer=found.offer, profile=found.profile, mig_strategy=strategy)

    @property
    def mig_state(self) -> str:
        """The value of ``nvidia.com/mig.config.state``; empty where no layout is asked for."""
        status = self._layouts.status
        return status.state.value if status.layout else ""

    @property
    def conditions(self) -> Sequence[NodeCondition] | None:
        """All conditions of the Node; ``None`` while they are not known."""
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
