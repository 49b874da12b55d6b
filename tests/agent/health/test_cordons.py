"""Cards that a person has cordoned: withheld like a fault, and no fault of the hardware."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from tests.agent.health.conftest import Agent, Node, play

from tessera.agent.health.fault import (
    CardProbed,
    CardReset,
    CardsCordoned,
    CardsListed,
    FaultsSpared,
    HardwareEventReported,
    HealthEvent,
    NodeRebooted,
    ProbeResult,
)
from tessera.agent.health.faults import HealthStateMachine
from tessera.agent.health.policy import HealthPolicy, RecoveryAction
from tessera.agent.inventory.device_state import DeviceScope, Reaction
from tessera.api.nodes.card_faults import CardRule
from tessera.api.nodes.health import CardState
from tessera.api.nodes.node_marks import Cordon
from tessera.nvml.interface import GpuEvent, GpuEventKind, GpuUuid


async def test_a_cordoned_card_is_withheld_and_is_no_fault(node: Node, agent: Agent) -> None:
    node.cordoned = (Cordon(node.one, "fan is loud"),)
    agent.changes.notify()
    await asyncio.sleep(0.1)
    assert node.one in agent.watch.state_machine.unhealthy_gpus
    assert node.other not in agent.watch.state_machine.unhealthy_gpus
    found = agent.watch.describe(node.one)
    assert (found.state, [each.source for each in found.evidence]) == (CardState.CORDONED, ["cordon"])
    assert "fan is loud" in found.evidence[0].text
    assert agent.watch.condition()[:2] == ("True", "CardCordoned")
    assert "fan is loud; not allocated until it is uncordoned" in agent.watch.condition().message
    assert [each.counts_for_breaker for each in agent.watch.card_faults()] == [False]
    assert agent.gauge("tessera_gpu_health", gpu=node.one) == 0
    await asyncio.sleep(2000)
    assert node.one in agent.watch.state_machine.unhealthy_gpus
    node.cordoned = ()
    agent.changes.notify()
    await asyncio.sleep(0.1)
    assert node.one not in agent.watch.state_machine.unhealthy_gpus
    assert agent.watch.condition().reason == "CardsHealthy"
    assert [reason for reason, _ in node.told] == ["GpuCordoned", "GpuUncordoned"]


def test_a_cordon_outlives_agent_and_boot_before_the_node_is_seen(node: Node) -> None:
    async def cordon(node: Node, agent: Agent) -> None:
        node.cordoned = (Cordon(node.one, "fan is loud"),)
        agent.changes.notify()
        await asyncio.sleep(0.1)
        node.cordoned, node.boot = None, "boot-2"

    async def blind(node: Node, agent: Agent) -> None:
        await asyncio.sleep(100)
        assert agent.watch.describe(node.one).state == CardState.CORDONED
        node.cordoned = ()
        agent.changes.notify()
        await asyncio.sleep(0.1)
        assert agent.watch.describe(node.one).state == CardState.HEALTHY

    play(node, cordon)
    play(node, blind)


def test_a_cordoned_card_is_not_reset_and_its_own_fault_is_shown(node: Node) -> None:
    async def story(node: Node, agent: Agent) -> None:
        node.cordoned = (Cordon(node.one, "mine"),)
        agent.changes.notify()
        await asyncio.sleep(0.1)
        node.asks_for(RecoveryAction.GPU_RESET)
        await asyncio.sleep(300)
        assert agent.was_reset == []
        found = agent.watch.describe(node.one)
        assert (found.state, [each.source for each in found.evidence]) == (CardState.NEEDS_RESET, ["driver", "cordon"])
        assert agent.watch.condition()[:2] == ("False", "CardUnhealthy")
        node.cordoned = ()
        agent.changes.notify()
        await asyncio.sleep(300)
        assert agent.was_reset == [node.one]

    node.resets = True
    play(node, story)


CARDS = (GpuUuid("GPU-1"), GpuUuid("GPU-2"))
EVENTS: st.SearchStrategy[HealthEvent] = st.one_of(
    st.builds(
        HardwareEventReported,
        st.builds(
            GpuEvent,
            kind=st.just(GpuEventKind.XID),
            gpu=st.sampled_from(CARDS),
            xid=st.sampled_from([48, 63, 79, 94]),
        ),
    ),
    st.builds(
        CardProbed,
        gpu=st.sampled_from(CARDS),
        result=st.sampled_from(ProbeResult),
        recovery=st.sampled_from([None, RecoveryAction.NONE]),
    ),
    st.builds(CardReset, st.sampled_from(CARDS)),
    st.just(NodeRebooted()),
    st.builds(
        FaultsSpared, st.frozensets(st.builds(CardRule, st.sampled_from(CARDS), st.sampled_from(["cordon", "XID 48"])))
    ),
)


@given(st.lists(EVENTS, max_size=30), st.sets(st.sampled_from(CARDS)))
def test_a_cordon_withholds_whatever_happens_and_changes_nothing_else(
    events: list[HealthEvent], cordoned: set[GpuUuid]
) -> None:
    plain, held = HealthStateMachine(HealthPolicy()), HealthStateMachine(HealthPolicy())
    for machine in (plain, held):
        machine.handle(CardsListed(frozenset(CARDS)), 0.0)
    held.handle(CardsCordoned(tuple(Cordon(gpu, "") for gpu in sorted(cordoned))), 0.0)
    for number, event in enumerate(events):
        plain.handle(event, 100.0 * number)
        held.handle(event, 100.0 * number)
    for gpu in CARDS:
        without, found = plain.health_of(DeviceScope(gpu)), held.health_of(DeviceScope(gpu))
        if gpu in cordoned:
            assert found.reaction is max(Reaction.WITHHOLD, without.reaction)
            assert found.by_hand == without.healthy
            assert not held.needs_reset(gpu)
        else:
            assert found == without
    held.handle(CardsCordoned(()), 0.0)
    assert held.faults() == plain.faults()
