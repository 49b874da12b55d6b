"""The roles for people: an administrator of GPUs has what each command takes, and nobody gets more by the way."""

from collections.abc import Iterator

import pytest
from tests.deploy.conftest import Installation, Obj, rendered

from tessera.doctor.facts import RIGHTS, Right

#: Commands that an administrator of GPUs runs; installing takes an administrator of the cluster.
COMMANDS = sorted(set(RIGHTS) - {"tessera install"})
PEOPLE = ("tessera-view", "tessera-edit", "tessera-admin", "tessera-cluster-view")


@pytest.fixture
def deploy() -> Installation:
    return rendered("deploy")


def roles(installation: Installation, name: str) -> Iterator[Obj]:
    yield from (each for each in installation.of_kind("ClusterRole", "Role") if each["metadata"]["name"] == name)


def allows(role: Obj, right: Right) -> bool:
    plural = f"{right.resource}/{right.subresource}" if right.subresource else right.resource
    return any(
        right.verb in rule["verbs"] and plural in rule["resources"] and right.group in rule["apiGroups"]
        for rule in role["rules"]
        if "resources" in rule and rule.get("resourceNames", [right.name]) == [right.name]
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_an_administrator_of_gpus_may_run_each_command(deploy: Installation, command: str) -> None:
    own, whole = sorted(roles(deploy, "tessera-admin"), key=lambda each: -len(each["metadata"].get("namespace", "")))
    assert (own["kind"], own["metadata"]["namespace"]) == ("Role", "tessera-system")
    assert whole["kind"] == "ClusterRole"
    for right in RIGHTS[command]:
        assert allows(whole, right) or (right.namespace == "tessera-system" and allows(own, right)), right


@pytest.mark.parametrize("command", ["tessera map", "tessera why"])
def test_who_looks_at_the_whole_cluster_has_what_map_and_why_take(deploy: Installation, command: str) -> None:
    (role,) = roles(deploy, "tessera-cluster-view")
    for right in RIGHTS[command]:
        assert allows(role, right), right


@pytest.mark.parametrize("name", ["tessera-admin", "tessera-cluster-view"])
def test_who_may_run_why_on_all_pods_reads_the_order_of_pods_and_the_models_of_nodes(
    deploy: Installation, name: str
) -> None:
    for right in (
        Right("list", "podgroups", "scheduling.x-k8s.io"),
        Right("list", "localmodelnodes", "serving.kserve.io"),
    ):
        assert any(allows(role, right) for role in roles(deploy, name)), right


def test_who_looks_at_the_whole_cluster_changes_nothing(deploy: Installation) -> None:
    (role,) = roles(deploy, "tessera-cluster-view")
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}


def test_a_member_of_a_team_may_see_all_that_a_viewer_sees(deploy: Installation) -> None:
    (edit,), (view,) = roles(deploy, "tessera-edit"), roles(deploy, "tessera-view")
    for rule in view["rules"]:
        for verb in rule["verbs"]:
            for resource in rule["resources"]:
                assert allows(edit, Right(verb, resource, rule["apiGroups"][0])), (verb, resource)


@pytest.mark.parametrize("name", PEOPLE)
def test_nobody_is_bound_by_the_installation(deploy: Installation, name: str) -> None:
    bindings = deploy.of_kind("RoleBinding", "ClusterRoleBinding")
    assert [each for each in bindings if each["roleRef"]["name"] == name] == []


@pytest.mark.parametrize("name", PEOPLE)
def test_no_role_reads_secrets_or_gives_rights(deploy: Installation, name: str) -> None:
    for role in roles(deploy, name):
        for rule in role["rules"]:
            resources = set(rule.get("resources", ()))
            assert "secrets" not in resources
            # The account opens Tessera's pages and has no other right.
            assert "serviceaccounts/token" not in resources or rule["resourceNames"] == ["tessera-reader"]
            assert "rbac.authorization.k8s.io" not in rule.get("apiGroups", ())
            assert not {"bind", "escalate", "impersonate"} & set(rule["verbs"])


def test_a_member_of_a_team_gets_nothing_that_has_no_namespace(deploy: Installation) -> None:
    (role,) = roles(deploy, "tessera-edit")
    everywhere = {"nodes", "namespaces", "persistentvolumes", "clusterpolicies", "nvidiadrivers", "queues"}
    for rule in role["rules"]:
        assert not everywhere & set(rule["resources"])
        assert "nonResourceURLs" not in rule
