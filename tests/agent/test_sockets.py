"""The same agent over kubelet's own sockets and gRPC, on real time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.kubelet_sockets import serve_kubelet

from tessera.clock import SystemClock
from tessera.kubelet.grpc import GrpcKubelet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.agent.conftest import Scene

PLACE = ("3g.20gb", 0, 4)
RESOURCE = "nvidia.com/mig-3g.20gb"


@pytest.fixture
async def scene(make_scene: type[Scene], sockets: Path, tmp_path: Path) -> AsyncIterator[Scene]:
    clock = SystemClock()
    kubelet = GrpcKubelet(sockets, sockets / "pods.sock", clock=clock)
    made = make_scene(tmp_path, clock=clock, seam=kubelet)
    yield made
    await made.end()


async def claimed(scene: Scene) -> dict[str, str]:
    """A pod of one slice, up to the environment of its container."""
    await scene.begin_slicing()
    await scene.until(lambda: scene.allocatable(RESOURCE, 2))
    await scene.admit_promised("web", {"main": {"3g.20gb": 1}}, PLACE)
    assert [device.rpartition(":")[2] for device in scene.devices("web", "main")] == ["4"]
    return dict(await scene.start("web", "main"))


async def test_from_promise_to_environment_over_the_sockets(scene: Scene, sockets: Path) -> None:
    async with serve_kubelet(scene.kubelet, sockets):
        env = await claimed(scene)
        assert env["NVIDIA_VISIBLE_DEVICES"] == scene.mig_uuid(PLACE)


async def test_after_a_restart_of_kubelet_a_container_finds_its_slice(scene: Scene, sockets: Path) -> None:
    async with serve_kubelet(scene.kubelet, sockets):
        env = await claimed(scene)
        await scene.kubelet.restart()
    async with serve_kubelet(scene.kubelet, sockets):
        await scene.until(lambda: scene.allocatable(RESOURCE, 2))
        assert await scene.start("web", "main") == env
