"""Services and their signals: whose, how many, how fresh; and as metrics of the controller."""

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from tests.handover.test_satellite import CLONE_SET_DEFINITION
from tests.support.mortal_transport import ForwardingTransport
from tests.support.slicer_cluster import SlicerCluster
from tests.webhook.conftest import ADMIN, Lab, in_lab

from tessera.api.names import PodUid, resource_of
from tessera.controller.objects.pod_constraints import NodeConstraints
from tessera.controller.objects.pod_info import PodInfo
from tessera.kube.client import Client
from tessera.kube.informer import EventKind, Informer, WatchEvent
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.requests import Request, Response
from tessera.kube.resources import CLONE_SETS, CRDS, DEPLOYMENTS, NAMESPACES, PODS, RESOURCE_QUOTAS, Pod
from tessera.signals import services
from tessera.signals.page import REPLICAS, ROOM, ROOM_COUNTED, Service, SignalsPage
from tessera.signals.satellite import AGE, ASKED, PERIOD, SignalsCollector, SignalsTask, StatedPods
from tessera.signals.services import (
    ROOM_AGE,
    WAITING_NAMED,
    ServiceKey,
    ServiceTable,
    count_room,
    first_of_each,
    has_room_number,
    quota_room,
)
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport

VLLM = ServiceKey("team", "Deployment", "vllm")


def with_services(
    *names: str, profile: str = "1g.5gb", cards: int = 1, alike: bool = True
) -> tuple[SlicerCluster, dict[PodUid, ServiceKey]]:
    """A cluster with a pod of each of these services."""
    cluster = SlicerCluster()
    cluster.node("n1", count=cards)
    amounts = [{"cpu": 100 if alike else 100 + number} for number in range(len(names))]
    pods = [cluster.pod(f"{name}-0", profile, amounts=each) for name, each in zip(names, amounts, strict=True)]
    cluster.run()
    cluster.agents()
    return cluster, {pod.uid: ServiceKey("team", "Deployment", name) for pod, name in zip(pods, names, strict=True)}


def rooms(page: SignalsPage) -> Mapping[str, float | None]:
    return {each.name: each.values.get(ROOM) for each in page.services}


def test_a_service_has_its_replicas_with_slices_and_its_room() -> None:
    cluster, owners = with_services("vllm", profile="3g.20gb")
    waits = cluster.pod("vllm-1", "4g.20gb")
    cluster.run()
    owners[waits.uid] = VLLM
    owners[PodUid("of nobody")] = VLLM
    page = ServiceTable(cluster.slicer).refresh(owners, 10.0)
    (found,) = page.services
    assert (found.namespace, found.kind, found.name) == VLLM
    assert found.values == {REPLICAS: 2.0, ROOM: 0.0}


def test_a_service_counts_its_pods_by_how_far_they_are() -> None:
    cluster, owners = with_services("vllm", profile="3g.20gb")
    for number in range(12):
        owners[cluster.pod(f"vllm-{number + 1}", "7g.40gb").uid] = VLLM
    cluster.run()
    first = next(iter(owners))
    (found,) = ServiceTable(cluster.slicer).refresh(owners, 10.0, ready={first}).services
    assert (found.wanted, found.ready) == (13, 1)
    assert found.placed <= 1
    assert len(found.waiting) == WAITING_NAMED


def test_each_namespace_has_a_first_service_before_any_has_a_second() -> None:
    many = [ServiceKey("a", "Deployment", f"d{number}") for number in range(9)]
    few = [ServiceKey("z", "Deployment", "only"), ServiceKey("b", "StatefulSet", "db")]
    assert first_of_each([*many, *few], 4) == [many[0], few[1], few[0], many[1]]


def test_of_too_many_services_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "SERVICES", 2)
    cluster, owners = with_services("a", "b", "c")
    page = ServiceTable(cluster.slicer).refresh(owners, 0.0)
    assert ([each.name for each in page.services], page.cut) == (["a", "b"], 1)


def test_rooms_are_counted_in_turn_and_forgotten_when_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "ROUND_STEPS", 1)
    cluster, owners = with_services("a", "b", "c", alike=False)
    table = ServiceTable(cluster.slicer)
    assert rooms(table.refresh(owners, 0.0)) == {"a": 4.0, "b": None, "c": None}
    assert rooms(table.refresh(owners, 15.0)) == {"a": 4.0, "b": 4.0, "c": None}
    assert rooms(table.refresh(owners, 30.0)) == {"a": 4.0, "b": 4.0, "c": 4.0}
    assert rooms(table.refresh(owners, ROOM_AGE + 16.0)) == {"a": 4.0, "b": None, "c": 4.0}


