"""Faults that come back over days: remembered over restarts and boots, counted as falls, and bounded."""

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.health.conftest import Agent, Node, play

from tessera.agent.health.history import (
    CARD_PAST_FAULTS,
    FALLS,
    ONE_FALL,
    WINDOW,
    Fall,
    FaultHistory,
    PastFault,
    StoredFaults,
    describe_falls,
)
from tessera.agent.health.policy import RecoveryAction
from tessera.agent.inventory.device_state import DeviceScope
from tessera.api.nodes.card_faults import CardRule
from tessera.api.nodes.health import CardState
from tessera.limits import NODE_CARDS

DAY = 86_400.0
#: Seconds between two faults that are two falls.
PAUSE = 2 * ONE_FALL


def past(since: float, ended: float, source: str = "XID 48", gpu: str = "GPU-1", *, falls: bool = True) -> PastFault:
    return PastFault(scope=DeviceScope(gpu), source=source, falls=falls, since=since, ended=ended)


@pytest.mark.parametrize(
    ("faults", "present", "falls"),
    [
        ([], [], ()),
        ([past(0, 60)], [], (Fall(0, ("XID 48",)),)),
        ([past(0, 60), past(DAY, DAY + 60)], [], (Fall(0, ("XID 48",)), Fall(DAY, ("XID 48",)))),
        ([past(0, 60), past(60 + ONE_FALL, DAY)], [], (Fall(0, ("XID 48",)),)),
        ([past(0, 60), past(5, 90, "driver")], [], (Fall(0, ("XID 48", "driver")),)),
        ([past(0, 60), past(DAY, DAY + 60, falls=False)], [], (Fall(0, ("XID 48",)),)),
        ([past(0, 60, gpu="GPU-2")], [], ()),
        ([past(0, 60)], [("probe", 2 * DAY)], (Fall(0, ("XID 48",)), Fall(2 * DAY, ("probe",)))),
    ],
    ids=["none", "one", "two days", "one hour", "one cause", "no fall", "another card", "and now"],
)
def test_faults_close_together_are_one_fall(
    faults: list[PastFault], present: list[tuple[str, float]], falls: tuple[Fall, ...]
) -> None:
    assert FaultHistory(faults).falls("GPU-1", present, 2 * DAY) == falls


def test_a_fall_is_counted_for_a_week() -> None:
    history = FaultHistory([past(0, 60)])
    assert len(history.falls("GPU-1", [], 60 + WINDOW)) == 1
    assert history.falls("GPU-1", [], 61 + WINDOW) == ()


PAST = st.builds(
    past,
    since=st.floats(0, 20 * DAY),
    ended=st.floats(0, 20 * DAY),
    source=st.sampled_from(["XID 48", "XID 79", "probe"]),
    gpu=st.integers(0, NODE_CARDS + 9).map(lambda number: f"GPU-{number}"),
)


@given(st.lists(PAST, max_size=300))
def test_the_history_is_bounded_and_keeps_the_last_end_of_the_card_that_fell_last(faults: list[PastFault]) -> None:
    history = FaultHistory()
    for fault in sorted(faults, key=lambda each: each.ended):
        history.note_end(fault)
        assert history.past[-1].ended == fault.ended
        assert history.ends(fault.scope, fault.source, fault.ended, 0) == 1
    cards = [one.scope.gpu for one in history.past]
    assert len(set(cards)) <= NODE_CARDS
    assert all(cards.count(gpu) <= CARD_PAST_FAULTS for gpu in cards)


def test_falls_are_told_with_times_and_errors() -> None:
    falls = [Fall(1_700_000_000 + day * DAY, ("XID 79", "probe")) for day in range(FALLS)]
    assert describe_falls(falls) == (
        "fell 3 times in 7 days: 2023-11-14 22:13 UTC (XID 79 and probe), 2023-11-15 22:13 UTC (XID 79 and probe),"
        " 2023-11-16 22:13 UTC (XID 79 and probe)"
    )


async def fall(node: Node, agent: Agent) -> None:
    """The card asks for a reset, gets it, and is well again; then two hours pass."""
    node.asks_for(RecoveryAction.GPU_RESET)
    await asyncio.sleep(100)
    node.asks_for(RecoveryAction.NONE)
    await asyncio.sleep(PAUSE)
    node.clock.ahead += PAUSE + 100  # the next process begins with a monotonic clock of its own


def test_a_card_that_falls_three_times_in_a_week_is_to_be_replaced_over_restarts_and_boots(node: Node) -> None:
    play(node, fall)
    node.boot = "boot-2"
    play(node, fall)
    node.boot = "boot-3"

    async def third(node: Node, agent: Agent) -> None:
        assert agent.watch.describe(node.one).state == CardState.HEALTHY
        await fall(node, agent)
        found = agent.watch.describe(node.one)
        assert (found.state, [each.source for each in found.evidence]) == (CardState.REPLACE, ["replace"])
        assert found.evidence[0].text.startswith("fell 3 times in 7 days: 2023-11-14 ")
        assert found.evidence[0].text.count("(driver)") == FALLS
        assert "replace the card" in found.next
        assert node.one not in agent.watch.state_machine.unhealthy_gpus
        assert agent.watch.condition()[:2] == ("True", "CardDegraded")
        assert "fell 3 times" in agent.watch.condition().message
        assert agent.watch.describe(node.other).state == CardState.HEALTHY

    async def still(node: Node, agent: Agent) -> None:
        assert agent.watch.describe(node.one).state == CardState.REPLACE

    async def a_week_later(node: Node, agent: Agent) -> None:
        assert agent.watch.describe(node.one).state == CardState.HEALTHY

    play(node, third)
    play(node, still)
    node.clock.ahead += WINDOW
    play(node, a_week_later)


def test_times_in_which_the_breaker_spared_the_card_are_no_falls(node: Node) -> None:
    node.spared = frozenset({CardRule(node.one, "driver")})

    async def week(node: Node, agent: Agent) -> None:
        for _ in range(FALLS + 1):
            await fall(node, agent)
        assert agent.watch.describe(node.one).state == CardState.HEALTHY

    play(node, week)


def test_a_history_of_the_future_and_one_of_a_former_version_are_read(node: Node) -> None:
    later = past(9e9, 9e9, gpu=node.one)
    node.file.parent.mkdir()
    node.file.write_bytes(msgspec.json.encode(StoredFaults("boot-1", (), (later,) * 3)))

    async def story(node: Node, agent: Agent) -> None:
        assert all(each.ended <= node.clock.now() for each in agent.watch.state_machine.past)

    play(node, story)
    node.file.write_bytes(b'{"boot": "boot-1", "marks": []}')
    play(node, story)
