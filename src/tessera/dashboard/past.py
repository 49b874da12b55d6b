"""The curves of the live page over a chosen time, from the cluster's Prometheus.

Rules:

1. Queries are this module's own, a fixed few for each kind of subject; nothing of a request enters one but a name that
   has the form of its kind. Steps are fixed with the range, so an answer has at most 169 values a curve.
2. The caller decides who may see a subject (:mod:`tessera.dashboard.server`). Curves have numbers and no name.
3. An answer is kept for as long as its step, a failure for :data:`_AGAIN` seconds, and each is asked for once however
   many wait for it. At most :data:`_AT_ONCE` queries run, and each user has at most :data:`_OF_USER` unanswered
   requests.
4. No redirect is followed and no proxy used: a token goes to the named server alone, and not over plain HTTP to
   another machine. Answers are bounded in time and bytes, and nothing compressed is read.
"""

import asyncio
import logging
import math
import re
import ssl
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import msgspec

from tessera.clock import Clock
from tessera.dashboard.origins import LOOPBACK
from tessera.dashboard.visitors import NotNowError
from tessera.kube.cluster_config import client_context
from tessera.nesting import decode_json
from tessera.visibility import Public

if TYPE_CHECKING:
    import aiohttp

_log = logging.getLogger(__name__)

#: Seconds, and seconds between two values, of each range.
RANGES: Mapping[str, tuple[int, int]] = {
    "15m": (900, 15),
    "1h": (3600, 30),
    "6h": (21_600, 180),
    "24h": (86_400, 600),
    "7d": (604_800, 3600),
}
#: Files in the folder of :class:`Prometheus`, named as in a Secret of the type ``kubernetes.io/service-account-token``.
TOKEN, AUTHORITY = "token", "ca.crt"
#: Seconds and bytes of an answer: 169 values have 5 KiB.
_SECONDS, _BYTES = 10.0, 256 * 1024
#: Seconds for all curves of a subject, the wait for a turn included; seconds until what failed is asked for again.
_ALL_SECONDS, _AGAIN = 30.0, 5.0
#: Queries that run at once; unanswered requests of one user; answers that are kept.
_AT_ONCE, _OF_USER, _KEPT = 4, 3, 256
#: Most characters of what Prometheus says.
_TEXT = 200
_OK, _UNAUTHORIZED, _FORBIDDEN = 200, 401, 403

_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_CARD = re.compile(r"GPU-[0-9A-Za-z-]{1,64}")
_LABEL = re.compile(r"([a-zA-Z_][a-zA-Z0-9_]{0,63})=([A-Za-z0-9 ._:/@+-]{1,128})")

#: Curves by their names on the page: of the cluster, of a namespace, of a card. ``%s`` are the matchers of a series.
_CLUSTER = {
    "held": "sum(tessera_pod_gpu_share_ratio{%s}) or 0 * count(tessera_gpu_info{%s})",
    "busy": "avg(tessera:gpu_busy:ratio{%s})",
    "power": "sum(tessera_gpu_power_watts{%s})",
    "waiting": "sum(max by (reason) (tessera_pods_waiting{%s}))",
}
_OF_NAMESPACE = {
    "held": "sum(tessera_pod_gpu_share_ratio{%s})",
    "computing": "sum(tessera:namespace_gpu_busy:sum{%s})",
    "unused": "sum(tessera:namespace_gpu_wasted:rate5m{%s})",
    "power": "sum(tessera_pod_gpu_power_watts{%s})",
}
_OF_CARD = {
    "held": "sum(tessera_pod_gpu_share_ratio{%s}) or 0 * count(tessera_gpu_info{%s})",
    "busy": "max(tessera:gpu_busy:ratio{%s})",
    "memory": "max(tessera:gpu_memory_used:ratio{%s})",
    "power": "max(tessera_gpu_power_watts{%s})",
    "heat": "max(tessera_gpu_temperature_celsius{%s})",
}


class PastError(Exception):
    """There are no curves; the text says why in a sentence that names nothing of the cluster.

    Attributes:
        detail: what Prometheus said, for those who may see everything.
        code: HTTP status of the page's answer.
    """

    def __init__(self, text: str, detail: str = "", code: int = 502) -> None:
        super().__init__(text)
        self.detail = detail
        self.code = code


class PastDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Curves of one time.

    Attributes:
        until: Unix time of the last value.
        step: seconds between two values.
        curves: values by the name of the curve, the oldest first; None where Prometheus has none.
    """

    until: float
    step: float
    curves: Mapping[Public, tuple[float | None, ...]]


class Subject(NamedTuple):
    """What curves are about: the cluster, the pods of a ``namespace``, or the ``card`` with this UUID."""

    namespace: str = ""
    card: str = ""


class Prometheus(NamedTuple):
    """Where the past is kept.

    Attributes:
        url: address; the API is below it.
        folder: has :data:`TOKEN`, a bearer token, and :data:`AUTHORITY`, the authority of its certificate, if they
            exist; read again for each query.
        labels: further matchers of all series, where one Prometheus has several clusters.
    """

    url: str
    folder: Path | None = None
    labels: tuple[tuple[str, str], ...] = ()


def make_prometheus(url: str | None, folder: Path | None, labels: Iterable[str]) -> Prometheus | None:
    """The server for the options ``--prometheus...``; None if there is none.

    Raises:
        ValueError: one is wrong.
    """
    labels = tuple(labels)
    if not url:
        if labels:
            raise ValueError("--prometheus-label needs --prometheus")
        return None
    try:
        parts = urlsplit(url)
        ok = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        ok = False
    if not ok or parts.query or parts.fragment or "@" in parts.netloc or not re.fullmatch(r"[!-~]{1,512}", url):
        raise ValueError(
            f'"{url}" is no address of a Prometheus; write one without user and query, as in'
            " http://prometheus.example.com:9090"
        )
    found = [_LABEL.fullmatch(each) for each in labels]
    wrong = [text for text, match in zip(labels, found, strict=True) if match is None]
    if wrong:
        raise ValueError(f'"{wrong[0]}" is no label with its value; write NAME=VALUE, as in cluster=prod')
    return Prometheus(url.rstrip("/"), folder, tuple((each[1], each[2]) for each in found if each))


def queries(subject: Subject, labels: Sequence[tuple[str, str]] = ()) -> Mapping[str, str]:
    """The queries of a subject's curves.

    Raises:
        PastError: its name is none.
    """
    own: tuple[tuple[str, str], ...] = ()
    curves = _CLUSTER
    if subject.namespace:
        if not _NAMESPACE.fullmatch(subject.namespace):
            raise PastError("this is no name of a namespace", code=404)
        own, curves = (("namespace", subject.namespace),), _OF_NAMESPACE
    elif subject.card:
        if not _CARD.fullmatch(subject.card):
            raise PastError("this is no UUID of a card", code=404)
        own, curves = (("gpu", subject.card),), _OF_CARD
    matchers = ",".join(f'{name}="{value}"' for name, value in (*labels, *own))
    return {name: query.replace("%s", matchers) for name, query in curves.items()}


class PastReader:
    """Asks Prometheus.

    Args:
        prometheus: the server.
        clock: the time.
    """

    def __init__(self, prometheus: Prometheus, clock: Clock) -> None:
        self._prometheus = prometheus
        self._clock = clock
        self._limit = asyncio.Semaphore(_AT_ONCE)
        #: By range, subject and last time, the answer or its making, the oldest first.
        self._answers: dict[tuple[str, Subject, int], asyncio.Task[PastDocument]] = {}
        #: When those of them that failed are asked for again.
        self._again: dict[tuple[str, Subject, int], float] = {}
        #: Unanswered requests by user.
        self._asking: Counter[str] = Counter()

    async def read(self, span: str, subject: Subject, key: str) -> PastDocument:
        """The curves of a subject.

        Args:
            span: a key of :data:`RANGES`.
            subject: what they are about; the caller has looked whether the visitor may see it.
            key: of the visitor.

        Raises:
            PastError: there are none.
            NotNowError: the visitor waits for several answers already.
        """
        if span not in RANGES:
            raise PastError(f"there is no such range; take one of {', '.join(RANGES)}", code=400)
        wanted = queries(subject, self._prometheus.labels)
        if self._asking[key] >= _OF_USER:
            raise NotNowError("you wait for several curves already; ask for this one again in a moment", 429)
        self._asking[key] += 1
        try:
            return await self._kept(span, subject, wanted)
        finally:
            self._asking -= Counter({key: 1})

    async def find_empty(self, key: str) -> Sequence[str]:
        """The queries of the cluster's curves that found nothing in the shortest range, for a visitor.

        Raises:
            PastError: the server answers none.
            NotNowError: the visitor waits for several answers already.
        """
        found = await self.read(next(iter(RANGES)), Subject(), key)
        wanted = queries(Subject(), self._prometheus.labels)
        return [wanted[name] for name, values in found.curves.items() if all(each is None for each in values)]

    async def _kept(self, span: str, subject: Subject, wanted: Mapping[str, str]) -> PastDocument:
        seconds, step = RANGES[span]
        end = int(self._clock.now() // step) * step
        place = (span, subject, end)
        task = self._answers.get(place)
        if task is None or self._again.get(place, math.inf) <= self._clock.monotonic():
            self._again.pop(place, None)
            while len(self._answers) >= _KEPT:
                oldest = next(iter(self._answers))
                del self._answers[oldest]
                self._again.pop(oldest, None)
            task = self._answers[place] = asyncio.create_task(self._ask_all(wanted, end - seconds, end, step))
            task.add_done_callback(lambda done: self._note_failure(place, done))
        return await asyncio.shield(task)

    def _note_failure(self, place: tuple[str, Subject, int], task: asyncio.Task[PastDocument]) -> None:
        """Has a making that failed tried again a little later, also when nobody waits for it any more."""
        if (task.cancelled() or task.exception() is not None) and self._answers.get(place) is task:
            self._again[place] = self._clock.monotonic() + _AGAIN

    async def _ask_all(self, wanted: Mapping[str, str], start: int, end: int, step: int) -> PastDocument:
        import aiohttp

        try:
            context, headers = await asyncio.to_thread(self._credentials)
            limits = aiohttp.ClientTimeout(total=_SECONDS)
            jar = aiohttp.DummyCookieJar()
            async with (
                asyncio.timeout(_ALL_SECONDS),
                aiohttp.ClientSession(
                    cookie_jar=jar, headers=headers, timeout=limits, auto_decompress=False
                ) as session,
            ):

                async def ask(query: str) -> tuple[float | None, ...]:
                    values = {"query": query, "start": str(start), "end": str(end), "step": str(step)}
                    async with self._limit:
                        body = await _fetch(session, f"{self._prometheus.url}/api/v1/query_range", values, context)
                    return _curve(body, start, end, step)

                found = await asyncio.gather(*map(ask, wanted.values()))
        except (PastError, TimeoutError) as error:
            late = "Prometheus does not answer in time: others ask for curves, too; ask again in a moment"
            problem = error if isinstance(error, PastError) else PastError(late)
            _log.warning("the past cannot be read from %s: %s %s", self._prometheus.url, problem, problem.detail)
            raise problem from None
        return PastDocument(until=end, step=step, curves=dict(zip(wanted, found, strict=True)))

    def _credentials(self) -> tuple[ssl.SSLContext | bool, dict[str, str]]:
        """The way to check the server's certificate, and the header with the token."""
        url, folder, _ = self._prometheus
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        try:
            named = folder is not None and (folder / AUTHORITY).exists()
            authority = (folder / AUTHORITY).read_text("ascii", "ignore") if folder and named else None
            context = client_context(authority) if named or url.startswith("https") else True
            token = (folder / TOKEN).read_text("ascii").strip() if folder and (folder / TOKEN).exists() else ""
        except (OSError, ValueError) as error:
            text = "the page's token or authority for Prometheus cannot be read; an administrator finds why in its log"
            raise PastError(text, str(error)) from None
        if not token:
            return context, headers
        parts = urlsplit(url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        if parts.scheme != "https" and host not in LOOPBACK:
            raise PastError("the page's token for Prometheus goes over HTTPS alone: its address must begin with https")
        if not re.fullmatch(r"[!-~]+", token):
            raise PastError("the page's token for Prometheus is wrong: it has blanks or line breaks inside")
        return context, {**headers, "Authorization": f"Bearer {token}"}


async def _fetch(
    session: "aiohttp.ClientSession", url: str, values: Mapping[str, str], context: ssl.SSLContext | bool
) -> bytes:
    import aiohttp

    body = bytearray()
    try:
        async with session.post(url, data=values, ssl=context, allow_redirects=False) as answer:
            while chunk := await answer.content.readany():
                body += chunk
                if len(body) > _BYTES:
                    raise PastError("Prometheus answers with more than these curves can have")
            status = answer.status
    except TimeoutError:
        raise PastError(f"Prometheus does not answer within {_SECONDS:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise PastError("Prometheus does not answer", f"{type(error).__name__}: {error}"[:_TEXT]) from None
    if status in {_UNAUTHORIZED, _FORBIDDEN}:
        text = f"Prometheus refuses the page ({status}): its Secret tessera-dashboard-prometheus needs a token with"
        raise PastError(f"{text} the right to query")
    if status != _OK:
        raise PastError(f"Prometheus answers with status {status}", _said(bytes(body)))
    return bytes(body)


def _said(body: bytes) -> str:
    """The error in an answer of Prometheus's API, or its beginning, in one line."""
    try:
        text = str(decode_json(body).get("error", ""))
    except (msgspec.DecodeError, AttributeError):
        text = body[: 4 * _TEXT].decode("utf-8", "replace")
    return "".join(each if each.isprintable() else " " for each in text)[:_TEXT]


class _Series(msgspec.Struct):
    values: list[tuple[float, str]]


class _Data(msgspec.Struct, rename="camel"):
    result_type: str
    result: list[_Series]


class _Answer(msgspec.Struct):
    data: _Data


def _curve(body: bytes, start: int, end: int, step: int) -> tuple[float | None, ...]:
    """The values of the one series of an answer, None where there is none."""
    try:
        data = msgspec.json.decode(body, type=_Answer).data
        found: dict[int, float] = {}
        for time, text in data.result[0].values if data.result else ():
            value = float(text)
            if math.isfinite(value):
                found[round((time - start) / step)] = round(value, 4)
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError, OverflowError, RecursionError) as error:
        raise PastError("the address answers, but not as a Prometheus does", str(error)[:_TEXT]) from None
    if len(data.result) > 1:
        raise PastError("Prometheus answers with several series where one was asked for")
    return tuple(found.get(place) for place in range((end - start) // step + 1))
