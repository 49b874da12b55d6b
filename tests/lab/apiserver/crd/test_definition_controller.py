"""CustomResourceDefinitions: served when stored, validated, defaulted, and gone with their objects."""

from typing import Any

import pytest
from tests.support.api_user import ApiUser

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"
SCHEMA = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {"size": {"type": "integer", "minimum": 1}, "replicas": {"type": "integer", "default": 2}},
        },
        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
    },
}
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"kind": "Widget", "plural": "widgets", "shortNames": ["wd"]},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": SCHEMA},
                "subresources": {
                    "status": {},
                    "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
                },
                "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
            }
        ],
    },
}
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def widget(**spec: Any) -> Any:
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": spec}


@pytest.fixture
async def widgets(api: ApiUser) -> Any:
    await api("POST", CRDS, CRD)
    return api


async def test_a_definition_is_established_at_once(api: ApiUser) -> None:
    made = await api("POST", CRDS, CRD)
    assert {c["type"]: c["status"] for c in made["status"]["conditions"]} == {
        "NamesAccepted": "True",
        "Established": "True",
    }
    assert made["status"]["acceptedNames"]["listKind"] == "WidgetList"
    listed = await api("GET", WIDGETS)
    assert (listed["kind"], listed["items"]) == ("WidgetList", [])


async def test_defaults_and_generation(widgets: Any) -> None:
    made = await widgets("POST", WIDGETS, widget(size=3))
    assert made["spec"] == {"size": 3, "replicas": 2}
    assert made["metadata"]["generation"] == 1
    now = await widgets.merge(f"{WIDGETS}/w", {"spec": {"size": 4}})
    assert now["metadata"]["generation"] == 2
    now = await widgets.merge(f"{WIDGETS}/w/status", {"status": {"replicas": 1}})
    assert (now["metadata"]["generation"], now["status"]) == (2, {"replicas": 1})


async def test_an_invalid_object_is_refused_with_its_place(widgets: Any) -> None:
    refused = await widgets("POST", WIDGETS, widget(size=0))
    assert refused["code"] == 422
    assert refused["message"] == (
        'Widget.example.com "w" is invalid: spec.size: Invalid value: 0: '
        "spec.size in body should be greater than or equal to 1"
    )


async def test_an_update_of_a_custom_resource_names_its_version(widgets: Any) -> None:
    await widgets("POST", WIDGETS, widget(size=1))
    refused = await widgets("PUT", f"{WIDGETS}/w", widget(size=2))
    assert "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update" in refused["message"]


async def test_scale(widgets: Any) -> None:
    await widgets("POST", WIDGETS, widget(size=1))
    scale = await widgets("GET", f"{WIDGETS}/w/scale")
    assert (scale["kind"], scale["apiVersion"], scale["spec"]) == ("Scale", "autoscaling/v1", {"replicas": 2})
    scaled = await widgets.merge(f"{WIDGETS}/w/scale", {"spec": {"replicas": 5}})
    assert scaled["spec"] == {"replicas": 5}
    assert (await widgets("GET", f"{WIDGETS}/w"))["spec"]["replicas"] == 5


async def test_printer_columns(widgets: Any) -> None:
    await widgets("POST", WIDGETS, widget(size=7))
    table = await widgets("GET", WIDGETS, accept=TABLE)
    assert [c["name"] for c in table["columnDefinitions"]] == ["Name", "Size"]
    assert table["rows"][0]["cells"] == ["w", 7]


async def test_strategic_merge_is_not_for_custom_resources(widgets: Any) -> None:
    await widgets("POST", WIDGETS, widget(size=7))
    refused = await widgets("PATCH", f"{WIDGETS}/w", {}, "application/strategic-merge-patch+json")
    assert refused["code"] == 415


async def test_a_deleted_definition_takes_its_objects_with_it(widgets: Any) -> None:
    await widgets("POST", WIDGETS, widget(size=7))
    await widgets("DELETE", f"{CRDS}/widgets.example.com")
    assert (await widgets("GET", WIDGETS))["code"] == 404
    await widgets("POST", CRDS, CRD)
    assert (await widgets("GET", WIDGETS))["items"] == []


async def test_a_definition_waits_for_objects_with_finalizers(widgets: Any) -> None:
    held = widget(size=7)
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await widgets("POST", WIDGETS, held)
    await widgets("DELETE", f"{CRDS}/widgets.example.com")
    assert (await widgets("GET", f"{CRDS}/widgets.example.com"))["metadata"]["deletionTimestamp"]
    await widgets.merge(f"{WIDGETS}/w", {"metadata": {"finalizers": None}})
    assert (await widgets("GET", f"{CRDS}/widgets.example.com"))["code"] == 404
