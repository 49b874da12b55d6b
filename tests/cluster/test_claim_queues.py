"""Pods with ResourceClaims in a queue of Kueue, which counts the devices of their classes; by the lab's stand-in."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.cluster.test_resource_claims import in_lab
from tests.support.device_claims import claim_template, claiming_pod, exactly, profile_class
from tests.support.kueue.cluster import KueueCluster
from tests.support.virtual_lab import VirtualLab

from tessera.dra.claims import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES
from tessera.dra.node_devices import DRIVER
from tessera.kube.resources import JOBS
from tessera.kueue.configuration import ALL_CARDS
from tessera.kueue.objects import QUEUE_LABEL
from tessera_lab.kueue.stand_in import StandIn

__all__ = ["in_lab"]

SLICES = "slices-1g.5gb"
CLASS = "mig-1g.5gb.tessera.dev"
#: As docs/kueue.md has it.
MAPPED = {"deviceClassMappings": [{"name": SLICES, "deviceClassNames": [CLASS]}]}


def job(name: str) -> dict[str, Any]:
    """A Job in a queue whose pod has a claim of a template."""
    spec = claiming_pod("unused", {"name": "gpu", "resourceClaimTemplateName": "small"}, restartPolicy="Never")["spec"]
    return {"metadata": {"name": name, "labels": {QUEUE_LABEL: "slices"}}, "spec": {"template": {"spec": spec}}}


@pytest.mark.parametrize("checked", [False, True])
def test_a_queue_admits_as_many_claims_as_its_quota_has_devices(in_lab: Callable[..., Any], *, checked: bool) -> None:
    async def scenario(lab: VirtualLab) -> None:
        kueue = StandIn(lab.client, lab.clock, resources=MAPPED, version="v1beta2")
        await kueue.install(lab.cluster.reviewers)
        reconciling = asyncio.create_task(kueue.run())
        cluster = KueueCluster(lab.client, lab.clock, "v1beta2", "team-a", lab.cluster.server)
        await lab.client.create(DEVICE_CLASSES.as_dicts(), profile_class(DRIVER, "1g.5gb", guarded=True))
        quota = {"name": ALL_CARDS, "resources": [{"name": SLICES, "nominalQuota": "2"}]}
        await cluster.open_queue(
            0, checked=checked, resourceGroups=[{"coveredResources": [SLICES], "flavors": [quota]}]
        )
        await lab.client.create(
            RESOURCE_CLAIM_TEMPLATES.as_dicts(), claim_template("small", exactly("gpu", CLASS)), cluster.namespace
        )
        names = ("a", "b", "c")
        for name in names:
            await lab.client.create(JOBS.as_dicts(), job(name), cluster.namespace)
            await lab.clock.sleep(2.0)

        async def run(count: int) -> bool:
            return len(await cluster.running()) == count

        try:
            await cluster.until(partial(run, 2), "two pods run")
            await cluster.stays(partial(run, 2), "the third waits for quota", 30)
            assert SLICES in await cluster.reason("c")
            assert [each[1] for each in lab.hardware()] == ["1g.5gb"] * 2
            await lab.client.delete(JOBS, "a", cluster.namespace, propagation="Background")
            await cluster.until(lambda: _runs(cluster, "c"), "the third runs")
        finally:
            reconciling.cancel()
            await asyncio.wait([reconciling])

    in_lab(scenario)


async def _runs(cluster: KueueCluster, owner: str) -> bool:
    return any(each.startswith(f"{owner}-") for each in await cluster.running())
