"""resource.k8s.io/v1: what the server takes, refuses and drops. All seen on Kubernetes 1.36.2 with default gates."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.conformance_api import MERGE, Api, Kubectl, limited
from tests.support.device_claims import (
    API,
    allocation,
    claim,
    claim_template,
    device_class,
    exactly,
    resource_slice,
)

Obj = dict[str, Any]
DRIVER = "gpu.tessera.dev"
#: No pod, so that no controller takes it for one that is gone.
CONSUMER = {"apiGroup": "example.com", "resource": "widgets", "name": "p", "uid": "1"}


@pytest.fixture
def claims(namespace: str) -> str:
    """Path of the namespace's claims."""
    return f"{API}/namespaces/{namespace}/resourceclaims"


@pytest.fixture
def slices(unique: str, cleanup: Callable[[str], None]) -> Callable[..., Obj]:
    """Makes a slice of a node that does not exist; it is deleted after the test."""
    cleanup(f"{API}/resourceslices/{unique}")
    return lambda *devices, **spec: resource_slice(unique, DRIVER, f"{unique}-node", *devices, **spec)


def device(name: str = "gpu-0", **fields: Any) -> Obj:
    return {"name": name, **fields}


async def _status(api: Api, path: str, status: Obj) -> Any:
    return await api("PATCH", f"{path}/status", {"status": status}, content=MERGE)


# -- specs ----------------------------------------------------------------------------------------------------------


async def test_a_request_is_for_one_device_unless_it_says_more(api: Api, claims: str) -> None:
    made = (await api("POST", claims, claim("a", exactly("gpu", "gpus")))).ok()
    request = made["spec"]["devices"]["requests"][0]["exactly"]
    assert (request["allocationMode"], request["count"]) == ("ExactCount", 1)


async def test_a_claim_and_a_template_cannot_change(api: Api, claims: str, namespace: str) -> None:
    (await api("POST", claims, claim("a", exactly("gpu", "gpus")))).ok()
    change = {"spec": {"devices": {"requests": [exactly("other", "gpus")]}}}
    refused = await api("PATCH", f"{claims}/a", change, content=MERGE)
    assert "spec: Invalid value" in (text := refused.refused(422, "Invalid"))
    assert text.endswith("field is immutable")
    templates = f"{API}/namespaces/{namespace}/resourceclaimtemplates"
    (await api("POST", templates, claim_template("t", exactly("gpu", "gpus")))).ok()
    refused = await api("PATCH", f"{templates}/t", {"spec": change}, content=MERGE)
    assert refused.refused(422, "Invalid").endswith("field is immutable")


@pytest.mark.parametrize(
    ("requests", "devices", "text"),
    [
        ([{"name": "gpu"}], {}, "exactly one of `exactly` or `firstAvailable` is required"),
        ([exactly("GPU", "gpus")], {}, "a lowercase RFC 1123 label"),
        ([exactly("gpu", "gpus"), exactly("gpu", "gpus")], {}, 'spec.devices.requests[1]: Duplicate value: "gpu"'),
        ([exactly("gpu", "")], {}, "spec.devices.requests[0].exactly.deviceClassName: Required value"),
        ([exactly("gpu", "gpus", allocationMode="All", count=2)], {}, "when allocationMode is 'All'"),
        ([exactly("gpu", "gpus", count=-1)], {}, "must be greater than zero"),
        (
            [exactly(f"gpu-{index}", "gpus") for index in range(33)],
            {},
            "spec.devices.requests: Too many: 33: must have at most 32 items",
        ),
        (
            [exactly("gpu", "gpus")],
            {"constraints": [{"requests": ["none"], "matchAttribute": "gpu.tessera.dev/card"}]},
            "must be the name of a request in the claim",
        ),
        (
            [exactly("gpu", "gpus")],
            {"constraints": [{"matchAttribute": "card"}]},
            "a fully qualified name must be a domain and a name separated by a slash",
        ),
        (
            [exactly("gpu", "gpus")],
            {"config": [{"opaque": {"driver": DRIVER}}]},
            "spec.devices.config[0].opaque.parameters: Required value",
        ),
        ([exactly("gpu", "gpus", adminAccess=True)], {}, "`resource.kubernetes.io/admin-access: true` label"),
    ],
)
async def test_a_wrong_claim_is_refused(api: Api, claims: str, requests: list[Obj], devices: Obj, text: str) -> None:
    assert text in (await api("POST", claims, claim("a", *requests, **devices))).refused(422, "Invalid")


