"""The driver part of the controller against the lab's API server, killed at each of its writes; simulated time."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

import pytest
from prometheus_client import CollectorRegistry
from tests.support.mortal_transport import TransportUntilWrite

from tessera.api.nodes.node_marks import DRIVER_ANNOTATION, DRIVER_SET_LABEL, DriverStrategy
from tessera.clock import LoopClock
from tessera.doctor.manifests import install_manifests
from tessera.driver.driver_sets import set_of
from tessera.driver.images import ImageKind, ImageQuery, Outcome, Resolution
from tessera.driver.next_kernels import CoverageMetrics
from tessera.driver.node_status import read_status
from tessera.driver.rollout.rollout import RolloutMetrics
from tessera.driver.satellite import DriverOptions, Drivers
from tessera.gpu_operator.assignment import CLUSTER_POLICIES
from tessera.kube.client import Client
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.informer import Informer
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.requests import Transport
from tessera.kube.resources import CRDS, DAEMONSETS, NAMESPACES, NODES, PODS
from tessera.replay.recorder import Recorders
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer

ADMIN = UserInfo(name="admin", groups=("system:masters", "system:authenticated"))
KERNELS = {"a": "5.15.0-69-generic", "b": "5.15.0-70-generic"}
NAMESPACE = "tessera-system"


class Registry:
    """Has modules for the first kernel, and sources for all."""

    async def resolve(self, query: ImageQuery, *, fresh: bool = False) -> Resolution:
        covered = query.kind is ImageKind.PRECOMPILED and query.pool.kernel == KERNELS["a"]
        if covered or query.kind is ImageKind.BUILDER:
            name = f"nvcr.io/nvidia/driver:{query.kind.value}"
            return Resolution(outcome=Outcome.FOUND, reference=name, digest=f"sha256:{query.kind.value}", tag="t")
        return Resolution(outcome=Outcome.NOT_FOUND)


class ServerWithNodes:
    """An API server with two nodes and, maybe, a policy."""

    def __init__(self) -> None:
        self.clock = LoopClock(1_800_000_000)
        self.server = ApiServer(self.clock)
        self.admin = self.client("admin", lambda inner: inner)
        self.recorders = Recorders()

    def client(self, name: str, wrap: Callable[[Transport], Transport]) -> Client:
        return Client(wrap(InProcessTransport(self.server, ADMIN)), field_manager=name, clock=self.clock)

    async def begin(self, *, definitions: bool = True) -> None:
        await self.admin.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        if definitions:
            await self.define()
        for name, kernel in KERNELS.items():
            await self.add_node(name, kernel)

    async def add_node(self, name: str, kernel: str) -> None:
        info = {"kernelVersion": kernel, "osImage": "Ubuntu 22.04.4 LTS", "architecture": "amd64", "bootID": "b0"}
        body = {"metadata": {"name": name, "labels": {"nvidia.com/gpu.present": "true"}}}
        await self.admin.create(NODES.as_dicts(), body)
        await self.admin.merge_patch(NODES, name, {"status": {"nodeInfo": info}}, subresource="status")

    async def define(self) -> None:
        for each in install_manifests():
            if each["kind"] == "CustomResourceDefinition" and each["spec"]["group"] == "nvidia.com":
                await self.admin.create(CRDS, each)

    async def ask(self) -> None:
        driver = {"usePrecompiled": True, "repository": "nvcr.io/nvidia", "image": "driver", "version": "525.125.06"}
        await self.admin.create(CLUSTER_POLICIES, {"metadata": {"name": "p"}, "spec": {"driver": driver}})

    async def live(self, seconds: float, wrap: Callable[[Transport], Transport] = lambda inner: inner) -> None:
        """One life of the process, as a task of its own: Python 3.11.2 counts cancellations beyond a task group."""
        await asyncio.create_task(self._live(seconds, wrap))

    async def _live(self, seconds: float, wrap: Callable[[Transport], Transport]) -> None:
        client, rng = self.client("tessera-controller", wrap), random.Random(0)
        nodes = Informer(client, NODES, clock=self.clock, rng=rng)
        pods = Informer(client, PODS, clock=self.clock, rng=rng)
        events = EventRecorder(client, component="tessera-controller", clock=self.clock, rng=rng)
        metrics = CollectorRegistry()
        drivers = Drivers(
            KubeRuntime(client=client, clock=self.clock, rng=rng, recorders=self.recorders),
            resolver=Registry(),
            nodes=nodes,
            pods=pods,
            options=DriverOptions(image="tessera:1"),
            events=events,
            metrics=RolloutMetrics(metrics),
            coverage=CoverageMetrics(metrics),
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                for part in (nodes.run(), pods.run(), events.run(), drivers.run()):
                    group.create_task(part)

    async def told(self) -> dict[str, tuple[DriverStrategy, bool]]:
        """Each node's strategy, and whether its label names a DaemonSet for its kernel."""
        sets = [set_of(each.metadata) for each in (await self.admin.list(DAEMONSETS, NAMESPACE)).items]
        kernels = {made.id: made.pool.kernel for made in sets if made is not None}
        found: dict[str, tuple[DriverStrategy, bool]] = {}
        for node in (await self.admin.list(NODES)).items:
            status = read_status(node.metadata.annotations.get(DRIVER_ANNOTATION, ""))
            if status is not None:
                fits = kernels.get(node.metadata.labels.get(DRIVER_SET_LABEL, "")) == KERNELS[node.metadata.name]
                found[node.metadata.name] = status.strategy, fits
        assert len(kernels) == len(found)
        return found


