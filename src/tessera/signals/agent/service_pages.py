"""Reads the page ``/metrics`` of pods that hold cards of this node, and keeps what it says of their load.

A pod opts in by the annotations that Prometheus's users know: ``prometheus.io/scrape: "true"``, ``prometheus.io/port``
and ``prometheus.io/path`` (``/metrics`` if it names none). Rules, since pods are hostile:

- Only the pod's own IP is asked, as the API server has it, and only of a pod that holds a card here. A pod on the
  node's network is not asked: its IP is the node's, so its annotation could aim at any port of the node.
- No redirect is followed, no proxy used, no cookie kept, and no content coding accepted.
- A page is read for :data:`PAGE_SECONDS` and to :data:`PAGE_BYTES` at most, :data:`_AT_ONCE` pages at a time.
- Nothing of a page is told on but the numbers of :mod:`tessera.signals.agent.service_metrics`, and why there are
  none.
"""

import asyncio
import ipaddress
import re
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.main.satellites import LoadReader
from tessera.api.names import SCRAPE_ANNOTATION
from tessera.api.nodes.usage import Bucket, ServiceUsage
from tessera.clock import Clock
from tessera.kube.resources import Pod
from tessera.signals.agent.service_metrics import PageError, PageNumbers, read_page

if TYPE_CHECKING:
    import aiohttp

#: Seconds between two readings of a page, and over which rates and times to the first token are taken.
PERIOD, WINDOW = 10.0, 60.0
#: Seconds and bytes of one page: vLLM's with 16 engines has 500 kB.
PAGE_SECONDS, PAGE_BYTES = 5.0, 1024 * 1024
_AT_ONCE = 8
_PORT, _PATH = "prometheus.io/port", "prometheus.io/path"
_PATHS = re.compile(r"/[A-Za-z0-9._~/-]{0,255}")
_OK = 200


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
