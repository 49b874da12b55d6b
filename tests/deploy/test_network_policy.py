"""The network policies close every port of our pods but those that somebody else has to reach."""

import kubernetes_validate
import pytest
import yaml
from tests.deploy.conftest import ROOT, Obj
from tests.deploy.test_objects import SUPPORTED

from tessera.lab.manifests import install_manifests

POLICIES = list(yaml.safe_load_all((ROOT / "deploy" / "options" / "network-policy.yaml").read_text()))


def pods() -> dict[str, Obj]:
    """The pods of ours, by name."""
    kinds = {"Deployment", "DaemonSet"}
    return {each["metadata"]["name"]: each["spec"]["template"] for each in install_manifests() if each["kind"] in kinds}


def allowed(name: str, pod: Obj) -> set[str]:
    labels = pod["metadata"]["labels"]
    ports = set()
    for policy in POLICIES:
        selector = policy["spec"]["podSelector"]
        tests = selector.get("matchExpressions", ())
        equal = selector.get("matchLabels", {}).items() <= labels.items()
        if equal and all(labels.get(each["key"]) in each["values"] for each in tests):
            ports |= {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    assert ports, f"no policy selects {name}"
    return ports


def test_reviews_and_metrics_are_let_through_and_nothing_else() -> None:
    found = {name: allowed(name, pod) for name, pod in pods().items()}
    assert found == {"tessera-webhook": {"https"}, "tessera-controller": {"http"}, "tessera-agent": {"http"}}
    for name, ports in found.items():
        (container,) = pods()[name]["spec"]["containers"]
        assert ports <= {each["name"] for each in container["ports"]}


@pytest.mark.parametrize("version", SUPPORTED)
@pytest.mark.parametrize("policy", POLICIES, ids=lambda each: each["metadata"]["name"])
def test_the_policies_are_valid(policy: Obj, version: str) -> None:
    kubernetes_validate.validate(policy, version, strict=True)
    assert policy["spec"]["policyTypes"] == ["Ingress"]
