"""Tessera's own code writes its objects to any server."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.conformance_api import MERGE, Api, configmap

from tessera.clock import SystemClock
from tessera.kube.client import Client
from tessera.kube.errors import AlreadyExists, Conflict, NotFound
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.leader_election import LeaderElector
from tessera.kube.resources import CONFIGMAPS, LEASES, NODES


async def test_a_repeated_event_raises_the_count_of_the_first(
    api: Api, client: Client, core: str, namespace: str
) -> None:
    made = (await api("POST", f"{core}/configmaps", configmap("a"))).ok()
    recorder = EventRecorder(client, component="conformance", clock=SystemClock(), rng=random.Random(namespace))
    about = make_reference(CONFIGMAPS, "a", namespace, made["metadata"]["uid"])
    for _ in range(3):
        recorder.record(about, "Tried", "tried once more", action="Trying")
        await recorder.flush()
    assert (recorder.sent, recorder.dropped) == (3, 0)
    (event,) = (await api("GET", f"{core}/events?fieldSelector=involvedObject.name=a,reason=Tried")).ok()["items"]
    assert (event["count"], event["message"], event["type"]) == (3, "tried once more", "Normal")
    assert (event["source"], event["reportingComponent"]) == ({"component": "conformance"}, "conformance")
    same = (await api("GET", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events/{event['metadata']['name']}")).ok()
    assert (same["note"], same["deprecatedCount"], same["regarding"]["name"]) == ("tried once more", 3, "a")


async def test_a_lease_is_taken_by_who_saw_its_last_version(client: Client, namespace: str) -> None:
    spec = {"holderIdentity": "one", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"}
    body = {"metadata": {"name": "l", "namespace": namespace}, "spec": spec}
    made = await client.create(LEASES, body, namespace)
    with pytest.raises(AlreadyExists):
        await client.create(LEASES, body, namespace)
    seen = made.metadata.resource_version

    async def take(who: str) -> Any:
        claim = {"spec": {"holderIdentity": who, "renewTime": "2026-01-01T00:00:09.123456Z"}}
        return await client.merge_patch(LEASES, "l", claim, namespace, resource_version=seen)

    taken = await take("two")
    assert taken.spec.holder_identity == "two"
    assert taken.spec.renew_time == "2026-01-01T00:00:09.123456Z"
    with pytest.raises(Conflict, match="the object has been modified"):
        await take("three")


async def test_a_leader_lets_go_of_its_lease(api: Api, client: Client, namespace: str) -> None:
    elector = LeaderElector(
        client, namespace=namespace, name="l", identity="one", clock=SystemClock(), rng=random.Random(1)
    )
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/l"
    led: list[str] = []

    async def lead() -> None:
        assert elector.is_leader
        led.append((await api("GET", path)).ok()["spec"]["holderIdentity"])

    await elector.run(lead)
    await elector.run(lead)
    assert led == ["one", "one"]
    spec = (await api("GET", path)).ok()["spec"]
    assert (spec.get("holderIdentity", ""), spec["leaseDurationSeconds"]) == ("", 1)


async def test_capacity_of_a_node_is_added_and_taken_away_beside_the_kubelet_s(
    api: Api, unique: str, cleanup: Callable[[str], None]
) -> None:
    path = f"/api/v1/nodes/{unique}"
    cleanup(path)
    figures = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    node = {"metadata": {"name": unique}, "spec": {"unschedulable": True}}
    (await api("POST", "/api/v1/nodes", node)).ok()
    own = {"status": {"capacity": figures, "allocatable": figures}}
    (await api("PATCH", f"{path}/status", own, content=MERGE)).ok()
    thing = "example.com/gigabytes"
    added = {"status": {"capacity": {thing: "40Gi"}, "allocatable": {thing: "40Gi"}}}
    changed = (await api("PATCH", f"{path}/status", added, content=MERGE)).ok()["status"]
    assert changed["capacity"] == changed["allocatable"] == {**figures, thing: "40Gi"}
    ignored = (await api("PATCH", path, {"status": {"capacity": {thing: "1"}}}, content=MERGE)).ok()
    assert ignored["status"]["capacity"][thing] == "40Gi"
    taken = {"status": {"capacity": {thing: None}, "allocatable": {thing: None, "example.com/never": None}}}
    changed = (await api("PATCH", f"{path}/status", taken, content=MERGE)).ok()["status"]
    assert changed["capacity"] == changed["allocatable"] == figures


async def test_labels_and_conditions_of_a_node_stand_beside_the_kubelet_s_and_go_when_no_longer_applied(
    api: Api, client: Client, unique: str, cleanup: Callable[[str], None]
) -> None:
    path = f"/api/v1/nodes/{unique}"
    cleanup(path)
    node = {"metadata": {"name": unique, "labels": {"asked": "for"}}, "spec": {"unschedulable": True}}
    uid = (await api("POST", "/api/v1/nodes", node)).ok()["metadata"]["uid"]
    time = "2026-01-01T00:00:00Z"
    fields = {"status": "True", "reason": "R", "message": "m", "lastTransitionTime": time, "lastHeartbeatTime": time}
    ready = {"type": "Ready", **fields}
    strategic = "application/strategic-merge-patch+json"
    (await api("PATCH", f"{path}/status", {"status": {"conditions": [ready]}}, content=strategic)).ok()

    async def tell(labels: dict[str, str], *types: str) -> None:
        meta = {"uid": uid}
        await client.apply(NODES, unique, {"metadata": {**meta, "labels": labels}})
        conditions = [{"type": each, **fields} for each in types]
        body = {"metadata": meta, "status": {"conditions": conditions}}
        await client.apply(NODES, unique, body, subresource="status")

    async def shown() -> tuple[set[str], set[str]]:
        found = (await api("GET", path)).ok()
        labels = {name for name in found["metadata"]["labels"] if "." not in name}
        return labels, {each["type"] for each in found["status"]["conditions"]}

    await tell({"one": "1", "two": "2"}, "GpuHealthy", "GpuMpsReady")
    assert await shown() == ({"asked", "one", "two"}, {"Ready", "GpuHealthy", "GpuMpsReady"})
    beat = {"status": {"conditions": [{**ready, "reason": "Beat"}]}}
    (await api("PATCH", f"{path}/status", beat, content=strategic)).ok()
    await tell({"two": "2"}, "GpuHealthy")
    assert await shown() == ({"asked", "two"}, {"Ready", "GpuHealthy"})


async def test_who_names_a_node_by_its_uid_never_makes_one(client: Client, unique: str) -> None:
    for subresource, refusal in ((None, Conflict), ("status", NotFound)):
        with pytest.raises(refusal):
            await client.apply(NODES, unique, {"metadata": {"uid": "gone"}}, subresource=subresource)
