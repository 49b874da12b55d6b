"""The article's story on a node of four A100-SXM4-40GB: one Deployment gets a slice and gives it back."""

import re
from typing import Any

DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "vllm"},
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "vllm"}},
        "template": {
            "metadata": {"labels": {"app": "vllm"}},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [
                    {"name": "vllm", "image": "vllm", "resources": {"limits": {"nvidia.com/mig-3g.20gb": 1}}}
                ],
            },
        },
    },
}


def test_a_deployment_gets_its_slice_and_gives_it_back(cluster: Any) -> None:
    before = cluster.tessera("lab", "smi", "node-1")
    assert len(re.findall(r"^GPU \d: NVIDIA A100-SXM4-40GB \(UUID: GPU-[0-9a-f-]{36}\)$", before, re.MULTILINE)) == 4

    cluster.kubectl("apply", "-f", "-", manifest=DEPLOYMENT)
    cluster.kubectl("wait", "deployment/vllm", "--for=condition=Available", "--timeout=60s")

    pods = cluster.get("pods", "-l", "app=vllm")["items"]
    uid = pods[0]["metadata"]["uid"]
    cluster.eventually(lambda: cluster.slices("node-1")[uid]["allocationStatus"].get("allocationStatusDaemonset"))
    results = cluster.slices("node-1")
    assert list(results) == [uid]
    assert set(results[uid]) == {
        "allocationStatus",
        "configMapResourceIdentifier",
        "gpuUUID",
        "migPlacement",
        "nodename",
    }
    assert results[uid]["allocationStatus"] == {
        "allocationStatusController": "ungated",
        "allocationStatusDaemonset": "created",
    }
    assert results[uid]["migPlacement"]["size"] == 4
    assert results[uid]["migPlacement"]["start"] in (0, 4)
    assert results[uid]["nodename"] == "node-1"
    listing = cluster.tessera("lab", "smi", "node-1")
    card = rf"GPU \d: NVIDIA A100-SXM4-40GB \(UUID: {results[uid]['gpuUUID']}\)\n"
    assert re.search(card + r"  MIG 3g\.20gb +Device +0: \(UUID: MIG-[0-9a-f-]{36}\)", listing)

    cluster.kubectl("delete", "deployment", "vllm")
    cluster.eventually(lambda: not cluster.slices("node-1"))
    assert cluster.tessera("lab", "smi", "node-1") == before
