"""The operator's rights: enough to grant what it grants, by name where it writes, and no wildcard."""

import pytest
from bundle.rights import cluster_rules, covers, every_object, granted_rules, namespace_rules

from tessera.cli.install.operator_process import operated_objects, read_choices
from tessera.kube.resources.meta import resource_for

HELD = cluster_rules()


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"options": "--mig-evict --replace-failed 1 --openshift --pull-secret ngc-secret"},
        {"values.yaml": "migManager: {config: {name: default-mig-parted-config}}"},
    ],
    ids=["default", "options", "values"],
)
def test_it_holds_every_right_that_it_grants(data: dict[str, str]) -> None:
    missing = [each for each in granted_rules(operated_objects(read_choices(data, ""))) if not covers(HELD, each)]
    assert missing == []


def test_a_rule_that_it_does_not_hold_is_not_covered() -> None:
    secrets = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
    assert not covers(HELD, secrets)
    assert not covers(HELD, {**secrets, "resourceNames": ["another"]})
    assert covers(HELD, {**secrets, "resourceNames": ["ngc-secret"]})


def test_it_may_write_the_objects_that_it_applies_by_name() -> None:
    granted = list(granted_rules(every_object()))
    own = [each for each in HELD if each not in granted]
    for each in own:
        if each["apiGroups"] != ["nvidia.com"]:  # objects of users, of any name
            assert "resourceNames" in each
    for manifest in every_object():
        resource = resource_for(manifest)
        rule = {
            "apiGroups": [resource.group],
            "resources": [resource.plural],
            "resourceNames": [manifest["metadata"]["name"]],
            "verbs": ["get", "create", "patch"],
        }
        assert covers(own, rule), manifest["metadata"]["name"]


def test_nothing_is_granted_by_wildcard_and_nothing_allows_to_grant_more() -> None:
    for rule in (*HELD, *namespace_rules("tessera-install")):
        texts = {text for key in ("apiGroups", "resources", "nonResourceURLs", "verbs") for text in rule.get(key, ())}
        assert "*" not in texts
        assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])
