"""Calls the verb that serves a request, and turns the verb's result into an answer.

A :class:`ReviewHandler` answers reviews: the requests of ``kubectl auth can-i`` and ``auth whoami``, and TokenReviews.

Nothing is stored; a review is the request's object with its status filled in. Without an authorizer everything is
allowed.

Requests to ``pods/NAME:PORT/proxy/PATH`` and ``services/NAME:PORT/proxy/PATH`` go to pods, through the API server.

Simulated servers take every method; of a container that runs for real only pages are got. Only pods with an address of
this lab are reached, so a forged status leads nowhere else. The request's headers are passed on, but for those of the
connection and for Authorization, which a real server removes once it knows the user. TLS to the pod and WebSockets are
answered 501.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import yaml

from tessera.kube.requests import Request, Response
from tessera_lab.apiserver.authz.identity import ISSUER, TokenAuthenticator, encode_user
from tessera_lab.apiserver.handlers.pod_connect import (
    TEXT,
    LogStream,
    PortForward,
    Tunnels,
    read_pod_log,
    run_in_container,
)
from tessera_lab.apiserver.handlers.read_handler import ReadHandler
from tessera_lab.apiserver.handlers.request_bodies import (
    delete_options,
    media_type,
    parse_json,
    parse_yaml,
    read_body,
    write_options,
)
from tessera_lab.apiserver.handlers.subresource_handler import SubresourceHandler
from tessera_lab.apiserver.handlers.write_handler import Transform, WriteHandler
from tessera_lab.apiserver.interfaces import (
    Attributes,
    AuthorizationDecision,
    Authorizer,
    CommandResult,
    GroupResource,
    Obj,
    StatusCause,
    UserInfo,
)
from tessera_lab.apiserver.patch.strategic_merge import (
    APPLY,
    JSON_PATCH,
    MERGE,
    STRATEGIC,
    json_patch,
    merge_patch,
    strategic_merge,
)
from tessera_lab.apiserver.request.negotiation import YAML, parse_accept
from tessera_lab.apiserver.request.routing import QueryParameters, Route
from tessera_lab.apiserver.request.server_state import PODS, ResourceRequest, ServerParts, ServerState
from tessera_lab.apiserver.status import (
    StatusError,
    bad_request_error,
    invalid_error,
    method_not_allowed_error,
    no_such_path_error,
    not_implemented_error,
    unsupported_media_error,
)
from tessera_lab.apiserver.storage.store import StoredObject, deep_copy
from tessera_lab.apiserver.storage.watch import Watcher
from tessera_lab.apiserver.validation import find_strategy

_HIGHEST_PORT = 65_535
_KEPT_BACK = frozenset(
    {"authorization", "host", "connection", "content-length", "transfer-encoding", "accept-encoding"}
)


def split_proxy_name(text: str) -> tuple[str, str, str]:
    """Splits ``[SCHEME:]NAME[:PORT]`` into scheme, name and port; absent parts are empty.

    Raises:
        StatusError: 400, there are too many parts.
    """
    parts = text.split(":")
    if len(parts) > 3:
        raise bad_request_error(f"invalid pod request {text!r}")
    if len(parts) == 3:
        return parts[0], parts[1], parts[2]
    return "", parts[0], parts[1] if len(parts) == 2 else ""


async def proxy_to_pod(request: ResourceRequest, pod: Mapping[str, Any], port: str, parts: ServerParts) -> Response:
    """Passes a request on to a pod.

    Args:
        request: the request; its path after ``proxy`` is the page's.
        pod: the pod.
        port: its port as text; empty for the first one that the pod declares.
        parts: have the simulated servers, and get pages of pods that listen.

    Raises:
        StatusError: 400, the port is not valid; 501, the pod cannot be reached here; 503, it does not answer.
    """
    number, meta = _port(pod, port), pod["metadata"]
    passed = {name: value for name, value in request.request.headers.items() if name not in _KEPT_BACK}
    path = "/" + "/".join(request.route.parts)
    if parts.servers is not None:
        sent = msgspec.structs.replace(request.request, path=path, headers=passed)
        with contextlib.suppress(LookupError):
            return await parts.servers.answer(meta["namespace"], meta["name"], number, sent)
    if request.request.method != "GET" or parts.get_page is None:
        raise not_implemented_error("the proxy subresource of pods that do not listen on this machine")
    address = (pod.get("status") or {}).get("podIP", "")
    try:
        return await parts.get_page(address, number, path, passed)
    except LookupError:
        raise not_implemented_error(f"the proxy to the address {address!r}") from None
    except OSError as error:
        message = f"error trying to reach service: dial tcp {address}:{number}: {error}"
        raise StatusError(503, "ServiceUnavailable", message) from None


def choose_endpoint(service: Mapping[str, Any], endpoints: Mapping[str, Any], port: str) -> tuple[str, int]:
    """Returns the pod behind a Service that gets a request, and the pod's port: the first that is ready.

    Args:
        service: the Service.
        endpoints: its Endpoints.
        port: number or name of the Service's port; empty for the one without a name.

    Raises:
        StatusError: 503 in the words of Kubernetes' ``ResourceLocation`` (pkg/registry/core/service/storage).
    """
    name, title = port, service["metadata"]["name"]
    if port.isascii() and port.isdecimal():
        found = [each for each in service["spec"].get("ports") or () if str(each["port"]) == port]
        if not found:
            raise StatusError(503, "ServiceUnavailable", f'no service port {port} found for service "{title}"')
        name = found[0].get("name") or ""
    for subset in endpoints.get("subsets") or ():
        ports = [each["port"] for each in subset.get("ports") or () if (each.get("name") or "") == name]
        pods = [each["targetRef"]["name"] for each in subset.get("addresses") or () if each.get("targetRef")]
        if ports and pods:
            return pods[0], ports[0]
    raise StatusError(503, "ServiceUnavailable", f'no endpoints available for service "{title}"')


def _port(pod: Mapping[str, Any], text: str) -> int:
    if not text:
        declared = (each for container in pod["spec"]["containers"] for each in container.get("ports") or ())
        return next((int(each["containerPort"]) for each in declared), 80)
    if not text.isascii() or not text.isdecimal() or not 0 < int(text[:6]) <= _HIGHEST_PORT:
        raise bad_request_error(f"invalid port {text!r}")
    return int(text)


_ACCESS = frozenset({"selfsubjectaccessreviews", "subjectaccessreviews", "localsubjectaccessreviews"})
_PLURALS = _ACCESS | {"selfsubjectrulesreviews", "selfsubjectreviews", "tokenreviews"}


class _Everything:
    """Allows everything: the server has no authorizer."""

    def authorize(self, attributes: Attributes) -> AuthorizationDecision:
        del attributes
        return AuthorizationDecision(allowed=True)

    def rules(self, user: UserInfo, namespace: str) -> tuple[Sequence[Obj], Sequence[Obj]]:
        del user, namespace
        everything: Obj = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
        return [everything], [{"verbs": ["*"], "nonResourceURLs": ["*"]}]


class ReviewHandler:
    """Answers all review kinds."""

    def __init__(self, core: ServerState, identities: TokenAuthenticator) -> None:
        self._core = core
        self._identities = identities

    def covers(self, plural: str) -> bool:
        """True if the resource is a review."""
        return plural in _PLURALS

    def answer(self, plural: str, review: Mapping[str, Any], user: UserInfo) -> Obj:
        """Answers a review.

        Args:
            plural: which kind of review.
            review: the review as sent.
            user: sender of the review.

        Raises:
            tessera_lab.apiserver.status.StatusError: 400, the spec does not have exactly one question.
        """
        authorizer = self._core.parts.authorizer or _Everything()
        meta = {**(review.get("metadata") or {}), "creationTimestamp": None}
        status = self._status(plural, review.get("spec") or {}, user, authorizer)
        return {**review, "metadata": meta, "status": status}

    def _status(self, plural: str, spec: Mapping[str, Any], user: UserInfo, authorizer: Authorizer) -> Obj:
        match plural:
            case "selfsubjectreviews":
                return {"userInfo": encode_user(user)}
            case "tokenreviews":
                return self._token(spec)
            case "selfsubjectrulesreviews":
                resources, others = authorizer.rules(user, spec.get("namespace", ""))
                return {"resourceRules": list(resources), "nonResourceRules": list(others), "incomplete": False}
            case "selfsubjectaccessreviews":
                return review_access(spec, user, authorizer)
        attributes = UserInfo(name=spec.get("user", ""), groups=tuple(spec.get("groups") or ()))
        return review_access(spec, attributes, authorizer)

    def _token(self, spec: Mapping[str, Any]) -> Obj:
        token, wanted = spec.get("token", ""), spec.get("audiences") or [ISSUER]
        user = self._identities.authenticate(token, wanted)
        if user is None:
            return {"user": {}, "error": "the token is not valid or has expired"}
        met = [each for each in wanted if each in self._identities.audiences(token)]
        return {"authenticated": True, "user": encode_user(user), "audiences": met}


def review_access(spec: Mapping[str, Any], user: UserInfo, authorizer: Authorizer) -> Obj:
    """Returns the status of an access review about ``user``.

    Raises:
        tessera_lab.apiserver.status.StatusError: 400, the spec has neither or both of resource and path.
    """
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if (resource is None) == (path is None):
        raise bad_request_error(
            "spec.resourceAttributes and spec.nonResourceAttributes: exactly one of them must be specified"
        )
    if path is not None:
        attributes = Attributes(user=user, verb=path.get("verb", ""), path=path.get("path", ""))
    else:
        names = ("verb", "group", "version", "resource", "subresource", "namespace", "name")
        attributes = Attributes(user=user, **{name: (resource or {}).get(name, "") for name in names})
    decision = authorizer.authorize(attributes)
    return {"allowed": decision.allowed, **({"reason": decision.reason} if decision.reason else {})}


_ENDPOINTS = GroupResource("", "endpoints")
_ON_COLLECTIONS = frozenset({"create", "deletecollection", "list", "watch"})
_WRITE_OPTIONS = {"create": "CreateOptions", "update": "UpdateOptions", "patch": "PatchOptions"}
#: Subresources that Kubernetes has and this server does not.
_NOT_PLAYED = frozenset(
    {
        *((GroupResource("", "pods"), name) for name in ("attach", "resize")),
        (GroupResource("", "nodes"), "proxy"),
    }
)


#: What a client is connected to by a WebSocket.
Connected = CommandResult | PortForward


class OpenStream(msgspec.Struct, frozen=True):
    """An open watch, or a log that is followed; ``close`` removes a watch from its hub."""

    source: Watcher | LogStream
    close: Callable[[], None]
    media: str = "application/json"


class RequestDispatcher:
    """Dispatches every verb on every resource."""

    def __init__(self, core: ServerState, writing: WriteHandler, identities: TokenAuthenticator) -> None:
        self._core = core
        self._reading = ReadHandler(core)
        self._writing = writing
        self._reviews = ReviewHandler(core, identities)
        self._tunnels = Tunnels()
        self._subresources = SubresourceHandler(core, self._reading, writing, identities)

    def parse_options(self, request: Request, query: QueryParameters, found: Route) -> Mapping[str, Any]:
        """Returns the verb's options.

        Raises:
            StatusError: they are not valid.
        """
        if found.verb in {"delete", "deletecollection"}:
            return delete_options(request, query, self._core.parts.protobuf)
        kind = _WRITE_OPTIONS.get(found.verb)
        return write_options(query, kind) if kind else {}

    def check_verb(self, request: ResourceRequest) -> None:
        """Checks that the resource has the verb and the subresource.

        Raises:
            StatusError: 404 or 405, it does not.
        """
        found, resource = request.route, request.resource
        if found.parts and found.subresource != "proxy":
            raise no_such_path_error()
        if found.subresource:
            subresource = resource.subresources.get(found.subresource)
            if subresource is None and (resource.group_resource, found.subresource) in _NOT_PLAYED:
                raise not_implemented_error(f"the {found.subresource} subresource of {resource.plural}")
            if subresource is None:
                raise no_such_path_error()
            allowed = found.verb in subresource.verbs
        else:
            allowed = found.verb in resource.verbs and (found.verb in _ON_COLLECTIONS) != bool(found.name)
        if resource.namespaced and not found.namespace and found.verb not in {"list", "watch"}:
            allowed = False
        if not allowed:
            raise method_not_allowed_error(resource.group, resource.plural, found.verb)

    async def answer(self, request: ResourceRequest) -> Response | OpenStream | Connected:
        """Serves the request.

        Raises:
            StatusError: refused.
        """
        if (request.resource.plural, request.route.subresource) == ("pods", "log"):
            log = read_pod_log(request, self._reading.find(request).obj, self._core.parts.logs, self._core.clock.now())
            return log if isinstance(log, Response) else OpenStream(log, log.end, TEXT)
        if (request.resource.plural, request.route.subresource) == ("pods", "exec"):
            return await run_in_container(request, self._reading.find(request).obj, self._core.parts)
        if (request.resource.plural, request.route.subresource) == ("pods", "portforward"):
            return self._tunnels.open(request, self._reading.find(request).obj, self._core.parts)
        if request.route.subresource == "proxy":
            return await self._proxy(request)
        if self._subresources.covers(request):
            patch = self._patch_function(request) if request.route.verb == "patch" else None
            code, document = await self._subresources.answer(request, patch)
            return _ok_response(request, msgspec.json.encode(document), code)
        if self._reviews.covers(request.resource.plural):
            review = read_body(request.request, self._core.parts.protobuf)
            review |= {"kind": request.resource.kind, "apiVersion": request.resource.api_version}
            answered = self._reviews.answer(request.resource.plural, review, request.user)
            return _ok_response(request, msgspec.json.encode(answered), 201)
        return await self._verb(request)

    async def _proxy(self, request: ResourceRequest) -> Response:
        _, name, port = split_proxy_name(request.route.name)
        route = msgspec.structs.replace(request.route, name=name)
        found = self._reading.find(msgspec.structs.replace(request, route=route)).obj
        if request.resource.plural == "pods":
            return await proxy_to_pod(request, found, port, self._core.parts)
        endpoints = self._core.store.find(_ENDPOINTS, request.namespace, name)
        pod_name, number = choose_endpoint(found, endpoints.obj if endpoints else {}, port)
        pod = self._core.store.find(PODS, request.namespace, pod_name)
        if pod is None:
            raise StatusError(503, "ServiceUnavailable", f'no endpoints available for service "{name}"')
        return await proxy_to_pod(request, pod.obj, str(number), self._core.parts)

    async def _verb(self, request: ResourceRequest) -> Response | OpenStream:
        match request.route.verb:
            case "get":
                return _ok_response(request, self._reading.get(request))
            case "list":
                return _ok_response(request, self._reading.list_objects(request))
            case "watch":
                watcher = self._reading.watch(request)
                return OpenStream(watcher, lambda: self._reading.unwatch(request, watcher))
            case "create":
                return self._object_response(request, await self._writing.create(request, self._body(request)), 201)
            case "update":
                body = self._body(request)
                return self._object_response(
                    request, await self._writing.update(request, lambda _: deep_copy(body), put=True)
                )
            case "patch":
                return await self._apply_patch(request)
            case "delete":
                return await self._delete(request)
            case _:
                return await self._delete_all(request)

    def _body(self, request: ResourceRequest) -> Obj:
        return read_body(request.request, self._core.parts.protobuf)

    async def _apply_patch(self, request: ResourceRequest) -> Response:
        if media_type(request.request) == APPLY:
            stored, created = await self._writing.apply(request, _configuration(request))
            return self._object_response(request, stored, 201 if created else 200)
        if request.options.get("force") is not None:
            text = "Forbidden: may not be specified for non-apply patch"
            cause = StatusCause(field="force", reason="FieldValueForbidden", message=text)
            raise invalid_error("meta.k8s.io", "PatchOptions", "", [cause])
        return self._object_response(request, await self._writing.update(request, self._patch_function(request)))

    def _patch_function(self, request: ResourceRequest) -> Transform:
        media = media_type(request.request)
        custom = bool(request.resource.served_crd)
        if media == STRATEGIC and not custom:
            patch, topology = parse_json(request.request.body), request.resource.topology
            return lambda old: strategic_merge(old, patch, topology)
        if media == MERGE:
            patch = parse_json(request.request.body)
            return lambda old: merge_patch(old, patch)
        if media == JSON_PATCH:
            patch = parse_json(request.request.body)
            return lambda old: json_patch(old, patch)
        raise unsupported_media_error((JSON_PATCH, MERGE, APPLY) if custom else (JSON_PATCH, MERGE, STRATEGIC, APPLY))

    def _object_response(self, request: ResourceRequest, stored: StoredObject, code: int = 200) -> Response:
        return _ok_response(request, self._reading.form(request).one(stored), code)

    async def _delete(self, request: ResourceRequest) -> Response:
        last, removed = await self._writing.delete(request, request.route.name)
        if not removed or find_strategy(request.resource).returns_deleted:
            return self._object_response(request, last)
        details = {"name": request.route.name, "group": request.resource.group, "kind": request.resource.plural}
        details["uid"] = last.obj["metadata"]["uid"]
        shown = {key: value for key, value in details.items() if value}
        done = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": shown}
        return _ok_response(request, msgspec.json.encode(done))

    async def _delete_all(self, request: ResourceRequest) -> Response:
        last = []
        for stored in self._reading.select_objects(request):
            meta = stored.obj["metadata"]
            route = msgspec.structs.replace(request.route, namespace=meta.get("namespace", ""))
            state, _ = await self._writing.delete(msgspec.structs.replace(request, route=route), meta["name"])
            last.append(state)
        form = self._reading.form(request)
        return _ok_response(request, form.many(last, {"resourceVersion": str(self._core.store.rv)}))


def _configuration(request: ResourceRequest) -> Obj:
    """Parses the body of an apply: YAML; most clients send JSON, which is also YAML.

    Raises:
        StatusError: 400, the body is no object.
    """
    body = request.request.body
    value = parse_json(body) if body[:1] == b"{" else parse_yaml(body)
    if not isinstance(value, dict):
        raise bad_request_error("error decoding YAML: the body is not an object")
    return value


def _ok_response(request: ResourceRequest, body: bytes, code: int = 200) -> Response:
    if parse_accept(request.request.headers.get("accept", "")).media != YAML:
        return Response(status=code, headers={"content-type": "application/json"}, body=body)
    text = yaml.safe_dump(msgspec.json.decode(body), sort_keys=True)
    return Response(status=code, headers={"content-type": YAML}, body=text.encode())
