"""In a group of many nodes, none of which the waiting pods admit, one placeholder is made, and it stays."""

import asyncio
import random
from collections.abc import Sequence

import pytest
from tests.support.scale_up_lab import ScaleUpLab, add_pod_for_second_generation, create_node_groups
from tests.support.slicer_cluster import SlicerCluster
from tests.webhook.conftest import Lab, in_lab

from tessera.kube.cache import EventKind, WatchEvent
from tessera.kube.resources import NODES, Pod
from tessera_lab.scheduler.scheduler import Scheduler

#: More than a placeholder once excluded.
NODE_COUNT = 620
GROUP = """
groups:
  - name: many
    selector: {SELECTOR: many}
    labels: {generation: two}
    cards: {model: L40S, count: 1, kind: whole}
"""


async def make_nodes(lab: Lab, selector: str) -> None:
    """Nodes of the group's first generation, each with a free card, read by their agents."""
    status = {
        "capacity": {"cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "1"},
        "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "1"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    for number in range(NODE_COUNT):
        name = f"node-{number:04}"
        labels = {"kubernetes.io/hostname": name, selector: "many", "nvidia.com/gpu.machine": "DGX"}
        await lab.client.create(NODES, {"metadata": {"name": name, "labels": labels}})
        await lab.client.merge_patch(NODES, name, {"status": status}, subresource="status")


@pytest.mark.parametrize("selector", ["pool", "karpenter.sh/nodepool"])
def test_nothing_flaps_in_a_group_of_many_present_nodes(selector: str) -> None:
    changes: list[tuple[EventKind, str]] = []

    async def story(lab: Lab) -> None:
        await make_nodes(lab, selector)
        await create_node_groups(lab, GROUP.replace("SELECTOR", selector))
        cluster = SlicerCluster()
        add_pod_for_second_generation(cluster)
        cluster.run()
        scale_up = ScaleUpLab(lab, cluster)
        scale_up.pods.add_handler(lambda event: note(changes, event))
        scheduler = asyncio.create_task(Scheduler(lab.client, clock=lab.clock, rng=random.Random(0)).run())
        async with scale_up.running():
            for number in range(30):
                await lab.clock.sleep(60)
                # Each round the controller has a reason to look again.
                await lab.client.merge_patch(NODES, "node-0000", {"metadata": {"annotations": {"round": str(number)}}})
            assert scale_up.shown == {"many": 1}
            (pod,) = scale_up.pods.cache.values()
            assert (pod.spec.node_name, conditions(pod)) == ("", ["PodScheduled=False"])
        scheduler.cancel()

    in_lab(story)
    assert [kind for kind, _ in changes] == [EventKind.ADDED]


def note(changes: list[tuple[EventKind, str]], event: WatchEvent[Pod]) -> None:
    """Notes what is made and deleted, not what changes."""
    if event.kind is not EventKind.MODIFIED:
        changes.append((event.kind, event.object.metadata.name))


def conditions(pod: Pod) -> Sequence[str]:
    return [f"{each.type}={each.status}" for each in pod.status.conditions]
