"""Health of a fleet from the agents' pages: order, counts, rules, and what is not trusted."""

import msgspec
from tests.observe.conftest import card, lease

from tessera.access.agent_pages import FleetUsage
from tessera.api.nodes.health import CARD_PLACE, CardHealth, CardState, Evidence, Finding, Holder
from tessera.api.nodes.silence import SilentNode
from tessera.api.nodes.usage import CardUsage, NodeUsage
from tessera.limits import CARD_EVIDENCE, CARD_HOLDERS
from tessera.observe.health_rows import RuleState, judge_fleet


def sick(uuid: str, state: str, *evidence: Evidence, index: int = 0) -> CardUsage:
    return msgspec.structs.replace(card(uuid, index), health=CardHealth(state=state, evidence=evidence))


def test_the_worst_cards_come_first_and_all_are_counted() -> None:
    cards = (sick("a", "healthy"), sick("b", "lost"), sick("c", "degraded"))
    health = judge_fleet(
        FleetUsage(nodes=(NodeUsage(node="n1", cards=cards), NodeUsage(node="n0", cards=(sick("d", "lost"),))))
    )
    assert [(row.node, row.uuid, row.allocated) for row in health.cards] == [
        ("n0", "d", False),
        ("n1", "b", False),
        ("n1", "c", True),
        ("n1", "a", True),
    ]
    assert list(health.counts.items()) == [(CardState.LOST, 2), (CardState.DEGRADED, 1), (CardState.HEALTHY, 1)]
    assert not health.complete


def test_the_next_step_names_the_card_so_that_it_can_be_copied() -> None:
    worn = msgspec.structs.replace(
        sick("a", "replace", index=3),
        health=CardHealth(state="replace", next=f"to take it out of service: tessera cordon {CARD_PLACE}"),
    )
    (row,) = judge_fleet(FleetUsage(nodes=(NodeUsage(node="n1", cards=(worn,)),))).cards
    assert row.health.next.endswith("tessera cordon n1/3")


def test_degraded_cards_are_no_reason_to_act_and_a_silent_node_is() -> None:
    page = NodeUsage(node="n", cards=(sick("a", "degraded"),))
    assert judge_fleet(FleetUsage(nodes=(page,))).complete
    assert not judge_fleet(FleetUsage(nodes=(page,)), nodes_known=False).complete
    assert not judge_fleet(FleetUsage(nodes=(page,)), unread="instaslices could not be read").complete
    assert not judge_fleet(FleetUsage(nodes=(page,), failures=(SilentNode(node="m", reason="no answer"),))).complete


def test_a_state_of_a_later_agent_is_unknown_and_lists_are_cut() -> None:
    health = CardHealth(state="molten", evidence=(Evidence(source="x"),) * 100, holders=(Holder(pid=1),) * 100, cut=1)
    page = NodeUsage(node="n", cards=(msgspec.structs.replace(card(), health=health),))
    found = judge_fleet(FleetUsage(nodes=(page,))).cards[0].health
    assert (found.state, len(found.evidence), len(found.holders)) == ("unknown", CARD_EVIDENCE, CARD_HOLDERS)
    assert found.cut == 1 + 200 - CARD_EVIDENCE - CARD_HOLDERS


def test_rules_count_cards_that_are_taken_away_and_cards_that_the_breaker_spares() -> None:
    away, spared = Evidence(source="XID 48", asks="reset"), Evidence(source="XID 48", asks="reset", spared=True)
    shown = Evidence(source="XID 63")
    cards = (sick("a", "needs_reset", away, away), sick("b", "degraded", spared), sick("c", "degraded", shown))
    assert judge_fleet(FleetUsage(nodes=(NodeUsage(node="n", cards=cards),))).rules == [
        RuleState(rule="XID 48", taken=1, spared=1)
    ]


def test_leases_with_findings_are_listed() -> None:
    page = NodeUsage(node="n", leases=(lease("a", findings=(Finding(kind="pcie_bound"),)), lease("b")))
    assert [each.lease.pod for each in judge_fleet(FleetUsage(nodes=(page,))).findings] == ["a"]
