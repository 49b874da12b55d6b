"""Validates a value against a structural schema, with kube-apiserver's texts.

The texts are those of kube-openapi's validator as apiextensions turns them into field errors. A value is checked as it
is: callers set defaults and prune unknown fields before. Lists of type ``set`` and ``map`` are checked here too.

Why no library: jsonschema 4.26 knows no keyword ``x-kubernetes-*``, and clients match kube-apiserver's texts.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tessera.cel.kubernetes_values import go_pattern
from tessera_lab.apiserver import field_errors
from tessera_lab.apiserver.field_errors import child
from tessera_lab.apiserver.interfaces import StatusCause
from tessera_lab.apiserver.schemas.compiled_schema import FORMATS, matches_format

Schema = Mapping[str, Any]

#: Errors of allOf, anyOf, oneOf and not have no field; Go prints the missing path like this.
NO_FIELD = "<nil>"

_INTEGERS = {"int32": 2**31, "int64": 2**63, "": 2**63}


def json_type(value: Any) -> str:
    """Returns the value's type as JSON schema names it."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def format_number(value: float) -> str:
    """Prints a bound as Go's ``%v`` prints a float64."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e21 else repr(float(value))


def validate_value(value: Any, schema: Schema, path: str) -> Iterator[StatusCause]:
    """Yields the errors of a value and of everything below it."""
    misfit = _check_type(value, schema, path)
    if misfit:
        yield misfit
        return
    if value is None:
        return
    yield from _check_enum_and_format(value, schema, path)
    if isinstance(value, dict):
        yield from _check_object(value, schema, path)
    elif isinstance(value, list):
        yield from _check_array(value, schema, path)
    yield from _check_junctors(value, schema, path)


def _message_prefix(path: str) -> str:
    return f"{path} in body" if path else "in body"


def _check_type(value: Any, schema: Schema, path: str) -> StatusCause | None:
    desired = ["integer", "string"] if schema.get("x-kubernetes-int-or-string") else [schema.get("type")]
    have = json_type(value)
    if desired == [None] or (value is None and schema.get("nullable")):
        return None
    if have in desired or (have == "integer" and "number" in desired):
        return None
    text = f"{_message_prefix(path)} must be of type {','.join(map(str, desired))}: {field_errors.quote(have)}"
    return field_errors.wrong_type_cause(path or NO_FIELD, have, text)


def _check_enum_and_format(value: Any, schema: Schema, path: str) -> Iterator[StatusCause]:
    if "enum" in schema and not any(json_type(value) == json_type(each) and value == each for each in schema["enum"]):
        options = [each if isinstance(each, str) else field_errors.format_value(each) for each in schema["enum"]]
        yield field_errors.unsupported_cause(path, value, options)
    if isinstance(value, str):
        yield from _check_string(value, schema, path)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from _check_number(value, schema, path)


def _check_string(value: str, schema: Schema, path: str) -> Iterator[StatusCause]:
    if len(value) > schema.get("maxLength", len(value)):
        yield field_errors.too_long_cause(path, schema["maxLength"])
    if len(value) < schema.get("minLength", 0):
        yield field_errors.invalid_cause(
            path, value, f"{_message_prefix(path)} should be at least {schema['minLength']} chars long"
        )
    pattern = schema.get("pattern")
    if pattern and not go_pattern(pattern).search(value):
        yield field_errors.invalid_cause(path, value, f"{_message_prefix(path)} should match '{pattern}'")
    kind = schema.get("format", "")
    if kind in FORMATS and not matches_format(kind, value):
        yield field_errors.wrong_type_cause(
            path, value, f"{_message_prefix(path)} must be of type {kind}: {field_errors.quote(value)}"
        )


def _check_number(value: float, schema: Schema, path: str) -> Iterator[StatusCause]:
    limit = _INTEGERS.get(schema.get("format", ""))
    if schema.get("type") == "integer" and limit and not -limit <= value < limit:
        shown = f"format {schema['format']}" if "format" in schema else "(default format)"
        text = f"Checked value must be of type integer {'with ' if 'format' in schema else ''}{shown} in {path}"
        yield field_errors.invalid_cause(NO_FIELD, "", text)
    high, low, step = (schema.get(each) for each in ("maximum", "minimum", "multipleOf"))
    if high is not None and (value > high or (schema.get("exclusiveMaximum") and value == high)):
        rule = "less than" if schema.get("exclusiveMaximum") else "less than or equal to"
        yield field_errors.invalid_cause(path, value, f"{_message_prefix(path)} should be {rule} {format_number(high)}")
    if low is not None and (value < low or (schema.get("exclusiveMinimum") and value == low)):
        rule = "greater than" if schema.get("exclusiveMinimum") else "greater than or equal to"
        yield field_errors.invalid_cause(path, value, f"{_message_prefix(path)} should be {rule} {format_number(low)}")
    if step and abs(value / step - round(value / step)) > 1e-9:
        yield field_errors.invalid_cause(
            path, value, f"{_message_prefix(path)} should be a multiple of {format_number(step)}"
        )


def _check_object(value: Mapping[str, Any], schema: Schema, path: str) -> Iterator[StatusCause]:
    if len(value) < schema.get("minProperties", 0):
        yield field_errors.invalid_cause(
            path, value, f"{_message_prefix(path)} should have at least {schema['minProperties']} properties"
        )
    if len(value) > schema.get("maxProperties", len(value)):
        yield field_errors.too_many_cause(path, len(value), schema["maxProperties"])
    properties, extra = schema.get("properties", {}), schema.get("additionalProperties")
    for name, below in value.items():
        following = properties.get(name, extra)
        if isinstance(following, Mapping):
            yield from validate_value(below, following, child(path, name))
    for name in schema.get("required", ()):
        if name not in value:
            yield field_errors.required_cause(child(path, name))


def _check_array(value: Sequence[Any], schema: Schema, path: str) -> Iterator[StatusCause]:
    if len(value) < schema.get("minItems", 0):
        yield field_errors.invalid_cause(
            path, len(value), f"{_message_prefix(path)} should have at least {schema['minItems']} items"
        )
    if len(value) > schema.get("maxItems", len(value)):
        yield field_errors.too_many_cause(path, len(value), schema["maxItems"])
    kind = schema.get("x-kubernetes-list-type")
    if kind == "set":
        yield from (
            field_errors.duplicate_cause(f"{path}[{index}]", value[index]) for index in _duplicate_indexes(value)
        )
    elif kind == "map":
        yield from _duplicate_keys(value, schema["x-kubernetes-list-map-keys"], path)
    if "items" in schema:
        for index, each in enumerate(value):
            yield from validate_value(each, schema["items"], f"{path}[{index}]")


def _duplicate_indexes(values: Sequence[Any]) -> Iterator[int]:
    """Yields the indices of values that appeared before."""
    seen: dict[str, int] = {}
    for index, value in enumerate(values):
        key = field_errors.format_value(value)
        seen[key] = seen.get(key, 0) + 1
        if seen[key] == 2:
            yield index


def _duplicate_keys(value: Sequence[Any], keys: Sequence[str], path: str) -> Iterator[StatusCause]:
    if any(not isinstance(each, (dict, type(None))) for each in value):
        return
    identities = [{key: each[key] for key in keys if key in each} if each else {} for each in value]
    yield from (
        field_errors.duplicate_cause(f"{path}[{index}]", identities[index]) for index in _duplicate_indexes(identities)
    )


def _check_junctors(value: Any, schema: Schema, path: str) -> Iterator[StatusCause]:
    for each in schema.get("allOf", ()):
        yield from validate_value(value, each, path)
    shown = field_errors.quote(path)
    if "anyOf" in schema and not schema.get("x-kubernetes-int-or-string"):
        tries = [list(validate_value(value, each, path)) for each in schema["anyOf"]]
        if all(tries):
            yield field_errors.invalid_cause(NO_FIELD, "", f"{shown} must validate at least one schema (anyOf)")
            yield from min(tries, key=len)
    if "oneOf" in schema:
        tries = [list(validate_value(value, each, path)) for each in schema["oneOf"]]
        fitting = sum(1 for each in tries if not each)
        if fitting != 1:
            found = f"Found {fitting} valid alternatives" if fitting else "Found none valid"
            yield field_errors.invalid_cause(
                NO_FIELD, "", f"{shown} must validate one and only one schema (oneOf). {found}"
            )
            yield from () if fitting else min(tries, key=len)
    if "not" in schema and not list(validate_value(value, schema["not"], path)):
        yield field_errors.invalid_cause(NO_FIELD, "", f"{shown} must not validate the schema (not)")


def describe_pattern_error(pattern: str) -> str:
    """Returns why a pattern is not valid; empty if it is valid."""
    try:
        go_pattern(pattern)
    except re.error as error:
        return str(error)
    return ""
