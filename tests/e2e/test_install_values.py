"""``tessera install --values``: an installation takes over the settings of NVIDIA's operator, and gives them back.

`make test` has the claims of the long proofs here in :mod:`tests.cli.install`, against the same server in the test's
process.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.kube.certificates import Authority

EXAMPLES = Path(__file__).parents[2] / "examples" / "sharing"
#: The values of the article "Efficient Access to Shared GPU Resources: Part 2".
ARTICLE = (EXAMPLES / "values.yaml").read_text()
AGENT = "system:serviceaccount:tessera-system:tessera-agent"


@pytest.fixture(scope="module")
def lab_arguments() -> list[str]:
    """A node for each part of the article."""
    return ["--nodes", "4xA100-40GB,4xA100-40GB"]


@pytest.fixture
def values(tmp_path: Path) -> str:
    file = tmp_path / "values.yaml"
    file.write_text(ARTICLE)
    return str(file)


def arguments(cluster: Any) -> list[str]:
    found = cluster.get("daemonset", "tessera-agent", "-n", "tessera-system")
    listed: list[str] = found["spec"]["template"]["spec"]["containers"][0]["args"]
    return listed


def agents(cluster: Any) -> list[tuple[str, list[str]]]:
    """The agents' pods and what they were started with."""
    cluster.kubectl("rollout", "status", "-n", "tessera-system", "daemonset/tessera-agent", "--timeout=180s")
    found = cluster.get("pods", "-n", "tessera-system", "-l", "app.kubernetes.io/name=tessera-agent")["items"]
    return [(each["metadata"]["uid"], each["spec"]["containers"][0]["args"]) for each in found]


def may(cluster: Any, verb: str, what: str, *more: str) -> bool:
    return str(cluster.run("kubectl", "auth", "can-i", verb, what, "--as", AGENT, *more).stdout).strip() == "yes"


def test_an_installation_takes_the_operators_settings_over_and_gives_them_back(cluster: Any, values: str) -> None:
    before = arguments(cluster)
    said = cluster.tessera("install", "--values", values, "--namespace", "kube-system")
    assert "daemonset.apps/tessera-agent in tessera-system configured" in said
    wanted = {
        "--sharing-config=kube-system/nvidia-time-slicing-config",
        "--mig-config=kube-system/nvidia-mig-config",
        "--mig-strategy=mixed",
    }
    assert wanted <= set(arguments(cluster))
    first = agents(cluster)
    assert all(wanted <= set(started) for _, started in first)
    for name in ("nvidia-time-slicing-config", "nvidia-mig-config"):
        assert may(cluster, "list", f"configmaps/{name}", "-n", "kube-system")
        assert may(cluster, "watch", f"configmaps/{name}", "-n", "kube-system")
    assert not may(cluster, "list", "configmaps", "-n", "kube-system")
    assert not may(cluster, "list", "configmaps/sharing-profiles", "-n", "tessera-system")

    again = cluster.tessera("install", "--values", values, "--namespace", "kube-system")
    assert not any(word in again for word in ("created", "configured", "deleted")), again
    assert agents(cluster) == first, "nothing was started anew"

    assert "deleted" in cluster.tessera("install")
    assert arguments(cluster) == before
    assert may(cluster, "list", "configmaps/sharing-profiles", "-n", "tessera-system")
    assert not may(cluster, "list", "configmaps/nvidia-mig-config", "-n", "kube-system")
    agents(cluster)


def controllers(cluster: Any) -> list[tuple[str, list[str]]]:
    """The controller's pods once they serve, and what they were started with."""
    cluster.kubectl("rollout", "status", "-n", "tessera-system", "deployment/tessera-controller", "--timeout=180s")
    found = cluster.get("pods", "-n", "tessera-system", "-l", "app.kubernetes.io/name=tessera-controller")["items"]
    running = [each for each in found if "deletionTimestamp" not in each["metadata"]]
    return [(each["metadata"]["uid"], each["spec"]["containers"][0]["args"]) for each in running]


