"""A card that needs a reboot gets one: once, when the node allows it, whoever is killed meanwhile."""

import asyncio

import pytest
from tests.agent.health.conftest import Agent, Node, play

from tessera.agent.base.node_files import StateFile
from tessera.agent.health.repairs import REBOOT_DELAY, REBOOT_RETRY, StoredReboots
from tessera.api.nodes.node_marks import Cordon
from tessera.api.nodes.repairs import RebootWay, Repairs
from tessera.nvml.interface import GpuUuid


def lose(node: Node) -> None:
    node.machine.lose(GpuUuid(node.one))
    node.xid(79)


SENTINEL = Repairs(reboot=RebootWay.SENTINEL)


@pytest.mark.parametrize("way", [each for each in RebootWay if each is not RebootWay.NONE])
def test_a_reboot_is_asked_for_once_over_restarts_and_not_again_if_it_did_not_help(node: Node, way: RebootWay) -> None:
    node.repairs = Repairs(reboot=way)

    async def story(node: Node, agent: Agent) -> None:
        lose(node)
        await asyncio.sleep(REBOOT_DELAY - 20)
        assert node.asked == []
        await asyncio.sleep(60)
        assert len(node.asked) == 1
        assert node.told[-1][0] == "GpuRebootRequested"

    async def later(node: Node, agent: Agent) -> None:
        await asyncio.sleep(1000)
        assert len(node.asked) == 1

    play(node, story)
    play(node, later)
    node.boot = "boot-2"  # the card is still lost
    play(node, later)


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
def test_an_agent_that_is_killed_before_it_asks_asks_in_the_same_boot(node: Node, boot: str) -> None:
    node.repairs = SENTINEL
    stored = StoredReboots({node.one: node.boot}, pending=node.one)
    StateFile(node.file.with_name("reboots.json"), StoredReboots).save(stored)

    async def story(node: Node, agent: Agent) -> None:
        await asyncio.sleep(1000)

    lose(node)
    node.boot = boot if boot == "boot-2" else node.boot
    play(node, story)
    play(node, story)
    assert len(node.asked) == (0 if boot == "boot-2" else 1)


def test_systemd_reboots_no_node_with_pods_on_its_cards_and_kured_drains_it(node: Node) -> None:
    async def story(node: Node, agent: Agent) -> None:
        lose(node)
        node.held.add(node.other)
        await asyncio.sleep(1000)
        assert len(node.asked) == (1 if node.repairs == SENTINEL else 0)
        node.held.clear()
        await asyncio.sleep(60)
        assert len(node.asked) == 1

    for node.repairs in (Repairs(reboot=RebootWay.SYSTEMCTL), SENTINEL):
        node.asked.clear()
        node.file.with_name("reboots.json").unlink(missing_ok=True)
        play(node, story)


def test_a_refusal_is_told_and_tried_again_later(node: Node) -> None:
    node.repairs, node.refusal = SENTINEL, "read-only"

    async def story(node: Node, agent: Agent) -> None:
        lose(node)
        await asyncio.sleep(1000)
        assert [text for reason, text in node.told if reason == "GpuRebootFailed"] == [
            f"GPU 0 ({node.one}): no reboot of the node could be requested for it: read-only"
        ]
        node.refusal = ""
        await asyncio.sleep(REBOOT_RETRY)
        assert len(node.asked) == 1

    play(node, story)


def test_nothing_is_asked_for_a_cordoned_card_or_a_spared_fault_or_without_the_option(node: Node) -> None:
    async def story(node: Node, agent: Agent) -> None:
        lose(node)
        await asyncio.sleep(1000)
        assert node.asked == []

    play(node, story)
    node.repairs, node.cordoned = SENTINEL, (Cordon(node.one, "mine"),)
    play(node, story)


def test_a_card_that_is_well_again_may_ask_for_its_next_fault(node: Node) -> None:
    node.repairs = SENTINEL

    async def story(node: Node, agent: Agent) -> None:
        lose(node)
        await asyncio.sleep(REBOOT_DELAY + 60)
        node.machine.reboot()
        node.boot = "boot-2"
        agent.watch.set_cards(await agent.hardware.devices())
        agent.changes.notify()
        await asyncio.sleep(300)
        assert node.one not in agent.watch.state_machine.unhealthy_gpus
        lose(node)
        await asyncio.sleep(REBOOT_DELAY + 60)
        assert len(node.asked) == 2

    play(node, story)
