"""Errors about one field, with the texts of ``k8s.io/apimachinery/pkg/util/validation/field``.

Clients match on these texts, so each constructor here is one of Kubernetes' error types and nothing else.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from tessera_lab.apiserver.interfaces import StatusCause

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)


def format_value(value: Any) -> str:
    """A value as Kubernetes prints it in an error: strings quoted, the rest as JSON."""
    return msgspec.json.encode(value).decode()


def quote(text: str) -> str:
    """A string as Go's ``%q`` prints it."""
    return msgspec.json.encode(text).decode()


def child(path: str, name: str) -> str:
    """Path of a field."""
    return f"{path}.{name}" if path else name


def required_cause(field: str, reason: str = "") -> StatusCause:
    """The field is missing or empty."""
    return StatusCause(
        field=field, reason="FieldValueRequired", message="Required value" + (f": {reason}" if reason else "")
    )


def invalid_cause(field: str, value: Any, reason: str) -> StatusCause:
    """The value breaks a rule."""
    return StatusCause(
        field=field, reason="FieldValueInvalid", message=f"Invalid value: {format_value(value)}: {reason}"
    )


def wrong_type_cause(field: str, kind: str, reason: str) -> StatusCause:
    """The value has another type; ``kind`` names the type it has."""
    return StatusCause(
        field=field, reason="FieldValueTypeInvalid", message=f"Invalid value: {format_value(kind)}: {reason}"
    )


def label_causes(field: str, name: str) -> Iterator[StatusCause]:
    """Yields the error of a name that is no label of RFC 1123; its length is not judged."""
    if not _LABEL.fullmatch(name):
        yield invalid_cause(field, name, "must not contain dots" if SUBDOMAIN.fullmatch(name) else _LABEL_RULE)


def unsupported_cause(field: str, value: Any, supported: Iterable[str]) -> StatusCause:
    """The value is not in the list of supported values."""
    listed = ", ".join(quote(each) for each in supported)
    text = f"Unsupported value: {format_value(value)}" + (f": supported values: {listed}" if listed else "")
    return StatusCause(field=field, reason="FieldValueNotSupported", message=text)


def duplicate_cause(field: str, value: Any) -> StatusCause:
    """The value must be unique, and appears twice."""
    return StatusCause(field=field, reason="FieldValueDuplicate", message=f"Duplicate value: {format_value(value)}")


def forbidden_cause(field: str, reason: str) -> StatusCause:
    """The field may not be set."""
    return StatusCause(field=field, reason="FieldValueForbidden", message=f"Forbidden: {reason}")


def too_long_cause(field: str, limit: int) -> StatusCause:
    """The string has more than ``limit`` characters."""
    unit = "byte" if limit == 1 else "bytes"
    return StatusCause(
        field=field, reason="FieldValueTooLong", message=f"Too long: may not be more than {limit} {unit}"
    )


def too_many_cause(field: str, count: int, limit: int) -> StatusCause:
    """The list or map has more than ``limit`` entries."""
    unit = "item" if limit == 1 else "items"
    return StatusCause(
        field=field, reason="FieldValueTooMany", message=f"Too many: {count}: must have at most {limit} {unit}"
    )
