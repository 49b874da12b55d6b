"""The agent reads pages of pods that hold cards, over real HTTP, from servers that may be hostile."""

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from tessera.api.nodes.usage import Bucket, NodeUsage, ServiceUsage
from tessera.clock import LoopClock
from tessera.kube.resources import Pod
from tessera.signals.agent.service_metrics import PageError
from tessera.signals.agent.service_pages import ServicePages, page_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PAGE = 'vllm:num_requests_running 2\nvllm:num_requests_waiting 5\nvllm:request_success_total{a="b"} 10\n'


def pod(port: int | str = 8000, *, uid: str = "u", ip: str = "127.0.0.1", **facts: Any) -> Pod:
    told = {"prometheus.io/scrape": "true", "prometheus.io/port": str(port), **facts.pop("annotations", {})}
    metadata = {"name": "vllm-0", "namespace": "team", "uid": uid, "annotations": told}
    return msgspec.convert({"metadata": metadata, "spec": facts, "status": {"podIP": ip}}, Pod)


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[int]:
    """A model server's port."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        return await handler(request)  # type: ignore[arg-type]

    runner = web.ServerRunner(web.Server(handle), shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def text(request: web.Request) -> web.StreamResponse:
    del request
    return web.Response(text=PAGE)


async def read(*pods: Pod, holders: tuple[str, ...] = ("u",)) -> ServicePages:
    pages = ServicePages(LoopClock(epoch=0), lambda: pods, lambda: holders)
    async with aiohttp.ClientSession(auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()) as session:
        await pages.read_all(session)
    return pages


async def test_the_load_of_a_pod_that_holds_a_card_is_read() -> None:
    async with serving(text) as port:
        assert (await read(pod(port))).usages == [
            ServiceUsage(namespace="team", pod="vllm-0", uid="u", running=2.0, waiting=5.0)
        ]


async def test_no_other_pod_is_asked() -> None:
    asked: list[str] = []

    async def note(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return web.Response(text=PAGE)

    async with serving(note) as port:
        without = pod(port, annotations={"prometheus.io/scrape": "false"})
        assert (await read(pod(port, uid="holds nothing"), without, pod(port, ip=""))).usages == []
        (refused,) = (await read(pod(port, hostNetwork=True))).usages
    assert asked == []
    assert "node's network" in refused.error


@pytest.mark.parametrize("port", ["", "0", "65536", "http", "80 ", "1e3", "8000/@evil"])
def test_a_wrong_port_is_named(port: str) -> None:
    with pytest.raises(PageError, match="annotation prometheus"):
        page_of(pod(port))


@pytest.mark.parametrize("path", ["metrics", "/a b", "/a?x=y", "//evil@host\n", "/" + "a" * 300])
def test_a_wrong_path_is_named(path: str) -> None:
    with pytest.raises(PageError, match="annotation prometheus"):
        page_of(pod(annotations={"prometheus.io/path": path}))


def test_an_address_is_the_pods_own() -> None:
    assert page_of(pod(1, ip="fd00::1", annotations={"prometheus.io/path": "/m"})) == "http://[fd00::1]:1/m"


@pytest.mark.parametrize(
    "ip",
    [
        "169.254.169.254",
        "fe80::1",
        "fe80::1%eth0",
        "::ffff:169.254.169.254",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "metadata.google.internal",
        "10.0.0.1/x",
        "10.0.0.1:80",
    ],
)
def test_no_address_that_pods_do_not_have_is_asked(ip: str) -> None:
    with pytest.raises(PageError, match="the pod's IP is"):
        page_of(pod(ip=ip))


async def endless(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    try:
        while True:
            await answer.write(b"x" * 65536)
    except (ConnectionError, asyncio.CancelledError):
        return answer


async def bomb(request: web.Request) -> web.StreamResponse:
    del request
    body = gzip.compress(b"a" * 10_000_000)
    return web.Response(body=body, headers={"Content-Encoding": "gzip"})


async def elsewhere(request: web.Request) -> web.StreamResponse:
    del request
    raise web.HTTPFound("http://169.254.169.254/latest/meta-data")


async def lies(request: web.Request) -> web.StreamResponse:
    del request
    return web.Response(text="vllm:num_requests_waiting NaN\n")


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (endless, "has more than"),
        (bomb, "compressed"),
        (elsewhere, "status 302"),
        (lies, "not from 0"),
    ],
)
async def test_a_hostile_page_is_an_error_of_its_pod(handler: Handler, error: str) -> None:
    async with serving(handler) as port, serving(text) as good:
        pages = ServicePages(LoopClock(epoch=0), lambda: [pod(port), pod(good, uid="v")], lambda: {"u", "v"})
        async with aiohttp.ClientSession(auto_decompress=False) as session:
            await pages.read_all(session)
        told = {each.uid: each for each in pages.usages}
        assert error in told["u"].error
        assert told["u"].waiting is None
        assert told["v"].waiting == 5.0


@pytest.mark.parametrize(
    "name",
    ["vllm:num_requests_running", "vllm:request_success_total", 'sglang:time_to_first_token_seconds_bucket{le="1"'],
)
async def test_whatever_a_page_says_readers_can_read_the_agents_page(name: str) -> None:
    """A sum beyond the bound of one value would make the page of the whole node unreadable."""
    begin = name if "{" in name else f'{name}{{a="b"'
    page = "\n".join(f'{begin},engine="{number}"}} 1e15' for number in range(4_000))

    async def huge(request: web.Request) -> web.StreamResponse:
        del request
        return web.Response(text=page if asked.pop() else PAGE)

    asked = [1, 0]  # a rate needs two readings
    async with serving(huge) as port:
        pages = ServicePages(LoopClock(epoch=0), lambda: [pod(port)], lambda: ("u",))
        async with aiohttp.ClientSession(auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()) as session:
            await pages.read_all(session)
            await pages.read_all(session)
    told = msgspec.json.encode(NodeUsage(node="n", services=tuple(pages.usages)))
    assert msgspec.json.decode(told, type=NodeUsage).services == tuple(pages.usages)


async def test_a_server_that_says_nothing_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        pages = ServicePages(LoopClock(epoch=0), lambda: [pod(listening.getsockname()[1])], lambda: {"u"})
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=0.05)) as session:
            await pages.read_all(session)
    assert "does not end within" in pages.usages[0].error


async def test_a_port_that_nobody_listens_on_is_an_error() -> None:
    async with serving(text) as port:
        pass
    (found,) = (await read(pod(port))).usages
    assert "cannot be read" in found.error


async def test_rates_are_over_the_window_and_begin_anew_with_the_server() -> None:
    counts = iter([(10, 2), (70, 6), (5, 0)])

    async def count(request: web.Request) -> web.StreamResponse:
        del request
        ended, fast = next(counts)
        lines = [f"vllm:request_success_total {ended}", "vllm:num_requests_waiting 0"]
        lines += [
            f'vllm:time_to_first_token_seconds_bucket{{le="{le}"}} {n}' for le, n in (("0.5", fast), ("+Inf", ended))
        ]
        return web.Response(text="\n".join(lines))

    async with serving(count) as port, aiohttp.ClientSession(auto_decompress=False) as session:
        now = [0.0]
        clock = LoopClock(epoch=0)
        pages = ServicePages(clock, lambda: [pod(port)], lambda: {"u"})
        clock.monotonic = lambda: now[0]  # type: ignore[method-assign]
        await pages.read_all(session)
        assert pages.usages[0].requests is None
        now[0] = 30.0
        await pages.read_all(session)
        assert pages.usages[0].requests == 2.0
        assert pages.usages[0].first_token == (Bucket(0.5, 4.0), Bucket(None, 60.0))
        now[0] = 40.0
        await pages.read_all(session)  # the server was restarted
        assert pages.usages[0].requests is None
