"""Names that kubelet leaves on the node with 0."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tessera.agent.sharing.served_resources import GRACE, AdvertisedNames, removal_patch, stale_resources
from tessera.clock import LoopClock
from tessera.kube.resources import Node, NodeStatus
from tessera_lab.simulation.virtual_time import run_virtual

OLD, NEW = "nvidia.com/gpu", "nvidia.com/gpu.shared"


def node(**shown: str) -> Node:
    named = {f"nvidia.com/{name}": count for name, count in shown.items()}
    return Node(status=NodeStatus(capacity=named, allocatable=named))


@pytest.mark.parametrize(
    ("shown", "served", "passed", "stale"),
    [
        pytest.param("0", (), GRACE, True, id="kubelet has forgotten it"),
        pytest.param("0", (), GRACE - 1, False, id="kubelet may not have"),
        pytest.param("4", (), GRACE, False, id="somebody else offers it"),
        pytest.param("0", (OLD,), GRACE, False, id="it is offered on the other side"),
    ],
)
def test_a_former_name_is_removed_when_nobody_offers_it(
    shown: str, served: tuple[str, ...], passed: float, stale: bool
) -> None:
    found = stale_resources(node(gpu=shown, foreign="0"), {OLD: 1000.0}, served, 1000.0 + passed)
    assert found == ((OLD,) if stale else ())


def test_the_patch_removes_a_name_from_both_lists() -> None:
    assert removal_patch([OLD]) == {"status": {"capacity": {OLD: None}, "allocatable": {OLD: None}}}


class Api:
    """A node whose status is patched, or refuses to be."""

    def __init__(self) -> None:
        self.shown = node(gpu="0")
        self.patches: list[tuple[str, ...]] = []
        self.down = False

    def node(self) -> Node:
        return self.shown

    async def patch_status(self, patch: Mapping[str, Any], /) -> None:
        self.patches.append(tuple(patch["status"]["capacity"]))
        if self.down:
            raise ConnectionError("the API server is down")
        self.shown = node()


def names_of(path: Path, api: Api, clock: LoopClock) -> AdvertisedNames:
    return AdvertisedNames(path / "names.json", api.node, api.patch_status, clock)


def test_names_are_remembered_over_a_restart_and_removed_once(tmp_path: Path) -> None:
    async def story() -> None:
        clock, api = LoopClock(1_700_000_000.0), Api()
        before = names_of(tmp_path, api, clock)
        before.set_advertised([OLD])
        before.set_advertised([NEW])
        await clock.sleep(100.0)
        names = names_of(tmp_path, api, clock)
        names.set_advertised([NEW])
        assert await names.remove_stale([NEW]) == GRACE - 100.0
        await clock.sleep(GRACE - 100.0)
        await names.remove_stale([NEW])
        assert api.patches == [(OLD,)]
        assert await names.remove_stale([NEW]) is None

    run_virtual(story())


def test_a_name_that_kubelet_brings_back_is_removed_again_after_another_while(tmp_path: Path) -> None:
    async def story() -> None:
        clock, api = LoopClock(1_700_000_000.0), Api()
        names = names_of(tmp_path, api, clock)
        names.set_advertised([OLD])
        names.set_advertised([])
        await clock.sleep(GRACE)
        await names.remove_stale([])
        api.shown = node(gpu="0")
        assert await names.remove_stale([]) == GRACE
        await clock.sleep(GRACE)
        await names.remove_stale([])
        assert api.patches == [(OLD,), (OLD,)]

    run_virtual(story())


def test_a_removal_that_fails_is_tried_again_after_a_pause(tmp_path: Path) -> None:
    async def story() -> None:
        clock, api = LoopClock(1_700_000_000.0), Api()
        names = names_of(tmp_path, api, clock)
        names.set_advertised([OLD])
        names.set_advertised([])
        await clock.sleep(GRACE)
        api.down = True
        pause = await names.remove_stale([])
        assert pause is not None
        await names.remove_stale([])
        assert api.patches == [(OLD,)]
        api.down = False
        await clock.sleep(pause)
        await names.remove_stale([])
        assert api.patches == [(OLD,), (OLD,)]
        assert OLD not in api.shown.status.capacity

    run_virtual(story())
