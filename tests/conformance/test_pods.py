"""Pods at the API: gates and pinning, binding, eviction, what cannot be changed, quota."""

import asyncio
from typing import Any

import pytest
from tests.support.conformance_api import MERGE, TIMEOUT, Api, causes, configmap, gated_pod, limited

from tessera.kube.client import Client
from tessera.kube.errors import Conflict
from tessera.kube.resources import PODS

HOST = "kubernetes.io/hostname"
OTHER_LIFE = "00000000-0000-0000-0000-000000000000"


async def test_defaults_of_a_pod(api: Api, core: str) -> None:
    made = (await api("POST", f"{core}/pods", gated_pod("a"))).ok()
    spec = made["spec"]
    assert (spec["restartPolicy"], spec["dnsPolicy"], spec["schedulerName"]) == (
        "Always",
        "ClusterFirst",
        "default-scheduler",
    )
    assert (spec["serviceAccountName"], spec["priority"]) == ("default", 0)
    keys = [each["key"] for each in spec["tolerations"]]
    assert keys == ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]
    assert made["status"]["phase"] == "Pending"
    assert made["status"]["qosClass"] == "BestEffort"


async def test_a_limit_is_a_request_where_none_is_given(api: Api, core: str) -> None:
    limits = {"example.com/thing": "2", "cpu": "0.5", "memory": "1024Mi"}
    made = (await api("POST", f"{core}/pods", gated_pod("a", limits=limits))).ok()
    amounts = {"example.com/thing": "2", "cpu": "500m", "memory": "1Gi"}
    assert made["spec"]["containers"][0]["resources"] == {"limits": amounts, "requests": amounts}
    assert made["status"]["qosClass"] == "Guaranteed"


@pytest.mark.parametrize(
    ("amount", "stored"),
    [
        ("1e30", "1e30"),
        ("1E20", "100e18"),
        ("2e3", "2e3"),
        ("15e2", "1500"),
        ("25e1", "250"),
        ("5e-1", "500e-3"),
        ("1e-9", "1e-3"),
    ],
)
async def test_an_amount_with_an_exponent_keeps_one(api: Api, core: str, amount: str, stored: str) -> None:
    made = (await api("POST", f"{core}/pods", gated_pod("a", limits={"cpu": amount}))).ok()
    assert made["spec"]["containers"][0]["resources"]["limits"] == {"cpu": stored}


@pytest.mark.parametrize("part", ["capacity", "allocatable"])
async def test_a_node_has_no_less_than_nothing(api: Api, part: str) -> None:
    node = {"metadata": {"name": "conformance-less"}, "status": {part: {"nvidia.com/mig-1g.5gb": "-5"}}}
    refused = (await api("POST", "/api/v1/nodes", node)).refused(422, "Invalid")
    assert f'status.{part}.nvidia.com/mig-1g.5gb: Invalid value: "-5": must be greater than or equal to 0' in refused
    await api("POST", "/api/v1/nodes", {"metadata": {"name": "conformance-less"}})
    try:
        status = "/api/v1/nodes/conformance-less/status"
        refused = (await api("PATCH", status, {"status": node["status"]}, content=MERGE)).refused(422, "Invalid")
        assert "must be greater than or equal to 0" in refused
    finally:
        await api("DELETE", "/api/v1/nodes/conformance-less")


async def test_extended_resources_are_whole_numbers_and_not_overcommitted(api: Api, core: str) -> None:
    half = await api("POST", f"{core}/pods", gated_pod("a", limits={"example.com/thing": "500m"}))
    assert "must be an integer" in half.refused(422, "Invalid")
    uneven = gated_pod("a", limits={"example.com/thing": "2"})
    uneven["spec"]["containers"][0]["resources"]["requests"] = {"example.com/thing": "1"}
    text = (await api("POST", f"{core}/pods", uneven)).refused(422, "Invalid")
    assert "must be equal to example.com/thing limit" in text


def shared_pod(own: dict[str, Any], **containers: Any) -> dict[str, Any]:
    """A pod with resources of its own, and those of its container."""
    pod = gated_pod("a")
    pod["spec"]["resources"] = own
    pod["spec"]["containers"][0]["resources"] = containers
    return pod


