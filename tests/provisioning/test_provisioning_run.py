"""Provisioning against the lab's API server, in one process and on virtual time."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from tests.provisioning.conftest import GPU_TAINT, condition, offering

from tessera.api.nodes.node_marks import PROVISIONED
from tessera.clock import LoopClock, rfc3339
from tessera.kube.client import Client
from tessera.kube.errors import NotFound
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.informer import Informer, InformerGroup
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import CONFIGMAPS, CRDS, EVENTS, NAMESPACES, NODECLAIMS, NODES, PODS, Node, Taint
from tessera.provisioning.history import (
    BROKEN_KEY,
    RECORDS_KEY,
    RECORDS_NAME,
    WORKLOADS_KEY,
    decode_record,
    decode_workload,
)
from tessera.provisioning.milestones import PROVISIONING_ANNOTATION, Milestone, ProvisioningRecord
from tessera.provisioning.recording import ProvisioningMetrics
from tessera.provisioning.satellite import Provisioning
from tessera.provisioning.startup_deadline import ProvisioningOptions
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.simulation.virtual_time import run_virtual

M = Milestone
ADMIN = UserInfo(name="admin", groups=("system:masters", "system:authenticated"))
SYSTEM = "tessera-system"
EPOCH = 1_800_000_000
GPU = {"nvidia.com/gpu": "1"}

NODECLAIM_CRD = {
    "metadata": {"name": "nodeclaims.karpenter.sh"},
    "spec": {
        "group": "karpenter.sh",
        "scope": "Cluster",
        "names": {"plural": "nodeclaims", "singular": "nodeclaim", "kind": "NodeClaim"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


class Cluster:
    """An API server, whoever makes nodes, and a controller that may be killed."""

    def __init__(self, **options: Any) -> None:
        self.clock = LoopClock(EPOCH)
        self.server = ApiServer(self.clock)
        self.admin = self.client("admin")
        self.options = ProvisioningOptions(**options)
        self.registry = CollectorRegistry()
        self.metrics = ProvisioningMetrics(self.registry)
        rng = random.Random(1)
        self.nodes = Informer(self.admin, NODES, clock=self.clock, rng=rng)
        self.maps = Informer(self.admin, CONFIGMAPS, clock=self.clock, rng=rng, namespace=SYSTEM)
        self.events = Informer(self.admin, EVENTS, clock=self.clock, rng=rng)
        self.watched = InformerGroup(self.nodes, self.maps, self.events)
        self.leads = True

    def client(self, name: str) -> Client:
        user = UserInfo(name=name, groups=ADMIN.groups)
        return Client(InProcessTransport(self.server, user), field_manager=name, clock=self.clock)

    async def controller(self) -> None:
        """One life of the controller, until cancelled."""
        client, rng = self.client("tessera-controller"), random.Random(2)
        nodes = Informer(client, NODES, clock=self.clock, rng=rng)
        pods = Informer(client, PODS, clock=self.clock, rng=rng)
        events = EventRecorder(client, component="tessera-controller", clock=self.clock, rng=rng)
        part = Provisioning(
            KubeRuntime(client=client, clock=self.clock, rng=rng, may_act=lambda: self.leads),
            nodes=nodes,
            pods=pods,
            events=events,
            metrics=self.metrics,
            options=self.options,
        )
        async with asyncio.TaskGroup() as group:
            for each in (nodes, pods, events, part):
                group.create_task(each.run())

    async def join(self, name: str = "gpu-1", *, taints: tuple[str, ...] = (GPU_TAINT,), **spec: Any) -> None:
        """A node registers."""
        labels = {"nvidia.com/gpu.present": "true", "karpenter.sh/nodepool": "gpus"}
        keys = [{"key": key, "effect": "NoSchedule"} for key in taints]
        body = {"metadata": {"name": name, "labels": labels}, "spec": {"taints": keys, **spec}}
        await self.admin.create(NODES, body)

    async def status(self, name: str = "gpu-1", **status: Any) -> None:
        await self.admin.merge_patch(NODES, name, {"status": status}, subresource="status")

    async def comes_up(self, name: str = "gpu-1") -> None:
        """The node's agent and kubelet say that all is there."""
        await self.admin.merge_patch(NODES, name, {"metadata": {"annotations": offering()}})
        now = self.clock.now()
        told = [condition("Ready", at=now), condition("GpuSharingApplied", at=now)]
        await self.status(name, conditions=told, capacity=GPU, allocatable=GPU)

    def node(self, name: str = "gpu-1") -> Node | None:
        return self.nodes.cache.get(name)

    def taints(self, name: str = "gpu-1") -> list[str]:
        found = self.node(name)
        return [each.key for each in found.spec.taints] if found is not None else []

    def told(self, name: str = "gpu-1") -> tuple[str, str]:
        found = self.node(name)
        every = found.status.conditions if found is not None else ()
        return next(((each.status, each.reason) for each in every if each.type == PROVISIONED), ("", ""))

    def record(self, name: str = "gpu-1") -> ProvisioningRecord | None:
        found = self.node(name)
        text = found.metadata.annotations.get(PROVISIONING_ANNOTATION) if found is not None else None
        return decode_record(text) if text else None

    def kept(self) -> list[ProvisioningRecord]:
        found = self.maps.cache.get(f"{SYSTEM}/{RECORDS_NAME}")
        return [decode_record(line) for line in found.data[RECORDS_KEY].splitlines()] if found is not None else []

    def reasons(self) -> list[str]:
        return [each.reason for each in self.events.cache.values()]

    async def until(self, found: Callable[[], Any], what: str, seconds: float = 600) -> None:
        await self.watched.wait_until(lambda: found() or None, seconds, what)

    def count(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


Scenario = Callable[[Cluster], Awaitable[None]]


@pytest.fixture
def play() -> Callable[..., None]:
    """Plays a scenario with a controller that runs."""

    def run(scenario: Scenario, *, controller: bool = True, **options: Any) -> None:
        async def whole() -> None:
            cluster = Cluster(**options)
            await cluster.admin.create(NAMESPACES, {"metadata": {"name": SYSTEM}})
            async with cluster.watched.running():
                task = asyncio.create_task(cluster.controller()) if controller else None
                await scenario(cluster)
                if task is not None:
                    task.cancel()
                    await asyncio.wait([task])

        run_virtual(whole())

    return run


Play = Callable[..., None]


def test_the_taint_goes_at_once_when_all_is_given_out(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.join(taints=("other.example/taint", GPU_TAINT))
        await cluster.clock.sleep(120)
        assert cluster.taints() == ["other.example/taint", GPU_TAINT]
        await cluster.comes_up()
        await cluster.until(lambda: cluster.taints() == ["other.example/taint"], "the taint is off", seconds=1)
        await cluster.until(lambda: cluster.told() == ("True", "Provisioned"), "it is told", seconds=1)
        await cluster.until(lambda: "StartupTaintRemoved" in cluster.reasons(), "an Event says so", seconds=1)
        assert cluster.count("tessera_startup_taints_removed_total") == 1

    play(scenario)


def test_a_record_is_on_the_node_and_outlives_it(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.join()
        await cluster.clock.sleep(132)
        await cluster.comes_up()
        await cluster.until(lambda: (found := cluster.record()) and M.ALLOCATABLE in found.at, "it is on the node")
        await cluster.until(cluster.kept, "it is in the book")
        await cluster.admin.delete(NODES, "gpu-1")
        await cluster.clock.sleep(60)
        (kept,) = cluster.kept()
        assert kept.at[M.ALLOCATABLE] - kept.at[M.REGISTERED] == pytest.approx(132, abs=1)
        assert kept.group == "gpus"
        labels = {"phase": "total-startup", "pool": "unknown", "strategy": "unknown", "image": "unknown"}
        assert cluster.count("tessera_provisioning_phase_seconds_count", **labels) == 1
        assert cluster.count("tessera_provisioning_phase_seconds_sum", **labels) == pytest.approx(132, abs=1)

    play(scenario)


def test_a_node_whose_driver_never_comes_is_told_of_at_the_deadline_and_keeps_its_taint(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.join()
        await cluster.status(conditions=[condition("Ready", at=cluster.clock.now())])
        await cluster.clock.sleep(290)
        assert cluster.told() == ("", "")
        await cluster.until(lambda: cluster.told() == ("False", "FactsMissing"), "it is overdue", seconds=12)
        await cluster.clock.sleep(3600)
        assert cluster.taints() == [GPU_TAINT]
        assert cluster.node() is not None
        assert "FactsMissing" in cluster.reasons()
        assert cluster.count("tessera_startup_overdue_nodes_total", reason="FactsMissing") == 1

    play(scenario, deadline=300)


def test_a_node_that_comes_up_late_is_used_after_all(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.join()
        await cluster.until(lambda: cluster.told()[0] == "False", "it is overdue")
        await cluster.comes_up()
        await cluster.until(lambda: cluster.told() == ("True", "Provisioned"), "it is told")
        await cluster.until(lambda: cluster.taints() == [], "the taint is off")

    play(scenario, deadline=300)


async def with_claims(cluster: Cluster, *names: str) -> None:
    """Nodes that Karpenter made."""
    await cluster.admin.create(CRDS, NODECLAIM_CRD)
    for name in names:
        claim = {
            "metadata": {"name": f"claim-{name}", "finalizers": ["karpenter.sh/termination"]},
            "status": {"nodeName": name},
        }
        await cluster.admin.create(NODECLAIMS.as_dicts(), claim)
        await cluster.join(name)


async def claims(cluster: Cluster) -> set[str]:
    """Those that nobody has asked to go."""
    every = (await cluster.admin.list(NODECLAIMS)).items
    return {each.metadata.name for each in every if each.metadata.deletion_timestamp is None}


def test_failed_nodes_are_replaced_up_to_the_limit_and_then_it_stops_and_says_so(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        await with_claims(cluster, "a", "b", "c")
        await cluster.clock.sleep(1200)
        assert len(await claims(cluster)) == 1
        assert cluster.reasons().count("GpuNodeReplaced") == 2
        assert cluster.reasons().count("GpuNodeReplacementDelayed") == 1
        assert cluster.count("tessera_replaced_nodes_total") == 2
        assert all(cluster.node(name) is not None for name in "abc")  # they are Karpenter's to drain and delete

    play(scenario, deadline=300, replace_failed=2)


def test_replacements_are_counted_over_a_restart_of_the_controller(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        await with_claims(cluster, "a", "b")
        for _ in range(2):
            task = asyncio.create_task(cluster.controller())
            await cluster.clock.sleep(1000)
            task.cancel()
            await asyncio.wait([task])
        assert len(await claims(cluster)) == 1

    play(scenario, controller=False, deadline=300, replace_failed=1)


def test_a_machine_that_must_not_be_disrupted_stays(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        await with_claims(cluster, "a")
        protect = {"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}}
        await cluster.admin.merge_patch(NODECLAIMS, "claim-a", protect)
        await cluster.clock.sleep(1200)
        assert await claims(cluster) == {"claim-a"}
        assert "GpuNodeReplacementDelayed" in cluster.reasons()

    play(scenario, deadline=300, replace_failed=2)


def test_a_node_that_nobody_made_is_deleted_itself_unless_pods_run_on_it(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.join("idle")
        await cluster.join("busy")
        spec = {"nodeName": "busy", "containers": [{"name": "c", "image": "i"}]}
        await cluster.admin.create(PODS.as_dicts(), {"metadata": {"name": "web"}, "spec": spec}, SYSTEM)
        await cluster.clock.sleep(1200)
        assert cluster.node("idle") is None
        assert cluster.node("busy") is not None
        (held,) = [each.message for each in cluster.events.cache.values() if each.reason == "GpuNodeReplacementDelayed"]
        assert held.endswith(f"no Machine or NodeClaim is known, and pods run on it: {SYSTEM}/web")

    play(scenario, deadline=300, replace_failed=2)


def test_a_pod_is_tesseras_own_by_its_label_and_its_namespace(play: Play) -> None:
    """Tenants write any label in theirs, so what they run keeps its node whatever it is called."""

    async def scenario(cluster: Cluster) -> None:
        for name, namespace in (("validated", SYSTEM), ("theirs", "default")):
            await cluster.join(name)
            metadata = {"name": "pod", "labels": {"app.kubernetes.io/name": "tessera-validation"}}
            spec = {"nodeName": name, "containers": [{"name": "c", "image": "i"}]}
            await cluster.admin.create(PODS.as_dicts(), {"metadata": metadata, "spec": spec}, namespace)
        await cluster.clock.sleep(1200)
        assert (cluster.node("validated"), cluster.node("theirs") is not None) == (None, True)
        (held,) = [each.message for each in cluster.events.cache.values() if each.reason == "GpuNodeReplacementDelayed"]
        assert held.endswith("pods run on it: default/pod")

    play(scenario, deadline=300, replace_failed=2)


def test_a_claim_says_when_its_node_was_asked_for_also_when_karpenter_comes_later(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.clock.sleep(600)
        await cluster.admin.create(CRDS, NODECLAIM_CRD)
        launched = condition("Launched", at=cluster.clock.now() + 40)
        claim = {"metadata": {"name": "c"}, "status": {"nodeName": "gpu-1", "conditions": [launched]}}
        await cluster.admin.create(NODECLAIMS.as_dicts(), claim)
        await cluster.clock.sleep(100)
        await cluster.join()
        await cluster.until(lambda: (found := cluster.record()) and M.VM in found.at, "the claim is seen")
        found = cluster.record()
        assert found is not None
        assert found.at[M.REGISTERED] - found.at[M.REQUESTED] == pytest.approx(100, abs=1)
        assert found.at[M.REGISTERED] - found.at[M.VM] == pytest.approx(60, abs=1)

    play(scenario)


def test_a_workload_that_waited_ends_the_way_and_has_one_of_its_own(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        container = {"name": "c", "image": "i", "resources": {"limits": GPU}}
        pod = {"metadata": {"name": "job"}, "spec": {"containers": [container]}}
        made = await cluster.admin.create(PODS.as_dicts(), pod, SYSTEM)
        about = {"kind": "Pod", "namespace": SYSTEM, "name": "job", "uid": made["metadata"]["uid"]}
        await tell(cluster, about, "TriggeredScaleUp")
        await cluster.clock.sleep(60)
        await cluster.join()
        await cluster.clock.sleep(140)
        await cluster.comes_up()
        await cluster.clock.sleep(1)
        await cluster.admin.bind("job", SYSTEM, "gpu-1")
        await cluster.clock.sleep(20)
        await tell(cluster, about, "Pulled")
        await cluster.clock.sleep(4)
        started = {"running": {"startedAt": rfc3339(cluster.clock.now())}}
        status = {"phase": "Running", "containerStatuses": [{"name": "c", "state": started}]}
        await cluster.admin.merge_patch(PODS.as_dicts(), "job", {"status": status}, SYSTEM, subresource="status")
        await cluster.until(lambda: [each for each in cluster.kept() if M.WORKLOAD in each.at], "the way is over")
        (kept,) = cluster.kept()
        assert kept.at[M.WORKLOAD] - kept.at[M.REQUESTED] == pytest.approx(225, abs=1)
        book = cluster.maps.cache.get(f"{SYSTEM}/{RECORDS_NAME}")
        assert book is not None
        way = decode_workload(book.data[WORKLOADS_KEY])
        found = {step.value: moment - way.at[next(iter(way.at))] for step, moment in way.at.items()}
        assert found == pytest.approx(
            {"created": 0, "scaled-up": 0, "bound": 201, "pulled": 221, "started": 225}, abs=1
        )
        assert way.fresh

    play(scenario)


async def tell(cluster: Cluster, about: dict[str, str], reason: str) -> None:
    now = rfc3339(cluster.clock.now())
    body = {
        "metadata": {"generateName": "e-"},
        "involvedObject": about,
        "reason": reason,
        "firstTimestamp": now,
        "lastTimestamp": now,
    }
    await cluster.admin.create(EVENTS.as_dicts(), body, SYSTEM)


def test_a_controller_that_is_killed_again_and_again_loses_nothing_that_it_wrote(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        task = asyncio.create_task(cluster.controller())
        await cluster.clock.sleep(1)
        await cluster.join()
        for step in range(6):
            await cluster.clock.sleep(20)
            task.cancel()
            await asyncio.wait([task])
            if step == 3:
                await cluster.status(conditions=[condition("Ready", at=cluster.clock.now())])
            task = asyncio.create_task(cluster.controller())
        await cluster.clock.sleep(1)
        await cluster.comes_up()
        await cluster.until(cluster.kept, "it is in the book")
        (kept,) = cluster.kept()
        assert kept.at[M.READY] - kept.at[M.REGISTERED] == pytest.approx(80, abs=1)
        assert kept.at[M.ALLOCATABLE] - kept.at[M.REGISTERED] == pytest.approx(121, abs=1)
        task.cancel()
        await asyncio.wait([task])

    play(scenario, controller=False)


def test_a_broken_book_is_set_aside_and_told(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        body = {"metadata": {"name": RECORDS_NAME}, "data": {RECORDS_KEY: '{"node":"old","uid":"o"}\nnonsense\n'}}
        await cluster.admin.create(CONFIGMAPS, body, SYSTEM)
        task = asyncio.create_task(cluster.controller())
        await cluster.until(lambda: "RecordsUnreadable" in cluster.reasons(), "it is told")
        await cluster.until(
            lambda: cluster.maps.cache.get(f"{SYSTEM}/{RECORDS_NAME}").data.get(BROKEN_KEY) == "nonsense",  # type: ignore[union-attr]
            "it is set aside",
        )
        assert [each.node for each in cluster.kept()] == ["old"]
        task.cancel()
        await asyncio.wait([task])

    play(scenario, controller=False)


def test_a_replica_that_does_not_lead_writes_nothing(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.leads = False
        await cluster.join()
        await cluster.comes_up()
        await cluster.clock.sleep(600)
        assert cluster.taints() == [GPU_TAINT]
        assert cluster.record() is None
        assert cluster.kept() == []

    play(scenario, deadline=300)


def test_a_node_is_written_a_handful_of_times(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        versions: set[str] = set()
        cluster.nodes.add_handler(lambda event: versions.add(event.object.metadata.resource_version))
        await cluster.join()
        await cluster.clock.sleep(30)
        await cluster.status(conditions=[condition("Ready", at=cluster.clock.now())])
        await cluster.clock.sleep(100)
        await cluster.comes_up()
        await cluster.clock.sleep(3600)
        # Registration, its status, what comes up (2); three states of the record, taint and condition.
        assert len(versions) <= 4 + 3 + 2

    play(scenario)


def test_taints_read_back_as_they_were() -> None:
    whole = {"key": "a", "value": "b", "effect": "NoExecute", "timeAdded": "2027-01-15T08:00:00Z"}
    assert msgspec.to_builtins(msgspec.convert(whole, Taint)) == whole


def test_a_cluster_without_any_of_it_costs_no_errors(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.clock.sleep(600)
        with pytest.raises(NotFound):
            await cluster.admin.get(CONFIGMAPS, RECORDS_NAME, SYSTEM)
        assert cluster.reasons() == []

    play(scenario)
