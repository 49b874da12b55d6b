"""Ways to a Prometheus: its address, or a Service of the cluster through the API server's proxy."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from tessera.errors import UserError
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError, Forbidden
from tessera.kube.resources import SERVICES
from tessera.limits.usage import PROMETHEUS_ANSWER
from tessera.text import one_line
from tessera.usage.prometheus import Query

if TYPE_CHECKING:
    from aiohttp import StreamReader

#: Port of a Prometheus, where the Service is named without one.
_PORT = 9090
#: ``monitoring/prometheus-server:80``: names of a namespace and a Service, and a port by number or name.
_SERVICE = re.compile(
    r"([a-z0-9][a-z0-9-]{0,62})/([a-z0-9][a-z0-9-]{0,62})(?::([0-9]{1,5}|[a-z0-9][a-z0-9-]{0,14}))?\Z"
)
_QUERY = "/api/v1/query"
#: Seconds for an answer.
_TIMEOUT = 60.0


class PrometheusService(NamedTuple):
    """The Service of a Prometheus."""

    namespace: str
    name: str
    port: str

    @property
    def label(self) -> str:
        """The Service in messages."""
        return f"Prometheus {self.namespace}/{self.name}"


def parse_service(text: str) -> PrometheusService | None:
    """The Service that a user names as ``NAMESPACE/SERVICE[:PORT]``; ``None`` for a text of another form."""
    found = _SERVICE.match(text)
    return None if found is None else PrometheusService(found[1], found[2], found[3] or str(_PORT))


def query_service(client: Client, service: PrometheusService) -> Query:
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