ALL = {"a": (DriverStrategy.PRECOMPILED, True), "b": (DriverStrategy.BUILT, True)}


@pytest.fixture
async def lab(virtual_time: None) -> ServerWithNodes:
    return ServerWithNodes()


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("last", range(12))
async def test_whoever_comes_after_a_death_at_any_write_brings_it_to_the_same_end(
    lab: ServerWithNodes, last: int, applied: bool
) -> None:
    await lab.begin()
    await lab.ask()
    with suppress(ExceptionGroup):
        await lab.live(30, lambda inner: TransportUntilWrite(inner, last=last, applied=applied))
    await lab.live(30)
    assert await lab.told() == ALL


async def test_definitions_that_come_later_are_seen(lab: ServerWithNodes) -> None:
    await lab.begin(definitions=False)

    async def install() -> None:
        await lab.clock.sleep(100)
        await lab.define()
        await lab.ask()

    async with asyncio.TaskGroup() as group:
        group.create_task(install())
        await lab.live(200)
    assert await lab.told() == ALL


async def test_a_cluster_at_rest_is_not_written_to(lab: ServerWithNodes) -> None:
    await lab.begin()
    await lab.ask()
    await lab.live(30)
    before = len([each for each in lab.server.audit if each.verb not in {"get", "list", "watch"}])
    await lab.live(3600)
    assert len([each for each in lab.server.audit if each.verb not in {"get", "list", "watch"}]) == before


async def test_without_policy_and_driver_only_traces_of_a_driver_start_a_planning_round(lab: ServerWithNodes) -> None:
    lab.recorders = Recorders(keep=100)
    await lab.begin()

    def rounds() -> int:
        found = (each for each in lab.recorders.records() if each.decider == "driver-plan")
        return sum(len(each.decisions) for each in found)

    async def change() -> None:
        await lab.clock.sleep(60)
        before = rounds()
        assert before > 0, "a start plans"
        for number in range(5):
            await lab.admin.merge_patch(NODES, "a", {"metadata": {"labels": {"team": str(number)}}})
            await lab.clock.sleep(10)
        assert rounds() == before
        await lab.admin.merge_patch(NODES, "a", {"metadata": {"annotations": {DRIVER_ANNOTATION: "{}"}}})
        await lab.clock.sleep(60)
        assert DRIVER_ANNOTATION not in (await lab.admin.get(NODES, "a")).metadata.annotations, "a trace is removed"
        await lab.ask()
        await lab.clock.sleep(60)
        assert await lab.told() == ALL
        await lab.admin.delete(CLUSTER_POLICIES, "p")
        await lab.clock.sleep(60)
        assert await lab.told() == {}

    async with asyncio.TaskGroup() as group:
        group.create_task(change())
        await lab.live(400)


