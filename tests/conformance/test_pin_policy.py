"""``deploy/policies/pins.yaml``: a tenant can neither mark a pod as pinned by Tessera nor take Tessera's gate off it.

Nor can it delete a pod that has GPUs and a deadline with a longer grace period than that of the pod's spec.

The policy is that file with names of this test's own, also for the mark and the gate, so that a cluster where Tessera
runs is left alone. The tenant may write all objects of the core group in its namespace.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.support.conformance_api import APPLY, JSON_PATCH, MERGE, STRATEGIC, TIMEOUT, Answer, Api

POLICY = Path(__file__).parents[2] / "deploy" / "policies" / "pins.yaml"
GROUP = "/apis/admissionregistration.k8s.io/v1"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
#: Names of the policy, and those used here instead: where Tessera runs, its own policy refuses the accounts of a test.
NAMES = {
    "tessera.dev/pinned": "conformance.tessera.dev/pinned",
    "instaslice.redhat.com/accelerator": "conformance.tessera.dev/gate",
}
MARK, GATE = NAMES.values()
OTHER = "example.com/wait"


class Scene(msgspec.Struct):
    """A namespace with the policy, and clients of the two accounts."""

    pods: str
    tenant: Api
    controller: Api
    removal: Api

    async def pod(self, name: str) -> str:
        """The UID of a pod that the tenant creates."""
        made = (await self.tenant("POST", self.pods, body_of(name))).ok()
        return str(made["metadata"]["uid"])

    async def mark(self, name: str) -> str:
        """The mark that a pod has now; empty if it has none."""
        found = (await self.tenant("GET", f"{self.pods}/{name}")).ok()
        return str(found["metadata"].get("annotations", {}).get(MARK, ""))


def body_of(name: str, annotations: dict[str, str] | None = None, gates: Sequence[str] = (OTHER,)) -> dict[str, Any]:
    spec = {"containers": [{"name": "a", "image": "e.com/a:1"}], "schedulingGates": gates_of(*gates)}
    return {"metadata": {"name": name, "annotations": annotations or {}}, "spec": spec}


def gates_of(*names: str) -> list[dict[str, str]]:
    return [{"name": each} for each in names]


def with_gates(*names: str) -> dict[str, Any]:
    return {"spec": {"schedulingGates": gates_of(*names) or None}}


def patch(mark: str | None) -> dict[str, Any]:
    return {"metadata": {"annotations": {MARK: mark}}}


@pytest.fixture
async def policy(api: Api, namespace: str, unique: str, cleanup: Callable[[str], None]) -> None:
    """The policy, for the test's namespace."""
    text = POLICY.read_text().replace("tessera-system", namespace)
    for name, own in NAMES.items():
        assert name in text
        text = text.replace(name, own)
    for each in yaml.load_all(text, yaml.CSafeLoader):
        path = f"{GROUP}/validatingadmissionpolic" + ("ies" if "matchConstraints" in each["spec"] else "ybindings")
        each["metadata"]["name"] = unique
        if "policyName" in each["spec"]:
            selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
            each["spec"] |= {"policyName": unique, "matchResources": {"namespaceSelector": selector}}
        cleanup(f"{path}/{unique}")
        (await api("POST", path, each)).ok()


