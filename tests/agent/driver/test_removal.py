"""An agent that is asked to leave its node: devices, slices, layouts, MPS, files; and the way back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.agent.conftest import NODE
from tests.agent.driver.test_lifecycle import SLICE, hold_a_slice

from tessera.api.nodes.node_marks import REMOVAL_ANNOTATION, RemovalState, read_answer
from tessera.api.nodes.offers import OFFERS_ANNOTATION
from tessera.kube.resources import NODES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.agent.driver.conftest import DriverScene

    from tessera.api.nodes.node_marks import RemovalAnswer


async def ask(scene: DriverScene, value: str | None = "destroy-slices") -> None:
    await scene.client.merge_patch(NODES, NODE, {"metadata": {"annotations": {REMOVAL_ANNOTATION: value}}})


async def answered(scene: DriverScene, state: RemovalState) -> RemovalAnswer:
    found: list[RemovalAnswer] = []

    async def shown() -> bool:
        answer = read_answer((await scene.client.get(NODES, NODE)).metadata.annotations)
        if answer is not None and answer.state is state:
            found.append(answer)
        return bool(found)

    await scene.until(shown)
    return found[-1]


async def shows_offers(scene: DriverScene) -> bool:
    return OFFERS_ANNOTATION in (await scene.client.get(NODES, NODE)).metadata.annotations


def files(scene: DriverScene) -> list[str]:
    """All files of the agent on the node."""
    folders = (scene.options.state_dir, scene.options.cdi_dir)
    return sorted(str(path) for folder in folders for path in folder.rglob("*"))


async def managed(scene: DriverScene) -> Mapping[str, list[str]]:
    """The labels and annotations that the agent owns."""
    node = await scene.client.get(NODES.as_dicts(), NODE)
    owned = [each for each in node["metadata"]["managedFields"] if each["manager"] == "agent"]
    return {
        kind: sorted(name for each in owned for name in each["fieldsV1"].get("f:metadata", {}).get(f"f:{kind}", {}))
        for kind in ("labels", "annotations")
    }


async def test_a_node_without_pods_is_left_with_nothing(scene: DriverScene) -> None:
    await scene.begin_life()
    await scene.counts(True)
    await scene.until(lambda: shows_offers(scene))
    assert files(scene)
    await ask(scene)
    answer = await answered(scene, RemovalState.DONE)
    assert all("stays in MIG mode" in note for note in answer.notes)
    assert (scene.allocatable_now, scene.capacity_now) == (0, 0)
    assert files(scene) == []
    assert await managed(scene) == {"labels": [], "annotations": ["f:tessera.dev/removed"]}


async def test_a_running_pod_keeps_its_slice_and_a_note_says_how_to_remove_it(scene: DriverScene) -> None:
    await scene.begin_life()
    await hold_a_slice(scene)
    await ask(scene)
    (note,) = (await answered(scene, RemovalState.DONE)).notes
    assert "3g.20gb at start 4 of GPU 0" in note
    assert "used by pod default/web; once it is unused: nvidia-smi mig -i 0 -gi" in note
    assert scene.places() == [SLICE]
    assert files(scene) == []


@pytest.mark.parametrize(("request_", "left"), [("destroy-slices", []), ("keep-slices", [SLICE]), ("else", [SLICE])])
async def test_the_slice_of_an_ended_pod_is_destroyed_unless_slices_are_kept(
    scene: DriverScene, request_: str, left: list[object]
) -> None:
    """The agent dies as the pod ends, so the slice is still there when the next agent is asked to leave."""
    await scene.begin_life()
    await hold_a_slice(scene)
    await scene.kill_agent()
    await scene.remove("web")
    await ask(scene, request_)
    scene.start_life()
    answer = await answered(scene, RemovalState.DONE)
    assert scene.places() == left
    assert any("kept as requested" in note for note in answer.notes) is bool(left)


async def test_a_slice_that_somebody_else_made_stays(scene: DriverScene) -> None:
    await scene.begin(agent=False)
    scene.foreign(SLICE)
    scene.start_life()
    await scene.joined()
    await ask(scene)
    assert (await answered(scene, RemovalState.DONE)).notes == ()
    assert scene.places() == [SLICE]


async def test_the_unused_instances_of_a_layout_are_destroyed(scene: DriverScene) -> None:
    await scene.begin(label="all-1g.5gb", agent=False)
    scene.start_life()
    await scene.counts(True)
    assert len(scene.places()) == 7
    await ask(scene)
    await answered(scene, RemovalState.DONE)
    assert scene.places() == []


@pytest.mark.scene(driver=None)
async def test_a_node_without_a_driver_is_left_too(scene: DriverScene) -> None:
    await scene.begin_life()
    await scene.tells("WaitingForDriver")
    await ask(scene)
    assert (await answered(scene, RemovalState.DONE)).notes == ()


async def test_the_agent_stays_away_over_restarts_and_returns_without_the_request(scene: DriverScene) -> None:
    await scene.begin_life()
    await scene.counts(True)
    await ask(scene)
    await answered(scene, RemovalState.DONE)
    await scene.kill_agent()
    scene.start_life()
    await scene.clock.sleep(60.0)
    assert scene.allocatable_now == 0
    await ask(scene, None)
    await scene.counts(True)
    await scene.joined()

    async def forgotten() -> bool:
        return read_answer((await scene.client.get(NODES, NODE)).metadata.annotations) is None

    await scene.until(forgotten)


@pytest.mark.parametrize("after", [False, True])
def test_the_agent_may_die_at_any_nvml_call(play_anew: Callable[..., None], after: bool) -> None:
    """Killed at a call and started again, it leaves the same: the pod's slice, and none of an ended pod."""
    ended: list[bool] = []

    def death(at: int) -> Callable[[DriverScene], object]:
        async def story(scene: DriverScene) -> None:
            await scene.begin_life()
            await hold_a_slice(scene)
            await scene.admit_promised("old", {"main": {"1g.5gb": 1}}, ("1g.5gb", 0, 0))
            await scene.start("old", "main")
            await scene.kill_agent()
            await scene.remove("old")
            await ask(scene)
            cards = scene.start_mortal_life(at, after=after)
            agent = scene.agent
            assert agent is not None
            done = asyncio.ensure_future(answered(scene, RemovalState.DONE))
            await asyncio.wait({agent, done}, return_when=asyncio.FIRST_COMPLETED)
            ended.append(done.done())
            if not done.done():
                assert cards.calls >= at
                scene.start_life()
            await done
            assert scene.places() == [SLICE]
            assert files(scene) == []

        return story

    at = 0
    while not ended or not ended[-1]:
        at += 1
        play_anew(death(at))
    assert at > 5
