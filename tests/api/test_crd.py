"""The CRD declares every key that the types read or write, with the same required keys as the article's objects."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from tessera.api.instaslice import INSTASLICES, Instaslice

MANIFEST = Path(__file__).parents[2] / "deploy" / "crds" / "instaslices.yaml"

CRD: dict[str, Any] = yaml.load(MANIFEST.read_text(), yaml.CSafeLoader)
(VERSION,) = CRD["spec"]["versions"]
SCHEMA: dict[str, Any] = VERSION["schema"]["openAPIV3Schema"]


def undeclared(type_: msgspec.inspect.Type, schema: dict[str, Any], path: str) -> Iterator[str]:
    """Paths of a type that its schema does not have, or has with another type."""
    match type_:
        case msgspec.inspect.UnionType() if schema.get("x-kubernetes-int-or-string"):
            pass
        case msgspec.inspect.UnionType():
            (inner,) = (each for each in type_.types if not isinstance(each, msgspec.inspect.NoneType))
            yield from undeclared(inner, schema, path)
        case msgspec.inspect.StructType():
            if schema.get("type") != "object":
                yield f"{path}: {schema.get('type')} is no object"
            for field in type_.fields:
                below = schema.get("properties", {}).get(field.encode_name)
                if below is None:
                    yield f"{path}.{field.encode_name}"
                elif field.encode_name != "metadata":
                    yield from undeclared(field.type, below, f"{path}.{field.encode_name}")
        case msgspec.inspect.DictType():
            yield from undeclared(type_.value_type, schema["additionalProperties"], f"{path}.*")
        case msgspec.inspect.VarTupleType() | msgspec.inspect.ListType():
            yield from undeclared(type_.item_type, schema["items"], f"{path}[]")
        case msgspec.inspect.StrType():
            if schema.get("type") != "string" and not schema.get("x-kubernetes-int-or-string"):
                yield f"{path}: {schema.get('type')} is no string"
        case msgspec.inspect.IntType():
            if schema.get("type") != "integer":
                yield f"{path}: {schema.get('type')} is no integer"
        case _:
            yield f"{path}: {type_}"


def test_every_key_of_the_types_is_declared() -> None:
    assert list(undeclared(msgspec.inspect.type_info(Instaslice), SCHEMA, "")) == []


def unbounded(type_: msgspec.inspect.Type, schema: dict[str, Any], path: str) -> Iterator[str]:
    """Paths where type and schema bound numbers, texts or counts differently, or not at all."""
    match type_:
        case msgspec.inspect.UnionType():
            inner = [each for each in type_.types if not isinstance(each, msgspec.inspect.NoneType)]
            if len(inner) == 1:
                yield from unbounded(inner[0], schema, path)
        case msgspec.inspect.StructType():
            for field in type_.fields:
                if field.encode_name not in {"metadata", "resources"}:
                    below = schema["properties"][field.encode_name]
                    yield from unbounded(field.type, below, f"{path}.{field.encode_name}")
        case msgspec.inspect.DictType():
            yield from _same(path, (type_.max_length, schema.get("maxProperties")))
            yield from unbounded(type_.value_type, schema["additionalProperties"], f"{path}.*")
        case msgspec.inspect.VarTupleType():
            yield from _same(path, (type_.max_length, schema.get("maxItems")))
            yield from unbounded(type_.item_type, schema["items"], f"{path}[]")
        case msgspec.inspect.StrType():
            yield from _same(path, (type_.max_length, schema.get("maxLength")))
        case msgspec.inspect.IntType():
            if (type_.ge, type_.le) != (-(2**31), 2**31 - 1) or schema["format"] != "int32":
                yield from _same(path, (type_.ge, schema.get("minimum")), (type_.le, schema.get("maximum")))


def _same(path: str, *bounds: tuple[int | None, int | None]) -> Iterator[str]:
    yield from (f"{path}: {of_type}, schema {of_schema}" for of_type, of_schema in bounds if of_type != of_schema)
    yield from (f"{path}: no bound" for of_type, _ in bounds if of_type is None)


def test_types_and_schema_have_the_same_bounds() -> None:
    assert list(unbounded(msgspec.inspect.type_info(Instaslice), SCHEMA, "")) == []


def test_the_manifest_names_what_the_client_asks_for() -> None:
    assert CRD["metadata"]["name"] == f"{INSTASLICES.plural}.{INSTASLICES.group}"
    assert CRD["spec"]["group"] == INSTASLICES.group
    assert CRD["spec"]["names"]["plural"] == INSTASLICES.plural
    assert CRD["spec"]["names"]["kind"] == INSTASLICES.kind
    assert CRD["spec"]["scope"] == ("Namespaced" if INSTASLICES.namespaced else "Cluster")
    assert VERSION["name"] == INSTASLICES.version
    assert "status" in VERSION["subresources"]


@pytest.mark.parametrize(
    ("path", "required"),
    [
        (
            ("status", "podAllocationResults", "*"),
            {"allocationStatus", "configMapResourceIdentifier", "gpuUUID", "migPlacement", "nodename"},
        ),
        (("status", "podAllocationResults", "*", "migPlacement"), {"size", "start"}),
        (("status", "nodeResources", "nodeGpus", "[]"), {"gpuUuid", "gpuName", "gpuMemory"}),
        (("status", "nodeResources", "migPlacement", "*"), {"placements", "giProfileId", "ciProfileId"}),
    ],
)
def test_the_articles_required_keys_are_required(path: tuple[str, ...], required: set[str]) -> None:
    schema = SCHEMA
    for part in path:
        match part:
            case "*":
                schema = schema["additionalProperties"]
            case "[]":
                schema = schema["items"]
            case _:
                schema = schema["properties"][part]
    assert set(schema["required"]) == required


def test_the_schema_is_structural() -> None:
    def check(schema: dict[str, Any], path: str) -> None:
        assert "type" in schema or schema.get("x-kubernetes-int-or-string"), path
        for name, below in schema.get("properties", {}).items():
            check(below, f"{path}.{name}")
        for name in ("items", "additionalProperties"):
            if name in schema:
                check(schema[name], f"{path}.{name}")

    check(SCHEMA, "")
