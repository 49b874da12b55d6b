"""`kubectl logs`: what a simulated container printed, which begins with the environment that it was given."""

from collections.abc import Callable
from typing import Any

import pytest

from tessera.kube.client.errors import ApiError, BadRequest, Invalid


async def logs(lab: Any, pod: str, **query: str) -> list[str]:
    """The log's lines."""
    path = f"/api/v1/namespaces/default/pods/{pod}/log"
    answer = await lab.client.request("GET", path, query=list(query.items()))
    text: str = answer.body.decode()
    return text.splitlines()


def test_a_container_tells_which_devices_it_sees(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: Any) -> None:
        await lab.create("pod", {"nvidia.com/mig-1g.5gb": 1})
        await lab.running("pod")
        (device,) = lab.devices("pod")
        lines = await logs(lab, "pod")
        assert any(device in line for line in lines)
        assert await logs(lab, "pod", tailLines="1") == lines[-1:]
        assert await logs(lab, "pod", tailLines="0") == []
        assert await logs(lab, "pod", limitBytes="5") == [lines[0][:5]]
        with pytest.raises(Invalid, match="limitBytes: Invalid value: 0: must be greater than 0"):
            await logs(lab, "pod", limitBytes="0")

    in_lab(scenario, nodes="1xA100-40GB")


def test_which_container_must_be_said_where_there_are_several(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: Any) -> None:
        await lab.create("pair", {}, {})
        await lab.running("pair")
        with pytest.raises(BadRequest, match=r"choose one of: \[c0 c1\]"):
            await logs(lab, "pair")
        with pytest.raises(BadRequest, match="container other is not valid for pod pair"):
            await logs(lab, "pair", container="other")
        assert await logs(lab, "pair", container="c1")

    in_lab(scenario, nodes="0")


def test_what_is_not_played_says_so(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: Any) -> None:
        await lab.create("pod", {})
        await lab.running("pod")
        for option in ("follow", "previous", "timestamps"):
            with pytest.raises(ApiError) as refusal:
                await logs(lab, "pod", **{option: "true"})
            assert refusal.value.code == 501

    in_lab(scenario, nodes="0")


def test_a_container_that_waits_has_no_log(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: Any) -> None:
        await lab.create("gated", {}, schedulingGates=[{"name": "example.com/hold"}])
        with pytest.raises(BadRequest, match="is waiting to start"):
            await logs(lab, "gated")

    in_lab(scenario, nodes="0")
