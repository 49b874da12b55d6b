"""A node starts with a half-made slice, or with all its pods at once after a reboot."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING

from tessera.nvml.errors import UnknownNvmlError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.agent.conftest import Scene

#: Kubelet's timeout of PreStartContainer, seconds.
TIMEOUT = 30.0


async def test_a_foreign_instance_without_a_compute_instance_is_not_touched(scene: Scene) -> None:
    gpu = scene.machine.uuids()[0]
    scene.machine.create_gpu_instance(gpu, "3g.20gb", 0)
    await scene.begin_slicing()
    await scene.until(scene.foreign_is_told)
    (told,) = (await scene.object()).status.node_resources.foreign
    assert (told.profile, told.start, told.size) == ("3g.20gb", 0, 4)
    assert [len(each.compute_instances) for _, each in scene.instances()] == [0]


async def test_an_instance_of_ours_whose_compute_instance_could_not_be_made_is_made_anew(scene: Scene) -> None:
    scene.machine.fail("create_compute_instance", UnknownNvmlError, times=3)
    await scene.begin_slicing()
    await scene.pod("web", {"main": {"3g.20gb": 1}})
    await scene.promise("web", ("3g.20gb", 0, 4))
    await scene.restart_agent()
    await scene.bind("web")
    await scene.until(functools.partial(scene.admitted, "web"))
    await scene.start("web", "main")
    assert scene.places() == [("3g.20gb", 0, 4)]


async def test_a_kubelet_that_is_restarted_while_an_init_container_runs_starts_all_with_the_same_slices(
    scene: Scene,
) -> None:
    await scene.begin_slicing()
    await scene.pod("web", {"main": {"1g.5gb": 1, "2g.10gb": 1}}, init={"setup": {"1g.5gb": 1}})
    places = [("1g.5gb", 0, 3), ("2g.10gb", 0, 4)]
    await scene.promise("web", *places)
    await scene.bind("web")
    await scene.until(functools.partial(scene.admitted, "web"))
    before = await scene.start("web", "setup")
    scene.bus.stop()
    await scene.kubelet.restart()
    scene.bus.start(scene.kubelet.add_plugin, scene.kubelet)
    await scene.until(functools.partial(scene.allocatable, "nvidia.com/mig-1g.5gb", 7))
    assert await scene.start("web", "setup") == before
    both = await scene.start("web", "main")
    assert set(both["NVIDIA_VISIBLE_DEVICES"].split(",")) == {scene.mig_uuid(place) for place in places}
    assert before["NVIDIA_VISIBLE_DEVICES"] == scene.mig_uuid(places[0])
    assert scene.places() == places


def test_fifty_six_pods_of_a_rebooted_node_start_within_kubelets_timeout(play: Callable[..., None]) -> None:
    """Eight cards are cut side by side; pods without an owner come back under their UIDs and find their slices."""
    places = [("1g.5gb", card, start) for card in range(8) for start in range(7)]
    seconds: list[float] = []

    async def started(scene: Scene, name: str) -> None:
        began = scene.clock.monotonic()
        await scene.start(name, "main", tries=1)
        seconds.append(scene.clock.monotonic() - began)

    async def story(scene: Scene) -> None:
        await scene.begin_slicing()
        names = [f"p{number}" for number in range(len(places))]
        for name, place in zip(names, places, strict=True):
            await scene.pod(name, {"main": {"1g.5gb": 1}})
            await scene.promise(name, place)
            await scene.bind(name)
            await scene.until(functools.partial(scene.admitted, name))
        await scene.until(functools.partial(all_made, scene))
        await scene.kill_agent()
        scene.machine.reboot()
        assert scene.instances() == []
        scene.start_agent()
        await scene.until(functools.partial(scene.allocatable, "nvidia.com/mig-1g.5gb", len(places)))
        await asyncio.gather(*(started(scene, name) for name in names))
        assert sorted(scene.places()) == sorted(places)

    async def all_made(scene: Scene) -> bool:
        return len(scene.instances()) == len(places)

    slow = {"create_gpu_instance": 2.0, "create_compute_instance": 1.0}
    play(story, cards="8xA100-40GB", latencies=slow)
    assert max(seconds) < TIMEOUT
