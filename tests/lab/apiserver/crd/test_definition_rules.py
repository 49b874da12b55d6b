"""The server creates valid CustomResourceDefinitions, and refuses others with a reason."""

from typing import Any

import pytest

from tessera_lab.apiserver.crd.definition_rules import validate_definition
from tessera_lab.apiserver.interfaces import Obj
from tessera_lab.apiserver.status import StatusError

ROOT = "spec.validation.openAPIV3Schema"


def crd(schema: Any = None, *, version: Any = None, **spec: Any) -> Obj:
    root = {"type": "object", "properties": {"spec": schema}} if schema is not None else {"type": "object"}
    first = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": root}, **(version or {})}
    names = {"plural": "tiles", "singular": "tile", "kind": "Tile", "listKind": "TileList"}
    return {
        "metadata": {"name": "tiles.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [first], **spec},
    }


def texts(obj: Obj) -> list[str]:
    return [f"{cause.field}: {cause.message}" for cause in validate_definition(obj)]


def test_a_good_one() -> None:
    item = {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}
    rules = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"]}
    columns = [{"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'}]
    assert texts(crd({"type": "array", "items": item, **rules}, version={"additionalPrinterColumns": columns})) == []


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({}, "type: Required value: must not be empty for specified object fields"),
        ({"type": "array"}, "items: Required value: must be specified"),
        ({"type": "array", "items": {}}, "items.type: Required value: must not be empty for specified array items"),
        (
            {"type": "text"},
            'type: Unsupported value: "text": supported values: "array", "boolean", "integer", "number"',
        ),
        (
            {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}},
            "additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
        ),
        ({"$ref": "#/x", "type": "object"}, "$ref: Forbidden: $ref is not supported"),
        (
            {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
            "uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ),
        (
            {"type": "string", "pattern": "("},
            'pattern: Invalid value: "(": must be a valid regular expression, but isn\'t: ',
        ),
        (
            {"type": "object", "anyOf": [{"properties": {"x": {"minimum": 1}}}]},
            f"properties[x]: Required value: because it is defined in {ROOT}.properties[spec].anyOf[0].properties[x]",
        ),
        ({"type": "string", "allOf": [{"type": "string"}]}, "allOf[0].type: Forbidden: must be empty to be structural"),
        ({"x-kubernetes-embedded-resource": True}, "type: Required value: must be object if x-kubernetes-embedded-"),
        (
            {"type": "integer", "default": "x"},
            f'default: Invalid value: "string": {ROOT}.properties[spec].default in body must be of type integer: "str',
        ),
    ],
)
def test_a_schema_that_is_not_structural(schema: Any, text: str) -> None:
    assert any(each.startswith(f"{ROOT}.properties[spec].{text}") for each in texts(crd(schema))), texts(crd(schema))


def test_keys_of_associative_lists_are_required_or_defaulted() -> None:
    item = {"type": "object", "properties": {"id": {"type": "string"}}}
    rules = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"]}
    (text,) = texts(crd({"type": "array", "items": item, **rules}))
    assert text.endswith("so it must have a default or be a required property")
    item["properties"]["id"]["default"] = "x"  # type: ignore[index]
    assert texts(crd({"type": "array", "items": item, **rules})) == []


def test_int_or_string_may_carry_its_pattern() -> None:
    both = [{"type": "integer"}, {"type": "string"}]
    assert texts(crd({"x-kubernetes-int-or-string": True, "anyOf": both})) == []


def test_several_versions_name_the_version() -> None:
    second = {"name": "v2", "served": True, "storage": False, "schema": {"openAPIV3Schema": {"type": "string"}}}
    obj = crd()
    obj["spec"]["versions"].append(second)
    wanted = 'spec.versions[1].schema.openAPIV3Schema.type: Invalid value: "string": must be object at the root'
    assert texts(obj) == [wanted]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"group": ""}, "spec.group: Required value"),
        ({"group": "com"}, 'spec.group: Invalid value: "com": should be a domain with at least one dot'),
        ({"scope": "Everywhere"}, 'spec.scope: Unsupported value: "Everywhere": supported values: "Cluster", "Names'),
        ({"names": {"plural": "Tiles"}}, 'spec.names.plural: Invalid value: "Tiles": a DNS-1035 label must consist of'),
    ],
)
def test_names(change: Any, text: str) -> None:
    assert any(each.startswith(text) for each in texts(crd(**change)))


def test_exactly_one_storage_version() -> None:
    assert "must have exactly one version marked as storage version" in texts(crd(version={"storage": False}))[0]


def test_printer_columns() -> None:
    columns = [{"name": "A", "type": "object", "jsonPath": "spec"}, {"name": "B", "type": "string", "jsonPath": "..x"}]
    found = texts(crd(version={"additionalPrinterColumns": columns}))
    place = "spec.versions[0].additionalPrinterColumns"
    assert found[0] == f'{place}[0].type: Invalid value: "object": must be one of boolean,date,integer,number,string'
    assert found[1] == f'{place}[0].JSONPath: Invalid value: "spec": must be a simple json path starting with .'
    assert found[2].startswith(f'{place}[1].JSONPath: Invalid value: "..x": unrecognized JSONPath')


@pytest.mark.parametrize(
    ("obj", "what"),
    [
        (crd(conversion={"strategy": "Webhook"}), "conversion"),
        (crd(version={"selectableFields": [{"jsonPath": ".spec.x"}]}), "selectableFields"),
    ],
)
def test_what_cannot_be_done_is_refused_not_stored(obj: Obj, what: str) -> None:
    with pytest.raises(StatusError, match=what) as caught:
        validate_definition(obj)
    assert caught.value.code == 501
