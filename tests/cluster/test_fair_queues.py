"""A burst of pods on a cluster whose API requests wait in fair queues, as in labs that run in real time."""

import asyncio
from typing import Any

from tests.support.virtual_lab import InLab, VirtualLab


def test_a_burst_gets_its_slices_and_gives_them_back(in_lab: InLab) -> None:
    """More pods than there is room for: those behind get the slots of those before."""

    async def scenario(lab: VirtualLab) -> None:
        limits = {f"p{n}": {f"nvidia.com/mig-{('1g.5gb', '2g.10gb', '3g.20gb')[n % 3]}": 1} for n in range(48)}
        await asyncio.gather(*(lab.create(name, each) for name, each in limits.items()))
        waiting = set(limits)
        while waiting:
            await lab.until(lambda: any(map(lab.ready, waiting)), "a pod runs")
            recorded = [result for each in lab.slices.cache.values() for result in records(each)]
            assert len(recorded) == len(set(recorded)), "no slot is promised twice"
            for name in sorted(filter(lab.ready, waiting)):
                waiting.discard(name)
                await lab.delete(name)
        await lab.empty()
        assert lab.hardware() == []

    in_lab(scenario, nodes="2*2xA100-40GB", fair_queues=True)


def records(item: Any) -> list[tuple[str, int]]:
    """Card and slot of each slice on record."""
    return [
        (result.gpu_uuid, slot)
        for result in item.status.pod_allocation_results.values()
        for slot in range(result.mig_placement.start, result.mig_placement.start + result.mig_placement.size)
    ]
