"""The health of a card as the page /usage shows it: state, evidence, next step."""

import asyncio
from pathlib import Path

import pytest
from tests.agent.health.conftest import EPOCH, Agent, Node, play

from tessera.agent.health.card_health import describe_card
from tessera.agent.health.fault import Fault
from tessera.agent.inventory.device_state import DeviceScope, Reaction
from tessera.api.nodes.health import ROW_REMAPPING, CardState
from tessera.limits import CARD_EVIDENCE


def fault(source: str, reaction: Reaction, *, since: float = 0.0, gi: int = -1, reset: bool = False) -> Fault:
    scope = DeviceScope("GPU-1", gi)
    return Fault(scope=scope, source=source, reaction=reaction, text=source, since=since, last=since, reset=reset)


@pytest.mark.parametrize(
    ("faults", "state", "since", "next_step"),
    [
        ([], CardState.HEALTHY, 0.0, ""),
        ([fault("XID 63", Reaction.DEGRADE, since=5)], CardState.DEGRADED, 5.0, "ends after 3 clean probes"),
        ([fault("XID 94", Reaction.WITHHOLD, since=7, gi=3)], CardState.WITHHELD, 7.0, "not before 00:00:37 UTC"),
        ([fault("XID 48", Reaction.RESET)], CardState.NEEDS_RESET, 0.0, "Tessera resets it once no pod holds"),
        ([fault("XID 48", Reaction.RESET, reset=True)], CardState.NEEDS_RESET, 0.0, "it was reset; ends after"),
        ([fault("XID 79", Reaction.REBOOT)], CardState.NEEDS_REBOOT, 0.0, "reboot the node"),
        (
            [fault("XID 79", Reaction.REBOOT, since=1), fault("probe", Reaction.REBOOT, since=2)],
            CardState.LOST,
            1.0,
            "reboot the node",
        ),
    ],
)
def test_the_worst_fault_decides_state_and_next_step(
    faults: list[Fault], state: CardState, since: float, next_step: str
) -> None:
    found = describe_card(faults)
    assert (found.state, found.since) == (state, since)
    assert next_step in found.next


def test_evidence_is_worst_first_and_bounded() -> None:
    faults = [fault(f"XID {number}", Reaction.DEGRADE, gi=number) for number in range(CARD_EVIDENCE + 4)]
    found = describe_card([*faults, fault("XID 48", Reaction.RESET, since=9)])
    assert [(each.source, each.asks, each.part) for each in found.evidence[:2]] == [
        ("XID 48", "reset", ""),
        ("XID 0", "attention", "GPU instance 0"),
    ]
    assert (len(found.evidence), found.cut) == (CARD_EVIDENCE, 5)


async def test_the_monitor_describes_its_cards(node: Node, agent: Agent) -> None:
    node.xid(48)
    node.xid(48)
    await asyncio.sleep(0.1)
    found = agent.watch.describe(node.one)
    assert (found.state, found.evidence[0].count, found.since >= EPOCH) == (CardState.NEEDS_RESET, 2, True)
    assert agent.watch.gpus_to_empty() == {node.one}
    assert agent.watch.describe(node.other).state == CardState.HEALTHY
    assert agent.watch.describe("GPU-of-another-node").state == CardState.UNKNOWN


async def test_a_card_that_cannot_be_measured_is_probed_at_once(node: Node, agent: Agent) -> None:
    await asyncio.sleep(5)
    probes = len(agent.hardware.probes)
    agent.watch.note_unmeasured(node.one)
    await asyncio.sleep(1)
    assert len(agent.hardware.probes) == probes + 1
    agent.watch.note_unmeasured("GPU-of-another-node")


async def test_a_row_remapper_without_spare_rows_degrades_its_card_until_it_no_longer_reports_that(
    node: Node, agent: Agent
) -> None:
    agent.watch.note_measured(node.one, {ROW_REMAPPING: ""})
    assert agent.watch.condition().reason == "CardsHealthy"
    agent.watch.note_measured(node.one, {ROW_REMAPPING: "no spare row"})
    agent.watch.note_measured(node.one, {ROW_REMAPPING: "no spare row"})
    probes = len(agent.hardware.probes)
    await asyncio.sleep(3600)
    assert len(agent.hardware.probes) - probes <= 122, "the card is probed no more often than a healthy one"
    found = agent.watch.describe(node.one)
    assert (found.state, found.evidence[0].count) == (CardState.DEGRADED, 1)
    assert found.next.startswith("still allocated")
    assert "no spare row" in agent.watch.condition().message
    for seconds in (0, 31):
        assert agent.watch.condition().reason == "CardDegraded"
        await asyncio.sleep(seconds)
        agent.watch.note_measured(node.one, {ROW_REMAPPING: ""})
    assert agent.watch.condition().reason == "CardsHealthy"
    assert [reason for reason, _ in node.told] == ["GpuDegraded", "GpuRecovered"]


def test_a_stored_state_of_rows_ends_if_the_card_was_replaced_meanwhile(tmp_path: Path) -> None:
    node = Node(tmp_path)

    async def before(node: Node, agent: Agent) -> None:
        agent.watch.note_measured(node.one, {ROW_REMAPPING: "no spare row"})

    async def after(node: Node, agent: Agent) -> None:
        assert agent.watch.describe(node.one).state == CardState.DEGRADED
        agent.watch.note_measured(node.one, {ROW_REMAPPING: ""})
        await asyncio.sleep(31)
        agent.watch.note_measured(node.one, {ROW_REMAPPING: ""})
        assert agent.watch.describe(node.one).state == CardState.HEALTHY

    play(node, before)
    play(node, after)
