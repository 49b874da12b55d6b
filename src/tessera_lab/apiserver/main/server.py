"""The API server without I/O: a request and a user in, an answer or an open watch out.

It authorizes, finds the handler of a path, turns refusals into ``Status`` and keeps the audit log. The modules of
:mod:`tessera_lab.apiserver.handlers` serve the resources; ``dispatch`` there is the first of them.
"""

import logging
import random
from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec

from tessera.clock import Clock
from tessera.kube.requests import Request, Response
from tessera_lab.apiserver.admission.admission_policies import AdmissionPolicies
from tessera_lab.apiserver.admission.plugins import PLUGINS, AdmissionChain
from tessera_lab.apiserver.admission.resource_quota import QuotaAdmission, QuotaTracker
from tessera_lab.apiserver.admission.webhooks.admission_webhooks import AdmissionWebhooks
from tessera_lab.apiserver.admission.webhooks.callers import InProcessCaller
from tessera_lab.apiserver.audit import AuditEntry, AuditLog
from tessera_lab.apiserver.authz.identity import TokenAuthenticator
from tessera_lab.apiserver.authz.rbac import NodeAuthorizer, RbacAuthorizer
from tessera_lab.apiserver.crd.definition_controller import DefinitionController
from tessera_lab.apiserver.discovery import openapi
from tessera_lab.apiserver.discovery.discovery import DiscoveryDocuments
from tessera_lab.apiserver.discovery.openapi import OpenApiDocuments
from tessera_lab.apiserver.handlers.aggregation import Aggregator
from tessera_lab.apiserver.handlers.claim_rights import not_allowed_error
from tessera_lab.apiserver.handlers.dispatch import Connected, OpenStream, RequestDispatcher
from tessera_lab.apiserver.handlers.write_handler import WriteHandler
from tessera_lab.apiserver.interfaces import Attributes, GroupResource, Obj, UserInfo
from tessera_lab.apiserver.kinds import versions
from tessera_lab.apiserver.main.wiring import build_builtin_types, create_initial_objects
from tessera_lab.apiserver.request.fair_queuing import FairQueues, width_of
from tessera_lab.apiserver.request.flow_schemas import StoredSchemas
from tessera_lab.apiserver.request.routing import QueryParameters, Route, route
from tessera_lab.apiserver.request.server_state import ResourceRequest, ServerParts, ServerState
from tessera_lab.apiserver.resource_types import ResourceRegistry
from tessera_lab.apiserver.schemas import protobuf
from tessera_lab.apiserver.status import StatusError, no_such_path_error, qualified_name
from tessera_lab.apiserver.storage.store import HISTORY, Store

_HEALTH = frozenset({"/healthz", "/livez", "/readyz"})

_PANIC = "This request caused apiserver to panic. Look in the logs for details."

_log = logging.getLogger(__name__)


class StreamResponse:
    """An open watch or log: 200 and a stream. A reader of ``chunks`` must call :meth:`close` when it stops."""

    status = 200

    def __init__(self, stream: OpenStream) -> None:
        self._stream = stream
        self.headers: Mapping[str, str] = {"content-type": stream.media}

    def chunks(self) -> AsyncIterator[bytes]:
        """Yields the stream's pieces: whole lines, all that wait at once."""
        return self._stream.source.chunks()

    def close(self) -> None:
        """Ends the stream."""
        self._stream.close()
        self._stream.source.end()


