"""A service gets its slices back after an update, though teams wait for them."""

from typing import Any

import pytest
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.handover.satellite import GROUP_SIZE
from tessera.kube.resources import CRDS, DEPLOYMENTS, PODS, STATEFULSETS, Pod, Resource


def workload(image: str, profile: str, replicas: int, **spec: Any) -> dict[str, Any]:
    labels = {"app": "svc"}
    limits = {f"nvidia.com/mig-{profile}": 1}
    pod = {"containers": [{"name": "c", "image": image, "resources": {"limits": limits}}]}
    return {
        "metadata": {"name": "svc"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
            **spec,
        },
    }


def runs(lab: VirtualLab, image: str, replicas: int) -> bool:
    """True if the service has its pods, all of this image, and all run."""
    pods = [each for each in lab.pods.cache.values() if each.metadata.labels.get("app") == "svc"]
    images = [each.spec.containers[0].image for each in pods]
    return images == [image] * replicas and all(lab.ready(each.metadata.name) for each in pods)


@pytest.mark.parametrize(
    ("kind", "profile", "replicas", "spec"),
    [
        pytest.param(
            DEPLOYMENTS,
            "7g.40gb",
            1,
            {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}},
            id="a Deployment that makes no pod more",
        ),
        pytest.param(DEPLOYMENTS, "3g.20gb", 2, {"strategy": {"type": "Recreate"}}, id="a Deployment that ends all"),
        pytest.param(STATEFULSETS, "3g.20gb", 2, {"serviceName": "svc"}, id="a StatefulSet"),
    ],
)
def test_an_update_ends_though_a_team_waits(
    in_lab: InLab, kind: Resource[Any], profile: str, replicas: int, spec: dict[str, Any]
) -> None:
    async def scenario(lab: VirtualLab) -> None:
        service = workload("i:1", profile, replicas, **spec)
        await lab.client.create(kind.as_dicts(), service, "default")
        await lab.until(lambda: runs(lab, "i:1", replicas), "the service runs")
        await lab.clock.sleep(60)
        await lab.create("batch", {"nvidia.com/mig-3g.20gb": 1})
        await lab.clock.sleep(5)
        updated = {"spec": {"template": workload("i:2", profile, replicas)["spec"]["template"]}}
        await lab.client.merge_patch(kind.as_dicts(), "svc", updated, "default")
        await lab.until(lambda: runs(lab, "i:2", replicas), "the service is updated")
        assert lab.phase("batch") == "Pending"
        await lab.client.merge_patch(kind.as_dicts(), "svc", {"spec": {"replicas": 0}}, "default")
        await lab.running("batch")

    in_lab(scenario, "1xA100-40GB")


def test_an_update_in_place_keeps_the_slices(in_lab: InLab) -> None:
    """As OpenKruise's CloneSet updates a pod: the image of the running pod changes, and its container starts anew."""

    async def scenario(lab: VirtualLab) -> None:
        await lab.create("svc", {"nvidia.com/mig-7g.40gb": 1}, restartPolicy="Always")
        await lab.running("svc")
        await lab.create("batch", {"nvidia.com/mig-3g.20gb": 1})
        await lab.clock.sleep(60)
        before = pod_of(lab)
        (container,) = (await lab.client.get(PODS.as_dicts(), "svc", "default"))["spec"]["containers"]
        updated = {"spec": {"containers": [{**container, "image": "i:2"}]}}
        await lab.client.merge_patch(PODS.as_dicts(), "svc", updated, "default")
        await lab.until(lambda: restarts(lab) == [1], "its container starts anew")
        await lab.until(lambda: lab.ready("svc"), "it runs")
        after = pod_of(lab)
        assert after.metadata.uid == before.metadata.uid
        assert lab.events_of("svc", "Killing")[0].message == "Container c0 definition changed, will be restarted"
        await lab.clock.sleep(60)
        assert (restarts(lab), lab.phase("batch")) == ([1], "Pending")
        held = [each for item in lab.slices.cache.values() for each in item.spec.pod_allocation_requests]
        assert held == [before.metadata.uid]

    in_lab(scenario, "1xA100-40GB")


def served(kind: Resource[Any]) -> dict[str, Any]:
    """The definition of a kind of others."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    names = {"plural": kind.plural, "singular": kind.kind.lower(), "kind": kind.kind}
    return {
        "metadata": {"name": kind.label},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": names,
            "versions": [{"name": kind.version, "served": True, "storage": True, "schema": schema}],
        },
    }


LEADER_WORKER_SETS = Resource[dict[str, Any]](
    "leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet", True, dict[str, Any]
)


def half(name: str, owner: dict[str, str], kind: str, version: str, size: int = 2) -> dict[str, Any]:
    """A StatefulSet of a LeaderWorkerSet, with one pod of half a card."""
    made = workload("i:1", "3g.20gb", 1, serviceName="svc")
    reference = {"apiVersion": version, "kind": kind, "name": owner["name"], "uid": owner["uid"], "controller": True}
    labels = {"set": name}
    made["spec"]["selector"] = {"matchLabels": labels}
    made["spec"]["template"]["metadata"] = {"labels": labels, "annotations": {GROUP_SIZE: str(size)}}
    return {**made, "metadata": {"name": name, "ownerReferences": [{**reference, "blockOwnerDeletion": True}]}}


def test_a_group_of_a_leader_worker_set_that_is_made_anew_gets_its_slices_back(in_lab: InLab) -> None:
    """The test is the LeaderWorkerSet's controller: it deletes the leader, and makes workers for the next one."""

    def uid_of(lab: VirtualLab, name: str) -> str:
        found = lab.pods.cache.get(f"default/{name}")
        return found.metadata.uid if found is not None else ""

    async def make_workers(lab: VirtualLab) -> None:
        leader = {"name": "lws-0", "uid": uid_of(lab, "lws-0")}
        await lab.client.create(STATEFULSETS.as_dicts(), half("lws-0", leader, "Pod", "v1"), "default")
        await lab.until(lambda: lab.ready("lws-0") and lab.ready("lws-0-0"), "the group runs")

    async def scenario(lab: VirtualLab) -> None:
        await lab.client.create(CRDS, served(LEADER_WORKER_SETS))
        await lab.clock.sleep(5)
        made = await lab.client.create(LEADER_WORKER_SETS, {"metadata": {"name": "lws"}, "spec": {}}, "default")
        leaders = half("lws", made["metadata"], "LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1")
        await lab.client.create(STATEFULSETS.as_dicts(), leaders, "default")
        await lab.until(lambda: uid_of(lab, "lws-0"), "there is a leader")
        await make_workers(lab)
        await lab.clock.sleep(60)
        await lab.create("batch", {"nvidia.com/mig-3g.20gb": 1})
        await lab.clock.sleep(5)
        before = uid_of(lab, "lws-0"), uid_of(lab, "lws-0-0")
        await lab.client.delete(PODS, "lws-0", "default", propagation="Foreground")
        await lab.until(lambda: uid_of(lab, "lws-0") not in ("", before[0]), "there is another leader")
        await lab.until(lambda: not uid_of(lab, "lws-0-0"), "the workers are gone")
        await make_workers(lab)
        assert uid_of(lab, "lws-0-0") != before[1]
        assert lab.phase("batch") == "Pending"

    in_lab(scenario, "1xA100-40GB")


def pod_of(lab: VirtualLab) -> Pod:
    found = lab.pods.cache.get("default/svc")
    assert found is not None
    return found


def restarts(lab: VirtualLab) -> list[int]:
    return [each.restart_count for each in pod_of(lab).status.containers]
