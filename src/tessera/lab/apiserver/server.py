"""The API server without I/O: a request and a user in, an answer or an open watch out.

It authorizes, routes to the verb, turns refusals into ``Status`` and writes the audit log. What the paths mean is
:mod:`routing`, what the verbs do is :mod:`reading` and :mod:`writing`.
"""

import random
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from tessera.clock import Clock
from tessera.kube.transport import Request, Response
from tessera.lab.apiserver.admission import Admission, namespace_lifecycle
from tessera.lab.apiserver.audit import AuditLog, Entry
from tessera.lab.apiserver.bodies import delete_options, media_type, parse_json, read_body, write_options
from tessera.lab.apiserver.builtin import builtin_types
from tessera.lab.apiserver.core import Ask, Core, Parts
from tessera.lab.apiserver.patches import JSON_PATCH, MERGE, json_patch, merge_patch
from tessera.lab.apiserver.reading import Reading
from tessera.lab.apiserver.registry import Registry
from tessera.lab.apiserver.routing import Query, Route, route
from tessera.lab.apiserver.seams import Attributes, Obj, UserInfo
from tessera.lab.apiserver.status import (
    StatusError,
    forbidden,
    method_not_allowed,
    no_such_path,
    qualified,
    unsupported_media,
)
from tessera.lab.apiserver.storage import HISTORY, Store, Stored
from tessera.lab.apiserver.strategies import strategy_of
from tessera.lab.apiserver.watch import Watcher
from tessera.lab.apiserver.writing import Transform, Writing

_PATCHES = (JSON_PATCH, MERGE)
_ON_COLLECTIONS = frozenset({"create", "deletecollection", "list", "watch"})
_WRITE_OPTIONS = {"create": "CreateOptions", "update": "UpdateOptions", "patch": "PatchOptions"}


class WatchResponse:
    """An open watch: 200 and a stream. Who reads ``chunks`` to the end or stops calls :meth:`close`."""

    status = 200

    def __init__(self, watcher: Watcher, close: Any) -> None:
        self._watcher = watcher
        self._close = close
        self.headers: Mapping[str, str] = {"content-type": "application/json"}

    def chunks(self) -> AsyncIterator[bytes]:
        """The stream's pieces: whole lines, several at once when they wait."""
        return self._watcher.chunks()

    def close(self) -> None:
        """Ends the watch."""
        self._close()
        self._watcher.end()


