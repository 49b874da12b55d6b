"""By default every process is reached by IPv4 and by IPv6: a pod's address may be either."""

import asyncio
import socket
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import aiohttp
import pytest
from tests.support.ports import free_port

from tessera.controller.satellite import ControllerOptions
from tessera.serving.status_server import serve_status
from tessera.webhook.base import WebhookOptions

Serve = Callable[[int], Coroutine[Any, Any, None]]


class Process:
    """A process that is ready and has no metrics."""

    def metrics_text(self) -> bytes:
        return b""

    def unready_reason(self) -> str:
        return ""


def agent(port: int) -> Coroutine[Any, Any, None]:
    return serve_status(Process(), port)


def controller(port: int) -> Coroutine[Any, Any, None]:
    address = ControllerOptions(identity="c").http_address
    return serve_status(Process(), port, address=address)


def webhook(port: int) -> Coroutine[Any, Any, None]:
    return serve_status(Process(), port, address=WebhookOptions().address)


@pytest.mark.parametrize("serve", [agent, controller, webhook], ids=lambda each: each.__name__)
async def test_every_address_of_the_machine_answers(serve: Serve) -> None:
    port = free_port()
    server = asyncio.create_task(serve(port))
    try:
        async with aiohttp.ClientSession() as session:
            for host in loopbacks():
                assert await status(session, f"http://{host}:{port}/readyz") == 200
    finally:
        server.cancel()
        await asyncio.wait({server})


async def status(session: aiohttp.ClientSession, url: str) -> int:
    """The status of the answer of a server that begins to listen about now."""
    async with asyncio.timeout(60):
        while True:
            try:
                async with session.get(url) as answer:
                    return answer.status
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0)


def loopbacks() -> Sequence[str]:
    """Both, or the one that this machine has."""
    found = ["127.0.0.1"]
    with suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        found.append("[::1]")
    return found
