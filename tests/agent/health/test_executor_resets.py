"""A card that needs a reset gets it once no pod uses it, and must then pass its probes."""

import asyncio

import pytest
from tests.agent.health.conftest import Agent, Node, play

from tessera.nvml.errors import NotSupported
from tessera.nvml.interface import CardAttributes


@pytest.fixture
def resetting(node: Node) -> Node:
    """A node whose agent resets cards; the driver's verdict is not told, as by older ones."""
    node.resets = True
    for gpu in (node.one, node.other):
        node.machine.set_attributes(gpu, CardAttributes(recovery_action=None))
    return node


def told(node: Node) -> list[str]:
    return [reason for reason, _ in node.told]


def test_a_free_card_is_reset_and_fit_again_soon(resetting: Node) -> None:
    async def story(node: Node, agent: Agent) -> None:
        node.xid(48)
        await asyncio.sleep(2)
        assert told(node) == ["GpuUnhealthy", "GpuReset"]
        assert node.one in agent.watch.state_machine.unhealthy_gpus
        await asyncio.sleep(40)
        assert node.one not in agent.watch.state_machine.unhealthy_gpus
        assert told(node)[2:] == ["GpuRecovered"]

    play(resetting, story)


def test_without_a_resetter_the_card_stays_withheld_until_another_program_resets_it(resetting: Node) -> None:
    resetting.resets = False

    async def story(node: Node, agent: Agent) -> None:
        node.xid(48)
        await asyncio.sleep(1000)
        assert node.one in agent.watch.state_machine.unhealthy_gpus
        agent.watch.note_card_reset(node.one)
        await asyncio.sleep(41)
        assert node.one not in agent.watch.state_machine.unhealthy_gpus

    play(resetting, story)


def test_a_card_in_use_is_not_reset_before_it_is_unused(resetting: Node) -> None:
    async def story(node: Node, agent: Agent) -> None:
        node.held.add(node.one)
        node.xid(48)
        await asyncio.sleep(300)
        assert told(node) == ["GpuUnhealthy"]
        node.held.clear()
        await asyncio.sleep(11)
        assert told(node)[-1] == "GpuReset"

    play(resetting, story)


def test_a_card_with_unknown_users_is_not_reset(resetting: Node) -> None:
    async def story(node: Node, agent: Agent) -> None:
        node.kubelet_is_away = True
        node.xid(48)
        await asyncio.sleep(300)
        assert told(node) == ["GpuUnhealthy"]

    play(resetting, story)


def test_a_reset_that_the_driver_refuses_is_tried_again_less_and_less_often(resetting: Node) -> None:
    async def story(node: Node, agent: Agent) -> None:
        node.machine.fail("reset", NotSupported, times=None)
        node.xid(48)
        await asyncio.sleep(400)
        assert told(node) == ["GpuUnhealthy", *["GpuResetFailed"] * 3], "at once, after 60 s, and 120 s later"
        await asyncio.sleep(5 * 3600)
        assert told(node).count("GpuResetFailed") == 11, "hourly in the end"

    play(resetting, story)


def test_a_card_that_asks_again_after_its_reset_is_reset_again_after_a_pause(resetting: Node) -> None:
    async def story(node: Node, agent: Agent) -> None:
        node.xid(48)
        await asyncio.sleep(2)
        assert told(node) == ["GpuUnhealthy", "GpuReset"]
        node.xid(48)
        await asyncio.sleep(50)
        assert told(node).count("GpuReset") == 1
        await asyncio.sleep(15)
        assert told(node).count("GpuReset") == 2

    play(resetting, story)


def test_long_after_the_last_reset_the_next_one_comes_at_once_and_its_repetition_soon(resetting: Node) -> None:
    async def story(node: Node, agent: Agent) -> None:
        for _ in range(2):
            node.xid(48)
            await asyncio.sleep(70)
            node.xid(48)
            await asyncio.sleep(70)
            assert told(node).count("GpuReset") == 2
            node.told.clear()
            await asyncio.sleep(5 * 3600)

    play(resetting, story)


@pytest.mark.parametrize("xid", [94, 79])
def test_a_fault_that_needs_less_or_more_than_a_reset_causes_none(resetting: Node, xid: int) -> None:
    async def story(node: Node, agent: Agent) -> None:
        node.xid(xid)
        await asyncio.sleep(300)
        assert "GpuReset" not in told(node)

    play(resetting, story)
