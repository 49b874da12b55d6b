"""Decides for every waiting demand its node, card and start, or the reason that there is none.

Rules:

- Demands that wait together are packed together. A card that got slices in this batch keeps their starts open; they
  must stay exactly packable beside the instances on the card. The planner chooses starts when the batch ends.
- No demand loses its place to better packing. The planner first packs all demands large to small, and takes that plan
  only if all fit. Otherwise it admits demands by priority, then arrival; for one without room it may pack the admitted
  ones again, large to small, but never removes one.
- All slices of a demand go to one node, on any of its cards.
- The caller decides which node admits a demand. The planner asks lazily, best node first, once per demand and attempt.
- A batch may have a budget of steps. Demands beyond it are postponed, in the order of admission; the first demand is
  always decided.

The fleet is unchanged at the end; the caller records accepted placements (``Fleet.occupy_all``). The cost per demand of
one slice does not depend on the number of cards: the planner looks at groups of alike cards.
"""

import sys
from collections.abc import Sequence

from tessera.mig.geometry import Placement
from tessera.placement.batch import STEPS_A_DEMAND, Batch, Plan, unknown_profile
from tessera.placement.demand import (
    Demand,
    NodeAllows,
    NodeRanking,
    Parts,
    Preferences,
    Reservations,
    StepBudget,
    complete,
)
from tessera.placement.explain import RefusalExplainer
from tessera.placement.fleet import Fleet, FleetCard
from tessera.placement.policies import MixAware, Policy
from tessera.placement.search import CardSearch, is_rated
from tessera.reasons.node_rules import NodeRule
from tessera.reasons.reason import Reason

__all__ = ["Demand", "NodeAllows", "Plan", "plan", "plan_in_parts"]


def plan(
    fleet: Fleet,
    demands: Sequence[Demand],
    node_allows: NodeAllows | None = None,
    *,
    allows_when_empty: NodeAllows | None = None,
    reservations: Reservations | None = None,
    work: StepBudget | None = None,
    policy: Policy | None = None,
    kept: Sequence[str] = (),
    rank_nodes: NodeRanking | None = None,
    wanted: Preferences | None = None,
) -> Plan:
    """Plans a batch.

    Args:
        fleet: the cards; unchanged afterwards.
        demands: the waiting demands, in any order.
        node_allows: called lazily per demand and candidate node; by default every node takes every demand.
        allows_when_empty: the same for a node without room, as if it had room; called only for reasons.
        reservations: counts the demands that planning gave a node. On return exactly the assigned demands are
            reserved.
        work: the budget of the batch; unlimited by default.
        policy: chooses card, node and start; by default the one that Tessera uses.
        rank_nodes: ranks nodes for whole cards and shares; by default the policy does.
        wanted: what demands prefer of their places.
        kept: nodes with slots that :func:`tessera.placement.reserved_slots.hold_slots` keeps, for reasons.

    Raises:
        ValueError: two demands with one key, or a demand without slices.
    """
    rule = policy or MixAware()
    lone = len(demands) == 1 and len(demands[0].profiles) == 1
    if not lone:
        _check(demands)
    rated = rank_nodes is not None and len(demands) == 1 and is_rated(demands[0])
    refusals: dict[str, NodeRule] = {}
    full = False
    if lone and not rated and demands[0].nodes is None:
        demand = demands[0]
        first = rule.first_place(fleet, demand.profiles[0])
        if first is not None and demand.preferences is None:
            card, placed = first
            refusal = node_allows(demand, card.node.name) if node_allows is not None else None
            if refusal is None:
                return _place_slice(demand, card, placed, reservations, work)
            refusals[card.node.name] = refusal
        elif first is None and not demand.again:
            reason = _refuse_slice(fleet, demand, allows_when_empty or node_allows or _allow_every_node, kept, work)
            return Plan({}, {demand.key: reason})
        full = first is None
    allows = node_allows or _allow_every_node
    steps = work or StepBudget(sys.maxsize)
    search = CardSearch(fleet, allows, rule, rank_nodes, wanted)
    if rated and not lone:
        devices = search.find_ranked(demands[0], steps)
        if devices is not None:
            return _place_devices(demands[0], devices, reservations, steps)
    elif lone and not full:
        found = search.find_other(demands[0], refusals, steps)
        if found is not None:
            placed = found[0].alike.place(demands[0].profiles[0], rule.arrange)
            return _place_slice(demands[0], found[0], placed, reservations, work)
    batch = Batch(fleet, search, rule, reservations=reservations, work=steps)
    return complete(_run(batch, demands, allows_when_empty or allows, kept, searched=lone))


def plan_in_parts(
    fleet: Fleet, demands: Sequence[Demand], node_allows: NodeAllows, *, reservations: Reservations, work: StepBudget
) -> Parts[Plan]:
    """Plans a batch as :func:`plan` does, and yields between demands, and within the search for several slices.

    Until the end nobody else may use the fleet.
    """
    _check(demands)
    rule = MixAware()
    batch = Batch(fleet, CardSearch(fleet, node_allows, rule, None), rule, reservations=reservations, work=work)
    return (yield from _run(batch, demands, node_allows, (), searched=False))


def _run(
    batch: Batch, demands: Sequence[Demand], allows_when_empty: NodeAllows, kept: Sequence[str], *, searched: bool
) -> Parts[Plan]:
    ordered = sorted(demands, key=lambda one: (-one.priority, one.arrival))
    try:
        return (yield from batch.run(ordered, allows_when_empty, kept, searched=searched))
    except BaseException:
        batch.undo()
        raise
    finally:
        batch.clear()


def _place_slice(
    demand: Demand, card: FleetCard, placed: Placement, reservations: Reservations | None, work: StepBudget | None
) -> Plan:
    """Places a slice that waits alone: with the result of a batch of one, without a pending multiset on its card."""
    if work is not None:
        work.spend(STEPS_A_DEMAND + 1)
    if reservations is not None:
        reservations.reserve(demand, card.node.name)
    return Plan({demand.key: (card.slice_at(placed.profile, placed.start),)}, {})


def _refuse_slice(
    fleet: Fleet, demand: Demand, allows: NodeAllows, kept: Sequence[str], work: StepBudget | None
) -> Reason:
    """The reason for a slice that waits alone, and for which no card has room: as of a batch of one."""
    if work is not None:
        work.spend(2 * fleet.node_count)
    return unknown_profile(fleet, demand.profiles) or RefusalExplainer(fleet, allows, {}, kept).reason(demand, {})


def _place_devices(
    demand: Demand, cards: Sequence[FleetCard], reservations: Reservations | None, work: StepBudget
) -> Plan:
    """Places several whole cards or shares that wait alone: each is a card with one start."""
    work.spend(STEPS_A_DEMAND + 1)
    if reservations is not None:
        reservations.reserve(demand, cards[0].node.name)
    return Plan({demand.key: tuple(card.slice_at(card.geometry.names[0], 0) for card in cards)}, {})


def _allow_every_node(_demand: Demand, _node: str) -> None:
    return None


def _check(demands: Sequence[Demand]) -> None:
    seen: set[str] = set()
    for demand in demands:
        if demand.key in seen:
            raise ValueError(f"demand {demand.key} stands twice in a batch; keys must differ")
        if not demand.profiles:
            raise ValueError(f"demand {demand.key} asks for no slice; leave it out of the batch")
        seen.add(demand.key)
