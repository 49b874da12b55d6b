"""A name that anybody may take gives no right: who may create or change namespaces gains neither cards nor a share.

``deploy/policies/namespaces.yaml`` guards the labels of namespaces, and the other policies exempt no name that is free.
"""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from tests.deploy.conftest import ROOT, rendered
from tests.support.api_user import ApiUser

from tessera.api.names import ADD_ONS
from tessera.clock import SystemClock
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.server import ApiServer

POLICIES = "/apis/admissionregistration.k8s.io/v1"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
NAMESPACES = "/api/v1/namespaces"
ACCESS, QUEUE, PLACEMENT = "tessera.dev/device-access", "tessera.dev/queue", "tessera.dev/placement"
EVERY_NAMESPACE = {"apiGroups": [""], "resources": ["namespaces", "namespaces/status"], "verbs": ["*"]}
#: People who may do all to namespaces, by what else they may.
RULES: Mapping[str, list[dict[str, Any]]] = {
    "tenant": [],
    "administrator": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}],
    "platform": [
        {
            "apiGroups": ["admissionregistration.k8s.io"],
            "resources": ["validatingadmissionpolicybindings"],
            "resourceNames": ["tessera-device-access"],
            "verbs": ["update"],
        }
    ],
    "gpu-admin": [{"apiGroups": ["tessera.dev"], "resources": ["queues"], "verbs": ["update"]}],
    "team-lead": [
        {"apiGroups": ["tessera.dev"], "resources": ["queues"], "resourceNames": ["research"], "verbs": ["update"]}
    ],
}


@pytest.fixture
async def server() -> ApiServer:
    """A server with the policies for namespaces and pods, and the users of :data:`RULES`."""
    made = ApiServer(SystemClock())
    admin = ApiUser(made)
    for file in ("namespaces", "pods"):
        for each in yaml.load_all((ROOT / "deploy" / "policies" / f"{file}.yaml").read_text(), yaml.CSafeLoader):
            plural = "validatingadmissionpolic" + ("ies" if each["kind"].endswith("Policy") else "ybindings")
            assert "code" not in await admin("POST", f"{POLICIES}/{plural}", each)
    for name, more in RULES.items():
        pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}
        role = {"metadata": {"name": name}, "rules": [EVERY_NAMESPACE, pods, *more]}
        assert "code" not in await admin("POST", f"{RBAC}/clusterroles", role)
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}
        binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
        assert "code" not in await admin("POST", f"{RBAC}/clusterrolebindings", binding)
    return made


def user(server: ApiServer, name: str) -> ApiUser:
    return ApiUser(server, UserInfo(name=name, groups=("system:authenticated",)))


#: Labels before and after, and who may make the change.
CHANGES: list[tuple[dict[str, str], dict[str, str | None], list[str]]] = [
    ({}, {ACCESS: "allowed"}, ["administrator", "platform"]),
    ({}, {ACCESS: "refused"}, ["administrator", "platform"]),
    ({ACCESS: "allowed"}, {ACCESS: None}, ["administrator", "platform"]),
    ({ACCESS: "allowed"}, {"other": "x"}, [*RULES]),
    ({}, {QUEUE: "research"}, ["administrator", "gpu-admin", "team-lead"]),
    ({}, {QUEUE: "no-such-queue"}, ["administrator", "gpu-admin"]),
    ({QUEUE: "research"}, {QUEUE: None}, ["administrator", "gpu-admin", "team-lead"]),
    ({QUEUE: "production"}, {QUEUE: "research"}, ["administrator", "gpu-admin"]),
    ({QUEUE: "research"}, {"other": "x"}, [*RULES]),
    ({}, {PLACEMENT: "managed"}, [*RULES]),
    ({PLACEMENT: "managed"}, {PLACEMENT: None}, ["administrator", "gpu-admin"]),
    ({PLACEMENT: "managed"}, {PLACEMENT: "Managed"}, ["administrator", "gpu-admin"]),
    ({PLACEMENT: "other"}, {PLACEMENT: None}, [*RULES]),
]


@pytest.mark.parametrize(("before", "change", "allowed"), CHANGES, ids=str)
@pytest.mark.parametrize("part", ["", "/status"])
async def test_a_label_that_gives_rights_is_changed_by_those_who_have_them(
    server: ApiServer, before: dict[str, str], change: dict[str, str | None], allowed: list[str], part: str
) -> None:
    for who in RULES:
        await ApiUser(server)("POST", NAMESPACES, {"metadata": {"name": who, "labels": before}})
        answer = await user(server, who).merge(f"{NAMESPACES}/{who}{part}", {"metadata": {"labels": change}})
        assert (answer.get("code") == 403) is (who not in allowed), (who, answer)
        if who not in allowed:
            (key,) = change
            assert f"the label {key}" in answer["message"]
            assert "ask an administrator" in answer["message"]


@pytest.mark.parametrize("labels", [{ACCESS: "allowed"}, {QUEUE: "research"}])
async def test_nobody_brings_such_a_label_to_a_new_namespace(server: ApiServer, labels: dict[str, str]) -> None:
    answer = await user(server, "tenant")("POST", NAMESPACES, {"metadata": {"name": "mine", "labels": labels}})
    assert answer["code"] == 403


@pytest.mark.parametrize("name", [*ADD_ONS, "kube-systems", "openshift-storage"])
async def test_a_new_namespace_is_exempt_by_no_name(server: ApiServer, name: str) -> None:
    assert "code" not in await user(server, "tenant")("POST", NAMESPACES, {"metadata": {"name": name}})
    container = {"name": "a", "image": "e.com/a:1", "securityContext": {"privileged": True}}
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [container]}}
    answer = await user(server, "tenant")("POST", f"{NAMESPACES}/{name}/pods", pod)
    assert (answer["code"], "tessera-device-access" in answer["message"]) == (403, True)


def test_the_names_that_policies_exempt_exist_wherever_tessera_is() -> None:
    exempt = {
        name
        for binding in rendered("deploy").of_kind("ValidatingAdmissionPolicyBinding")
        for rule in binding["spec"].get("matchResources", {}).get("namespaceSelector", {}).get("matchExpressions", ())
        if rule["key"] == "kubernetes.io/metadata.name"
        for name in rule["values"]
    }
    shipped = {each["metadata"]["name"] for each in rendered("deploy").of_kind("Namespace")}
    assert exempt <= {"kube-system", *shipped}


def test_the_controller_may_label_the_namespaces_of_add_ons_and_no_others() -> None:
    (role,) = (
        each for each in rendered("deploy").of_kind("ClusterRole") if each["metadata"]["name"] == "tessera-controller"
    )
    (rule,) = (each for each in role["rules"] if "namespaces" in each["resources"] and "patch" in each["verbs"])
    assert rule == {"apiGroups": [""], "resources": ["namespaces"], "resourceNames": list(ADD_ONS), "verbs": ["patch"]}