async def test_a_class_can_stand_for_an_extended_resource(
    api: Api, unique: str, cleanup: Callable[[str], None]
) -> None:
    cleanup(f"{API}/deviceclasses/{unique}")
    wrong = device_class(unique, "true", extendedResourceName="cpu")
    refused = await api("POST", f"{API}/deviceclasses", wrong)
    assert "must be a valid extended resource name" in refused.refused(422, "Invalid")
    made = device_class(unique, f'device.driver == "{DRIVER}"', extendedResourceName=f"example.com/{unique}")
    assert (await api("POST", f"{API}/deviceclasses", made)).ok()["spec"]["extendedResourceName"]


async def test_a_quota_limits_the_devices_of_a_class(api: Api, core: str, claims: str) -> None:
    name = "gpus.deviceclass.resource.k8s.io/devices"
    await limited(api, core, {name: "3", "count/resourceclaims.resource.k8s.io": "2"})
    alternatives = [{"name": each, "deviceClassName": "gpus", "count": count} for each, count in (("a", 1), ("b", 2))]
    (await api("POST", claims, claim("a", {"name": "gpu", "firstAvailable": alternatives}))).ok()
    text = (await api("POST", claims, claim("b", exactly("gpu", "gpus", count=2)))).refused(403, "Forbidden")
    assert f"requested: {name}=2, used: {name}=2, limited: {name}=3" in text
    text = (await api("POST", claims, claim("b", exactly("gpu", "gpus", allocationMode="All")))).refused(403)
    assert f"requested: {name}=32" in text
    (await api("POST", claims, claim("b", exactly("gpu", "gpus")))).ok()


# -- status ---------------------------------------------------------------------------------------------------------


async def test_nobody_checks_that_an_allocated_device_exists(api: Api, claims: str) -> None:
    for name in ("a", "b"):
        (await api("POST", claims, claim(name, exactly("gpu", "gpus")))).ok()
        given = (await _status(api, f"{claims}/{name}", {"allocation": allocation(DRIVER, "no-node", "none")})).ok()
        assert given["status"]["allocation"]["devices"]["results"][0]["device"] == "none"


async def test_an_allocation_can_be_set_and_cleared_but_not_changed(api: Api, claims: str) -> None:
    (await api("POST", claims, claim("a", exactly("gpu", "gpus")))).ok()
    path = f"{claims}/a"
    (await _status(api, path, {"allocation": allocation(DRIVER, "n1", "gpu-0", timed=False)})).ok()
    refused = await _status(api, path, {"allocation": allocation(DRIVER, "n1", "gpu-0")})
    text = refused.refused(422, "Invalid")
    assert "status.allocation: Invalid value" in text
    assert text.endswith("field is immutable")
    assert "allocation" not in (await _status(api, path, {"allocation": None})).ok()["status"]
    (await _status(api, path, {"allocation": allocation(DRIVER, "n2", "gpu-0")})).ok()


async def test_a_result_names_a_request_or_one_of_its_alternatives(api: Api, claims: str) -> None:
    alternatives = [{"name": "small", "deviceClassName": "gpus"}, {"name": "large", "deviceClassName": "gpus"}]
    for request in ("gpu", "gpu/small"):
        name = request.replace("/", "-")
        (await api("POST", claims, claim(name, {"name": "gpu", "firstAvailable": alternatives}))).ok()
        given = allocation(DRIVER, "n1", "gpu-0", request=request)
        (await _status(api, f"{claims}/{name}", {"allocation": given})).ok()
    (await api("POST", claims, claim("c", exactly("gpu", "gpus")))).ok()
    given = allocation(DRIVER, "n1", "gpu-0", request="gpu/small")
    refused = await _status(api, f"{claims}/c", {"allocation": given})
    assert "must be the name of a request in the claim" in refused.refused(422, "Invalid")


