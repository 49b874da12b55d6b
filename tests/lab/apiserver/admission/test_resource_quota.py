"""ResourceQuota: what objects count for, what is refused and how, and that used is always what is there."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera_lab.apiserver.admission.resource_quota import (
    PODS,
    QUOTAS,
    QuotaAdmission,
    QuotaTracker,
    object_usage,
)
from tessera_lab.apiserver.interfaces import AdmissionRequest, Attributes, GroupResource, Obj, UserInfo
from tessera_lab.apiserver.status import StatusError
from tessera_lab.apiserver.storage.store import Store, deep_copy

GPU = "requests.nvidia.com/mig-1g.5gb"
MEMORY = "instaslice.redhat.com/accelerator-memory-quota"


def container(name: str = "a", restart: str = "", requests: Any = None, **limits: str) -> Obj:
    resources = {"limits": {key.replace("_", "/"): value for key, value in limits.items()}}
    found: Obj = {"name": name, "resources": {**resources, **({"requests": requests} if requests else {})}}
    return {**found, "restartPolicy": restart} if restart else found


def pod(*containers: Obj, name: str = "p", init: Any = (), phase: str = "Pending", **spec: Any) -> Obj:
    return {
        "metadata": {"name": name, "namespace": "n"},
        "spec": {"containers": list(containers) or [container()], "initContainers": list(init), **spec},
        "status": {"phase": phase},
    }


def quota(name: str = "q", *, used: Any = None, **spec: Any) -> Obj:
    status = {"status": {"hard": spec.get("hard"), "used": used}} if used is not None else {}
    return {"metadata": {"name": name, "namespace": "n"}, "spec": spec, **status}


def admit(store: Store, obj: Obj, *, resource: str = "pods", group: str = "", old: Obj | None = None) -> None:
    user = UserInfo(name="ann")
    attributes = Attributes(user=user, verb="create", group=group, resource=resource, namespace="n")
    operation = "UPDATE" if old else "CREATE"
    request = AdmissionRequest(attributes=attributes, operation=operation, kind="Pod", obj=obj, old=old)
    assert QuotaAdmission().admit(request, store) == ()


def store(*objects: tuple[GroupResource, Obj]) -> Store:
    found = Store()
    QuotaTracker(found)
    for resource, obj in objects:
        found.put(resource, obj, None)
    return found


def used(found: Store, name: str = "q") -> Any:
    obj = found.get(QUOTAS, "n", name)
    assert obj is not None
    return obj["status"]["used"]


def test_requests_limits_and_extended_resources_of_a_pod() -> None:
    found = object_usage(PODS, pod(container(cpu="500m", memory="1Gi", **{"nvidia.com_mig-1g.5gb": "2"})))
    assert found == {
        "count/pods": 1,
        "pods": 1,
        "cpu": Decimal("0.5"),
        "requests.cpu": Decimal("0.5"),
        "limits.cpu": Decimal("0.5"),
        "memory": 2**30,
        "requests.memory": 2**30,
        "limits.memory": 2**30,
        GPU: 2,
    }


@pytest.mark.parametrize(
    ("obj", "cpu"),
    [
        (pod(container(cpu="1"), container(cpu="2")), 3),
        (pod(container(cpu="1"), init=[container(cpu="5")]), 5),
        (pod(container(cpu="1"), init=[container(cpu="2", restart="Always")]), 3),
        (pod(container(cpu="1"), init=[container(cpu="2", restart="Always"), container(cpu="4")]), 6),
        (pod(container(cpu="1"), init=[container(cpu="4"), container(cpu="2", restart="Always")]), 4),
        (pod(container(cpu="1", requests={"cpu": "500m"})), Decimal("0.5")),
        (pod(container(cpu="1"), overhead={"cpu": "250m"}), Decimal("1.25")),
    ],
)
def test_init_containers_sidecars_and_overhead(obj: Obj, cpu: Any) -> None:
    assert object_usage(PODS, obj)["requests.cpu"] == cpu


def test_a_pods_own_resources_replace_the_sum_of_cpu_and_memory_only() -> None:
    own = {"requests": {"cpu": "4"}, "limits": {"cpu": "8", "memory": "2Gi"}}
    found = object_usage(
        PODS,
        pod(
            container(cpu="1", memory="1Gi", **{"nvidia.com_mig-1g.5gb": "2"}),
            init=[container(cpu="16", **{"nvidia.com_mig-1g.5gb": "3"})],
            resources=own,
            overhead={"cpu": "500m"},
        ),
    )
    assert (found["requests.cpu"], found["limits.cpu"]) == (Decimal("4.5"), Decimal("8.5"))
    assert found["requests.memory"] == 2**31
    assert found[GPU] == 3


@pytest.mark.parametrize(
    ("status", "cpu"),
    [
        ({}, 2),
        ({"resources": {"requests": {"cpu": "4"}}, "allocatedResources": {"cpu": "4"}}, 4),
        ({"resources": {"requests": {"cpu": "1"}}, "allocatedResources": {"cpu": "3"}}, 3),
        ({"resources": {"requests": {"cpu": "1"}}, "allocatedResources": {"cpu": "1"}}, 2),
    ],
    ids=["no status", "to less", "allocated", "to more"],
)
def test_while_a_container_is_resized_the_largest_of_its_requests_counts(status: Any, cpu: int) -> None:
    changed = pod(container(cpu="2", **{"nvidia.com_mig-1g.5gb": "2"}), phase="Running")
    changed["status"]["containerStatuses"] = [{"name": "a", **status}]
    found = object_usage(PODS, changed)
    assert found["requests.cpu"] == cpu
    assert found[GPU] == 2


def test_a_pod_that_has_ended_counts_as_an_object_only() -> None:
    assert object_usage(PODS, pod(phase="Succeeded")) == {"count/pods": 1}


def test_services_and_other_objects() -> None:
    service: Obj = {"spec": {"type": "NodePort", "ports": [{}, {}]}}
    assert object_usage(GroupResource("", "services"), service) == {
        "count/services": 1,
        "services": 1,
        "services.nodeports": 2,
    }
    assert object_usage(GroupResource("apps", "deployments"), {}) == {"count/deployments.apps": 1}


def test_every_resource_that_is_exceeded_is_named() -> None:
    found = store((QUOTAS, quota(hard={"pods": "0", f"requests.{MEMORY}": "40Gi"})))
    with pytest.raises(
        StatusError, match=r"limited: pods=0,requests.instaslice.redhat.com/accelerator-memory-quota=40Gi"
    ):
        admit(found, pod(container(**{MEMORY.replace("/", "_"): "41Gi"})))


def test_containers_must_name_what_a_quota_limits() -> None:
    found = store((QUOTAS, quota(hard={"limits.cpu": "1", "requests.memory": "1Gi"})))
    with pytest.raises(
        StatusError, match=r"failed quota: q: must specify limits.cpu for: b; requests.memory for: a,b$"
    ):
        admit(found, pod(container("a", cpu="1"), container("b")))


@pytest.mark.parametrize(
    ("spec", "obj", "refused"),
    [
        ({"scopes": ["BestEffort"]}, pod(), True),
        ({"scopes": ["NotBestEffort"]}, pod(), False),
        ({"scopes": ["Terminating"]}, pod(), False),
        ({"scopes": ["Terminating"]}, pod(activeDeadlineSeconds=5), True),
        (
            {
                "scopeSelector": {
                    "matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["hi"]}]
                }
            },
            pod(priorityClassName="hi"),
            True,
        ),
        (
            {"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "Exists"}]}},
            pod(),
            False,
        ),
    ],
)
def test_scopes(spec: Any, obj: Obj, refused: bool) -> None:
    found = store((QUOTAS, quota(hard={"pods": "0"}, **spec)))
    if refused:
        with pytest.raises(StatusError, match="exceeded quota"):
            admit(found, obj)
    else:
        admit(found, obj)


def test_an_update_that_asks_for_no_more_is_not_checked() -> None:
    found = store((PODS, pod()), (QUOTAS, quota(hard={"pods": "0"})))
    admit(found, pod(), old=pod())


def test_used_follows_pods_from_creation_to_their_end() -> None:
    found = store((PODS, pod(name="before")), (QUOTAS, quota(hard={"pods": "5", "requests.cpu": "4"})))
    assert used(found) == {"pods": "1", "requests.cpu": "0"}
    running = found.put(PODS, pod(container(cpu="1500m"), name="x"), None)
    assert used(found) == {"pods": "2", "requests.cpu": "1500m"}
    ended = found.put(PODS, {**deep_copy(running.obj), "status": {"phase": "Succeeded"}}, running)
    assert used(found) == {"pods": "1", "requests.cpu": "0"}
    found.remove(PODS, deep_copy(ended.obj), ended)
    assert used(found) == {"pods": "1", "requests.cpu": "0"}


def test_a_changed_quota_is_counted_anew() -> None:
    found = store((PODS, pod()), (QUOTAS, quota(hard={"pods": "5"})))
    stored = found.find(QUOTAS, "n", "q")
    assert stored is not None
    changed = deep_copy(stored.obj)
    changed["spec"]["hard"] = {"count/pods": "3"}
    found.put(QUOTAS, changed, stored)
    assert used(found) == {"count/pods": "1"}


def test_a_tracker_that_comes_late_counts_what_is_there() -> None:
    found = Store()
    found.put(PODS, pod(), None)
    found.put(QUOTAS, quota(hard={"pods": "5"}), None)
    QuotaTracker(found)
    assert used(found) == {"pods": "1"}


steps = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["put", "end", "remove"]), st.integers(0, 3)), max_size=20
)


@given(steps)
def test_used_is_always_the_sum_of_what_is_stored(moves: list[tuple[str, str, int]]) -> None:
    found = store((QUOTAS, quota(hard={"pods": "99", "count/pods": "99", "requests.cpu": "99"})))
    for name, move, cpu in moves:
        stored = found.find(PODS, "n", name)
        if move == "put" and stored is None:
            found.put(PODS, pod(container(cpu=str(cpu)), name=name), None)
        elif move == "end" and stored is not None:
            found.put(PODS, {**deep_copy(stored.obj), "status": {"phase": "Failed"}}, stored)
        elif move == "remove" and stored is not None:
            found.remove(PODS, deep_copy(stored.obj), stored)
    parts = [object_usage(PODS, obj) for obj in found.list(PODS, "n")]
    wanted = {key: str(sum(part.get(key, 0) for part in parts)) for key in ("pods", "count/pods", "requests.cpu")}
    assert used(found) == wanted
