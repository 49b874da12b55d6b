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
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.nodes.usage import Bucket, NodeUsage, ServiceUsage
from tessera.clock import LoopClock
from tessera.kube.resources import Pod
from tessera.signals.service_pages import PAGE_BYTES, SERIES, PageError, PageNumbers, ServicePages, page_of, read_page

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

    runner = web.ServerRunner(web.Server(handle), shutdown_timeout=0.05)  # with 0, aiohttp 3.14 waits without a limit
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


VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="opt"} 3.0
vllm:num_requests_running{engine="1",model_name="opt"} 2.0
vllm:num_requests_waiting{engine="0",model_name="opt"} 7.0
vllm:num_requests_waiting{engine="1",model_name="opt"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="opt"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="opt"} 0.25
vllm:request_success_total{engine="0",finished_reason="stop",model_name="opt"} 90.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="opt"} 10.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="opt"} 40.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="opt"} 100.0
vllm:e2e_request_latency_seconds_bucket{le="0.3"} NaN
process_open_fds 44.0
"""
SGLANG = """\
sglang:num_running_reqs{model_name="m"} 4
sglang:num_queue_reqs{model_name="m"} 1
sglang:token_usage{model_name="m"} 0.28
sglang:num_requests_total{model_name="m"} 812 1700000000000
"""
TRTLLM = """\
trtllm_num_requests_running{engine_type="trtllm"} 2.0
trtllm_num_requests_waiting{engine_type="trtllm"} 5.0
trtllm_kv_cache_utilization{engine_type="trtllm"} 0.4
trtllm_request_success_total{finished_reason="end_id"} 30.0
"""
TRITON = """\
nv_inference_request_success{model="ensemble",version="1"} 9
nv_inference_pending_request_count{model="ensemble",version="1"} 3
"""
TRITON_LLM = (
    TRITON
    + """\
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 6
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 2
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="context",version="1"} 99
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.1
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 6239
"""
)
TGI = 'tgi_queue_size 2\ntgi_batch_current_size 8\ntgi_request_success{kind="generate"} 77\n'


@pytest.mark.parametrize(
    ("page", "wanted"),
    [
        (VLLM, PageNumbers(100.0, 5.0, 7.0, 0.375, {0.1: 40.0, float("inf"): 100.0})),
        (SGLANG, PageNumbers(812.0, 4.0, 1.0, 0.28)),
        (TRTLLM, PageNumbers(30.0, 2.0, 5.0, 0.4)),
        (TRITON, PageNumbers(9.0, None, 3.0)),
        (TRITON_LLM, PageNumbers(9.0, 2.0, 6.0, 0.1)),
        (TGI, PageNumbers(77.0, 8.0, 2.0)),
        ("vllm:gpu_cache_usage_perc 0.5\n", PageNumbers(kv_cache=0.5)),
        ("", PageNumbers()),
        ("# nothing\nup 1\n", PageNumbers()),
    ],
)
def test_each_server_says_its_load(page: str, wanted: PageNumbers) -> None:
    assert read_page(page) == wanted


def test_names_of_other_pods_count_for_the_pod_itself() -> None:
    page = 'vllm:num_requests_waiting{namespace="team-b",pod="other",model_name="x"} 4\n'
    assert read_page(page).waiting == 4.0


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("vllm:num_requests_waiting NaN\n", "not from 0"),
        ("vllm:num_requests_waiting -1\n", "not from 0"),
        ("vllm:num_requests_waiting +Inf\n", "not from 0"),
        ("vllm:num_requests_waiting 1e300\n", "not from 0"),
        ("vllm:num_requests_waiting many\n", "no number"),
        ("vllm:num_requests_waiting\n", "is none"),
        ('vllm:num_requests_waiting{a="b" 1\n', "is none"),
        ("tgi_queue_size 1\ntgi_queue_size 2\n", "twice"),
        ('vllm:num_requests_waiting{e="0"} 1e15\nvllm:num_requests_waiting{e="1"} 1e15\n', "together"),
        ("vllm:kv_cache_usage_perc 1.5\n", "more than all"),
        ('vllm:time_to_first_token_seconds_bucket{le="soon"} 1\n', "no number"),
        ("\n".join(f'vllm:num_requests_waiting{{engine="{each}"}} 1' for each in range(SERIES + 1)), "series"),
        ("\n".join(f'sglang:time_to_first_token_seconds_bucket{{le="{each}"}} 1' for each in range(99)), "buckets"),
    ],
)
def test_a_page_that_cannot_be_true_is_no_page(page: str, text: str) -> None:
    with pytest.raises(PageError, match=text):
        read_page(page)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("nv_trt_llm_request_metrics{" + "a" * PAGE_BYTES + "} 1", id="a label without an end"),
        pytest.param("nv_trt_llm_request_metrics{" + 'a="' * (PAGE_BYTES // 3) + "} 1", id="labels without an end"),
        pytest.param("a\n" * (PAGE_BYTES // 2), id="lines of others"),
    ],
)
def test_a_line_as_long_as_a_page_costs_its_length(line: str) -> None:
    """With a pattern that is tried at each place anew, the first would take most of an hour, in which no agent acts."""
    assert read_page(f"{line}\nvllm:num_requests_waiting 4\n").waiting == 4.0


def test_only_ends_of_lines_end_a_line() -> None:
    assert read_page('vllm:num_requests_waiting{model_name="a\u2028b\x0bc"} 4\r\n').waiting == 4.0


@given(st.text())
def test_any_text_is_numbers_or_an_error(text: str) -> None:
    for page in (text, f"vllm:num_requests_waiting{text}", f"vllm:num_requests_waiting{{{text}}} 1"):
        try:
            found = read_page(page)
        except PageError:
            continue
        assert found.waiting is None or found.waiting >= 0
