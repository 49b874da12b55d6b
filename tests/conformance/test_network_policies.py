"""Network policies at the API: what the server fills in, what it refuses, how kubectl shows them."""

from typing import Any

import pytest
from tests.support.conformance_api import MERGE, Api, Kubectl, Obj, causes


@pytest.fixture
def policies(namespace: str) -> str:
    """Path of the namespace's policies."""
    return f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"


def policy(name: str = "p", **spec: Any) -> Obj:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name},
        "spec": {"podSelector": {"matchLabels": {"app": "a"}}, **spec},
    }


PORTS = [{"ports": [{"port": 9443}]}]


@pytest.mark.parametrize(
    ("spec", "types"),
    [
        ({}, ["Ingress"]),
        ({"ingress": PORTS}, ["Ingress"]),
        ({"egress": PORTS}, ["Ingress", "Egress"]),
        ({"egress": PORTS, "policyTypes": ["Egress"]}, ["Egress"]),
        ({"egress": [], "policyTypes": []}, ["Ingress"]),
    ],
)
async def test_a_policy_says_what_it_is_about(api: Api, policies: str, spec: Obj, types: list[str]) -> None:
    made = (await api("POST", policies, policy(**spec))).ok()
    assert made["spec"]["policyTypes"] == types
    assert made["metadata"]["generation"] == 1


async def test_ports_are_those_of_tcp(api: Api, policies: str) -> None:
    rules = [{"ports": [{"port": 9443}, {"port": "dns", "protocol": "UDP"}, {}]}]
    made = (await api("POST", policies, policy(ingress=rules, egress=rules))).ok()
    expected = [{"port": 9443, "protocol": "TCP"}, {"port": "dns", "protocol": "UDP"}, {"protocol": "TCP"}]
    assert made["spec"]["ingress"][0]["ports"] == made["spec"]["egress"][0]["ports"] == expected


async def test_a_changed_policy_is_a_new_generation(api: Api, policies: str) -> None:
    (await api("POST", policies, policy())).ok()
    changed = (await api("PATCH", f"{policies}/p", {"spec": {"ingress": PORTS}}, content=MERGE)).ok()
    assert changed["metadata"]["generation"] == 2
    assert changed["spec"]["policyTypes"] == ["Ingress"]


BLOCK = {"cidr": "192.0.2.0/24"}


@pytest.mark.parametrize(
    ("spec", "field", "text"),
    [
        ({"policyTypes": ["Both"]}, "spec.policyTypes[0]", 'Unsupported value: "Both": supported values'),
        (
            {"policyTypes": ["Ingress", "Egress", "Ingress"]},
            "spec.policyTypes",
            "may not specify more than two policyTypes",
        ),
        ({"ingress": [{"from": [{}]}]}, "spec.ingress[0].from[0]", "must specify a peer"),
        ({"egress": [{"to": [{}]}]}, "spec.egress[0].to[0]", "must specify a peer"),
        (
            {"ingress": [{"from": [{"ipBlock": BLOCK, "podSelector": {}}]}]},
            "spec.ingress[0].from[0]",
            "may not specify both ipBlock and another peer",
        ),
        ({"ingress": [{"from": [{"ipBlock": {"cidr": ""}}]}]}, "spec.ingress[0].from[0].ipBlock.cidr", "Required"),
        (
            {"ingress": [{"from": [{"ipBlock": {"cidr": "192.0.2.1"}}]}]},
            "spec.ingress[0].from[0].ipBlock.cidr",
            "must be a valid CIDR value",
        ),
        (
            {"ingress": [{"from": [{"ipBlock": {**BLOCK, "except": ["198.51.100.0/28"]}}]}]},
            "spec.ingress[0].from[0].ipBlock.except[0]",
            "must be a strict subset of `cidr`",
        ),
        ({"ingress": [{"ports": [{"port": 70000}]}]}, "spec.ingress[0].ports[0].port", "must be between 1 and 65535"),
        (
            {"ingress": [{"ports": [{"port": "no_name"}]}]},
            "spec.ingress[0].ports[0].port",
            "must contain only alpha-numeric characters",
        ),
        (
            {"ingress": [{"ports": [{"port": 90, "endPort": 80}]}]},
            "spec.ingress[0].ports[0].endPort",
            "must be greater than or equal to `port`",
        ),
        (
            {"ingress": [{"ports": [{"endPort": 80}]}]},
            "spec.ingress[0].ports[0].endPort",
            "may not be specified when `port` is not specified",
        ),
        (
            {"ingress": [{"ports": [{"port": 80, "protocol": "ICMP"}]}]},
            "spec.ingress[0].ports[0].protocol",
            'Unsupported value: "ICMP"',
        ),
    ],
)
async def test_a_wrong_policy_is_refused(api: Api, policies: str, spec: Obj, field: str, text: str) -> None:
    answer = await api("POST", policies, policy(**spec))
    answer.refused(422, "Invalid")
    assert [(each, text in message) for each, message in causes(answer)] == [(field, True)]


async def test_an_unknown_field_is_refused(api: Api, policies: str) -> None:
    answer = await api("POST", f"{policies}?fieldValidation=Strict", policy(ingres=PORTS))
    assert 'unknown field "spec.ingres"' in answer.refused(400, "BadRequest")


async def test_kubectl_knows_them(kubectl: Kubectl) -> None:
    manifest = policy(ingress=[{"ports": [{"port": 9443, "protocol": "TCP"}]}], policyTypes=["Ingress"])
    assert await kubectl("apply", "-f", "-", manifest=manifest) == "networkpolicy.networking.k8s.io/p created\n"
    assert await kubectl("apply", "-f", "-", manifest=manifest) == "networkpolicy.networking.k8s.io/p unchanged\n"
    head, row = (await kubectl("get", "netpol")).splitlines()
    assert head.split() == ["NAME", "POD-SELECTOR", "AGE"]
    assert row.split()[:2] == ["p", "app=a"]
    assert "NetworkPolicySpec" in await kubectl("explain", "networkpolicy.spec")
    assert "deleted" in await kubectl("delete", "netpol", "p")
