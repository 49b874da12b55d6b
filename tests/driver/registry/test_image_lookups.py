"""The times at which registries are asked, and asked again."""

import asyncio
import random

import pytest

from tessera.clock import LoopClock
from tessera.driver.driver_sets import PoolKey
from tessera.driver.images import ImageKind, ImageQuery, Outcome, Resolution
from tessera.driver.registry.image_lookups import FOUND_FOR, MISSING_FOR, ImageLookups
from tessera.gpu_operator.driver_policy import ImageSource

POOL = PoolKey(os_id="ubuntu", os_version="22.04", kernel="5.15.0-69-generic", architecture="amd64")
SOURCE = ImageSource(repository="nvcr.io/nvidia", image="driver", version="525")
QUERY = ImageQuery(source=SOURCE, pool=POOL, kind=ImageKind.PRECOMPILED)
OTHER = ImageQuery(source=SOURCE, pool=POOL, kind=ImageKind.BUILDER)
FOUND = Resolution(outcome=Outcome.FOUND, reference="nvcr.io/nvidia/driver:t", digest="sha256:1", tag="t")


class Registry:
    """Says what it is told to say, and notes when it was asked."""

    def __init__(self, clock: LoopClock) -> None:
        self.says = FOUND
        self.asked: list[tuple[float, ImageQuery, bool]] = []
        self._clock = clock

    async def resolve(self, query: ImageQuery, *, fresh: bool = False) -> Resolution:
        self.asked.append((self._clock.monotonic(), query, fresh))
        await self._clock.sleep(1)
        return self.says


class Scene:
    def __init__(self) -> None:
        self.clock = LoopClock(0)
        self.registry = Registry(self.clock)
        self.answers = 0
        self.asking = ImageLookups(self.registry, self.clock, rng=random.Random(0), answered=self._answered)

    def _answered(self) -> None:
        self.answers += 1

    async def ask(self, *queries: ImageQuery) -> None:
        async with asyncio.TaskGroup() as group:
            self.asking.start(queries, group)


@pytest.fixture
async def scene(virtual_time: None) -> Scene:
    return Scene()


async def test_a_question_is_asked_once_and_its_answer_kept(scene: Scene) -> None:
    async with asyncio.TaskGroup() as group:
        scene.asking.start([QUERY, QUERY], group)
        scene.asking.start([QUERY], group)
    assert len(scene.registry.asked) == 1
    assert scene.asking.answers.get(QUERY) == FOUND
    await scene.ask(QUERY)
    assert len(scene.registry.asked) == 1
    assert scene.answers == 1


async def test_what_was_found_is_asked_for_again_late_and_what_was_not_soon(scene: Scene) -> None:
    await scene.ask(QUERY)
    assert 0.9 * FOUND_FOR <= (scene.asking.seconds_until_due() or 0) <= 1.1 * FOUND_FOR
    scene.registry.says = Resolution(outcome=Outcome.NOT_FOUND)
    await scene.ask(OTHER)
    assert 0.9 * MISSING_FOR <= (scene.asking.seconds_until_due() or 0) <= 1.1 * MISSING_FOR
    await scene.clock.sleep(1.1 * MISSING_FOR)
    await scene.ask()
    assert [(query, fresh) for _, query, fresh in scene.registry.asked] == [
        (QUERY, False),
        (OTHER, False),
        (OTHER, True),
    ]


async def test_a_registry_that_does_not_answer_is_asked_with_growing_pauses_and_its_silence_is_measured(
    scene: Scene,
) -> None:
    scene.registry.says = Resolution(outcome=Outcome.UNREACHABLE)
    await scene.ask(QUERY)
    first = scene.asking.seconds_until_due() or 0.0
    for _ in range(6):
        await scene.clock.sleep(scene.asking.seconds_until_due() or 0.0)
        await scene.ask()
    assert first < (scene.asking.seconds_until_due() or 0.0) <= 60.0
    assert scene.asking.unanswered_for([OTHER, QUERY]) > 60.0
    scene.registry.says = FOUND
    await scene.clock.sleep(60)
    await scene.ask()
    assert scene.asking.unanswered_for([QUERY]) == 0.0


async def test_every_answer_is_told_since_its_question_has_a_new_time(scene: Scene) -> None:
    """A caller that asked by the clock during a lookup was told no time for it."""
    await scene.ask(QUERY)
    scene.asking.recheck_image(FOUND.pinned)
    await scene.ask()
    assert (len(scene.registry.asked), scene.answers) == (2, 2)
    scene.registry.says = Resolution(outcome=Outcome.NOT_FOUND)
    scene.asking.recheck_repository("nvcr.io/nvidia")
    await scene.ask()
    assert (len(scene.registry.asked), scene.answers) == (3, 3)


async def test_questions_that_nobody_has_any_more_are_forgotten(scene: Scene) -> None:
    await scene.ask(QUERY, OTHER)
    scene.asking.retain([OTHER])
    assert scene.asking.answers.get(QUERY) is None
    assert scene.asking.answers.get(OTHER) == FOUND