SHARED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, str], str]] = {
    "its limits": ({"limits": {"cpu": 1, "memory": "1Gi"}}, {}, {"cpu": "1", "memory": "1Gi"}, "Guaranteed"),
    "its containers' requests": (
        {"limits": {"cpu": 1}},
        {"requests": {"memory": "500Mi", "cpu": "0.5"}, "limits": {"example.com/thing": 1}},
        {"cpu": "500m", "memory": "500Mi"},
        "Burstable",
    ),
    "only what it states": ({"requests": {"cpu": 1}}, {"requests": {"memory": "1Gi"}}, {"cpu": "1"}, "Burstable"),
}


@pytest.mark.parametrize("case", SHARED)
async def test_a_pod_with_limits_of_its_own_requests(api: Api, core: str, case: str) -> None:
    own, container, requests, quality = SHARED[case]
    made = (await api("POST", f"{core}/pods", shared_pod(own, **container))).ok()
    assert made["spec"]["resources"]["requests"] == requests
    assert made["status"]["qosClass"] == quality


ODD_SHARES: dict[str, tuple[dict[str, Any], dict[str, Any], list[tuple[str, str]]]] = {
    "an extended resource": (
        {"limits": {"example.com/thing": 1}, "requests": {"example.com/thing": 1}},
        {},
        [
            (f"spec.resources.{kind}[example.com/thing]", 'supported values: "cpu", "hugepages-", "memory"')
            for kind in ("limits", "requests")
        ],
    ),
    "less than its containers": (
        {"requests": {"cpu": 1}},
        {"requests": {"cpu": 2}},
        [("spec.resources.requests[cpu]", '"1": must be greater than or equal to aggregate container requests of 2')],
    ),
    "a container's limit above its own": (
        {"limits": {"cpu": 1}, "requests": {"cpu": 1}},
        {"limits": {"cpu": 2}, "requests": {"cpu": 1}},
        [("spec.resources.containers[0][cpu].limits", '"2": must be less than or equal to pod limits of 1')],
    ),
    "less huge pages than its containers": (
        {"limits": {"hugepages-2Mi": "2Mi", "cpu": 1}},
        {"limits": {"hugepages-2Mi": "4Mi", "memory": "1Gi"}},
        [
            (
                "spec.resources.containers[0][hugepages-2Mi].limits",
                '"4Mi": must be less than or equal to pod limits of',
            ),
            (
                "spec.resources.limits[hugepages-2Mi]",
                '"2Mi": must be greater than or equal to aggregate container limits',
            ),
            (
                "spec.resources.requests[hugepages-2Mi]",
                "must be greater than or equal to aggregate container requests of 4Mi",
            ),
        ],
    ),
    "requests above its limits": (
        {"limits": {"cpu": 1}, "requests": {"cpu": 2}},
        {},
        [("spec.resources.requests", '"2": must be less than or equal to cpu limit of 1')],
    ),
    "claims": (
        {"claims": [{"name": "card"}], "limits": {"cpu": 1}},
        {},
        [
            ("spec.resources.claims", "claims may not be set for Resources at pod-level"),
            ("spec.resources.claims[0]", '"card": must be one of the names in pod.spec.resourceClaims which is empty'),
        ],
    ),
}


@pytest.mark.parametrize("case", ODD_SHARES)
async def test_what_a_pod_cannot_have_of_its_own(api: Api, core: str, case: str) -> None:
    own, container, expected = ODD_SHARES[case]
    answer = await api("POST", f"{core}/pods", shared_pod(own, **container))
    answer.refused(422, "Invalid")
    found = sorted((each["field"], each["message"]) for each in answer.body["details"]["causes"])
    assert [field for field, _ in found] == [field for field, _ in expected]
    assert all(text in message for (_, message), (_, text) in zip(found, expected, strict=True))


async def test_a_pod_with_a_gate_says_so(api: Api, core: str) -> None:
    (await api("POST", f"{core}/pods", gated_pod("a"))).ok()
    found = await api.until(f"{core}/pods/a", lambda answer: bool(answer.body["status"].get("conditions")))
    (condition,) = [each for each in found.body["status"]["conditions"] if each["type"] == "PodScheduled"]
    assert (condition["status"], condition["reason"]) == ("False", "SchedulingGated")


