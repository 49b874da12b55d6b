"""Subresources that are more than a part of their object: scale, binding, eviction, token; 501 for others."""

from typing import Any

import msgspec

from tessera_lab.apiserver.authz.identity import DEFAULT_LIFE, SHORTEST_LIFE, Identities
from tessera_lab.apiserver.handlers.read_handler import Reading
from tessera_lab.apiserver.handlers.request_bodies import check_type, read_body
from tessera_lab.apiserver.handlers.scale import scale_of, scaled
from tessera_lab.apiserver.handlers.write_handler import Transform, Writing
from tessera_lab.apiserver.interfaces import Cause, GroupResource, Obj
from tessera_lab.apiserver.pods.binding_and_eviction import (
    bound,
    budgets_for,
    check_evictable,
    check_eviction,
    set_condition,
)
from tessera_lab.apiserver.request.server_state import Ask, Core
from tessera_lab.apiserver.status import invalid, not_implemented
from tessera_lab.apiserver.storage.store import Stored, copied

BUDGETS = GroupResource("policy", "poddisruptionbudgets")
_COVERED = frozenset({"scale", "binding", "eviction", "token", "ephemeralcontainers"})
DONE: Obj = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


class Subresources:
    """What the verbs on these subresources do; each answers (HTTP status, document)."""

    def __init__(self, core: Core, reading: Reading, writing: Writing, identities: Identities) -> None:
        self._core = core
        self._reading = reading
        self._writing = writing
        self._identities = identities

    def covers(self, ask: Ask) -> bool:
        """Whether the request is for one of them."""
        return ask.route.subresource in _COVERED

    async def answer(self, ask: Ask, patch: Transform | None) -> tuple[int, Obj]:
        """Does what is asked; ``patch`` is a PATCH's body as a function.

        Raises:
            StatusError: refused.
        """
        match ask.route.subresource:
            case "scale":
                return 200, await self._scale(ask, patch)
            case "binding":
                return 201, await self._bind(ask)
            case "eviction":
                return 201, await self._evict(ask)
            case "token":
                return 201, self._token(ask)
            case _:
                raise not_implemented(f"the {ask.route.subresource} subresource of {ask.resource.plural}")

    async def _scale(self, ask: Ask, patch: Transform | None) -> Obj:
        paths = ask.resource.scale
        assert paths is not None
        if ask.route.verb == "get":
            return scale_of(self._core.shown_form(ask.resource, self._reading.find(ask)), paths)
        body = None if patch else self._body(ask, "autoscaling/v1", "Scale")

        def change(obj: Obj) -> Obj:
            assert paths is not None
            wanted = patch(scale_of(obj, paths)) if patch else body
            assert wanted is not None
            return scaled(obj, wanted, paths)

        return scale_of(self._core.shown_form(ask.resource, await self._writing.change(ask, change)), paths)

    async def _bind(self, ask: Ask) -> Obj:
        body = self._body(ask, "v1", "Binding")
        now = self._core.timestamp()
        await self._writing.change(ask, lambda pod: bound(pod, body, now))
        return DONE

    async def _evict(self, ask: Ask) -> Obj:
        body = self._body(ask, "policy/v1", "Eviction")
        options = check_eviction(body, ask.route.name)
        await self._writing.review(ask, "Eviction", body)
        found = self._reading.find(ask)
        budgets = budgets_for(found.obj, self._core.store.list(BUDGETS, ask.namespace))
        budget = check_evictable(found.obj, budgets)
        dry = options.get("dryRun") or ask.options.get("dryRun")
        asked = msgspec.structs.replace(ask, options={**options, **({"dryRun": dry} if dry else {})})
        if budget is not None and not dry:
            self._use_budget(ask, budget.name, found)
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
            "lastProbeTime": None,
            "lastTransitionTime": self._core.timestamp(),
        }
        if not dry:
            await self._writing.change(ask, lambda pod: _conditioned(pod, condition))
        await self._writing.delete(asked, ask.route.name)
        return DONE

    def _use_budget(self, ask: Ask, name: str, pod: Stored) -> None:
        stored = self._core.store.find(BUDGETS, ask.namespace, name)
        assert stored is not None
        used = copied(stored.obj)
        used["status"]["disruptionsAllowed"] -= 1
        used["status"].setdefault("disruptedPods", {})[pod.obj["metadata"]["name"]] = self._core.timestamp()
        self._core.store.put(BUDGETS, used, stored)

    def _token(self, ask: Ask) -> Obj:
        body = self._body(ask, "authentication.k8s.io/v1", "TokenRequest")
        spec: dict[str, Any] = body.get("spec") or {}
        life = spec.get("expirationSeconds") or DEFAULT_LIFE
        if life < SHORTEST_LIFE:
            text = f"Invalid value: {life}: may not specify a duration less than 10 minutes"
            cause = Cause(field="spec.expirationSeconds", reason="FieldValueInvalid", message=text)
            raise invalid("authentication.k8s.io", "TokenRequest", "", [cause])
        bound_to = spec.get("boundObjectRef") or {}
        pod = None
        if bound_to:
            if bound_to.get("kind") != "Pod":
                raise not_implemented(f"a token bound to a {bound_to.get('kind')}")
            pods = self._core.registry.get("", "v1", "pods")
            assert pods is not None
            route = msgspec.structs.replace(ask.route, name=bound_to.get("name", ""))
            found = self._reading.find(msgspec.structs.replace(ask, resource=pods, route=route))
            pod = dict(found.obj)
        token = self._identities.issue(
            ask.namespace, ask.route.name, life=life, audiences=spec.get("audiences") or (), pod=pod
        )
        status = {"token": token, "expirationTimestamp": self._identities.expiry(token)}
        return {**body, "metadata": {"name": ask.route.name, "namespace": ask.namespace}, "status": status}

    def _body(self, ask: Ask, version: str, kind: str) -> Obj:
        body = read_body(ask.request, self._core.parts.protobuf)
        check_type(body, version, kind)
        return body


def _conditioned(pod: Obj, condition: Obj) -> Obj:
    set_condition(pod, condition)
    return pod
