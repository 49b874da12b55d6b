"""Controller, webhook and agents of this version and of the one before, in every mixture.

Each step of an upgrade or a downgrade is one of these. `make soak` plays all eight, in an order that changes one
component at a time. `make test` plays four of them: any two components meet in every pair of versions.
"""

import tempfile
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import pytest
from charts.files import FOLDER
from tests.support.previous_version import previous_version, unpack_previous
from tests.support.running_lab import RunningLab

import tessera

SYSTEM = ("-n", "tessera-system")
NEW, OLD = tessera.__version__, previous_version()


class Mixture(NamedTuple):
    """The version of each component."""

    controller: str
    webhook: str
    agent: str


#: All mixtures of two versions; each differs from the next by one component. In every second one, an odd number of
#: components is of this version.
MIXTURES = [
    Mixture(NEW, NEW, NEW),
    Mixture(OLD, NEW, NEW),
    Mixture(OLD, OLD, NEW),
    Mixture(NEW, OLD, NEW),
    Mixture(NEW, OLD, OLD),
    Mixture(OLD, OLD, OLD),
    Mixture(OLD, NEW, OLD),
    Mixture(NEW, NEW, OLD),
]
CASES = [
    pytest.param(mixture, id="-".join(mixture), marks=[] if mixture.count(NEW) % 2 else pytest.mark.soak)
    for mixture in MIXTURES
]
WORKLOADS = {"controller": "deployment", "webhook": "deployment", "agent": "daemonset"}


@pytest.fixture(scope="module")
def code() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tp-", dir="/tmp") as folder:
        yield unpack_previous(Path(folder))


@pytest.fixture(scope="module")
def lab_arguments(code: Path) -> list[str]:
    return [
        "--no-tessera",
        "--mig-config",
        "",
        "--nodes",
        "1xA100-40GB,1xA100-40GB",
        "--image",
        f"tessera:{OLD}={code}",
    ]


@pytest.fixture(scope="module")
def installed(cluster: RunningLab) -> RunningLab:
    """The chart of this version, with a node of slices on demand, one of shares, and a pod that runs all the time."""
    cluster.helm("install", "tessera", str(FOLDER), *SYSTEM, "--create-namespace", "--wait")
    cluster.kubectl("label", "node", "node-1", "nvidia.com/mig.config=dynamic")
    cluster.kubectl("label", "node", "node-2", "nvidia.com/device-plugin.config=slice-4")
    cluster.eventually(lambda: offered(cluster, "node-1", "nvidia.com/mig-3g.20gb"))
    cluster.eventually(lambda: offered(cluster, "node-2", "nvidia.com/gpu.shared"))
    cluster.apply(cluster.pod("lasting", {"nvidia.com/mig-3g.20gb": 1}))
    cluster.kubectl("wait", "pod/lasting", "--for=condition=Ready", "--timeout=120s")
    return cluster


def offered(cluster: RunningLab, node: str, resource: str) -> bool:
    return str(cluster.get("node", node)["status"]["allocatable"].get(resource, "0")) != "0"


def arrange(cluster: RunningLab, mixture: Mixture) -> None:
    for component, version in mixture._asdict().items():
        workload = f"{WORKLOADS[component]}/tessera-{component}"
        cluster.kubectl("set", "image", workload, *SYSTEM, f"*=tessera:{version}")
        cluster.kubectl("rollout", "status", workload, *SYSTEM, "--timeout=180s")


def test_the_short_tests_let_any_two_components_meet_in_every_pair_of_versions() -> None:
    short = [mixture for mixture in MIXTURES if mixture.count(NEW) % 2]
    pairs = {(a, b, mixture[a], mixture[b]) for mixture in short for a, b in combinations(range(3), 2)}
    assert len(short) == 4
    assert len(pairs) == 12


@pytest.mark.parametrize("mixture", CASES)
def test_pods_get_slices_and_shares_and_give_them_back(installed: RunningLab, mixture: Mixture) -> None:
    cluster = installed
    lasting = cluster.get("pod", "lasting")["metadata"]["uid"]
    arrange(cluster, mixture)
    wanted = cluster.pod("slice", {"nvidia.com/mig-2g.10gb": 1}), cluster.pod("share", {"nvidia.com/gpu.shared": 1})
    described = cluster.pod("described", {})
    described["metadata"]["annotations"] = {"tessera.dev/gpu-memory": "4Gi"}
    for pod in (*wanted, described):
        cluster.apply(pod)
    names = ("pod/slice", "pod/share", "pod/described")
    cluster.kubectl("wait", *names, "--for=condition=Ready", "--timeout=120s")
    assert lasting in cluster.slices("node-1")
    assert cluster.get("pod", "lasting")["status"]["containerStatuses"][0]["restartCount"] == 0

    cluster.kubectl("delete", *names, "--wait=true")
    cluster.eventually(lambda: set(cluster.slices("node-1")) == {lasting})
