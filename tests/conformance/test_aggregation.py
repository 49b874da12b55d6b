"""APIServices: rules, discovery and answers of a group whose Service nobody serves."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.conformance_api import Api, Kubectl, causes

SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"


def api_service(group: str, **spec: Any) -> dict[str, Any]:
    """An APIService for a Service that does not exist."""
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"v1.{group}"},
        "spec": {
            "group": group,
            "version": "v1",
            "groupPriorityMinimum": 100,
            "versionPriority": 10,
            "service": {"namespace": "default", "name": "nobody"},
            **spec,
        },
    }


@pytest.fixture
async def group(api: Api) -> AsyncIterator[str]:
    """A group whose Service does not exist."""
    name = f"g{uuid.uuid4().hex[:8]}.conformance.tessera.dev"
    (await api("POST", SERVICES, api_service(name))).ok()
    yield name
    await api("DELETE", f"{SERVICES}/v1.{name}")


async def test_the_port_of_the_service_is_443_unless_it_is_named(api: Api, group: str) -> None:
    made = (await api("GET", f"{SERVICES}/v1.{group}")).ok()
    assert made["spec"]["service"] == {"namespace": "default", "name": "nobody", "port": 443}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"version": "v2"}, "metadata.name"),
        ({"groupPriorityMinimum": 0}, "spec.groupPriorityMinimum"),
        ({"groupPriorityMinimum": 20_001}, "spec.groupPriorityMinimum"),
        ({"versionPriority": 0}, "spec.versionPriority"),
        ({"versionPriority": 1_001}, "spec.versionPriority"),
        ({"service": {"namespace": "default", "name": ""}}, "spec.service.name"),
        ({"service": {"namespace": "", "name": "nobody"}}, "spec.service.namespace"),
    ],
)
async def test_rules_of_the_spec(api: Api, changes: dict[str, Any], field: str) -> None:
    answer = await api("POST", SERVICES, api_service("rules.conformance.tessera.dev", **changes))
    answer.refused(422, "Invalid")
    assert field in dict(causes(answer))


async def test_a_bundle_and_no_verification_exclude_each_other(api: Api) -> None:
    spec = {"insecureSkipTLSVerify": True, "caBundle": "YQ=="}
    answer = await api("POST", SERVICES, api_service("rules.conformance.tessera.dev", **spec))
    answer.refused(422, "Invalid")
    assert "spec.insecureSkipTLSVerify" in dict(causes(answer))


async def test_a_group_without_a_service_answers_503(api: Api, group: str) -> None:
    for path in (f"/apis/{group}/v1", f"/apis/{group}/v1/namespaces/default/things", f"/apis/{group}/v1/things/a"):
        await api.until(path, lambda answer: answer.status == 503)


async def test_other_versions_of_the_group_are_not_found(api: Api, group: str) -> None:
    await api.until(f"/apis/{group}/v1", lambda answer: answer.status == 503)
    assert (await api("GET", f"/apis/{group}/v2/things")).status == 404


async def test_discovery_has_the_group_also_while_it_is_not_served(api: Api, group: str) -> None:
    def lists_it(answer: Any) -> bool:
        return group in [each["name"] for each in answer.ok()["groups"]]

    await api.until("/apis", lists_it)
    found = (await api.until(f"/apis/{group}", lambda answer: answer.status == 200)).ok()
    assert (found["kind"], found["name"]) == ("APIGroup", group)
    assert found["preferredVersion"] == {"groupVersion": f"{group}/v1", "version": "v1"}


async def test_the_condition_says_that_it_is_not_available(api: Api, group: str) -> None:
    def judged(answer: Any) -> bool:
        conditions = (answer.ok().get("status") or {}).get("conditions") or ()
        return any((each["type"], each["status"]) == ("Available", "False") for each in conditions)

    await api.until(f"{SERVICES}/v1.{group}", judged)


async def test_kubectl_shows_the_service_and_whether_it_is_available(api: Api, group: str, kubectl: Kubectl) -> None:
    await api.until(f"/apis/{group}/v1", lambda answer: answer.status == 503)
    head, row = (await kubectl("get", "apiservice", f"v1.{group}")).splitlines()
    assert head.split() == ["NAME", "SERVICE", "AVAILABLE", "AGE"]
    assert row.split()[:2] == [f"v1.{group}", "default/nobody"]


async def test_with_the_object_the_group_goes(api: Api) -> None:
    name = f"g{uuid.uuid4().hex[:8]}.conformance.tessera.dev"
    (await api("POST", SERVICES, api_service(name))).ok()
    await api.until(f"/apis/{name}/v1", lambda answer: answer.status == 503)
    (await api("DELETE", f"{SERVICES}/v1.{name}")).ok()
    await api.until(f"/apis/{name}/v1", lambda answer: answer.status == 404)