class ApiServer:
    """One API server with its own state.

    Args:
        clock: what timestamps and ages are read from.
        seed: of uids and generated names.
        history: changes kept per resource for watches and past lists.
    """

    def __init__(self, clock: Clock, *, seed: int = 0, history: int = HISTORY) -> None:
        self.core = Core(clock, Store(history), Registry(builtin_types()), random.Random(seed))  # noqa: S311 - names
        self._reading = Reading(self.core)
        self._writing = Writing(self.core, Admission(self.core, (namespace_lifecycle,)))
        self._bootstrap()

    @property
    def audit(self) -> AuditLog:
        """What was asked and answered."""
        return self.core.audit

    @property
    def parts(self) -> Parts:
        """The parts behind the seams; assign to join one."""
        return self.core.parts

    def _bootstrap(self) -> None:
        for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
            meta = {"name": name, "uid": self.core.new_uid(), "creationTimestamp": self.core.timestamp()}
            obj: Obj = {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": meta,
                "spec": {"finalizers": ["kubernetes"]},
            }
            meta["labels"] = {"kubernetes.io/metadata.name": name}  # type: ignore[assignment]
            obj["status"] = {"phase": "Active"}
            namespaces = self.core.registry.get("", "v1", "namespaces")
            assert namespaces is not None
            self.core.store.put(namespaces.storage, obj, None)

    async def handle(self, request: Request, user: UserInfo) -> Response | WatchResponse:
        """Answers one request; never raises for what a client can do wrong."""
        query = Query(request)
        warnings: list[str] = []
        found: Route | None = None
        answer: Response | WatchResponse
        try:
            found = route(request, query)
            answer = await self._answer(request, query, found, user, warnings)
        except StatusError as error:
            answer = _refusal(error)
        self._note(request, query, found, user, answer.status)
        if warnings and isinstance(answer, Response):
            shown = ", ".join('299 - "' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in warnings)
            answer = msgspec.structs.replace(answer, headers={**answer.headers, "warning": shown})
        return answer

    def _note(self, request: Request, query: Query, found: Route | None, user: UserInfo, code: int) -> None:
        entry = Entry(
            at=self.core.clock.now(),
            user=user.name,
            verb=found.verb if found else request.method.lower(),
            resource=qualified(found.group, found.resource) if found else "",
            subresource=found.subresource if found else "",
            namespace=found.namespace if found else "",
            name=found.name if found else "",
            code=code,
            path="" if found else request.path,
            dry_run=bool(query.text("dryRun")),
        )
        self.core.audit.note(entry)

    async def _answer(
        self, request: Request, query: Query, found: Route | None, user: UserInfo, warnings: list[str]
    ) -> Response | WatchResponse:
        if found is None:
            raise no_such_path()
        resource = self.core.registry.get(found.group, found.version, found.resource)
        if resource is None:
            raise no_such_path()
        self._authorize(found, query, user, namespaced=resource.namespaced)
        ask = Ask(
            request=request,
            query=query,
            route=found,
            resource=resource,
            user=user,
            options=self._options(request, query, found),
            warnings=warnings,
        )
        self._check_verb(ask)
        return await self._dispatch(ask)

    def _authorize(self, found: Route, query: Query, user: UserInfo, *, namespaced: bool) -> None:
        authorizer = self.core.parts.authorizer
        if authorizer is None:
            return
        del query
        attributes = Attributes(
            user=user,
            verb=found.verb,
            group=found.group,
            version=found.version,
            resource=found.resource,
            subresource=found.subresource,
            namespace=found.namespace if namespaced or found.resource == "namespaces" else "",
            name=found.name,
        )
        decision = authorizer.authorize(attributes)
        if not decision.allowed:
            what = found.resource + (f"/{found.subresource}" if found.subresource else "")
            scope = f' in the namespace "{found.namespace}"' if attributes.namespace else " at the cluster scope"
            why = f'User "{user.name}" cannot {found.verb} resource "{what}" in API group "{found.group}"{scope}'
            raise forbidden(
                found.group, found.resource, found.name, why + (f": {decision.reason}" if decision.reason else "")
            )

    def _options(self, request: Request, query: Query, found: Route) -> Mapping[str, Any]:
        if found.verb in {"delete", "deletecollection"}:
            return delete_options(request, query, self.core.parts.protobuf)
        kind = _WRITE_OPTIONS.get(found.verb)
        return write_options(query, kind) if kind else {}

    def _check_verb(self, ask: Ask) -> None:
        found, resource = ask.route, ask.resource
        if found.parts:
            raise no_such_path()
        if found.subresource:
            subresource = resource.subresources.get(found.subresource)
            if subresource is None:
                raise no_such_path()
            if found.verb not in subresource.verbs:
                raise method_not_allowed(resource.group, resource.plural, found.verb)
            return
        if found.verb not in resource.verbs or (found.verb in _ON_COLLECTIONS) == bool(found.name):
            raise method_not_allowed(resource.group, resource.plural, found.verb)
        if resource.namespaced and not found.namespace and found.verb not in {"list", "watch"}:
            raise method_not_allowed(resource.group, resource.plural, found.verb)

    async def _dispatch(self, ask: Ask) -> Response | WatchResponse:
        match ask.route.verb:
            case "get":
                return _ok(self._reading.get(ask))
            case "list":
                return _ok(self._reading.collection(ask))
            case "watch":
                watcher = self._reading.watch(ask)
                return WatchResponse(watcher, lambda: self._reading.unwatch(ask, watcher))
            case "create":
                body = read_body(ask.request, self.core.parts.protobuf)
                return self._shown(ask, await self._writing.create(ask, body), 201)
            case "update":
                body = read_body(ask.request, self.core.parts.protobuf)
                return self._shown(ask, await self._writing.change(ask, lambda _: body, put=True))
            case "patch":
                return self._shown(ask, await self._writing.change(ask, self._patch(ask)))
            case "delete":
                return await self._delete(ask)
            case _:
                raise method_not_allowed(ask.resource.group, ask.resource.plural, ask.route.verb)

    def _patch(self, ask: Ask) -> Transform:
        patch = parse_json(ask.request.body)
        match media_type(ask.request):
            case "application/merge-patch+json":
                return lambda old: merge_patch(old, patch)
            case "application/json-patch+json":
                return lambda old: json_patch(old, patch)
            case _:
                raise unsupported_media(_PATCHES)

    def _shown(self, ask: Ask, stored: Stored, code: int = 200) -> Response:
        return _ok(self._reading.form(ask).one(stored), code)

    async def _delete(self, ask: Ask) -> Response:
        last, gone = await self._writing.delete(ask, ask.route.name)
        if not gone or strategy_of(ask.resource).returns_deleted:
            return self._shown(ask, last)
        details = {"name": ask.route.name, "kind": ask.resource.plural, "uid": last.obj["metadata"]["uid"]}
        if ask.resource.group:
            details["group"] = ask.resource.group
        return _ok(
            msgspec.json.encode(
                {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
            )
        )


def _ok(body: bytes, code: int = 200) -> Response:
    return Response(status=code, headers={"content-type": "application/json"}, body=body)


def _refusal(error: StatusError) -> Response:
    headers = {"content-type": "application/json"}
    if error.retry_after:
        headers["retry-after"] = str(error.retry_after)
    return Response(status=error.code, headers=headers, body=msgspec.json.encode(error.status))