def test_a_tenant_who_makes_services_again_and_again_delays_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "ROUND_STEPS", 300)
    cluster, owners = with_services("vllm")
    table = ServiceTable(cluster.slicer)
    for number in range(6):
        for each in range(9):
            name = f"d{number}-{each}"
            made = cluster.pod(name, "1g.5gb", namespace="hostile", amounts={"cpu": 1 + len(owners)})
            owners[made.uid] = ServiceKey("hostile", "Deployment", name)
        cluster.run()
        page = table.refresh(owners, 30.0 * number)
        assert rooms(page)["vllm"] == 0.0


def test_one_count_answers_for_all_services_of_alike_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"s{number}" for number in range(10)]
    cluster, owners = with_services(*names, cards=8)
    monkeypatch.setattr(services, "ROUND_STEPS", 10 * 200)
    counted: list[str] = []

    def count(slicer: Any, pod: PodInfo) -> tuple[int, int]:
        counted.append(pod.name)
        return count_room(slicer, pod)

    monkeypatch.setattr(services, "count_room", count)
    page = ServiceTable(cluster.slicer).refresh(owners, 0.0)
    assert set(rooms(page).values()) == {46.0}
    assert len(counted) == 1


def pod(name: str, owner: str, kind: str = "ReplicaSet") -> Pod:
    reference = {"kind": kind, "name": owner, "uid": "u", "apiVersion": "apps/v1", "controller": True}
    container = {"name": "m", "image": "vllm", "resources": {"limits": {"nvidia.com/mig-1g.5gb": "1"}}}
    labels = {"pod-template-hash": "5d4f"}
    names = {"uid": f"uid-{name}", "name": name, "namespace": "team"}
    metadata = {**names, "labels": labels, "ownerReferences": [reference]}
    return msgspec.convert({"metadata": metadata, "spec": {"containers": [container]}}, Pod)


def test_the_controller_shows_them_as_metrics_while_it_leads() -> None:
    async def story(lab: Lab) -> None:
        cluster, _ = with_services("vllm", "job")
        pods = Informer(lab.client, PODS, clock=lab.clock, rng=random.Random(0))
        task = SignalsTask(KubeRuntime(client=lab.client, clock=lab.clock, rng=random.Random(0)), cluster.slicer, pods)
        registry = CollectorRegistry()
        present: list[SignalsTask] = [task]
        registry.register(SignalsCollector(lambda: present[0] if present else None))
        for each in (pod("vllm-0", "vllm-5d4f"), pod("job-0", "train", "Job")):
            task.observe(WatchEvent(EventKind.ADDED, each))
        running = asyncio.create_task(task.run())
        await lab.clock.sleep(PERIOD + 1)
        text = generate_latest(registry).decode()
        assert 'tessera_service_room{kind="Deployment",name="vllm",namespace="team"} 5.0' in text
        assert 'tessera_service_replicas{kind="Deployment",name="vllm",namespace="team"} 1.0' in text
        assert "train" not in text
        quotas = asyncio.create_task(task.quotas.run())
        status = {"hard": {"pods": "3"}, "used": {"pods": "1"}}
        await lab.client.create(RESOURCE_QUOTAS.as_dicts(), {"metadata": {"name": "q"}}, "default")
        await lab.client.merge_patch(
            RESOURCE_QUOTAS.as_dicts(), "q", {"status": status}, "default", subresource="status"
        )
        await lab.clock.sleep(PERIOD + 1)
        text = generate_latest(registry).decode()
        assert 'tessera_service_room{kind="Deployment",name="vllm",namespace="team"} 2.0' in text
        quotas.cancel()
        task.observe(WatchEvent(EventKind.DELETED, pod("vllm-0", "vllm-5d4f")))
        await lab.clock.sleep(PERIOD + 1)
        assert "vllm" not in generate_latest(registry).decode()
        present.clear()
        assert "tessera_service_room{" not in generate_latest(registry).decode()
        running.cancel()

    in_lab(story)


