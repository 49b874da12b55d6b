"""The control plane at its programs' default rates: many claims of deleted pods take their time."""

from typing import Any

import pytest
from tests.support.device_claims import FINALIZER, allocation, claim_template, claiming_pod, exactly

from tessera.clock import LoopClock
from tessera.kube.resources import PODS
from tessera_lab.cluster.cluster import ClusterOptions, SimulatedCluster
from tessera_lab.scheduler.claim_binding import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from tessera_lab.simulation.virtual_time import run_virtual

COUNT = 200


async def _release_seconds() -> float:
    """Seconds from the deletion of gated pods with allocated claims until the last claim is gone."""
    clock = LoopClock(epoch=1_700_000_000)
    cluster = SimulatedCluster([], clock=clock, options=ClusterOptions(client_limits=True))
    client = cluster.client("test")
    async with cluster.running():
        await client.create(RESOURCE_CLAIM_TEMPLATES, claim_template("one", exactly("gpu", "gpus")), "default")
        entry = {"name": "gpu", "resourceClaimTemplateName": "one"}
        for index in range(COUNT):
            await client.create(PODS.as_dicts(), claiming_pod(f"p{index}", entry, gates=("a/b",)), "default")
        await clock.sleep(120)
        claims: list[dict[str, Any]] = list((await client.list(RESOURCE_CLAIMS)).items)
        assert len(claims) == COUNT
        for index, each in enumerate(claims):
            name = each["metadata"]["name"]
            await client.merge_patch(RESOURCE_CLAIMS, name, {"metadata": {"finalizers": [FINALIZER]}}, "default")
            owner = each["metadata"]["ownerReferences"][0]
            consumer = {"resource": "pods", "name": owner["name"], "uid": owner["uid"]}
            given = allocation("gpu.tessera.dev", "n1", f"gpu-{index}")
            patch = {"status": {"allocation": given, "reservedFor": [consumer]}}
            await client.merge_patch(RESOURCE_CLAIMS, name, patch, "default", subresource="status")
        for index in range(COUNT):
            await client.delete(PODS, f"p{index}", "default", grace_seconds=0)
        began = clock.monotonic()
        while (await client.list(RESOURCE_CLAIMS)).items:
            await clock.sleep(0.5)
        return clock.monotonic() - began


@pytest.mark.soak
def test_the_claims_of_two_hundred_deleted_pods_take_seconds_until_they_are_gone() -> None:
    # 10 to 23 s on Kubernetes 1.36.2, where each controller has a rate of its own.
    assert 20 <= run_virtual(_release_seconds()) <= 60
