"""Four real registries over one folder of images: open, with Basic, with tokens, with TLS of a private authority."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.driver.registry.programs import Image, registry
from tests.driver.registry.servers import HTPASSWD, TokenServer
from tests.kube.certificates import Authority

from tessera.clock import SystemClock
from tessera.driver.registry.client import RegistryClient
from tessera.driver.registry.wire import RegistryHttp, Trust

#: What is in all of them.
IMAGES = {
    "nvidia/driver:both": Image(("amd64", "arm64")),
    "nvidia/driver:arm": Image(("arm64",)),
    "nvidia/driver:docker-both": Image(("amd64", "arm64"), format="v2s2"),
    "nvidia/driver:docker-amd": Image(format="v2s2"),
    "nvidia/driver:index-of-one": Image(("arm64",), variant="v8", index=True),
    "alone:1": Image(content="other"),
}


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of images, filled through the API."""
    folder = tmp_path_factory.mktemp("registry")
    with registry(folder / "storage") as running:
        running.fill(folder, IMAGES)
    return folder / "storage"


@pytest.fixture(scope="session")
def plain(stored: Path) -> Iterator[str]:
    with registry(stored) as running:
        yield running.host


@pytest.fixture(scope="session")
def basic(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    file = tmp_path_factory.mktemp("basic") / "htpasswd"
    file.write_text(HTPASSWD)
    with registry(stored, auth={"htpasswd": {"realm": "tests", "path": str(file)}}) as running:
        yield running.host


@pytest.fixture(scope="session")
def token_registry(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, TokenServer]]:
    server = TokenServer(tmp_path_factory.mktemp("tokens"))
    try:
        with registry(stored, **server.settings) as running:
            yield running.host, server
    finally:
        server.close()


@pytest.fixture
async def tokens(token_registry: tuple[str, TokenServer]) -> AsyncIterator[TokenServer]:
    """The token server, answering in the test's own loop."""
    server = token_registry[1]
    server.anonymous, server.lifetime = False, 300
    async with server.running():
        yield server


@pytest.fixture(scope="session")
def tls(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Host, and the authority's certificate."""
    folder, authority = tmp_path_factory.mktemp("tls"), Authority()
    pair = authority.issue("127.0.0.1")
    (folder / "tls.pem").write_bytes(pair.pem)
    (folder / "tls.key").write_bytes(pair.key)
    files = {"certificate": str(folder / "tls.pem"), "key": str(folder / "tls.key")}
    with registry(stored, http={"tls": files}) as running:
        yield running.host, authority.pem.decode()


@pytest.fixture
async def client() -> AsyncIterator[RegistryClient]:
    """Plain HTTP everywhere, and a timeout of half a second."""
    made = RegistryClient(RegistryHttp(Trust(plain=("*",)), total=5.0, environment={}), SystemClock())
    yield made
    await made.close()
