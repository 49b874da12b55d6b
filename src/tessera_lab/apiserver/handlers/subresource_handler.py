"""Subresources with behaviour of their own: scale, binding, eviction and token. Others are answered 501.

``scale`` reads an ``autoscaling/v1`` Scale from an object and writes it back.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from tessera_lab.apiserver.authz.identity import DEFAULT_LIFE, SHORTEST_LIFE, TokenAuthenticator
from tessera_lab.apiserver.handlers.read_handler import ReadHandler
from tessera_lab.apiserver.handlers.request_bodies import check_type, read_body
from tessera_lab.apiserver.handlers.write_handler import Transform, WriteHandler
from tessera_lab.apiserver.interfaces import GroupResource, Obj, StatusCause
from tessera_lab.apiserver.pods.binding_and_eviction import (
    bind_pod,
    check_budgets,
    matching_budgets,
    parse_delete_options,
    set_condition,
)
from tessera_lab.apiserver.request.server_state import ResourceRequest, ServerState
from tessera_lab.apiserver.resource_types import ScalePaths
from tessera_lab.apiserver.status import StatusError, invalid_error, not_implemented_error
from tessera_lab.apiserver.storage.store import StoredObject, deep_copy

BUDGETS = GroupResource("policy", "poddisruptionbudgets")
_COVERED = frozenset({"scale", "binding", "eviction", "token", "ephemeralcontainers"})
DONE: Obj = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


class SubresourceHandler:
    """The verbs of these subresources; each answers (HTTP status, document)."""

    def __init__(
        self, core: ServerState, reading: ReadHandler, writing: WriteHandler, identities: TokenAuthenticator
    ) -> None:
        self._core = core
        self._reading = reading
        self._writing = writing
        self._identities = identities

    def covers(self, request: ResourceRequest) -> bool:
        """Returns True if the request is for one of them."""
        return request.route.subresource in _COVERED

    async def answer(self, request: ResourceRequest, patch: Transform | None) -> tuple[int, Obj]:
        """Does what is asked; ``patch`` is a PATCH's body as a function.

        Raises:
            StatusError: refused.
        """
        match request.route.subresource:
            case "scale":
                return 200, await self._scale(request, patch)
            case "binding":
                return 201, await self._bind(request)
            case "eviction":
                return 201, await self._evict(request)
            case "token":
                return 201, self._token(request)
            case _:
                raise not_implemented_error(f"the {request.route.subresource} subresource of {request.resource.plural}")

    async def _scale(self, request: ResourceRequest, patch: Transform | None) -> Obj:
        paths = request.resource.scale
        assert paths is not None
        if request.route.verb == "get":
            return build_scale(self._core.to_served_form(request.resource, self._reading.find(request)), paths)
        body = None if patch else self._body(request, "autoscaling/v1", "Scale")

        def change(obj: Obj) -> Obj:
            assert paths is not None
            desired = patch(build_scale(obj, paths)) if patch else body
            assert desired is not None
            return apply_scale(obj, desired, paths)

        return build_scale(
            self._core.to_served_form(request.resource, await self._writing.update(request, change)), paths
        )

    async def _bind(self, request: ResourceRequest) -> Obj:
        body = self._body(request, "v1", "Binding")
        now = self._core.timestamp()
        await self._writing.update(request, lambda pod: bind_pod(pod, body, now))
        return DONE

    async def _evict(self, request: ResourceRequest) -> Obj:
        body = self._body(request, "policy/v1", "Eviction")
        options = parse_delete_options(body, request.route.name)
        await self._writing.admit_subresource(request, "Eviction", body)
        found = self._reading.find(request)
        budgets = matching_budgets(found.obj, self._core.store.list(BUDGETS, request.namespace))
        budget = check_budgets(found.obj, budgets)
        dry = options.get("dryRun") or request.options.get("dryRun")
        requested = msgspec.structs.replace(request, options={**options, **({"dryRun": dry} if dry else {})})
        if budget is not None and not dry:
            self._use_budget(request, budget.name, found)
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
            "lastProbeTime": None,
            "lastTransitionTime": self._core.timestamp(),
        }
        if not dry:
            await self._writing.update(request, lambda pod: _add_disruption_condition(pod, condition))
        await self._writing.delete(requested, request.route.name)
        return DONE

    def _use_budget(self, request: ResourceRequest, name: str, pod: StoredObject) -> None:
        stored = self._core.store.find(BUDGETS, request.namespace, name)
        assert stored is not None
        used = deep_copy(stored.obj)
        used["status"]["disruptionsAllowed"] -= 1
        used["status"].setdefault("disruptedPods", {})[pod.obj["metadata"]["name"]] = self._core.timestamp()
        self._core.store.put(BUDGETS, used, stored)

    def _token(self, request: ResourceRequest) -> Obj:
        body = self._body(request, "authentication.k8s.io/v1", "TokenRequest")
        spec: dict[str, Any] = body.get("spec") or {}
        life = spec.get("expirationSeconds") or DEFAULT_LIFE
        if life < SHORTEST_LIFE:
            text = f"Invalid value: {life}: may not specify a duration less than 10 minutes"
            cause = StatusCause(field="spec.expirationSeconds", reason="FieldValueInvalid", message=text)
            raise invalid_error("authentication.k8s.io", "TokenRequest", "", [cause])
        bound_to = spec.get("boundObjectRef") or {}
        pod = None
        if bound_to:
            if bound_to.get("kind") != "Pod":
                raise not_implemented_error(f"a token bound to a {bound_to.get('kind')}")
            pods = self._core.registry.get("", "v1", "pods")
            assert pods is not None
            route = msgspec.structs.replace(request.route, name=bound_to.get("name", ""))
            found = self._reading.find(msgspec.structs.replace(request, resource=pods, route=route))
            pod = dict(found.obj)
        token = self._identities.issue_token(
            request.namespace, request.route.name, life=life, audiences=spec.get("audiences") or (), pod=pod
        )
        status = {"token": token, "expirationTimestamp": self._identities.expiry(token)}
        return {**body, "metadata": {"name": request.route.name, "namespace": request.namespace}, "status": status}

    def _body(self, request: ResourceRequest, version: str, kind: str) -> Obj:
        body = read_body(request.request, self._core.parts.protobuf)
        check_type(body, version, kind)
        return body


def _add_disruption_condition(pod: Obj, condition: Obj) -> Obj:
    set_condition(pod, condition)
    return pod


Read = Mapping[str, Any]


def _at(obj: Read, path: str) -> Any:
    value: Any = obj
    for step in path.strip(".").split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def build_scale(obj: Read, paths: ScalePaths) -> Obj:
    """The object's Scale."""
    meta = obj["metadata"]
    retained = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    status: Obj = {"replicas": _at(obj, paths.status_replicas) or 0}
    selector = selector_text(_at(obj, paths.selector)) if paths.selector else ""
    if selector:
        status["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in retained if key in meta},
        "spec": {"replicas": _at(obj, paths.replicas) or 0},
        "status": status,
    }


