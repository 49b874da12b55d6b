"""CustomResourceDefinitions: what tests/conformance does not ask."""

from typing import Any

import pytest
from tests.support.api_user import ApiUser
from tests.support.conformance_api import CRDS, MERGE, STRATEGIC, crd, custom

WIDGETS = "/apis/conformance.tessera.dev/v1/namespaces/default/widgets"
NAME = "widgets.conformance.tessera.dev"
CRD = crd("widget", {"type": "object", "x-kubernetes-preserve-unknown-fields": True})


@pytest.fixture
async def widgets(api: ApiUser) -> Any:
    await api("POST", CRDS, CRD)
    await api("POST", WIDGETS, custom("widget", "w"))
    return api


async def test_a_definition_is_established_at_once(api: ApiUser) -> None:
    made = await api("POST", CRDS, CRD)
    assert made["status"]["acceptedNames"]["listKind"] == "WidgetList"
    listed = await api("GET", WIDGETS)
    assert (listed["kind"], listed["items"]) == ("WidgetList", [])


async def test_an_update_of_a_custom_resource_names_its_version(widgets: Any) -> None:
    refused = await widgets("PUT", f"{WIDGETS}/w", custom("widget", "w"))
    assert "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update" in refused["message"]


async def test_strategic_merge_is_not_for_custom_resources(widgets: Any) -> None:
    assert (await widgets("PATCH", f"{WIDGETS}/w", {}, STRATEGIC))["code"] == 415


async def test_a_definition_that_comes_again_has_no_objects(widgets: Any) -> None:
    await widgets("DELETE", f"{CRDS}/{NAME}")
    await widgets("POST", CRDS, CRD)
    assert (await widgets("GET", WIDGETS))["items"] == []


async def test_a_definition_waits_for_objects_with_finalizers(widgets: Any) -> None:
    await widgets("PATCH", f"{WIDGETS}/w", {"metadata": {"finalizers": ["example.com/hold"]}}, MERGE)
    await widgets("DELETE", f"{CRDS}/{NAME}")
    assert (await widgets("GET", f"{CRDS}/{NAME}"))["metadata"]["deletionTimestamp"]
    await widgets.merge(f"{WIDGETS}/w", {"metadata": {"finalizers": None}})
    assert (await widgets("GET", f"{CRDS}/{NAME}"))["code"] == 404
