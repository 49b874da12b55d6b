"""The part of the controller that asks for new nodes, with informers of its own, against the lab's API server."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.slicer_cluster import SlicerCluster
from tests.webhook.conftest import NAMESPACE, Lab

from tessera.controller.objects.pod_constraints import NodeConstraints
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.informer import Informer
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import CONFIGMAPS, NODES, PODS
from tessera.scale_up.node_requests import ScaleUpOptions
from tessera.scale_up.scale_up import ScaleUp

#: The ConfigMap of node groups.
NODE_GROUPS = "tessera-node-groups"


async def create_node_groups(lab: Lab, text: str) -> None:
    """Creates the file of node groups."""
    config = {"metadata": {"name": NODE_GROUPS}, "data": {"groups.yaml": text}}
    await lab.client.create(CONFIGMAPS, config, NAMESPACE)


def add_pod_for_second_generation(cluster: SlicerCluster) -> None:
    """Adds a pod that waits for a card of a node with the label ``generation: two``."""
    cluster.namespace("default", **{"tessera.dev/placement": "managed"})
    only = NodeConstraints(selector=(("generation", "two"),), devices=frozenset({"nvidia.com/gpu"}))
    cluster.whole("waits", constraints=only)


class ScaleUpLab:
    """A :class:`ScaleUp` about the pods of a slicer.

    Args:
        lab: the API server.
        cluster: has the slicer.

    Attributes:
        runtime: access to the cluster.
        pods: all pods, the placeholders.
        shown: by group, the nodes that are asked for.
        component: the name in its events.
    """

    component = "t"

    def __init__(self, lab: Lab, cluster: SlicerCluster) -> None:
        rng = random.Random(0)
        self.runtime = KubeRuntime(client=lab.client, clock=lab.clock, rng=rng)
        self.pods = Informer(lab.client, PODS, clock=lab.clock, rng=rng)
        self.shown: dict[str, int] = {}
        self._nodes = Informer(lab.client, NODES, clock=lab.clock, rng=rng)
        self._scale_up = ScaleUp(
            self.runtime,
            cluster.slicer,
            nodes=self._nodes,
            pods=self.pods,
            events=EventRecorder(lab.client, component=self.component, clock=lab.clock, rng=rng),
            namespace=NAMESPACE,
            options=ScaleUpOptions(),
            startup=0.0,
            show=self.shown.update,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs it with its informers; none of them may end by itself."""
        tasks = [asyncio.create_task(run) for run in (self.pods.run(), self._nodes.run(), self._scale_up.run())]
        try:
            yield
            assert not any(task.done() for task in tasks)
        finally:
            for task in tasks:
                task.cancel()
