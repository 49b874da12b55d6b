"""A pod with a ResourceClaim runs on its slice: with Tessera in the lab, and with its agent as a process of its own."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.support.command_line import start_lab
from tests.support.device_claims import claim_template, claiming_pod, exactly
from tests.support.running_lab import ROOT, RunningLab

from tessera_lab.daemon.lab_folder import stop

PROFILE = "device.attributes['gpu.tessera.dev'].profile == '3g.20gb'"
TEMPLATE = claim_template("slice", exactly("gpu", "mig.tessera.dev", PROFILE))
POD = claiming_pod("p", {"name": "gpu", "resourceClaimTemplateName": "slice"}, terminationGracePeriodSeconds=0)
OWN_PROCESSES = ["--no-tessera", "--image", f"tessera:dev={ROOT / 'src'}"]


IN_THE_LAB = ["--claim-driver", "gpu.tessera.dev"]
BY_SCHEDULER = [*IN_THE_LAB, "--claim-placement", "scheduler"]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(IN_THE_LAB, marks=pytest.mark.soak),
        BY_SCHEDULER,
        pytest.param(OWN_PROCESSES, marks=pytest.mark.soak),
    ],
    ids=["in the lab", "by kube-scheduler", "processes"],
)
def lab_arguments(request: pytest.FixtureRequest) -> list[str]:
    return ["--nodes", "2xA100-40GB", *request.param]


@pytest.fixture(scope="module")
def cluster(lab_folder: Path, lab_arguments: list[str]) -> Iterator[RunningLab]:
    yield RunningLab(start_lab(lab_folder, lab_arguments))
    stop(lab_folder)


def test_a_pod_runs_on_the_slice_of_its_claim(cluster: RunningLab, lab_arguments: list[str]) -> None:
    if "--no-tessera" in lab_arguments:
        cluster.tessera("install", "--claim-driver", "gpu.tessera.dev", "--image", "tessera:dev")
        cluster.kubectl("label", "node", "node-1", "tessera.dev/device-api=dra")
        cluster.kubectl("rollout", "status", "deployment/tessera-dashboard", "-n", "tessera-system", "--timeout=120s")
    cluster.apply(TEMPLATE)
    cluster.apply(POD)
    cluster.eventually(lambda: _is_ready(cluster, "p"))
    assert cluster.kubectl("get", "resourceclaims", "--no-headers").split()[1] == "allocated,reserved"
    assert "3g.20gb" in cluster.tessera("map")
    controller = cluster.kubectl("get", "deployment", "tessera-controller", "-n", "tessera-system", "-o", "yaml")
    assert ("--claim-placement=scheduler" in controller) == (lab_arguments[-1] == "scheduler")
    shown = cluster.tessera("install", "--show").split()
    assert "--claim-driver=gpu.tessera.dev" in shown
    assert ("--claim-placement=scheduler" in shown) == (lab_arguments[-1] == "scheduler")
    cluster.kubectl("delete", "pod", "p")
    cluster.kubectl("wait", "--for=delete", "resourceclaims", "--all", "--timeout=60s")


def test_an_update_of_the_agent_fails_no_claim(cluster: RunningLab, lab_arguments: list[str]) -> None:
    """Pods come until the next agent alone serves; kubelet would repeat a failed prepare after a minute only."""
    if "--no-tessera" not in lab_arguments:
        pytest.skip("one process has no two agents")
    (before,) = _agents(cluster)
    cluster.kubectl("rollout", "restart", "daemonset/tessera-agent", "-n", "tessera-system")
    names: list[str] = []
    while before in _agents(cluster) or len(names) < 3:
        name = f"u{len(names)}"
        cluster.apply({**POD, "metadata": {**POD["metadata"], "name": name}})
        cluster.eventually(partial(_is_ready, cluster, name))
        cluster.kubectl("delete", "pod", name, "--wait=false")
        names.append(name)
    cluster.kubectl("rollout", "status", "daemonset/tessera-agent", "-n", "tessera-system", "--timeout=120s")
    assert len(_agents(cluster)) == 1
    events = [(each["reason"], each.get("message", "")) for each in cluster.get("events")["items"]]
    assert [each for each in events if each[0].startswith("FailedPrepare")] == []


def _agents(cluster: RunningLab) -> list[str]:
    found = cluster.get("pods", "-n", "tessera-system", "-l", "app.kubernetes.io/name=tessera-agent")["items"]
    return [each["metadata"]["name"] for each in found]


def _is_ready(cluster: RunningLab, pod: str) -> bool:
    conditions = cluster.get("pod", pod)["status"].get("conditions", ())
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)
