"""The commands of docs/kueue.md in a lab with ``--kueue``, in the order of the page."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "docs" / "kueue.md").read_text(encoding="utf-8").partition("## Set it up")[2].partition("\n## ")[0]
CONFIGURE, QUEUES = (
    "".join(line.strip() + "\n" for line in block.splitlines())
    for block in re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL)
)
PLACES = "/apis/visibility.kueue.x-k8s.io/v1beta2/namespaces/team-a/localqueues/slices/pendingworkloads"


@pytest.fixture(scope="module")
def lab_arguments() -> list[str]:
    return ["--nodes", "1xA100-40GB", "--kueue", "--virtual-time"]


def run_block(cluster: Any, block: str, folder: Path) -> None:
    """Runs a block of the page as a user does."""
    link = folder / "examples"
    link.symlink_to(ROOT / "examples")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", "-euo", "pipefail", "-c", block]
    made = subprocess.run(command, cwd=folder, env={**cluster.env, "PATH": path}, capture_output=True, text=True)
    link.unlink()
    assert made.returncode == 0, made.stdout + made.stderr


def verdict(cluster: Any, pod: str) -> str:
    return str(json.loads(cluster.tessera("why", "-n", "team-a", pod, "-o", "json"))["answers"][0]["case"])


def test_the_page_s_commands_queue_a_pod(cluster: Any, tmp_path: Path) -> None:
    run_block(cluster, CONFIGURE, tmp_path)
    cluster.kubectl("rollout", "status", "-n", "kueue-system", "deployment/kueue-controller-manager", "--timeout=60s")
    run_block(cluster, QUEUES.replace("team-a=80Gi", "team-a=20Gi"), tmp_path)
    cluster.pass_time(60)  # Tessera looks for the check once a minute
    cluster.kubectl("wait", "admissioncheck/packable", "--for=condition=Active", "--timeout=120s")
    kueue = [line for line in cluster.run_tessera("doctor", "--all").stdout.splitlines() if "kueue-" in line]
    assert [line.split()[:2] for line in kueue] == [["ok", "kueue-charges:"]]
    pod = (ROOT / "examples" / "kueue" / "pod.yaml").read_text(encoding="utf-8").replace('"60"', '"infinity"')
    cluster.apply(yaml.safe_load(pod))
    cluster.kubectl("wait", "-n", "team-a", "pod/queued", "--for=condition=Ready", "--timeout=120s")
    cluster.apply(yaml.safe_load(pod.replace("name: queued", "name: second")))
    cluster.eventually(lambda: verdict(cluster, "second") == "kueue-quota")
    (place,) = json.loads(cluster.kubectl("get", "--raw", PLACES))["items"]
    assert (place["positionInLocalQueue"], place["positionInClusterQueue"]) == (0, 0)
    header, *rows = cluster.kubectl("get", "workloads", "-n", "team-a").splitlines()
    assert re.split("  +", header) == ["NAME", "QUEUE", "RESERVED IN", "ADMITTED", "FINISHED", "AGE"]
    (running,) = [row.split() for row in rows if row.startswith("pod-queued-")]
    assert running[1:4] == ["slices", "team-a", "True"]
    assert "number 1 of 1 in that queue" in cluster.tessera("why", "-n", "team-a", "second")


def test_the_lab_says_that_this_kueue_is_simulated(cluster: Any) -> None:
    assert "simulated Kueue" in cluster.tessera("lab", "status", "--dir", str(cluster.folder))
    pods = cluster.get("pods", "-n", "kueue-system")["items"]
    assert {each["spec"]["containers"][0]["image"] for each in pods} == {
        "registry.k8s.io/kueue/kueue:simulated-by-the-lab"
    }
