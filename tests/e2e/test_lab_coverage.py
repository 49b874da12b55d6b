"""``tessera driver coverage`` asks the simulated registries of a lab, for each version that the policy names."""

import json
from pathlib import Path
from typing import Any

import pytest

from tessera_lab.experiments.clusters import KERNEL, NEWER, OS_TAG

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def lab_arguments() -> list[str]:
    """A machine whose kernel has finished modules."""
    return ["--nodes", "1xT4", "--mig-config", "", "--drivers", "--virtual-time"]


def test_a_kernel_that_comes_is_judged_by_them(cluster: Any) -> None:
    cluster.kubectl("apply", "-f", str(ROOT / "examples" / "drivers" / "cluster-policy.yaml"))
    cluster.kubectl("patch", "clusterpolicy", "cluster-policy", "--type=merge", "-p", _version(NEWER))
    arguments = ("--cluster", "--os", OS_TAG, "--kernels", KERNEL)
    assert "yes" in cluster.tessera("driver", "coverage", *arguments)
    cluster.kubectl("patch", "clusterpolicy", "cluster-policy", "--type=merge", "-p", _version("999.1.1"))
    assert "the registry has no such tag (simulated)" in cluster.run_tessera("driver", "coverage", *arguments).stdout


def _version(version: str) -> str:
    return json.dumps({"spec": {"driver": {"version": version}}})
