"""The same advertiser over kubelet's own sockets and gRPC, on real time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.agent.sharing.conftest import SHARED, SLICE_4, WHOLE
from tests.support.kubelet_sockets import serve_kubelet

from tessera.clock import SystemClock
from tessera.kubelet.grpc import GrpcKubelet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.agent.sharing.conftest import Scene


@pytest.fixture
async def scene(make_scene: type[Scene], sockets: Path, tmp_path: Path) -> AsyncIterator[Scene]:
    clock = SystemClock()
    made = make_scene(tmp_path, clock=clock, seam=GrpcKubelet(sockets, sockets / "pods.sock", clock=clock))
    yield made
    await made.end()


def plugin_sockets(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.sock") if path.name not in {"kubelet.sock", "pods.sock"})


async def test_from_profile_to_container_over_the_sockets(scene: Scene, sockets: Path) -> None:
    async with serve_kubelet(scene.kubelet, sockets):
        await scene.begin_offering(SLICE_4, gpu_shared=16)
        await scene.admit("web", {SHARED: 1})
        assert scene.env("web") == {"NVIDIA_VISIBLE_DEVICES": scene.devices("web")[0].partition("::")[0]}
        await scene.admit("spread", {SHARED: 3})
        assert len(scene.env("spread")["NVIDIA_VISIBLE_DEVICES"].split(",")) == 3


async def test_flips_of_the_label_leave_one_socket_and_the_last_profile(scene: Scene, sockets: Path) -> None:
    async with serve_kubelet(scene.kubelet, sockets):
        await scene.begin_offering(WHOLE, gpu=4)
        for flip in range(50):
            scene.follow(WHOLE if flip % 2 else SLICE_4)
            for _ in range(flip % 7):  # turns of the loop
                await asyncio.sleep(0)
        scene.follow(SLICE_4)
        await scene.offers(gpu_shared=16)
        await scene.until(lambda: len(plugin_sockets(sockets)) == 1)
        assert "gpu.shared" in plugin_sockets(sockets)[0]
