"""A device stream ends whole, however it is ended."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from tessera.kubelet.plugin_server import until
from tessera.kubelet.seam import Device


@pytest.mark.parametrize("cancels", [1, 2, 3])
def test_a_stream_that_is_cancelled_again_while_it_ends_closes_its_list(cancels: int) -> None:
    """GRPC cancels a call when its server stops, and once more when the event loop ends."""
    waiting = asyncio.Event()
    closed = []

    async def lists() -> AsyncIterator[Sequence[Device]]:
        try:
            yield [Device(id="a")]
            waiting.set()
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            closed.append(True)

    async def stream() -> None:
        async for _ in until(asyncio.Event(), lists()):
            pass

    async def story() -> None:
        call = asyncio.create_task(stream())
        await waiting.wait()
        for _ in range(cancels):
            call.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await call
        assert closed

    asyncio.run(story())
