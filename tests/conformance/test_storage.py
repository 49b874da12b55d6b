"""Volumes, claims, storage classes and CSI nodes at the API; label keys of pods and priority at admission."""

from collections.abc import Callable
from typing import Any

from tests.support.conformance_api import MERGE, Api, causes, gated_pod

STORAGE = "/apis/storage.k8s.io/v1"
CLASSES, CSI_NODES, VOLUMES = f"{STORAGE}/storageclasses", f"{STORAGE}/csinodes", "/api/v1/persistentvolumes"
PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"

Cleanup = Callable[[str], None]


def claim(name: str = "c", **spec: Any) -> dict[str, Any]:
    want = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name}, "spec": {"storageClassName": "", **want, **spec}}


def volume(name: str, **spec: Any) -> dict[str, Any]:
    have = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}
    return {"metadata": {"name": name}, "spec": {**have, **spec}}


async def test_what_a_claim_begins_with(api: Api, core: str) -> None:
    made = (await api("POST", f"{core}/persistentvolumeclaims", claim())).ok()
    assert made["status"] == {"phase": "Pending"}
    assert made["spec"]["volumeMode"] == "Filesystem"
    assert made["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]


async def test_a_claim_names_its_modes_and_its_size(api: Api, core: str) -> None:
    path = f"{core}/persistentvolumeclaims"
    text = (await api("POST", path, claim(accessModes=[]))).refused(422, "Invalid")
    assert "spec.accessModes: Required value: at least 1 access mode is required" in text
    text = (await api("POST", path, claim(resources={}))).refused(422, "Invalid")
    assert "spec.resources[storage]: Required value" in text


async def test_a_claim_stays_as_it_was_made(api: Api, core: str) -> None:
    (await api("POST", f"{core}/persistentvolumeclaims", claim())).ok()
    patch = {"spec": {"accessModes": ["ReadWriteMany"]}}
    answer = await api("PATCH", f"{core}/persistentvolumeclaims/c", patch, content=MERGE)
    assert "spec is immutable after creation except resources.requests" in answer.refused(422, "Invalid")


async def test_what_a_volume_begins_with(api: Api, unique: str, cleanup: Cleanup) -> None:
    cleanup(f"{VOLUMES}/{unique}")
    made = (await api("POST", VOLUMES, volume(unique, storageClassName=unique))).ok()
    assert (made["spec"]["persistentVolumeReclaimPolicy"], made["spec"]["volumeMode"]) == ("Retain", "Filesystem")
    assert made["metadata"]["finalizers"] == ["kubernetes.io/pv-protection"]
    await api.until(f"{VOLUMES}/{unique}", lambda answer: answer.body["status"].get("phase") == "Available")


async def test_a_volume_has_one_source_and_keeps_it(api: Api, unique: str, cleanup: Cleanup) -> None:
    cleanup(f"{VOLUMES}/{unique}")
    none = volume(unique)
    del none["spec"]["hostPath"]
    assert "must specify a volume type" in (await api("POST", VOLUMES, none)).refused(422, "Invalid")
    local = volume(unique, local={"path": "/d"})
    del local["spec"]["hostPath"]
    assert "Local volume requires node affinity" in (await api("POST", VOLUMES, local)).refused(422, "Invalid")
    (await api("POST", VOLUMES, volume(unique))).ok()
    patch = {"spec": {"hostPath": {"path": "/other"}}}
    answer = await api("PATCH", f"{VOLUMES}/{unique}", patch, content=MERGE)
    assert "immutable after creation" in answer.refused(422, "Invalid")


async def test_a_claim_and_a_volume_find_each_other(api: Api, core: str, unique: str, cleanup: Cleanup) -> None:
    cleanup(f"{VOLUMES}/{unique}")
    (await api("POST", VOLUMES, volume(unique, storageClassName=unique))).ok()
    path = f"{core}/persistentvolumeclaims"
    (await api("POST", path, claim(storageClassName=unique))).ok()
    bound = await api.until(f"{path}/c", lambda answer: answer.body["status"]["phase"] == "Bound")
    assert bound.body["spec"]["volumeName"] == unique
    assert bound.body["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] == "yes"
    assert bound.body["status"]["capacity"] == {"storage": "1Gi"}
    held = await api.until(f"{VOLUMES}/{unique}", lambda answer: answer.body["status"]["phase"] == "Bound")
    assert held.body["spec"]["claimRef"]["uid"] == bound.body["metadata"]["uid"]
    (await api("DELETE", f"{path}/c")).ok()
    await api.gone(f"{path}/c")
    await api.until(f"{VOLUMES}/{unique}", lambda answer: answer.body["status"]["phase"] == "Released")


async def test_a_claim_waits_for_its_first_consumer(api: Api, core: str, unique: str, cleanup: Cleanup) -> None:
    item = {
        "metadata": {"name": unique},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    cleanup(f"{CLASSES}/{unique}")
    cleanup(f"{VOLUMES}/{unique}")
    (await api("POST", CLASSES, item)).ok()
    (await api("POST", VOLUMES, volume(unique, storageClassName=unique))).ok()
    (await api("POST", f"{core}/persistentvolumeclaims", claim(storageClassName=unique))).ok()
    about = f"{core}/events?fieldSelector=involvedObject.name%3Dc,reason%3DWaitForFirstConsumer"
    await api.until(about.replace("%3D", "="), lambda answer: bool(answer.body["items"]))
    found = (await api("GET", f"{core}/persistentvolumeclaims/c")).ok()
    assert found["status"]["phase"] == "Pending"


async def test_a_storage_class_keeps_what_it_makes(api: Api, unique: str, cleanup: Cleanup) -> None:
    cleanup(f"{CLASSES}/{unique}")
    made = (await api("POST", CLASSES, {"metadata": {"name": unique}, "provisioner": "example.com/disk"})).ok()
    assert (made["reclaimPolicy"], made["volumeBindingMode"]) == ("Delete", "Immediate")
    changes: dict[str, Any] = {
        "provisioner": "example.com/other",
        "parameters": {"a": "b"},
        "reclaimPolicy": "Retain",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    for field, value in changes.items():
        answer = await api("PATCH", f"{CLASSES}/{unique}", {field: value}, content=MERGE)
        answer.refused(422, "Invalid")  # before 1.36 with another text for the first three
        assert {name for name, _ in causes(answer)} == {field}


async def test_drivers_say_how_many_volumes_a_node_takes(api: Api, unique: str, cleanup: Cleanup) -> None:
    cleanup(f"{CSI_NODES}/{unique}")
    driver = {"name": "example.com", "nodeID": unique, "allocatable": {"count": 3}}
    body = {"metadata": {"name": unique}, "spec": {"drivers": [driver]}}
    made = (await api("POST", CSI_NODES, body)).ok()
    assert made["spec"]["drivers"][0]["allocatable"] == {"count": 3}


async def test_label_keys_become_part_of_the_selector(api: Api, core: str) -> None:
    pod = gated_pod("a")
    pod["metadata"]["labels"] = {"app": "x", "hash": "1"}
    selector = {"matchLabels": {"app": "x"}}
    term = {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname", "mismatchLabelKeys": ["hash", "none"]}
    near = {**term, "matchLabelKeys": ["hash"]}
    del near["mismatchLabelKeys"]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    pod["spec"]["affinity"] = {"podAffinity": {required: [near]}, "podAntiAffinity": {required: [term]}}
    made = (await api("POST", f"{core}/pods", pod)).ok()["spec"]["affinity"]
    for kind, operator in (("podAffinity", "In"), ("podAntiAffinity", "NotIn")):
        (merged,) = made[kind][required]
        assert merged["labelSelector"]["matchExpressions"] == [{"key": "hash", "operator": operator, "values": ["1"]}]


async def test_priority_comes_from_the_class_alone(api: Api, core: str, unique: str, cleanup: Cleanup) -> None:
    cleanup(f"{PRIORITIES}/{unique}")
    item = {"metadata": {"name": unique}, "value": -10, "preemptionPolicy": "Never"}
    (await api("POST", PRIORITIES, item)).ok()
    pod = gated_pod("a")
    pod["spec"]["priorityClassName"] = unique
    made = (await api("POST", f"{core}/pods", pod)).ok()
    assert (made["spec"]["priority"], made["spec"]["preemptionPolicy"]) == (-10, "Never")
    pod = gated_pod("b")
    pod["spec"] |= {"priorityClassName": unique, "priority": 5}
    text = (await api("POST", f"{core}/pods", pod)).refused(403, "Forbidden")
    assert "must not be provided in pod spec" in text
    pod = gated_pod("c")
    pod["spec"]["priorityClassName"] = f"{unique}-none"
    text = (await api("POST", f"{core}/pods", pod)).refused(403, "Forbidden")
    assert f"no PriorityClass with name {unique}-none was found" in text


async def test_claims_of_a_stateful_set_are_made_in_order(api: Api, namespace: str, core: str) -> None:
    labels = {"app": "s"}
    mounts = [{"name": "d", "mountPath": "/d"}]
    container = {"name": "c", "image": "registry.k8s.io/pause:3.10", "volumeMounts": mounts}
    spec = {
        "serviceName": "s",
        "replicas": 1,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        "volumeClaimTemplates": [claim("d")],
    }
    path = f"/apis/apps/v1/namespaces/{namespace}/statefulsets"
    mounts[0]["name"] = "none"
    text = (await api("POST", path, {"metadata": {"name": "s"}, "spec": spec})).refused(422, "Invalid")
    assert 'spec.template.spec.containers[0].volumeMounts[0].name: Not found: "none"' in text
    mounts[0]["name"] = "d"
    (await api("POST", path, {"metadata": {"name": "s"}, "spec": spec})).ok()
    made = await api.until(f"{core}/persistentvolumeclaims/d-s-0", lambda answer: answer.status == 200)
    assert made.body["metadata"]["labels"] == labels
    pod = await api.until(f"{core}/pods/s-0", lambda answer: answer.status == 200)
    own = [each for each in pod.body["spec"]["volumes"] if each.get("persistentVolumeClaim")]
    assert [(each["name"], each["persistentVolumeClaim"]["claimName"]) for each in own] == [("d", "d-s-0")]
