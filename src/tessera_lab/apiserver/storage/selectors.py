"""Selects the objects of a list or watch: namespace, label selector, field selector.

A selector is parsed once per request and matched against every candidate. Label grammar and errors are those of
``k8s.io/apimachinery/pkg/labels`` and ``fields``; the registry knows the fields that a kind supports.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tessera_lab.apiserver.resource_types import ResourceType
from tessera_lab.apiserver.status import bad_request_error

_KEY = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_VALUE = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"
_SET = re.compile(rf"^\s*({_KEY})\s+(in|notin)\s*\(([^()]*)\)\s*$")
_EQUAL = re.compile(rf"^\s*({_KEY})\s*(==|=|!=)\s*({_VALUE}|)\s*$")
_ORDER = re.compile(rf"^\s*({_KEY})\s*([<>])\s*(-?\d+)\s*$")
_EXISTS = re.compile(rf"^\s*(!?)\s*({_KEY})\s*$")


class LabelRule(msgspec.Struct, frozen=True):
    """One requirement on a label; ``op`` is ``in``, ``notin``, ``exists``, ``!``, ``<`` or ``>``."""

    key: str
    op: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """True if the labels satisfy the rule."""
        value = labels.get(self.key)
        match self.op:
            case "in":
                return value in self.values
            case "notin":
                return value is None or value not in self.values
            case "exists":
                return value is not None
            case "!":
                return value is None
            case _:
                return self._compare(value)

    def _compare(self, value: str | None) -> bool:
        try:
            number = int(value or "")
        except ValueError:
            return False
        bound = int(next(iter(self.values)))
        return number > bound if self.op == ">" else number < bound


class FieldRule(msgspec.Struct, frozen=True):
    """One requirement on a field; a field that is absent counts as empty."""

    path: str
    value: str
    negated: bool = False

    def matches(self, obj: Mapping[str, Any]) -> bool:
        """True if the object satisfies the rule."""
        return (field_value(obj, self.path) == self.value) != self.negated


class ObjectSelection(msgspec.Struct, frozen=True):
    """The selectors of a collection request; ``namespace`` None is all namespaces."""

    namespace: str | None = None
    labels: tuple[LabelRule, ...] = ()
    fields: tuple[FieldRule, ...] = ()

    def matches(self, obj: Mapping[str, Any]) -> bool:
        """True if the object is selected."""
        meta = obj["metadata"]
        if self.namespace is not None and meta.get("namespace") != self.namespace:
            return False
        if self.fields and not all(rule.matches(obj) for rule in self.fields):
            return False
        if not self.labels:
            return True
        labels = meta.get("labels") or {}
        return all(rule.matches(labels) for rule in self.labels)

    def only_value(self, path: str) -> str | None:
        """The only value that the field may have; None if it may have several."""
        return next((r.value for r in self.fields if r.path == path and not r.negated), None)


def field_value(obj: Mapping[str, Any], path: str) -> str:
    """Returns a field by dotted path as text for selectors; empty if absent."""
    value: Any = obj
    for step in path.split("."):
        if not isinstance(value, Mapping):
            return ""
        value = value.get(step)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def parse_labels(text: str) -> tuple[LabelRule, ...]:
    """Parses a label selector in the syntax of the query.

    Raises:
        StatusError: 400, it is not one.
    """
    return tuple(_label_rule(part) for part in _split(text) if part.strip())


def _split(text: str) -> Sequence[str]:
    """Splits a text at commas outside of parentheses."""
    return re.split(r",(?![^()]*\))", text)


def _label_rule(part: str) -> LabelRule:
    if found := _SET.match(part):
        values = frozenset(value.strip() for value in found[3].split(","))
        return LabelRule(found[1], found[2], values)
    if found := _EQUAL.match(part):
        return LabelRule(found[1], "notin" if found[2] == "!=" else "in", frozenset({found[3]}))
    if found := _ORDER.match(part):
        return LabelRule(found[1], found[2], frozenset({found[3]}))
    if found := _EXISTS.match(part):
        return LabelRule(found[2], "!" if found[1] else "exists")
    raise bad_request_error(
        f'unable to parse requirement: found "{part.strip()}", expected a label selector requirement'
    )


def parse_fields(text: str, resource: ResourceType) -> tuple[FieldRule, ...]:
    """Parses a field selector in the syntax of the query; the type must support its fields.

    Raises:
        StatusError: 400, the text is no selector, or a field is not supported.
    """
    rules = tuple(_field_rule(part, text) for part in re.split(r"(?<!\\),", text) if part)
    known = {"metadata.name", "metadata.namespace", *resource.field_labels}
    for rule in rules:
        if rule.path not in known:
            raise bad_request_error(_unsupported_text(resource, rule.path))
    return rules


def _unsupported_text(resource: ResourceType, path: str) -> str:
    named = {"pods": "pod", "nodes": "node", "events": "event"}.get(resource.plural)
    if (named and resource.group == "") or resource.served_crd:
        return f"field label not supported: {path}"
    return (
        f'field label "{path}" not supported for {resource.kind}'
        if resource.field_labels
        else (f'"{path}" is not a known field selector: only "metadata.name", "metadata.namespace"')
    )


def _field_rule(part: str, text: str) -> FieldRule:
    for operator in ("!=", "==", "="):
        if operator in part:
            path, _, value = part.partition(operator)
            return FieldRule(path.strip(), re.sub(r"\\([,=\\])", r"\1", value), operator == "!=")
    raise bad_request_error(f"invalid selector: '{text}'; can't understand '{part}'")
