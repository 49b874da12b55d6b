"""A card is cordoned by an annotation: no new pod gets it, running ones stay, over restarts of agent and controller."""

import pytest
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.api.nodes.node_marks import cordon_key
from tessera.kube.resources import NODES, PODS


async def annotate(lab: VirtualLab, gpu: str, reason: str | None) -> None:
    await lab.client.merge_patch(NODES, "node-1", {"metadata": {"annotations": {cordon_key(gpu): reason}}})


async def restart_tessera(lab: VirtualLab) -> None:
    """Ends the agent and the controller; their owners make new ones."""
    for pod in (await lab.client.list(PODS, "tessera-system")).items:
        if pod.metadata.name.startswith(("tessera-agent-", "tessera-controller-")):
            await lab.client.delete(PODS, pod.metadata.name, "tessera-system")


@pytest.mark.parametrize(
    ("resource", "mig_config"), [("nvidia.com/gpu", ""), ("nvidia.com/mig-7g.40gb", "dynamic")], ids=["whole", "slice"]
)
def test_no_new_pod_gets_a_cordoned_card_and_running_ones_stay(in_lab: InLab, resource: str, mig_config: str) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("first", {resource: 1})
        await lab.create("second", {resource: 1})
        await lab.running("first", "second")
        cards = lab.machine().uuids()
        for gpu in cards:
            await annotate(lab, gpu, "fan is loud")
        await lab.until(lambda: lab.condition("GpuHealthy")[1] == "CardCordoned", "the condition says so")
        assert lab.condition("GpuHealthy")[0] == "True"
        await restart_tessera(lab)
        await lab.delete("first")
        await lab.create("third", {resource: 1})
        await lab.clock.sleep(300)
        assert lab.phase("third") == "Pending"
        assert lab.phase("second") == "Running"
        for gpu in cards:
            await annotate(lab, gpu, None)
        await lab.running("third")
        await lab.until(lambda: lab.condition("GpuHealthy")[1] == "CardsHealthy", "nothing is wrong with the cards")

    in_lab(scenario, nodes="2xA100-40GB", mig_config=mig_config)
