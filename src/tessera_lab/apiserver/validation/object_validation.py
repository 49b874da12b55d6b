"""Checks an object against its kind: unknown fields, defaults, and errors.

For an update of a built-in kind it checks only the changed fields, two levels deep: a binding or a status write of a
pod does not check its containers again. It always checks custom resources whole, since their rules may relate several
fields.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera_lab.apiserver.interfaces import Obj, StatusCause
from tessera_lab.apiserver.kinds.disabled_fields import drop_fields
from tessera_lab.apiserver.kinds.metadata import validate_metadata, validate_new_finalizers
from tessera_lab.apiserver.request.server_state import ResourceRequest
from tessera_lab.apiserver.schemas.builtin_schema import BuiltinSchema
from tessera_lab.apiserver.status import bad_request_error, invalid_error
from tessera_lab.apiserver.validation.strategies import find_name_rule, find_strategy

Read = Mapping[str, Any]

#: Subresources that change an object by the server's own rules, not by the client's values.
_SERVER_MADE = frozenset({"binding", "eviction"})


def _changed_part(request: ResourceRequest, obj: Obj, old: Read | None) -> Obj:
    """Returns the part that the schema must check: changed top-level fields; of changed objects, the changed fields."""
    if old is None or not isinstance(request.resource.schema, BuiltinSchema):
        return dict(obj)
    return {
        key: _changed_fields(value, old.get(key)) for key, value in obj.items() if key not in old or value != old[key]
    }


def _changed_fields(value: Any, was: Any) -> Any:
    if not isinstance(value, dict) or not isinstance(was, dict):
        return value
    return {key: each for key, each in value.items() if key not in was or each != was[key]}


def _copy_schema_changes(obj: Obj, part: Obj, checked: Mapping[str, Any]) -> None:
    """Copies to the object the fields that the schema removed from the part and added to it."""
    for key in checked.keys() - part.keys():
        del obj[key]
    for key, value in part.items():
        whole = obj.get(key)
        if key in checked and isinstance(value, dict) and isinstance(whole, dict) and value is not whole:
            _copy_schema_changes(whole, value, checked[key])
        elif key in checked or key not in obj:
            obj[key] = value


def _index_fields(part: Read) -> dict[str, Any]:
    return {key: dict.fromkeys(value) if isinstance(value, dict) else None for key, value in part.items()}


def _unseen_paths(obj: Obj, part: Read) -> set[str]:
    """Returns the paths of fields that the part omits, so that the schema does not report them as missing."""
    missed = set(obj.keys() - part.keys())
    for key, value in part.items():
        whole = obj.get(key)
        if isinstance(value, dict) and isinstance(whole, dict):
            missed |= {f"{key}.{name}" for name in whole.keys() - value.keys()}
    return missed


def conform_to_schema(request: ResourceRequest, obj: Obj, old: Read | None, *, quiet: bool = False) -> None:
    """Removes unknown fields from the object and sets its defaults, in place.

    Args:
        request: the request, which says how to treat unknown fields.
        obj: the object.
        old: the stored object, if this is an update.
        quiet: unknown fields were reported before.

    Raises:
        StatusError: 400, a value has the wrong type, or an unknown field and ``fieldValidation=Strict``.
    """
    schema = request.resource.schema
    if schema is not None:
        part = _changed_part(request, obj, old)
        checked = _index_fields(part)
        if not isinstance(schema, BuiltinSchema) or not schema.is_sound(part):
            if isinstance(schema, BuiltinSchema):
                schema.check_types(part)
            if not quiet:
                report_unknown_fields(request, schema.unknown_fields(part))
            schema.prune(part)
            if isinstance(schema, BuiltinSchema):
                schema.settle(part)
        schema.default(part)
        _copy_schema_changes(obj, part, checked)
    drop_fields(obj, request.resource.disabled)
    strategy = find_strategy(request.resource)
    if request.route.subresource == "status":
        strategy.default_status(obj)
    else:
        strategy.default(obj)


def report_unknown_fields(request: ResourceRequest, unknown: Sequence[str]) -> None:
    """Ignores, warns of, or refuses unknown fields, as the request says; by default it warns.

    Raises:
        StatusError: 400, there are unknown fields and ``fieldValidation=Strict``.
    """
    desired = request.options.get("fieldValidation") or "Warn"
    if not unknown or desired == "Ignore":
        return
    found = [f'unknown field "{path}"' for path in unknown]
    if desired == "Strict":
        kind = request.resource.kind
        raise bad_request_error(
            f'{kind} in version "{request.resource.version}" cannot be handled as a {kind}: '
            f"strict decoding error: {', '.join(found)}"
        )
    request.warnings.extend(text for text in found if text not in request.warnings)


def _validate_schema(request: ResourceRequest, obj: Obj, old: Read | None) -> Sequence[StatusCause]:
    schema = request.resource.schema
    if schema is None:
        return ()
    part = _changed_part(request, obj, old)
    found = schema.validate(part, old)
    missed = _unseen_paths(obj, part) if found else set()
    return [cause for cause in found if cause.field not in missed]


def validate_create(request: ResourceRequest, obj: Obj) -> Sequence[StatusCause]:
    """Returns the errors of a new object."""
    shape = _validate_schema(request, obj, None)
    rules = shape or find_strategy(request.resource).validate(obj)
    return [*validate_metadata(obj, find_name_rule(request.resource)), *rules]


def validate_update(request: ResourceRequest, obj: Obj, old: Read) -> Sequence[StatusCause]:
    """Returns the errors of an update."""
    if obj == old:
        return ()
    strategy = find_strategy(request.resource)
    found = [*validate_metadata(obj, find_name_rule(request.resource)), *validate_new_finalizers(obj, old)]
    shape = _validate_schema(request, obj, old)
    if request.route.subresource == "status":
        return [*found, *shape, *strategy.validate_status(obj, old)]
    if request.route.subresource in _SERVER_MADE or shape:
        return [*found, *shape]
    same = obj.get("spec") == old.get("spec") and "spec" in obj
    return [*found, *(() if same else strategy.validate(obj)), *strategy.validate_update(obj, old)]


def raise_invalid(request: ResourceRequest, obj: Obj, causes: Sequence[StatusCause]) -> None:
    """Refuses an object that has errors.

    Raises:
        StatusError: 422.
    """
    if causes:
        meta = obj["metadata"]
        name = meta.get("name") or meta.get("generateName", "")
        raise invalid_error(request.resource.group, request.resource.kind, name, causes)
