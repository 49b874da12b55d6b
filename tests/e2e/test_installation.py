"""The installation of ``deploy/`` by kubectl itself, on a lab that has it already."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest


def trust(cluster: Any) -> list[str]:
    """The authorities by which the API server trusts the webhook: Tessera itself writes them."""
    hooks = cluster.get("mutatingwebhookconfiguration", "tessera-webhook")["webhooks"]
    return [hook["clientConfig"].get("caBundle", "") for hook in hooks]


def test_installing_again_changes_nothing(cluster: Any) -> None:
    def generations() -> Any:
        kinds = "deployments,daemonsets,poddisruptionbudgets,customresourcedefinitions"
        return {
            (each["kind"], each["metadata"]["name"]): each["metadata"]["generation"]
            for each in cluster.get(kinds, "-n", "tessera-system")["items"]
        }

    def pods() -> Any:
        return sorted(each["metadata"]["uid"] for each in cluster.get("pods", "-n", "tessera-system")["items"])

    before = trust(cluster), generations(), pods()
    assert all(before[0])
    cluster.kubectl("apply", "-k", "deploy/")
    assert (trust(cluster), generations(), pods()) == before
    again = cluster.kubectl("apply", "-k", "deploy/").splitlines()
    # The patch strategy of a budget's selector is to replace it: kubectl always sends it and says configured.
    assert {line.split()[0].split("/")[0] for line in again if not line.endswith(" unchanged")} <= {
        "poddisruptionbudget.policy"
    }
    assert (trust(cluster), generations(), pods()) == before

    cluster.apply(cluster.pod("after", {"nvidia.com/mig-1g.5gb": 1}))
    cluster.kubectl("wait", "pod/after", "--for=condition=Ready", "--timeout=180s")
    cluster.kubectl("delete", "pod", "after")


@pytest.mark.soak
def test_installing_on_the_server_changes_nothing_either(cluster: Any) -> None:
    """Also without ``--force-conflicts``, and a second time."""
    before = trust(cluster)
    for more in ((), ("--force-conflicts",)):
        cluster.kubectl("apply", "-k", "deploy/", "--server-side", *more)
        assert trust(cluster) == before
    assert cluster.kubectl("diff", "-k", "deploy/", "--server-side", "--force-conflicts") == ""


def test_the_doctor_finds_nothing_wrong(cluster: Any) -> None:
    found = json.loads(cluster.tessera("doctor", "-o", "json"))
    assert found["verdict"] in {"unknown", "ok"}
    verdicts = {each["check"]: each["verdict"] for each in found["findings"]}
    assert verdicts.pop("feature-gates") == "unknown"  # the lab's API server has no metrics
    assert set(verdicts.values()) == {"ok"}
    assert "webhook-reachable" in verdicts


def test_the_doctor_writes_an_archive_for_a_support_case(cluster: Any, tmp_path: Path) -> None:
    told = cluster.tessera("doctor", "--bundle", str(tmp_path / "case.tar.gz"))
    assert "not in it: Secrets: never read" in told
    with tarfile.open(tmp_path / "case.tar.gz", "r:gz") as tar:
        names = {name.removeprefix("tessera-support/") for name in tar.getnames()}
    assert {"manifest.json", "doctor.json", "nodes.json", "events.json", "objects/instaslices.json"} <= names
    for app in ("agent", "controller", "webhook"):
        assert any(name.startswith(f"metrics/tessera-{app}-") for name in names), names
        assert any(name.startswith(f"logs/tessera-{app}-") for name in names), names


def test_an_archive_has_the_decision_records_if_they_are_asked_for(cluster: Any, tmp_path: Path) -> None:
    cluster.kubectl("set", "env", "-n", "tessera-system", "deployment/tessera-controller", "TESSERA_RECORD=50")
    cluster.kubectl("rollout", "status", "-n", "tessera-system", "deployment/tessera-controller", "--timeout=180s")
    told = cluster.tessera("doctor", "--bundle", str(tmp_path / "case.tar.gz"), "--records")
    with tarfile.open(tmp_path / "case.tar.gz", "r:gz") as tar:
        names = {name.removeprefix("tessera-support/") for name in tar.getnames()}
    assert any(name.startswith("records/tessera-controller-") for name in names), told
    assert "not in it: decision records of tessera-agent-" in told  # they do not record


def test_an_archive_needs_a_folder_and_records_need_an_archive(cluster: Any, tmp_path: Path) -> None:
    missing = cluster.tessera("doctor", "--bundle", str(tmp_path / "none" / "case.tar.gz"), fails=True)
    assert "does not exist; create it" in missing
    assert "--bundle FILE" in cluster.tessera("doctor", "--records", fails=True)


def test_a_wrong_and_immutable_file_of_node_groups_is_told(cluster: Any, tmp_path: Path) -> None:
    name = "tessera-node-groups"
    group = "groups: [{name: a, selector: {pool: POOL}, cards: {model: L40S, kind: whole}}]"
    metadata = {"name": name, "namespace": "tessera-system"}
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True}
    cluster.apply(theirs | {"data": {"groups.yaml": group.replace("POOL", "x y")}})
    found = cluster.run_tessera("doctor")
    assert found.returncode == 1
    assert (
        'error    node-groups: ConfigMap tessera-node-groups: groups.yaml: group "a": selector: pool: "x y"'
        in found.stdout
    )
    assert f"-> kubectl edit configmap {name} -n tessera-system, or " in found.stdout
    (file := tmp_path / "groups.yaml").write_text(group.replace("POOL", "a"), encoding="utf-8")
    told = cluster.tessera("install", "--node-groups", str(file), fails=True)
    assert (
        f"error: ConfigMap tessera-system/{name} is immutable, so groups.yaml cannot be replaced; nothing was" in told
    )
    cluster.kubectl("delete", "configmap", name, "-n", "tessera-system")


def test_one_option_is_changed_without_a_repeat_of_the_others(cluster: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("preflight: none\n")
    cluster.tessera("install", "--memory-limits", "warn", "--mig-evict", "--repairs", str(file))
    assert cluster.tessera("install", "--show") == (
        "tessera install --mig-evict --memory-limits=warn --repairs=repairs.yaml\n"
    )
    file.unlink()
    cluster.tessera("install", "--reuse", "--memory-limits", "evict")
    agent = cluster.get("daemonset", "tessera-agent", "-n", "tessera-system")
    arguments = agent["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--memory-limits=evict" in arguments
    repairs = cluster.get("configmap", "tessera-repairs", "-n", "tessera-system")
    assert repairs["data"]["repairs.yaml"] == "preflight: none\n"
    cluster.tessera("install")
    assert cluster.tessera("install", "--show") == "tessera install\n"
