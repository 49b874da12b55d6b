"""The hands against a real HTTP conversation with the lab's API server: what is written, and what a refusal becomes."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.driver.rollout.conftest import NEW, NOW, OLD, POLICY, wanted

from tessera.api.nodes.node_marks import DRIVER_SET_LABEL, UPGRADE_STATE_LABEL
from tessera.clock import SystemClock
from tessera.driver.node_facts import RECORD_ANNOTATION
from tessera.driver.rollout.candidates import FAILURES_CONFIG_MAP
from tessera.driver.rollout.executor import RolloutExecutor, pull_name
from tessera.driver.rollout.instructions import (
    DeletePull,
    EvictPod,
    ForgetFailures,
    InstructionOutcome,
    PatchNode,
    PullImage,
    RecordFailure,
)
from tessera.driver.rollout.node_view import read_node_view
from tessera.driver.rollout.rollout import Rollout, RolloutMetrics
from tessera.gpu_operator.driver_policy import UpgradePolicy
from tessera.kube.client import Client
from tessera.kube.errors import NotFound
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import CONFIGMAPS, EVENTS, NAMESPACES, NODES, PODS, Node
from tessera.kube.resources.meta import Resource
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer

ADMIN = UserInfo(name="admin", groups=("system:masters", "system:authenticated"))
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, dict)


class Desk:
    """Hands, and the server that they write to."""

    def __init__(self) -> None:
        clock = SystemClock()
        self.client = Client(InProcessTransport(ApiServer(clock, seed=1), ADMIN), field_manager="test", clock=clock)
        self.events = EventRecorder(self.client, component="test", clock=clock, rng=random.Random(0))
        self.leads = True
        self.hands = self.new_hands()

    def new_hands(self) -> RolloutExecutor:
        return RolloutExecutor(self.runtime(), namespace="tessera-system", events=self.events)

    def runtime(self) -> KubeRuntime:
        return KubeRuntime(client=self.client, clock=SystemClock(), rng=random.Random(0), may_act=lambda: self.leads)

    async def node(self) -> Node:
        return await self.client.get(NODES, "n1")

    async def pod(self, name: str, **spec: Any) -> str:
        item = {
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "busybox"}], **spec},
        }
        return (await self.client.create(PODS.as_dicts(), item, "default"))["metadata"]["uid"]  # type: ignore[no-any-return]


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    made = Desk()
    await made.client.create(NAMESPACES.as_dicts(), {"metadata": {"name": "tessera-system"}})
    labels = {DRIVER_SET_LABEL: OLD}
    await made.client.create(NODES.as_dicts(), {"metadata": {"name": "n1", "labels": labels}})
    yield made
    await made.client.close()


def patch(node: Node, **more: Any) -> PatchNode:
    given = {"labels": {UPGRADE_STATE_LABEL: "cordon-required"}, "annotations": {RECORD_ANNOTATION: "{}"}}
    return PatchNode(node="n1", uid=node.metadata.uid, version=node.metadata.resource_version, **(given | more))


async def test_label_annotation_and_cordon_are_one_write_and_an_event_tells_it(desk: Desk) -> None:
    answer = await desk.hands.execute(
        patch(await desk.node(), unschedulable=True, reason="DriverUpgrade", note="begins")
    )
    node = await desk.node()
    assert answer is InstructionOutcome.DONE
    assert node.metadata.labels[UPGRADE_STATE_LABEL] == "cordon-required"
    assert (node.metadata.annotations[RECORD_ANNOTATION], node.spec.unschedulable) == ("{}", True)
    await desk.hands.execute(patch(node, unschedulable=False, labels={UPGRADE_STATE_LABEL: None}))
    assert not (await desk.node()).spec.unschedulable
    await desk.events.flush()
    (event,) = (await desk.client.list(EVENTS, "default")).items
    assert (event.reason, event.message, event.involved_object.name) == ("DriverUpgrade", "begins", "n1")


async def test_a_decision_on_an_old_view_changes_nothing(desk: Desk) -> None:
    old = await desk.node()
    await desk.client.merge_patch(NODES, "n1", {"spec": {"unschedulable": True}})
    assert await desk.hands.execute(patch(old, unschedulable=False)) is InstructionOutcome.OUTDATED
    assert (await desk.node()).spec.unschedulable
    await desk.client.delete(NODES, "n1")
    assert await desk.hands.execute(patch(old)) is InstructionOutcome.OUTDATED


async def test_the_driver_set_is_not_touched_while_a_pod_with_cards_is_bound_that_no_watch_has_shown(
    desk: Desk,
) -> None:
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    await desk.pod("late", containers=[{"name": "c", "image": "i", "resources": limits}])
    change = patch(await desk.node(), labels={DRIVER_SET_LABEL: "changing"}, without_gpu_pods=True)
    assert await desk.hands.execute(change) is InstructionOutcome.REFUSED
    assert (await desk.node()).metadata.labels[DRIVER_SET_LABEL] == OLD
    await desk.client.delete(PODS, "late", "default", grace_seconds=0)
    assert await desk.hands.execute(change) is InstructionOutcome.DONE


async def test_a_patch_that_says_nothing_new_is_not_repeated_at_once(desk: Desk) -> None:
    await desk.hands.execute(patch(await desk.node()))
    assert await desk.hands.execute(patch(await desk.node())) is InstructionOutcome.REFUSED


async def test_evictions_keep_disruption_budgets_and_tell_what_the_server_said(desk: Desk) -> None:
    uid = await desk.pod("web")
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await desk.client.merge_patch(PODS, "web", {"status": ready}, "default", subresource="status")
    budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}}
    await desk.client.create(BUDGETS, budget, "default")
    eviction = EvictPod(node="n1", namespace="default", name="web", uid=uid)
    assert await desk.hands.execute(eviction) is InstructionOutcome.REFUSED
    assert "disruption budget" in desk.hands.refusals[uid]
    await desk.client.delete(BUDGETS, "b", "default")
    assert await desk.hands.execute(eviction) is InstructionOutcome.DONE
    assert uid not in desk.hands.refusals


async def test_another_life_of_a_pod_is_not_evicted(desk: Desk) -> None:
    await desk.pod("web")
    eviction = EvictPod(node="n1", namespace="default", name="web", uid="another")
    assert await desk.hands.execute(eviction) is InstructionOutcome.OUTDATED
    assert (await desk.client.get(PODS, "web", "default")).metadata.deletion_timestamp is None


async def test_an_image_is_brought_once_by_a_pod_that_fits_everywhere_and_goes_with_its_node(desk: Desk) -> None:
    node = await desk.node()
    pull = PullImage(node="n1", node_uid=node.metadata.uid, set=NEW, image="r/driver@sha256:1", secrets=("key",))
    assert await desk.hands.execute(pull) is InstructionOutcome.DONE
    assert await desk.hands.execute(pull) is InstructionOutcome.REFUSED
    found = await desk.client.get(PODS.as_dicts(), pull_name("n1", NEW), "tessera-system")
    spec = found["spec"]
    assert (spec["nodeName"], spec["imagePullSecrets"]) == ("n1", [{"name": "key"}])
    assert "resources" not in spec["containers"][0] or not spec["containers"][0]["resources"]
    assert found["metadata"]["ownerReferences"][0]["uid"] == node.metadata.uid
    assert DRIVER_SET_LABEL not in found["metadata"]["labels"]  # the set's DaemonSet would adopt it
    uid = found["metadata"]["uid"]
    gone = DeletePull(namespace="tessera-system", name=found["metadata"]["name"], uid=uid)
    assert await desk.hands.execute(gone) is InstructionOutcome.DONE
    assert await desk.hands.execute(gone) is InstructionOutcome.OUTDATED


async def test_failures_outlive_the_controller_and_can_be_forgotten(desk: Desk) -> None:
    await desk.hands.load_failures()
    failed = RecordFailure(set=NEW, policy=POLICY, node="n1", cause="it broke", at=NOW)
    assert await desk.hands.execute(failed) is InstructionOutcome.DONE
    assert (
        await desk.hands.execute(RecordFailure(set=OLD, policy=POLICY, node="n2", cause="x", at=NOW))
        is InstructionOutcome.DONE
    )
    later = desk.new_hands()
    await later.load_failures()
    assert later.failures[NEW].nodes["n1"].cause == "it broke"
    assert await later.execute(ForgetFailures(set=NEW)) is InstructionOutcome.DONE
    stored = await desk.client.get(CONFIGMAPS, FAILURES_CONFIG_MAP, "tessera-system")
    assert set(stored.data) == {OLD}


async def test_what_somebody_wrote_into_the_memory_is_bounded_and_cannot_break_it(desk: Desk) -> None:
    data = {"a": "{", "b": "x" * 70_000, "c": '{"policy": "p", "nodes": {"n": {"cause": "c", "at": 1}}}'}
    item = {"metadata": {"name": FAILURES_CONFIG_MAP}, "data": data}
    await desk.client.create(CONFIGMAPS, item, "tessera-system")
    await desk.hands.load_failures()
    assert set(desk.hands.failures) == {"c"}


async def test_a_process_that_does_not_lead_writes_nothing(desk: Desk) -> None:
    desk.leads = False
    assert await desk.hands.execute(patch(await desk.node(), unschedulable=True)) is InstructionOutcome.REFUSED
    assert not (await desk.node()).spec.unschedulable


async def test_a_rollout_acts_on_what_it_decides_and_shows_the_numbers(desk: Desk) -> None:
    registry, woken = CollectorRegistry(), asyncio.Event()
    rollout = Rollout(
        desk.runtime(),
        desk.hands,
        metrics=RolloutMetrics(registry),
        wake=woken.set,
    )
    await rollout.load()
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"nvidia.com/gpu": "1"}}
    await desk.client.merge_patch(NODES, "n1", {"status": ready}, subresource="status")
    for _ in range(3):
        pods = (await desk.client.list(PODS, "tessera-system")).items
        view = read_node_view(await desk.node(), pods, wanted(), validated=lambda _: True, now=NOW)
        async with asyncio.TaskGroup() as group:
            decision = rollout.advance([view], {POLICY: UpgradePolicy()}, group)
    assert woken.is_set()
    assert (await desk.node()).metadata.labels[UPGRADE_STATE_LABEL] == "upgrade-required"
    assert pods[0].metadata.name == pull_name("n1", NEW)
    assert "is being pulled" in decision.notes["n1"]
    labels = {"policy": POLICY, "state": "pending"}
    assert registry.get_sample_value("tessera_driver_upgrades", labels) == 1
    assert registry.get_sample_value("tessera_driver_rollout_stopped", {"policy": POLICY}) == 0
    assert rollout.failures_of(NEW) == {}
    with pytest.raises(NotFound):
        await desk.client.get(CONFIGMAPS, FAILURES_CONFIG_MAP, "tessera-system")


async def test_what_is_said_of_a_node_stands_until_its_write_is_seen(desk: Desk) -> None:
    rollout = Rollout(desk.runtime(), desk.hands, metrics=RolloutMetrics(CollectorRegistry()), wake=lambda: None)
    await rollout.load()
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"nvidia.com/gpu": "1"}}
    await desk.client.merge_patch(NODES, "n1", {"status": ready}, subresource="status")
    view = read_node_view(await desk.node(), [], wanted(), validated=lambda _: True, now=NOW)
    async with asyncio.TaskGroup() as group:
        first = rollout.advance([view], {POLICY: UpgradePolicy()}, group)
    async with asyncio.TaskGroup() as group:
        second = rollout.advance([view], {POLICY: UpgradePolicy()}, group)
    assert first.notes["n1"]
    assert second.notes == first.notes
    assert second.instructions == ()