def deployment(name: str, replicas: int) -> dict[str, Any]:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "m", "image": "vllm"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": name}, "spec": spec}


def shown(count: int, *, namespace: str = "team", pods: int = 1) -> tuple[Service, ...]:
    names = (f"s{number:04}" for number in range(count))
    return tuple(Service(namespace=namespace, kind="Deployment", name=name, wanted=pods) for name in names)


def test_owners_state_their_pods_in_turn_and_first_those_whose_pods_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tessera.signals.satellite.ASKED", 2)

    async def story(lab: Lab) -> None:
        await lab.client.create(NAMESPACES, {"metadata": {"name": "team"}})
        for number in range(3):
            await lab.client.create(DEPLOYMENTS.as_dicts(), deployment(f"s{number:04}", 5), "team")
        seen = StatedPods(lab.client, lab.clock)

        async def fill(*services: Service) -> list[int | None]:
            return [each.stated for each in (await seen.fill(SignalsPage(services=services))).services]

        three = shown(3)
        assert await fill(*three) == [5, 5, None]
        await lab.clock.sleep(PERIOD)
        assert await fill(*three) == [5, 5, 5]
        await lab.client.scale(DEPLOYMENTS, "s0002", "team", 7)
        await lab.clock.sleep(PERIOD)
        assert await fill(*three[:2], msgspec.structs.replace(three[2], wanted=6)) == [5, 5, 7]
        other = Service(namespace="team", kind="LeaderWorkerSet", name="s0000", wanted=1)
        assert await fill(*shown(1, namespace="other"), other) == [None, None]

    in_lab(story)


def test_a_clone_set_states_its_pods_where_its_kind_is_served() -> None:
    async def story(lab: Lab) -> None:
        await lab.client.create(NAMESPACES, {"metadata": {"name": "team"}})
        page = SignalsPage(services=(Service(namespace="team", kind="CloneSet", name="svc", wanted=1),))
        seen = StatedPods(lab.client, lab.clock)
        assert (await seen.fill(page)).services[0].stated is None
        await lab.client.create(CRDS.as_dicts(), CLONE_SET_DEFINITION)
        await lab.clock.sleep(PERIOD)
        body = {"metadata": {"name": "svc"}, "spec": {"replicas": 3}}
        await lab.client.create(CLONE_SETS.as_dicts(), body, "team")
        assert (await seen.fill(page)).services[0].stated == 3

    in_lab(story)


class Counted(ForwardingTransport):
    """Counts requests."""

    count = 0

    async def request(self, request: Request) -> Response:
        self.count += 1
        return await super().request(request)


def test_a_thousand_restless_services_cost_a_bounded_number_of_requests_and_delay_only_their_own() -> None:
    async def story(lab: Lab) -> None:
        await lab.client.create(NAMESPACES, {"metadata": {"name": "team"}})
        await lab.client.create(DEPLOYMENTS.as_dicts(), deployment("s0000", 5), "team")
        way = Counted(InProcessTransport(lab.server, ADMIN))
        seen = StatedPods(Client(way, field_manager="tessera", clock=lab.clock), lab.clock)
        for number in range(1, 4):
            page = await seen.fill(SignalsPage(services=(*shown(999, namespace="hostile", pods=number), *shown(1))))
            assert way.count == number * ASKED
            assert page.services[-1].stated == 5
            await lab.clock.sleep(PERIOD)

    in_lab(story)


class Refusing(ForwardingTransport):
    """A server that has too much to do, while it is told so."""

    busy = False

    async def request(self, request: Request) -> Response:
        return Response(status=429, body=b"{}") if self.busy else await super().request(request)


def test_a_number_outlives_a_server_that_is_busy_but_not_for_ever() -> None:
    async def story(lab: Lab) -> None:
        await lab.client.create(NAMESPACES, {"metadata": {"name": "team"}})
        await lab.client.create(DEPLOYMENTS.as_dicts(), deployment("s0000", 5), "team")
        way = Refusing(InProcessTransport(lab.server, ADMIN))
        seen = StatedPods(Client(way, field_manager="tessera", clock=lab.clock), lab.clock)
        for busy, seconds, number in (
            (False, 0.0, 5),
            (True, PERIOD, 5),
            (True, AGE, None),
            (False, PERIOD, 5),
        ):
            await lab.clock.sleep(seconds)
            way.busy = busy
            (found,) = (await seen.fill(SignalsPage(services=shown(1)))).services
            assert found.stated == number, (busy, seconds)
        await lab.client.delete(DEPLOYMENTS, "s0000", "team")
        (found,) = (await seen.fill(SignalsPage(services=shown(1)))).services
        assert found.stated is None

    in_lab(story)


