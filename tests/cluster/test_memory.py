"""Memory levels off: what Tessera keeps of pods that came and went is bounded.

The whole system runs in this process: controller, webhooks, agent, and the live page's mirror of the cluster, with a
reader. What each of them holds is counted at two marks. The first comes once everything that is kept of single pods is
full, so that the second finds only what grows without a bound. One row shortens the longest memories, so that it shows
the same with fewer pods; the other keeps them, and takes a quarter of an hour on a quiet machine.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pkgutil import resolve_name
from typing import Any

import pytest
from tests.support import slicer_cluster
from tests.support.process_heaps import MODULES, process_heaps, walk
from tests.support.tasks import running_tasks
from tests.support.virtual_lab import VirtualLab

from tessera.controller.slicing.slicer import Slicer
from tessera.dashboard.feed import FeedGroup
from tessera.dashboard.source import ClusterSource
from tessera.kube.resources import EVENTS
from tessera.visibility import FULL

#: Shows the figures with pytest's option ``--log-cli-level=INFO``.
_log = logging.getLogger(__name__)

#: The bounds of what is kept of most pods: owners of ended pods, starts of the last hour, events of each process.
LONGEST = (
    "tessera.usage.satellite._PAST_HOLDERS",
    "tessera.forecast.past_times.RATE_STARTS",
    "tessera.kube.event_recorder.REMEMBERED_EVENTS",
)
SLICE = {"nvidia.com/mig-1g.5gb": 1}
#: As many slices as two A100-40GB have.
BATCH = 14
#: Simulated seconds from one batch to the next.
PERIOD = 6.0
#: Bytes a pod in one process. A dict of one entry has 232, and its place in a dict of all pods about 100.
MOST_A_POD = 200


class Soak:
    """Batches of pods that get their slices and go."""

    def __init__(self, lab: VirtualLab) -> None:
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


@asynccontextmanager
async def page(lab: VirtualLab) -> AsyncIterator[object]:
    """The live page with one reader, who sees everything and takes each change; yields what the page holds."""
    feeds = FeedGroup()
    source = ClusterSource(lab.client, feeds, watched=lambda: True, clock=lab.clock, rng=random.Random(0))

    async def read() -> None:
        with feeds.join(FULL, "reader") as feed:
            version = None
            while True:
                await feed.wait(version)
                update = feed.read(version)
                version = update.version if update is not None else version

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(source.run()), group.create_task(read())]
        yield (source, feeds)
        for task in tasks:
            task.cancel()


async def call_inline(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """``asyncio.to_thread`` without a thread: virtual time has none."""
    return function(*args, **named)


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
    monkeypatch.setattr(Slicer, "handle", slicer_cluster.handle)  # its state is checked by all other tests

    async def scenario(lab: VirtualLab) -> None:
        soak = Soak(lab)
        async with page(lab) as shown:
            await soak.reach(first)
            before, tasks, pods = process_heaps({"page": shown}), len(running_tasks()), soak.pods
            await soak.reach(second)
            after = process_heaps({"page": shown})
            assert len(running_tasks()) <= tasks + 2
        assert before.keys() == after.keys()
        assert {name.split("-")[1] for name in after if "-" in name} == {"controller", "webhook", "agent"}
        for name, heap in after.items():
            bytes_a_pod = (heap.size - before[name].size) / (soak.pods - pods)
            _log.info("%s: %d bytes, then %d, %.1f a pod", name, before[name].size, heap.size, bytes_a_pod)
            assert bytes_a_pod < MOST_A_POD, heap.growth(before[name])

    in_lab(scenario, nodes="2xA100-40GB", pages=True)


def test_a_walk_counts_what_a_process_holds_and_nothing_of_others(in_lab: Callable[..., None]) -> None:
    """Else the heaps would not grow, whatever the processes keep."""

    async def scenario(lab: VirtualLab) -> None:
        heaps = process_heaps({"test": lab})
        assert any("controller" in name for name in heaps)
        assert any("agent" in name for name in heaps)
        for name, heap in heaps.items():
            kinds = {kind for _, kind in heap.places}
            assert ("Slicer" in kinds) == ("controller" in name), name
            assert ("SliceStateMachine" in kinds) == ("agent" in name), name
            assert "SimulatedCluster" not in kinds
        assert heaps[MODULES].size > 0

    in_lab(scenario, nodes="1xA100-40GB")
    held: list[bytes] = []
    before = walk([held]).size
    held.append(b"." * 1_000_000)
    assert 0 < walk([held]).size - before - 1_000_000 < 1_000