@pytest.fixture
async def scene(api: Api, namespace: str, core: str, as_token: Callable[[str], Api], policy: None) -> Scene:
    rules = [{"apiGroups": [""], "resources": ["*"], "verbs": ["*"]}]
    own = f"{RBAC}/namespaces/{namespace}"
    (await api("POST", f"{own}/roles", {"metadata": {"name": "all-of-core"}, "rules": rules})).ok()
    clients: list[Api] = []
    for account in ("tenant", "tessera-controller", "tessera-removal"):
        (await api("POST", f"{core}/serviceaccounts", {"metadata": {"name": account}})).ok()
        binding = {
            "metadata": {"name": account},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "all-of-core"},
            "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": account}],
        }
        (await api("POST", f"{own}/rolebindings", binding)).ok()
        answer = await api("POST", f"{core}/serviceaccounts/{account}/token", {"spec": {"expirationSeconds": 600}})
        clients.append(as_token(answer.ok()["status"]["token"]))
    found = Scene(pods=f"{core}/pods", tenant=clients[0], controller=clients[1], removal=clients[2])
    (await api("POST", found.pods, body_of("probe"))).ok()
    async with asyncio.timeout(TIMEOUT):  # rights and the policy need a moment until they count
        probe = f"{found.pods}/probe?dryRun=All"
        while "denied request" not in str((await found.tenant("PATCH", probe, patch("x"), content=MERGE)).body):
            pass
        for each in (found.controller, found.removal):
            while (await each("GET", found.pods)).status != 200:
                pass
    return found


def denied(answer: Answer) -> None:
    """The policy's refusal."""
    assert f"annotation {MARK}" in answer.refused(403, "Forbidden")


async def test_a_pod_cannot_be_created_with_a_mark_that_counts(scene: Scene) -> None:
    """A copy may bear the mark of the pod that it was made from; the server chooses the UID of each."""
    first = await scene.pod("first")
    copy = body_of("copy", {MARK: first})
    copy["metadata"]["uid"] = first
    made = (await scene.tenant("POST", scene.pods, copy)).ok()
    assert made["metadata"]["uid"] != made["metadata"]["annotations"][MARK]
    denied(await scene.tenant("PATCH", f"{scene.pods}/copy", patch(made["metadata"]["uid"]), content=MERGE))


@pytest.mark.parametrize("below", ["", "/status"])
async def test_no_update_of_a_tenant_writes_the_mark(scene: Scene, below: str) -> None:
    uid, path = await scene.pod("p"), f"{scene.pods}/p{below}"
    for content in (MERGE, STRATEGIC):
        denied(await scene.tenant("PATCH", path, patch(uid), content=content))
    added = [{"op": "add", "path": "/metadata/annotations", "value": {MARK: uid}}]
    denied(await scene.tenant("PATCH", path, added, content=JSON_PATCH))
    applied = {"apiVersion": "v1", "kind": "Pod", **patch(uid)}
    denied(await scene.tenant("PATCH", f"{path}?fieldManager=me&force=true", applied, content=APPLY))
    newest = (await scene.tenant("GET", f"{scene.pods}/p")).ok()
    newest["metadata"].setdefault("annotations", {})[MARK] = uid
    denied(await scene.tenant("PUT", path, newest))
    assert await scene.mark("p") == ""


@pytest.mark.parametrize("below", ["ephemeralcontainers", "resize"])
async def test_subresources_of_a_pods_containers_write_no_mark(scene: Scene, below: str) -> None:
    """A server drops changes of metadata there, or does not serve them, or the policy refuses."""
    uid = await scene.pod("p")
    await scene.tenant("PATCH", f"{scene.pods}/p/{below}", patch(uid), content=STRATEGIC)
    newest = (await scene.tenant("GET", f"{scene.pods}/p")).ok()
    newest["metadata"].setdefault("annotations", {})[MARK] = uid
    await scene.tenant("PUT", f"{scene.pods}/p/{below}", newest)
    assert await scene.mark("p") == ""


async def test_no_binding_of_a_tenant_brings_the_mark(scene: Scene) -> None:
    """A server copies the annotations of a Binding to its pod."""
    uid = await scene.pod("p")
    (await scene.tenant("PATCH", f"{scene.pods}/p", {"spec": {"schedulingGates": []}}, content=MERGE)).ok()
    target = {"apiVersion": "v1", "kind": "Node", "name": "no-such-node"}
    body = {"apiVersion": "v1", "kind": "Binding", "target": target}
    body["metadata"] = {"name": "p", "annotations": {MARK: uid}}
    denied(await scene.tenant("POST", f"{scene.pods}/p/binding", body))
    await scene.tenant("POST", scene.pods.replace("/pods", "/bindings"), body)
    assert await scene.mark("p") == ""


