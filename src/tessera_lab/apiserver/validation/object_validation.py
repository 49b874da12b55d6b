"""An object against its kind: unknown fields, defaults, and everything that is wrong with it.

Of an update of a built-in kind only what changed is looked at, two levels deep: a pod that is bound or whose status is
written does not walk its containers again. Custom resources are always seen whole, since their rules may reach across.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera_lab.apiserver.interfaces import Cause, Obj
from tessera_lab.apiserver.kinds.metadata import metadata_causes, new_finalizers
from tessera_lab.apiserver.request.server_state import Ask
from tessera_lab.apiserver.schemas.builtin_schema import BuiltinSchema
from tessera_lab.apiserver.status import bad_request, invalid
from tessera_lab.apiserver.validation.strategies import name_rule, strategy_of

Read = Mapping[str, Any]

#: Subresources that change an object by the server's own rules, not by the client's wish.
_SERVER_MADE = frozenset({"binding", "eviction"})


def _changed_part(ask: Ask, obj: Obj, old: Read | None) -> Obj:
    """What the schema is to look at: top-level fields that changed, and of objects among them the fields that did."""
    if old is None or not isinstance(ask.resource.schema, BuiltinSchema):
        return dict(obj)
    return {key: _narrowed(value, old.get(key)) for key, value in obj.items() if key not in old or value != old[key]}


def _narrowed(value: Any, was: Any) -> Any:
    if not isinstance(value, dict) or not isinstance(was, dict):
        return value
    return {key: each for key, each in value.items() if key not in was or each != was[key]}


def _put_back(obj: Obj, part: Obj, looked_at: Mapping[str, Any]) -> None:
    """Carries over what the schema removed from the part and what it added to it."""
    for key in looked_at.keys() - part.keys():
        del obj[key]
    for key, value in part.items():
        whole = obj.get(key)
        if key in looked_at and isinstance(value, dict) and isinstance(whole, dict) and value is not whole:
            _put_back(whole, value, looked_at[key])
        elif key in looked_at or key not in obj:
            obj[key] = value


def _seen(part: Read) -> dict[str, Any]:
    return {key: dict.fromkeys(value) if isinstance(value, dict) else None for key, value in part.items()}


def _left_out(obj: Obj, part: Read) -> set[str]:
    """Paths of the fields that the schema did not see, so that it may not miss them."""
    missed = set(obj.keys() - part.keys())
    for key, value in part.items():
        whole = obj.get(key)
        if isinstance(value, dict) and isinstance(whole, dict):
            missed |= {f"{key}.{name}" for name in whole.keys() - value.keys()}
    return missed


def conform(ask: Ask, obj: Obj, old: Read | None, *, quiet: bool = False) -> None:
    """Brings the object into its schema's shape in place: unknown fields go, defaults come.

    Args:
        ask: the request, which says what to do about unknown fields.
        obj: the object.
        old: what is stored, when it is an update.
        quiet: unknown fields were reported before.

    Raises:
        StatusError: 400, a value has the wrong type, or an unknown field and ``fieldValidation=Strict``.
    """
    schema = ask.resource.schema
    if schema is not None:
        part = _changed_part(ask, obj, old)
        looked_at = _seen(part)
        if not isinstance(schema, BuiltinSchema) or not schema.is_sound(part):
            if isinstance(schema, BuiltinSchema):
                schema.check_types(part)
            if not quiet:
                field_validation(ask, schema.unknown_fields(part))
            schema.prune(part)
            if isinstance(schema, BuiltinSchema):
                schema.settle(part)
        schema.default(part)
        _put_back(obj, part, looked_at)
    strategy = strategy_of(ask.resource)
    if ask.route.subresource == "status":
        strategy.default_status(obj)
    else:
        strategy.default(obj)


def field_validation(ask: Ask, unknown: Sequence[str]) -> None:
    """Ignores, warns of, or refuses unknown fields, as the request wants; without a wish it warns.

    Raises:
        StatusError: 400, there are unknown fields and ``fieldValidation=Strict``.
    """
    wanted = ask.options.get("fieldValidation") or "Warn"
    if not unknown or wanted == "Ignore":
        return
    found = [f'unknown field "{path}"' for path in unknown]
    if wanted == "Strict":
        kind = ask.resource.kind
        raise bad_request(
            f'{kind} in version "{ask.resource.version}" cannot be handled as a {kind}: '
            f"strict decoding error: {', '.join(found)}"
        )
    ask.warnings.extend(text for text in found if text not in ask.warnings)


def _shape_causes(ask: Ask, obj: Obj, old: Read | None) -> Sequence[Cause]:
    schema = ask.resource.schema
    if schema is None:
        return ()
    part = _changed_part(ask, obj, old)
    found = schema.validate(part, old)
    missed = _left_out(obj, part) if found else set()
    return [cause for cause in found if cause.field not in missed]


def create_causes(ask: Ask, obj: Obj) -> Sequence[Cause]:
    """What is wrong with a new object."""
    shape = _shape_causes(ask, obj, None)
    rules = shape or strategy_of(ask.resource).validate(obj)
    return [*metadata_causes(obj, name_rule(ask.resource)), *rules]


def update_causes(ask: Ask, obj: Obj, old: Read) -> Sequence[Cause]:
    """What is wrong with an update."""
    if obj == old:
        return ()
    strategy = strategy_of(ask.resource)
    found = [*metadata_causes(obj, name_rule(ask.resource)), *new_finalizers(obj, old)]
    shape = _shape_causes(ask, obj, old)
    if ask.route.subresource == "status":
        return [*found, *shape, *strategy.validate_status(obj, old)]
    if ask.route.subresource in _SERVER_MADE or shape:
        return [*found, *shape]
    same = obj.get("spec") == old.get("spec") and "spec" in obj
    return [*found, *(() if same else strategy.validate(obj)), *strategy.validate_update(obj, old)]


def check(ask: Ask, obj: Obj, causes: Sequence[Cause]) -> None:
    """Refuses an object that anything is wrong with.

    Raises:
        StatusError: 422.
    """
    if causes:
        meta = obj["metadata"]
        name = meta.get("name") or meta.get("generateName", "")
        raise invalid(ask.resource.group, ask.resource.kind, name, causes)
