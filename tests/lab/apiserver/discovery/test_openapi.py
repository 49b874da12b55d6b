"""OpenAPI v3: what kubectl's apply, create and explain look for."""

from collections.abc import Iterator
from typing import Any

import pytest

from tessera_lab.apiserver.crd.structural_schema import StructuralSchema
from tessera_lab.apiserver.discovery.openapi import OpenApiDocuments
from tessera_lab.apiserver.interfaces import GroupResource, Obj
from tessera_lab.apiserver.kinds.builtin_types import builtin_types
from tessera_lab.apiserver.kinds.versions import RELEASES
from tessera_lab.apiserver.resource_types import ResourceRegistry, ResourceType


def custom(**properties: Any) -> ResourceType:
    return ResourceType(
        group="example.com",
        version="v1",
        plural="tiles",
        singular="tile",
        kind="Tile",
        list_kind="TileList",
        namespaced=True,
        storage=GroupResource("example.com", "tiles"),
        schema=StructuralSchema({"type": "object", "properties": properties}),
        served_crd="tiles.example.com",
    )


@pytest.fixture
def found() -> OpenApiDocuments:
    described = custom(spec={"type": "object", "description": "what is wanted"})
    return OpenApiDocuments(ResourceRegistry([*builtin_types(), described]), RELEASES["1.36"])


def document(found: OpenApiDocuments, path: str) -> Obj:
    made = found.document(path)
    assert made is not None
    return made


def test_the_index_names_every_group_version(found: OpenApiDocuments) -> None:
    paths = found.index()["paths"]
    assert {"api/v1", "apis/apps/v1", "apis/example.com/v1"} <= set(paths)
    assert paths["api/v1"]["serverRelativeURL"].startswith("/openapi/v3/api/v1?hash=")
    assert all(found.document(path) is not None for path in paths)
    assert found.document("apis/nothing/v1") is None


def test_addresses_change_with_the_content_only() -> None:
    registry = ResourceRegistry([*builtin_types(), custom()])
    found = OpenApiDocuments(registry, RELEASES["1.36"])
    before = found.index()["paths"]
    registry.add(custom(spec={"type": "object"}))
    after = found.index()["paths"]
    assert before["apis/example.com/v1"] != after["apis/example.com/v1"]
    assert before["api/v1"] == after["api/v1"]


def operations(made: Obj, kind: str) -> Iterator[tuple[str, Obj]]:
    for item in made["paths"].values():
        for verb, operation in item.items():
            if operation["x-kubernetes-group-version-kind"]["kind"] == kind:
                yield verb, operation


@pytest.mark.parametrize(
    ("path", "kind"), [("api/v1", "Pod"), ("apis/apps/v1", "Deployment"), ("apis/example.com/v1", "Tile")]
)
def test_writes_take_field_validation(found: OpenApiDocuments, path: str, kind: str) -> None:
    made = dict(operations(document(found, path), kind))
    for verb in ("post", "patch", "put"):
        assert "fieldValidation" in [each["name"] for each in made[verb]["parameters"]]
    contents = made["patch"]["requestBody"]["content"]
    assert ("application/strategic-merge-patch+json" in contents) == (kind != "Tile")


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def test_every_reference_leads_somewhere(found: OpenApiDocuments) -> None:
    for path in found.index()["paths"]:
        made = document(found, path)
        known = {f"#/components/schemas/{name}" for name in made["components"]["schemas"]}
        assert set(references(made)) <= known


def test_a_custom_kind_is_published_with_metadata(found: OpenApiDocuments) -> None:
    tile = document(found, "apis/example.com/v1")["components"]["schemas"]["com.example.v1.Tile"]
    assert tile["properties"]["spec"]["description"] == "what is wanted"
    assert tile["properties"]["metadata"]["allOf"][0]["$ref"].endswith("ObjectMeta")
