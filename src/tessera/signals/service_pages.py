"""Reads the page ``/metrics`` of pods that hold cards of this node, and keeps what it says of their load.

A pod opts in by the annotations that Prometheus's users know: ``prometheus.io/scrape: "true"``, ``prometheus.io/port``
and ``prometheus.io/path`` (``/metrics`` if it names none). Rules, since pods are hostile:

- Only the pod's own IP is asked, as the API server has it, and only of a pod that holds a card here. A pod on the
  node's network is not asked: its IP is the node's, so its annotation could aim at any port of the node.
- No redirect is followed, no proxy used, no cookie kept, and no content coding accepted.
- A page is read for :data:`PAGE_SECONDS` and to :data:`PAGE_BYTES` at most, :data:`_AT_ONCE` pages at a time.
- Only series of :data:`NAMES` are read, and of their labels only those that choose a series or a bucket. What a page
  says of other pods, models or namespaces counts for the pod itself, or not at all.
- A value of these series that is no number, not finite, or negative, and a series that is there twice, make the whole
  page unreadable: a wrong load is worse than none. Nothing else of a page is told on but why there are no numbers.

Sources of the names: Gateway API inference extension, model server protocol (vLLM, SGLang, trtllm-serve, TensorRT-LLM
on Triton); the servers' own documents for requests, time to first token, Triton's pending requests, and TGI.
"""

import asyncio
import ipaddress
import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.satellites import LoadReader
from tessera.api.names import SCRAPE_ANNOTATION
from tessera.api.nodes.usage import Bucket, ServiceUsage
from tessera.clock import Clock
from tessera.kube.resources import Pod

if TYPE_CHECKING:
    import aiohttp

#: Series of the table on one page; a server with 16 engines and 30 buckets has 600.
SERIES = 4_096
#: Buckets of the time to first token that are kept; servers have some 25.
BUCKETS = 64
#: The largest value: more requests than a server can have had.
_LARGEST = 1e15
#: A server that has both names of a quantity means the first: pending requests of Triton are those of its ensemble.
_INSTEAD = {"nv_inference_pending_request_count": "nv_trt_llm_request_metrics"}
_LABEL = re.compile(r'(?<![a-zA-Z0-9_])([a-zA-Z_][a-zA-Z0-9_]*+)="((?:[^"\\]|\\.)*+)"')
_REST = re.compile(r"(?:\{(.*)\})?\s+(\S+)(?:\s+-?[0-9]+)?\s*")
#: Seconds between two readings of a page, and over which rates and times to the first token are taken.
PERIOD, WINDOW = 10.0, 60.0
#: Seconds and bytes of one page: vLLM's with 16 engines has 500 kB.
PAGE_SECONDS, PAGE_BYTES = 5.0, 1024 * 1024
_AT_ONCE = 8
_PORT, _PATH = "prometheus.io/port", "prometheus.io/path"
_PATHS = re.compile(r"/[A-Za-z0-9._~/-]{0,255}")
_OK = 200


class PageError(Exception):
    """A page that cannot be read; the text says why, in words of ours."""


class Quantity(Enum):
    """What a series is."""

    REQUESTS = "requests that ended well, since the start"
    RUNNING = "requests that are computed"
    WAITING = "requests that wait"
    KV_CACHE = "part of the KV cache in use, 0 to 1"
    TTFT = "buckets of the time to the first token, seconds"


def _plain(quantity: Quantity, *names: str) -> dict[str, tuple[str, Mapping[str, Quantity]]]:
    return {name: ("", {"": quantity}) for name in names}


