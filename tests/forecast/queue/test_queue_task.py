"""The queue as a part of the controller: a forecast is made of the whole state alone."""

import asyncio
import random

import pytest
from tests.support.slicer_cluster import SlicerCluster
from tests.webhook.conftest import NAMESPACE, Lab, in_lab

from tessera.controller.slicing.cycle import take_in
from tessera.forecast.queue.satellite import PERIOD, QueueTask
from tessera.forecast.queue_page import QueuePage
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import NODES, PODS
from tessera.kube.watch.informer import Informer


def large() -> SlicerCluster:
    """More nodes than one step takes in, and one pod more than they have room for."""
    cluster = SlicerCluster()
    for number in range(8):
        cluster.node(f"n{number}")
    for number in range(9):
        cluster.pod(f"p{number}", "7g.40gb")
    return cluster


@pytest.mark.parametrize("parts", [0, 1, 3])
def test_no_page_is_made_until_all_nodes_and_pods_are_taken_in(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(take_in, "ABSORBED_CHANGES", 4)

    async def story(lab: Lab) -> None:
        cluster, rng = large(), random.Random(0)
        for _ in range(parts):
            cluster.slicer.decide()
        assert not cluster.slicer.is_caught_up
        runtime = KubeRuntime(client=lab.client, clock=lab.clock, rng=rng)
        task = QueueTask(
            runtime,
            cluster.slicer,
            pods=Informer(lab.client, PODS, clock=lab.clock, rng=rng),
            nodes=Informer(lab.client, NODES, clock=lab.clock, rng=rng),
            events=EventRecorder(lab.client, component="t", clock=lab.clock, rng=rng),
            namespace=NAMESPACE,
        )
        running = asyncio.create_task(task.run())
        await lab.clock.sleep(4 * PERIOD)
        assert task.page == QueuePage()
        cluster.settle()
        await lab.clock.sleep(2 * PERIOD)
        assert (task.page.leads, len(task.page.pods)) == (True, 1)
        running.cancel()

    in_lab(story)