def apply_scale(obj: Obj, scale: Read, paths: ScalePaths) -> Obj:
    """The object with the Scale's replicas, resourceVersion and uid, which the update then checks.

    Raises:
        StatusError: 422, replicas is negative; 400, it is no number.
    """
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if not isinstance(replicas, int) or isinstance(replicas, bool):
        raise StatusError(400, "BadRequest", f"spec.replicas: expected an integer, got {replicas!r}")
    if replicas < 0:
        text = f"Invalid value: {replicas}: must be greater than or equal to 0"
        cause = StatusCause(field="spec.replicas", reason="FieldValueInvalid", message=text)
        raise invalid_error("autoscaling", "Scale", obj["metadata"]["name"], [cause])
    *parents, last = paths.replicas.strip(".").split(".")
    place = obj
    for step in parents:
        place = place.setdefault(step, {})
    place[last] = replicas
    given = scale.get("metadata") or {}
    for key in ("resourceVersion", "uid"):
        if given.get(key):
            obj["metadata"][key] = given[key]
    return obj


def selector_text(selector: Any) -> str:
    """A LabelSelector, or a selector that is text already, as the query parameter writes it."""
    if not selector:
        return ""
    if isinstance(selector, str):
        return selector
    parts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for rule in sorted(selector.get("matchExpressions") or (), key=lambda each: each["key"]):
        values = ",".join(sorted(rule.get("values") or ()))
        match rule["operator"]:
            case "In":
                parts.append(f"{rule['key']} in ({values})")
            case "NotIn":
                parts.append(f"{rule['key']} notin ({values})")
            case "Exists":
                parts.append(rule["key"])
            case _:
                parts.append(f"!{rule['key']}")
    return ",".join(parts)
