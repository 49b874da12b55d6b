"""Serves ``view.tessera.dev`` and ``external.metrics.k8s.io``: the port for kube-apiserver's front proxy alone.

It answers discovery, its OpenAPI documents and GET, in the forms of a Kubernetes API; everything else is a Status with
its code. An answer for one kind of rights is kept for two seconds, that of the queue as long as the queue is fresh, and
they are made one after the other, so that nobody can slow the page by asking often. Each user gets an answer before any
other gets two.
"""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from tessera.access.agent_pages import FleetUsage
from tessera.access.reviewer import Person
from tessera.clock import Clock
from tessera.dashboard.aliases import Aliases, name_own_nodes
from tessera.dashboard.explainer import FRESH, NAMESPACE_FACTS, PrivateExplainer
from tessera.dashboard.past import PastError, PastReader
from tessera.dashboard.server import PAGE_BYTES, PAGE_HEADER, PAGE_HEADERS
from tessera.dashboard.source import ClusterSource
from tessera.dashboard.view import external_metrics
from tessera.dashboard.view.cluster_map import make_map
from tessera.dashboard.view.explanations import CLUSTER, EXPLANATIONS, GROUP, VERSION
from tessera.dashboard.view.front_proxy import FrontProxy, NotProxiedError
from tessera.dashboard.view.objects import GPU_HOURS, PASTS, RESOURCES, USAGES, WAITING_PODS
from tessera.dashboard.view.openapi import documents
from tessera.dashboard.visitors import NotNowError, Rights
from tessera.kube.errors import ApiError, NotFound, ServiceUnavailable, Status
from tessera.kube.resources.meta import Resource
from tessera.observe.cluster_reading import ClusterReading
from tessera.observe.service_rows import missing_services
from tessera.serving.bounded_port import Bounds, ConnectionPort
from tessera.serving.connection import Connection
from tessera.serving.fair_shares import FairTurns, NoTurnError
from tessera.signals.page import SignalsPage
from tessera.usage.record import decode_record, encode_record, of_namespaces
from tessera.visibility import Redactor, Visibility

#: Most answers of the API view.tessera.dev that the page remembers for two seconds; the oldest is forgotten. One for
#: each kind of rights; an answer for 1,600 cards has 2 MB and takes a tenth of a second.
VIEW_ANSWERS = 32
#: Most answers of the API view.tessera.dev that wait to be made, each user's in turn with those of others; a further
#: one takes the place of one of the user with most, or is refused with 503. Each takes a tenth of a second, one after
#: the other.
VIEW_WAITING = 32

_API_VERSION = f"{GROUP}/{VERSION}"
_BOUNDS = Bounds(bytes=PAGE_BYTES, headers=PAGE_HEADERS, header=PAGE_HEADER, cancels=True)
#: Seconds for which an answer is used again.
_FRESH = 2.0
_VERBS: Mapping[str, list[str]] = {EXPLANATIONS.plural: ["get"]}


