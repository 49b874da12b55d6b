"""Each verb of kubectl that the lab claims to know, on a lab that Tessera is installed in.

One of the long proofs: `make test` has kubectl's verbs in :mod:`tests.conformance.test_kubectl`, against the same
server in the test's process, and the life of pods with slices in the other stories of this folder.
"""

import json
import subprocess
from typing import Any

import pytest

pytestmark = pytest.mark.soak

SLICE = "nvidia.com/mig-1g.5gb"


def deployment(name: str, replicas: int = 1) -> dict[str, Any]:
    container = {"name": "c", "image": "busybox", "resources": {"limits": {SLICE: "1"}}}
    spec = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    template = {"metadata": {"labels": {"app": name}}, "spec": spec}
    selector = {"matchLabels": {"app": name}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"replicas": replicas, "selector": selector, "template": template},
    }


@pytest.fixture(scope="module")
def web(cluster: Any) -> str:
    """A deployment of two that runs on its slices; the tests that use it leave it as it was."""
    cluster.kubectl("apply", "-f", "-", manifest=deployment("web", 2))
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=180s")
    return "deployment/web"


def test_get_in_every_output(cluster: Any, web: str) -> None:
    wide = cluster.kubectl("get", "pods", "-l", "app=web", "-o", "wide").splitlines()
    assert wide[0].split()[:7] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE"]
    assert all(row.split()[6] == "node-1" for row in wide[1:])
    assert "kind: Deployment" in cluster.kubectl("get", web, "-o", "yaml")
    assert cluster.kubectl("get", web, "-o", "jsonpath={.status.readyReplicas}") == "2"
    assert cluster.kubectl("get", web, "-o", "name") == "deployment.apps/web\n"
    assert cluster.kubectl("get", web, "-o", "go-template={{.spec.replicas}}") == "2"
    columns = cluster.kubectl("get", "deployments", "-o", "custom-columns=N:.metadata.name,R:.spec.replicas")
    assert [row.split() for row in columns.splitlines()] == [["N", "R"], ["web", "2"]]
    header, row = cluster.kubectl("get", "instaslices", "-n", "instaslice-system").splitlines()
    assert header.split() == ["NAME", "GPU", "MEMORY", "AGE"]
    assert "NVIDIA A100-SXM4-40GB" in row
    assert cluster.kubectl("get", "nodes").splitlines()[1].split()[:2] == ["node-1", "Ready"]