async def test_pin_and_ungate_are_one_patch(api: Api, core: str) -> None:
    made = (await api("POST", f"{core}/pods", gated_pod("a"))).ok()
    patch = {
        "metadata": {"uid": made["metadata"]["uid"]},
        "spec": {"nodeSelector": {HOST: "no-such-node"}, "schedulingGates": []},
    }
    patched = (await api("PATCH", f"{core}/pods/a", patch, content=MERGE)).ok()
    assert patched["spec"]["nodeSelector"] == {HOST: "no-such-node"}
    assert not patched["spec"].get("schedulingGates")


async def test_a_patch_for_another_life_of_a_pod_is_refused(api: Api, core: str) -> None:
    (await api("POST", f"{core}/pods", gated_pod("a"))).ok()
    patch = {"metadata": {"uid": OTHER_LIFE}, "spec": {"schedulingGates": []}}
    refused = await api("PATCH", f"{core}/pods/a", patch, content=MERGE)
    text = refused.refused(422, "Invalid")
    assert text == f'Pod "a" is invalid: metadata.uid: Invalid value: "{OTHER_LIFE}": field is immutable'
    assert {field for field, _ in causes(refused)} == {"metadata.uid"}
    status = {"metadata": {"uid": OTHER_LIFE}, "status": {"message": "hello"}}
    (await api("PATCH", f"{core}/pods/a/status", status, content=MERGE)).refused(422, "Invalid")


async def test_our_client_calls_another_life_a_conflict(api: Api, client: Client, core: str, namespace: str) -> None:
    (await api("POST", f"{core}/pods", gated_pod("a"))).ok()
    with pytest.raises(Conflict):
        await client.merge_patch(PODS, "a", {"spec": {"schedulingGates": []}}, namespace, uid=OTHER_LIFE)
    with pytest.raises(Conflict):
        await client.delete(PODS, "a", namespace, uid=OTHER_LIFE)
    assert (await api("GET", f"{core}/pods/a")).ok()["spec"]["schedulingGates"]


async def test_a_put_for_another_life_is_a_conflict(api: Api, core: str) -> None:
    made = (await api("POST", f"{core}/pods", gated_pod("a"))).ok()
    made["metadata"] = {"name": "a", "uid": OTHER_LIFE}
    text = (await api("PUT", f"{core}/pods/a", made)).refused(409, "Conflict")
    assert f"Precondition failed: UID in precondition: {OTHER_LIFE}, UID in object meta: " in text


async def test_one_of_two_gates_may_go_and_none_may_come(api: Api, core: str) -> None:
    (await api("POST", f"{core}/pods", gated_pod("a", "example.com/one", "example.com/two"))).ok()
    left = {"spec": {"schedulingGates": [{"name": "example.com/two"}]}}
    found = (await api("PATCH", f"{core}/pods/a", left, content=MERGE)).ok()
    assert found["spec"]["schedulingGates"] == [{"name": "example.com/two"}]
    more = {"spec": {"schedulingGates": [{"name": "example.com/two"}, {"name": "example.com/three"}]}}
    text = (await api("PATCH", f"{core}/pods/a", more, content=MERGE)).refused(422, "Invalid")
    assert "only deletion is allowed" in text


async def test_a_gated_pod_s_selector_may_grow_but_not_change(api: Api, core: str) -> None:
    sent = gated_pod("a")
    sent["spec"]["nodeSelector"] = {"disk": "ssd"}
    (await api("POST", f"{core}/pods", sent)).ok()
    grown = {"spec": {"nodeSelector": {"zone": "a"}}}
    found = (await api("PATCH", f"{core}/pods/a", grown, content=MERGE)).ok()
    assert found["spec"]["nodeSelector"] == {"disk": "ssd", "zone": "a"}
    for change in ({"disk": "hdd"}, {"disk": None}):
        answer = await api("PATCH", f"{core}/pods/a", {"spec": {"nodeSelector": change}}, content=MERGE)
        answer.refused(422, "Invalid")


