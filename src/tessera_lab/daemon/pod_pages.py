"""Gets pages of the pods that listen on this machine, for the API server's proxy."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp

from tessera.kube.client.requests import Response
from tessera_lab.apiserver.interfaces import GetPage
from tessera_lab.cluster.page_body import read_page

#: Seconds for a page.
_TIMEOUT = aiohttp.ClientTimeout(total=30.0)


@asynccontextmanager
async def pod_page_getter(network: str) -> AsyncIterator[GetPage]:
    """A function that gets pages of pods whose address begins with ``network``, such as ``127.9``."""
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:

        async def get(address: str, port: int, path: str, headers: Mapping[str, str]) -> Response:
            if not address.startswith(f"{network}."):
                raise LookupError(address)
            url = f"http://{address}:{port}{path}"
            try:
                async with session.get(url, headers=headers, allow_redirects=False) as answer:
                    body = await read_page(answer)
                    kind = answer.headers.get("content-type", "application/octet-stream")
                    return Response(status=answer.status, headers={"content-type": kind}, body=body)
            except (aiohttp.ClientError, TimeoutError) as error:
                raise ConnectionError(str(error)) from error

        yield get