class Silent(ForwardingTransport):
    """A server that takes requests and answers none."""

    async def request(self, request: Request) -> Response:
        await asyncio.Event().wait()
        return await super().request(request)


def test_a_silent_server_does_not_let_the_page_age() -> None:
    async def story(lab: Lab) -> None:
        way = Silent(InProcessTransport(lab.server, ADMIN))
        seen = StatedPods(Client(way, field_manager="tessera", clock=lab.clock), lab.clock)
        began = lab.clock.now()
        page = await seen.fill(SignalsPage(services=shown(20)))
        assert lab.clock.now() - began <= PERIOD
        assert {each.stated for each in page.services} == {None}

    in_lab(story)


POD = {"cpu": 500, "memory": 1 << 30, "hugepages-2Mi": 1 << 21, "nvidia.com/mig-3g.20gb": 1}


def quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {"spec": {"hard": hard, **spec}, "status": {"hard": hard, "used": used or {}}}


@pytest.mark.parametrize(
    ("hard", "used", "room"),
    [
        ({"requests.nvidia.com/mig-3g.20gb": "4"}, {"requests.nvidia.com/mig-3g.20gb": "1"}, 3),
        ({"requests.nvidia.com/mig-3g.20gb": "1"}, {"requests.nvidia.com/mig-3g.20gb": "4"}, 0),
        ({"pods": "5"}, {"pods": "3"}, 2),
        ({"count/pods": "5"}, {"count/pods": "3"}, 2),
        ({"cpu": "2"}, {"cpu": "900m"}, 2),
        ({"requests.memory": "10Gi"}, {"requests.memory": "512Mi"}, 9),
        ({"requests.memory": "10Gi", "pods": "1"}, {}, 1),
        ({"hugepages-2Mi": "10Mi"}, {"hugepages-2Mi": "4Mi"}, 3),
        ({"limits.memory": "6Gi"}, {"limits.memory": "1Gi"}, 2),
        ({"requests.nvidia.com/mig-7g.40gb": "0", "services": "0", "limits.cpu": "0"}, {}, None),
        ({"pods": "many"}, {}, None),
        ({}, {}, None),
    ],
)
def test_a_quota_bounds_the_room_by_what_it_has_left(hard: dict[str, str], used: dict[str, str], room: object) -> None:
    assert quota_room([quota(hard, used)], POD, {"memory": 2 << 30}) == room


def test_the_least_of_several_quotas_counts() -> None:
    assert quota_room([quota({"pods": "5"}), quota({"cpu": "1"}), quota({})], POD) == 2


@pytest.mark.parametrize(
    ("spec", "room"),
    [
        ({"scopes": ["NotTerminating"]}, 0),
        ({"scopes": ["Terminating"]}, None),
        ({"scopes": ["NotTerminating", "BestEffort"]}, None),
        ({"scopes": ["NotBestEffort"]}, 0),
        ({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "Exists"}]}}, None),
    ],
)
def test_a_quota_for_some_pods_bounds_the_room_of_such_pods(spec: dict[str, Any], room: object) -> None:
    assert quota_room([quota({"pods": "0"}, **spec)], POD) == room


def test_pods_without_cpu_and_memory_are_best_effort() -> None:
    found = quota({"pods": "3"}, scopes=["BestEffort"])
    assert quota_room([found], {"nvidia.com/mig-3g.20gb": 1}, {"nvidia.com/mig-3g.20gb": 1}) == 3
    assert quota_room([found], {"nvidia.com/mig-3g.20gb": 1}, {"cpu": 1}) is None


def test_a_quota_without_a_status_bounds_no_room_yet() -> None:
    assert quota_room([{"spec": {"hard": {"pods": "0"}}}], POD) is None


def placed(cluster: SlicerCluster, name: str, *profiles: str, **facts: Any) -> PodInfo:
    """A pod of a service that got its slices."""
    made = cluster.pod(name, *profiles, **facts)
    cluster.run()
    cluster.agents()
    return cluster.pods[made.uid]


