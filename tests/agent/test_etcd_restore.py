"""An etcd is restored from a backup under a running agent: objects are older, at old versions.

What the cards hold is newer than what the API says, or what the API says is newer than what the agent remembers. The
hardware stays the truth: nothing of a living pod is destroyed, nothing overlaps, and the agent hears of what comes next
although its versions are smaller than those that it knows.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest

from tessera_lab.kubelet.devices.device_ledger import PodUid

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.agent.conftest import Scene

A = ("3g.20gb", 0, 0)
B = ("3g.20gb", 0, 4)

Backup = tuple[int, dict[Any, dict[str, dict[str, Any]]]]


def backup(scene: Scene) -> Backup:
    """All objects and the version, as ``etcdctl snapshot save`` takes them."""
    store = scene.server.core.store
    objects = {
        resource: {ns: dict(each) for ns, each in history.objects.items()} for resource, history in _histories(scene)
    }
    return store.rv, objects


def restore(scene: Scene, taken: Backup) -> None:
    """The API server starts again on an etcd that was restored: watches end, and versions go on from the old one."""
    store = scene.server.core.store
    store.rv, objects = taken
    for resource, history in _histories(scene):
        history.objects = {namespace: dict(each) for namespace, each in objects.get(resource, {}).items()}
        history.ring.clear()
        history.dropped = 0
    scene.server.core.hubs.end_all()


def _histories(scene: Scene) -> list[tuple[Any, Any]]:
    return list(scene.server.core.store._histories.items())


async def running(scene: Scene, name: str, place: tuple[str, int, int]) -> None:
    """A pod that has its slice."""
    await scene.pod(name, {"main": {place[0]: 1}})
    await scene.promise(name, place)
    await scene.bind(name)
    await scene.reported(name, "created")
    await scene.admit(name)
    assert await scene.start(name, "main") == {"NVIDIA_VISIBLE_DEVICES": scene.mig_uuid(place)}


async def next_pod_is_served(scene: Scene, name: str, place: tuple[str, int, int]) -> None:
    """Slices that are promised after the restore are made and released."""
    await running(scene, name, place)
    await scene.finish_and_release(name)


@pytest.fixture(params=[False, True], ids=["lives on", "is started anew"])
def told(request: pytest.FixtureRequest, play: Callable[..., None]) -> Callable[..., None]:
    """Plays a story whose agent sees the restore happen, or finds it when it starts."""

    async def restored(scene: Scene, taken: Backup) -> None:
        if request.param:
            await scene.kill_agent()
        restore(scene, taken)
        if request.param:
            scene.start_agent()

    return lambda story: play(lambda scene: story(scene, functools.partial(restored, scene)))


def test_results_that_the_agent_had_written_are_written_again(told: Callable[..., None]) -> None:
    """The backup is older than the report, not than the pod on the node, which keeps its slice."""

    async def story(scene: Scene, restored: Any) -> None:
        await scene.begin_slicing()
        await scene.pod("web", {"main": {"3g.20gb": 1}})
        await scene.bind("web")
        await scene.promise("web", B)
        taken = backup(scene)
        await scene.reported("web", "created")
        await scene.admit("web")
        env = await scene.start("web", "main")
        await restored(taken)
        await scene.reported("web", "created")
        await next_pod_is_served(scene, "next", A)
        assert await scene.start("web", "main") == env
        assert scene.places() == [B]
        await scene.finish_and_release("web")
        await scene.until(scene.journal_is_empty)

    told(story)


def test_the_slice_of_a_pod_that_the_api_no_longer_has_is_released(told: Callable[..., None]) -> None:
    """The backup is older than the pod: kubelet ends a pod that the API does not have."""

    async def story(scene: Scene, restored: Any) -> None:
        await scene.begin_slicing()
        taken = backup(scene)
        await running(scene, "web", B)
        await restored(taken)
        scene.pods.pop("web")
        await scene.until(scene.is_empty)
        await next_pod_is_served(scene, "next", B)
        await scene.until(scene.journal_is_empty)

    told(story)


def test_a_pod_that_ended_and_runs_again_gets_its_slice_again(told: Callable[..., None]) -> None:
    """The record says that the slice was created; the card and the agent's journal know nothing of it any more."""

    async def story(scene: Scene, restored: Any) -> None:
        await scene.begin_slicing()
        await running(scene, "web", B)
        taken = backup(scene)
        await scene.remove("web")
        await scene.release("web")
        await scene.until(scene.journal_is_empty)
        await restored(taken)
        scene.pods["web"] = scene.made["web"]
        await scene.until(functools.partial(scene.admitted, "web"))
        assert await scene.start("web", "main") == {"NVIDIA_VISIBLE_DEVICES": scene.mig_uuid(B)}
        assert scene.places() == [B]
        await scene.finish_and_release("web")
        await next_pod_is_served(scene, "next", B)

    told(story)


def test_a_position_promised_again_is_made_once_no_process_uses_it(told: Callable[..., None]) -> None:
    """The backup promises the place to a pod that is gone; another lives there, and kubelet ends it as unknown."""

    async def story(scene: Scene, restored: Any) -> None:
        await scene.begin_slicing()
        await running(scene, "old", B)
        taken = backup(scene)
        await scene.remove("old")
        await scene.release("old")
        await running(scene, "new", B)
        device = scene.mig_uuid(B)
        pid = scene.machine.start_process(device)  # type: ignore[arg-type] # a MIG UUID
        await restored(taken)
        await scene.clock.sleep(60)
        assert scene.mig_uuid(B) == device
        scene.machine.end_process(pid)
        scene.kubelet.release(PodUid(scene.uid("new")))
        del scene.pods["new"]
        scene.pods["old"] = scene.made["old"]
        await scene.until(functools.partial(scene.admitted, "old"))
        env = await scene.start("old", "main")
        assert env == {"NVIDIA_VISIBLE_DEVICES": scene.mig_uuid(B)}
        assert scene.places() == [B]

    told(story)
