"""Reads the page of a pod that the API server passes on: whole, or not at all."""

import aiohttp

from tessera_lab.limits import POD_PAGE


async def read_page(answer: aiohttp.ClientResponse) -> bytes:
    """The body of an answer, to its end.

    A single read of aiohttp's stream gives only what has arrived.

    Raises:
        ConnectionError: it has more bytes than ``POD_PAGE``.
        aiohttp.ClientError: the connection broke before the end.
    """
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > POD_PAGE:
            raise ConnectionError(f"the page of {answer.url} is too long: {POD_PAGE} are allowed; ask for less of it")
    return bytes(body)
