"""Runs stories of driver builds in a simulated cluster, on virtual time."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from tessera.driver.build.job import SERVICE_ACCOUNT
from tessera.driver.driver_sets import NAMESPACE
from tessera.kube.client import Client
from tessera.kube.resources import NAMESPACES, SERVICE_ACCOUNTS
from tessera_lab.cluster.cluster import SimulatedCluster
from tessera_lab.simulation.virtual_time import run_virtual


class ClusterWithBuilds(Protocol):
    """A simulated cluster and the test's client for it."""

    cluster: SimulatedCluster
    client: Client


C = TypeVar("C", bound=ClusterWithBuilds)


def play_in_build_cluster(make_cluster: Callable[[], C], story: Callable[[C], Awaitable[None]]) -> None:
    """Plays the story in a new cluster that has the namespace and the service account of builds."""

    async def whole() -> None:
        made = make_cluster()
        async with made.cluster.running():
            await made.client.create(NAMESPACES.as_dicts(), {"metadata": {"name": NAMESPACE}})
            account = {"metadata": {"name": SERVICE_ACCOUNT}}
            await made.client.create(SERVICE_ACCOUNTS.as_dicts(), account, NAMESPACE)
            await story(made)

    run_virtual(whole())
