"""A card whose instances cannot be read: its slices are withheld at once, and offered again once it answers."""

from tests.support.virtual_lab import InLab, VirtualLab

from tessera.nvml.errors import UnknownNvmlError

SLICE = "nvidia.com/mig-1g.5gb"


def test_a_card_that_answers_no_more_and_then_again_is_withheld_and_offered(in_lab: InLab) -> None:
    """Nothing but the reading of its instances fails, so no probe tells of it."""

    async def scenario(lab: VirtualLab) -> None:
        (node,) = lab.cluster.nodes
        machine = lab.machine(node)
        all_of_both = lab.gpus(node)[SLICE]
        for uuid in machine.uuids()[:1]:
            machine.fail("instances", UnknownNvmlError, times=None, gpu=uuid)
        await lab.create("first", {SLICE: 1})
        await lab.until(lambda: lab.gpus(node)[SLICE] == all_of_both // 2, "one card is withheld")
        machine.heal()
        await lab.until(lambda: lab.gpus(node)[SLICE] == all_of_both, "both cards are offered")
        await lab.until(lambda: lab.existing_pod("first").status.phase == "Running", "the pod runs")

    in_lab(scenario, nodes="2xA100-40GB", mig_config="dynamic")
