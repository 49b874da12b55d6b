"""One API server for all tests here: any, by kubeconfig, or a lab of our own.

``TESSERA_CONFORMANCE_KUBECONFIG`` names a kubeconfig with cluster-admin rights; without it a lab without nodes is
started behind its HTTPS front. The tests say what Kubernetes' API does, so they hold against both. Each test that
stores anything has a namespace of its own; what is not namespaced bears a name that nobody else has and is deleted.
"""

import asyncio
import logging
import os
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.support.conformance_api import MERGE, TIMEOUT, Api, Kubectl
from tests.support.driver_devices import Devices
from tests.support.pod_claims import Claims

from tessera.cli.base.kubeconfig import load_config
from tessera.clock import SystemClock
from tessera.kube import event_recorder
from tessera.kube.client import Client
from tessera.kube.credentials import Credential, StaticCredentials
from tessera.kube.http import HttpTransport
from tessera_lab.apiserver.authz.certificates import CertificateAuthority
from tessera_lab.apiserver.main.http_server import HttpServer
from tessera_lab.cluster.cluster import SimulatedCluster
from tessera_lab.daemon.serve import kubeconfig as lab_kubeconfig


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The server under test."""
    given = os.environ.get("TESSERA_CONFORMANCE_KUBECONFIG")
    if given:
        yield Path(given)
        return
    path = tmp_path_factory.mktemp("lab") / "kubeconfig"
    ready, loop, ended = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

    def usable(text: str) -> None:
        path.write_text(text)
        ready.set()

    def is_other_thread(record: logging.LogRecord) -> bool:
        return record.thread != thread.ident

    # The lab outlives the captured streams of single tests: what its event recorder drops is not logged to them.
    log = logging.getLogger(event_recorder.__name__)
    thread = threading.Thread(target=loop.run_until_complete, args=(_lab(usable, ended),), daemon=True)
    log.addFilter(is_other_thread)
    thread.start()
    assert ready.wait(TIMEOUT)
    yield path
    loop.call_soon_threadsafe(ended.set)
    thread.join(TIMEOUT)
    loop.close()
    log.removeFilter(is_other_thread)


async def _lab(usable: Callable[[str], None], ended: asyncio.Event) -> None:
    """A cluster without nodes until told to end; hands out its kubeconfig."""
    clock = SystemClock()
    cluster, authority = SimulatedCluster([], clock=clock), CertificateAuthority(clock.now())
    front = HttpServer(cluster.server, authority)
    await front.start()
    try:
        async with cluster.running():
            usable(lab_kubeconfig(front.url, authority))
            await ended.wait()
    finally:
        await front.close()


@pytest.fixture
async def transport(kubeconfig: Path) -> AsyncIterator[HttpTransport]:
    """Connections of one test."""
    made = HttpTransport(load_config(clock=SystemClock(), kubeconfig=str(kubeconfig)))
    yield made
    await made.close()


@pytest.fixture
def api(transport: HttpTransport) -> Api:
    """Raw requests."""
    return Api(transport)


@pytest.fixture
async def as_token(kubeconfig: Path) -> AsyncIterator[Callable[[str], Api]]:
    """Makes raw requests with a bearer token."""
    transports: list[HttpTransport] = []

    def made(token: str) -> Api:
        admin = load_config(clock=SystemClock(), kubeconfig=str(kubeconfig))
        credentials = StaticCredentials(Credential(authorization=f"Bearer {token}"))
        transports.append(HttpTransport(msgspec.structs.replace(admin, credentials=credentials)))
        return Api(transports[-1])

    yield made
    for transport in transports:
        await transport.close()


@pytest.fixture
def client(transport: HttpTransport) -> Client:
    """Tessera's own client."""
    return Client(transport, field_manager="tessera-conformance", clock=SystemClock())


@pytest.fixture
async def namespace(api: Api) -> AsyncIterator[str]:
    """A namespace of this test's own, in which pods can be created."""
    body = {"metadata": {"generateName": "tessera-conformance-"}}
    name = (await api("POST", "/api/v1/namespaces", body)).ok()["metadata"]["name"]
    await api.until(f"/api/v1/namespaces/{name}/serviceaccounts/default", lambda answer: answer.status == 200)
    yield name
    await api("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def core(namespace: str) -> str:
    """Path of the namespace's core resources."""
    return f"/api/v1/namespaces/{namespace}"


@pytest.fixture
def kubectl(kubeconfig: Path, namespace: str, tmp_path: Path) -> Kubectl:
    """The command line in the test's namespace."""
    return Kubectl(kubeconfig, namespace, tmp_path)


@pytest.fixture
def unique() -> str:
    """A word that no other test uses, letters first."""
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.fixture
async def cleanup(api: Api) -> AsyncIterator[Callable[[str], None]]:
    """Notes paths of objects that are deleted after the test."""
    paths: list[str] = []
    yield paths.append
    for path in reversed(paths):
        await api("DELETE", path)


@pytest.fixture
async def make_node(api: Api, unique: str) -> AsyncIterator[Callable[..., Awaitable[str]]]:
    """Makes Ready nodes without a kubelet; pods reach them only by ``nodeSelector``."""
    made: list[str] = []

    async def make(cpu: str = "4") -> str:
        name = f"{unique}-{len(made)}"
        made.append(name)
        (await api("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": {"tessera-test": unique}}})).ok()
        amounts = {"cpu": cpu, "memory": "4Gi", "pods": "110"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastTransitionTime": None}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        (await api("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, content=MERGE)).ok()
        await api.until(f"/api/v1/nodes/{name}", lambda answer: not answer.body.get("spec", {}).get("taints"))
        return name

    yield make
    for name in made:
        await api("DELETE", f"/api/v1/nodes/{name}")


@pytest.fixture
def claims(api: Api, namespace: str, unique: str) -> Claims:
    return Claims(api, namespace, unique)


@pytest.fixture
async def devices(api: Api, claims: Claims, unique: str, cleanup: Callable[[str], None]) -> Devices:
    made = Devices(api, claims, unique, cleanup)
    await made.device_class()
    return made
