"""A cluster of one node behind its HTTPS front, and kubectl as its users run it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.conformance_api import Kubectl

from tessera.clock import SystemClock
from tessera.kube.client import Client
from tessera.kube.resources import PODS
from tessera_lab.apiserver.authz.certificates import CertificateAuthority
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.http_server import HttpServer, kubeconfig
from tessera_lab.cluster.cluster import ADMIN, SimulatedCluster
from tessera_lab.cluster.options import parse_nodes

#: Seconds for a pod to start.
TIMEOUT = 60.0


class RunningCluster:
    """The cluster.

    Attributes:
        cluster: its parts.
        url: of its API server.
        authority: of the server and of users.
    """

    def __init__(self, cluster: SimulatedCluster, url: str, authority: CertificateAuthority, home: Path) -> None:
        self.cluster = cluster
        self.url = url
        self.authority = authority
        self.client: Client = cluster.client("test")
        self._home = home

    def kubectl(self, user: UserInfo = ADMIN) -> Kubectl:
        """Kubectl as a user in the namespace ``default``."""
        pair = self.authority.issue_client_certificate(user.name, user.groups[:1])
        path = self._home / f"{user.name}.kubeconfig"
        path.write_text(kubeconfig(self.url, self.authority, pair))
        return Kubectl(path, "default", self._home)

    async def run(self, name: str, **changes: Any) -> dict[str, Any]:
        """A pod of one container, once it runs."""
        container = {"name": "c", "image": "server", **changes.pop("container", {})}
        pod = {"metadata": {"name": name, **changes}, "spec": {"containers": [container]}}
        await self.client.create(PODS.as_dicts(), pod, "default")
        async with asyncio.timeout(TIMEOUT):
            while True:
                found = await self.client.get(PODS.as_dicts(), name, "default")
                if (found.get("status") or {}).get("phase") == "Running":
                    return dict(found)
                await asyncio.sleep(0.02)


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningCluster]:
    clock = SystemClock()
    cluster, authority = SimulatedCluster(parse_nodes("2xT4"), clock=clock), CertificateAuthority(clock.now())
    front = HttpServer(cluster.server, authority)
    await front.start()
    try:
        async with cluster.running():
            yield RunningCluster(cluster, front.url, authority, tmp_path)
    finally:
        await front.close()


@pytest.fixture
def kubectl(running: RunningCluster) -> Kubectl:
    """Kubectl as the administrator."""
    return running.kubectl()
