"""Property: the resolver's answers are never invented and never too old, in any order of a registry's answers."""

import asyncio
from collections import deque
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.driver.registry.image_repository import ImageRepository, ManualClock, resolving
from tests.driver.registry.servers import serving

from tessera.driver.driver_sets import PoolKey
from tessera.driver.images import ImageKind, Outcome, Resolution, Resolver, tags
from tessera.driver.registry.resolver import FOUND_FOR, CachedImage

RHEL = PoolKey(os_id="rhel", os_version="9.8", kernel="5.14.0-687.39.1.el9_8.x86_64", architecture="amd64")
TAGS = tags("580.65.06", RHEL, ImageKind.PRECOMPILED)

Step = tuple[str, object]

put = st.tuples(st.sampled_from(TAGS), st.sets(st.sampled_from(["amd64", "arm64", "s390x"])).map(sorted).map(tuple))
mood = st.sampled_from([200, 200, 401, 403, 404, 429, 500, 503])
wait = st.sampled_from([1.0, 30.0, 61.0, 601.0, FOUND_FOR])
ask = st.booleans()
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), put),
        st.tuples(st.just("mood"), mood),
        st.tuples(st.just("wait"), wait),
        st.tuples(st.just("ask"), ask),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=30,
)


class RepositoryWithResolver:
    """A repository, and a resolver whose every answer is checked after each step."""

    def __init__(self, repository: ImageRepository) -> None:
        self.repository, self.clock = repository, ManualClock()

    async def play(self, script: Sequence[Step]) -> None:
        left, kept = deque(script), tuple[CachedImage, ...]()
        while left:
            async with resolving(self.clock) as resolver:
                resolver.restore(kept)
                while left and (step := left.popleft())[0] != "restart":
                    await self.step(resolver, *step)
                kept = resolver.cached_images()

    async def step(self, resolver: Resolver, what: str, value: object) -> None:
        if what != "ask":
            self.change(what, value)
            return
        before = len(self.repository.requests)
        self.judge(await resolver.resolve(self.repository.query(RHEL), fresh=bool(value)))
        assert len(self.repository.requests) - before <= 3 * len(TAGS)

    def change(self, what: str, value: object) -> None:
        if what == "wait":
            self.clock.time += float(str(value))
        elif what == "mood":
            self.repository.status = int(str(value))
        else:
            assert isinstance(value, tuple)
            tag, architectures = value
            self.repository.images.pop(tag, None)
            if architectures:
                self.repository.images[tag] = architectures

    def judge(self, answer: Resolution) -> None:
        outcomes = [each.outcome for each in answer.tried]
        assert 1 <= len(outcomes) <= len(TAGS)
        assert bool(answer.digest) is bool(answer.pinned) is (answer.outcome is Outcome.FOUND)
        if answer.outcome is Outcome.FOUND:
            assert (answer.tag, "amd64", answer.digest) in self.repository.given
            assert answer.reference == answer.tried[-1].reference
            assert answer.stale is (Outcome.UNREACHABLE in outcomes)
            assert answer.stale or self.clock.now() - answer.checked < FOUND_FOR
        elif answer.outcome in (Outcome.NOT_FOUND, Outcome.WRONG_ARCHITECTURE):
            assert not {Outcome.UNREACHABLE, Outcome.UNAUTHORIZED, Outcome.FOUND} & set(outcomes)
            assert len(outcomes) == len(TAGS)
        else:
            assert answer.outcome in outcomes
            assert Outcome.FOUND not in outcomes


async def _play(script: Sequence[Step]) -> None:
    repository = ImageRepository()
    async with serving(repository.answer) as host:
        repository.host = host
        await RepositoryWithResolver(repository).play(script)


@settings(deadline=None, max_examples=15)
@given(steps)
def test_answers_are_never_invented_and_never_too_old(script: Sequence[Step]) -> None:
    asyncio.run(_play(script))