async def test_a_pod_that_came_before_the_first_policy_counts(lab: ServerWithNodes) -> None:
    await lab.begin()

    async def come() -> None:
        await lab.clock.sleep(60)
        labels = {"app": "nvidia-driver-daemonset"}
        container = {"name": "c", "image": "i", "securityContext": {"privileged": True}}
        pod = {
            "metadata": {"name": "driver", "namespace": "gpu-operator", "labels": labels},
            "spec": {"nodeName": "a", "containers": [container]},
        }
        await lab.admin.create(NAMESPACES, {"metadata": {"name": "gpu-operator"}})
        await lab.admin.create(PODS.as_dicts(), pod, "gpu-operator")
        await lab.clock.sleep(60)
        await lab.ask()
        await lab.clock.sleep(60)
        nodes = (await lab.admin.list(NODES)).items
        assert {each.metadata.name for each in nodes if DRIVER_SET_LABEL in each.metadata.labels} == {"b"}

    async with asyncio.TaskGroup() as group:
        group.create_task(come())
        await lab.live(200)


async def test_a_daemonset_that_somebody_deletes_is_made_again(lab: ServerWithNodes) -> None:
    await lab.begin()
    await lab.ask()

    async def meddle() -> None:
        await lab.clock.sleep(30)
        for each in (await lab.admin.list(DAEMONSETS, NAMESPACE)).items:
            await lab.admin.delete(DAEMONSETS, each.metadata.name, NAMESPACE)

    async with asyncio.TaskGroup() as group:
        group.create_task(meddle())
        await lab.live(90)
    assert await lab.told() == ALL


async def test_a_label_that_somebody_takes_away_comes_back(lab: ServerWithNodes) -> None:
    await lab.begin()
    await lab.ask()

    async def meddle() -> None:
        await lab.clock.sleep(30)
        await lab.admin.merge_patch(NODES, "a", {"metadata": {"labels": {DRIVER_SET_LABEL: None}}})

    async with asyncio.TaskGroup() as group:
        group.create_task(meddle())
        await lab.live(90)
    assert await lab.told() == ALL


async def test_what_came_while_nothing_was_to_do_counts_for_a_policy_that_comes_again(lab: ServerWithNodes) -> None:
    await lab.begin()
    await lab.ask()

    async def change() -> None:
        await lab.clock.sleep(60)
        assert await lab.told() == ALL
        await lab.admin.delete(CLUSTER_POLICIES, "p")
        await lab.clock.sleep(60)
        assert await lab.told() == {}
        await lab.admin.delete(NODES, "a")
        await lab.add_node("a", "5.15.0-70-generic")
        await lab.add_node("c", "5.15.0-69-generic")
        lab.server.end_watches()
        await lab.clock.sleep(60)
        await lab.ask()
        await lab.clock.sleep(60)
        sets = [set_of(each.metadata) for each in (await lab.admin.list(DAEMONSETS, NAMESPACE)).items]
        kernels = {made.id: made.pool.kernel for made in sets if made is not None}
        labels = {each.metadata.name: each.metadata.labels for each in (await lab.admin.list(NODES)).items}
        assert {name: kernels[each[DRIVER_SET_LABEL]] for name, each in labels.items()} == {
            "a": "5.15.0-70-generic",
            "b": "5.15.0-70-generic",
            "c": "5.15.0-69-generic",
        }

    async with asyncio.TaskGroup() as group:
        group.create_task(change())
        await lab.live(400)


async def test_a_trace_that_a_dying_leader_wrote_in_a_cluster_without_policy_goes(lab: ServerWithNodes) -> None:
    await lab.begin()
    await lab.live(60)
    await lab.admin.merge_patch(NODES, "a", {"metadata": {"annotations": {DRIVER_ANNOTATION: "{}"}}})

    async def write_late() -> None:
        await lab.clock.sleep(30)
        await lab.admin.merge_patch(NODES, "b", {"metadata": {"labels": {DRIVER_SET_LABEL: "old"}}})

    async with asyncio.TaskGroup() as group:
        group.create_task(write_late())
        await lab.live(120)
    for node in (await lab.admin.list(NODES)).items:
        assert DRIVER_ANNOTATION not in node.metadata.annotations
        assert DRIVER_SET_LABEL not in node.metadata.labels
