"""Clusters on virtual time; see :mod:`tests.support.virtual_lab`."""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import driverlab, new_nodes
from tests.support.virtual_lab import COMMANDS, Scenario, VirtualLab

from tessera.api.names import is_on_demand
from tessera.clock import LoopClock
from tessera.kube.resources import NAMESPACES
from tessera_lab.cluster.cluster import ClusterOptions, SimulatedCluster
from tessera_lab.cluster.options import parse_nodes
from tessera_lab.installation.install import build_entrypoint, install_tessera
from tessera_lab.simulation.virtual_time import run_virtual


@pytest.fixture
def in_lab(tmp_path: Path) -> Callable[..., None]:
    """Runs a scenario in a fresh cluster of the given nodes on virtual time."""

    def run(
        scenario: Scenario,
        nodes: str = "4xA100-40GB",
        cluster_type: Callable[..., SimulatedCluster] = SimulatedCluster,
        **options: Any,
    ) -> None:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))

        async def play() -> None:
            clock = LoopClock(1_800_000_000)
            cluster = cluster_type(
                parse_nodes(nodes),
                clock=clock,
                options=ClusterOptions(cdi=folder, **options),
                entrypoint=build_entrypoint(COMMANDS),
            )
            async with cluster.running():
                await install_tessera(cluster.client("install"))
                lab = VirtualLab(cluster)
                async with lab.watched.running():
                    with_cards = [name for name, node in cluster.nodes.items() if node.machine is not None]
                    await lab.until(lambda: all(map(lab.tells, with_cards)), "every node has told what it has")
                    if is_on_demand(cluster.options.mig_config):
                        await lab.until(lambda: all(map(lab.offers, with_cards)), "every node has joined")
                    await lab.until(lab.trusts_webhook, "the webhook is trusted")
                    await scenario(lab)

        run_virtual(play())

    return run


@pytest.fixture
def managed(in_lab: Callable[..., None]) -> Callable[..., None]:
    """Runs a scenario on nodes with whole cards, where the namespace default is managed."""

    def run(scenario: Scenario, nodes: str = "4xA100-40GB", **options: Any) -> None:
        async def with_label(lab: Any) -> None:
            await lab.becomes({"nvidia.com/gpu": 4})
            labels = {"tessera.dev/placement": "managed"}
            await lab.client.merge_patch(NAMESPACES, "default", {"metadata": {"labels": labels}})
            await scenario(lab)

        in_lab(with_label, nodes=nodes, mig_config="", **options)

    return run


@pytest.fixture
def with_drivers(tmp_path: Path) -> Callable[..., None]:
    """Runs a scenario in a cluster of machines without drivers."""
    return partial(driverlab.play, tmp_path)


@pytest.fixture
def with_new_nodes(tmp_path: Path) -> Callable[..., None]:
    """Runs a scenario in a cluster that begins with one node without cards."""
    return partial(new_nodes.play, tmp_path)
