"""Clusters on virtual time; see :mod:`tests.support.virtual_lab`."""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import driverlab, new_nodes
from tests.support.booted_lab import BootedLab, play
from tests.support.mortal_process import MortalAgent, MortalController
from tests.support.virtual_lab import InLab, Scenario, VirtualLab

from tessera.kube.resources import NAMESPACES
from tessera_lab.cluster.cluster import SimulatedCluster
from tessera_lab.simulation.virtual_time import run_virtual

#: Types of clusters that many tests have; each of another type is made for one.
SHARED = (SimulatedCluster, MortalController, MortalAgent)
#: Booted clusters that a test process has at a time, some 10 MB each.
BOOTED = 8


@pytest.fixture(scope="session")
def booted_labs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., BootedLab]]:
    """Returns the booted cluster of the given nodes and options."""
    labs: dict[Any, BootedLab] = {}

    def find(nodes: str, **options: Any) -> BootedLab:
        key = nodes, frozenset(options.items())
        if key not in labs and len(labs) == BOOTED:
            labs.pop(next(iter(labs))).close()
        if key not in labs:
            labs[key] = BootedLab(tmp_path_factory.mktemp("lab"), nodes, **options)
        labs[key] = labs.pop(key)  # the one that was not asked for the longest comes first
        return labs[key]

    yield find
    for lab in labs.values():
        lab.close()


@pytest.fixture
def in_lab(tmp_path: Path, booted_labs: Callable[..., BootedLab]) -> InLab:
    """Runs a scenario in a cluster of the given nodes on virtual time, which has just booted."""

    def run(
        scenario: Scenario,
        nodes: str = "4xA100-40GB",
        cluster_type: Callable[..., SimulatedCluster] = SimulatedCluster,
        *,
        own: bool = False,
        **options: Any,
    ) -> Any:
        if own or cluster_type not in SHARED:
            return run_virtual(play(scenario, nodes, Path(tempfile.mkdtemp(dir=tmp_path)), cluster_type, **options))
        return booted_labs(nodes, cluster_type=cluster_type, **options).run(scenario)

    return run


@pytest.fixture
def managed(in_lab: InLab) -> Callable[..., None]:
    """Runs a scenario on nodes with whole cards, where the namespace default is managed."""

    def run(scenario: Scenario, nodes: str = "4xA100-40GB", **options: Any) -> Any:
        async def with_label(lab: VirtualLab) -> Any:
            await lab.becomes({"nvidia.com/gpu": 4})
            labels = {"tessera.dev/placement": "managed"}
            await lab.client.merge_patch(NAMESPACES, "default", {"metadata": {"labels": labels}})
            return await scenario(lab)

        return in_lab(with_label, nodes=nodes, mig_config="", **options)

    return run


@pytest.fixture
def with_drivers(tmp_path: Path) -> Callable[..., None]:
    """Runs a scenario in a cluster of machines without drivers."""
    return partial(driverlab.play, tmp_path)


@pytest.fixture
def with_new_nodes(tmp_path: Path) -> Callable[..., None]:
    """Runs a scenario in a cluster that begins with one node without cards."""
    return partial(new_nodes.play, tmp_path)
