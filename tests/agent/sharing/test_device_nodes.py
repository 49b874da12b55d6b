"""Device nodes and links are read when they may have changed, and a card in trouble holds up no other."""

import asyncio

from tessera.agent.inventory.card_topology import read_topology
from tessera.agent.inventory.gpu_inventory import GpuInventory, read_gpu_inventory
from tessera.agent.sharing.allocate_response import RETRY, DeviceNodes
from tessera.clock import LoopClock
from tessera.nvml.errors import NotSupported
from tessera.nvml.interface import DeviceFile, GpuUuid, NvLink, Nvml
from tessera.nvml.simulated.machine_access import InlineNvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.simulation.virtual_time import run_virtual


class CardsWithFiles(SimulatedMachine):
    """Simulated cards with device nodes; one may hide its own. ``asked`` counts the questions."""

    hidden: GpuUuid | None = None
    asked = 0

    def card_files(self, gpu: GpuUuid) -> list[DeviceFile]:
        self.asked += 1
        if gpu == self.hidden:
            raise NotSupported("/proc/devices: not there")
        minor = self.uuids().index(gpu)
        return [DeviceFile(path=f"/dev/nvidia{minor}", major=195, minor=minor)]


async def stock_of(machine: Nvml) -> GpuInventory:
    assert isinstance(machine, SimulatedMachine)
    return await read_gpu_inventory(InlineNvml(machine, LoopClock(0.0)))


def test_nodes_are_read_once_for_the_same_cards_and_again_for_others() -> None:
    async def story() -> None:
        machine, clock = CardsWithFiles("2xA100-40GB", seed="n"), LoopClock(0.0)
        readings = DeviceNodes(InlineNvml(machine, clock), clock)
        cards = (await stock_of(machine)).gpus
        await readings.read(cards)
        await readings.read(cards)
        assert machine.asked == 2
        assert [files[0].path for files in readings.files.values()] == ["/dev/nvidia0", "/dev/nvidia1"]
        machine.set_mig_mode(machine.uuids()[0], True)
        machine.create_gpu_instance(machine.uuids()[0], "1g.5gb", 0)
        await readings.read((await stock_of(machine)).gpus)
        assert machine.asked == 4

    run_virtual(story())


def test_a_card_whose_nodes_cannot_be_read_is_tried_again_and_the_other_is_known() -> None:
    async def story() -> None:
        machine, clock = CardsWithFiles("2xA100-40GB", seed="n"), LoopClock(0.0)
        machine.hidden = machine.uuids()[0]
        readings = DeviceNodes(InlineNvml(machine, clock), clock)
        cards = (await stock_of(machine)).gpus
        await readings.read(cards)
        assert readings.files.keys() == {machine.uuids()[1]}
        assert "/proc/devices: not there" in readings.failed[machine.uuids()[0]]
        assert readings.retry_in() == RETRY
        machine.hidden = None
        await clock.sleep(RETRY)
        await readings.read(cards)
        assert readings.files.keys() == set(machine.uuids())
        assert readings.retry_in() is None

    run_virtual(story())


def test_a_lost_card_keeps_its_nodes() -> None:
    async def story() -> None:
        machine, clock = CardsWithFiles("2xA100-40GB", seed="n"), LoopClock(0.0)
        readings = DeviceNodes(InlineNvml(machine, clock), clock)
        await readings.read((await stock_of(machine)).gpus)
        before = readings.files
        machine.lose(machine.uuids()[1])
        await readings.read((await stock_of(machine)).gpus)
        assert readings.files == before
        assert not readings.failed

    run_virtual(story())


def test_cards_tell_their_links_and_a_lost_one_does_not_hide_those_of_others() -> None:
    machine = SimulatedMachine("4xA100-40GB", seed="n")
    hardware = InlineNvml(machine, LoopClock(0.0))
    infos = machine.devices()
    one, two, three, _ = machine.uuids()
    to_two = NvLink(infos[1].pci_bus_id)
    machine.set_nvlinks(one, [to_two, to_two])
    for each in (two, three):
        machine.set_nvlinks(each, [])
    topology = asyncio.run(read_topology(hardware, infos))
    assert topology.score(one, two) >= 200
    assert topology.score(one, two) > topology.score(two, three) > 0
    machine.lose(two)
    after = asyncio.run(read_topology(hardware, machine.devices()))
    assert after.score(one, two) == 200
    assert after.score(one, three) == topology.score(one, three)
