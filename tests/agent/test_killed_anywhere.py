"""An agent that is killed between any two NVML calls, or in one, leaves nothing half done.

One story, told once for every call of it: two pods, one of three slices, come and go beside a foreign slice. The agent
dies at the n-th call and another one takes over. The pods must run with exactly their slices, and afterwards only the
foreign slice is there.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING

import pytest
from tests.support.searching import SEARCHING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.agent.conftest import Scene

FOREIGN = ("1g.5gb", 0, 6)
ONE = [("3g.20gb", 1, 4)]
THREE = [("1g.5gb", 0, 2), ("1g.5gb", 0, 3), ("2g.10gb", 0, 4)]


async def succeed_the_dead(scene: Scene) -> None:
    """Starts another agent whenever one has died."""
    while True:
        assert scene.agent is not None
        await asyncio.wait([scene.agent])
        scene.start_agent()


async def slices_of(scene: Scene, name: str, container: str) -> set[str]:
    """The environment of a container after its start."""
    return set((await scene.start(name, container))["NVIDIA_VISIBLE_DEVICES"].split(","))


async def story(scene: Scene) -> None:
    await scene.joined()
    await scene.pod("one", {"main": {"3g.20gb": 1}})
    await scene.pod("three", {"main": {"1g.5gb": 1, "2g.10gb": 1}, "side": {"1g.5gb": 1}})
    for name, places in (("one", ONE), ("three", THREE)):
        await scene.promise(name, *places)
        await scene.bind(name)
    for name in ("three", "one"):
        await scene.until(functools.partial(scene.admitted, name))
    main, side = [await slices_of(scene, "three", container) for container in ("main", "side")]
    assert await slices_of(scene, "one", "main") == {scene.mig_uuid(ONE[0])}
    assert not main & side
    assert main | side == {scene.mig_uuid(place) for place in THREE}
    assert sorted(scene.places()) == sorted([FOREIGN, *ONE, *THREE])
    await scene.finish("three")
    await scene.remove("one")
    await scene.release("three")
    await scene.release("one")
    assert scene.places() == [FOREIGN]
    await scene.until(scene.journal_is_empty)
    assert scene.cdi_files() == []


def told(play: Callable[..., None], last_call: int, *, after: bool) -> int:
    """Tells the story with a death at one call; returns how many calls the first agent made."""
    calls = 0

    async def whole(scene: Scene) -> None:
        nonlocal calls
        scene.foreign(FOREIGN)
        await scene.begin(agent=False)
        cards = scene.start_agent(last_call=last_call, after=after)
        successor = asyncio.create_task(succeed_the_dead(scene))
        try:
            await story(scene)
        finally:
            successor.cancel()
        calls = cards.calls

    play(whole, cards="2xA100-40GB", latencies={"create_gpu_instance": 0.3, "destroy_gpu_instance": 0.1})
    return calls


#: `make test` tries some calls, `make soak` each.
OFTEN = [(0, False), (2, True)]
PARTS = [(part, after) for after in (False, True) for part in range(4)]


@pytest.mark.parametrize(
    ("part", "after"),
    [pytest.param(*each, marks=() if each in OFTEN else pytest.mark.soak) for each in PARTS],
    ids=[f"{'after' if after else 'before'} calls {part + 1}, {part + 5} and so on" for part, after in PARTS],
)
def test_a_death_at_any_call_is_made_good(play_anew: Callable[..., None], part: int, after: bool) -> None:
    calls = told(play_anew, 0, after=False)
    assert calls > 40
    for last_call in range(part + 1, calls + 1, 4 if SEARCHING else 12):
        told(play_anew, last_call, after=after)
