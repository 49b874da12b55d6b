"""In a group of many nodes, none of which the waiting pods admit, one placeholder is made, and it stays."""

import asyncio
import random
from collections.abc import Sequence

import pytest
from tests.support.slicer_cluster import SlicerCluster
from tests.webhook.conftest import NAMESPACE, Lab, in_lab

from tessera.controller.base.options import ScaleUpOptions
from tessera.controller.objects.node_constraints import NodeConstraints
from tessera.controller.scale_up.scale_up import ScaleUp
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.resources import CONFIGMAPS, NODES, PODS, Pod
from tessera.kube.runtime import KubeRuntime
from tessera.kube.watch.cache import EventKind, WatchEvent
from tessera.kube.watch.informer import Informer
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


def waiting_pod() -> SlicerCluster:
    """A slicer with one pod that waits for a card of the second generation."""
    cluster = SlicerCluster()
    cluster.namespace("default", **{"tessera.dev/placement": "managed"})
    only = NodeConstraints(selector=(("generation", "two"),), devices=frozenset({"nvidia.com/gpu"}))
    cluster.whole("waits", constraints=only)
    cluster.run()
    return cluster


@pytest.mark.parametrize("selector", ["pool", "karpenter.sh/nodepool"])
def test_nothing_flaps_in_a_group_of_many_present_nodes(selector: str) -> None:
    changes: list[tuple[EventKind, str]] = []

    async def story(lab: Lab) -> None:
        await make_nodes(lab, selector)
        text = GROUP.replace("SELECTOR", selector)
        await lab.client.create(
            CONFIGMAPS, {"metadata": {"name": "tessera-node-groups"}, "data": {"groups.yaml": text}}, NAMESPACE
        )
        cluster, rng = waiting_pod(), random.Random(0)
        pods = Informer(lab.client, PODS, clock=lab.clock, rng=rng)
        nodes = Informer(lab.client, NODES, clock=lab.clock, rng=rng)
        pods.add_handler(lambda event: note(changes, event))
        runtime = KubeRuntime(client=lab.client, clock=lab.clock, rng=rng)
        events = EventRecorder(lab.client, component="t", clock=lab.clock, rng=rng)
        shown: dict[str, int] = {}
        scale_up = ScaleUp(
            runtime,
            cluster.slicer,
            nodes=nodes,
            pods=pods,
            events=events,
            namespace=NAMESPACE,
            options=ScaleUpOptions(),
            startup=0.0,
            show=shown.update,
        )
        scheduler = Scheduler(lab.client, clock=lab.clock, rng=rng)
        tasks = [asyncio.create_task(run) for run in (pods.run(), nodes.run(), scheduler.run(), scale_up.run())]
        for number in range(30):
            await lab.clock.sleep(60)
            # Each round the controller has a reason to look again.
            await lab.client.merge_patch(NODES, "node-0000", {"metadata": {"annotations": {"round": str(number)}}})
        assert shown == {"many": 1}
        (pod,) = pods.cache.values()
        assert (pod.spec.node_name, conditions(pod)) == ("", ["PodScheduled=False"])
        for task in tasks:
            task.cancel()

    in_lab(story)
    assert [kind for kind, _ in changes] == [EventKind.ADDED]


def note(changes: list[tuple[EventKind, str]], event: WatchEvent[Pod]) -> None:
    """Notes what is made and deleted, not what changes."""
    if event.kind is not EventKind.MODIFIED:
        changes.append((event.kind, event.object.metadata.name))


def conditions(pod: Pod) -> Sequence[str]:
    return [f"{each.type}={each.status}" for each in pod.status.conditions]
