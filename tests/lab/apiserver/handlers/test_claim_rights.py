"""Rights for the status of a claim's devices, by the node of a token; and fields that older versions drop."""

from typing import Any

import pytest
from tests.support.api_user import ApiUser, ManualClock
from tests.support.device_claims import API, allocation, claim, device_class, exactly, resource_slice

from tessera_lab.apiserver.authz.identity import service_account_user
from tessera_lab.apiserver.main.server import ApiServer

CLAIMS = f"{API}/namespaces/default/resourceclaims"
ROLES = "/apis/rbac.authorization.k8s.io/v1"
DRIVER = "gpu.tessera.dev"
DEVICE = {"driver": DRIVER, "pool": "n1", "device": "gpu-0"}


async def plugin(api: ApiUser, server: ApiServer, node: str, *verbs: str) -> ApiUser:
    """A driver's kubelet plugin, whose token is bound to a node."""
    rules = [
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/status"], "verbs": ["update"]},
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceclaims/driver"],
            "verbs": list(verbs),
            "resourceNames": [DRIVER],
        },
    ]
    subject = {"kind": "ServiceAccount", "name": "plugin", "namespace": "kube-system"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "plugin"}
    await api("POST", f"{ROLES}/clusterroles", {"metadata": {"name": "plugin"}, "rules": rules})
    binding = {"metadata": {"name": "plugin"}, "roleRef": reference, "subjects": [subject]}
    await api("POST", f"{ROLES}/clusterrolebindings", binding)
    extra = {"authentication.kubernetes.io/node-name": (node,)} if node else {}
    return ApiUser(server, service_account_user("kube-system", "plugin", extra=extra))


@pytest.mark.parametrize(
    ("node", "verb", "may"),
    [
        ("n1", "associated-node:update", True),
        ("n2", "associated-node:update", False),
        ("", "associated-node:update", False),
        ("n2", "arbitrary-node:update", True),
        ("n1", "update", False),
    ],
)
async def test_a_plugin_writes_the_status_of_devices_of_its_node(
    api: ApiUser, server: ApiServer, node: str, verb: str, may: bool
) -> None:
    user = await plugin(api, server, node, verb)
    made = await api("POST", CLAIMS, claim("a", exactly("gpu", "gpus")))
    made["status"] = {"allocation": allocation(DRIVER, "n1", "gpu-0")}
    made = await api("PUT", f"{CLAIMS}/a/status", made)
    made["status"]["devices"] = [DEVICE]
    answer = await user("PUT", f"{CLAIMS}/a/status", made)
    if may:
        assert answer["status"]["devices"] == [DEVICE]
    else:
        verbs = "associated-node:update arbitrary-node:update" if node == "n1" else "arbitrary-node:update"
        assert f'requires resource="resourceclaims/driver", verb="[{verbs}]"' in answer["message"]


async def test_administrative_access_is_for_labelled_namespaces(api: ApiUser) -> None:
    wanted = claim("a", exactly("gpu", "gpus", adminAccess=True))
    assert (await api("POST", CLAIMS, wanted))["code"] == 422
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    await api.merge("/api/v1/namespaces/default", label)
    assert (await api("POST", CLAIMS, wanted))["metadata"]["name"] == "a"


@pytest.mark.parametrize("version", ["1.34", "1.35"])
async def test_fields_of_gates_that_are_off_before_1_36_are_dropped(clock: ManualClock, version: str) -> None:
    api = ApiUser(ApiServer(clock, kubernetes=version))
    taint = {"key": "a", "effect": "NoSchedule"}
    device: Any = {"name": "gpu-0", "taints": [taint], "consumesCounters": [], "allowMultipleAllocations": True}
    device["capacity"] = {"memory": {"value": "1Gi", "requestPolicy": {"default": "1Mi"}}}
    kept = await api("POST", f"{API}/resourceslices", resource_slice("s", DRIVER, "n1", device))
    assert kept["spec"]["devices"] == [{"name": "gpu-0", "capacity": {"memory": {"value": "1Gi"}}}]
    counters = [{"name": "gpu-0", "counters": {"n": {"value": "1"}}}]
    kept = await api("POST", f"{API}/resourceslices", resource_slice("c", DRIVER, "n1", sharedCounters=counters))
    assert "sharedCounters" not in kept["spec"]
    kept = await api("POST", f"{API}/deviceclasses", device_class("gpus", extendedResourceName="nvidia.com/gpu"))
    assert "extendedResourceName" not in kept["spec"]
    kept = await api("POST", CLAIMS, claim("a", exactly("gpu", "gpus", tolerations=[taint])))
    assert "tolerations" not in kept["spec"]["devices"]["requests"][0]["exactly"]
    kept["status"] = {"allocation": allocation(DRIVER, "n1", "gpu-0")}
    kept = await api("PUT", f"{CLAIMS}/a/status", kept)
    assert "allocationTimestamp" not in kept["status"]["allocation"]


async def test_before_1_36_the_right_to_write_the_status_is_enough(clock: ManualClock) -> None:
    server = ApiServer(clock, kubernetes="1.35")
    api = ApiUser(server)
    user = await plugin(api, server, "", "get")
    made = await api("POST", CLAIMS, claim("a", exactly("gpu", "gpus")))
    made["status"] = {"allocation": allocation(DRIVER, "n1", "gpu-0", timed=False), "devices": [DEVICE]}
    assert (await user("PUT", f"{CLAIMS}/a/status", made))["status"]["devices"] == [DEVICE]


async def test_a_server_without_the_api_does_not_know_it(clock: ManualClock) -> None:
    api = ApiUser(ApiServer(clock, kubernetes="1.32"))
    assert (await api("GET", CLAIMS))["code"] == 404
