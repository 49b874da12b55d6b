"""Memory levels off: what Tessera keeps of pods that came and went is bounded.

The whole system runs in this process: controller, webhook, agent, and the live page's mirror of the cluster, with a
reader. ``tracemalloc`` counts what code of ``src/tessera`` holds at two marks. The first comes once everything that is
kept of single pods is full, so that the second finds only what grows without a bound. One row shortens the longest
memories, so that it shows the same with fewer pods; the other keeps them, and takes an hour.
"""

import asyncio
import gc
import random
import tracemalloc
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

import pytest

from tessera.dashboard.feed import FeedGroup
from tessera.dashboard.source import ClusterSource
from tessera.kube.resources import EVENTS
from tessera.visibility import FULL

#: The bounds of what is kept of most pods: owners of ended pods, starts of the last hour, events of each process.
LONGEST = (
    "tessera.usage.recorder._PAST_HOLDERS",
    "tessera.forecast.rate.RATE_STARTS",
    "tessera.kube.event_recorder.REMEMBERED_EVENTS",
)
SLICE = {"nvidia.com/mig-1g.5gb": 1}
#: As many slices as two A100-40GB have.
BATCH = 14
#: Simulated seconds from one batch to the next.
PERIOD = 6.0
#: Frames that are kept of each allocation: its own, and its callers, to tell what the lab asked for.
FRAMES = 3
#: Bytes a pod. A dict of one entry has 232, and its place in a dict of all pods about 100; caches differ by 100 a pod.
MOST_A_POD = 200


class Soak:
    """Batches of pods that get their slices and go."""

    def __init__(self, lab: Any) -> None:
        self._lab = lab
        self.pods = 0

    async def reach(self, pods: int) -> None:
        """Plays batches until so many pods have come and gone, and everything about the last is over."""
        while self.pods < pods:
            began = self._lab.clock.monotonic()
            await self._play_batch()
            await self._lab.clock.sleep(began + PERIOD - self._lab.clock.monotonic())
        await self._lab.empty()
        await self._lab.clock.sleep(3600)

    async def _play_batch(self) -> None:
        names = [f"soak-{self.pods + number}" for number in range(BATCH)]
        for name in names:
            await self._lab.create(name, SLICE)
        await self._lab.running(*names)
        for name in names:
            await self._lab.delete(name)
        await self._lab.until(lambda: not any(map(self._lab.pod, names)), "the batch is gone")
        for event in tuple(self._lab.events.cache.values()):
            await self._lab.client.delete(EVENTS, event.metadata.name, "default")
        self.pods += BATCH


async def look_at_page(lab: Any) -> None:
    """The live page with one reader, who sees everything and takes each change."""
    feeds = FeedGroup()
    source = ClusterSource(lab.client, feeds, watched=lambda: True, clock=lab.clock, rng=random.Random(0))
    async with asyncio.TaskGroup() as group:
        group.create_task(source.run())
        with feeds.join(FULL, "reader") as feed:
            version = None
            while True:
                await feed.wait(version)
                update = feed.read(version)
                version = update.version if update is not None else version


def take_heap() -> tracemalloc.Snapshot:
    """What code of the product holds, but for the lab, whose records have times and names that this code made."""
    gc.collect()
    filters = [
        tracemalloc.Filter(True, "*/src/tessera/*"),
        tracemalloc.Filter(False, "*/src/tessera_lab/*", all_frames=True),
    ]
    return tracemalloc.take_snapshot().filter_traces(filters)


async def call_inline(function: Callable[..., Any], *args: Any) -> Any:
    """``asyncio.to_thread`` without a thread: virtual time has none."""
    return function(*args)


@pytest.mark.soak
@pytest.mark.parametrize(("kept", "first", "second"), [(300, 840, 2_800), (10_000, 12_000, 20_000)])
def test_what_is_kept_of_pods_is_bounded(
    in_lab: Callable[..., None], monkeypatch: pytest.MonkeyPatch, kept: int, first: int, second: int
) -> None:
    for name in LONGEST:
        bound = resolve_name(name)
        assert bound <= 10_000, "else the second row is too short"
        monkeypatch.setattr(name, min(kept, bound))
    monkeypatch.setattr(asyncio, "to_thread", call_inline)

    async def scenario(lab: Any) -> None:
        page = asyncio.create_task(look_at_page(lab))
        soak = Soak(lab)
        await soak.reach(first)
        before, tasks, pods = take_heap(), len(asyncio.all_tasks()), soak.pods
        await soak.reach(second)
        after = take_heap()
        page.cancel()
        grown = after.compare_to(before, "lineno")
        bytes_a_pod = sum(each.size_diff for each in grown) / (soak.pods - pods)
        assert bytes_a_pod < MOST_A_POD, "\n".join(map(str, grown[:20]))
        assert len(asyncio.all_tasks()) <= tasks + 2

    tracemalloc.start(FRAMES)
    try:
        in_lab(scenario, nodes="2xA100-40GB", pages=True)
    finally:
        tracemalloc.stop()
