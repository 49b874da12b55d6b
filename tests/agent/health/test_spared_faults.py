"""Faults that the breaker spares: shown, not taken away; a lost card is never spared."""

import asyncio

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.health.conftest import Agent, Node, play

from tessera.agent.health.fault import (
    CardProbed,
    CardsListed,
    FaultsSpared,
    HardwareEventReported,
    HealthEvent,
    ProbeResult,
)
from tessera.agent.health.faults import HealthStateMachine
from tessera.agent.health.policy import HealthPolicy
from tessera.agent.inventory.device_state import DeviceScope, Reaction
from tessera.api.nodes.card_faults import CardRule
from tessera.api.nodes.health import CardState
from tessera.nvml.interface import GpuEvent, GpuEventKind, GpuUuid
from tessera.observe.record_player import DECIDERS, replay
from tessera.replay.recorder import Recorders, read_records


def _counted(agent: Agent) -> set[CardRule]:
    """The faults that the Node's annotation shows the breaker."""
    return {fault.key for fault in agent.watch.card_faults() if fault.counts_for_breaker}


async def test_a_spared_card_stays_allocated_and_is_taken_away_when_the_breaker_closes(
    node: Node, agent: Agent
) -> None:
    node.xid(48)
    await asyncio.sleep(0.1)
    assert _counted(agent) == {CardRule(node.one, "XID 48")}
    assert node.one in agent.watch.state_machine.unhealthy_gpus
    node.spared = frozenset({CardRule(node.one, "XID 48")})
    node.xid(63)  # any change has the agent look at its Node
    await asyncio.sleep(2)
    assert node.one not in agent.watch.state_machine.unhealthy_gpus
    found = agent.watch.describe(node.one)
    assert (found.state, "spared by the breaker" in found.next) == (CardState.DEGRADED, True)
    assert {(each.source, each.spared) for each in found.evidence} == {("XID 48", True), ("XID 63", False)}
    assert _counted(agent) == {CardRule(node.one, "XID 48")}
    assert agent.watch.condition().reason == "CardDegraded"
    assert "spared by the breaker" in agent.watch.condition().message
    node.spared = frozenset()
    node.xid(63)
    await asyncio.sleep(2)
    assert agent.watch.describe(node.one).state == CardState.NEEDS_RESET
    assert [reason for reason, _ in node.told] == ["GpuUnhealthy", "GpuDegraded", "GpuUnhealthy"]


def test_a_spared_card_is_not_reset(node: Node) -> None:
    async def story(node: Node, agent: Agent) -> None:
        node.spared = frozenset({CardRule(node.one, "XID 48")})
        node.xid(63)
        await asyncio.sleep(2)
        node.xid(48)
        await asyncio.sleep(200)
        assert agent.was_reset == []

    node.resets = True
    play(node, story)


async def test_a_lost_card_is_never_spared_nor_counted(node: Node, agent: Agent) -> None:
    node.spared = frozenset({CardRule(node.one, "probe"), CardRule(node.one, "XID 79")})
    node.xid(79)
    node.machine.lose(GpuUuid(node.one))
    await asyncio.sleep(2)
    assert node.one in agent.watch.state_machine.unhealthy_gpus
    assert agent.watch.describe(node.one).state == CardState.LOST
    assert _counted(agent) == {CardRule(node.one, "XID 79")}
    assert {(fault.rule, fault.lost) for fault in agent.watch.card_faults()} == {("XID 79", False), ("probe", True)}


CARDS = (GpuUuid("GPU-1"), GpuUuid("GPU-2"))
EVENTS: st.SearchStrategy[HealthEvent] = st.one_of(
    st.builds(
        lambda gpu, xid: HardwareEventReported(GpuEvent(kind=GpuEventKind.XID, gpu=gpu, xid=xid)),
        st.sampled_from(CARDS),
        st.sampled_from([48, 63, 79, 94, 109]),
    ),
    st.builds(CardProbed, gpu=st.sampled_from(CARDS), result=st.sampled_from(ProbeResult)),
    st.builds(
        FaultsSpared,
        st.frozensets(st.builds(CardRule, st.sampled_from(CARDS), st.sampled_from(["XID 48", "XID 79", "probe"]))),
    ),
)


@given(st.lists(EVENTS, max_size=30))
def test_a_lost_card_is_not_given_out_and_a_spared_one_is_unless_another_fault_holds_it(
    events: list[HealthEvent],
) -> None:
    health = HealthStateMachine(HealthPolicy())
    health.handle(CardsListed(frozenset(CARDS)), 0.0)
    for number, event in enumerate(events):
        changes = health.handle(event, float(number))
        for change in changes:
            assert health.health_of(change.scope) == change.after
    for gpu in CARDS:
        faults = [fault for fault in health.faults() if fault.scope.gpu == gpu]
        found = health.health_of(DeviceScope(gpu))
        if any(fault.lost for fault in faults):
            assert found.reaction is Reaction.REBOOT
        elif all(health.spares(fault) or fault.reaction < Reaction.WITHHOLD for fault in faults):
            assert found.healthy
            assert not health.needs_reset(gpu)
        else:
            assert not found.healthy


def test_recorded_spared_faults_lead_to_the_same_decisions_again() -> None:
    health, recorders = HealthStateMachine(HealthPolicy()), Recorders(3)
    recorders.attach("health", health)
    events: list[HealthEvent] = [
        CardsListed(frozenset(CARDS)),
        FaultsSpared(frozenset({CardRule(CARDS[0], "XID 48")})),
        HardwareEventReported(GpuEvent(kind=GpuEventKind.XID, gpu=CARDS[0], xid=48)),
        FaultsSpared(frozenset()),
        HardwareEventReported(GpuEvent(kind=GpuEventKind.XID, gpu=CARDS[1], xid=48)),
    ]
    decisions = [health.handle(event, float(number)) for number, event in enumerate(events)]
    assert any(decisions)
    (record,) = read_records(b"\n".join(msgspec.json.encode(each) for each in recorders.records()))
    assert not [*replay(record, DECIDERS["health"])]
