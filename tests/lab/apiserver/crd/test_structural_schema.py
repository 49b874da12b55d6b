"""A CRD's schema prunes, defaults and refuses custom resources, with Kubernetes' messages."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera_lab.apiserver.crd.structural_schema import StructuralSchema


def shape(**properties: Any) -> StructuralSchema:
    return StructuralSchema({"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}})


def texts(schema: dict[str, Any], value: Any) -> list[str]:
    found = shape(x=schema).validate({"spec": {"x": value}}, None)
    return [f"{cause.field}: {cause.message}" for cause in found]


@pytest.mark.parametrize(
    ("schema", "value", "text"),
    [
        ({"type": "string"}, 1, 'spec.x: Invalid value: "integer": spec.x in body must be of type string: "integer"'),
        ({"type": "string"}, None, 'spec.x: Invalid value: "null": spec.x in body must be of type string: "null"'),
        (
            {"x-kubernetes-int-or-string": True},
            True,
            'spec.x: Invalid value: "boolean": spec.x in body must be of type integer,string: "boolean"',
        ),
        ({"type": "integer", "enum": [1, 2]}, 3, 'spec.x: Unsupported value: 3: supported values: "1", "2"'),
        ({"type": "string", "maxLength": 2}, "abc", "spec.x: Too long: may not be more than 2 bytes"),
        (
            {"type": "string", "minLength": 2},
            "a",
            'spec.x: Invalid value: "a": spec.x in body should be at least 2 chars long',
        ),
        (
            {"type": "number", "maximum": 2.5, "exclusiveMaximum": True},
            2.5,
            "spec.x: Invalid value: 2.5: spec.x in body should be less than 2.5",
        ),
        (
            {"type": "integer", "multipleOf": 5},
            7,
            "spec.x: Invalid value: 7: spec.x in body should be a multiple of 5",
        ),
        (
            {"type": "integer", "format": "int32"},
            2**31,
            '<nil>: Invalid value: "": Checked value must be of type integer with format int32 in spec.x',
        ),
        (
            {"type": "array", "items": {"type": "string"}, "maxItems": 1},
            ["a", "b"],
            "spec.x: Too many: 2: must have at most 1 item",
        ),
        (
            {"type": "array", "items": {"type": "string"}, "minItems": 1},
            [],
            "spec.x: Invalid value: 0: spec.x in body should have at least 1 items",
        ),
        (
            {"type": "array", "items": {"type": "string"}},
            ["a", 1],
            'spec.x[1]: Invalid value: "integer": spec.x[1] in body must be of type string: "integer"',
        ),
        (
            {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
            ["a", "b", "a"],
            'spec.x[2]: Duplicate value: "a"',
        ),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            {"k": "v"},
            'spec.x.k: Invalid value: "string": spec.x.k in body must be of type integer: "string"',
        ),
        (
            {"type": "string", "format": "date-time"},
            "now",
            'spec.x: Invalid value: "now": spec.x in body must be of type date-time: "now"',
        ),
        (
            {"type": "integer", "anyOf": [{"minimum": 5}, {"enum": [1]}]},
            2,
            '<nil>: Invalid value: "": "spec.x" must validate at least one schema (anyOf)',
        ),
        ({"type": "integer", "not": {"enum": [1]}}, 1, '<nil>: Invalid value: "": "spec.x" must not validate the'),
    ],
)
def test_wording(schema: dict[str, Any], value: Any, text: str) -> None:
    assert texts(schema, value)[0].startswith(text)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer"}, 3.0),
        ({"type": "number"}, 3),
        ({"type": "string", "nullable": True}, None),
        ({"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}, "50%"),
        ({"type": "string", "format": "surname"}, "anything"),
        ({"type": "string", "format": "date-time"}, "2026-01-31T12:00:00.5Z"),
        ({"type": "string", "pattern": "b"}, "abc"),
        ({"x-kubernetes-preserve-unknown-fields": True}, {"a": [1]}),
        ({"type": "integer", "oneOf": [{"minimum": 5}, {"enum": [1]}]}, 1),
    ],
)
def test_what_fits(schema: dict[str, Any], value: Any) -> None:
    assert texts(schema, value) == []


def test_an_unchanged_fault_does_not_block_an_update() -> None:
    found = shape(x={"type": "string"}, y={"type": "string"})
    old = {"spec": {"x": 1}}
    assert found.validate({"spec": {"x": 1, "y": "new"}}, old) == []
    assert [cause.field for cause in found.validate({"spec": {"x": 1, "y": 2}}, old)] == ["spec.y"]


def test_unknown_fields_are_reported_and_pruned() -> None:
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": {"n": {"type": "object"}}}
    embedded = {"type": "object", "x-kubernetes-embedded-resource": True, "properties": {"spec": {"type": "object"}}}
    found = shape(free=free, embedded=embedded, many={"type": "object", "additionalProperties": {"type": "string"}})
    obj: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "X",
        "metadata": {"name": "x", "foo": 1},
        "spec": {
            "free": {"any": {"thing": 1}, "n": {"gone": 1}},
            "embedded": {"kind": "Y", "metadata": {"name": "y"}, "gone": 1},
            "many": {"k": "v"},
            "gone": 1,
        },
    }
    paths = ["spec.free.n.gone", "spec.embedded.gone", "spec.gone", "metadata.foo"]
    assert found.unknown_fields(obj) == paths
    found.prune(obj)
    assert obj["spec"] == {
        "free": {"any": {"thing": 1}, "n": {}},
        "embedded": {"kind": "Y", "metadata": {"name": "y"}},
        "many": {"k": "v"},
    }


def test_defaults_are_filled_in_from_outside_in() -> None:
    inner = {"type": "object", "default": {}, "properties": {"n": {"type": "integer", "default": 3}}}
    found = shape(a=inner, b={"type": "array", "items": inner})
    obj: dict[str, Any] = {"spec": {"b": [{}, {"n": 1}]}}
    found.default(obj)
    assert obj == {"spec": {"a": {"n": 3}, "b": [{"n": 3}, {"n": 1}]}}


def test_null_is_replaced_or_dropped_where_it_is_not_allowed() -> None:
    obj: dict[str, Any] = {"spec": {"a": None, "b": None, "c": None}}
    shape(
        a={"type": "string", "default": "x"},
        b={"type": "string"},
        c={"type": "string", "nullable": True, "default": "y"},
    ).default(obj)
    assert obj == {"spec": {"a": "x", "c": None}}


def test_defaults_are_not_shared_between_objects() -> None:
    found = shape(a={"type": "array", "items": {"type": "string"}, "default": []})
    one: dict[str, Any] = {"spec": {}}
    two: dict[str, Any] = {"spec": {}}
    found.default(one)
    found.default(two)
    one["spec"]["a"].append("x")
    assert two["spec"]["a"] == []


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abx"), inner, max_size=3),
    max_leaves=8,
)
SHAPE = shape(
    a={"type": "object", "properties": {"b": {"type": "string", "default": "q"}}},
    b={"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer"}}}},
)


@given(values)
def test_what_is_pruned_has_no_unknown_fields_and_defaulting_settles(value: Any) -> None:
    obj = {"spec": value}
    SHAPE.prune(obj)
    assert not SHAPE.unknown_fields(obj)
    SHAPE.default(obj)
    once = str(obj)
    SHAPE.default(obj)
    assert str(obj) == once
    SHAPE.validate(obj, None)
