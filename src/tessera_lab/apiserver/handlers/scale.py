"""The scale subresource: an ``autoscaling/v1`` Scale read from an object and written back to it. Pure."""

from collections.abc import Mapping
from typing import Any

from tessera_lab.apiserver.interfaces import Cause, Obj
from tessera_lab.apiserver.resource_types import ScalePaths
from tessera_lab.apiserver.status import StatusError, invalid

Read = Mapping[str, Any]


def _at(obj: Read, path: str) -> Any:
    value: Any = obj
    for step in path.strip(".").split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def scale_of(obj: Read, paths: ScalePaths) -> Obj:
    """The object's Scale."""
    meta = obj["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    status: Obj = {"replicas": _at(obj, paths.status_replicas) or 0}
    selector = selector_text(_at(obj, paths.selector)) if paths.selector else ""
    if selector:
        status["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": {"replicas": _at(obj, paths.replicas) or 0},
        "status": status,
    }


def scaled(obj: Obj, scale: Read, paths: ScalePaths) -> Obj:
    """The object with the Scale's replicas, resourceVersion and uid, which the update then checks.

    Raises:
        StatusError: 422, replicas is negative; 400, it is no number.
    """
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if not isinstance(replicas, int) or isinstance(replicas, bool):
        raise StatusError(400, "BadRequest", f"spec.replicas: expected an integer, got {replicas!r}")
    if replicas < 0:
        text = f"Invalid value: {replicas}: must be greater than or equal to 0"
        cause = Cause(field="spec.replicas", reason="FieldValueInvalid", message=text)
        raise invalid("autoscaling", "Scale", obj["metadata"]["name"], [cause])
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