async def test_only_an_allocated_claim_can_be_reserved(api: Api, claims: str) -> None:
    (await api("POST", claims, claim("a", exactly("gpu", "gpus")))).ok()
    refused = await _status(api, f"{claims}/a", {"reservedFor": [CONSUMER]})
    assert "may not be specified when `allocated` is not set" in refused.refused(422, "Invalid")
    given = {"allocation": allocation(DRIVER, "n1", "gpu-0"), "reservedFor": [CONSUMER]}
    (await _status(api, f"{claims}/a", given)).ok()
    refused = await _status(api, f"{claims}/a", {"allocation": None})
    assert refused.status == 422
    many = [{**CONSUMER, "uid": str(index)} for index in range(257)]
    assert "must have at most 256 items" in (await _status(api, f"{claims}/a", {"reservedFor": many})).refused(422)


async def test_the_status_of_a_device_is_about_an_allocated_one_and_ends_with_it(api: Api, claims: str) -> None:
    (await api("POST", claims, claim("a", exactly("gpu", "gpus")))).ok()
    (await _status(api, f"{claims}/a", {"allocation": allocation(DRIVER, "n1", "gpu-0")})).ok()
    other = {"driver": DRIVER, "pool": "n1", "device": "gpu-1"}
    refused = await _status(api, f"{claims}/a", {"devices": [other]})
    assert "must be an allocated device in the claim" in refused.refused(422, "Invalid")
    (await _status(api, f"{claims}/a", {"devices": [{**other, "device": "gpu-0"}]})).ok()
    assert (await _status(api, f"{claims}/a", {"allocation": None})).ok()["status"] == {}


# -- rights ---------------------------------------------------------------------------------------------------------


async def test_an_allocation_needs_the_right_to_bind_claims(  # noqa: PLR0917 - fixtures
    api: Api,
    as_token: Callable[[str], Api],
    namespace: str,
    core: str,
    claims: str,
    unique: str,
    cleanup: Callable[[str], None],
) -> None:
    roles = "/apis/rbac.authorization.k8s.io/v1"
    cleanup(f"{roles}/clusterroles/{unique}")
    cleanup(f"{roles}/clusterrolebindings/{unique}")
    rules = [
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/status"], "verbs": ["patch", "update"]},
    ]
    role = {"metadata": {"name": unique}, "rules": rules}
    (await api("POST", f"{roles}/clusterroles", role)).ok()
    binding = {
        "metadata": {"name": unique},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": unique},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
    }
    (await api("POST", f"{roles}/clusterrolebindings", binding)).ok()
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = (await api("POST", f"{core}/serviceaccounts/default/token", request)).ok()["status"]["token"]
    user = as_token(token)
    (await api("POST", claims, claim("a", exactly("gpu", "gpus")))).ok()
    refused = await _status(user, f"{claims}/a", {"allocation": allocation(DRIVER, "n1", "gpu-0")})
    text = refused.refused(422, "Invalid")
    assert (
        "status.allocation: Forbidden: changing status.allocation or status.reservedFor requires "
        'resource="resourceclaims/binding", verb="patch" permission: '
    ) in text
    assert 'cannot patch resource "resourceclaims/binding" in API group "resource.k8s.io" at the cluster scope' in text
    rules.append({"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/binding"], "verbs": ["patch"]})
    (await api("PATCH", f"{roles}/clusterroles/{unique}", {"rules": rules}, content=MERGE)).ok()
    await _until_allowed(user, f"{claims}/a", {"allocation": allocation(DRIVER, "n1", "gpu-0")})
    device_status = {"devices": [{"driver": DRIVER, "pool": "n1", "device": "gpu-0"}]}
    refused = await _status(user, f"{claims}/a", device_status)
    assert (
        'status.devices: Forbidden: changing status.devices requires resource="resourceclaims/driver", '
        'verb="[arbitrary-node:patch]" permission: '
    ) in refused.refused(422, "Invalid")
    rules.append(
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceclaims/driver"],
            "verbs": ["arbitrary-node:patch"],
            "resourceNames": [DRIVER],
        }
    )
    (await api("PATCH", f"{roles}/clusterroles/{unique}", {"rules": rules}, content=MERGE)).ok()
    await _until_allowed(user, f"{claims}/a", device_status)


