"""The parts that pods hold after a restart of the agent, while cards cannot say which MIG devices they have."""

import asyncio
import random

import pytest
from tests.agent.inventory.test_device_users import GPU, Listing, Pods, accepted, listed, pod
from tests.support.api_clients import in_process_client

from tessera.agent.base.node_objects import ApiMirror
from tessera.agent.base.wake_ups import ChangeNotifier
from tessera.agent.health.pod_reporter import PartHolders
from tessera.agent.inventory.device_state import DeviceScope, DeviceUsers
from tessera.agent.inventory.gpu_inventory import InventoryReader
from tessera.api.names import PodUid
from tessera.clock import LoopClock
from tessera.nvml.simulated.machine_access import InlineNvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.kubelet.device_plugins.inprocess import InProcessKubelet


def holdings(machine: SimulatedMachine, device: str) -> dict[PodUid, frozenset[DeviceScope]]:
    """What an agent reads that has just started; one pod holds the device."""

    async def read() -> dict[PodUid, frozenset[DeviceScope]]:
        clock, kubelet = LoopClock(0.0), InProcessKubelet()
        kubelet.start(accepted, Listing(listed("a", (GPU, [device]))))
        inventory = InventoryReader(InlineNvml(machine, clock), ChangeNotifier())
        await inventory.refresh()
        users = DeviceUsers(kubelet, Pods([pod("a", "uid-a")]))
        client = in_process_client(ApiServer(clock), clock, "admin", "system:masters")
        mirror = ApiMirror(client, node_name="n", namespace="default", clock=clock, rng=random.Random(1))
        return dict(await PartHolders(users, list, mirror, inventory).read())

    return asyncio.run(read())


@pytest.mark.parametrize("call", ["devices", "gi_profiles", "instances"])
@pytest.mark.parametrize("cards", [0, 1, 2])
def test_an_unlisted_mig_device_is_on_the_only_card_that_lists_none(call: str, cards: int) -> None:
    machine = SimulatedMachine("2xA100-40GB", seed="n", mig=True)
    bad = machine.uuids()[:cards]
    for number, gpu in enumerate(bad):
        machine.fail("devices" if number else call, 999, times=None, gpu=gpu)
    expected = {PodUid("uid-a"): frozenset({DeviceScope(bad[0])})} if cards == 1 else {}
    assert holdings(machine, "MIG-of-earlier") == expected


def test_a_card_is_no_part_of_another_card() -> None:
    machine = SimulatedMachine("2xA100-40GB", seed="n")
    machine.fail("devices", 999, times=None, gpu=machine.uuids()[0])
    assert holdings(machine, "GPU-of-earlier") == {}