def test_a_stateful_set_has_its_volume(cluster: Any) -> None:
    item = deployment("db")
    item["kind"] = "StatefulSet"
    item["spec"]["serviceName"] = "db"
    item["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] = [{"name": "d", "mountPath": "/d"}]
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    item["spec"]["volumeClaimTemplates"] = [{"metadata": {"name": "d"}, "spec": claim}]
    cluster.kubectl("apply", "-f", "-", manifest=item)
    cluster.kubectl("rollout", "status", "statefulset/db", "--timeout=180s")
    (bound,) = cluster.get("pvc")["items"]
    assert (bound["metadata"]["name"], bound["spec"]["storageClassName"]) == ("d-db-0", "standard")
    assert bound["status"]["phase"] == "Bound"
    cluster.kubectl("delete", "statefulset/db", "pvc/d-db-0")


def test_get_what_is_selected(cluster: Any, web: str) -> None:
    assert len(cluster.get("pods", "-l", "app in (web,other)")["items"]) == 2
    assert len(cluster.get("pods", "--field-selector", "status.phase=Running,spec.nodeName=node-1")["items"]) == 2
    assert "tessera-agent-" in cluster.kubectl("get", "pods", "-A")
    assert cluster.kubectl("get", "pods", "ghost", "--ignore-not-found") == ""
    assert cluster.kubectl("get", "pods", "ghost", fails=True) == (
        'Error from server (NotFound): pods "ghost" not found\n'
    )


def test_get_watches(cluster: Any) -> None:
    watch = subprocess.Popen(
        ["kubectl", "get", "configmaps", "-w", "--output-watch-events", "-l", "told=yes", "--no-headers"],
        env=cluster.env,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert watch.stdout is not None
        cluster.kubectl("create", "configmap", "watched")
        cluster.kubectl("label", "configmap", "watched", "told=yes")
        assert watch.stdout.readline().split()[:2] == ["ADDED", "watched"]
        cluster.kubectl("annotate", "configmap", "watched", "a=b")
        assert watch.stdout.readline().split()[:2] == ["MODIFIED", "watched"]
        cluster.kubectl("delete", "configmap", "watched")
        assert watch.stdout.readline().split()[:2] == ["DELETED", "watched"]
    finally:
        watch.kill()
        watch.communicate()


def test_apply_and_diff(cluster: Any, web: str) -> None:
    same, other = deployment("web", 2), deployment("web", 2)
    other["metadata"]["labels"]["tier"] = "front"
    cluster.kubectl("apply", "-f", "-", manifest=same)  # another test may have scaled it
    assert cluster.kubectl("apply", "-f", "-", manifest=same) == "deployment.apps/web unchanged\n"
    assert cluster.kubectl("diff", "-f", "-", manifest=same) == ""
    changes = cluster.run("kubectl", "diff", "-f", "-", text=json.dumps(other))
    assert changes.returncode == 1
    assert "+    tier: front\n" in changes.stdout
    assert cluster.kubectl("apply", "-f", "-", manifest=other) == "deployment.apps/web configured\n"
    assert cluster.kubectl("apply", "-f", "-", manifest=same) == "deployment.apps/web configured\n"
    assert "tier" not in cluster.get(web)["metadata"]["labels"]


def test_apply_on_the_server_sees_conflicts(cluster: Any) -> None:
    def settings(value: str) -> dict[str, Any]:
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": value}}

    server_side = ("apply", "--server-side", "-f", "-")
    cluster.kubectl(*server_side, "--field-manager", "one", manifest=settings("1"))
    refused = cluster.kubectl(*server_side, "--field-manager", "two", manifest=settings("2"), fails=True)
    assert 'Apply failed with 1 conflict: conflict with "one": .data.a' in refused
    cluster.kubectl(*server_side, "--field-manager", "two", "--force-conflicts", manifest=settings("2"))
    assert cluster.get("configmap", "settings")["data"] == {"a": "2"}
    cluster.kubectl("delete", "configmap", "settings")


def test_create_in_protobuf(cluster: Any) -> None:
    for line in (
        "create namespace team",
        "create configmap c --from-literal=a=b -n team",
        "create secret generic s --from-literal=a=b -n team",
        "create serviceaccount z -n team",
        "create deployment d --image=nginx --replicas=2 -n team",
        "create job j --image=busybox -n team -- sh -c true",
    ):
        assert cluster.kubectl(*line.split()).endswith(" created\n")
    cluster.kubectl("wait", "-n", "team", "deployment/d", "--for=condition=Available", "--timeout=180s")
    cluster.kubectl("wait", "-n", "team", "job/j", "--for=condition=Complete", "--timeout=180s")
    assert cluster.get("secret", "s", "-n", "team")["data"] == {"a": "Yg=="}
    cluster.kubectl("delete", "namespace", "team", "--wait", "--timeout=180s")
    assert "not found" in cluster.kubectl("get", "namespace", "team", fails=True)


def test_label_annotate_patch_and_replace(cluster: Any, web: str) -> None:
    assert cluster.kubectl("label", web, "x=y") == "deployment.apps/web labeled\n"
    assert "already has a value" in cluster.kubectl("label", web, "x=z", fails=True)
    assert cluster.kubectl("label", web, "x-") == "deployment.apps/web unlabeled\n"
    assert cluster.kubectl("annotate", web, "a=b") == "deployment.apps/web annotated\n"
    cluster.kubectl("patch", web, "-p", json.dumps({"metadata": {"annotations": {"a": None}}}))
    cluster.kubectl("patch", web, "--type=merge", "-p", json.dumps({"spec": {"minReadySeconds": 1}}))
    cluster.kubectl("patch", web, "--type=json", "-p", '[{"op": "remove", "path": "/spec/minReadySeconds"}]')
    found = cluster.get(web)
    assert "a" not in found["metadata"]["annotations"]
    assert found["spec"].get("minReadySeconds", 0) == 0
    found["spec"]["revisionHistoryLimit"] = 3
    assert cluster.kubectl("replace", "-f", "-", manifest=found) == "deployment.apps/web replaced\n"
    assert "the object has been modified" in cluster.kubectl("replace", "-f", "-", manifest=found, fails=True)


def test_patch_the_status_alone(cluster: Any) -> None:
    load = '{"status": {"capacity": {"example.com/dongle": "4"}}, "spec": {"unschedulable": true}}'
    cluster.kubectl("patch", "node", "node-1", "--subresource=status", "-p", load)
    node = cluster.get("node", "node-1")
    assert node["status"]["capacity"]["example.com/dongle"] == "4"
    assert "unschedulable" not in node["spec"]
    assert node["status"]["capacity"][SLICE] == "28"


def test_scale_and_rollout(cluster: Any) -> None:
    cluster.kubectl("apply", "-f", "-", manifest=deployment("roll"))
    assert cluster.kubectl("scale", "deployment/roll", "--replicas=3") == "deployment.apps/roll scaled\n"
    cluster.kubectl("rollout", "status", "deployment/roll", "--timeout=180s")
    before = {pod["metadata"]["uid"] for pod in cluster.get("pods", "-l", "app=roll")["items"]}
    cluster.kubectl("rollout", "restart", "deployment/roll")
    done = cluster.kubectl("rollout", "status", "deployment/roll", "--timeout=180s")
    assert 'deployment "roll" successfully rolled out' in done
    cluster.eventually(lambda: len(cluster.get("pods", "-l", "app=roll")["items"]) == 3)
    after = {pod["metadata"]["uid"] for pod in cluster.get("pods", "-l", "app=roll")["items"]}
    assert not before & after
    assert [row.split()[0] for row in cluster.kubectl("rollout", "history", "deployment/roll").splitlines()[2:4]] == [
        "1",
        "2",
    ]
    cluster.kubectl("delete", "deployment/roll", "--cascade=foreground")
    assert cluster.get("pods", "-l", "app=roll")["items"] == []
    cluster.eventually(lambda: not set(cluster.slices("node-1")) & (before | after))


def test_delete_many_and_orphans(cluster: Any) -> None:
    cluster.kubectl("create", "namespace", "many")
    for number in range(2):
        cluster.kubectl("apply", "-n", "many", "-f", "-", manifest=cluster.pod(f"p{number}", {SLICE: 1}))
    cluster.kubectl("wait", "-n", "many", "pods", "--all", "--for=condition=Ready", "--timeout=180s")
    gone = cluster.kubectl("delete", "pods", "--all", "-n", "many", "--wait")
    assert sorted(gone.split('"')[1::2]) == ["p0", "p1"]
    cluster.kubectl("create", "deployment", "left", "--image=busybox", "-n", "many")
    cluster.kubectl("rollout", "status", "deployment/left", "-n", "many", "--timeout=180s")
    cluster.kubectl("delete", "deployment", "left", "-n", "many", "--cascade=orphan")
    assert len(cluster.get("replicasets", "-n", "many")["items"]) == 1
    cluster.kubectl("delete", "namespace", "many", "--wait", "--timeout=180s")


def test_describe(cluster: Any, web: str) -> None:
    node = cluster.kubectl("describe", "node", "node-1")
    assert "nvidia.com/mig.config=dynamic" in node
    assert "Non-terminated Pods:" in node
    pod = cluster.kubectl("describe", "pod", "-l", "app=web")
    assert "instaslice.redhat.com/accelerator-memory-quota:  5Gi" in pod
    assert "kubernetes.io/hostname=node-1" in pod
    assert "Successfully assigned default/web-" in pod
    assert "2 desired | 2 updated | 2 total | 2 available" in cluster.kubectl("describe", web)
    assert "Pod Allocation Results:" in cluster.kubectl("describe", "instaslice", "node-1", "-n", "instaslice-system")


def test_wait(cluster: Any, web: str) -> None:
    assert "condition met" in cluster.kubectl("wait", web, "--for=jsonpath={.status.readyReplicas}=2", "--timeout=180s")
    assert "timed out" in cluster.kubectl("wait", web, "--for=condition=Ghost", "--timeout=1s", fails=True)


def test_explain_our_own_kind(cluster: Any) -> None:
    tree = cluster.kubectl("explain", "instaslices.spec", "--recursive")
    for field in ("podAllocationRequests", "gpuUUID", "profile", "start", "size"):
        assert field in tree
    assert "configMapResourceIdentifier" in cluster.kubectl("explain", "instaslices.status.podAllocationResults")


def test_events(cluster: Any, web: str) -> None:
    pod = cluster.get("pods", "-l", "app=web")["items"][0]["metadata"]["name"]
    told = cluster.kubectl("events", "--for", f"pod/{pod}")
    assert "Scheduled" in told
    assert "Started container c" in told
    assert "SuccessfulCreate" in cluster.kubectl("get", "events", "--field-selector", "reason=SuccessfulCreate")


def test_auth(cluster: Any) -> None:
    agent = "--as=system:serviceaccount:tessera-system:tessera-agent"
    assert cluster.kubectl("auth", "can-i", "delete", "nodes") == "yes\n"
    assert cluster.kubectl("auth", "can-i", "watch", "pods", agent) == "yes\n"
    assert cluster.run("kubectl", "auth", "can-i", "delete", "nodes", agent).stdout == "no\n"
    assert "kubernetes-admin" in cluster.kubectl("auth", "whoami")
    refused = cluster.kubectl("get", "secrets", agent, fails=True)
    assert 'User "system:serviceaccount:tessera-system:tessera-agent" cannot list resource "secrets"' in refused


def test_what_the_server_knows(cluster: Any) -> None:
    kinds = {row.split()[-1] for row in cluster.kubectl("api-resources").splitlines()[1:]}
    assert {"Pod", "Deployment", "Job", "Instaslice", "ResourceQuota", "Lease"} <= kinds
    assert "Server Version: v1.32" in cluster.kubectl("version")
    assert "inference.redhat.com/v1alpha1" in cluster.kubectl("api-versions").splitlines()


def test_logs(cluster: Any) -> None:
    cluster.kubectl("run", "talker", "--image=busybox", "--restart=Never", "--command", "--", "echo", "hello there")
    cluster.kubectl("wait", "pod/talker", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=180s")
    assert "hello there" in cluster.kubectl("logs", "talker").splitlines()
    cluster.kubectl("delete", "pod", "talker", "--now")
    agent = ("logs", "--namespace=tessera-system", "daemonset/tessera-agent")
    assert " INFO tessera.agent." in cluster.kubectl(*agent)
    assert len(cluster.kubectl(*agent, "--tail=1", "--timestamps").splitlines()) == 1


@pytest.mark.parametrize("verb", [["exec", "{}", "--", "ls"], ["attach", "{}"], ["port-forward", "{}", ":80"]])
def test_what_containers_that_do_not_exist_cannot_do(cluster: Any, web: str, verb: list[str]) -> None:
    pod = cluster.kubectl("get", "pods", "-l", "app=web", "-o", "name").splitlines()[0]
    assert "not implemented by this API server" in cluster.kubectl(*(part.format(pod) for part in verb), fails=True)


def test_bad_requests_are_refused_in_words(cluster: Any) -> None:
    typo = cluster.kubectl("apply", "-f", "-", manifest=cluster.pod("p", {"nvidia.com/mig-3g.20bg": 1}), fails=True)
    assert "3g.20bg" in typo
    assert "3g.20gb" in typo
    mixed = cluster.pod("p", {SLICE: 1, "nvidia.com/gpu": 1})
    assert "nvidia.com/gpu" in cluster.kubectl("apply", "-f", "-", manifest=mixed, fails=True)
