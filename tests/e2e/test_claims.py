"""A pod with a ResourceClaim runs on its slice: with Tessera in the lab, and with its agent as a process of its own."""

from collections.abc import Iterator
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


@pytest.fixture(
    scope="module", params=[["--claim-driver", "gpu.tessera.dev"], OWN_PROCESSES], ids=["in the lab", "processes"]
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
    cluster.apply(TEMPLATE)
    cluster.apply(POD)
    cluster.kubectl("wait", "--for=condition=Ready", "pod/p", "--timeout=120s")
    assert cluster.kubectl("get", "resourceclaims", "--no-headers").split()[1] == "allocated,reserved"
    assert "3g.20gb" in cluster.tessera("map")
    cluster.kubectl("delete", "pod", "p")
    cluster.kubectl("wait", "--for=delete", "resourceclaims", "--all", "--timeout=60s")
