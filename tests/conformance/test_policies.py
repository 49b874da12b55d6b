"""Validating admission policies: what they judge, how they refuse and warn, and what may be stored.

A policy and its binding here concern ConfigMaps of one namespace only.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.conformance_api import MERGE, TIMEOUT, Answer, Api, causes, configmap

GROUP = "/apis/admissionregistration.k8s.io/v1"
POLICIES, BINDINGS = f"{GROUP}/validatingadmissionpolicies", f"{GROUP}/validatingadmissionpolicybindings"
RULE = {"operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}


def policy(name: str, *validations: Any, **spec: Any) -> Any:
    """A policy over ConfigMaps; a validation may be an expression alone."""
    whole = [{"expression": each} if isinstance(each, str) else each for each in validations]
    rules = spec.pop("rules", [RULE])
    return {
        "metadata": {"name": name},
        "spec": {"matchConstraints": {"resourceRules": rules}, "validations": whole, **spec},
    }


def bind(name: str, namespace: str, *actions: str, **spec: Any) -> Any:
    """A binding of the policy of that name to a namespace."""
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    actions = actions or ("Deny",)
    resources = {"namespaceSelector": selector, **spec.pop("matchResources", {})}
    return {
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": list(actions), "matchResources": resources, **spec},
    }


@pytest.fixture
def enforced(api: Api, core: str, namespace: str, unique: str, cleanup: Callable[[str], None]) -> Any:
    """Stores a policy and its binding, and waits until the server heeds both."""

    async def store(*validations: Any, actions: tuple[str, ...] = ("Deny",), binding: Any = None, **spec: Any) -> None:
        cleanup(f"{POLICIES}/{unique}")
        cleanup(f"{BINDINGS}/{unique}")
        probe = {"expression": "object == null || object.metadata.name != 'probe'", "message": "in force"}
        (await api("POST", POLICIES, policy(unique, *validations, probe, **spec))).ok()
        (await api("POST", BINDINGS, bind(unique, namespace, *actions, **(binding or {})))).ok()
        async with asyncio.timeout(TIMEOUT):
            while not _heeded(await api("POST", f"{core}/configmaps?dryRun=All", configmap("probe"))):
                pass

    return store


def _heeded(answer: Answer) -> bool:
    said = answer.headers.get("warning", "") if answer.status < 300 else answer.body["message"]
    return "ValidatingAdmissionPolicy" in said


async def create(api: Api, core: str, name: str, **data: str) -> Answer:
    """The answer to a new ConfigMap."""
    return await api("POST", f"{core}/configmaps", configmap(name, **data))


async def test_defaults(api: Api, unique: str, namespace: str, cleanup: Callable[[str], None]) -> None:
    cleanup(f"{POLICIES}/{unique}")
    cleanup(f"{BINDINGS}/{unique}")
    spec = (await api("POST", POLICIES, policy(unique, "true"))).ok()["spec"]
    assert spec["failurePolicy"] == "Fail"
    constraints = spec["matchConstraints"]
    assert (constraints["matchPolicy"], constraints["objectSelector"]) == ("Equivalent", {})
    assert constraints["resourceRules"][0]["scope"] == "*"
    resources = (await api("POST", BINDINGS, bind(unique, namespace))).ok()["spec"]["matchResources"]
    assert (resources["matchPolicy"], resources["objectSelector"]) == ("Equivalent", {})


async def test_a_refusal_names_policy_binding_and_message(api: Api, core: str, unique: str, enforced: Any) -> None:
    await enforced({"expression": "!('bad' in object.data)", "message": "no bad keys"})
    (await create(api, core, "good", other="x")).ok()
    answer = await create(api, core, "a", bad="x")
    text = answer.refused(422, "Invalid")
    why = f"ValidatingAdmissionPolicy '{unique}' with binding '{unique}' denied request: no bad keys"
    assert text == f'configmaps "a" is forbidden: {why}'
    assert answer.body["details"]["causes"] == [{"message": why}]


@pytest.mark.parametrize(("reason", "code"), [("Forbidden", 403), ("RequestEntityTooLarge", 413), ("Invalid", 422)])
async def test_reasons_are_statuses(api: Api, core: str, enforced: Any, reason: str, code: int) -> None:
    await enforced({"expression": "!('bad' in object.data)", "reason": reason})
    text = (await create(api, core, "a", bad="x")).refused(code, reason)
    assert text.endswith("denied request: failed expression: !('bad' in object.data)")


async def test_a_message_may_be_made_and_falls_back(api: Api, core: str, enforced: Any) -> None:
    await enforced(
        {
            "expression": "object.data.size() < 3",
            "message": "too many",
            "messageExpression": "string(object.data.size()) + ' keys in ' + object.metadata.annotations['a']",
        },
    )
    text = (await create(api, core, "a", k="1", l="2", m="3")).refused(422)
    assert text.endswith("denied request: too many")
    sent = configmap("b", k="1", l="2", m="3")
    sent["metadata"]["annotations"] = {"a": "b"}
    text = (await api("POST", f"{core}/configmaps", sent)).refused(422)
    assert text.endswith("denied request: 3 keys in b")


async def test_variables_are_composed_and_only_evaluated_when_used(api: Api, core: str, enforced: Any) -> None:
    await enforced(
        "variables.sum < 3 || variables.broken",
        variables=[
            {"name": "keys", "expression": "object.data.size()"},
            {"name": "broken", "expression": "object.nothing.here == 1"},
            {"name": "sum", "expression": "variables.keys + 1"},
        ],
    )
    (await create(api, core, "a", k="1")).ok()
    text = (await create(api, core, "b", k="1", l="2")).refused(422)
    assert "no such key: nothing" in text


async def test_old_object_and_request(api: Api, core: str, enforced: Any) -> None:
    await enforced(
        "request.operation != 'UPDATE' || object.data == oldObject.data",
        "request.kind.kind == 'ConfigMap' && request.resource.resource == 'configmaps' && request.namespace != ''",
        "request.userInfo.username != '' && !has(request.subResource)",
    )
    (await create(api, core, "a", k="1")).ok()
    path = f"{core}/configmaps/a"
    (await api("PATCH", path, {"metadata": {"labels": {"x": "y"}}}, content=MERGE)).ok()
    (await api("PATCH", path, {"data": {"k": "2"}}, content=MERGE)).refused(422, "Invalid")


async def test_a_delete_has_an_old_object_only(api: Api, core: str, enforced: Any) -> None:
    rules = [{**RULE, "operations": ["*"]}]
    await enforced("request.operation != 'DELETE' || (object == null && oldObject.data.k != 'keep')", rules=rules)
    (await create(api, core, "a", k="keep")).ok()
    (await create(api, core, "b", k="x")).ok()
    (await api("DELETE", f"{core}/configmaps/a")).refused(422)
    (await api("DELETE", f"{core}/configmaps/b")).ok()


async def test_the_namespace_is_an_object(api: Api, core: str, namespace: str, enforced: Any) -> None:
    await enforced(f"namespaceObject.metadata.name == '{namespace}' && has(namespaceObject.metadata.labels)")
    (await create(api, core, "a")).ok()


async def test_match_conditions_come_first(api: Api, core: str, enforced: Any) -> None:
    condition = {"name": "k", "expression": "object.metadata.name in ['a', 'probe'] || object.data.nothing == 1"}
    await enforced("false", matchConditions=[condition])
    (await create(api, core, "a")).refused(422)
    (await create(api, core, "c", x="y")).refused(422)


async def test_an_expression_without_a_value_refuses_unless_failures_are_ignored(
    api: Api, core: str, enforced: Any
) -> None:
    await enforced("object.data.missing == 'x'", failurePolicy="Ignore")
    (await create(api, core, "a", k="1")).ok()
    (await create(api, core, "b", missing="y")).refused(422)


async def test_warnings_reach_the_client(api: Api, core: str, unique: str, enforced: Any) -> None:
    await enforced({"expression": "!('bad' in object.data)", "message": "no bad keys"}, actions=("Warn", "Audit"))
    answer = await create(api, core, "a", bad="x")
    answer.ok()
    said = f"Validation failed for ValidatingAdmissionPolicy '{unique}' with binding '{unique}': no bad keys"
    assert answer.headers["warning"] == f'299 - "{said}"'


async def test_object_selectors_and_names_and_exclusions(api: Api, core: str, enforced: Any) -> None:
    rules = [{**RULE, "resourceNames": ["a", "b", "probe"]}]
    excluded = {"excludeResourceRules": [{**RULE, "resourceNames": ["b"]}]}
    await enforced("false", rules=rules, binding={"matchResources": excluded})
    (await create(api, core, "a")).refused(422)
    (await create(api, core, "b")).ok()
    (await create(api, core, "c")).ok()


async def test_a_policy_without_binding_does_nothing(
    api: Api, core: str, unique: str, cleanup: Callable[[str], None]
) -> None:
    cleanup(f"{POLICIES}/{unique}")
    (await api("POST", POLICIES, policy(unique, "false"))).ok()
    (await create(api, core, "a")).ok()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"validations": [{"expression": "object.spec +"}]}, "spec.validations[0].expression"),
        ({"validations": [{"expression": "nobody == 1"}]}, "spec.validations[0].expression"),
        ({"validations": [{"expression": "variables.none == 1"}]}, "spec.validations[0].expression"),
        ({"validations": [{"expression": "request.nothing == 1"}]}, "spec.validations[0].expression"),
        ({"validations": [{"expression": "true", "reason": "NotFound"}]}, "spec.validations[0].reason"),
        ({"validations": [{"expression": "true", "message": "a\nb"}]}, "spec.validations[0].message"),
        (
            {"validations": [{"expression": "true", "messageExpression": "'a' +"}]},
            "spec.validations[0].messageExpression",
        ),
        ({"validations": []}, "spec.validations"),
        ({"matchConditions": [{"name": "x", "expression": "variables.a"}]}, "spec.matchConditions[0].expression"),
        ({"variables": [{"name": "1", "expression": "1"}]}, "spec.variables[0].name"),
        ({"failurePolicy": "Perhaps"}, "spec.failurePolicy"),
        ({"matchConstraints": None}, "spec.matchConstraints"),
        ({"matchConstraints": {"resourceRules": []}}, "spec.matchConstraints.resourceRules"),
    ],
)
async def test_what_is_wrong_with_a_policy(api: Api, unique: str, change: Any, field: str) -> None:
    sent = policy(unique, "true")
    sent["spec"] |= change
    answer = await api("POST", POLICIES, sent)
    answer.refused(422, "Invalid")
    assert field in [each for each, _ in causes(answer)]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"validationActions": []}, "spec.validationActions"),
        ({"validationActions": ["Deny", "Warn"]}, "spec.validationActions"),
        ({"validationActions": ["Shout"]}, "spec.validationActions[0]"),
        ({"validationActions": ["Deny", "Deny"]}, "spec.validationActions[1]"),
        ({"policyName": ""}, "spec.policyName"),
    ],
)
async def test_what_is_wrong_with_a_binding(api: Api, unique: str, namespace: str, change: Any, field: str) -> None:
    sent = bind(unique, namespace)
    sent["spec"] |= change
    answer = await api("POST", BINDINGS, sent)
    answer.refused(422, "Invalid")
    assert field in [each for each, _ in causes(answer)]