class ViewAnswers:
    """Makes the objects.

    Args:
        source: mirrors the cluster.
        explainer: explains pods.
        rights: what persons may see.
        redactor: gives the aliases of the page.
        clock: the time.
        past: asks the page's Prometheus; None without one.
    """

    def __init__(  # noqa: PLR0917 - the parts of a replica
        self,
        source: ClusterSource,
        explainer: PrivateExplainer,
        rights: Rights,
        redactor: Redactor,
        clock: Clock,
        past: PastReader | None = None,
    ) -> None:
        self._source = source
        self._explainer = explainer
        self._rights = rights
        self._redactor = redactor
        self._clock = clock
        self._past = past
        self._turns: FairTurns[str] = FairTurns(VIEW_WAITING)
        #: The content of an object by kind and rights, with the time at which it was made, that of the queue with the
        #: time at which that was read; the oldest first.
        self._made: dict[tuple[str, Visibility], tuple[float, bytes]] = {}

    async def content(self, resource: Resource[Any], person: Person, namespace: str, name: str) -> bytes | None:
        """The JSON of an object's content; None if there is no such object.

        Raises:
            ApiError: a pod cannot be explained, or no controller says who waits.
        """
        visibility = await self._rights.visibility_in(person, namespace)
        if resource is EXPLANATIONS:
            if not visibility.allows_pods(namespace):
                return None
            readable = await self._rights.lists(person, namespace, NAMESPACE_FACTS)
            found = await self._explainer.answer(namespace, name, visibility, person.share, readable)
            return msgspec.json.encode({"report": found.report, "complete": found.complete})
        if name != CLUSTER:
            return None
        if resource is PASTS:
            return await self._check_past(person.share, full=visibility.full)
        key = (resource.plural, visibility)
        try:
            return self._kept(key) or await self._make_in_turn(resource, visibility, person.share)
        except NoTurnError:
            text = "many answers are being made, some of them yours; try again"
            raise ServiceUnavailable(Status(code=503, reason="ServiceUnavailable", message=text)) from None

    async def signals(self) -> SignalsPage | str:
        """The signals of services, or why nobody tells them."""
        return await self._source.read_signals()

    def _kept(self, key: tuple[str, Visibility]) -> bytes | None:
        made = self._made.get(key)
        life = FRESH if key[0] == WAITING_PODS.plural else _FRESH
        return made[1] if made is not None and self._clock.monotonic() - made[0] <= life else None

    async def _make_in_turn(self, resource: Resource[Any], visibility: Visibility, share: str) -> bytes:
        key = (resource.plural, visibility)
        async with self._turns.turn(share):
            content = self._kept(key)  # another one may have asked for the same meanwhile
            if content is None:
                began = self._clock.monotonic()
                content = await self._make(resource, visibility)
                began = self._source.queue_read_at if resource is WAITING_PODS else began
                self._made.pop(key, None)
                self._made[key] = (began, content)
                while len(self._made) > VIEW_ANSWERS:
                    del self._made[next(iter(self._made))]
            return content

    async def _make(self, resource: Resource[Any], visibility: Visibility) -> bytes:
        visibility = name_own_nodes(visibility, self._source.objects.pods)
        if resource is GPU_HOURS:
            return await asyncio.to_thread(_make_record, await self._read_record(), visibility)
        if resource is USAGES:
            return await self._make_usage(visibility)
        if resource is not WAITING_PODS:
            return await asyncio.to_thread(self._make_map, visibility, await self._source.read_fleet())
        page = await self._source.read_queue(FRESH)
        if isinstance(page, str):
            text = f"nobody says which pods wait: {page}"
            raise ServiceUnavailable(Status(code=503, reason="ServiceUnavailable", message=text))
        shown = Aliases(visibility, self._redactor).hide_queue(page)
        return msgspec.json.encode({"queue": shown})

    async def _make_usage(self, visibility: Visibility) -> bytes:
        fleet, signals = await self._source.read_fleet(), await self._source.read_signals()
        await self._source.read_queue()
        rows = self._source.services.values()
        note = missing_services("" if isinstance(signals, str) and not visibility.full else signals)

        def make() -> bytes:
            shown = Aliases(visibility, self._redactor).hide_fleet(fleet)
            services = [self._redactor.redact(each, visibility) for each in rows if visibility.shows(each)]
            return msgspec.json.encode({"fleet": shown, "services": services, "servicesNote": note})

        return await asyncio.to_thread(make)

    async def _check_past(self, share: str, *, full: bool) -> bytes:
        """Asks the Prometheus as the page does: an answer is kept, and a failure is not asked for again at once."""
        if self._past is None:
            return msgspec.json.encode({"problem": "this page has no Prometheus"})
        try:
            empty = await self._past.find_empty(share)
        except PastError as error:
            text = f"{error}: {error.detail}" if error.detail and full else str(error)
            return msgspec.json.encode({"problem": text})
        except NotNowError as error:
            raise ServiceUnavailable(Status(code=503, reason="ServiceUnavailable", message=str(error))) from None
        return msgspec.json.encode({"empty": empty})

    async def _read_record(self) -> str:
        """The record of GPU-hours.

        Raises:
            NotFound: there is none yet; it names this API's object, as for every object that is missing.
        """
        try:
            return await self._source.read_usage_record()
        except NotFound:
            text = f'{GPU_HOURS.label} "{CLUSTER}" not found'
            raise NotFound(Status(code=404, reason="NotFound", message=text)) from None

    def _make_map(self, visibility: Visibility, whole: FleetUsage) -> bytes:
        aliases = Aliases(visibility, self._redactor)
        fleet = aliases.hide_fleet(whole)
        objects = aliases.hide(self._source.objects)
        reading = ClusterReading(
            instaslices=objects.instaslices, nodes=objects.nodes, pods=objects.pods, fleet=fleet, unread=objects.unread
        )
        return msgspec.json.encode({"map": make_map(reading)})


