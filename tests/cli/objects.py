"""One of each object that commands read, and an API server of plain objects that is only read."""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from tests.explain.test_pods import NOW, cards

from tessera.api.pod_annotations import CHOSEN, CHOSEN_REASON, MEMORY
from tessera.clock import rfc3339

Obj = dict[str, Any]
KUBECONFIG = """apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "{server}"}}}}]
users: [{{name: u, user: {{token: t}}}}]
"""


class Objects:
    """The objects of a server, by plural name.

    Attributes:
        found: the objects.
        refused: plural names that may not be read.
    """

    def __init__(self) -> None:
        self.found: Mapping[str, Sequence[Obj]] = {}
        self.refused: frozenset[str] = frozenset()

    def answer(self, path: str) -> tuple[int, Obj]:
        """The status code and body of a GET."""
        parts = [part for part in path.split("/") if part]
        if parts == ["apis", "view.tessera.dev"]:
            return 200, {"kind": "APIGroup", "apiVersion": "v1", "name": parts[1]}
        parts = parts[2:] if parts[:1] == ["api"] else parts[3:]
        namespace = ""
        if parts[:1] == ["namespaces"] and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        plural, name = (parts[0] if parts else ""), (parts[1] if len(parts) > 1 else "")
        if plural in self.refused:
            text = f'{plural} is forbidden: User "jane" cannot list resource "{plural}" in API group "" at the cluster'
            return 403, _failure(403, "Forbidden", text)
        if "proxy" in parts:
            return 200, self.found["usage"][0]
        if plural not in self.found:
            return 404, _failure(404, "NotFound", "the server could not find the requested resource")
        every = [each for each in self.found[plural] if namespace in ("", each["metadata"].get("namespace", ""))]
        if not name:
            return 200, {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": every}
        one = next((each for each in every if each["metadata"]["name"] == name), None)
        return (200, one) if one else (404, _failure(404, "NotFound", f'{plural} "{name}" not found'))


def _failure(code: int, reason: str, message: str) -> Obj:
    return {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}


@contextmanager
def serving(objects: Objects, folder: Path) -> Iterator[Path]:
    """The server while the block runs; yields a kubeconfig for it."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet

        def do_GET(self) -> None:
            self.reply(*objects.answer(urlsplit(self.path).path))

        def reply(self, code: int, body: Obj) -> None:
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            self.wfile.flush()

        def do_PATCH(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.reply(405, _failure(405, "MethodNotAllowed", "these objects are only read"))

        def do_DELETE(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            told = objects.found["deployments"][0]["status"]["conditions"][0]["message"]
            self.reply(403, _failure(403, "Forbidden", f'admission webhook "w.example" denied the request: {told}'))

        def log_message(self, *args: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG.format(server=f"http://127.0.0.1:{server.server_port}"))
    try:
        yield kubeconfig
    finally:
        server.shutdown()
        server.server_close()


# The objects


class Json(dict[str, Any]):
    """A value that is written as JSON into a string: an annotation, a line of a ConfigMap."""


def meta(name: str, **more: Any) -> Obj:
    return {"name": name, "namespace": "team", "uid": f"uid-{name}", "creationTimestamp": rfc3339(NOW), **more}


def a_node(name: str, *, ready: str) -> Obj:
    record = {"node": name, "uid": "u", "at": {"registered": NOW - 900, "ready": NOW - 880}, "group": "pool-a"}
    offer = {"resource": "nvidia.com/gpu", "kind": "whole", "product": "NVIDIA A100", "cardMemoryMib": 40960,
             "memoryMib": 40960, "computeCapability": "8.0", "count": 1}  # fmt: skip
    driver = {"strategy": "precompiled", "phase": "ready", "since": rfc3339(NOW), "image": "registry/driver@sha256:1",
              "tag": "535-ubuntu22.04", "version": "535", "pool": "ubuntu22.04 5.15", "reason": "found",
              "offered": "better", "rejected": [{"strategy": "mirror", "reason": "not there"}]}  # fmt: skip
    cordon = {"gpu": "GPU-b", "rule": "cordon", "index": 1, "asks": "uncordon", "text": "fan is loud"}
    cards = {"count": 2, "others": [cordon], "gpus": [{"index": 0, "gpu": "GPU-a"}, {"index": 1, "gpu": "GPU-b"}]}
    return {
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "creationTimestamp": rfc3339(NOW),
            "labels": {
                "nvidia.com/mig.config": "dynamic" if ready == "True" else "all-1g.5gb",
                "nvidia.com/mig.config.state": "failed",
                "nvidia.com/device-plugin.config": "slice-4",
                "nvidia.com/gpu.present": "true",
                "kubernetes.io/hostname": name,
                "cloud.google.com/gke-nodepool": "pool-a",
            },
            "annotations": {
                "tessera.dev/offers": Json({"": [offer]}),
                "tessera.dev/driver": Json(driver),
                "tessera.dev/provisioning": Json(record),
                "tessera.dev/cards": Json(cards),
                "tessera.dev/cordon.GPU-b": "fan is loud",
            },
        },
        "spec": {"taints": [{"key": "team/only", "value": "x", "effect": "NoSchedule"}], "providerID": "gce:///1"},
        "status": {
            "allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "1"},
            "nodeInfo": {"kernelVersion": "5.15", "osImage": "Ubuntu 22.04", "containerRuntimeVersion": "containerd",
                         "architecture": "amd64", "bootID": "b"},
            "conditions": [
                {"type": "Ready", "status": ready, "reason": "KubeletReady", "message": "kubelet says", **since()},
                {"type": "GpuSharingApplied", "status": "False", "reason": "ProfileRefused", "message": "no"},
                {"type": "GpuHealthy", "status": "Unknown", "reason": "Starting", "message": "soon", **since()},
            ],
        },
    }  # fmt: skip


def since() -> Obj:
    return {"lastTransitionTime": rfc3339(NOW)}


def a_pod(name: str, *, gate: str = "", node: str = "", profile: str = "3g.20gb", **status: Any) -> Obj:
    limits = {f"nvidia.com/mig-{profile}": "1"}
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    return {
        "kind": "Pod",
        "metadata": meta(
            name,
            labels={"app": "x", "kueue.x-k8s.io/queue-name": "queue"},
            annotations={MEMORY: "20Gi", CHOSEN: "nvidia.com/gpu.shared", CHOSEN_REASON: "the smallest that has 20 GB"},
            finalizers=["team/finalizer"],
            ownerReferences=[{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "uid-web-1",
                              "controller": True}],
        ),
        "spec": {
            "nodeName": node,
            "nodeSelector": {"disk": "fast"},
            "schedulingGates": [{"name": gate}] if gate else [],
            "containers": [{"name": "main", "image": "image", "resources": {"limits": limits}}],
        },
        "status": {
            "phase": "Pending",
            "conditions": [unscheduled],
            **status,
        },
    }  # fmt: skip


def objects() -> dict[str, list[Obj]]:
    waits = {"name": "main", "restartCount": 2, "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no"}}}
    ended = {"name": "main", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
    ready = {"type": "Ready", "status": "True"}
    instaslice = msgspec.to_builtins(cards(("x", "7g.40gb", 0, 8, "created")))
    instaslice["metadata"]["name"] = "n1"
    row = {"node": "n9", "uid": "u9", "at": {"requested": NOW - 900, "registered": NOW - 800, "ready": NOW - 790,
           "labelled": NOW - 780, "pulled": NOW - 700, "driver": NOW - 650, "toolkit": NOW - 640,
           "validated": NOW - 630, "allocatable": NOW - 600}, "group": "pool-a", "pool": "ubuntu22.04 5.15",
           "strategy": "precompiled", "image": "registry/driver@sha256:1"}  # fmt: skip
    event = {"reason": "FailedScheduling", "type": "Warning", "message": "0/1 nodes", "lastTimestamp": rfc3339(NOW)}
    about = [("Pod", f"uid-{name}", name) for name in "abcd"] + [("ReplicaSet", "uid-web-1", "web-1")]
    return {
        "nodes": [a_node("n1", ready="True"), a_node("n2", ready="False"), a_node("n3", ready="True")],
        "pods": [
            a_pod("a", gate="instaslice.redhat.com/accelerator"),
            a_pod("b", gate="team.example/gate"),
            a_pod("c", node="n1", containerStatuses=[waits]),
            a_pod("d", node="n1", phase="Failed", reason="UnexpectedAdmissionError", message="no",
                  containerStatuses=[ended]),
            {**a_pod("tessera-agent-1", node="n3", profile="", conditions=[ready]), "metadata": {
                **meta("tessera-agent-1"), "namespace": "tessera-system",
                "labels": {"app.kubernetes.io/name": "tessera-agent"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "tessera-agent", "uid": "1",
                                     "controller": True}]}},
        ],
        "instaslices": [instaslice],
        "leases": [{"metadata": {"name": "tessera-controller", "namespace": "tessera-system"}, "spec": {
            "holderIdentity": "controller-1", "renewTime": rfc3339(NOW), "leaseDurationSeconds": 15}}],
        "events": [{"metadata": {**meta(f"e{n}"), "namespace": "default" if kind == "Node" else "team"}, **event,
                    "involvedObject": {"kind": kind, "name": name, "uid": uid}}
                   for n, (kind, uid, name) in enumerate([*about, ("Node", "uid-n1", "n1"), ("Node", "uid-n2", "n2")])],
        "resourcequotas": [{"metadata": meta("quota"), "status": {
            "hard": {"requests.nvidia.com/mig-3g.20gb": "1"}, "used": {"requests.nvidia.com/mig-3g.20gb": "1"}}}],
        "deployments": [{"metadata": meta("web"), "spec": {"replicas": 9}, "status": {"conditions": [
            {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
             "message": "exceeded quota: quota,"}]}}],
        "replicasets": [{"metadata": meta("web-1", ownerReferences=[{"apiVersion": "apps/v1", "kind": "Deployment",
            "name": "web", "uid": "uid-web", "controller": True}]), "spec": {"replicas": 9}, "status": {}}],
        "jobs": [{"metadata": meta("train"), "spec": {"parallelism": 2}, "status": {"conditions": [
            {"type": "Suspended", "status": "False", "reason": "r", "message": "m"}]}}],
        "statefulsets": [],
        "usage": [{"node": "n3", "driver": "580", "topology": {"cards": [{"index": 0, "uuid": "GPU-1", "cpus": "0-7"}],
            "network": ["mlx5_0"], "rows": ["PIX", ""], "clique": "7f4a.3"},
            "cards": [{"uuid": "GPU-1", "model": "NVIDIA A100",
            "absent": {"power": "not_supported"}, "throttled": ["sw_power_cap"], "values": {"temperature": 40},
            "health": {"state": "needs_reset", "next": "reset it", "evidence": [
                {"source": "XID 48", "text": "bad", "asks": "reset", "part": "GPU instance 1"}],
                "holders": [{"namespace": "team", "pod": "a"}, {"pid": 7, "process": "Xorg"}]}}],
            "leases": [{"namespace": "team", "pod": "a", "uid": "uid-a", "container": "main", "device": "GPU-1",
            "kind": "whole", "share": 1, "state": "idle", "evidence": "no process for 31 min",
            "findings": [{"kind": "pcie_bound", "text": "slow", "advice": "copy less"}]}]}],
        "daemonsets": [{"metadata": meta("rival"), "spec": {"template": {"spec": {"containers": [
            {"name": "plugin", "image": "nvcr.io/nvidia/k8s-device-plugin:v1"}]}}}}],
        "configmaps": [{"metadata": {"name": "provisioning-records", "namespace": "tessera-system"}, "data": {
            "records.jsonl": Json(row), "workloads.jsonl": "", "unreadable.txt": "junk"}},
            {"metadata": {"name": "usage-records", "namespace": "tessera-system"}, "data": {"usage.json": Json({
                "version": 1, "began": 1_700_000_000, "label": "part", "simulated": False, "nodes": {},
                "keys": [["team", "anna", "training", "NVIDIA A100"]], "periods": [[1_799_996_400, 3600, [
                    ["NVIDIA A100", 7200.0, 60.0, 60.0]], [[0, 3600.0, 1800.0, 60.0]]]]})}}],
        "services": [],
        "namespaces": [{"metadata": {"name": name}} for name in ("team", "tessera-system", "instaslice-system")],
        "clusterpolicies": [{"kind": "ClusterPolicy", "apiVersion": "nvidia.com/v1", "metadata": {"name": "policy"},
                             "spec": {"driver": {"enabled": True, "version": "535", "repository": "127.0.0.1:1/nvidia",
                                                 "image": "driver"}}}],
    }  # fmt: skip


def encoded(value: Any) -> Any:
    if isinstance(value, Json):
        return json.dumps(value.get("", dict(value)))
    if isinstance(value, dict):
        return {key: encoded(each) for key, each in value.items()}
    return [encoded(each) for each in value] if isinstance(value, list) else value