@pytest.mark.soak
def test_a_site_says_what_its_registries_are_trusted_by_and_other_certificates_count_at_once(
    cluster: Any, tmp_path: Path
) -> None:
    file = tmp_path / "site.crt"
    site = ["install", "--registry-ca", str(file), "--plain-http", "registry.local:5000", "--startup-deadline", "20m"]
    before = controllers(cluster)
    file.write_bytes(Authority().pem)
    assert "configmap/tessera-registry-ca in tessera-system created" in cluster.tessera(*site)
    ((pod, started),) = controllers(cluster)
    assert {"--plain-http=registry.local:5000", "--startup-deadline=1200s"} <= set(started)
    assert "--registry-ca=/etc/tessera/registry-ca/ca.crt" in started
    assert cluster.tessera(*site).count("configured") == 0
    file.write_bytes(Authority().pem)
    cluster.tessera(*site)
    stored = cluster.get("configmap", "tessera-registry-ca", "-n", "tessera-system")["data"]
    assert stored == {"ca.crt": file.read_text()}
    ((after, _),) = controllers(cluster)
    assert after != pod
    assert "configmap/tessera-registry-ca in tessera-system deleted" in cluster.tessera("install")
    assert [arguments for _, arguments in controllers(cluster)] == [arguments for _, arguments in before]


def test_what_is_printed_is_what_is_applied(cluster: Any, values: str) -> None:
    printed = cluster.tessera("install", "--values", values, "-n", "kube-system", "-o", "yaml")
    done = cluster.run("kubectl", "apply", "--server-side", "--force-conflicts", "-f", "-", text=printed)
    assert done.returncode == 0, done.stderr
    assert "--sharing-config=kube-system/nvidia-time-slicing-config" in arguments(cluster)
    assert cluster.tessera("install", "--values", values, "-n", "kube-system").count("configured") == 0
    cluster.tessera("install")


def warned(cluster: Any, *arguments: str) -> str:
    return str(cluster.run_tessera(*arguments).stderr)


def test_values_become_a_cluster_policy_that_stays_until_it_is_taken_away(cluster: Any, values: str) -> None:
    cluster.tessera("install", "--no-drivers")
    said = cluster.tessera("install", "--values", values, "-n", "kube-system")
    assert "clusterpolicy.nvidia.com/cluster-policy created" in said
    found = cluster.get("clusterpolicy", "cluster-policy")
    assert found["spec"]["driver"]["version"] == "510.47.03-fedora35-5.16.13-200.fc35.x86_64"
    assert cluster.kubectl("get", "clusterpolicies").split()[:3] == ["NAME", "STATUS", "AGE"]
    assert "cluster-policy of an earlier installation stays" in warned(cluster, "install")
    assert cluster.get("clusterpolicy", "cluster-policy")["metadata"]["uid"] == found["metadata"]["uid"]
    assert "clusterpolicy.nvidia.com/cluster-policy deleted" in cluster.tessera("install", "--no-drivers")
    assert cluster.get("clusterpolicies")["items"] == []


def test_kubectl_knows_the_kinds_by_their_names(cluster: Any) -> None:
    for name in ("nvd", "nvdriver", "nvdrivers", "nvidiadrivers"):
        assert json.loads(cluster.kubectl("get", name, "-o", "json"))["items"] == []
    assert "finished kernel modules" in cluster.kubectl("explain", "clusterpolicy.spec.driver.usePrecompiled")
    wrong = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "a"}}
    told = cluster.kubectl(
        "create", "-f", "-", manifest={**wrong, "spec": {"driver": {"kernelModuleType": "opne"}}}, fails=True
    )
    assert "spec.driver.kernelModuleType" in told


def test_a_node_that_is_not_there_is_said_as_kubectl_says_it_with_a_similar_name(cluster: Any) -> None:
    said, meant = cluster.tessera("why", "node/node-9", fails=True).splitlines()
    assert said == 'Error from server (NotFound): nodes "node-9" not found'
    assert meant == "The cluster has no node of that name; did you mean node-2?"
