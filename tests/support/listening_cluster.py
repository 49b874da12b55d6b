"""A server that listens, on which somebody else's operator and autoscaler do their part at once."""

import asyncio
import math
import random
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tessera.clock import SystemClock
from tessera.doctor.manifests import install_manifests
from tessera.gpu_operator.assignment import CLUSTER_POLICIES
from tessera.kube.client import Client
from tessera.kube.errors import NotFound
from tessera.kube.informer import EventKind, Informer, WatchEvent
from tessera.kube.resources import NODES, PODS, Pod
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.http_server import HttpServer, kubeconfig
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.installation.install import apply_manifests

UNSCHEDULABLE = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
_TOKEN = "administrator"
_READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}


class ListeningCluster:
    """A cluster with an operator and an autoscaler that are not Tessera's.

    Args:
        runtime: container runtime of its nodes.
        scales: the autoscaler adds a node for a pod that waits.
        follows: number of policies that the operator follows, one after the other.
        leaps: the cluster is on virtual time.

    Attributes:
        kubeconfig: an administrator's; empty until the server listens.
    """

    kubeconfig = ""

    def __init__(self, runtime: str, *, scales: bool = True, follows: float = math.inf, leaps: bool = False) -> None:
        self._runtime = runtime
        self._scales = scales
        self._follows = follows
        self._clock = SystemClock()
        user = UserInfo(name="operator", groups=("system:masters", "system:authenticated"))
        self._server = ApiServer(self._clock, leaps=leaps, tokens={_TOKEN: user})
        self._seen: set[str] = set()
        self._client = Client(InProcessTransport(self._server, user), field_manager="operator", clock=self._clock)

    async def run(self, up: threading.Event) -> None:
        """Listens until it is cancelled."""
        front = HttpServer(self._server, None)
        await front.start()
        try:
            definitions = [each for each in install_manifests() if each["kind"] == "CustomResourceDefinition"]
            await apply_manifests(self._client, definitions)
            await self._node("node-1")
            self.kubeconfig = kubeconfig(front.url, None, None, token=_TOKEN)
            async with asyncio.TaskGroup() as group:
                await self._follow(group)
                up.set()
        finally:
            await front.close()

    async def _follow(self, group: asyncio.TaskGroup) -> None:
        rng = random.Random(0)
        policies: Informer[dict[str, Any]] = Informer(self._client, CLUSTER_POLICIES, clock=self._clock, rng=rng)
        pods: Informer[Pod] = Informer(self._client, PODS, clock=self._clock, rng=rng)
        policies.add_handler(lambda event: _begin(group, self._count(event)))
        pods.add_handler(lambda event: _begin(group, self._serve(event)))
        for each in (policies, pods):
            group.create_task(each.run())
            await each.wait_synced()

    async def _node(self, name: str) -> None:
        status = {"nodeInfo": {"containerRuntimeVersion": self._runtime}, "conditions": [_READY]}
        await self._client.create(NODES.as_dicts(), {"metadata": {"name": name}, "status": status})

    async def _count(self, event: WatchEvent[dict[str, Any]]) -> None:
        """The operator: a node has a card while there is a policy that it follows."""
        gone = event.kind is EventKind.DELETED
        count = "1" if not gone and self._follows > 0 else "0"
        self._follows -= gone
        await self._status(NODES.as_dicts(), "node-1", {"capacity": {"nvidia.com/gpu": count}})

    async def _serve(self, event: WatchEvent[Pod]) -> None:
        """The autoscaler, the scheduler and kubelet: one node for the pod, which runs there and then goes with it."""
        name = event.object.metadata.name
        if event.kind is EventKind.DELETED:
            with suppress(NotFound):
                await self._client.delete(NODES, f"made-for-{name}")
        elif event.object.metadata.uid not in self._seen:
            self._seen.add(event.object.metadata.uid)
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": UNSCHEDULABLE}
            await self._status(PODS.as_dicts(), name, {"conditions": [condition]}, "default")
            if self._scales:
                await self._node(f"made-for-{name}")
                await self._client.bind(name, "default", f"made-for-{name}")
                running = [{"name": "workload", "state": {"running": {}}}]
                await self._status(PODS.as_dicts(), name, {"containerStatuses": running, "conditions": []}, "default")

    async def _status(self, resource: Any, name: str, status: dict[str, Any], namespace: str | None = None) -> None:
        await self._client.merge_patch(resource, name, {"status": status}, namespace, subresource="status")


def _begin(group: asyncio.TaskGroup, work: Coroutine[Any, Any, None]) -> None:
    group.create_task(work)


@contextmanager
def serve_in_thread(cluster: ListeningCluster) -> Iterator[None]:
    """Lets a cluster run beside the test, in a thread of its own, as the command has an event loop of its own."""
    up, loop = threading.Event(), asyncio.new_event_loop()
    task = loop.create_task(cluster.run(up))
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([task])))
    thread.start()
    try:
        assert up.wait(30), "the cluster did not come up"
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()
