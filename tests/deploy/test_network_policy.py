"""The network policies close every port of our pods but those that they serve, and shut nobody out of these."""

from collections.abc import Iterator

from tests.deploy.conftest import Installation, Obj


def selecting(installation: Installation, owner: Obj) -> Obj:
    """The only policy that selects an owner's pods."""
    labels = owner["spec"]["template"]["metadata"]["labels"]
    (found,) = (
        each
        for each in installation.of_kind("NetworkPolicy")
        if each["metadata"]["namespace"] == owner["metadata"]["namespace"]
        and each["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    )
    return found


def served(owner: Obj) -> Iterator[tuple[str, int]]:
    for container in owner["spec"]["template"]["spec"]["containers"]:
        yield from ((each.get("protocol", "TCP"), each["containerPort"]) for each in container.get("ports", ()))


def test_each_pods_own_ports_are_open_to_everybody_and_no_others(installation: Installation) -> None:
    owners = installation.of_kind("Deployment", "DaemonSet")
    assert len(owners) == len(installation.of_kind("NetworkPolicy"))
    for owner in owners:
        spec = selecting(installation, owner)["spec"]
        assert not any("from" in rule for rule in spec.get("ingress", ()))
        opened = [(each["protocol"], each["port"]) for rule in spec.get("ingress", ()) for each in rule["ports"]]
        assert sorted(opened) == sorted(served(owner))


def test_what_pods_connect_to_is_not_limited(installation: Installation) -> None:
    for policy in installation.of_kind("NetworkPolicy"):
        assert policy["spec"]["policyTypes"] == ["Ingress"]


def test_the_pods_are_on_the_network_that_policies_are_about(installation: Installation) -> None:
    for owner in installation.of_kind("Deployment", "DaemonSet"):
        assert not owner["spec"]["template"]["spec"].get("hostNetwork")
