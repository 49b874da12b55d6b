"""A service is updated on full cards: by hand-over where its annotation asks for it, and else the deadlock is named."""

from typing import Any

from tests.cluster.test_inheritance import runs, workload
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.api.names import HAND_OVER, UPDATE_ANNOTATION
from tessera.kube.resources import DEPLOYMENTS


def service(image: str, profile: str = "7g.40gb", replicas: int = 1, **spec: Any) -> dict[str, Any]:
    made = workload(image, profile, replicas, **spec)
    made["spec"]["template"]["metadata"]["annotations"] = {UPDATE_ANNOTATION: HAND_OVER}
    return made


async def update(lab: VirtualLab, wanted: dict[str, Any]) -> None:
    patch = {"spec": {"template": wanted["spec"]["template"]}}
    await lab.client.merge_patch(DEPLOYMENTS.as_dicts(), "svc", patch, "default")


async def start(lab: VirtualLab, wanted: dict[str, Any]) -> None:
    await lab.client.create(DEPLOYMENTS.as_dicts(), wanted, "default")
    await lab.until(lambda: runs(lab, "i:1", wanted["spec"]["replicas"]), "the service runs")
    await lab.clock.sleep(60)
    await lab.create("batch", {"nvidia.com/mig-3g.20gb": 1})
    await lab.clock.sleep(5)


def test_an_update_ends_on_full_cards(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await start(lab, service("i:1"))
        await update(lab, service("i:2"))
        await lab.until(lambda: runs(lab, "i:2", 1), "the service is updated", 60)
        assert lab.phase("batch") == "Pending"

    in_lab(scenario, "1xA100-40GB")
