"""Which lenders of ended pods are evicted first, and what owners belong to: asked of the API server."""

from collections import Counter
from typing import Any

import pytest
from tests.webhook.conftest import Lab, in_lab

from tessera.controller.objects.pod_info import Owner, Workload
from tessera.handover.satellite import EVICTED, GROUP_SIZE, WorkloadReader, choose_lenders
from tessera.kube.errors import NotFound
from tessera.kube.resources import CLONE_SETS, CRDS, REPLICASETS, STATEFULSETS, ObjectMeta, Pod
from tessera.kube.resources.meta import Uid


def lenders(namespace: str, count: int) -> list[Pod]:
    return [
        Pod(metadata=ObjectMeta(name=f"l-{n}", namespace=namespace, uid=Uid(f"{namespace}-{n}"))) for n in range(count)
    ]


def test_a_namespace_with_thousands_of_lenders_that_stay_holds_up_no_other() -> None:
    hostile = lenders("hostile", 3_000)
    refused = {each.metadata.uid for each in hostile[:1_000]}
    found = choose_lenders([*hostile, *lenders("team-a", 3), *lenders("team-b", 1)], refused)
    assert len(found) == EVICTED
    assert Counter(each.metadata.namespace for each in found) == {"hostile": EVICTED - 4, "team-a": 3, "team-b": 1}
    assert not refused & {each.metadata.uid for each in found}


def test_a_lender_that_was_refused_is_asked_again_after_the_others() -> None:
    first, second = lenders("team-a", 2)
    assert choose_lenders([first, second], {first.metadata.uid}) == [second, first]


LABELS = {"app": "svc"}
CLONE_SET_DEFINITION = {
    "metadata": {"name": "clonesets.apps.kruise.io"},
    "spec": {
        "group": "apps.kruise.io",
        "scope": "Namespaced",
        "names": {"plural": "clonesets", "singular": "cloneset", "kind": "CloneSet", "listKind": "CloneSetList"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        ],
    },
}


def body(name: str, replicas: int, owner: dict[str, str] | None = None, size: int = 0) -> dict[str, Any]:
    """A StatefulSet."""
    metadata: dict[str, Any] = {"name": name}
    if owner is not None:
        metadata["ownerReferences"] = [{**owner, "controller": True}]
    template = {"labels": LABELS, "annotations": {GROUP_SIZE: str(size)} if size else {}}
    containers = [{"name": "c", "image": "i"}]
    spec = {"replicas": replicas, "serviceName": name, "selector": {"matchLabels": LABELS}}
    return {
        "metadata": metadata,
        "spec": {**spec, "template": {"metadata": template, "spec": {"containers": containers}}},
    }


def controller(kind: str, name: str, version: str = "leaderworkerset.x-k8s.io/v1") -> dict[str, str]:
    return {"apiVersion": version, "kind": kind, "name": name, "uid": f"uid-of-{name}"}


async def create(lab: Lab, made: dict[str, Any]) -> Owner:
    found = await lab.client.create(STATEFULSETS.as_dicts(), made, "default")
    return Owner("default", f"StatefulSet/{made['metadata']['name']}", found["metadata"]["uid"])


def test_the_workers_of_a_group_made_anew_belong_to_the_same_group() -> None:
    async def story(lab: Lab) -> None:
        reader = WorkloadReader(lab.client)
        leaders = await create(lab, body("lws", 2, controller("LeaderWorkerSet", "lws"), size=4))
        assert await reader.read(leaders) == Workload(leaders.uid, 2)
        first = await create(lab, body("lws-1", 3, controller("Pod", "lws-1", "v1")))
        group = await reader.read(first)
        assert group == Workload(f"{leaders.uid}/1", 3)
        await lab.client.delete(STATEFULSETS, "lws-1", "default")
        assert await reader.read(first) == group  # before its leader has made another
        second = await create(lab, body("lws-1", 3, controller("Pod", "lws-1", "v1")))
        assert second.uid != first.uid
        assert await reader.read(first) == await reader.read(second) == group
        await lab.client.merge_patch(STATEFULSETS.as_dicts(), "lws", {"spec": {"replicas": 1}}, "default")
        assert await reader.read(second) == Workload(f"{leaders.uid}/1", 0)
        await lab.client.delete(STATEFULSETS, "lws", "default")
        assert await reader.read(first) is None

    in_lab(story)


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        pytest.param("db-0", None, id="a StatefulSet whose name ends in a number"),
        pytest.param("db-0", controller("Pod", "db-0", "v1"), id="one that a pod owns, of no LeaderWorkerSet"),
        pytest.param("db-x", controller("Other", "o"), id="one that something else owns"),
    ],
)
def test_another_set_belongs_to_itself(name: str, owner: dict[str, str] | None) -> None:
    async def story(lab: Lab) -> None:
        reader = WorkloadReader(lab.client)
        await create(lab, body("db", 9, size=4))
        made = await create(lab, body(name, 2, owner))
        assert await reader.read(made) == Workload(made.uid, 2)
        assert await reader.read(made._replace(uid="forged")) is None
        await lab.client.delete(STATEFULSETS, name, "default")
        assert await reader.read(made) is None

    in_lab(story)


def test_a_clone_set_is_asked_where_its_kind_is_served() -> None:
    async def story(lab: Lab) -> None:
        reader = WorkloadReader(lab.client)
        with pytest.raises(NotFound):
            await reader.read(Owner("default", "CloneSet/svc", "u"))
        await lab.client.create(CRDS.as_dicts(), CLONE_SET_DEFINITION)
        await lab.clock.sleep(5)
        body = {"metadata": {"name": "svc"}, "spec": {"replicas": 3}}
        made = await lab.client.create(CLONE_SETS.as_dicts(), body, "default")
        owner = Owner("default", "CloneSet/svc", made["metadata"]["uid"])
        assert await reader.read(owner) == Workload(owner.uid, 3)
        assert await reader.read(owner._replace(uid="forged")) is None

    in_lab(story)


def test_a_replica_set_without_a_deployment_belongs_to_itself() -> None:
    async def story(lab: Lab) -> None:
        made = await lab.client.create(REPLICASETS.as_dicts(), body("svc", 2), "default")
        owner = Owner("default", "ReplicaSet/svc", made["metadata"]["uid"])
        assert await WorkloadReader(lab.client).read(owner) == Workload(owner.uid, 2)

    in_lab(story)
