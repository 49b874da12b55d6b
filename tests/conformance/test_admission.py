"""Admission webhooks as far as they show without a webhook: who would be asked, and what happens when nobody answers.

The webhook of these tests is a service that does not exist, with ``failurePolicy: Fail``: an object that it concerns is
refused, every other one passes.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.conformance_api import MERGE, TIMEOUT, Answer, Api, configmap

MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
VALIDATING = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


def configuration(name: str, namespace: str, /, **change: Any) -> Any:
    """A configuration that concerns ConfigMaps of one namespace only."""
    hook = {
        "name": "nobody.conformance.tessera.dev",
        "clientConfig": {"service": {"namespace": namespace, "name": "nobody", "path": "/review"}},
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 5,
        **change,
    }
    return {"metadata": {"name": name}, "webhooks": [hook]}


def marked(name: str, **labels: str) -> Any:
    """A ConfigMap with labels."""
    sent = configmap(name)
    sent["metadata"]["labels"] = labels
    return sent


async def refusal(api: Api, core: str, sent: Any) -> Answer:
    """The refusal of a create; a configuration needs a moment until it counts."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            answer = await api("POST", f"{core}/configmaps", sent)
            if answer.status >= 400:
                return answer
            (await api("DELETE", f"{core}/configmaps/{sent['metadata']['name']}")).ok()


@pytest.fixture
def configured(api: Api, namespace: str, unique: str, cleanup: Callable[[str], None]) -> Any:
    """Stores a configuration that is deleted after the test."""

    async def store(path: str = MUTATING, **change: Any) -> None:
        cleanup(f"{path}/{unique}")
        (await api("POST", path, configuration(unique, namespace, **change))).ok()

    return store


async def test_defaults_of_a_configuration(api: Api, configured: Any, unique: str) -> None:
    await configured()
    (hook,) = (await api("GET", f"{MUTATING}/{unique}")).ok()["webhooks"]
    assert (hook["failurePolicy"], hook["matchPolicy"], hook["reinvocationPolicy"]) == ("Fail", "Equivalent", "Never")
    assert hook["objectSelector"] == {}
    assert hook["rules"][0]["scope"] == "*"
    assert hook["clientConfig"]["service"]["port"] == 443


@pytest.mark.parametrize("path", [MUTATING, VALIDATING])
async def test_a_webhook_that_cannot_be_asked_refuses(api: Api, core: str, configured: Any, path: str) -> None:
    await configured(path)
    text = (await refusal(api, core, configmap("a"))).refused(500, "InternalError")
    start = 'Internal error occurred: failed calling webhook "nobody.conformance.tessera.dev": failed to call webhook: '
    assert text.startswith(start)
    assert '"nobody" not found' in text


async def test_match_conditions_decide_who_is_asked(api: Api, core: str, configured: Any) -> None:
    asks = "has(object.data) && object.data.exists(k, k.startsWith('slice'))"
    await configured(matchConditions=[{"name": "asks", "expression": asks}])
    (await refusal(api, core, configmap("a", slice1="x"))).refused(500, "InternalError")
    (await api("POST", f"{core}/configmaps", configmap("b", other="x"))).ok()


async def test_all_match_conditions_must_hold(api: Api, core: str, configured: Any) -> None:
    labelled = "'tier' in object.metadata.?labels.orValue({})"
    created = "request.operation == 'CREATE' && request.kind.kind == 'ConfigMap'"
    await configured(
        matchConditions=[{"name": "labelled", "expression": labelled}, {"name": "created", "expression": created}]
    )
    (await refusal(api, core, marked("a", tier="gold"))).refused(500)
    (await api("POST", f"{core}/configmaps", marked("b", other="x"))).ok()


async def test_object_selectors(api: Api, core: str, configured: Any) -> None:
    await configured(objectSelector={"matchLabels": {"watched": "yes"}})
    (await refusal(api, core, marked("a", watched="yes"))).refused(500)
    (await api("POST", f"{core}/configmaps", marked("b", watched="no"))).ok()


async def test_operations(api: Api, core: str, configured: Any) -> None:
    (await api("POST", f"{core}/configmaps", marked("old", watched="yes"))).ok()
    await configured(objectSelector={"matchLabels": {"watched": "yes"}})
    await refusal(api, core, marked("a", watched="yes"))
    (await api("PATCH", f"{core}/configmaps/old", {"data": {"k": "v"}}, content=MERGE)).ok()
    (await api("DELETE", f"{core}/configmaps/old")).ok()


async def test_a_failure_may_be_ignored(api: Api, core: str, configured: Any) -> None:
    await configured(failurePolicy="Ignore", matchConditions=[{"name": "all", "expression": "true"}])
    (await api("POST", f"{core}/configmaps", configmap("a"))).ok()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (
            {"matchConditions": [{"name": "x", "expression": "object.spec +"}]},
            "webhooks[0].matchConditions[0].expression",
        ),
        (
            {"matchConditions": [{"name": "x", "expression": "nobody == 1"}]},
            "webhooks[0].matchConditions[0].expression",
        ),
        ({"timeoutSeconds": 31}, "webhooks[0].timeoutSeconds"),
        ({"name": "short"}, "webhooks[0].name"),
        ({"admissionReviewVersions": ["v9"]}, "webhooks[0].admissionReviewVersions"),
        ({"clientConfig": {}}, "webhooks[0].clientConfig"),
        ({"clientConfig": {"url": "http://example.com"}}, "webhooks[0].clientConfig.url"),
        ({"sideEffects": "Some"}, "webhooks[0].sideEffects"),
    ],
)
async def test_what_is_wrong_with_a_configuration(
    api: Api, namespace: str, unique: str, change: Any, field: str
) -> None:
    answer = await api("POST", MUTATING, configuration(unique, namespace, **change))
    answer.refused(422, "Invalid")
    assert field in [each["field"] for each in answer.body["details"]["causes"]]