def room(cluster: SlicerCluster, pod: PodInfo) -> int:
    return count_room(cluster.slicer, pod)[0]


@pytest.mark.parametrize(
    ("profiles", "count", "wanted"),
    [
        (("1g.5gb",), 1, 6),
        (("3g.20gb",), 1, 1),
        (("3g.20gb",), 4, 7),
        (("7g.40gb",), 3, 2),
        (("2g.10gb", "2g.10gb"), 2, 2),
        (("1g.5gb",), 20, ROOM_COUNTED),
    ],
)
def test_the_cards_of_all_nodes_count(profiles: tuple[str, ...], count: int, wanted: int) -> None:
    cluster = SlicerCluster()
    cluster.node("n1", count=count)
    assert room(cluster, placed(cluster, "s-0", *profiles, amounts={"pods": 1})) == wanted


def test_a_pod_that_is_pinned_to_a_node_has_room_on_others() -> None:
    cluster = SlicerCluster()
    cluster.node("n1")
    cluster.node("n2")
    pod = placed(cluster, "s-0", "7g.40gb")
    assert (pod.hostname, room(cluster, pod)) in {("n1", 1), ("n2", 1)}


def test_other_resources_constraints_and_the_queue_bound_it() -> None:
    cluster = SlicerCluster()
    cluster.node("n1", count=4, allocatable={"cpu": 3000, "memory": 2**40, "pods": 110, resource_of("1g.5gb"): 28})
    cluster.node("n2", count=4)
    pod = placed(cluster, "s-0", "1g.5gb")
    elsewhere = cluster.pod("w-0", "1g.5gb", constraints=NodeConstraints(selector=(("zone", "x"),)))
    assert room(cluster, elsewhere) == 0
    named = NodeConstraints(selector=(("kubernetes.io/hostname", "n1"),))
    assert room(cluster, cluster.pod("w-1", "1g.5gb", constraints=named, amounts={"cpu": 500})) == 2000 // 500
    assert room(cluster, pod) == 2 + 28  # two more by the CPU of the first node
    cluster.queue("default", maximum="20Gi")
    cluster.run()
    assert room(cluster, pod) == 2


def test_what_waits_or_is_full_has_no_room_and_nothing_changes() -> None:
    cluster = SlicerCluster()
    cluster.node("n1")
    pod = placed(cluster, "s-0", "4g.20gb")
    waiting = cluster.pod("s-1", "4g.20gb")
    cluster.run()
    before = dict(cluster.slicer.state.waiting)
    assert (room(cluster, pod), room(cluster, waiting)) == (0, 0)
    assert dict(cluster.slicer.state.waiting) == before
    assert not cluster.slicer.has_work


def test_slots_that_are_reserved_for_others_are_no_room() -> None:
    cluster = SlicerCluster(reserve_after=10.0)
    cluster.node("n1")
    cluster.pass_time(1.0)
    small = placed(cluster, "s-0", "1g.5gb")
    assert room(cluster, small) == 6
    cluster.pod("big", "7g.40gb")
    cluster.run()
    assert room(cluster, small) == 0


def test_only_pods_with_slices_that_start_alone_have_a_number() -> None:
    cluster = SlicerCluster()
    cluster.node("n1")
    cluster.device_node("n2")
    assert has_room_number(cluster.pod("a", "1g.5gb"))
    assert not has_room_number(cluster.whole("b", gated=False))
    assert not has_room_number(cluster.pod("c", "1g.5gb", fault="wrong"))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(["1g.5gb", "2g.10gb", "3g.20gb"]), max_size=6), st.integers(1, 2))
def test_so_many_pods_are_placed_as_the_room_said(held: list[str], count: int) -> None:
    cluster = SlicerCluster()
    cluster.node("n1", count=count)
    for number, profile in enumerate(held):
        placed(cluster, f"held-{number}", profile)
    cluster.run()
    amounts = {"cpu": 1000, "pods": 1}
    found = room(cluster, PodInfo(PodUid("probe"), "default", "probe", profiles=("2g.10gb",), amounts=amounts))
    pods = [cluster.pod(f"s-{number}", "2g.10gb") for number in range(10)]
    cluster.run()
    assert sum(cluster.slicer.state.allocations.current_of(pod.uid) is not None for pod in pods) == found
