"""Rules for webhook configurations that the server stores."""

import base64
from typing import Any

import pytest

from tessera_lab.apiserver.admission.configuration_rules import validate_webhooks
from tessera_lab.apiserver.authz.certificates import CertificateAuthority
from tessera_lab.apiserver.interfaces import Obj

BUNDLE = base64.b64encode(CertificateAuthority(1_700_000_000.0).certificate).decode()


def configuration(**change: Any) -> Obj:
    hook = {
        "name": "a.example.com",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "clientConfig": {"service": {"name": "s", "namespace": "n"}, "caBundle": BUNDLE},
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
    }
    return {"metadata": {"name": "c"}, "webhooks": [{**hook, **change}]}


def texts(obj: Obj) -> list[str]:
    return [f"{cause.field}: {cause.message}" for cause in validate_webhooks(obj)]


def test_a_good_one() -> None:
    conditions = [{"name": "mig", "expression": "has(object.spec) && request.operation == 'CREATE'"}]
    assert texts(configuration(matchConditions=conditions)) == []
    assert texts(configuration(clientConfig={"url": "https://example.com/review"})) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"admissionReviewVersions": ["v1beta1"]}, "webhooks[0].admissionReviewVersions: Invalid value"),
        (
            {"rules": [{"operations": ["READ"], "apiGroups": [""], "apiVersions": ["v1"], "resources": []}]},
            "webhooks[0].rules[0].resources: Required value",
        ),
        (
            {"matchConditions": [{"name": "x", "expression": "authorizer.check('get')"}]},
            "webhooks[0].matchConditions[0].expression: Invalid value: \"authorizer.check('get')\": compilation failed",
        ),
        (
            {"matchConditions": [{"name": "x", "expression": "true"}, {"name": "x", "expression": "true"}]},
            'webhooks[0].matchConditions[1].name: Duplicate value: "x"',
        ),
    ],
)
def test_what_is_refused(change: Any, text: str) -> None:
    assert texts(configuration(**change))[0].startswith(text)


def test_names_are_unique() -> None:
    obj = configuration()
    obj["webhooks"].append(obj["webhooks"][0])
    assert texts(obj) == ['webhooks[1].name: Duplicate value: "a.example.com"']