async def test_the_controller_marks_a_pod_and_others_may_change_the_rest(scene: Scene) -> None:
    uid, path = await scene.pod("p"), f"{scene.pods}/p"
    (await scene.controller("PATCH", path, patch(uid), content=MERGE)).ok()
    (await scene.tenant("PATCH", path, {"metadata": {"labels": {"a": "b"}}}, content=MERGE)).ok()
    (await scene.tenant("PATCH", f"{path}/status", {"metadata": {"labels": {"a": "c"}}}, content=MERGE)).ok()
    assert await scene.mark("p") == uid
    denied(await scene.tenant("PATCH", path, patch("another"), content=MERGE))
    (await scene.tenant("PATCH", path, patch(None), content=MERGE)).ok()
    denied(await scene.tenant("PATCH", path, patch(uid), content=MERGE))


def kept_out(answer: Answer) -> None:
    """The policy's refusal to take the gate off."""
    assert f"the scheduling gate {GATE}" in answer.refused(403, "Forbidden")


async def test_no_update_of_a_tenant_takes_the_gate_off(scene: Scene) -> None:
    """Without the gate, kube-scheduler would place the pod before all that wait."""
    await scene.tenant("POST", scene.pods, body_of("p", gates=(OTHER, GATE)))
    path = f"{scene.pods}/p"
    for gates in ((OTHER,), ()):
        kept_out(await scene.tenant("PATCH", path, with_gates(*gates), content=MERGE))
    removed = [{"op": "remove", "path": "/spec/schedulingGates"}]
    kept_out(await scene.tenant("PATCH", path, removed, content=JSON_PATCH))
    deleted = {"spec": {"schedulingGates": [{"$patch": "delete", "name": GATE}]}}
    kept_out(await scene.tenant("PATCH", path, deleted, content=STRATEGIC))
    newest = (await scene.tenant("GET", path)).ok()
    newest["spec"]["schedulingGates"] = gates_of(OTHER)
    kept_out(await scene.tenant("PUT", path, newest))
    found = (await scene.tenant("GET", path)).ok()
    assert found["spec"]["schedulingGates"] == gates_of(OTHER, GATE)


async def test_everything_else_of_a_gated_pod_may_be_changed(scene: Scene) -> None:
    """Kueue removes its own gate, kubelet and controllers write statuses, and authors label and delete their pods."""
    await scene.tenant("POST", scene.pods, body_of("p", gates=(OTHER, GATE)))
    path = f"{scene.pods}/p"
    (await scene.tenant("PATCH", path, {"metadata": {"labels": {"a": "b"}}}, content=MERGE)).ok()
    (await scene.tenant("PATCH", f"{path}/status", {"status": {"message": "m"}}, content=MERGE)).ok()
    (await scene.tenant("PATCH", path, with_gates(GATE), content=MERGE)).ok()
    (await scene.tenant("DELETE", path)).ok()


@pytest.mark.parametrize("who", ["controller", "removal", "administrator"])
async def test_the_controller_a_removal_and_administrators_take_the_gate_off(scene: Scene, api: Api, who: str) -> None:
    """The tests' own kubeconfig is an administrator's."""
    await scene.tenant("POST", scene.pods, body_of("p", gates=(GATE,)))
    client = api if who == "administrator" else getattr(scene, who)
    found = (await client("PATCH", f"{scene.pods}/p", with_gates(), content=MERGE)).ok()
    assert not found["spec"].get("schedulingGates")


