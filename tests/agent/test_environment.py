"""Programs read a container's slices from its environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.agent.conftest import Place, Scene

ONES: list[Place] = [("1g.5gb", 0, start) for start in range(4)]
B: Place = ("3g.20gb", 0, 4)


def physical_device_ids(env: Mapping[str, str], devices: int) -> list[int]:
    """Reads the variable as vLLM 0.20 does (``vllm/platforms/interface.py``, ``device_id_to_physical_device_id``)."""
    if env.get("CUDA_VISIBLE_DEVICES"):
        return [int(each) for each in env["CUDA_VISIBLE_DEVICES"].split(",")]
    return list(range(devices))


@pytest.mark.parametrize(
    ("init", "containers", "places"),
    [
        ({}, {"main": {"1g.5gb": 1}}, ONES[:1]),
        ({}, {"main": {"1g.5gb": 3}}, ONES[:3]),
        ({}, {"main": {"1g.5gb": 1, "3g.20gb": 1}}, [ONES[0], B]),
        ({}, {"main": {"1g.5gb": 1}, "other": {"3g.20gb": 1}}, [ONES[0], B]),
        ({"load": {"1g.5gb": 2}}, {"main": {"1g.5gb": 1}}, ONES[:2]),
        ({"load": {"1g.5gb": 1, "3g.20gb": 1}}, {"main": {}}, [ONES[0], B]),
    ],
    ids=["one", "three", "two sizes", "two containers", "init container", "two sizes of an init container"],
)
async def test_vllm_finds_its_devices_in_every_container_and_at_every_start(
    scene: Scene, init: dict[str, dict[str, int]], containers: dict[str, dict[str, int]], places: list[Place]
) -> None:
    await scene.begin_slicing()
    await scene.pod("web", containers, init=init)
    await scene.promise("web", *places)
    await scene.bind("web")
    await scene.admit("web")
    for name, counts in {**init, **containers}.items():
        if not counts:
            continue
        for _ in ("first start", "restart"):
            env = await scene.start("web", name)
            slices = sum(counts.values())
            assert physical_device_ids(env, slices) == list(range(slices))
            assert len(env["NVIDIA_VISIBLE_DEVICES"].split(",")) == slices
