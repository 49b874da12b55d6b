"""``tessera install --values``: an installation takes over the settings of NVIDIA's operator, and gives them back."""

from pathlib import Path
from typing import Any

import pytest

#: The values of the article "Efficient Access to Shared GPU Resources: Part 2".
ARTICLE = """\
operator:
  defaultRuntime: containerd
mig:
  strategy: mixed
driver:
  repository: yourregistry/yourproject
  image: driver
  version: "510.47.03-fedora35-5.16.13-200.fc35.x86_64"
  imagePullPolicy: Always
migManager:
  config:
    name: nvidia-mig-config
devicePlugin:
  config:
    name: nvidia-time-slicing-config
"""
AGENT = "system:serviceaccount:tessera-system:tessera-agent"


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
    cluster.kubectl("rollout", "status", "-n", "tessera-system", "daemonset/tessera-agent", "--timeout=60s")
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
    ((first, started),) = agents(cluster)
    assert wanted <= set(started)
    for name in ("nvidia-time-slicing-config", "nvidia-mig-config"):
        assert may(cluster, "list", f"configmaps/{name}", "-n", "kube-system")
        assert may(cluster, "watch", f"configmaps/{name}", "-n", "kube-system")
    assert not may(cluster, "list", "configmaps", "-n", "kube-system")
    assert not may(cluster, "list", "configmaps/sharing-profiles", "-n", "tessera-system")

    again = cluster.tessera("install", "--values", values, "--namespace", "kube-system")
    assert not any(word in again for word in ("created", "configured", "deleted")), again
    assert [uid for uid, _ in agents(cluster)] == [first], "nothing was started anew"

    assert "deleted" in cluster.tessera("install")
    assert arguments(cluster) == before
    assert may(cluster, "list", "configmaps/sharing-profiles", "-n", "tessera-system")
    assert not may(cluster, "list", "configmaps/nvidia-mig-config", "-n", "kube-system")
    agents(cluster)


def test_a_trial_changes_nothing(cluster: Any, values: str) -> None:
    before = arguments(cluster)
    said = cluster.tessera("install", "--values", values, "-n", "kube-system", "--evict", "--dry-run")
    assert "clusterrole.rbac.authorization.k8s.io/tessera-agent-evict created (dry run)" in said
    assert arguments(cluster) == before
    assert not may(cluster, "create", "pods/eviction", "-A")


def test_the_right_to_evict_comes_and_goes_with_the_option(cluster: Any) -> None:
    cluster.tessera("install", "--evict")
    assert "--mig-evict" in arguments(cluster)
    assert may(cluster, "create", "pods", "--subresource=eviction", "-A")
    cluster.tessera("install")
    assert "--mig-evict" not in arguments(cluster)
    assert not may(cluster, "create", "pods", "--subresource=eviction", "-A")


def test_what_is_printed_is_what_is_applied(cluster: Any, values: str) -> None:
    printed = cluster.tessera("install", "--values", values, "-n", "kube-system", "-o", "yaml")
    done = cluster.run("kubectl", "apply", "--server-side", "--force-conflicts", "-f", "-", text=printed)
    assert done.returncode == 0, done.stderr
    assert "--sharing-config=kube-system/nvidia-time-slicing-config" in arguments(cluster)
    assert cluster.tessera("install", "--values", values, "-n", "kube-system").count("configured") == 0
    cluster.tessera("install")


def test_a_namespace_that_is_not_there_is_told_before_anything_changes(cluster: Any, values: str) -> None:
    before = arguments(cluster)
    said = cluster.tessera("install", "--values", values, "-n", "gpu-operator", fails=True)
    assert said.splitlines()[-1].startswith('error: there is no namespace "gpu-operator"')
    assert arguments(cluster) == before


def test_a_node_is_explained_by_what_its_agent_says(cluster: Any) -> None:
    told = cluster.eventually(
        lambda: said if "as asked" in (said := cluster.tessera("why", "node/node-1").splitlines()[0]) else None
    )
    assert told.startswith("node node-1: is as asked: ")
    assert 'Error from server (NotFound): nodes "node-9" not found' in cluster.tessera("why", "node/node-9", fails=True)