async def test_names_of_devices_come_neither_by_a_status_nor_by_a_binding(scene: Scene) -> None:
    """Their annotations become the pod's, and no policy for pods sees them."""
    await scene.pod("p")
    (await scene.tenant("PATCH", f"{scene.pods}/p", with_gates(), content=MERGE)).ok()
    for name in ("cdi.k8s.io/x", "nvidia.cdi.k8s.io/x", "devices.nri.io/pod", "cdi-devices.noderesource.dev/pod"):
        named = {"metadata": {"annotations": {name: "nvidia.com/gpu=all"}}}
        answer = await scene.tenant("PATCH", f"{scene.pods}/p/status", named, content=MERGE)
        assert f"annotation {name} names devices" in answer.refused(403, "Forbidden")
        binding = {"target": {"kind": "Node", "name": "n"}, "metadata": {"name": "p", **named["metadata"]}}
        answer = await scene.tenant(
            "POST", f"{scene.pods}/p/binding", {**binding, "apiVersion": "v1", "kind": "Binding"}
        )
        assert f"annotation {name} names devices" in answer.refused(403, "Forbidden")
    plain = {"metadata": {"annotations": {"example.com/cdi": "x"}}}
    (await scene.tenant("PATCH", f"{scene.pods}/p/status", plain, content=MERGE)).ok()


@pytest.mark.parametrize(
    ("facts", "limits", "grace", "refused"),
    [
        ({"activeDeadlineSeconds": 60, "terminationGracePeriodSeconds": 5}, {"nvidia.com/gpu": 1}, 86_400, True),
        ({"activeDeadlineSeconds": 60, "terminationGracePeriodSeconds": 5}, {"nvidia.com/gpu": 1}, 5, False),
        ({"activeDeadlineSeconds": 60, "terminationGracePeriodSeconds": 5}, {"nvidia.com/gpu": 1}, 0, False),
        ({"activeDeadlineSeconds": 60, "terminationGracePeriodSeconds": 5}, {"nvidia.com/gpu": 1}, None, False),
        ({"activeDeadlineSeconds": 60}, {"nvidia.com/mig-1g.5gb": 1}, 31, True),
        ({"activeDeadlineSeconds": 60}, {"cpu": 1}, 86_400, False),
        ({}, {"nvidia.com/gpu": 1}, 86_400, False),
    ],
    ids=["a day", "its own", "at once", "none", "default", "no GPUs", "no deadline"],
)
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
async def test_no_deletion_outlasts_the_deadline_of_a_pod_with_gpus(
    scene: Scene, facts: dict[str, Any], limits: dict[str, int], grace: int | None, *, kind: str, refused: bool
) -> None:
    body = body_of("p", gates=())
    body["spec"] |= {"nodeName": "elsewhere", **facts}
    if kind == "initContainers":
        body["spec"][kind] = [{"name": "i", "image": "e.com/a:1"}]
    body["spec"][kind][0]["resources"] = {"limits": {name: str(count) for name, count in limits.items()}}
    (await scene.tenant("POST", scene.pods, body)).ok()
    query = "" if grace is None else f"&gracePeriodSeconds={grace}"
    answer = await scene.tenant("DELETE", f"{scene.pods}/p?dryRun=All{query}")
    if refused:
        assert "its terminationGracePeriodSeconds" in answer.refused(403, "Forbidden")
        options = {"gracePeriodSeconds": grace, "dryRun": ["All"]}
        assert (await scene.tenant("DELETE", scene.pods, options)).status == 403
    else:
        answer.ok()


async def test_a_pod_without_a_node_is_deleted_at_once_with_any_grace_period(scene: Scene) -> None:
    """The server gives it none, and the policy sees the grace period that the server gives."""
    body = body_of("p")
    body["spec"] |= {"activeDeadlineSeconds": 60, "terminationGracePeriodSeconds": 5}
    body["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    (await scene.tenant("POST", scene.pods, body)).ok()
    found = (await scene.tenant("DELETE", f"{scene.pods}/p?gracePeriodSeconds=86400")).ok()
    assert found["metadata"]["deletionGracePeriodSeconds"] == 0
