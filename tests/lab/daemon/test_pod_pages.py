"""Pages of pods come whole through the lab's API server, or as an error: never cut."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from tessera_lab.daemon.serve import pod_page_getter
from tessera_lab.limits import POD_PAGE

PIECE = b"x" * 65_536


@asynccontextmanager
async def pod(size: int, promised: int) -> AsyncIterator[int]:
    """A pod whose page has ``size`` bytes in pieces, of ``promised`` in its header; gives its port."""

    async def page(request: web.BaseRequest) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Length": str(promised)})
        await answer.prepare(request)
        for sent in range(0, size, len(PIECE)):
            await answer.write(PIECE[: size - sent])
        if request.transport is not None and size < promised:
            request.transport.close()
        return answer

    runner = web.ServerRunner(web.Server(page))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("size", [0, 1, 200_000, 3_000_000, int(POD_PAGE)])
async def test_a_page_up_to_the_limit_comes_whole(size: int) -> None:
    async with pod(size, size) as port, pod_page_getter("127.0") as get:
        answer = await get("127.0.0.1", port, "/metrics", {})
    assert (answer.status, len(answer.body)) == (200, size)


async def test_a_longer_page_is_an_error_that_names_the_limit() -> None:
    async with pod(int(POD_PAGE) + 1, int(POD_PAGE) + 1) as port, pod_page_getter("127.0") as get:
        with pytest.raises(ConnectionError, match=r"is too long: at most 33,554,432 bytes are allowed"):
            await get("127.0.0.1", port, "/metrics", {})


async def test_a_page_that_ends_early_is_an_error() -> None:
    async with pod(100_000, 200_000) as port, pod_page_getter("127.0") as get:
        with pytest.raises(ConnectionError):
            await get("127.0.0.1", port, "/metrics", {})