async def test_without_gates_the_selector_is_fixed(api: Api, core: str) -> None:
    sent = gated_pod("a")
    sent["spec"]["nodeSelector"] = {HOST: "no-such-node"}
    (await api("POST", f"{core}/pods", sent)).ok()
    (await api("PATCH", f"{core}/pods/a", {"spec": {"schedulingGates": []}}, content=MERGE)).ok()
    answer = await api("PATCH", f"{core}/pods/a", {"spec": {"nodeSelector": {"zone": "a"}}}, content=MERGE)
    answer.refused(422, "Invalid")


async def test_most_of_a_pod_cannot_be_changed(api: Api, core: str) -> None:
    made = (await api("POST", f"{core}/pods", gated_pod("a"))).ok()
    text = (await api("PATCH", f"{core}/pods/a", {"spec": {"restartPolicy": "Never"}}, content=MERGE)).refused(422)
    assert text.startswith('Pod "a" is invalid: spec: Forbidden: pod updates may not change fields other than ')
    made["spec"]["containers"][0]["image"] = "example.com/other:1"
    assert (await api("PUT", f"{core}/pods/a", made)).ok()["spec"]["containers"][0]["image"] == "example.com/other:1"


async def test_binding_sets_the_node_once(api: Api, core: str) -> None:
    sent = gated_pod("a")
    sent["spec"]["schedulerName"] = "nobody"
    (await api("POST", f"{core}/pods", sent)).ok()
    binding = {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "no-such-node"}}
    assert (await api("POST", f"{core}/pods/a/binding", binding)).status >= 400
    (await api("PATCH", f"{core}/pods/a", {"spec": {"schedulingGates": []}}, content=MERGE)).ok()
    answer = await api("POST", f"{core}/pods/a/binding", binding)
    assert answer.status == 201
    found = (await api("GET", f"{core}/pods/a")).ok()
    assert found["spec"]["nodeName"] == "no-such-node"
    (scheduled,) = [each for each in found["status"]["conditions"] if each["type"] == "PodScheduled"]
    assert scheduled["status"] == "True"
    again = await api("POST", f"{core}/pods/a/binding", binding)
    assert "is already assigned to node" in again.refused(409, "Conflict")
    selected = (await api("GET", f"{core}/pods?fieldSelector=spec.nodeName=no-such-node")).ok()
    assert [each["metadata"]["name"] for each in selected["items"]] == ["a"]
    (await api("DELETE", f"{core}/pods/a?gracePeriodSeconds=0")).ok()


async def test_an_evicted_pod_goes(api: Api, core: str) -> None:
    (await api("POST", f"{core}/pods", gated_pod("a"))).ok()
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
    answer = await api("POST", f"{core}/pods/a/eviction", eviction)
    assert (answer.status, answer.body["status"]) == (201, "Success")
    await api.gone(f"{core}/pods/a")
    (await api("POST", f"{core}/pods/a/eviction", eviction)).refused(404, "NotFound")


async def test_a_pod_that_was_never_bound_is_deleted_at_once(api: Api, core: str) -> None:
    sent = gated_pod("a")
    sent["spec"]["terminationGracePeriodSeconds"] = 3600
    (await api("POST", f"{core}/pods", sent)).ok()
    (await api("DELETE", f"{core}/pods/a")).ok()
    assert (await api("GET", f"{core}/pods/a")).status == 404


async def test_status_is_written_through_its_subresource(api: Api, core: str) -> None:
    (await api("POST", f"{core}/pods", gated_pod("a"))).ok()
    ignored = await api("PATCH", f"{core}/pods/a", {"status": {"message": "hello"}}, content=MERGE)
    assert "message" not in ignored.ok()["status"]
    written = await api("PATCH", f"{core}/pods/a/status", {"status": {"message": "hello"}}, content=MERGE)
    assert written.ok()["status"]["message"] == "hello"


