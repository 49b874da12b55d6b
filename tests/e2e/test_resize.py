"""``tessera resize`` as a user runs it: another slice at the next start, in the same pod, and back."""

from typing import Any

import pytest

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "annotations": {"tessera.dev/gpu-memory": "5Gi"}},
    "spec": {"containers": [{"name": "main", "image": "nginx"}]},
}


def slice_of(cluster: Any) -> str:
    """What nvidia-smi says of the pod's slice in its container."""
    return str(cluster.run("kubectl", "exec", "web", "--", "nvidia-smi", "-L").stdout)


def test_a_pod_gets_another_slice_and_returns(cluster: Any) -> None:
    cluster.kubectl("apply", "-f", "-", manifest=POD)
    cluster.kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=60s")
    before = cluster.get("pod", "web")["status"]["podIP"]
    assert "MIG 1g.5gb" in slice_of(cluster)
    said = cluster.tessera("resize", "web", "20Gi")
    assert "pod web-slice holds nvidia.com/mig-3g.20gb on node node-1 for pod web.\n" in said
    assert said.endswith("To give it back: tessera resize web --back -n default\n")
    assert "its container gets it at its next start" in cluster.tessera("why", "web")
    assert "default/web-slice" in cluster.tessera("map")
    cluster.kubectl("exec", "-n", "default", "web", "-c", "main", "--", "kill", "1")
    cluster.eventually(lambda: "MIG 3g.20gb" in slice_of(cluster))
    assert cluster.get("pod", "web")["status"]["podIP"] == before
    assert "its container has had it since its last start" in cluster.tessera("why", "web")
    cluster.eventually(lambda: "default/web-slice; used by default/web" in cluster.tessera("map"))
    assert "not found: NVIDIA's runtime" in cluster.run("kubectl", "exec", "web-slice", "--", "nvidia-smi", "-L").stderr
    assert "the slice is for pod web" in cluster.tessera("why", "web-slice")
    cluster.tessera("resize", "web", "--back")
    cluster.eventually(lambda: "MIG 1g.5gb" in slice_of(cluster))
    cluster.kubectl("wait", "pod/web-slice", "--for=delete", "--timeout=60s")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["web"], "write either the memory, such as 20Gi, or --back"),
        (["web", "20Gi", "--back"], "write either the memory, such as 20Gi, or --back"),
        (["nobody", "20Gi"], '"nobody" not found'),
        (["web", "20"], "is a unit missing"),
        (["web", "5Gi"], "is no bigger"),
    ],
)
def test_what_is_refused(cluster: Any, arguments: list[str], text: str) -> None:
    assert text in cluster.tessera("resize", *arguments, fails=True)
