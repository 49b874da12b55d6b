"""A new leader keeps the placeholders of the former one until it knows all pods that wait."""

import asyncio
import random

import pytest
from tests.support.slicer_cluster import SlicerCluster
from tests.webhook.conftest import NAMESPACE, Lab, in_lab

from tessera.api.names import NodeName
from tessera.api.nodes.node_groups import parse_node_groups
from tessera.controller.base.options import ScaleUpOptions
from tessera.controller.objects.node_constraints import NodeConstraints
from tessera.controller.scale_up.node_requests import PlaceholderPods
from tessera.controller.scale_up.placeholders import pod_spec
from tessera.controller.scale_up.scale_up import ScaleUp
from tessera.controller.slicing.turns import absorption
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.resources import CONFIGMAPS, NODES, PODS
from tessera.kube.runtime import KubeRuntime
from tessera.kube.watch.informer import Informer

GROUP = """
groups:
  - name: many
    selector: {pool: many}
    labels: {generation: two}
    cards: {model: L40S, count: 1, kind: whole}
"""


def large() -> SlicerCluster:
    """Full nodes of the first generation, and a pod that waits for a card of the second."""
    cluster = SlicerCluster()
    cluster.namespace("default", **{"tessera.dev/placement": "managed"})
    for number in range(8):
        cluster.device_node(f"n{number}", count=1)
        cluster.whole(f"held-{number}", gated=False, node=NodeName(f"n{number}"))
    only = NodeConstraints(selector=(("generation", "two"),), devices=frozenset({"nvidia.com/gpu"}))
    cluster.whole("waits", constraints=only)
    return cluster


@pytest.mark.parametrize("parts", [0, 1, 3])
def test_placeholders_stay_while_many_pods_are_taken_in_by_parts(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absorption, "ABSORBED_CHANGES", 4)

    async def story(lab: Lab) -> None:
        config = {"metadata": {"name": "tessera-node-groups"}, "data": {"groups.yaml": GROUP}}
        await lab.client.create(CONFIGMAPS, config, NAMESPACE)
        cluster, rng = large(), random.Random(0)
        for _ in range(parts):
            cluster.slicer.decide()
        assert not cluster.slicer.state.waiting
        pods = Informer(lab.client, PODS, clock=lab.clock, rng=rng)
        nodes = Informer(lab.client, NODES, clock=lab.clock, rng=rng)
        runtime = KubeRuntime(client=lab.client, clock=lab.clock, rng=rng)
        shown: dict[str, int] = {}
        scale_up = ScaleUp(
            runtime,
            cluster.slicer,
            nodes=nodes,
            pods=pods,
            events=EventRecorder(lab.client, component="t", clock=lab.clock, rng=rng),
            namespace=NAMESPACE,
            options=ScaleUpOptions(),
            startup=0.0,
            show=shown.update,
        )
        former = PlaceholderPods(runtime, pods, NAMESPACE)
        for name in ("tessera-new-node-many-0", "tessera-new-node-many-1"):
            spec = pod_spec(parse_node_groups(GROUP)[0], "pause:1", (), has_ready=False)
            await former.create("many", name, spec, cards=True)
        tasks = [asyncio.create_task(run) for run in (pods.run(), nodes.run(), scale_up.run())]
        await lab.clock.sleep(60)
        assert len(pods.cache) == 2
        assert not shown
        cluster.run()
        await lab.clock.sleep(90)
        assert [pod.metadata.name for pod in pods.cache.values()] == ["tessera-new-node-many-0"]
        assert shown == {"many": 1}
        for task in tasks:
            task.cancel()

    in_lab(story)
