"""``tessera lab reboot``: over real sockets, with the processes that a user would watch."""

from typing import Any

import pytest


@pytest.fixture(scope="module")
def lab_arguments() -> list[str]:
    return ["--nodes", "1xA100-40GB,1xH100-80GB", "--mig-config", "all-1g.5gb", "--virtual-time", "--boot-time", "120"]


def boot_id(cluster: Any, node: str) -> str:
    return str(cluster.get("node", node)["status"]["nodeInfo"]["bootID"])


def test_a_node_comes_back_with_its_layout_and_its_pods(cluster: Any) -> None:
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": cluster.pod("web", {"nvidia.com/mig-1g.5gb": 1})["spec"] | {"restartPolicy": "Always"},
            },
        },
    }
    cluster.apply(deployment)
    cluster.kubectl("wait", "deployment/web", "--for=condition=Available", "--timeout=180s")
    before, other = boot_id(cluster, "node-1"), boot_id(cluster, "node-2")
    assert cluster.tessera("lab", "smi", "node-1").count("MIG 1g.5gb") == 7

    assert cluster.tessera("lab", "reboot", "node-1") == "node node-1 reboots; it is back in about 122 s\n"
    cluster.eventually(lambda: boot_id(cluster, "node-1") != before)
    cluster.eventually(lambda: cluster.tessera("lab", "smi", "node-1").count("MIG 1g.5gb") == 7)
    cluster.kubectl("wait", "deployment/web", "--for=condition=Available", "--timeout=180s")
    cluster.kubectl(
        "wait", "node/node-1", "--for=jsonpath={.status.allocatable.nvidia\\.com/mig-1g\\.5gb}=7", "--timeout=180s"
    )
    assert boot_id(cluster, "node-2") == other
    told = cluster.kubectl("get", "events", "--field-selector=reason=Rebooted", "-o", "name")
    assert told.count("event/") == 1


def test_a_node_that_is_not_there_cannot_reboot(cluster: Any) -> None:
    said = cluster.tessera("lab", "reboot", "node-9", fails=True)
    assert said == "error: no node 'node-9'; there are node-1, node-2\n"
