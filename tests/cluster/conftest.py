"""Clusters on virtual time; see :mod:`tests.support.virtual_lab`."""

import os
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import driverlab, new_nodes
from tests.support.booted_lab import BootedLabs, play
from tests.support.mortal_process import MortalAgent, MortalController
from tests.support.slicer_cluster import handle_and_validate
from tests.support.virtual_lab import InLab, Scenario, VirtualLab

from tessera.controller.slicing.slicer import Slicer
from tessera.kube.resources import NAMESPACES
from tessera_lab.cluster.cluster import SimulatedCluster
from tessera_lab.simulation.virtual_time import run_virtual

#: Types of clusters, and nodes with their MIG layout and options, that several tests have. A lab of another kind boots
#: for its own: to keep it would cost more than its boot.
TYPES = (SimulatedCluster, MortalController, MortalAgent)
COMMON: set[tuple[Any, ...]] = {
    ("1xA100-40GB", "dynamic"),
    ("2xA100-40GB", "dynamic"),
    ("4xA100-40GB", "dynamic"),
    ("2*1xA100-40GB", "dynamic"),
    ("A100-40GB", ""),
    ("1xA100-40GB", ""),
    ("4xA100-40GB", ""),
    ("A100-40GB,A100-40GB", ""),
    ("1xH100-80GB", "", ("pages", True)),
    ("0", "dynamic"),
    ("2xA100-40GB", ""),
    ("A100-40GB", "dynamic"),
    ("A100-40GB,A100-40GB", "dynamic"),
    ("A100-40GB,A100-40GB", "dynamic", ("pages", True)),
    ("1xA100-40GB,1xA100-40GB", "dynamic"),
    ("4xA100-40GB,4xA100-40GB,4xA100-40GB,2xH100-80GB,4xT4", ""),
}


@pytest.fixture(autouse=True)
def valid_states() -> Iterator[None]:
    """Checks the slicer's state after each event; a rule that is broken ends the controller, and with it the test.

    Only while a test of this folder runs: other tests of the process count what the controller calls.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Slicer, "handle", handle_and_validate)
        yield


@pytest.fixture(scope="session")
def node_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for the nodes' files, in memory if it can be: agents replace files, and a disk delays that each time."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path_factory.getbasetemp()
    folder = Path(tempfile.mkdtemp(prefix="tessera-", dir=memory))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def booted_labs(node_files: Path) -> Iterator[BootedLabs]:
    """Returns the clusters that boot once."""
    labs = BootedLabs(node_files)
    yield labs
    labs.close()


@pytest.fixture
def in_lab(node_files: Path, booted_labs: BootedLabs) -> InLab:
    """Runs a scenario in a cluster of the given nodes on virtual time, which has just booted."""

    def run(
        scenario: Scenario,
        nodes: str = "4xA100-40GB",
        cluster_type: Callable[..., SimulatedCluster] = SimulatedCluster,
        *,
        own: bool = False,
        mig_config: str = "dynamic",
        **options: Any,
    ) -> Any:
        def boot(scenario: Scenario, folder: Path) -> Coroutine[Any, Any, Any]:
            return play(scenario, nodes, folder, cluster_type, mig_config=mig_config, **options)

        kind = (nodes, mig_config, *options.items())
        if own or cluster_type not in TYPES or kind not in COMMON:
            with tempfile.TemporaryDirectory(dir=node_files) as folder:
                return run_virtual(boot(scenario, Path(folder)))
        return booted_labs.run((*kind, cluster_type), boot, scenario)

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
def with_drivers(node_files: Path) -> Callable[..., None]:
    """Runs a scenario in a cluster of machines without drivers."""
    return partial(driverlab.play, node_files)


@pytest.fixture
def with_new_nodes(node_files: Path, booted_labs: BootedLabs) -> Callable[..., None]:
    """Runs a scenario in a cluster that begins with one node without cards."""

    def run(scenario: new_nodes.Scenario, *, drivers: bool = True, **options: Any) -> None:
        def boot(scenario: new_nodes.Scenario, folder: Path) -> Coroutine[Any, Any, None]:
            return new_nodes.play(scenario, folder, drivers=drivers, **options)

        if options:
            run_virtual(boot(scenario, Path(tempfile.mkdtemp(dir=node_files))))
        else:
            booted_labs.run(("new nodes", drivers), boot, scenario)

    return run
