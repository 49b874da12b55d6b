"""A lab with a node group: a pod that asks for a GPU makes a node appear, and the idle node goes after its timer."""

from typing import Any

import pytest


@pytest.fixture(scope="module")
def lab_arguments() -> list[str]:
    return ["--nodes", "0", "--group", "gpu=1xA100-40GB:0-2", "--idle-time", "300", "--virtual-time"]


def test_a_group_grows_from_zero_and_shrinks_to_it(cluster: Any) -> None:
    assert cluster.kubectl("get", "nodes", "-o", "name") == "node/node-1\n"
    pod = cluster.pod("wants-a-gpu", {"nvidia.com/gpu": 1}, command=("sleep", "60"))
    cluster.apply(pod)
    cluster.kubectl("wait", "pod/wants-a-gpu", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=180s")
    node = cluster.get("pod", "wants-a-gpu")["spec"]["nodeName"]
    assert node.startswith("gpu-")
    (event,) = cluster.get("events", "--field-selector", "reason=TriggeredScaleUp")["items"]
    assert event["message"] == "pod triggered scale-up: [{gpu +1}]"
    cluster.kubectl("wait", f"node/{node}", "--for=delete", "--timeout=180s")
    assert cluster.kubectl("get", "nodes", "-o", "name") == "node/node-1\n"


def test_the_lab_says_what_it_simulates(cluster: Any) -> None:
    told = cluster.tessera("lab", "status", "--dir", str(cluster.folder))
    assert "simulated nodes 0, simulated node groups gpu=1xA100-40GB:0-2" in told
