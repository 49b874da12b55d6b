"""Bodies and query parameters of API requests. Pure."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from tessera.kube.resources.meta import Wire

Propagation = Literal["Orphan", "Background", "Foreground"]


class _Preconditions(Wire, frozen=True, kw_only=True):
    uid: str | None = None
    resource_version: str | None = None


class _DeleteOptions(Wire, frozen=True, kw_only=True):
    grace_period_seconds: int | None = None
    preconditions: _Preconditions = _Preconditions()
    propagation_policy: Propagation | None = None


def delete_body(
    uid: str | None, resource_version: str | None, grace_seconds: int | None, propagation: Propagation | None
) -> dict[str, Any]:
    """``DeleteOptions`` with the preconditions that are given."""
    options = _DeleteOptions(
        grace_period_seconds=grace_seconds,
        preconditions=_Preconditions(uid=uid, resource_version=resource_version),
        propagation_policy=propagation,
    )
    return {"apiVersion": "v1", "kind": "DeleteOptions", **msgspec.to_builtins(options)}


def eviction_body(
    name: str, namespace: str, uid: str | None, resource_version: str | None, grace_seconds: int | None
) -> dict[str, Any]:
    """``Eviction`` of a pod with the preconditions that are given."""
    wanted = _Preconditions(uid=uid, resource_version=resource_version)
    options = _DeleteOptions(grace_period_seconds=grace_seconds, preconditions=wanted)
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": msgspec.to_builtins(options),
    }


def binding_body(name: str, namespace: str, node: str, uid: str | None) -> dict[str, Any]:
    """``Binding`` of a pod to a node."""
    identity = {"name": name, "namespace": namespace, **({"uid": uid} if uid else {})}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": identity, "target": target}


def selector_query(labels: str | None, fields: str | None) -> list[tuple[str, str]]:
    """Query parameters of the selectors that are set."""
    pairs = (("labelSelector", labels), ("fieldSelector", fields))
    return [(name, value) for name, value in pairs if value]


def with_preconditions(patch: Mapping[str, Any], version: str | None, uid: str | None) -> Mapping[str, Any]:
    """A patch that holds for this version and this life of the object only."""
    pairs = (("resourceVersion", version), ("uid", uid))
    named = {name: value for name, value in pairs if value is not None}
    return {**patch, "metadata": {**patch.get("metadata", {}), **named}} if named else patch
