"""A report from a cluster becomes a test: records are fetched from running processes, and their deciders run again."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.running_lab import RunningLab

SECRET = "hunter2-of-the-tenant"


@pytest.fixture(scope="module")
def lab_arguments() -> list[str]:
    return ["--nodes", "1xA100-40GB,1xA30", "--mig-config", ""]


@pytest.fixture(scope="module")
def recorded(cluster: RunningLab, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Records of the controller and of both agents, after pods have got and left a slice and a layout was applied."""
    for target in ("deployment/tessera-controller", "daemonset/tessera-agent"):
        cluster.kubectl("-n", "tessera-system", "set", "env", target, "TESSERA_RECORD=1000")
        cluster.kubectl("-n", "tessera-system", "rollout", "status", target, "--timeout=180s")
    cluster.kubectl("label", "node", "node-1", "nvidia.com/mig.config=dynamic")
    cluster.kubectl("label", "node", "node-2", "nvidia.com/mig.config=all-1g.6gb")
    pod = cluster.pod("a", {"nvidia.com/mig-3g.20gb": 1})
    pod["spec"]["containers"][0]["env"] = [{"name": "PASSWORD", "value": SECRET}]
    pod["metadata"]["annotations"] = {"example.com/password": SECRET}
    cluster.apply(pod)
    cluster.kubectl("wait", "pod/a", "--for=condition=Ready", "--timeout=180s")
    cluster.kubectl("delete", "pod", "a", "--now")
    cluster.kubectl(
        "wait", "node/node-2", "--for=jsonpath={.status.allocatable.nvidia\\.com/mig-1g\\.6gb}=4", "--timeout=180s"
    )
    folder = tmp_path_factory.mktemp("records")
    files = {"controller": folder / "controller.jsonl"}
    cluster.tessera("debug", "record", str(files["controller"]))
    for node in ("node-1", "node-2"):
        files[node] = folder / f"{node}.jsonl"
        cluster.tessera("debug", "record", "--node", node, str(files[node]))
    return files


@pytest.mark.parametrize(
    ("process", "decider", "decisions"),
    [
        ("controller", "slicer", 2),
        ("controller", "driver-plan", 1),
        ("controller", "driver-rollout", 1),
        ("controller", "breaker", 1),
        ("node-1", "slices", 2),
        ("node-2", "mig-config", 2),
        ("node-2", "health", 2),
    ],
)
def test_each_decider_decides_the_same_again(
    cluster: RunningLab, recorded: dict[str, Path], process: str, decider: str, decisions: int
) -> None:
    results = json.loads(cluster.tessera("debug", "replay", "-o", "json", str(recorded[process])))
    (result,) = [each for each in results if each["decider"] == decider]
    assert result["decisions"] >= decisions
    assert result["differences"] == []


def test_a_decision_that_is_another_now_is_shown_and_ends_the_command_with_1(
    cluster: RunningLab, recorded: dict[str, Path], tmp_path: Path
) -> None:
    records: list[Any] = [json.loads(line) for line in recorded["node-1"].read_text().splitlines()]
    (record,) = [each for each in records if each["decider"] == "slices"]
    record["decisions"][-1]["result"] = ["something else"]
    file = tmp_path / "changed.jsonl"
    file.write_text(json.dumps(record) + "\n")
    done = cluster.run_tessera("debug", "replay", str(file))
    assert done.returncode == 1
    assert "1 differ now" in done.stdout
    assert 'recorded: ["something else"]' in done.stdout


def test_records_hold_no_environment_and_no_annotation_of_a_pod(recorded: dict[str, Path]) -> None:
    for file in recorded.values():
        assert SECRET not in file.read_text()


def test_who_asks_for_the_records_of_a_process_that_keeps_none_is_told_how(cluster: RunningLab, tmp_path: Path) -> None:
    said = cluster.tessera("debug", "record", "--node", "node-9", str(tmp_path / "x"), fails=True)
    for fact in ("error: ", "no pod of tessera-agent runs", "in namespace tessera-system", "on node node-9"):
        assert fact in said
