"""Custom resources: definitions, validation, defaults, pruning, columns, subresources."""

from typing import Any

import pytest
from tests.support.conformance_api import CRDS, MERGE, Api, causes, crd, custom, establish

SCHEMA = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "format": "int32", "minimum": 1},
                "mode": {"type": "string", "enum": ["fast", "slow"], "default": "slow"},
                "word": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
                "port": {"x-kubernetes-int-or-string": True},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "parts": {
                    "type": "array",
                    "maxItems": 2,
                    "items": {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}},
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["id"],
                },
            },
        },
        "status": {
            "type": "object",
            "properties": {
                "replicas": {"type": "integer"},
                "conditions": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"type": {"type": "string"}, "status": {"type": "string"}},
                    },
                },
            },
        },
    },
}
COLUMNS = [
    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
    {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
    {"name": "Mode", "type": "string", "jsonPath": ".spec.mode", "priority": 1},
]
SUBRESOURCES = {
    "status": {},
    "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.replicas"},
}


@pytest.fixture
async def things(api: Api, namespace: str, unique: str, cleanup: Any) -> str:
    """Path of the custom resources."""
    definition = crd(unique, SCHEMA, additionalPrinterColumns=COLUMNS, subresources=SUBRESOURCES)
    await establish(api, definition, cleanup)
    return f"/apis/conformance.tessera.dev/v1/namespaces/{namespace}/{unique}s"


@pytest.mark.parametrize(
    ("spec", "cause"),
    [
        ({}, ("spec.size", "Required value")),
        (
            {"size": "x"},
            ("spec.size", 'Invalid value: "string": spec.size in body must be of type integer: "string"'),
        ),
        ({"size": 0}, ("spec.size", "Invalid value: 0: spec.size in body should be greater than or equal to 1")),
        ({"size": 1, "mode": "x"}, ("spec.mode", 'Unsupported value: "x": supported values: "fast", "slow"')),
        (
            {"size": 1, "word": "A"},
            ("spec.word", "Invalid value: \"A\": spec.word in body should match '^[a-z]+$'"),
        ),
        ({"size": 1, "parts": [{}]}, ("spec.parts[0].id", "Required value")),
    ],
)
async def test_validation_in_kubernetes_words(
    api: Api, things: str, unique: str, spec: Any, cause: tuple[str, str]
) -> None:
    refused = await api("POST", things, custom(unique, "a", **spec))
    text = refused.refused(422, "Invalid")
    assert text.startswith(f'{unique.capitalize()}.conformance.tessera.dev "a" is invalid: ')
    assert cause in causes(refused)


async def test_keys_of_associative_lists_are_unique(api: Api, things: str, unique: str) -> None:
    refused = await api("POST", things, custom(unique, "a", size=1, parts=[{"id": "a"}, {"id": "a"}]))
    assert refused.status == 422
    assert dict(causes(refused))["spec.parts[1]"].startswith("Duplicate value: ")


async def test_too_long_and_too_many(api: Api, things: str, unique: str) -> None:
    parts = [{"id": each} for each in "abc"]
    refused = await api("POST", things, custom(unique, "a", size=1, word="abcdef", parts=parts))
    assert refused.status == 422
    found = dict(causes(refused))
    assert found["spec.word"].startswith("Too long: may not be ")
    assert found["spec.parts"] == "Too many: 3: must have at most 2 items"


async def test_defaults_are_filled_in_and_unknown_fields_pruned(api: Api, things: str, unique: str) -> None:
    sent = custom(unique, "a", size=1, unknown=1, free={"any": {"thing": 1}}, port="80%", mode=None)
    made = (await api("POST", things, sent)).ok()
    assert made["spec"] == {"size": 1, "mode": "slow", "free": {"any": {"thing": 1}}, "port": "80%"}
    strict = await api("POST", f"{things}?fieldValidation=Strict", custom(unique, "b", size=1, unknown=1))
    assert 'strict decoding error: unknown field "spec.unknown"' in strict.refused(400, "BadRequest")


async def test_an_update_is_validated_too(api: Api, things: str, unique: str) -> None:
    (await api("POST", things, custom(unique, "a", size=1))).ok()
    answer = await api("PATCH", f"{things}/a", {"spec": {"size": -1}}, content=MERGE)
    answer.refused(422, "Invalid")


async def test_rules_in_cel_are_held(api: Api, namespace: str, unique: str, cleanup: Any) -> None:
    rules = "x-kubernetes-validations"
    spec = {
        "type": "object",
        "properties": {
            "size": {"type": "integer", rules: [{"rule": "self == oldSelf", "message": "stays as it is"}]},
            "few": {"type": "array", "maxItems": 9, "items": {"type": "integer", rules: [{"rule": "self < 5"}]}},
        },
    }
    await establish(api, crd(unique, {"type": "object", "properties": {"spec": spec}}), cleanup)
    things = f"/apis/conformance.tessera.dev/v1/namespaces/{namespace}/{unique}s"
    refused = await api("POST", things, custom(unique, "a", size=1, few=[1, 7]))
    refused.refused(422, "Invalid")
    ((field, text),) = causes(refused)
    assert field == "spec.few[1]"
    assert text.endswith("failed rule: self < 5")
    (await api("POST", things, custom(unique, "a", size=1))).ok()
    refused = await api("PATCH", f"{things}/a", {"spec": {"size": 2}}, content=MERGE)
    refused.refused(422, "Invalid")
    ((field, text),) = causes(refused)
    assert field == "spec.size"
    assert text.endswith(": stays as it is")
    wrong = await api("PATCH", f"{things}/a", {"spec": {"size": "x"}}, content=MERGE)
    assert "some validation rules were not checked" in dict(causes(wrong))["<nil>"]
    for free in (None, 2):
        (await api("PATCH", f"{things}/a", {"spec": {"size": free}}, content=MERGE)).ok()