async def _until_allowed(user: Api, path: str, status: Obj) -> None:
    """Writes a status; an API server needs a moment to see a changed role."""
    for _ in range(100):
        answer = await _status(user, path, status)
        if answer.status != 422:
            break
    answer.ok()


# -- slices ---------------------------------------------------------------------------------------------------------


async def test_a_slice_stays_with_its_pool_driver_and_node(api: Api, slices: Callable[..., Obj], unique: str) -> None:
    made = slices(device())
    (await api("POST", f"{API}/resourceslices", made)).ok()
    for change in ({"driver": "other.dev"}, {"nodeName": "other"}, {"pool": {**made["spec"]["pool"], "name": "other"}}):
        refused = await api("PATCH", f"{API}/resourceslices/{unique}", {"spec": change}, content=MERGE)
        assert "field is immutable" in refused.refused(422, "Invalid")


async def test_counters_and_devices_do_not_share_a_slice(api: Api, slices: Callable[..., Obj]) -> None:
    both = slices()
    both["spec"] |= {"devices": [device()], "sharedCounters": [{"name": "a", "counters": {"n": {"value": "1"}}}]}
    refused = await api("POST", f"{API}/resourceslices", both)
    assert "only one of `sharedCounters` or `devices` is allowed" in refused.refused(422, "Invalid")


def _many(count: int, **fields: Any) -> list[Obj]:
    return [device(f"gpu-{index}", **fields) for index in range(count)]


TAINT = {"key": "example.com/t", "effect": "NoSchedule"}
CONSUMES = {"counterSet": "no-such-set", "counters": {"n": {"value": "1"}}}


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        (_many(129), "must have at most 128 items"),
        (_many(65, taints=[TAINT]), "must have at most 64 items"),
        (_many(65, consumesCounters=[CONSUMES]), "must have at most 64 items"),
        ([device(taints=[TAINT] * 17)], "must have at most 16 items"),
        ([device(taints=[{"key": "a", "effect": "Evict"}])], 'supported values: "NoExecute", "NoSchedule", "None"'),
        (
            [device(consumesCounters=[{**CONSUMES, "counterSet": name} for name in ("a", "b", "c")])],
            "must have at most 2 items",
        ),
        (
            [device(attributes={f"a{index}": {"int": 1} for index in range(33)})],
            "the total number of attributes and capacities must not exceed 32",
        ),
        ([device(attributes={"a": {"string": "x" * 65}})], "may not be more than 64 bytes"),
        ([device(attributes={"a": {"int": 1, "string": "x"}})], "exactly one value must be specified"),
        ([device(attributes={"a": {"ints": [1, 2]}})], "exactly one value must be specified"),
        ([device(attributes={"a": {"version": "1"}})], "semver.org"),
        ([device("gpu-0"), device("gpu-0")], 'Duplicate value: "gpu-0"'),
        ([device("gpu-0-mig-1g.5gb")], "must not contain dots"),
    ],
)
async def test_a_slice_beyond_a_limit_is_refused(
    api: Api, slices: Callable[..., Obj], devices: list[Obj], text: str
) -> None:
    assert text in (await api("POST", f"{API}/resourceslices", slices(*devices))).refused(422, "Invalid")


