"""A mistake in the file of node groups: nothing is asked for until it is corrected, and the controller runs on."""

import asyncio
import random

import pytest
from tests.controller.scale_up.test_many_nodes import waiting_pod
from tests.webhook.conftest import NAMESPACE, Lab, in_lab

from tessera.controller.base.options import ScaleUpOptions
from tessera.controller.scale_up.scale_up import ScaleUp
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.resources import CONFIGMAPS, NODES, PODS
from tessera.kube.runtime import KubeRuntime
from tessera.kube.watch.informer import Informer

NAME = "tessera-node-groups"
GROUP = "groups: [{name: two, selector: {pool: a}, labels: {generation: two}, cards: {model: L40S, kind: whole}, MORE}]"
RIGHT = GROUP.replace("MORE", "max: 1")


@pytest.mark.parametrize(
    "text",
    [
        GROUP.replace("MORE", "taints: [{key: a b}]"),
        GROUP.replace("MORE", "allocatable: {cpu: '-4'}"),
        RIGHT.replace("{pool: a}", "{a b/c d: x y}"),
        RIGHT.replace("{pool: a}", "{pool: a, generation: one}"),
    ],
)
def test_a_mistake_stops_requests_for_nodes_and_not_the_controller(text: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story(lab: Lab) -> None:
        await lab.client.create(CONFIGMAPS, {"metadata": {"name": NAME}, "data": {"groups.yaml": RIGHT}}, NAMESPACE)
        cluster, rng = waiting_pod(), random.Random(0)
        pods = Informer(lab.client, PODS, clock=lab.clock, rng=rng)
        nodes = Informer(lab.client, NODES, clock=lab.clock, rng=rng)
        runtime = KubeRuntime(client=lab.client, clock=lab.clock, rng=rng)
        scale_up = ScaleUp(
            runtime,
            cluster.slicer,
            nodes=nodes,
            pods=pods,
            events=EventRecorder(lab.client, component="t", clock=lab.clock, rng=rng),
            namespace=NAMESPACE,
            options=ScaleUpOptions(),
            startup=0.0,
            show=lambda _: None,
        )
        tasks = [asyncio.create_task(run) for run in (pods.run(), nodes.run(), scale_up.run())]
        counts = []
        for each in (RIGHT, text, RIGHT):
            await lab.client.merge_patch(CONFIGMAPS, NAME, {"data": {"groups.yaml": each}}, NAMESPACE)
            await lab.clock.sleep(300)
            counts.append(len(pods.cache.values()))
        assert counts == [1, 0, 1]
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()

    in_lab(story)
    assert 'group "two": ' in caplog.text
    assert "; correct the file; no node is asked for until then" in caplog.text
