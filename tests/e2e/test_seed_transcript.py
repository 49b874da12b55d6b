"""The article's transcript on a node of four A100-SXM4-40GB: one Deployment gets a slice and gives it back."""

import json
import re
from typing import Any

import pytest

EMPTY_LISTING = re.compile(r"(GPU \d: NVIDIA A100-SXM4-40GB \(UUID: GPU-[0-9a-f-]{36}\)\n){4}")


@pytest.mark.parametrize("namespace", ["instaslice-system", "default"])
def test_a_deployment_gets_its_slice_and_gives_it_back(cluster: Any, namespace: str) -> None:
    # `oc new-project instaslice-system` makes the project that is there already the current one; so does this.
    cluster.kubectl("config", "set-context", "--current", "--namespace", namespace)
    before = cluster.tessera("lab", "smi", "node-1")
    assert EMPTY_LISTING.fullmatch(before.rstrip("\n") + "\n")

    cluster.kubectl("apply", "-f", "examples/vllm.yaml")
    cluster.kubectl("rollout", "status", "deployment/vllm", "--timeout=180s")
    header, row = cluster.kubectl("get", "deployments", "vllm").splitlines()
    assert header.split() == ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"]
    assert row.split()[:4] == ["vllm", "1/1", "1", "1"]

    name = cluster.kubectl("get", "pods", "-o", "name").strip()
    assert re.fullmatch(r"pod/vllm-[0-9a-z]+-[0-9a-z]{5}", name)
    uid = cluster.get(name)["metadata"]["uid"]
    cluster.eventually(lambda: _settled(cluster.slices("node-1")))
    result = cluster.slices("node-1")[uid]
    assert cluster.slices("node-1") == {
        uid: {
            "allocationStatus": {
                "allocationStatusController": "ungated",
                "allocationStatusDaemonset": "created",
            },
            "configMapResourceIdentifier": result["configMapResourceIdentifier"],
            "gpuUUID": result["gpuUUID"],
            "migPlacement": {"size": 4, "start": result["migPlacement"]["start"]},
            "nodename": "node-1",
        }
    }
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", result["configMapResourceIdentifier"])
    assert result["migPlacement"]["start"] in (0, 4)

    listing = cluster.tessera("lab", "smi", "node-1")
    card = rf"GPU \d: NVIDIA A100-SXM4-40GB \(UUID: {result['gpuUUID']}\)\n"
    assert re.search(card + r"  MIG 3g\.20gb +Device +0: \(UUID: MIG-[0-9a-f-]{36}\)\n", listing)
    assert listing.count("MIG ") == 1
    own = cluster.kubectl("exec", "deploy/vllm", "--", "nvidia-smi", "-L").splitlines()
    assert own[0] == f"GPU 0: NVIDIA A100-SXM4-40GB (UUID: {result['gpuUUID']})"
    assert own[1] in listing.splitlines()

    address = cluster.get(name)["status"]["podIP"]
    assert "vllm:request_success_total{" in cluster.run("curl", "-s", f"http://{address}:8000/metrics").stdout
    answer = complete(cluster, namespace)
    assert (answer["object"], answer["model"]) == ("text_completion", "facebook/opt-125m")
    assert answer["choices"][0]["text"] == " simulated: no model runs in this lab"
    assert answer["usage"] == {"prompt_tokens": 5, "total_tokens": 12, "completion_tokens": 7}

    cluster.kubectl("delete", "service/vllm", "deployment/vllm")
    cluster.eventually(lambda: not cluster.slices("node-1"))
    assert cluster.tessera("lab", "smi", "node-1") == before
    assert not cluster.get("instaslice", "node-1", "-n", "instaslice-system")["spec"].get("podAllocationRequests")


def complete(cluster: Any, namespace: str) -> Any:
    """The answer to the article's ``curl``, through its port-forward, on another port of this machine."""
    asked = {"model": "facebook/opt-125m", "prompt": "San Francisco is a", "max_tokens": 7, "temperature": 0}
    with cluster.forwarded("svc/vllm", 8000, "-n", namespace) as port:
        url, media = f"http://localhost:{port}/v1/completions", "Content-Type: application/json"
        return json.loads(cluster.run("curl", "-s", url, "-H", media, "-d", json.dumps(asked)).stdout)


def _settled(results: dict[str, Any]) -> bool:
    states = [result["allocationStatus"] for result in results.values()]
    return bool(states) and all(state.get("allocationStatusDaemonset") == "created" for state in states)
