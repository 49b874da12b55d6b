"""Events of Red Hat's clusters give the durations that they published: 308/132, 369/217/207 s.

Each story is a trace of writes to the API, at moments that stand in it: what NVIDIA's operator, the autoscaler and
kubelets write on the way. It is played into an API server on virtual time, and the experiments watch it as they watch
any cluster. The traces are made up in the shape of the article: their last moments are the published means, give or
take what makes them samples. All that is nearly the awaited event happens before it.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

import pytest

from tessera.clock import LoopClock
from tessera.doctor.manifests import install_manifests
from tessera.gpu_operator.assignment import CLUSTER_POLICIES
from tessera.kube.client import Client
from tessera.kube.informer import EventKind, Informer
from tessera.kube.resources import NODES, PODS, Pod, Resource
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.experiments.measuring import NAME, Autoscale, PolicyReset
from tessera_lab.installation.install import apply_manifests
from tessera_lab.simulation.virtual_time import run_virtual

Json = dict[str, Any]
POLICY: Json = {
    "apiVersion": "nvidia.com/v1",
    "kind": "ClusterPolicy",
    "metadata": {"name": "gpu-cluster-policy"},
    "spec": {},
}
WORKLOAD: Json = {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
READY: Json = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
NOT_READY: Json = {"type": "Ready", "status": "False", "reason": "KubeletNotReady"}


class Write(NamedTuple):
    """One write: when, seconds after its story began; what; which object; the status that it gets."""

    at: float
    kind: str
    name: str
    status: Json


def reset(seconds: float) -> list[Write]:
    """From a policy to a card in the capacity of ``gpu-1``; another node has one first, and kubelet beats its heart."""
    return [
        Write(0.2, "node", "gpu-1", {"conditions": [READY], "capacity": {"nvidia.com/gpu": "0", "cpu": "4"}}),
        Write(41.0, "node", "gpu-2", {"capacity": {"nvidia.com/gpu": "1"}}),
        Write(seconds / 2, "node", "gpu-1", {"allocatable": {"nvidia.com/gpu": "1"}}),
        Write(
            seconds - 10, "node", "gpu-1", {"capacity": {"nvidia.com/gpu.shared": "4", "nvidia.com/mig-1g.5gb": "7"}}
        ),
        Write(seconds, "node", "gpu-1", {"capacity": {"nvidia.com/gpu": "1"}}),
        Write(seconds + 10, "node", "gpu-1", {"conditions": [READY]}),
    ]


def scaled(seconds: float, *, node: str) -> list[Write]:
    """From a new node's Ready, 200 s after the pod was made, to the pod's container; the node was Ready once before."""
    ready = 200.0
    return [
        Write(
            0.5, "pod", NAME, {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
        ),
        Write(170.0, "node", node, {"conditions": [NOT_READY]}),
        Write(180.0, "node", node, {"conditions": [READY]}),
        Write(185.0, "node", node, {"conditions": [NOT_READY]}),
        Write(ready, "node", node, {"conditions": [READY]}),
        Write(ready + seconds / 2, "node", node, {"conditions": [READY], "capacity": {"nvidia.com/gpu": "1"}}),
        Write(ready + seconds - 9, "bind", NAME, {"node": node}),
        Write(ready + seconds - 8, "pod", NAME, _container("waiting", {"reason": "ContainerCreating"})),
        Write(ready + seconds, "pod", NAME, _container("running", {}) | {"phase": "Running"}),
    ]


def _container(state: str, told: Json) -> Json:
    return {"containerStatuses": [{"name": "c", "image": "i", "state": {state: told}}]}


class Cluster:
    """An API server, and who writes a trace into it whenever a policy or a pod is made."""

    def __init__(self, traces: Sequence[Sequence[Write]]) -> None:
        self.clock = LoopClock(0)
        user = UserInfo(name="admin", groups=("system:masters", "system:authenticated"))
        self.client = Client(InProcessTransport(ApiServer(self.clock), user), field_manager="t", clock=self.clock)
        self._traces = iter(traces)
        self._played: set[str] = set()

    async def run(self, measured: Coroutine[Any, Any, list[float]]) -> list[float]:
        """Runs the measurement while the events of two nodes are played; returns its result."""
        manifests = [each for each in install_manifests() if each["kind"] == "CustomResourceDefinition"]
        await apply_manifests(self.client, manifests)
        for name in ("gpu-1", "gpu-2"):
            await self._create(name)
        rng = random.Random(0)
        async with asyncio.TaskGroup() as group:
            tasks: list[asyncio.Task[None]] = []
            for resource, begin in ((CLUSTER_POLICIES, self._policy), (PODS, self._pod)):
                informer: Informer[Any] = Informer(self.client, resource, clock=self.clock, rng=rng)
                informer.add_handler(_beginning(group, begin, tasks))
                tasks.append(group.create_task(informer.run()))
                await informer.wait_synced()
            try:
                return await measured
            finally:
                for task in tasks:
                    task.cancel()

    async def _policy(self, event: Any) -> None:
        if event.kind is EventKind.DELETED:
            await self.clock.sleep(5)
            await self._write(Write(0, "node", "gpu-1", {"capacity": {"nvidia.com/gpu": "0"}}))
        else:
            await self._play(event.object["metadata"]["uid"])

    async def _pod(self, event: Any) -> None:
        pod: Pod = event.object
        if event.kind is EventKind.DELETED:
            await self.clock.sleep(30)
            await self.client.delete(NODES, pod.spec.node_name)
        else:
            await self._play(pod.metadata.uid)

    async def _play(self, uid: str) -> None:
        if uid in self._played:
            return
        self._played.add(uid)
        trace = next(self._traces)
        began = self.clock.monotonic()
        for write in trace:
            await self.clock.sleep(began + write.at - self.clock.monotonic())
            await self._write(write)

    async def _write(self, write: Write) -> None:
        match write.kind:
            case "bind":
                await self.client.bind(write.name, "default", write.status["node"])
            case "node" if write.status.get("conditions") == [NOT_READY] and not await self._there(write.name):
                await self._create(write.name)
            case kind:
                namespace = "default" if kind == "pod" else None
                resource: Resource[Any] = (PODS if kind == "pod" else NODES).as_dicts()
                status = {"status": write.status}
                await self.client.merge_patch(resource, write.name, status, namespace, subresource="status")

    async def _there(self, name: str) -> bool:
        return any(each.metadata.name == name for each in (await self.client.list(NODES)).items)

    async def _create(self, name: str) -> None:
        await self.client.create(NODES.as_dicts(), {"metadata": {"name": name}, "status": {"conditions": [NOT_READY]}})


def _beginning(
    group: asyncio.TaskGroup, begin: Callable[[Any], Coroutine[Any, Any, None]], tasks: list[asyncio.Task[None]]
) -> Callable[[Any], None]:
    """A handler that begins work for each event."""
    return lambda event: tasks.append(group.create_task(begin(event)))


#: Seconds by which samples differ from the mean; together they are nothing.
WOBBLES = (-7.0, 1.5, 0.0, 9.25, -3.75)


def test_the_wobbles_leave_the_mean_where_it_is() -> None:
    assert sum(WOBBLES) == 0


@pytest.mark.parametrize("mean", [308.0, 132.0])
def test_policies_are_measured_from_their_making_to_the_first_card_in_the_nodes_capacity(mean: float) -> None:
    wanted = [mean + each for each in WOBBLES]

    async def play() -> list[float]:
        cluster = Cluster([reset(mean + 80), *map(reset, wanted)])
        experiment = PolicyReset(cluster.client, cluster.clock, node="gpu-1", rng=random.Random(0))
        return await cluster.run(experiment.run(POLICY, len(wanted)))

    first, *samples = run_virtual(play())
    assert first == pytest.approx(mean + 80, abs=0.01)
    assert samples == pytest.approx(wanted, abs=0.01)


@pytest.mark.parametrize("mean", [369.0, 217.0, 207.0])
def test_workloads_are_measured_from_the_new_nodes_last_ready_to_their_container(mean: float) -> None:
    wanted = [mean + each for each in WOBBLES]

    async def play() -> list[float]:
        cluster = Cluster([scaled(each, node=f"new-{place}") for place, each in enumerate(wanted)])
        experiment = Autoscale(cluster.client, cluster.clock, namespace="default", rng=random.Random(0))
        return await cluster.run(experiment.run(WORKLOAD, len(wanted)))

    assert run_virtual(play()) == pytest.approx(wanted, abs=0.01)
