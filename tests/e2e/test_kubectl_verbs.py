"""Each verb of kubectl that the lab claims to know, on a lab that Tessera is installed in.

One of the long proofs: `make test` has kubectl's verbs in :mod:`tests.conformance.test_kubectl`, against the same
server in the test's process, and the life of pods with slices in the other stories of this folder.
"""

import json
import re
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


def test_explain_our_own_kind(cluster: Any) -> None:
    tree = cluster.kubectl("explain", "instaslices.spec", "--recursive")
    for field in ("podAllocationRequests", "gpuUUID", "profile", "start", "size"):
        assert field in tree
    assert "configMapResourceIdentifier" in cluster.kubectl("explain", "instaslices.status.podAllocationResults")


def test_logs(cluster: Any) -> None:
    cluster.kubectl("run", "talker", "--image=busybox", "--restart=Never", "--command", "--", "echo", "hello there")
    cluster.kubectl("wait", "pod/talker", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=180s")
    assert "hello there" in cluster.kubectl("logs", "talker").splitlines()
    cluster.kubectl("delete", "pod", "talker", "--now")
    agent = ("logs", "--namespace=tessera-system", "daemonset/tessera-agent")
    assert " INFO tessera.agent." in cluster.kubectl(*agent)
    assert len(cluster.kubectl(*agent, "--tail=1", "--timestamps").splitlines()) == 1


def test_exec_shows_the_slice_of_the_pod(cluster: Any, web: str) -> None:
    listing = cluster.kubectl("exec", web, "--", "nvidia-smi", "-L")
    assert re.fullmatch(r"GPU 0: NVIDIA A100[^\n]+\n  MIG 1g\.5gb +Device  0: \(UUID: MIG-[0-9a-f-]+\)\n", listing)
    assert "not implemented by this API server" in cluster.kubectl("attach", web, fails=True)


def test_bad_requests_are_refused_in_words(cluster: Any) -> None:
    typo = cluster.kubectl("apply", "-f", "-", manifest=cluster.pod("p", {"nvidia.com/mig-3g.20bg": 1}), fails=True)
    assert "3g.20bg" in typo
    assert "3g.20gb" in typo
    mixed = cluster.pod("p", {SLICE: 1, "nvidia.com/gpu": 1})
    assert "nvidia.com/gpu" in cluster.kubectl("apply", "-f", "-", manifest=mixed, fails=True)


def test_a_cron_job_runs_on_a_slice(cluster: Any) -> None:
    template = deployment("nightly")["spec"]["template"]
    template["spec"] |= {"restartPolicy": "Never"}
    template["spec"]["containers"][0]["command"] = ["nvidia-smi", "-L"]
    spec = {"schedule": "0 3 * * *", "jobTemplate": {"spec": {"template": template}}}
    cluster.apply({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly"}, "spec": spec})
    cluster.kubectl("create", "job", "now", "--from=cronjob/nightly")
    cluster.kubectl("wait", "job/now", "--for=condition=Complete", "--timeout=180s")
    assert "MIG 1g.5gb" in cluster.kubectl("logs", "job/now")
    assert "nightly" in cluster.tessera("why", "cronjob/nightly")
    cluster.kubectl("delete", "cronjob/nightly")  # and with it its Job
