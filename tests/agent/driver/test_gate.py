"""The condition GpuNodeReady: written once per change, repaired, and no other condition is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.agent.conftest import NODE

from tessera.agent.driver.gate import REPAIR_PAUSE
from tessera.api.nodes.node_marks import ADVERTISED_CONDITION as ADVERTISED
from tessera.api.nodes.node_marks import ADVERTISED_MANAGER, SHARING
from tessera.kube.resources import NODES

if TYPE_CHECKING:
    from tests.agent.driver.conftest import DriverScene


async def conditions(scene: DriverScene) -> dict[str, Any]:
    node = await scene.client.get(NODES.as_dicts(), NODE)
    return {each["type"]: each for each in node["status"].get("conditions", ())}


async def version(scene: DriverScene) -> str:
    return (await scene.client.get(NODES, NODE)).metadata.resource_version


@pytest.mark.scene(driver=None)
async def test_other_conditions_stay_while_there_is_no_driver(scene: DriverScene) -> None:
    await scene.begin_life()
    scene.load()
    scene.validate()
    await scene.tells("Advertised")
    await scene.clock.sleep(5.0)
    before = await conditions(scene)
    assert SHARING in before
    scene.stop_container()
    await scene.tells("WaitingForDriver")
    after = await conditions(scene)
    assert {name: each for name, each in after.items() if name != ADVERTISED} == {
        name: each for name, each in before.items() if name != ADVERTISED
    }
    node = await scene.client.get(NODES.as_dicts(), NODE)
    assert ADVERTISED_MANAGER in {each["manager"] for each in node["metadata"]["managedFields"]}


@pytest.mark.scene(driver=None)
async def test_nothing_is_written_to_say_that_nothing_changed(scene: DriverScene) -> None:
    await scene.begin_life()
    await scene.tells("WaitingForDriver")
    await scene.clock.sleep(5.0)
    before = await version(scene)
    await scene.clock.sleep(3600.0)
    assert await version(scene) == before
    await scene.kill_agent()
    scene.start_life()
    await scene.clock.sleep(60.0)
    assert await version(scene) == before


@pytest.mark.scene(driver=None)
async def test_a_change_by_another_writer_is_repaired_after_a_pause(scene: DriverScene) -> None:
    await scene.begin_life()
    await scene.tells("WaitingForDriver")
    await scene.client.merge_patch(NODES, NODE, {"status": {"conditions": []}}, subresource="status")
    await scene.clock.sleep(REPAIR_PAUSE / 2)
    assert await scene.condition() == ("", "")
    await scene.clock.sleep(REPAIR_PAUSE)
    assert await scene.condition() == ("False", "WaitingForDriver")


@pytest.mark.scene(driver=None)
async def test_a_node_that_is_registered_anew_is_written_at_once(scene: DriverScene) -> None:
    await scene.begin_life()
    await scene.tells("WaitingForDriver")
    await scene.client.delete(NODES, NODE)
    await scene.clock.sleep(1.0)
    await scene.client.create(NODES.as_dicts(), {"metadata": {"name": NODE}})
    await scene.clock.sleep(1.0)
    assert await scene.condition() == ("False", "WaitingForDriver")
