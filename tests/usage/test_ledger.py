"""Counting of GPU-seconds: every history of leases reconciles, nothing is counted twice, gaps are unknown."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.usage.conftest import EPOCH, MODEL, WATTS, AgentNode

from tessera.api.nodes.health import CardHealth, CardState
from tessera.usage.ledger import DAYS_KEPT, HOURS_KEPT, MEMORY, MOST_WATTS, NodeGone, NodeSilent, UsageLedger
from tessera.usage.record import DAY, HOUR, UNKNOWN, LeaseSeconds, UsageRecord, decode_record, encode_record
from tessera.usage.report import CardHours, Grouping, make_report, totals_of_record


def held(record: UsageRecord) -> dict[str, float]:
    """GPU-seconds held, by namespace."""
    found: dict[str, float] = {}
    for period in record.periods:
        for key, amount in period.rows.items():
            found[key.namespace] = found.get(key.namespace, 0.0) + amount.held
    return found


def use(record: UsageRecord) -> LeaseSeconds:
    """All leases."""
    total = LeaseSeconds()
    for period in record.periods:
        for amount in period.rows.values():
            total.add(amount)
    return total


def cards(record: UsageRecord) -> CardHours:
    found = make_report(totals_of_record(record, 0.0), Grouping.MODEL).cards
    assert found is not None
    return found


def by_team(node: AgentNode) -> dict[str, float]:
    """What pods really held, by namespace."""
    found: dict[str, float] = {}
    for pod, seconds in node.true.items():
        found[pod.partition("-")[0]] = found.get(pod.partition("-")[0], 0.0) + seconds
    return found


@pytest.fixture
def node() -> AgentNode:
    """A node of two cards that was read once."""
    made = AgentNode()
    made.sample()
    return made


@pytest.fixture
def ledger(node: AgentNode) -> UsageLedger:
    made = UsageLedger(UsageRecord())
    made.handle(node.read())
    return made


def test_shares_of_a_card_sum_to_one_gpu_hour(node: AgentNode, ledger: UsageLedger) -> None:
    for team in ("red", "blue", "green", "grey"):
        node.hold(f"{team}-1", share=0.25)
    for _ in range(60):
        node.passes(60)
        ledger.handle(node.read())
    assert held(ledger.record) == pytest.approx(dict.fromkeys(("red", "blue", "green", "grey"), 900.0))
    found = cards(ledger.record)
    assert (found.capacity, found.allocated, found.free) == pytest.approx((2.0, 1.0, 1.0))


def test_a_lease_that_lives_between_two_readings_is_counted(node: AgentNode, ledger: UsageLedger) -> None:
    node.passes(5)
    node.hold("red-1")
    node.passes(20)
    node.end("red-1")
    node.passes(10)
    node.hold("blue-1")
    node.passes(25)
    for _ in range(3):
        ledger.handle(node.read())
        node.passes(60)
    assert held(ledger.record) == pytest.approx({"red": 20.0, "blue": 25.0 + 120.0})


def test_the_same_page_read_twice_counts_once(node: AgentNode, ledger: UsageLedger) -> None:
    node.hold("red-1")
    node.passes(60)
    read = node.read()
    ledger.handle(read)
    ledger.handle(read._replace(now=read.now + 60))
    assert held(ledger.record) == {"red": 60.0}


def test_energy_is_that_of_the_pods_parts_and_of_their_metered_time(node: AgentNode, ledger: UsageLedger) -> None:
    node.hold("red-1", share=0.5)
    for _ in range(50):
        node.passes(60)
        ledger.handle(node.read())
    node.end("red-1")
    for _ in range(3):
        node.hold("red-2", card=1)
        node.passes(60)
        node.end("red-2")
        ledger.handle(node.read())
    found = use(ledger.record)
    # The idle power of the half that nobody holds is nobody's.
    assert found.energy == pytest.approx(WATTS * found.metered)
    assert found.metered == pytest.approx(found.held) == 1500 + 180


def test_energy_after_a_restart_of_the_agent_is_not_negative(node: AgentNode, ledger: UsageLedger) -> None:
    node.hold("red-1")
    for _ in range(3):
        node.passes(60)
        ledger.handle(node.read())
        node.restart()
        node.sample()
    found = use(ledger.record)
    assert 0 < found.energy <= WATTS * found.held
    assert found.metered <= found.held


def test_a_node_is_not_believed_beyond_what_a_card_can_draw(node: AgentNode, ledger: UsageLedger) -> None:
    node.hold("red-1")
    node.passes(60)
    read = node.read()
    leases = tuple(msgspec.structs.replace(each, energy=1e12) for each in read.page.leases)
    ledger.handle(read._replace(page=msgspec.structs.replace(read.page, leases=leases)))
    assert use(ledger.record).energy == pytest.approx(MOST_WATTS * 60)


def test_activity_is_what_the_agent_counted(node: AgentNode, ledger: UsageLedger) -> None:
    node.hold("red-1", busy=0.9)
    node.hold("blue-1", card=1, busy=0.0)
    for _ in range(40):
        node.passes(60)
        ledger.handle(node.read())
    found = use(ledger.record)
    assert found.held == pytest.approx(2 * 2400)
    assert found.active == pytest.approx(2400)
    # A card without a process is never used after ten minutes; before that its use is unknown.
    assert (found.idle, found.unknown) == pytest.approx((1810, 590))


def test_a_pause_of_the_controller_is_counted_from_the_agents_memory(node: AgentNode, ledger: UsageLedger) -> None:
    node.hold("red-1")
    node.passes(60)
    ledger.handle(node.read())
    text = encode_record(ledger.record)
    node.passes(120)
    node.end("red-1")
    node.hold("blue-1")
    node.passes(480)
    taken_over = UsageLedger(decode_record(text))
    taken_over.handle(node.read())
    assert held(taken_over.record) == pytest.approx({"red": 180.0, "blue": 480.0})
    assert cards(taken_over.record).unknown == 0


def test_a_longer_pause_is_unknown_and_not_free(node: AgentNode, ledger: UsageLedger) -> None:
    node.hold("red-1")
    node.passes(3 * HOUR)
    ledger.handle(node.read())
    found = cards(ledger.record)
    assert found.capacity == pytest.approx(6.0)
    assert found.unknown == pytest.approx(6.0 - 2 * MEMORY / HOUR)
    assert (found.allocated, found.free) == pytest.approx((MEMORY / HOUR, MEMORY / HOUR))


def test_the_time_before_the_agents_restart_is_unknown(node: AgentNode, ledger: UsageLedger) -> None:
    node.passes(30)
    node.restart()
    node.passes(30)
    ledger.handle(node.read())
    assert cards(ledger.record).unknown * HOUR == pytest.approx(2 * 40)


def test_a_node_that_does_not_answer_is_unknown_once_its_page_can_not_tell_any_more(
    node: AgentNode, ledger: UsageLedger
) -> None:
    ledger.handle(NodeSilent("n1", EPOCH + MEMORY))
    assert ledger.record.periods == []
    ledger.handle(NodeSilent("n1", EPOCH + MEMORY + HOUR))
    assert cards(ledger.record).unknown == pytest.approx(2.0)
    node.passes(MEMORY + HOUR)
    ledger.handle(node.read())
    assert cards(ledger.record).free == pytest.approx(2 * MEMORY / HOUR)


def test_an_agent_whose_samples_stand_still_is_silent(node: AgentNode, ledger: UsageLedger) -> None:
    stale = node.read()
    ledger.handle(stale._replace(now=EPOCH + MEMORY + HOUR))
    assert cards(ledger.record).unknown == pytest.approx(2.0)


def test_a_node_that_is_gone_counts_up_to_its_last_reading(node: AgentNode, ledger: UsageLedger) -> None:
    node.passes(HOUR)
    ledger.handle(NodeGone("n1"))
    ledger.handle(NodeSilent("n1", EPOCH + DAY))
    assert ledger.record.periods == []
    ledger.handle(node.read())
    assert ledger.record.nodes.keys() == {"n1"}


@pytest.mark.parametrize("state", [CardState.LOST, CardState.NEEDS_RESET, CardState.WITHHELD])
def test_a_card_that_is_not_well_is_unavailable_where_no_pod_holds_it(
    node: AgentNode, ledger: UsageLedger, state: CardState
) -> None:
    node.fail(0, CardHealth(state=state))
    node.hold("red-1", card=0, share=0.25)
    node.passes(HOUR)
    ledger.handle(node.read()._replace(now=EPOCH + MEMORY))
    found = cards(ledger.record)
    quarter = MEMORY / HOUR
    assert (found.allocated, found.unavailable, found.free) == pytest.approx((quarter / 4, quarter * 3 / 4, quarter))


def test_free_cards_of_a_cordoned_node_are_unavailable(node: AgentNode, ledger: UsageLedger) -> None:
    node.hold("red-1")
    node.passes(600)
    ledger.handle(node.read(schedulable=False))
    found = cards(ledger.record)
    assert (found.allocated, found.unavailable, found.free) == pytest.approx((1 / 6, 1 / 6, 0))


def test_a_pod_that_the_api_server_does_not_have_is_nobodys(node: AgentNode, ledger: UsageLedger) -> None:
    node.hold("red-1")
    node.passes(60)
    ledger.handle(node.read()._replace(owners={}))
    assert held(ledger.record) == {UNKNOWN: 60.0}


def forge_many(node: AgentNode) -> None:
    for number in range(50):
        node.hold(f"red-{number}", share=1.0)


def test_a_node_is_not_believed_beyond_its_own_cards(node: AgentNode, ledger: UsageLedger) -> None:
    forge_many(node)
    node.passes(60)
    ledger.handle(node.read())
    found = cards(ledger.record)
    assert 0 <= found.allocated * HOUR <= 60 + 1e-6
    assert found.free >= -1e-9


def test_hours_become_days_and_days_go_after_a_month(node: AgentNode, ledger: UsageLedger) -> None:
    node.hold("red-1")
    for _ in range(40 * 24 * 6):
        node.passes(600, step=600)
        ledger.handle(node.read())
    periods = ledger.record.periods
    assert {each.seconds for each in periods} == {HOUR, DAY}
    hours = [each for each in periods if each.seconds == HOUR]
    assert HOURS_KEPT / HOUR <= len(hours) <= HOURS_KEPT / HOUR + 1
    now = EPOCH + node.now
    assert periods[0].end > now - DAYS_KEPT
    days = [each for each in periods if each.seconds == DAY]
    assert len(days) > 25
    # The last day is not over: its other hours still stand apart.
    assert all(sum(row.held for row in each.rows.values()) == pytest.approx(DAY) for each in days[:-1])
    # The oldest days are dropped whole; everything else is there.
    found = cards(ledger.record)
    assert found.capacity == pytest.approx(2 * (now - periods[0].start) / HOUR)
    assert found.allocated == pytest.approx(found.capacity / 2)


Step = tuple[str, int, float]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("hold"), st.integers(0, 7), st.sampled_from([0.125, 0.25, 0.5])),
        st.tuples(st.just("end"), st.integers(0, 7), st.just(0.0)),
        st.tuples(st.sampled_from(["pass", "read", "read", "read"]), st.just(0), st.floats(1, 700)),
        st.tuples(st.sampled_from(["take over", "restart", "cordon", "silent"]), st.just(0), st.floats(1, 5000)),
    ),
    max_size=40,
)


def play(steps: Sequence[Step]) -> tuple[AgentNode, UsageLedger]:
    """Plays a history on a node of two cards, and reads it at the end."""
    node, schedulable = AgentNode(), True
    node.sample()
    ledger = UsageLedger(UsageRecord())
    ledger.handle(node.read())
    for what, number, value in steps:
        match what:
            case "hold":
                used = sum(part.share for part in node.held.values() if part.card == number % 2)
                if used + value <= 1:
                    node.hold(f"team{number % 3}-{number}-{node.now}", card=number % 2, share=value, busy=value - 0.25)
            case "end" if node.held:
                node.end(sorted(node.held)[number % len(node.held)])
            case "pass":
                node.passes(value)
            case "read":
                node.passes(min(value, 60.0))
                ledger.handle(node.read(schedulable=schedulable))
            case "take over":
                ledger = UsageLedger(decode_record(encode_record(ledger.record)))
            case "restart":
                node.restart()
                node.passes(value)
            case "cordon":
                schedulable = not schedulable
            case "silent":
                node.passes(value)
                ledger.handle(NodeSilent("n1", EPOCH + node.now))
    node.passes(60)
    ledger.handle(node.read(schedulable=schedulable))
    return node, ledger


@given(STEPS)
def test_every_history_of_leases_reconciles(steps: Sequence[Step]) -> None:
    """Allocated, free, unavailable and unknown are the capacity; no part is negative, no pod has more than it held."""
    node, ledger = play(steps)
    found = cards(ledger.record)
    assert found.capacity == pytest.approx(2 * node.now / HOUR, abs=1e-4)
    parts = (found.allocated, found.free, found.unavailable, found.unknown)
    assert sum(parts) == pytest.approx(found.capacity)
    assert all(part >= -1e-4 for part in parts)
    true = by_team(node)
    assert all(seconds <= true.get(team, 0.0) + 0.1 for team, seconds in held(ledger.record).items())
    total = use(ledger.record)
    assert total.active + total.idle <= total.held + 0.1


@example([("pass", 0, 1.0), ("hold", 0, 0.125), ("end", 0, 0.0)])
@given(STEPS)
def test_without_a_pause_every_second_of_every_lease_is_counted(steps: Sequence[Step]) -> None:
    node, ledger = play([step for step in steps if step[0] in {"hold", "end", "pass", "read", "take over", "cordon"}])
    missing = cards(ledger.record).unknown
    if missing == 0:
        seen, true = held(ledger.record), by_team(node)
        teams = seen | true  # a lease that ends as it begins leaves a row of 0
        assert {each: seen.get(each, 0.0) for each in teams} == pytest.approx(
            {each: true.get(each, 0.0) for each in teams}, abs=0.1
        )


def test_a_hundred_takeovers_lose_and_repeat_nothing(node: AgentNode, ledger: UsageLedger) -> None:
    node.hold("red-1")
    for number in range(100):
        node.passes(37)
        if number % 3:
            ledger.handle(node.read())
        ledger = UsageLedger(decode_record(encode_record(ledger.record)))
    ledger.handle(node.read())
    assert held(ledger.record) == pytest.approx({"red": 3700.0}, abs=0.5)
    assert msgspec.json.decode(encode_record(ledger.record))["nodes"]["n1"][2] == {MODEL: 2}
