"""Layouts within a whole agent: the devices of kubelet and the Node when the label changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tessera.kube.resources import NODES

if TYPE_CHECKING:
    from tests.agent.conftest import Scene


async def labelled(scene: Scene, layout: str) -> float:
    """Picks a layout; returns after how many seconds the Node says that it is in force."""
    await scene.client.merge_patch(NODES, "node-1", {"metadata": {"labels": {"nvidia.com/mig.config": layout}}})
    began = scene.clock.monotonic()
    await scene.clock.sleep(0.1)
    await scene.until(lambda: told(scene, "success"))
    return scene.clock.monotonic() - began


async def told(scene: Scene, state: str) -> bool:
    node = await scene.client.get(NODES, "node-1")
    return node.metadata.labels.get("nvidia.com/mig.config.state") == state


@pytest.mark.scene("4xA100-40GB", mig=False)
async def test_labels_come_and_go_and_kubelet_gets_the_devices_of_the_cards(scene: Scene) -> None:
    await scene.begin(label="all-1g.5gb")
    await scene.until(lambda: scene.allocatable("nvidia.com/mig-1g.5gb", 28))
    await scene.until(lambda: told(scene, "success"))
    await labelled(scene, "all-balanced")
    await scene.until(lambda: scene.allocatable("nvidia.com/mig-1g.5gb", 8))
    await scene.until(lambda: scene.allocatable("nvidia.com/mig-3g.20gb", 4))
    await labelled(scene, "all-disabled")
    await scene.until(lambda: scene.allocatable("nvidia.com/gpu", 4))
    await scene.until(lambda: scene.allocatable("nvidia.com/mig-3g.20gb", 0))


async def test_an_impossible_layout_is_reported_and_changes_no_card(scene: Scene) -> None:
    await scene.begin(label="all-2g.10gb")
    await scene.until(lambda: told(scene, "success"))
    await scene.client.merge_patch(NODES, "node-1", {"metadata": {"labels": {"nvidia.com/mig.config": "all-9g"}}})
    await scene.until(lambda: told(scene, "failed"))
    await scene.until(lambda: scene.allocatable("nvidia.com/mig-2g.10gb", 3))
    node = await scene.client.get(NODES.as_dicts(), "node-1")
    conditions = {each["type"]: each for each in node["status"]["conditions"]}
    assert conditions["GpuMigLayoutApplied"]["reason"] == "LayoutUnknown"
