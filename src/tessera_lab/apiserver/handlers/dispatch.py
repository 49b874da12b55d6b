"""From a request for a resource to the verb that serves it, and from what the verb made to an answer."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import yaml

from tessera.kube.transport.interface import Request, Response
from tessera_lab.apiserver.authz.identity import Identities
from tessera_lab.apiserver.handlers.read_handler import Reading
from tessera_lab.apiserver.handlers.request_bodies import (
    delete_options,
    media_type,
    parse_json,
    parse_yaml,
    read_body,
    write_options,
)
from tessera_lab.apiserver.handlers.review_handler import Reviews
from tessera_lab.apiserver.handlers.subresource_handler import Subresources, read_pod_logs
from tessera_lab.apiserver.handlers.write_handler import Transform, Writing
from tessera_lab.apiserver.interfaces import Cause, GroupResource, Obj
from tessera_lab.apiserver.patch.json_patch import APPLY, JSON_PATCH, MERGE, STRATEGIC, json_patch, merge_patch
from tessera_lab.apiserver.patch.strategic_merge import strategic_merge
from tessera_lab.apiserver.request.negotiation import YAML, accept
from tessera_lab.apiserver.request.routing import Query, Route
from tessera_lab.apiserver.request.server_state import Ask, Core
from tessera_lab.apiserver.status import (
    bad_request,
    invalid,
    method_not_allowed,
    no_such_path,
    not_implemented,
    unsupported_media,
)
from tessera_lab.apiserver.storage.store import Stored, copied
from tessera_lab.apiserver.storage.watch import Watcher
from tessera_lab.apiserver.validation.strategies import strategy_of

_ON_COLLECTIONS = frozenset({"create", "deletecollection", "list", "watch"})
_WRITE_OPTIONS = {"create": "CreateOptions", "update": "UpdateOptions", "patch": "PatchOptions"}
#: Subresources that Kubernetes has and this server does not.
_NOT_PLAYED = frozenset(
    {
        *((GroupResource("", "pods"), name) for name in ("attach", "exec", "portforward", "proxy", "resize")),
        *((GroupResource("", plural), "proxy") for plural in ("nodes", "services")),
    }
)


class OpenWatch(msgspec.Struct, frozen=True):
    """A watch that began; ``close`` leaves its hub."""

    watcher: Watcher
    close: Callable[[], None]


class Dispatch:
    """Every verb on every resource."""

    def __init__(self, core: Core, writing: Writing, identities: Identities) -> None:
        self._core = core
        self._reading = Reading(core)
        self._writing = writing
        self._reviews = Reviews(core, identities)
        self._subresources = Subresources(core, self._reading, writing, identities)

    def options(self, request: Request, query: Query, found: Route) -> Mapping[str, Any]:
        """The verb's options.

        Raises:
            StatusError: they are not valid.
        """
        if found.verb in {"delete", "deletecollection"}:
            return delete_options(request, query, self._core.parts.protobuf)
        kind = _WRITE_OPTIONS.get(found.verb)
        return write_options(query, kind) if kind else {}

    def check_verb(self, ask: Ask) -> None:
        """Whether the resource has the verb and the subresource.

        Raises:
            StatusError: 404 or 405.
        """
        found, resource = ask.route, ask.resource
        if found.parts and found.subresource != "proxy":
            raise no_such_path()
        if found.subresource:
            subresource = resource.subresources.get(found.subresource)
            if subresource is None and (resource.group_resource, found.subresource) in _NOT_PLAYED:
                raise not_implemented(f"the {found.subresource} subresource of {resource.plural}")
            if subresource is None:
                raise no_such_path()
            allowed = found.verb in subresource.verbs
        else:
            allowed = found.verb in resource.verbs and (found.verb in _ON_COLLECTIONS) != bool(found.name)
        if resource.namespaced and not found.namespace and found.verb not in {"list", "watch"}:
            allowed = False
        if not allowed:
            raise method_not_allowed(resource.group, resource.plural, found.verb)

    async def answer(self, ask: Ask) -> Response | OpenWatch:
        """Serves the request.

        Raises:
            StatusError: refused.
        """
        if (ask.resource.plural, ask.route.subresource) == ("pods", "log"):
            return read_pod_logs(ask, self._reading.find(ask).obj, self._core.parts.logs)
        if self._subresources.covers(ask):
            patch = self._patch(ask) if ask.route.verb == "patch" else None
            code, document = await self._subresources.answer(ask, patch)
            return _ok(ask, msgspec.json.encode(document), code)
        if self._reviews.covers(ask.resource.plural):
            review = read_body(ask.request, self._core.parts.protobuf)
            review |= {"kind": ask.resource.kind, "apiVersion": ask.resource.api_version}
            answered = self._reviews.answer(ask.resource.plural, review, ask.user)
            return _ok(ask, msgspec.json.encode(answered), 201)
        return await self._verb(ask)

    async def _verb(self, ask: Ask) -> Response | OpenWatch:
        match ask.route.verb:
            case "get":
                return _ok(ask, self._reading.get(ask))
            case "list":
                return _ok(ask, self._reading.collection(ask))
            case "watch":
                watcher = self._reading.watch(ask)
                return OpenWatch(watcher, lambda: self._reading.unwatch(ask, watcher))
            case "create":
                return self._shown(ask, await self._writing.create(ask, self._body(ask)), 201)
            case "update":
                body = self._body(ask)
                return self._shown(ask, await self._writing.change(ask, lambda _: copied(body), put=True))
            case "patch":
                return await self._patched(ask)
            case "delete":
                return await self._delete(ask)
            case _:
                return await self._delete_all(ask)

    def _body(self, ask: Ask) -> Obj:
        return read_body(ask.request, self._core.parts.protobuf)

    async def _patched(self, ask: Ask) -> Response:
        if media_type(ask.request) == APPLY:
            stored, made = await self._writing.apply(ask, _configuration(ask))
            return self._shown(ask, stored, 201 if made else 200)
        if ask.options.get("force") is not None:
            text = "Forbidden: may not be specified for non-apply patch"
            cause = Cause(field="force", reason="FieldValueForbidden", message=text)
            raise invalid("meta.k8s.io", "PatchOptions", "", [cause])
        return self._shown(ask, await self._writing.change(ask, self._patch(ask)))

    def _patch(self, ask: Ask) -> Transform:
        media = media_type(ask.request)
        custom = bool(ask.resource.served_crd)
        if media == STRATEGIC and not custom:
            patch, topology = parse_json(ask.request.body), ask.resource.topology
            return lambda old: strategic_merge(old, patch, topology)
        if media == MERGE:
            patch = parse_json(ask.request.body)
            return lambda old: merge_patch(old, patch)
        if media == JSON_PATCH:
            patch = parse_json(ask.request.body)
            return lambda old: json_patch(old, patch)
        raise unsupported_media((JSON_PATCH, MERGE, APPLY) if custom else (JSON_PATCH, MERGE, STRATEGIC, APPLY))

    def _shown(self, ask: Ask, stored: Stored, code: int = 200) -> Response:
        return _ok(ask, self._reading.form(ask).one(stored), code)

    async def _delete(self, ask: Ask) -> Response:
        last, gone = await self._writing.delete(ask, ask.route.name)
        if not gone or strategy_of(ask.resource).returns_deleted:
            return self._shown(ask, last)
        details = {"name": ask.route.name, "group": ask.resource.group, "kind": ask.resource.plural}
        details["uid"] = last.obj["metadata"]["uid"]
        shown = {key: value for key, value in details.items() if value}
        done = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": shown}
        return _ok(ask, msgspec.json.encode(done))

    async def _delete_all(self, ask: Ask) -> Response:
        last = []
        for stored in self._reading.matching(ask):
            meta = stored.obj["metadata"]
            route = msgspec.structs.replace(ask.route, namespace=meta.get("namespace", ""))
            state, _ = await self._writing.delete(msgspec.structs.replace(ask, route=route), meta["name"])
            last.append(state)
        form = self._reading.form(ask)
        return _ok(ask, form.many(last, {"resourceVersion": str(self._core.store.rv)}))


def _configuration(ask: Ask) -> Obj:
    """An apply's body: YAML, of which JSON is a part; most clients send JSON.

    Raises:
        StatusError: 400, it is no object.
    """
    body = ask.request.body
    value = parse_json(body) if body[:1] == b"{" else parse_yaml(body)
    if not isinstance(value, dict):
        raise bad_request("error decoding YAML: the body is not an object")
    return value


def _ok(ask: Ask, body: bytes, code: int = 200) -> Response:
    if accept(ask.request.headers.get("accept", "")).media != YAML:
        return Response(status=code, headers={"content-type": "application/json"}, body=body)
    text = yaml.safe_dump(msgspec.json.decode(body), sort_keys=True)
    return Response(status=code, headers={"content-type": YAML}, body=text.encode())
