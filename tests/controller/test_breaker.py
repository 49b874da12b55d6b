"""The breaker's decision: whatever faults there are, no rule takes more cards than its bound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.nodes.card_faults import CardFault, CardRule, NodeCards
from tessera.controller.base import BreakerLimits
from tessera.controller.fault_breaker import RuleCount, plan_breaker

RULES = ("XID 48", "XID 79", "driver", "probe")


def fleet(*counts: int, sick: int = 0, rule: str = "XID 48") -> dict[str, NodeCards]:
    """Nodes with these numbers of cards; the first ``sick`` cards have a fault, one each second."""
    nodes, number = {}, 0
    for at, count in enumerate(counts):
        faults = []
        for card in range(count):
            if number < sick:
                faults.append(CardFault(f"GPU-{at}-{card}", rule, number))
            number += 1
        nodes[f"n{at}"] = NodeCards(count, tuple(faults))
    return nodes


@pytest.mark.parametrize(
    ("counts", "limits", "bound"),
    [
        ([], BreakerLimits(), 3),
        ([1, 1, 1, 1], BreakerLimits(), 3),
        ([8, 8], BreakerLimits(), 8),  # one broken server never opens it
        ([8] * 100, BreakerLimits(), 80),
        ([8] * 100, BreakerLimits(share=1.0), 800),
        ([1] * 10, BreakerLimits(share=0.0, cards=0), 1),
    ],
)
def test_the_bound(counts: list[int], limits: BreakerLimits, bound: int) -> None:
    assert limits.bound(counts) == bound


def test_one_broken_server_is_taken_away_whole() -> None:
    plan = plan_breaker(fleet(8, 8, sick=8), BreakerLimits())
    assert plan.spared == {}
    assert plan.rules == (RuleCount(rule="XID 48", taken=8, spared=0),)


def test_cards_beyond_the_bound_are_spared_the_oldest_faults_first() -> None:
    plan = plan_breaker(fleet(1, 1, 1, 1, 1, sick=5), BreakerLimits())
    assert plan.spared == {
        "n3": frozenset({CardRule("GPU-3-0", "XID 48")}),
        "n4": frozenset({CardRule("GPU-4-0", "XID 48")}),
    }
    assert plan.rules == (RuleCount(rule="XID 48", taken=3, spared=2),)


def test_a_card_that_a_node_lists_twice_counts_once() -> None:
    twice = NodeCards(1, (CardFault("GPU-1", "XID 48", 9), CardFault("GPU-1", "XID 48", 3)))
    assert plan_breaker({"n": twice}, BreakerLimits(share=0, cards=1)).spared == {}


FAULTS = st.builds(
    CardFault,
    gpu=st.integers(0, 5).map(lambda number: f"GPU-{number}"),
    rule=st.sampled_from(RULES),
    since=st.integers(0, 20),
)
NODES = st.dictionaries(
    st.sampled_from([f"n{number}" for number in range(12)]),
    st.builds(NodeCards, st.integers(0, 6), st.lists(FAULTS, max_size=10).map(tuple)),
)
LIMITS = st.builds(BreakerLimits, share=st.floats(0, 1), cards=st.integers(0, 5))


@given(NODES, LIMITS)
def test_no_rule_takes_more_cards_than_the_bound(nodes: dict[str, NodeCards], limits: BreakerLimits) -> None:
    plan = plan_breaker(nodes, limits)
    for rule in RULES:
        listed = {(name, fault.key) for name, cards in nodes.items() for fault in cards.faults if fault.rule == rule}
        spared = {(name, key) for name, keys in plan.spared.items() for key in keys if key.rule == rule}
        assert spared <= listed
        assert len(listed - spared) == min(len(listed), plan.bound)


@given(NODES, LIMITS, st.lists(st.tuples(st.sampled_from([f"n{n}" for n in range(12)]), FAULTS), max_size=12))
def test_a_card_that_is_away_stays_away_while_later_faults_join(
    nodes: dict[str, NodeCards], limits: BreakerLimits, later: list[tuple[str, CardFault]]
) -> None:
    known = {(name, fault.key) for name, cards in nodes.items() for fault in cards.faults}
    joined = dict(nodes)
    for name, fault in later:
        if name in joined and (name, fault.key) not in known:
            new = CardFault(fault.gpu, fault.rule, fault.since + 100)
            joined[name] = NodeCards(joined[name].count, (*joined[name].faults, new))
    before, after = plan_breaker(nodes, limits), plan_breaker(joined, limits)
    for name, key in known:
        if key not in before.spared.get(name, frozenset()):
            assert key not in after.spared.get(name, frozenset())


@given(NODES, LIMITS)
def test_the_decision_does_not_depend_on_the_order_of_nodes(nodes: dict[str, NodeCards], limits: BreakerLimits) -> None:
    turned = {name: NodeCards(cards.count, cards.faults[::-1]) for name, cards in reversed(list(nodes.items()))}
    assert plan_breaker(nodes, limits) == plan_breaker(turned, limits)
