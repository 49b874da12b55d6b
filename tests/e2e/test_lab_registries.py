"""Commands reach the simulated registries of a lab that was started with ``--drivers``."""

import json
from pathlib import Path
from typing import Any

import pytest

from tessera.cli.base.simulated_cluster import lab_registries
from tessera_lab.cli.registries import LabRegistries
from tessera_lab.experiments.clusters import KERNEL, OS_TAG, PUBLIC, VERSION

ROOT = Path(__file__).parents[2]
DRIVER = f"{PUBLIC.repository}/{PUBLIC.image}"


@pytest.fixture(scope="module")
def lab_arguments() -> list[str]:
    """A machine whose kernel has finished modules, and one whose kernel has none."""
    nodes = f"1xT4,1xT4@{OS_TAG}:5.14.0-284.30.1.el9_2.x86_64"
    return ["--nodes", nodes, "--mig-config", "", "--drivers", "--virtual-time"]


@pytest.fixture(scope="module")
def policy(cluster: Any) -> None:
    cluster.kubectl("apply", "-f", str(ROOT / "examples" / "drivers" / "cluster-policy.yaml"))


@pytest.mark.usefixtures("policy")
def test_images_are_those_of_the_labs_registries(cluster: Any) -> None:
    done = cluster.run_tessera("driver", "images", "--cluster", "-o", "json")
    assert "simulated registries" in done.stderr
    by_node = {each["nodes"][0]: each for each in json.loads(done.stdout)["images"]}
    assert {node: each["strategy"] for node, each in by_node.items()} == {"node-1": "precompiled", "node-2": "built"}
    assert by_node["node-1"]["candidates"][0]["reference"] == f"{DRIVER}:{VERSION}-{KERNEL}-{OS_TAG}"
    assert done.returncode == 0

    def in_use() -> dict[str, str]:
        told = json.loads(cluster.tessera("driver", "status", "-o", "json"))
        return {each["node"]: each["image"] for each in told if each["image"]}

    assert cluster.eventually(lambda: in_use() == {node: each["image"] for node, each in by_node.items()})


def test_a_lab_is_known_by_its_folder_and_its_server(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("TESSERA_LAB", str(tmp_path))
    own = Path(cluster.state.kubeconfig)
    assert lab_registries(own, None) == LabRegistries(cluster.folder)
    # A copy elsewhere leads to the lab only where somebody says which folder is its own.
    copy = tmp_path / "config"
    copy.write_text(own.read_text())
    assert lab_registries(copy, None) is None
    monkeypatch.setenv("TESSERA_LAB", str(cluster.folder))
    assert lab_registries(copy, None) == LabRegistries(cluster.folder)
    # Whoever else answers is no lab, whatever stands beside.
    copy.write_text(own.read_text().replace(cluster.state.server, "https://192.0.2.1:6443"))
    assert lab_registries(copy, None) is None
