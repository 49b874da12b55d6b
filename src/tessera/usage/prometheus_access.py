"""Ways to a Prometheus: its address, or a Service of the cluster through the API server's proxy."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from tessera.errors import UserError
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError, Forbidden
from tessera.kube.resources import SERVICES, Service
from tessera.limits.usage import PROMETHEUS_ANSWER
from tessera.text import one_line
from tessera.usage.prometheus import Query

if TYPE_CHECKING:
    from aiohttp import StreamReader

#: Labels of a Prometheus' Service: of its charts and of its operator.
SELECTORS = ("app.kubernetes.io/name=prometheus", "operated-prometheus=true")
#: Port of a Prometheus that no port of its Service names.
_PORT = 9090
#: Names of the port; others are of its sidecars.
_PORT_NAMES = ("http-web", "web", "http")
_QUERY = "/api/v1/query"
#: Seconds for an answer.
_TIMEOUT = 60.0


class FoundService(NamedTuple):
    """A Service that looks like a Prometheus."""

    namespace: str
    name: str
    port: int

    @property
    def label(self) -> str:
        """The Service in messages."""
        return f"Prometheus {self.namespace}/{self.name}"


async def find_service(client: Client) -> FoundService | None:
    """The first Service of a Prometheus, by namespace and name; ``None`` if the user sees none."""
    found: list[Service] = []
    for selector in SELECTORS:
        try:
            found += (await client.list(SERVICES, label_selector=selector)).items
        except Forbidden:
            return None
    if not found:
        return None
    chosen = min(found, key=lambda each: (each.metadata.namespace, each.metadata.name))
    ports = {each.name: each.port for each in chosen.spec.ports}
    port = next((ports[name] for name in _PORT_NAMES if name in ports), next(iter(ports.values()), _PORT))
    return FoundService(chosen.metadata.namespace, chosen.metadata.name, port)


def query_service(client: Client, service: FoundService) -> Query:
    """Asks a Service through the API server; this needs the right ``get services/proxy`` in its namespace."""
    path = f"{SERVICES.path(service.namespace, f'{service.name}:{service.port}', 'proxy')}{_QUERY}"

    async def query(parameters: Mapping[str, str]) -> bytes:
        try:
            return (await client.request("GET", path, query=list(parameters.items()))).body
        except Forbidden:
            raise
        except ApiError as error:
            raise UserError(f"{service.label} does not answer: {one_line(error)}") from None

    return query


@asynccontextmanager
async def query_address(url: str) -> AsyncIterator[Query]:
    """Asks a Prometheus by its address, such as ``http://localhost:9090``."""
    import aiohttp

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT)) as session:

        async def query(parameters: Mapping[str, str]) -> bytes:
            try:
                async with session.get(f"{url.rstrip('/')}{_QUERY}", params=parameters) as answer:
                    return await _read(answer.content)
            except (TimeoutError, aiohttp.ClientError, ValueError) as error:
                text = one_line(error) or type(error).__name__
                raise UserError(f"Prometheus {one_line(url)} does not answer: {text}") from None

        yield query


async def _read(content: "StreamReader") -> bytes:
    found = bytearray()
    async for chunk in content.iter_chunked(1 << 16):
        found += chunk
        if len(found) > PROMETHEUS_ANSWER:
            break
    return bytes(found)
