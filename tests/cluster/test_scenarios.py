"""A scenario on a cluster: its pods come and go, cards follow what they do, and nothing is left of it."""

import asyncio

import pytest
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.kube.errors import NotFound
from tessera.kube.resources import PODS
from tessera.nvml.interface import MigUuid
from tessera.nvml.measurements import Quantity
from tessera_lab.activity.lab_cards import LabCards
from tessera_lab.activity.player import ScenarioPlayer
from tessera_lab.activity.scenario import Scenario, builtin_scenario, parse_scenario


class Play:
    """A scenario that plays on a cluster."""

    def __init__(self, lab: VirtualLab, scenario: Scenario) -> None:
        self.lab = lab
        cluster = lab.cluster
        self.cards = LabCards(cluster.nodes)
        self.player = ScenarioPlayer(
            "test", scenario, cards=self.cards, client=cluster.client("lab-scenario"), clock=cluster.hardware_clock
        )

    def power(self, index: int) -> float:
        machine = self.lab.machine()
        assert machine is not None
        return machine.measure(machine.uuids()[index]).values[Quantity.POWER]

    def pods(self) -> set[str]:
        return {each.owner.pod for each in self.cards.containers()}


@pytest.mark.soak
def test_a_working_day_has_slices_that_come_and_go_and_cards_that_draw_what_they_do(in_lab: InLab) -> None:
    async def story(lab: VirtualLab) -> None:
        play = Play(lab, builtin_scenario("working-day"))
        running = asyncio.create_task(play.player.run())
        seen: list[set[str]] = []
        watts: list[float] = []
        for _ in range(16):
            await lab.clock.sleep(60)
            seen.append(play.pods())
            watts.append(sum(play.power(index) for index in range(4)))
        assert not running.done()
        assert all({"serve-1", "serve-2", "forgotten-1"} <= each for each in seen[1:])
        assert {"train-1", "sweep-1"} <= seen[2]
        assert "train-1" not in seen[13]
        assert len({frozenset(each) for each in seen}) > 6
        assert min(watts) > 4 * 60  # four idle A100s
        assert max(watts) > 1.2 * min(watts)
        running.cancel()
        await asyncio.wait([running])
        await play.player.stop()
        await lab.clock.sleep(30)
        assert not play.pods()
        assert not lab.hardware()
        assert play.power(0) == pytest.approx(60)

    in_lab(story)


def test_a_scenario_with_an_end_leaves_the_lab_as_it_is_until_it_is_stopped(in_lab: InLab) -> None:
    text = """
    about: x
    lasts: 3m
    pods:
    - {name: full, request: {nvidia.com/mig-1g.5gb: 1}, use: {load: 0.5, memory: {to: 90%, over: 1m}}}
    - {name: too-much, request: {nvidia.com/mig-1g.5gb: 1}, use: {memory: 90Gi}}
    steps:
    - {at: 1m, card: node-1/3, fault: heat}
    - {at: 2m, card: node-7/0, fault: heat}
    """

    async def story(lab: VirtualLab) -> None:
        play = Play(lab, parse_scenario(text))
        await play.player.run()
        machine = lab.machine()
        assert machine is not None
        hot = machine.uuids()[3]
        assert machine.measure(hot).values[Quantity.TEMPERATURE] > 90
        (full,) = play.cards.find_pod("default", "full-1")
        memory = machine.memory(MigUuid(full.devices[0]))
        assert memory.used / memory.total == pytest.approx(0.9, abs=0.001)
        assert "is over" in play.player.status()
        assert "are free" in play.player.status(), "the last problem is that of the pod too-much"
        await play.player.stop()
        with pytest.raises(NotFound):
            await lab.client.get(PODS, "full-1", "default")
        assert machine.measure(hot).values[Quantity.TEMPERATURE] < 40

    in_lab(story)