def _make_record(text: str, visibility: Visibility) -> bytes:
    """The record of GPU-hours for one reader: without the cards, what others held cannot be told from it."""
    if not visibility.full:
        try:
            record = decode_record(text)
        except ValueError as error:
            raise ServiceUnavailable(Status(code=503, reason="ServiceUnavailable", message=str(error))) from None
        text = encode_record(of_namespaces(record, visibility.allows_pods))
    return msgspec.json.encode({"record": text})


class ViewPort(ConnectionPort):
    """The port.

    Args:
        proxy: the front proxy that may use it.
        answers: makes the objects.
        tls: its certificate; asks clients for one of the front proxy.
    """

    def __init__(self, proxy: FrontProxy, answers: ViewAnswers, tls: ssl.SSLContext) -> None:
        super().__init__("view API", tls, _BOUNDS)
        self._proxy = proxy
        self._answers = answers
        self._documents = documents()

    async def respond(self, request: web.BaseRequest, connection: Connection) -> web.StreamResponse:
        """Answers kube-apiserver."""
        connection.set_deadline(_BOUNDS.body_time, "while its answer was made")
        certificate = request.transport.get_extra_info("peercert") if request.transport is not None else None
        try:
            person = self._proxy.identify(request.headers, certificate)
        except NotProxiedError as error:
            return _status(401, "Unauthorized", str(error))
        if request.method not in {"GET", "HEAD"}:
            return _status(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        if (document := self._documents.get(request.path.rstrip("/"))) is not None:
            return web.Response(body=document, headers={"Content-Type": "application/json"})
        match request.path.strip("/").split("/"):
            case ["apis"]:
                groups = [_group(), external_metrics.GROUP_ENTRY]
                return _json({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
            case ["apis", group] if group == GROUP:
                return _json({"kind": "APIGroup", "apiVersion": "v1", **_group()})
            case ["apis", group, version] if (group, version) == (GROUP, VERSION):
                return _json(_resources())
            case ["apis", group, version, "namespaces", namespace, plural, *names] if (group, version) == (
                GROUP,
                VERSION,
            ):
                return await self._objects(person, namespace, plural, names)
            case ["apis", external_metrics.GROUP, *rest]:
                return await self._metrics(rest, request.query.get("labelSelector", ""))
        return _not_found()

    async def _metrics(self, path: list[str], selector: str) -> web.Response:
        try:
            document = external_metrics.answer(path, selector, await self._answers.signals())
        except ApiError as error:
            return _status(error.status.code or 500, error.status.reason or "InternalError", error.status.message)
        return _not_found() if document is None else _json(document)

    async def _objects(self, person: Person, namespace: str, plural: str, names: list[str]) -> web.Response:
        resource = next((each for each in RESOURCES if each.plural == plural), None)
        if resource is None or len(names) > 1 or (not names and resource is EXPLANATIONS):
            return _not_found()
        name = names[0] if names else CLUSTER
        try:
            content = await self._answers.content(resource, person, namespace, name)
        except ApiError as error:
            return _status(error.status.code or 500, error.status.reason or "InternalError", error.status.message)
        if content is None:
            text = f'{resource.label} "{name}" not found'
            return _status(404, "NotFound", text)
        item = {
            "kind": resource.kind,
            "apiVersion": _API_VERSION,
            "metadata": {"name": name, "namespace": namespace},
            **msgspec.json.decode(content, type=dict[str, msgspec.Raw]),
        }
        if names:
            return _json(item)
        return _json({"kind": f"{resource.kind}List", "apiVersion": _API_VERSION, "metadata": {}, "items": [item]})


def _group() -> dict[str, Any]:
    version = {"groupVersion": _API_VERSION, "version": VERSION}
    return {"name": GROUP, "versions": [version], "preferredVersion": version}


def _resources() -> dict[str, Any]:
    listed = [
        {
            "name": each.plural,
            "singularName": each.kind.lower(),
            "namespaced": True,
            "kind": each.kind,
            "verbs": _VERBS.get(each.plural, ["get", "list"]),
        }
        for each in RESOURCES
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": _API_VERSION, "resources": listed}


def _not_found() -> web.Response:
    return _status(404, "NotFound", "the server could not find the requested resource")


def _status(code: int, reason: str, message: str) -> web.Response:
    document = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    return _json(document, code)


def _json(document: object, code: int = 200) -> web.Response:
    return web.Response(status=code, body=msgspec.json.encode(document), headers={"Content-Type": "application/json"})
