"""A service gets its slices back after an update, though teams wait for them."""

from typing import Any

import pytest
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.kube.resources import DEPLOYMENTS, STATEFULSETS, Resource


def workload(image: str, profile: str, replicas: int, **spec: Any) -> dict[str, Any]:
    labels = {"app": "svc"}
    limits = {f"nvidia.com/mig-{profile}": 1}
    pod = {"containers": [{"name": "c", "image": image, "resources": {"limits": limits}}]}
    return {
        "metadata": {"name": "svc"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
            **spec,
        },
    }


def runs(lab: VirtualLab, image: str, replicas: int) -> bool:
    """True if the service has its pods, all of this image, and all run."""
    pods = [each for each in lab.pods.cache.values() if each.metadata.labels.get("app") == "svc"]
    images = [each.spec.containers[0].image for each in pods]
    return images == [image] * replicas and all(lab.ready(each.metadata.name) for each in pods)


@pytest.mark.parametrize(
    ("kind", "profile", "replicas", "spec"),
    [
        pytest.param(
            DEPLOYMENTS,
            "7g.40gb",
            1,
            {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}},
            id="a Deployment that makes no pod more",
        ),
        pytest.param(DEPLOYMENTS, "3g.20gb", 2, {"strategy": {"type": "Recreate"}}, id="a Deployment that ends all"),
        pytest.param(STATEFULSETS, "3g.20gb", 2, {"serviceName": "svc"}, id="a StatefulSet"),
    ],
)
def test_an_update_ends_though_a_team_waits(
    in_lab: InLab, kind: Resource[Any], profile: str, replicas: int, spec: dict[str, Any]
) -> None:
    async def scenario(lab: VirtualLab) -> None:
        service = workload("i:1", profile, replicas, **spec)
        await lab.client.create(kind.as_dicts(), service, "default")
        await lab.until(lambda: runs(lab, "i:1", replicas), "the service runs")
        await lab.clock.sleep(60)
        await lab.create("batch", {"nvidia.com/mig-3g.20gb": 1})
        await lab.clock.sleep(5)
        updated = {"spec": {"template": workload("i:2", profile, replicas)["spec"]["template"]}}
        await lab.client.merge_patch(kind.as_dicts(), "svc", updated, "default")
        await lab.until(lambda: runs(lab, "i:2", replicas), "the service is updated")
        assert lab.phase("batch") == "Pending"
        await lab.client.merge_patch(kind.as_dicts(), "svc", {"spec": {"replicas": 0}}, "default")
        await lab.running("batch")

    in_lab(scenario, "1xA100-40GB")
