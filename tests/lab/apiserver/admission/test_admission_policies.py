"""Differences of this server in validating admission policies; the rest is in tests/conformance."""

import json
from typing import Any

import pytest
from tests.support.api_user import ApiUser, config_map

from tessera_lab.apiserver.interfaces import AdmissionRequest, Attributes, UserInfo
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.apiserver.status import StatusError

GROUP = "/apis/admissionregistration.k8s.io/v1"
POLICIES, BINDINGS = f"{GROUP}/validatingadmissionpolicies", f"{GROUP}/validatingadmissionpolicybindings"
RULE = {"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}


def policy(expression: str = "false", **spec: Any) -> Any:
    body = {"matchConstraints": {"resourceRules": [RULE]}, "validations": [{"expression": expression}], **spec}
    return {"metadata": {"name": "p"}, "spec": body}


def binding(*actions: str, **spec: Any) -> Any:
    return {"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": list(actions), **spec}}


@pytest.mark.parametrize(
    ("sent", "field", "text"),
    [
        (policy(paramKind={"apiVersion": "v1", "kind": "ConfigMap"}), "spec.paramKind", "does not evaluate parameters"),
        (
            policy(auditAnnotations=[{"key": "k", "valueExpression": "'v'"}]),
            "spec.auditAnnotations",
            "does not evaluate audit annotations",
        ),
        (policy("authorizer.path('/').check('get').allowed()"), "spec.validations[0].expression", "'path()'"),
        (
            policy(validations=[{"expression": "false", "messageExpression": "string(authorizer == null)"}]),
            "spec.validations[0].messageExpression",
            "'authorizer'",
        ),
        (policy("ip('::1').family() == 6"), "spec.validations[0].expression", "not among the functions supported"),
    ],
)
async def test_what_is_not_evaluated_is_refused(api: ApiUser, sent: Any, field: str, text: str) -> None:
    answer = await api("POST", POLICIES, sent)
    assert answer["code"] == 422
    assert field in answer["message"]
    assert text in answer["message"]


@pytest.mark.parametrize(
    "reference",
    [
        {"name": "x", "parameterNotFoundAction": "Allow"},
        {"selector": {"matchLabels": {"a": "b"}}, "parameterNotFoundAction": "Allow"},
        {"selector": {}, "namespace": "x", "parameterNotFoundAction": "Allow"},
        {"selector": {}, "parameterNotFoundAction": "Deny"},
    ],
)
async def test_a_binding_with_parameters_that_are_not_evaluated_is_refused(api: ApiUser, reference: Any) -> None:
    answer = await api("POST", BINDINGS, binding("Deny", paramRef=reference))
    assert "spec.paramRef" in answer["message"]
    assert "Forbidden" in answer["message"]


async def test_a_policy_must_hold_for_each_pod_of_the_namespace(api: ApiUser) -> None:
    found = policy("params.metadata.name != object.metadata.name", paramKind={"apiVersion": "v1", "kind": "Pod"})
    await api("POST", POLICIES, found)
    await api("POST", BINDINGS, binding("Deny", paramRef={"selector": {}, "parameterNotFoundAction": "Allow"}))
    path = "/api/v1/namespaces/default/configmaps"
    assert "code" not in await api("POST", path, config_map("a"))
    for name in ("b", "c"):
        pod = {"metadata": {"name": name}, "spec": {"containers": [{"name": "a", "image": "e.com/a:1"}]}}
        assert "code" not in await api("POST", "/api/v1/namespaces/default/pods", pod)
    assert "denied request" in (await api("POST", path, config_map("c")))["message"]
    assert "code" not in await api("POST", path, config_map("d"))


async def test_only_a_policy_with_parameters_knows_them(api: ApiUser) -> None:
    answer = await api("POST", POLICIES, policy("params.metadata.name == 'a'"))
    assert "spec.validations[0].expression" in answer["message"]


async def test_the_audit_log_has_failures_of_which_a_binding_says_so(api: ApiUser, server: ApiServer) -> None:
    await api("POST", POLICIES, policy())
    await api("POST", BINDINGS, binding("Audit"))
    assert "code" not in await api("POST", "/api/v1/namespaces/default/configmaps", config_map("a"))
    (found,) = server.audit.annotations
    (failure,) = json.loads(found["validation.policy.admission.k8s.io/validation_failure"])
    assert (failure["policy"], failure["binding"], failure["message"]) == ("p", "b", "failed expression: false")


def ephemeral() -> AdmissionRequest:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"ephemeralContainers": [{}]}}
    asked = Attributes(
        user=UserInfo(name="ann"), verb="patch", version="v1", resource="pods", subresource="ephemeralcontainers"
    )
    return AdmissionRequest(attributes=asked, operation="UPDATE", kind="Pod", obj=pod, old=pod)


async def test_a_subresource_is_named_by_the_rule(api: ApiUser, server: ApiServer) -> None:
    for resource, refused in (("pods", False), ("pods/status", False), ("pods/ephemeralcontainers", True)):
        rules = [{**RULE, "resources": [resource]}]
        await api("POST", POLICIES, policy(matchConstraints={"resourceRules": rules}))
        await api("POST", BINDINGS, binding("Deny"))
        policies = server.parts.policies
        assert policies is not None
        try:
            policies.validate(ephemeral())
            assert not refused
        except StatusError:
            assert refused
        await api("DELETE", f"{POLICIES}/p")