async def test_quota_of_extended_resources(api: Api, core: str) -> None:
    """Also of gigabytes, as the memory of slices is counted."""
    thing = "requests.example.com/thing"
    await limited(api, core, {thing: "3Gi", "pods": "10"})
    (await api("POST", f"{core}/pods", gated_pod("a", limits={"example.com/thing": "2Gi"}))).ok()
    refused = await api("POST", f"{core}/pods", gated_pod("b", limits={"example.com/thing": "2Gi"}))
    assert refused.refused(403, "Forbidden") == (
        f'pods "b" is forbidden: exceeded quota: q, requested: {thing}=2Gi, used: {thing}=2Gi, limited: {thing}=3Gi'
    )
    (await api("POST", f"{core}/pods", gated_pod("c", limits={"example.com/thing": "1Gi"}))).ok()
    found = (await api("GET", f"{core}/resourcequotas/q")).ok()
    assert found["status"]["used"] == {thing: "3Gi", "pods": "2"}


async def test_quota_is_given_back(api: Api, core: str) -> None:
    await limited(api, core, {"pods": "1"})
    (await api("POST", f"{core}/pods", gated_pod("a"))).ok()
    assert (await api("POST", f"{core}/pods", gated_pod("b"))).status == 403
    (await api("DELETE", f"{core}/pods/a")).ok()
    await api.until(f"{core}/resourcequotas/q", lambda answer: answer.body["status"]["used"] == {"pods": "0"})
    async with asyncio.timeout(TIMEOUT):  # who admits may see it a moment later
        while (await api("POST", f"{core}/pods", gated_pod("b"))).status != 201:
            pass


async def test_quota_of_objects(api: Api, core: str) -> None:
    await limited(api, core, {"count/secrets": "0"})
    refused = await api("POST", f"{core}/secrets", {"metadata": {"name": "s"}})
    assert refused.refused(403, "Forbidden") == (
        'secrets "s" is forbidden: exceeded quota: q, requested: count/secrets=1, used: count/secrets=0, limited: '
        "count/secrets=0"
    )
    (await api("POST", f"{core}/configmaps", configmap("a"))).ok()


async def test_a_quota_of_cpu_demands_that_containers_name_it(api: Api, core: str) -> None:
    await limited(api, core, {"limits.cpu": "1"})
    text = (await api("POST", f"{core}/pods", gated_pod("a"))).refused(403, "Forbidden")
    assert text == 'pods "a" is forbidden: failed quota: q: must specify limits.cpu for: main'


@pytest.mark.parametrize(
    ("volume", "mount", "told"),
    [
        ({"hostPath": {"path": "/media/../dev"}}, {}, ("spec.volumes[0].hostPath.path", "must not contain '..'")),
        ({"hostPath": {"path": ".."}}, {}, ("spec.volumes[0].hostPath.path", "must not contain '..'")),
        ({"hostPath": {"path": ""}}, {}, ("spec.volumes[0].hostPath.path", "Required value")),
        ({"emptyDir": {}}, {"subPath": "a/../../b"}, ("volumeMounts.subPath", "must not contain '..'")),
        ({"emptyDir": {}}, {"subPath": "/a"}, ("volumeMounts.subPath", "must be a relative path")),
        ({"emptyDir": {}}, {"subPathExpr": "../$(A)"}, ("volumeMounts.subPathExpr", "must not contain '..'")),
        ({"emptyDir": {}}, {"mountPath": ""}, ("volumeMounts[0].mountPath", "Required value")),
    ],
)
async def test_a_mounted_folder_leads_to_no_other(
    api: Api, core: str, volume: dict[str, Any], mount: dict[str, str], told: tuple[str, str]
) -> None:
    container = {"name": "a", "image": "e.com/a:1", "volumeMounts": [{"name": "v", "mountPath": "/v", **mount}]}
    body = {"metadata": {"name": "a"}, "spec": {"containers": [container], "volumes": [{"name": "v", **volume}]}}
    said = (await api("POST", f"{core}/pods", body)).refused(422, "Invalid")
    assert all(each in said for each in told)


async def test_a_folder_whose_name_has_two_dots_is_no_way_up(api: Api, core: str) -> None:
    container = {"name": "a", "image": "e.com/a:1"}
    volume = {"name": "v", "hostPath": {"path": "/mnt/a..b"}}
    gates = [{"name": "example.com/wait"}]
    spec = {"containers": [container], "volumes": [volume], "schedulingGates": gates}
    (await api("POST", f"{core}/pods", {"metadata": {"name": "a"}, "spec": spec})).ok()