async def test_status_is_written_through_its_subresource_only(api: Api, things: str, unique: str) -> None:
    sent = {**custom(unique, "a", size=1), "status": {"replicas": 9}}
    made = (await api("POST", things, sent)).ok()
    assert "status" not in made
    assert made["metadata"]["generation"] == 1
    patch = {"spec": {"size": 5}, "status": {"replicas": 3}}
    patched = (await api("PATCH", f"{things}/a/status", patch, content=MERGE)).ok()
    assert (patched["spec"]["size"], patched["status"]) == (1, {"replicas": 3})
    assert patched["metadata"]["generation"] == 1
    patched = (await api("PATCH", f"{things}/a", patch | {"status": {"replicas": 4}}, content=MERGE)).ok()
    assert (patched["spec"]["size"], patched["status"], patched["metadata"]["generation"]) == (5, {"replicas": 3}, 2)


async def test_the_scale_of_a_custom_resource(api: Api, things: str, unique: str) -> None:
    (await api("POST", things, custom(unique, "a", size=2))).ok()
    scale = (await api("GET", f"{things}/a/scale")).ok()
    assert (scale["kind"], scale["apiVersion"], scale["spec"]) == ("Scale", "autoscaling/v1", {"replicas": 2})
    patched = (await api("PATCH", f"{things}/a/scale", {"spec": {"replicas": 7}}, content=MERGE)).ok()
    assert patched["spec"] == {"replicas": 7}
    assert (await api("GET", f"{things}/a")).ok()["spec"]["size"] == 7


async def test_printer_columns(api: Api, things: str, unique: str) -> None:
    (await api("POST", things, custom(unique, "a", size=2))).ok()
    status = {"status": {"conditions": [{"type": "Other", "status": "False"}, {"type": "Ready", "status": "True"}]}}
    (await api("PATCH", f"{things}/a/status", status, content=MERGE)).ok()
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    table = (await api("GET", things, accept=accept)).ok()
    assert [(each["name"], each["type"], each["priority"]) for each in table["columnDefinitions"]] == [
        ("Name", "string", 0),
        ("Size", "integer", 0),
        ("Ready", "string", 0),
        ("Mode", "string", 1),
    ]
    assert [row["cells"] for row in table["rows"]] == [["a", 2, "True", "slow"]]


async def test_conditions_say_that_a_definition_is_served(api: Api, things: str, unique: str) -> None:
    assert things
    found = (await api("GET", f"{CRDS}/{unique}s.conformance.tessera.dev")).ok()
    true = {each["type"] for each in found["status"]["conditions"] if each["status"] == "True"}
    assert {"NamesAccepted", "Established"} <= true
    assert found["status"]["storedVersions"] == ["v1"]


async def test_a_deleted_definition_takes_its_objects_with_it(
    api: Api, namespace: str, unique: str, cleanup: Any
) -> None:
    await establish(api, crd(unique, SCHEMA), cleanup)
    path = f"/apis/conformance.tessera.dev/v1/namespaces/{namespace}/{unique}s"
    (await api("POST", path, custom(unique, "a", size=1))).ok()
    async with api.watch(path) as watch:
        assert await watch.names(1) == [("ADDED", "a")]
        (await api("DELETE", f"{CRDS}/{unique}s.conformance.tessera.dev")).ok()
        assert await watch.names(1) == [("DELETED", "a")]
        with pytest.raises(StopAsyncIteration):
            await watch.next()
    await api.gone(f"{CRDS}/{unique}s.conformance.tessera.dev")
    await api.gone(path)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "object", "properties": {"spec": {}}}, "must not be empty for specified object fields"),
        ({"type": "string"}, "must be object at the root"),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}},
            },
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ),
        ({"type": "object", "properties": {"a": {"type": "integer", "default": "x"}}}, "must be of type integer"),
    ],
)
async def test_a_definition_must_be_structural(api: Api, unique: str, schema: Any, text: str) -> None:
    refused = await api("POST", CRDS, crd(unique, schema))
    assert text in refused.refused(422, "Invalid")


async def test_a_definition_s_name_is_plural_and_group(api: Api, unique: str) -> None:
    definition = crd(unique, SCHEMA)
    definition["metadata"]["name"] = f"{unique}.conformance.tessera.dev"
    text = (await api("POST", CRDS, definition)).refused(422, "Invalid")
    assert 'must be spec.names.plural+"."+spec.group' in text
