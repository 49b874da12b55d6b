"""One error on every card of a cluster: agents and controller together take no more than the bound away."""

from tests.support.virtual_lab import InLab, VirtualLab

from tessera.nvml.interface import CardAttributes, GpuEventKind
from tessera.nvml.simulated.machine_state import SimEvent

NODES = tuple(f"node-{number}" for number in range(1, 6))


def test_a_rule_takes_three_of_five_cards_away_and_a_lost_card_goes_too(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        def away() -> set[str]:
            return {node for node in NODES if lab.gpus(node).get("nvidia.com/gpu") != 1}

        def break_card(node: str) -> None:
            machine = lab.machine(node)
            (gpu,) = machine.uuids()
            machine.set_attributes(gpu, CardAttributes(recovery_action=None))
            machine.report(SimEvent(GpuEventKind.XID, gpu, xid=48))

        await lab.until(lambda: not away(), "every node offers its card")
        for node in NODES:
            await lab.create(f"pod-{node}", {"nvidia.com/gpu": 1})  # a card that is held is not reset
            await lab.running(f"pod-{node}")
        for node in NODES:
            break_card(node)
        await lab.until(lambda: len(away()) == 3, "three cards are away")
        await lab.clock.sleep(120)
        assert len(away()) == 3
        spared = next(node for node in NODES if node not in away())
        assert lab.condition("GpuHealthy", spared)[:2] == ("True", "CardDegraded")
        machine = lab.machine(spared)
        machine.lose(machine.uuids()[0])
        await lab.until(lambda: spared in away(), "the lost card is away", 120)
        assert len(away()) == 4

    in_lab(scenario, nodes="5*1xA100-40GB", mig_config="")
