"""The OpenAPI documents of the aggregated API: kube-apiserver can merge them, and the objects are as they say."""

import asyncio
from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec
import pytest
from tests.dashboard.view.test_view_port import API, TIMEOUT, served

from tessera.dashboard.view.explanations import GROUP, VERSION
from tessera.dashboard.view.objects import RESOURCES
from tessera.dashboard.view.openapi import documents
from tessera.kube.requests import Request
from tessera_lab.apiserver.interfaces import UserInfo

#: As kube-apiserver asks for them (kube-aggregator, openapi/aggregator/downloader.go).
AGGREGATOR = UserInfo(name="system:aggregator")
DOCUMENT = f"/openapi/v3{API}"
KIND = "x-kubernetes-group-version-kind"


def decoded(path: str) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(documents()[path])
    return found


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Each object below a value, itself included."""
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if isinstance(value, dict):
        yield value
    for each in children:
        yield from nodes(each)


@pytest.mark.parametrize(("path", "place"), [("/openapi/v2", "#/definitions/"), (DOCUMENT, "#/components/schemas/")])
def test_every_reference_leads_somewhere_and_every_kind_is_named(path: str, place: str) -> None:
    document = decoded(path)
    schemas = document["definitions"] if path == "/openapi/v2" else document["components"]["schemas"]
    references = {each["$ref"] for each in nodes(document) if isinstance(each.get("$ref"), str)}
    assert references <= {place + name for name in schemas}
    assert {each.removeprefix(place) for each in references} == set(schemas), "kube-apiserver drops what no path uses"
    kinds = [each for schema in schemas.values() for each in schema.get(KIND, ())]
    served_kinds = {each.kind for each in RESOURCES} | {f"{each.kind}List" for each in RESOURCES} - {"ExplanationList"}
    assert sorted(each["kind"] for each in kinds) == sorted(served_kinds)
    assert all((each["group"], each["version"]) == (GROUP, VERSION) for each in kinds)
    operations = [item["get"]["operationId"] for item in document["paths"].values()]
    assert len(set(operations)) == len(operations) == 2 * len(RESOURCES) - 1


def test_version_2_has_nothing_that_it_does_not_know() -> None:
    allowed = {"string", "integer", "number", "boolean", "array", "object"}
    for each in nodes(decoded("/openapi/v2")["definitions"]):
        assert not {"anyOf", "oneOf", "nullable", "const", "$defs"} & set(each)
        assert each.get("type", "string") in allowed or isinstance(each["type"], dict)


@pytest.mark.parametrize("path", ["/openapi/v2", DOCUMENT])
def test_every_array_says_what_is_in_it(path: str) -> None:
    """Validation by kubectl reads the cluster's merged document, and refuses all of it otherwise (kube-openapi)."""
    assert [each for each in nodes(decoded(path)) if each.get("type") == "array" and "items" not in each] == []


def test_the_index_of_version_3_changes_with_its_document() -> None:
    (place,) = decoded("/openapi/v3")["paths"].values()
    path, _, digest = place["serverRelativeURL"].partition("?hash=")
    assert (path, len(digest)) == (DOCUMENT, 32)


def readable(schema: Any) -> Any:
    """A schema of OpenAPI as JSON schema has it."""
    if isinstance(schema, list):
        return [readable(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: readable(value) for key, value in schema.items() if key != "nullable"}
    return {"anyOf": [found, {"type": "null"}]} if schema.get("nullable") is True else found


async def test_kube_apiserver_gets_them_and_the_objects_are_as_they_say() -> None:
    async with asyncio.timeout(TIMEOUT), served() as found:
        aggregator = found.cluster.server.aggregator
        target = aggregator.find(GROUP, VERSION)
        assert target is not None
        for path, expected in documents().items():
            answer = await aggregator.send(target, Request(method="GET", path=path), AGGREGATOR)
            assert (answer.status, answer.body) == (200, expected)
        schemas = readable(decoded(DOCUMENT)["components"]["schemas"])
        for plural, kind in (("usages", "Usage"), ("maps", "Map"), ("usages", "UsageList"), ("maps", "MapList")):
            name = "" if kind.endswith("List") else "/cluster"
            item = await found.admin("GET", f"{API}/namespaces/team/{plural}{name}")
            assert item["kind"] == kind
            root = {"$ref": f"#/components/schemas/dev.tessera.view.{VERSION}.{kind}"}
            jsonschema.Draft202012Validator({**root, "components": {"schemas": schemas}}).validate(item)