#: By name of a series: the label that says what it is, empty if the name does, and what each of its values means.
NAMES: Mapping[str, tuple[str, Mapping[str, Quantity]]] = {
    **_plain(
        Quantity.REQUESTS,
        "vllm:request_success_total",
        "sglang:num_requests_total",
        "trtllm_request_success_total",
        "nv_inference_request_success",
        "tgi_request_success",
    ),
    **_plain(
        Quantity.RUNNING,
        "vllm:num_requests_running",
        "sglang:num_running_reqs",
        "trtllm_num_requests_running",
        "tgi_batch_current_size",
    ),
    **_plain(
        Quantity.WAITING,
        "vllm:num_requests_waiting",
        "sglang:num_queue_reqs",
        "trtllm_num_requests_waiting",
        "nv_inference_pending_request_count",
        "tgi_queue_size",
    ),
    **_plain(
        Quantity.KV_CACHE,
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "sglang:token_usage",
        "trtllm_kv_cache_utilization",
    ),
    **_plain(
        Quantity.TTFT,
        "vllm:time_to_first_token_seconds_bucket",
        "sglang:time_to_first_token_seconds_bucket",
        "trtllm_time_to_first_token_seconds_bucket",
    ),
    "nv_trt_llm_request_metrics": ("request_type", {"waiting": Quantity.WAITING, "scheduled": Quantity.RUNNING}),
    "nv_trt_llm_kv_cache_block_metrics": ("kv_cache_block_type", {"fraction": Quantity.KV_CACHE}),
}
#: Lines of the table. Nothing of the patterns is tried twice at one place of a page: a long line costs its length.
_SERIES = re.compile(rf"^({'|'.join(map(re.escape, NAMES))})(?=[{{\s])(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class PageNumbers:
    """What one page says; None for what it does not have.

    Attributes:
        requests: ended well since the start.
        running, waiting: now.
        kv_cache: part in use, mean of the page's engines.
        first_token: cumulative counts by upper bound in seconds, the last one for all.
    """

    requests: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_cache: float | None = None
    first_token: Mapping[float, float] = field(default_factory=dict)


def read_page(text: str) -> PageNumbers:
    """Reads a page in Prometheus's text format.

    Raises:
        PageError: it says something that cannot be.
    """
    found: dict[Quantity, list[float]] = {}
    buckets: dict[float, float] = {}
    seen: set[tuple[str, str]] = set()
    for name, labels, value in _series(text):
        if (name, labels) in seen:
            raise PageError(f"{name} has a series twice")
        seen.add((name, labels))
        if len(seen) > SERIES:
            raise PageError(f"more than {SERIES:,} series of requests")
        quantity = _quantity(name, labels)
        if quantity is Quantity.TTFT:
            bound = _number(name, dict(_LABEL.findall(labels)).get("le", ""), infinite=True)
            buckets[bound] = buckets.get(bound, 0.0) + value
        elif quantity is not None:
            found.setdefault(quantity, []).append(value)
    if len(buckets) > BUCKETS:
        raise PageError(f"more than {BUCKETS} buckets of the time to first token")
    caches = found.pop(Quantity.KV_CACHE, None)
    if max(map(sum, [buckets.values(), *found.values()])) > _LARGEST:
        raise PageError(f"the series of a quantity are more than {_LARGEST:g} together")
    if caches and max(caches) > 1:
        raise PageError("more than all of the KV cache is in use")
    return PageNumbers(
        requests=_total(found.get(Quantity.REQUESTS)),
        running=_total(found.get(Quantity.RUNNING)),
        waiting=_total(found.get(Quantity.WAITING)),
        kv_cache=sum(caches) / len(caches) if caches else None,
        first_token=dict(sorted(buckets.items())),
    )


def _series(text: str) -> Iterator[tuple[str, str, float]]:
    """Name, labels and value of each series of the table."""
    lines = _SERIES.findall(text)
    present = {name for name, _ in lines}
    for name, rest in lines:
        if _INSTEAD.get(name) in present:
            continue
        parsed = _REST.fullmatch(rest)
        if parsed is None:
            raise PageError(f"a line of {name} is none")
        yield name, parsed[1] or "", _number(name, parsed[2])


def _quantity(name: str, labels: str) -> Quantity | None:
    label, meanings = NAMES[name]
    return meanings.get(dict(_LABEL.findall(labels)).get(label, "") if label else "")


def _number(name: str, text: str, *, infinite: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        raise PageError(f"{name} has a value that is no number") from None
    if infinite and value == float("inf"):
        return value
    if not 0 <= value <= _LARGEST:
        raise PageError(f"{name} has a value that is not from 0 to {_LARGEST:g}")
    return value


def _total(values: Sequence[float] | None) -> float | None:
    return None if values is None else sum(values)


def page_of(pod: Pod) -> str | None:
    """The address of a pod's page; None if it did not opt in.

    Raises:
        PageError: its annotations name no page that may be asked for.
    """
    told = pod.metadata.annotations
    if told.get(SCRAPE_ANNOTATION) != "true" or not pod.status.pod_ip:
        return None
    if pod.spec.host_network:
        raise PageError("the pod is on the node's network, where no page is read")
    port, path = told.get(_PORT, ""), told.get(_PATH, "/metrics")
    if not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 2**16:
        raise PageError(f"the annotation {_PORT} names no port: write a number from 1 to 65535")
    if not _PATHS.fullmatch(path):
        raise PageError(f"the annotation {_PATH} is no path: write one such as /metrics")
    return f"http://{_host(pod.status.pod_ip)}:{port}{path}"


def _host(text: str) -> str:
    """A pod's IP as an address has it. Whoever may write a pod's status chooses it, so it may be a cloud's own page."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise PageError("the pod's IP is none") from None
    plain = getattr(address, "ipv4_mapped", None) or address
    if plain.is_link_local or plain.is_multicast or plain.is_unspecified:
        raise PageError("the pod's IP is of the link, where the node and the cloud answer, and no pod")
    return f"[{address}]" if address.version == 6 else str(address)


class ServicePages(LoadReader):
    """Keeps the load of the node's pods.

    Args:
        clock: the time.
        pods: the pods of the node.
        holders: UIDs of the pods that hold cards.
    """

    def __init__(self, clock: Clock, pods: Callable[[], Sequence[Pod]], holders: Callable[[], Collection[str]]) -> None:
        self._clock = clock
        self._pods = pods
        self._holders = holders
        #: By UID of a pod, the readings of the window, the oldest first.
        self._readings: dict[str, deque[tuple[float, PageNumbers]]] = {}
        self.usages = ()

    async def run(self) -> None:
        """Reads until cancelled."""
        import aiohttp

        limits = aiohttp.ClientTimeout(total=PAGE_SECONDS)
        jar = aiohttp.DummyCookieJar()
        async with aiohttp.ClientSession(cookie_jar=jar, auto_decompress=False, timeout=limits) as session:
            while True:
                await self.read_all(session)
                await self._clock.sleep(PERIOD)

    async def read_all(self, session: "aiohttp.ClientSession") -> None:
        """Reads each page once."""
        holders, limit = self._holders(), asyncio.Semaphore(_AT_ONCE)
        found = [pod for pod in self._pods() if pod.metadata.uid in holders and _opts_in(pod)]

        async def read(pod: Pod) -> ServiceUsage:
            async with limit:
                return await self._read(pod, session)

        usages = await asyncio.gather(*map(read, found))
        for gone in self._readings.keys() - {pod.metadata.uid for pod in found}:
            del self._readings[gone]
        self.usages = sorted(usages, key=lambda each: (each.namespace, each.pod))

    async def _read(self, pod: Pod, session: "aiohttp.ClientSession") -> ServiceUsage:
        meta = pod.metadata
        try:
            address = page_of(pod)
            numbers = PageNumbers() if address is None else read_page(await _fetch(session, address))
        except PageError as error:
            self._readings.pop(meta.uid, None)
            return ServiceUsage(namespace=meta.namespace, pod=meta.name, uid=meta.uid, error=str(error))
        readings = self._readings.setdefault(meta.uid, deque())
        _add(readings, self._clock.monotonic(), numbers)
        return _usage(pod, readings)


def _opts_in(pod: Pod) -> bool:
    return pod.metadata.annotations.get(SCRAPE_ANNOTATION) == "true" and bool(pod.status.pod_ip)


async def _fetch(session: "aiohttp.ClientSession", address: str) -> str:
    import aiohttp

    headers = {"Accept": "text/plain", "Accept-Encoding": "identity"}
    try:
        async with session.get(address, headers=headers, allow_redirects=False) as answer:
            if answer.status != _OK:
                raise PageError(f"the page answers with status {answer.status}")
            if answer.headers.get("Content-Encoding", "identity") != "identity":
                raise PageError("the page is compressed, which nobody asked for")
            body = bytearray()
            while chunk := await answer.content.readany():
                body += chunk
                if len(body) > PAGE_BYTES:
                    raise PageError(f"the page has more than {PAGE_BYTES} bytes")
    except TimeoutError:
        raise PageError(f"the page does not end within {PAGE_SECONDS:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise PageError(f"the page cannot be read: {type(error).__name__}") from None
    return body.decode("utf-8", "replace")


def _add(readings: deque[tuple[float, PageNumbers]], now: float, numbers: PageNumbers) -> None:
    """Adds a reading; forgets those before the window, and all before a restart of the server, which counts anew."""
    if readings and (readings[-1][1].requests or 0.0) > (numbers.requests or 0.0):
        readings.clear()
    readings.append((now, numbers))
    while now - readings[0][0] > WINDOW:
        readings.popleft()


def _usage(pod: Pod, readings: Sequence[tuple[float, PageNumbers]]) -> ServiceUsage:
    (began, first), (ended, last) = readings[0], readings[-1]
    rate = None
    if ended > began and first.requests is not None and last.requests is not None:
        rate = (last.requests - first.requests) / (ended - began)
    meta = pod.metadata
    return ServiceUsage(
        namespace=meta.namespace,
        pod=meta.name,
        uid=meta.uid,
        requests=rate,
        running=last.running,
        waiting=last.waiting,
        kv_cache=last.kv_cache,
        first_token=_increase(first.first_token, last.first_token) if ended > began else (),
    )


def _increase(before: Mapping[float, float], after: Mapping[float, float]) -> tuple[Bucket, ...]:
    """The buckets of the window; none if one of them went back."""
    found = tuple(Bucket(le if le < float("inf") else None, count - before.get(le, 0.0)) for le, count in after.items())
    return found if all(each.count >= 0 for each in found) else ()


def read_loads(runtime: AgentRuntime, holders: Callable[[], Collection[str]]) -> ServicePages:
    """Makes the reader of a node."""
    return ServicePages(runtime.clock, runtime.mirror.live_pods, holders)
