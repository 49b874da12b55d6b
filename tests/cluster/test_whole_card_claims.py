"""Whole cards by ResourceClaims in a whole cluster: installed with --claim-driver, placed by the controller."""

from collections.abc import Callable

from tests.cluster.test_resource_claims import claiming, in_lab, template
from tests.support.device_claims import exactly
from tests.support.virtual_lab import VirtualLab

from tessera.api.dra.claims import RESOURCE_CLAIMS

__all__ = ["in_lab"]


def test_a_whole_card_runs_from_its_template_to_the_container(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "one", exactly("gpu", "gpu.tessera.dev"))
        for name in ("p", "q", "late"):
            await claiming(lab, name, "one")
        await lab.until(lambda: sum(map(lab.ready, ("p", "q", "late"))) == 2, "two pods run")
        running = [name for name in ("p", "q", "late") if lab.ready(name)]
        (waiting,) = {"p", "q", "late"} - set(running)
        cards = {lab.devices(name, "main")[0] for name in running}
        assert len(cards) == 2
        assert all(each.startswith("GPU-") for each in cards)
        await lab.delete(running[0])
        await lab.running(waiting)
        for name in (running[1], waiting):
            await lab.delete(name)
        await lab.until(lambda: lab.pod(waiting) is None, "the pods are gone")
        await lab.empty()
        assert (await lab.client.list(RESOURCE_CLAIMS, "default")).items == []

    in_lab(scenario, "2xT4")
