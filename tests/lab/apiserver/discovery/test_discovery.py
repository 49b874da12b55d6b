"""Discovery documents, in both forms."""

import pytest

from tessera.api.names import LAB_SUFFIX, VIRTUAL_TIME_SUFFIX
from tessera_lab.apiserver.discovery.discovery import (
    DiscoveryDocuments,
    aggregated_version,
    version_priority,
)
from tessera_lab.apiserver.interfaces import GroupResource
from tessera_lab.apiserver.kinds.builtin_types import builtin_types
from tessera_lab.apiserver.kinds.versions import RELEASES
from tessera_lab.apiserver.resource_types import ResourceRegistry, ResourceType

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
RELEASE = RELEASES["1.36"]
#: What kubectl 1.32 sends.
KUBECTL = f"{AGGREGATED},{AGGREGATED.replace('v2', 'v2beta1')},application/json"


def custom(version: str) -> ResourceType:
    return ResourceType(
        group="example.com",
        version=version,
        plural="tiles",
        singular="tile",
        kind="Tile",
        list_kind="TileList",
        namespaced=True,
        storage=GroupResource("example.com", "tiles"),
        served_crd="tiles.example.com",
    )


@pytest.fixture
def registry() -> ResourceRegistry:
    return ResourceRegistry(builtin_types())


def test_the_content_type_is_the_one_that_was_asked_for(registry: ResourceRegistry) -> None:
    media, document = DiscoveryDocuments(registry, RELEASE).answer("/apis", KUBECTL) or ("", {})
    assert media == AGGREGATED
    assert (document["kind"], document["apiVersion"]) == ("APIGroupDiscoveryList", "apidiscovery.k8s.io/v2")
    media, document = DiscoveryDocuments(registry, RELEASE).answer("/api", AGGREGATED.replace("v2", "v2beta1")) or (
        "",
        {},
    )
    assert media.endswith("v=v2beta1;as=APIGroupDiscoveryList")
    assert document["apiVersion"] == "apidiscovery.k8s.io/v2beta1"


@pytest.mark.parametrize(
    ("accept", "version"),
    [(KUBECTL, "v2"), ("application/json", ""), ("", ""), ("*/*", ""), (f"application/json,{AGGREGATED}", "")],
)
def test_the_first_acceptable_form_wins(accept: str, version: str) -> None:
    assert aggregated_version(accept) == version


@pytest.mark.parametrize("path", ["/apis/nothing", "/api/v2", "/apis/apps/v9", "/apis/apps/v1/deployments/x"])
def test_what_is_not_served_has_no_document(registry: ResourceRegistry, path: str) -> None:
    assert DiscoveryDocuments(registry, RELEASE).answer(path, "") is None


def test_the_preferred_version_is_the_most_stable_one(registry: ResourceRegistry) -> None:
    for version in ("v1alpha1", "v1beta1", "v1", "v2beta1", "foo"):
        registry.add(custom(version))
    _, group = DiscoveryDocuments(registry, RELEASE).answer("/apis/example.com", "") or ("", {})
    assert [each["version"] for each in group["versions"]] == ["v1", "v2beta1", "v1beta1", "v1alpha1", "foo"]


def test_versions_are_ordered_as_kubernetes_does() -> None:
    names = ["v10", "v2", "v1", "v11beta2", "v10beta3", "v3beta1", "v12alpha1", "v11alpha2", "foo1", "foo10"]
    numbered = [name for name in names if name.startswith("v")]
    assert sorted(numbered, key=version_priority, reverse=True) == numbered


@pytest.mark.parametrize(("leaps", "says"), [(False, LAB_SUFFIX), (True, VIRTUAL_TIME_SUFFIX)])
def test_the_version_says_that_this_is_the_lab_and_whether_its_time_leaps(leaps: bool, says: str) -> None:
    _, version = DiscoveryDocuments(ResourceRegistry([]), RELEASE, leaps=leaps).answer("/version", "") or ("", {})
    assert version["gitVersion"] == f"v{RELEASE}{says}"
    assert (version["major"], version["minor"]) == ("1", "36")
