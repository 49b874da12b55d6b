"""One experiment has one answer: a standing lab with a node group shows what ``tessera bench autoscale`` simulates."""

import json
from typing import Any

import pytest
from tests.support.running_lab import ROOT

from tessera.provisioning.milestones import PROVISIONING_ANNOTATION
from tessera_lab.cli.own_commands import own_commands
from tessera_lab.experiments.clusters import PUBLIC
from tessera_lab.experiments.measuring import WORKLOAD
from tessera_lab.experiments.runs import OURS, autoscale
from tessera_lab.installation.install import build_entrypoint


@pytest.fixture(scope="module")
def lab_arguments() -> list[str]:
    return ["--nodes", "0", "--group", "gpu=1xT4:0-1", "--mig-config", "", "--drivers", "--virtual-time"]


@pytest.mark.soak
def test_a_standing_lab_has_the_seconds_of_the_experiment(cluster: Any) -> None:
    """From the node's Ready until the workload runs; the record has whole seconds."""
    cluster.kubectl("apply", "-f", str(ROOT / "examples" / "drivers" / "cluster-policy.yaml"))
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "workload"}, "spec": dict(WORKLOAD)}
    cluster.apply(pod)

    def taken() -> float | None:
        for node in json.loads(cluster.kubectl("get", "nodes", "-o", "json"))["items"]:
            at = json.loads(node["metadata"]["annotations"].get(PROVISIONING_ANNOTATION, "{}")).get("at", {})
            if "workload" in at:
                return float(at["workload"] - at["ready"])
        return None

    assert cluster.eventually(taken)
    (expected,) = autoscale(PUBLIC, 1, operator=OURS, make=build_entrypoint(own_commands())).samples
    assert taken() == pytest.approx(expected, abs=2)