async def test_limits_of_counters(api: Api, slices: Callable[..., Obj]) -> None:
    sets = [{"name": f"gpu-{index}", "counters": {"n": {"value": "1"}}} for index in range(9)]
    refused = await api("POST", f"{API}/resourceslices", slices(sharedCounters=sets))
    assert "spec.sharedCounters: Too many: 9: must have at most 8 items" in refused.refused(422, "Invalid")
    counters = {f"n{index}": {"value": "1"} for index in range(33)}
    refused = await api("POST", f"{API}/resourceslices", slices(sharedCounters=[{"name": "a", "counters": counters}]))
    assert "must have at most 32 items" in refused.refused(422, "Invalid")


async def test_fields_whose_gate_is_off_are_dropped_and_those_of_1_36_stay(
    api: Api, slices: Callable[..., Obj]
) -> None:
    policy = {"default": "1Mi", "validRange": {"min": "1Mi", "step": "1Mi"}}
    sent = device(
        attributes={"profile": {"string": "1g.5gb"}},
        capacity={"memory": {"value": "5Gi", "requestPolicy": policy}},
        consumesCounters=[CONSUMES],
        taints=[TAINT],
        allowMultipleAllocations=True,
        bindsToNode=True,
        bindingConditions=["example.com/ready"],
        bindingFailureConditions=["example.com/failed"],
        nodeAllocatableResourceMappings={"cpu": {"allocationMultiplier": "2"}},
    )
    answer = await api("POST", f"{API}/resourceslices", slices(sent))
    kept = answer.ok()["spec"]["devices"][0]
    assert kept.keys() == sent.keys() - {"nodeAllocatableResourceMappings"}
    assert kept["capacity"]["memory"]["requestPolicy"] == policy
    assert kept["taints"][0]["timeAdded"]


async def test_unknown_fields_are_dropped(api: Api, slices: Callable[..., Obj]) -> None:
    consumes = [{**CONSUMES, "compatibilityGroups": ["mig"]}]
    answer = await api("POST", f"{API}/resourceslices", slices(device(consumesCounters=consumes, skipped=True)))
    kept = answer.ok()["spec"]["devices"][0]
    assert kept.keys() == {"name", "consumesCounters"}
    assert kept["consumesCounters"] == [CONSUMES]


async def test_slices_of_one_node_or_driver_can_be_selected(api: Api, slices: Callable[..., Obj], unique: str) -> None:
    (await api("POST", f"{API}/resourceslices", slices(device()))).ok()
    for selector in (f"spec.nodeName={unique}-node", f"spec.driver={DRIVER},spec.nodeName={unique}-node"):
        found = (await api("GET", f"{API}/resourceslices?fieldSelector={selector}")).ok()["items"]
        assert [each["metadata"]["name"] for each in found] == [unique]


# -- kubectl --------------------------------------------------------------------------------------------------------


async def test_kubectl_shows_the_state_of_claims(api: Api, kubectl: Kubectl, claims: str) -> None:
    await kubectl("apply", "-f", "-", manifest=claim("a", exactly("gpu", "gpus")))
    assert [line.split()[:2] for line in (await kubectl("get", "resourceclaims")).splitlines()] == [
        ["NAME", "STATE"],
        ["a", "pending"],
    ]
    given = {"allocation": allocation(DRIVER, "n1", "gpu-0"), "reservedFor": [CONSUMER]}
    (await _status(api, f"{claims}/a", given)).ok()
    assert "allocated,reserved" in await kubectl("get", "resourceclaims")


async def test_kubectl_shows_node_driver_and_pool_of_slices(
    api: Api, kubectl: Kubectl, slices: Callable[..., Obj], unique: str
) -> None:
    (await api("POST", f"{API}/resourceslices", slices(device()))).ok()
    lines = (await kubectl("get", "resourceslices", unique)).splitlines()
    assert lines[0].split() == ["NAME", "NODE", "DRIVER", "POOL", "AGE"]
    assert lines[1].split()[:4] == [unique, f"{unique}-node", DRIVER, f"{unique}-node"]
