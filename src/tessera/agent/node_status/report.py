"""Reports the state of an agent's parts as the Node shows it: sharing in force, state of the MIG layout, conditions.

Every answer comes from the parts at that moment. In the annotation ``tessera.dev/card-links``, where every pair of
cards has NVLinks, the way through PCIe is left out: nothing goes that way.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations

from tessera.agent.base.desired_config import DesiredSharing
from tessera.agent.base.node_conditions import ConditionStatus, NodeCondition
from tessera.agent.config.config_watcher import ConfigWatcher
from tessera.agent.health.monitor import HealthMonitor
from tessera.agent.inventory.card_ownership import CardOwnership
from tessera.agent.inventory.gpu_inventory import InventoryReader
from tessera.agent.mig_config.events import LayoutState, LayoutStatus
from tessera.agent.mig_config.reconciler import LayoutReconciler
from tessera.agent.mps.daemons import MpsDaemons
from tessera.agent.node_status.label_facts import SharingFacts
from tessera.agent.node_status.node_facts import NodeFacts
from tessera.agent.sharing.resource_advertiser import ResourceAdvertiser
from tessera.api.names import WHOLE_CARDS
from tessera.api.nodes.card_links import CardLinks, make_links
from tessera.api.nodes.conditions import HEALTH, LAYOUT, MPS, SHARING
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