class ApiServer:
    """One API server with its own state.

    Args:
        clock: source of timestamps and ages.
        seed: seed of uids, generated names and token keys.
        history: changes kept per resource for watches and past lists.
        tokens: static bearer tokens and their users.
        leaps: its time is virtual and skips waits; its version says so.
        fair_queues: requests wait for their turn by level and user. On virtual time, where a turn takes no time, they
            would only change the order of simultaneous requests.
        kubernetes: minor version that is imitated, one of :data:`versions.RELEASES`.

    Attributes:
        aggregator: sends requests for the groups of APIServices on.
        panics: requests that failed because of an error of the server itself; each was answered with 500.

    Every call of a webhook fails, so that the failure policy decides, until ``parts.webhooks`` is set.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        seed: int = 0,
        history: int = HISTORY,
        tokens: Mapping[str, UserInfo] | None = None,
        leaps: bool = False,
        fair_queues: bool = False,
        kubernetes: str = versions.DEFAULT,
    ) -> None:
        self.panics = 0
        registry, release = ResourceRegistry(build_builtin_types(kubernetes)), versions.RELEASES[kubernetes]
        self.core = ServerState(clock, Store(history), registry, random.Random(seed))
        self._queues = FairQueues(StoredSchemas(self.core.store).level_of) if fair_queues else None
        self.identities = TokenAuthenticator(self.core, dict(tokens or {}))
        self.core.parts.discovery = DiscoveryDocuments(registry, release, leaps=leaps)
        self.core.parts.protobuf = protobuf.decode_body
        self.core.parts.authorizer = NodeAuthorizer(self.core.store, RbacAuthorizer(self.core.store))
        self.core.parts.openapi = OpenApiDocuments(registry, release)
        self.core.parts.quota = QuotaAdmission()
        self.core.parts.create_to_connect = versions.needs_create_to_connect(kubernetes)
        QuotaTracker(self.core.store)
        nobody = InProcessCaller({})
        self.core.parts.webhooks = AdmissionWebhooks(self.core.store, self.core.registry, nobody, self.core.new_uid)
        core = self.core
        core.parts.policies = AdmissionPolicies(
            core.store, core.registry, core.audit, core.new_uid, core.parts.authorizer
        )
        DefinitionController(self.core)
        writing = WriteHandler(self.core, AdmissionChain(self.core, PLUGINS))
        self._dispatch = RequestDispatcher(self.core, writing, self.identities)
        self.aggregator = Aggregator(self.core.store)
        create_initial_objects(self.core)

    @property
    def audit(self) -> AuditLog:
        """The audit log of all requests."""
        return self.core.audit

    @property
    def parts(self) -> ServerParts:
        """The exchangeable parts; assign an attribute to replace one."""
        return self.core.parts

    def end_watches(self) -> None:
        """Ends every open watch, as a server does when it stops; clients connect again."""
        self.core.hubs.end_all()

    async def handle(self, request: Request, user: UserInfo) -> Response | StreamResponse | Connected:
        """Answers one request; never raises: an invalid request or an error of the server gets an error answer."""
        query = QueryParameters(request)
        warnings: list[str] = []
        found: Route | None = None
        answer: Response | StreamResponse | Connected
        try:
            found = route(request, query)
            if self._queues is not None:
                await self._queues.wait_turn(user, found, width=self._width_of(found))
            answer = await self._answer(request, query, found, user, warnings)
        except StatusError as error:
            answer = error_response(error)
        except Exception:  # noqa: BLE001 - one request's error, whatever it is, must not end the server
            self.panics += 1
            _log.exception("%s %s by %s", request.method, request.path, user.name)
            answer = error_response(StatusError(500, "InternalError", _PANIC))
        self._note(request, query, found, user, 101 if isinstance(answer, Connected) else answer.status)
        return _add_warnings(answer, warnings) if warnings and isinstance(answer, Response) else answer

    def _width_of(self, found: Route | None) -> int:
        """The width of a request in the fair queues: a list counts the objects of its resource."""
        if found is None or found.verb != "list":
            return 1
        return width_of(self.core.store.count(GroupResource(found.group, found.resource), found.namespace))

    async def _answer(
        self, request: Request, query: QueryParameters, found: Route | None, user: UserInfo, warnings: list[str]
    ) -> Response | StreamResponse | Connected:
        if found is None:
            return await self._aggregated_document(request, user) or self._document(request, user)
        resource = self.core.registry.get(found.group, found.version, found.resource)
        namespaced = resource is None or resource.namespaced or found.resource == "namespaces"
        self._authorize(found, query, user, namespaced=namespaced)
        if resource is None:
            target = self.aggregator.find(found.group, found.version)
            if target is None:
                raise no_such_path_error()
            return await self.aggregator.send(target, request, user)
        resource_request = ResourceRequest(
            request=request,
            query=query,
            route=found,
            resource=resource,
            user=user,
            options=self._dispatch.parse_options(request, query, found),
            warnings=warnings,
        )
        self._dispatch.check_verb(resource_request)
        answer = await self._dispatch.answer(resource_request)
        return StreamResponse(answer) if isinstance(answer, OpenStream) else answer

    def _authorize(self, found: Route, query: QueryParameters, user: UserInfo, *, namespaced: bool) -> None:
        authorizer = self.core.parts.authorizer
        if authorizer is None:
            return
        name, fields = found.name, ""
        if found.verb in {"list", "watch", "deletecollection"}:
            fields = query.text("fieldSelector")
            name = fields.removeprefix("metadata.name=")
            name = name if name != fields and "," not in name else ""
        attributes = Attributes(
            user=user,
            verb=found.verb,
            group=found.group,
            version=found.version,
            resource=found.resource,
            subresource=found.subresource,
            namespace=found.namespace if namespaced else "",
            name=name,
            fields=fields,
        )
        decision = authorizer.authorize(attributes)
        if not decision.allowed:
            raise not_allowed_error(attributes, decision.reason)

    async def _aggregated_document(self, request: Request, user: UserInfo) -> Response | None:
        """Answers discovery as far as it is about groups of APIServices; None for all other paths."""
        path = request.path.rstrip("/")
        if request.method != "GET" or not path.startswith("/apis"):
            return None
        match path.split("/")[2:]:
            case [] if self.aggregator.groups():
                document = self._document(request, user)
                whole = msgspec.json.decode(document.body)
                if whole["kind"] == "APIGroupList":
                    whole["groups"] += self.aggregator.groups()
                else:
                    whole["items"] += await self.aggregator.discovered()
                return msgspec.structs.replace(document, body=msgspec.json.encode(whole))
            case [name] if (group := self.aggregator.group(name)) is not None:
                self._authorize_path(request, path, user)
                return _document({"kind": "APIGroup", "apiVersion": "v1", **group})
            case [name, version] if (target := self.aggregator.find(name, version)) is not None:
                self._authorize_path(request, path, user)
                return await self.aggregator.send(target, request, user)
        return None

    def _authorize_path(self, request: Request, path: str, user: UserInfo) -> None:
        parts = self.core.parts
        if parts.authorizer:
            attributes = Attributes(user=user, verb=request.method.lower(), path=path)
            if not parts.authorizer.authorize(attributes).allowed:
                text = f'forbidden: User "{user.name}" cannot {request.method.lower()} path "{path}"'
                raise StatusError(403, "Forbidden", text)

    def _document(self, request: Request, user: UserInfo) -> Response:
        """Answers a path that names no resource: health, version, discovery, OpenAPI."""
        path = request.path.rstrip("/") or "/"
        parts = self.core.parts
        self._authorize_path(request, path, user)
        if request.method not in {"GET", "HEAD"}:
            raise StatusError(
                405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
            )
        if path in _HEALTH:
            return Response(status=200, headers={"content-type": "text/plain; charset=utf-8"}, body=b"ok")
        if path == "/openapi/v3" and parts.openapi:
            return _document(parts.openapi.index())
        if path == "/openapi/v2" and parts.openapi:
            whole = openapi.build_document(parts.openapi.documents())
            if openapi.PROTOBUF in request.headers.get("accept", ""):
                media = {"content-type": openapi.PROTOBUF_ANSWER}
                return Response(status=200, headers=media, body=openapi.encode_document(whole))
            return _document(whole)
        if path.startswith("/openapi/v3/") and parts.openapi:
            document = parts.openapi.document(path.removeprefix("/openapi/v3/"))
            if document is not None:
                return _document(document)
        found = parts.discovery.answer(path, request.headers.get("accept", "")) if parts.discovery else None
        if found is None:
            raise no_such_path_error()
        return _document(found[1], found[0])

    def _note(self, request: Request, query: QueryParameters, found: Route | None, user: UserInfo, code: int) -> None:
        entry = AuditEntry(
            at=self.core.clock.now(),
            user=user.name,
            verb=found.verb if found else request.method.lower(),
            resource=qualified_name(found.group, found.resource) if found else "",
            subresource=found.subresource if found else "",
            namespace=found.namespace if found else "",
            name=found.name if found else "",
            code=code,
            path="" if found else request.path,
            dry_run=bool(query.text("dryRun")),
        )
        self.core.audit.record(entry)


def error_response(error: StatusError) -> Response:
    """Makes the answer for a refusal."""
    headers = {"content-type": "application/json"}
    if error.retry_after:
        headers["retry-after"] = str(error.retry_after)
    return Response(status=error.code, headers=headers, body=msgspec.json.encode(error.status))


def _document(document: Obj, media: str = "application/json") -> Response:
    return Response(status=200, headers={"content-type": media}, body=msgspec.json.encode(document))


def _add_warnings(answer: Response, warnings: Sequence[str]) -> Response:
    """Adds warnings as RFC 7234 headers with code 299, joined into one line."""
    shown = ", ".join('299 - "' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in warnings)
    return msgspec.structs.replace(answer, headers={**answer.headers, "warning": shown})
