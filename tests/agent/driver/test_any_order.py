"""Any events in any order, and a kill anywhere: no card is advertised without a validated driver.

Kubelet is asked at each of its changes, and the node once everything has come to rest.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.agent.driver.conftest import VERSION
from tests.support.searching import examples

from tessera.api.nodes.node_marks import CUDA_READY, DRIVER_CONTAINER_READY, DRIVER_READY, PLUGIN_READY
from tessera.nvml.errors import InUse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.agent.driver.conftest import DriverScene

#: What may happen, and whether the agent is given time to notice.
STEPS = st.tuples(
    st.sampled_from(
        (
            "all is well",
            "load",
            "container ready",
            "container stops",
            "container crashes and comes back",
            "unload",
            "validated",
            "validated before",
            "validation fails",
            "pause",
            "unpause",
            "agent killed",
            "folder vanishes",
        )
    ),
    st.sampled_from((0.0, 0.003, 0.05, 3.0)),
)


async def happens(scene: DriverScene, step: str) -> None:
    markers = scene.markers
    assert markers.folder is not None
    match step:
        case "all is well":
            await scene.unpause()
            scene.load()
            scene.validate()
        case "load":
            scene.machine.load_driver(VERSION)
        case "container ready":
            markers.write(DRIVER_CONTAINER_READY)
        case "container stops":
            markers.remove(DRIVER_CONTAINER_READY)
        case "container crashes and comes back":
            if markers.present(DRIVER_CONTAINER_READY):
                markers.write(DRIVER_CONTAINER_READY)
        case "unload":
            try:
                scene.machine.unload_driver()
            except InUse:
                return
        case "validated" if markers.present(DRIVER_CONTAINER_READY):
            scene.validate()
        case "validated before":
            markers.write(CUDA_READY, "TESSERA_DRIVER_CONTAINER=1-2-3\n")
        case "validation fails":
            markers.remove(CUDA_READY)
        case "pause":
            await scene.pause()
        case "unpause":
            await scene.unpause()
        case "agent killed":
            await scene.kill_agent()
            scene.start_life()
        case "folder vanishes":
            shutil.rmtree(markers.folder)
            markers.folder.mkdir()


class Watch:
    """At any moment kubelet counts only cards of a driver that was validated after its container came."""

    def __init__(self, scene: DriverScene) -> None:
        self._scene = scene
        self._was = 0

    def look(self) -> None:
        """A validation is demanded when cards come; while they are there, it may fail without their going."""
        for devices, validated in self._scene.published:
            assert validated or not devices or self._was, self._scene.published
            self._was = devices
        self._scene.published.clear()


async def at_rest(scene: DriverScene, *, paused: bool) -> None:
    """In the end the node's condition follows from its present state, not from its history."""
    await scene.clock.sleep(120.0)
    assert scene.agent is not None
    assert not scene.agent.done(), scene.agent.exception()
    status, reason = await scene.condition()
    ready = scene.markers.present(DRIVER_CONTAINER_READY) and scene.machine.loaded_driver is not None
    if paused:
        assert (status, reason) == ("False", "PausedForDriver")
    elif not scene.markers.present(DRIVER_CONTAINER_READY):
        assert (status, reason) == ("False", "WaitingForDriver")
    elif not ready:
        assert (status, reason) == ("False", "NvmlFailed")
    elif scene.validated_now:
        assert (status, reason) == ("True", "Advertised")
    assert bool(scene.allocatable_now) is (status == "True")
    assert scene.markers.present(PLUGIN_READY) is (status == "True")
    assert scene.markers.present(DRIVER_READY) is (ready and not paused)


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=14))
def test_no_card_is_advertised_before_its_driver_was_validated(
    play_anew: Callable[..., None], steps: Sequence[tuple[str, float]]
) -> None:
    async def story(scene: DriverScene) -> None:
        await scene.begin_life()
        watch, paused = Watch(scene), False
        for step, seconds in steps:
            await happens(scene, step)
            paused = {"pause": True, "unpause": False, "all is well": False}.get(step, paused)
            if seconds:
                await scene.clock.sleep(seconds)
            watch.look()
        await at_rest(scene, paused=paused)
        watch.look()

    play_anew(story, driver=None)
