"""Decides which faults take no card away, since their rule has taken enough of them. Pure.

Each agent decides alone which of its cards are bad. A rule that is wrong, or a driver that reports nonsense, would so
take the whole fleet away. So at most a bound of cards is away for one rule at a time; every further card with that
error is *spared*: it stays allocated and is shown as degraded. The bound is the largest of a share of all cards, a
number of cards, and the cards of the largest node: one broken server is no reason to doubt a rule.

The oldest faults count first, so that a card that is away stays away while others join. The decision rests on the
annotations of the Nodes alone: a new leader decides as the former one did. Lost cards are no matter of the breaker:
agents do not list them, and never give them out.
"""

from collections.abc import Mapping, Sequence

import msgspec

from tessera.api.nodes.card_faults import CardRule, NodeCards
from tessera.controller.base.settings import BreakerLimits


class RuleCount(msgspec.Struct, frozen=True, kw_only=True):
    """Cards with an error of one rule: those that it takes away, and those that are spared."""

    rule: str
    taken: int
    spared: int


class BreakerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Result of :func:`plan_breaker`.

    Attributes:
        bound: the most cards that one rule takes away.
        spared: by node, its faults that take no card away; nodes without one are missing.
        rules: the count of each rule with a fault, by name.
    """

    bound: int
    spared: Mapping[str, frozenset[CardRule]]
    rules: Sequence[RuleCount]


def plan_breaker(nodes: Mapping[str, NodeCards], limits: BreakerLimits) -> BreakerPlan:
    """Decides which faults are spared.

    Args:
        nodes: the cards of each node, as its agent reports them.
        limits: the bound of a rule.
    """
    bound = limits.bound(each.count for each in nodes.values())
    # Of a card that is listed twice, the first time counts.
    by_rule: dict[str, dict[tuple[str, CardRule], int]] = {}
    for name, cards in nodes.items():
        for fault in cards.faults:
            since = by_rule.setdefault(fault.rule, {})
            since[name, fault.key] = min(fault.since, since.get((name, fault.key), fault.since))
    spared: dict[str, set[CardRule]] = {}
    counts = []
    for rule in sorted(by_rule):
        faults = sorted((since, name, key) for (name, key), since in by_rule[rule].items())
        for _, name, key in faults[bound:]:
            spared.setdefault(name, set()).add(key)
        beyond = max(0, len(faults) - bound)
        counts.append(RuleCount(rule=rule, taken=len(faults) - beyond, spared=beyond))
    return BreakerPlan(
        bound=bound, spared={name: frozenset(faults) for name, faults in spared.items()}, rules=tuple(counts)
    )
