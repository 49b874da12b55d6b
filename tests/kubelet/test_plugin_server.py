"""A device stream ends whole, however it is ended."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc.aio
import pytest

from tessera.kubelet.interfaces import ContainerAllocateResponse, Device, PluginOptions, PreferredRequest
from tessera.kubelet.plugin_server import PluginServer, iterate_until, start_grpc
from tessera.kubelet.proto import deviceplugin_pb2 as dp
from tessera.kubelet.sockets import is_listening
from tessera.kubelet.wire import LIST_AND_WATCH


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
        async for _ in iterate_until(asyncio.Event(), lists()):
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


class SlowToEnd:
    """A device plugin whose list takes some turns of the event loop to end."""

    resource_name = "nvidia.com/gpu"
    options = PluginOptions()

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def list_and_watch(self) -> AsyncIterator[Sequence[Device]]:
        try:
            yield [Device(id="a")]
            await asyncio.Event().wait()
        finally:
            for _ in range(30):
                await asyncio.sleep(0)
            self.ended.set()

    async def get_preferred_allocation(self, requests: Sequence[PreferredRequest]) -> Sequence[Sequence[str]]:
        return [() for _ in requests]

    async def allocate(self, requests: Sequence[Sequence[str]]) -> Sequence[ContainerAllocateResponse]:
        return [ContainerAllocateResponse() for _ in requests]

    async def pre_start_container(self, device_ids: Sequence[str]) -> None:
        pass


def test_a_server_that_stops_under_a_stream_logs_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The server says that it closes, and gRPC cancels the call while the list ends."""
    plugin = SlowToEnd()

    async def story() -> None:
        server = PluginServer(plugin, tmp_path / "p.sock", lambda: None)
        await server.start()
        async with grpc.aio.insecure_channel(f"unix:{server.socket}") as channel:
            call = LIST_AND_WATCH.stream(channel)(dp.Empty())
            first = await call.read()
            assert isinstance(first, dp.ListAndWatchResponse)
            await server.stop()
            await plugin.ended.wait()
            for _ in range(30):
                await asyncio.sleep(0)

    with caplog.at_level(logging.ERROR):
        asyncio.run(story())
    assert caplog.records == []


@pytest.mark.parametrize("cancels", [1, 2])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_server_whose_start_is_cancelled_does_not_listen(tmp_path: Path, steps: int, cancels: int) -> None:
    async def story() -> None:
        socket = tmp_path / "p.sock"
        server = grpc.aio.server()
        server.add_insecure_port(f"unix:{socket}")
        start = asyncio.create_task(start_grpc(server))
        for _ in range(steps):
            await asyncio.sleep(0)
        for _ in range(cancels):
            start.cancel()
            await asyncio.sleep(0)
        await asyncio.wait({start})
        try:
            assert start.cancelled() is not is_listening(socket)
        finally:
            await server.stop(None)  # gRPC waits for ever when one that runs is collected as garbage

    asyncio.run(story())
