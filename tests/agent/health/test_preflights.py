"""A card that was repaired is tested before it is allocated again, whoever is killed meanwhile."""

import asyncio
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tests.agent.health.conftest import Agent, Node, play

from tessera.agent.health.fault import (
    PREFLIGHT,
    CardProbed,
    CardReset,
    CardsListed,
    HardwareEventReported,
    HealthEvent,
    NodeRebooted,
    PreflightEnded,
    ProbeResult,
)
from tessera.agent.health.faults import HealthStateMachine
from tessera.agent.health.policy import HealthPolicy, RecoveryAction
from tessera.agent.inventory.device_state import DeviceScope
from tessera.api.nodes.health import CardState
from tessera.api.nodes.repairs import PreflightMode, Repairs
from tessera.nvml.errors import GpuLost
from tessera.nvml.interface import GpuEvent, GpuEventKind, GpuUuid

#: Repaired cards are tested, or new ones too.
REPAIRED, ALL = Repairs(preflight=PreflightMode.REPAIRS), Repairs(preflight=PreflightMode.ALL)


async def repair(node: Node) -> None:
    """The card asks for a reset and gets it; its probes are clean then."""
    node.xid(48)
    node.asks_for(RecoveryAction.GPU_RESET)
    await asyncio.sleep(25)
    node.asks_for(RecoveryAction.NONE)


def test_a_card_that_was_reset_is_tested_and_then_allocated(node: Node) -> None:
    node.resets, node.repairs = True, REPAIRED
    node.machine.slow("compute", 100)

    async def story(node: Node, agent: Agent) -> None:
        await repair(node)
        await asyncio.sleep(60)
        found = agent.watch.describe(node.one)
        assert agent.was_reset == [node.one]
        assert (found.state, [each.source for each in found.evidence]) == (CardState.WITHHELD, [PREFLIGHT])
        assert "passes its preflight" in found.next
        assert node.one in agent.watch.state_machine.unhealthy_gpus
        await asyncio.sleep(150)
        assert agent.watch.describe(node.one).state == CardState.HEALTHY
        assert [reason for reason, _ in node.told][-2:] == ["GpuPreflightPassed", "GpuRecovered"]

    play(node, story)


def test_an_agent_that_is_killed_before_or_in_the_test_tests_again(node: Node) -> None:
    node.resets, node.repairs = True, REPAIRED
    node.machine.slow("compute", 100)

    async def killed(node: Node, agent: Agent) -> None:
        await repair(node)
        await asyncio.sleep(60)
        assert agent.watch.describe(node.one).evidence[0].source == PREFLIGHT

    async def blind(node: Node, agent: Agent) -> None:
        assert node.one in agent.watch.state_machine.unhealthy_gpus
        await asyncio.sleep(20)

    async def last(node: Node, agent: Agent) -> None:
        assert node.one in agent.watch.state_machine.unhealthy_gpus
        await asyncio.sleep(150)
        assert node.one not in agent.watch.state_machine.unhealthy_gpus

    play(node, killed)
    play(node, blind)
    node.boot = "boot-2"
    play(node, last)


def test_a_card_that_fails_its_test_stays_away_and_is_tested_again(node: Node) -> None:
    node.resets, node.repairs = True, REPAIRED

    async def story(node: Node, agent: Agent) -> None:
        node.machine.fail("compute", GpuLost, times=2)
        await repair(node)
        await asyncio.sleep(200)
        found = agent.watch.describe(node.one)
        assert "its test failed" in found.evidence[0].text
        assert node.one in agent.watch.state_machine.unhealthy_gpus
        await asyncio.sleep(2000)
        assert node.one not in agent.watch.state_machine.unhealthy_gpus
        assert [reason for reason, _ in node.told].count("GpuPreflightFailed") == 2

    play(node, story)


def test_a_card_that_somebody_holds_is_not_tested(node: Node) -> None:
    node.resets, node.repairs = True, REPAIRED

    async def story(node: Node, agent: Agent) -> None:
        await repair(node)
        node.held.add(node.one)
        await asyncio.sleep(600)
        assert node.one in agent.watch.state_machine.unhealthy_gpus
        node.held.clear()
        await asyncio.sleep(60)
        assert node.one not in agent.watch.state_machine.unhealthy_gpus

    play(node, story)


def test_without_the_option_clean_probes_are_enough_also_for_a_card_that_waits(node: Node) -> None:
    node.resets, node.repairs = True, REPAIRED

    async def waiting(node: Node, agent: Agent) -> None:
        await repair(node)
        node.held.add(node.one)
        await asyncio.sleep(100)
        assert node.one in agent.watch.state_machine.unhealthy_gpus

    async def off(node: Node, agent: Agent) -> None:
        assert node.one not in agent.watch.state_machine.unhealthy_gpus

    play(node, waiting)
    node.repairs = Repairs()
    play(node, off)


CARD = GpuUuid("GPU-1")
EVENTS: st.SearchStrategy[HealthEvent] = st.one_of(
    st.sampled_from([48, 79, 94]).map(
        lambda xid: HardwareEventReported(GpuEvent(kind=GpuEventKind.XID, gpu=CARD, xid=xid))
    ),
    st.builds(
        CardProbed,
        gpu=st.just(CARD),
        result=st.sampled_from(ProbeResult),
        recovery=st.sampled_from([None, RecoveryAction.NONE, RecoveryAction.GPU_RESET]),
    ),
    st.just(CardReset(CARD)),
    st.just(NodeRebooted()),
    st.builds(PreflightEnded, st.just(CARD), st.integers(0, 3000).map(float), st.sampled_from(["", "too slow"])),
)


