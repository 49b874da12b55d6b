"""Applying the manifests again, in each of kubectl's two ways, takes nothing away that Tessera itself wrote."""

from pathlib import Path
from typing import Any

import pytest

DEPLOY = str(Path(__file__).parents[2] / "deploy")


@pytest.mark.parametrize("way", [(), ("--server-side",)], ids=["client-side", "server-side"])
def test_the_webhook_stays_trusted(cluster: Any, way: tuple[str, ...]) -> None:
    before = bundle(cluster)
    assert before
    for _ in range(2):
        cluster.kubectl("apply", *way, "-k", DEPLOY)
        assert bundle(cluster) == before


def bundle(cluster: Any) -> str:
    """The CA bundle by which the API server trusts the webhook; all entries have the same."""
    webhooks = cluster.get("mutatingwebhookconfiguration", "tessera-webhook")["webhooks"]
    (found,) = {webhook["clientConfig"].get("caBundle", "") for webhook in webhooks}
    return str(found)


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
