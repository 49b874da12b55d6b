"""Tessera is removed from a whole cluster: nothing stays behind, and running pods run on."""

import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.leftovers import Snapshot, differences, snapshot
from tests.support.virtual_lab import COMMANDS, VirtualLab

from tessera.api.names import GATE, SLICE_CONDITION
from tessera.cli.uninstall.removal import RemovalOptions, remove_all
from tessera.cli.uninstall.results import Done, Left, Result, Unfinished
from tessera.clock import LoopClock
from tessera.kube.resources import NODES, PODS
from tessera_lab.cluster.cluster import ClusterOptions, SimulatedCluster
from tessera_lab.cluster.options import parse_nodes
from tessera_lab.installation.install import build_entrypoint, install_tessera
from tessera_lab.simulation.virtual_time import run_virtual

#: Resources that kubelet may go on showing with 0.
ZERO = ': "0"'


class Removable(VirtualLab):
    """A lab that knows how it looked before Tessera came.

    Attributes:
        folder: all files of its nodes.
        bare: the cluster before the installation.
    """

    def __init__(self, cluster: SimulatedCluster, folder: Path, bare: Snapshot) -> None:
        super().__init__(cluster)
        self.folder = folder
        self.bare = bare

    async def uninstall(self, client: Any = None, **options: Any) -> list[Result]:
        """Runs the command's work; returns all that it says."""
        client = client or self.cluster.client("tessera-uninstall")
        return [each async for each in remove_all(client, self.clock, RemovalOptions(**options))]

    async def leftovers(self) -> list[str]:
        """What differs from the time before the installation; names of resources at 0 are kubelet's."""
        found = differences(self.bare, await snapshot(self.client, [self.folder]))
        return [each for each in found if not (each.startswith("+") and each.rstrip(",").endswith(ZERO))]


Scenario = Callable[[Removable], Awaitable[None]]


@pytest.fixture
def removable(tmp_path: Path) -> Callable[..., None]:
    """Runs a scenario in a cluster in which Tessera was installed after a snapshot."""

    def run(
        scenario: Scenario,
        nodes: str = "2*1xA100-40GB",
        cluster_type: Callable[..., SimulatedCluster] = SimulatedCluster,
        **options: Any,
    ) -> None:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))

        async def play() -> None:
            cluster = cluster_type(
                parse_nodes(nodes),
                clock=LoopClock(1_800_000_000),
                options=ClusterOptions(cdi=folder, **options),
                entrypoint=build_entrypoint(COMMANDS),
            )
            async with cluster.running():
                client = cluster.client("test")
                while len((await client.list(NODES)).items) < len(cluster.nodes):
                    await cluster.clock.sleep(1)
                await cluster.clock.sleep(30)
                lab = Removable(cluster, folder, await snapshot(client, [folder]))
                await install_tessera(cluster.client("install"))
                async with lab.watched.running():
                    with_cards = [name for name, node in cluster.nodes.items() if node.machine is not None]
                    await lab.until(lambda: all(map(lab.offers, with_cards)), "every node has joined")
                    await lab.until(lab.trusts_webhook, "the webhook is trusted")
                    await scenario(lab)

        run_virtual(play())

    return run


def test_an_unused_installation_leaves_nothing(removable: Callable[..., None]) -> None:
    async def scenario(lab: Removable) -> None:
        results = await lab.uninstall()
        assert [each for each in results if isinstance(each, Left)] == []
        left = await lab.leftovers()
        assert not left, "\n".join(left)
        assert await lab.uninstall() == [], "a second run has nothing to do"

    removable(scenario)
