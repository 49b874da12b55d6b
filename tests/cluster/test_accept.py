"""``tessera accept NODE``: a pod on the node reads its cards, and is gone afterwards, whatever happens."""

import asyncio
from typing import Any

import pytest
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.accept.acceptance import Trials
from tessera.accept.checks import Status
from tessera.accept.document import Document
from tessera.accept.node_run import NodeRunError, accept_node
from tessera.kube.errors import NotFound
from tessera.kube.resources import NODES, PODS

MODEL = "2xA100-40GB"


async def accept(lab: VirtualLab, node: str = "node-1", said: list[str] | None = None, **options: Any) -> Document:
    trials = options.pop("trials", Trials())
    say = (said if said is not None else []).append
    return await accept_node(lab.client, lab.clock, node, trials=trials, say=say, **options)


async def pods(lab: VirtualLab) -> list[str]:
    found = [each for space in ("tessera-system", "default") for each in (await lab.client.list(PODS, space)).items]
    return [each.metadata.name for each in found if each.metadata.name.startswith("tessera-accept")]


def texts(document: Document) -> dict[str, tuple[Status, str]]:
    return {each.name: (each.status, each.text) for each in document.checks}


def test_a_nodes_cards_are_read_through_a_pod_that_is_gone_afterwards(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.until(lambda: lab.tells("node-1"), "the node has offers")
        said: list[str] = []
        document = await accept(lab, said=said)
        assert document.facts.simulated
        assert document.facts.host.hostname == "node-1"
        assert document.facts.node is not None
        assert document.facts.node.capacity["nvidia.com/gpu"] == "2"
        assert texts(document)["cards"] == (Status.OK, "NVML 2, readable 2, capacity 2")
        assert [line.split(" is ")[-1] for line in said[-1:]] == ["removed"]
        assert await pods(lab) == []

    in_lab(scenario, nodes=MODEL, mig_config="")


def test_a_card_that_is_lost_fails_the_check_of_its_node(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.until(lambda: lab.tells("node-1"), "the node has offers")
        machine = lab.machine()
        machine.lose(machine.uuids()[1])
        document = await accept(lab)
        status, text = texts(document)["cards"]
        assert status is Status.FAILED
        assert text.startswith("NVML 2, readable 1, ")

    in_lab(scenario, nodes=MODEL, mig_config="")


def test_a_pod_gets_a_card_and_is_gone(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.becomes({"nvidia.com/gpu": 2})
        document = await accept(lab, pod_trial=True)
        assert document.pod is not None
        assert (document.pod.resource, document.pod.error) == ("nvidia.com/gpu", "")
        assert document.pod.ended >= document.pod.bound > 0
        assert texts(document)["pod"][0] is Status.OK
        assert await pods(lab) == []

    in_lab(scenario, nodes=MODEL, mig_config="")


def test_a_node_that_offers_nothing_gives_no_card(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.until(lambda: lab.tells("node-1"), "the node has offers")
        machine = lab.machine()
        machine.lose(machine.uuids()[0])
        await lab.becomes({})
        status, text = texts(await accept(lab, pod_trial=True))["pod"]
        assert status is Status.FAILED
        assert "node node-1 offers none now" in text

    in_lab(scenario, nodes="A30", mig_config="")


def test_mig_is_tried_only_on_a_cordoned_node(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.until(lambda: lab.tells("node-1"), "the node has offers")
        trials = Trials(mig="1", compute=True)
        with pytest.raises(NodeRunError, match="first run kubectl cordon node-1"):
            await accept(lab, trials=trials)
        await lab.client.merge_patch(NODES, "node-1", {"spec": {"unschedulable": True}})
        document = await accept(lab, trials=trials)
        assert document.mig is not None
        assert len(document.mig.slices) == 25
        assert texts(document)["mig"][0] is Status.OK
        assert texts(document)["compute"] == (
            Status.ABSENT,
            "the cards are simulated: nothing was computed",
        )
        assert not any(card.mig_enabled for card in lab.machine().devices())

    in_lab(scenario, nodes=MODEL, mig_config="")


def test_a_command_that_is_stopped_removes_its_pod(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.until(lambda: lab.tells("node-1"), "the node has offers")
        said: list[str] = []
        task = asyncio.create_task(accept(lab, said=said))
        while not said:
            await lab.clock.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await pods(lab) == []

    in_lab(scenario, nodes=MODEL)


def test_a_node_without_cards_and_one_that_is_not_there_are_errors(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        with pytest.raises(NodeRunError, match="NVIDIA driver is not installed"):
            await accept(lab, "node-2")
        with pytest.raises(NotFound):
            await accept(lab, "node-9")
        assert await pods(lab) == []

    in_lab(scenario, nodes="A30,0")
