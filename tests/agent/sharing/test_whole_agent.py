"""Sharing within a whole agent: labels and ConfigMaps in, what kubelet counts and what the Node tells out."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from tests.agent.conftest import NODE, Scene
from tests.agent.sharing.conftest import GPU, SHARED, SLICE_4, SLICE_4_SAME_NAME

from tessera.agent.base.settings import ConfigMapName
from tessera.api.sharing.profile import PROFILE_LABEL
from tessera.kube.resources import CONFIGMAPS, NAMESPACES, NODES
from tessera_lab.simulation.virtual_time import run_virtual

PROFILES = ConfigMapName("gpu", "sharing-profiles")
TEXTS = {"default": "version: v1\n", "slice-4": SLICE_4, "same-name": SLICE_4_SAME_NAME}


def played(folder: Path, story: Callable[[Scene], Awaitable[None]], cards: str = "4xA100-40GB") -> None:
    async def whole() -> None:
        scene = Scene(folder, cards, mig=False)
        scene.options = msgspec.structs.replace(scene.options, sharing_config=PROFILES)
        try:
            await scene.client.create(NAMESPACES, {"metadata": {"name": PROFILES.namespace}})
            made = {"metadata": {"name": PROFILES.name}, "data": TEXTS}
            await scene.client.create(CONFIGMAPS, made, PROFILES.namespace)
            await scene.begin(label="")
            await scene.until(lambda: scene.allocatable(GPU, 4))
            await story(scene)
        finally:
            await scene.end()

    run_virtual(whole())


async def follow(scene: Scene, profile: str) -> None:
    await scene.client.merge_patch(NODES, NODE, {"metadata": {"labels": {PROFILE_LABEL: profile}}})


async def condition(scene: Scene) -> dict[str, Any]:
    node = await scene.client.get(NODES.as_dicts(), NODE)
    found = {each["type"]: each for each in node["status"].get("conditions") or ()}
    told: dict[str, Any] = found.get("GpuSharingApplied") or {}
    return told


def test_a_label_makes_four_cards_sixteen_shares_and_back(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        began = scene.clock.monotonic()
        await follow(scene, "slice-4")
        await scene.until(lambda: scene.allocatable(SHARED, 16))
        assert scene.clock.monotonic() - began < 1.0
        await scene.until(lambda: scene.allocatable(GPU, 0))
        node = await scene.client.get(NODES, NODE)
        assert node.metadata.labels["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB"
        await follow(scene, "same-name")
        await scene.until(lambda: scene.allocatable(GPU, 16))
        await scene.until(lambda: scene.allocatable(SHARED, 0))

    played(tmp_path, story)


def test_a_change_of_content_applies_without_a_change_of_label(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await follow(scene, "slice-4")
        await scene.until(lambda: scene.allocatable(SHARED, 16))
        eight = {"data": {"slice-4": SLICE_4.replace("replicas: 4", "replicas: 8")}}
        await scene.client.merge_patch(CONFIGMAPS, PROFILES.name, eight, PROFILES.namespace)
        await scene.until(lambda: scene.allocatable(SHARED, 32))

    played(tmp_path, story)


def test_a_profile_that_the_cards_do_not_allow_is_told_and_the_old_one_outlives_the_agent(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await follow(scene, "slice-4")
        await scene.until(lambda: scene.allocatable(SHARED, 16))
        bad = {"data": {"slice-4": SLICE_4.replace("replicas: 4", "replicas: 4, devices: [9]")}}
        await scene.client.merge_patch(CONFIGMAPS, PROFILES.name, bad, PROFILES.namespace)

        async def refused() -> bool:
            return (await condition(scene)).get("reason") == "ProfileRefused"

        await scene.until(refused)
        assert "9 is no device of nvidia.com/gpu here" in (await condition(scene))["message"]
        await scene.restart_agent()
        await scene.clock.sleep(5.0)
        assert await scene.allocatable(SHARED, 16)
        assert await refused()

    played(tmp_path, story)
