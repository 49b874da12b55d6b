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