def test_settings_that_cannot_be_read_are_those_of_before_also_over_restarts(node: Node) -> None:
    node.resets, node.repairs = True, REPAIRED
    node.held = {node.one}

    async def waiting(node: Node, agent: Agent) -> None:
        node.held = set()
        await repair(node)
        node.held = {node.one}
        await asyncio.sleep(100)
        assert agent.watch.describe(node.one).evidence[0].source == PREFLIGHT

    async def unreadable(node: Node, agent: Agent) -> None:
        await asyncio.sleep(100)
        assert agent.watch.describe(node.one).evidence[0].source == PREFLIGHT
        node.held = set()
        await asyncio.sleep(100)
        assert node.one not in agent.watch.state_machine.unhealthy_gpus

    play(node, waiting)
    node.repairs = None
    play(node, unreadable)


@given(st.lists(EVENTS, max_size=40), st.integers(0, 40))
def test_no_repaired_card_is_allocated_before_a_test_that_began_after_the_repair(
    events: list[HealthEvent], restart: int
) -> None:
    health = HealthStateMachine(HealthPolicy(), repairs=REPAIRED)
    health.handle(CardsListed(frozenset({CARD}), {}), 0.0)
    repaired: float | None = None
    for number, event in enumerate(events):
        now = 100.0 * number
        if number == restart:  # the next process has what the file has
            health = HealthStateMachine(HealthPolicy(), faults=health.faults(), past=health.past, repairs=REPAIRED)
            health.handle(CardsListed(frozenset({CARD}), {}), now)
        before = {fault.source: fault for fault in health.faults()}
        passes = isinstance(event, PreflightEnded) and not event.text and event.since == repaired
        health.handle(event, now)
        after = {fault.source for fault in health.faults()}
        fallen = [fault for fault in before.values() if fault.source in {"XID 48", "XID 79", "probe", "driver"}]
        mended = [fault for fault in fallen if fault.source not in after and fault.reaction >= 3]
        if mended:
            repaired = now
        elif passes:
            repaired = None
        if repaired is not None:
            assert not health.health_of(DeviceScope(CARD)).healthy
            assert PREFLIGHT in after


def test_a_new_card_is_tested_and_its_numbers_are_kept(node: Node) -> None:
    node.repairs = ALL
    node.machine.slow("compute", 100)

    async def first(node: Node, agent: Agent) -> None:
        await asyncio.sleep(20)
        for uuid in (node.one, node.other):
            found = agent.watch.describe(uuid)
            assert (found.state, [each.source for each in found.evidence]) == (CardState.WITHHELD, [PREFLIGHT])
            assert found.evidence[0].text == "new on this node, and not tested yet"
        await asyncio.sleep(400)
        assert {agent.watch.describe(uuid).state for uuid in (node.one, node.other)} == {CardState.HEALTHY}
        assert [(each.index, each.tool, each.finding) for each in agent.watch.card_tests()] == [
            (0, "simulated", ""),
            (1, "simulated", ""),
        ]
        assert "passed (simulated: nothing was computed)" in agent.watch.describe(node.one).test
        reasons = [reason for reason, _ in node.told]
        assert reasons == 2 * ["GpuAwaitsPreflight"] + 2 * ["GpuPreflightPassed", "GpuRecovered"]

    async def again(node: Node, agent: Agent) -> None:
        assert node.one not in agent.watch.state_machine.unhealthy_gpus
        assert len(agent.watch.card_tests()) == 2

    play(node, first)
    play(node, again)
    node.boot = "boot-2"
    play(node, again)


def test_a_card_that_was_there_before_the_option_is_not_new(node: Node) -> None:
    async def before(node: Node, agent: Agent) -> None:
        await asyncio.sleep(1)

    async def after(node: Node, agent: Agent) -> None:
        assert node.one not in agent.watch.state_machine.unhealthy_gpus

    play(node, before)
    node.repairs = ALL
    play(node, after)


def test_a_file_of_an_earlier_version_makes_no_card_new(node: Node) -> None:
    node.file.parent.mkdir(parents=True)
    node.file.write_text('{"boot": "boot-1", "marks": []}')
    node.repairs = ALL

    async def after(node: Node, agent: Agent) -> None:
        assert node.one not in agent.watch.state_machine.unhealthy_gpus

    play(node, after)


def test_a_new_card_that_fails_its_test_stays_away_over_restarts(node: Node) -> None:
    node.repairs = ALL
    node.machine.fail("compute", GpuLost, times=1000)

    async def fails(node: Node, agent: Agent) -> None:
        await asyncio.sleep(30)
        assert node.one in agent.watch.state_machine.unhealthy_gpus
        assert "failed: compute on GPU-" in agent.watch.describe(node.one).test

    async def still(node: Node, agent: Agent) -> None:
        assert node.one in agent.watch.state_machine.unhealthy_gpus

    play(node, fails)
    play(node, still)
    assert any(reason == "GpuPreflightFailed" and "failed" in text for reason, text in node.told)


def test_a_card_in_mig_mode_is_allocated_and_nobody_says_that_it_passed(tmp_path: Path) -> None:
    node = Node(tmp_path, mig=True)
    node.repairs = ALL

    async def story(node: Node, agent: Agent) -> None:
        await asyncio.sleep(60)
        assert node.one not in agent.watch.state_machine.unhealthy_gpus
        assert "tested nothing: the card is in MIG mode" in agent.watch.describe(node.one).test
        assert "GpuPreflightPassed" not in {reason for reason, _ in node.told}

    play(node, story)
