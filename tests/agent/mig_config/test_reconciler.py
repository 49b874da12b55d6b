"""The layouts of a whole node: cards side by side, pods that hold them, processes that die, reboots, owners."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from pathlib import Path

import pytest
from tests.agent.mig_config.node import Node, fenced_devices, played
from tests.support.scenes import marked_scene
from tests.support.searching import SEARCHING

from tessera.agent.inventory.gpu_inventory import CardOwner
from tessera.agent.mig_config.card_reconciler import DRIFT_RECHECK, EVICTION_DELAY_LIMIT, REBOOT_TIMEOUT
from tessera.agent.mig_config.events import LayoutState
from tessera.kube.eviction import Evicted, Evictor
from tessera.nvml.errors import GpuLost, InUse
from tessera.nvml.interface import MigUuid
from tessera_lab.simulation.virtual_time import run_virtual

SEED = "2x2g.10gb-3x1g.5gb"


@pytest.fixture
async def node(request: pytest.FixtureRequest, tmp_path: Path, virtual_time: None) -> AsyncIterator[Node]:
    """A fresh node on virtual time."""
    made = marked_scene(request, Node, tmp_path / "node")
    yield made
    await made.end()


@pytest.mark.scene("4xA100-40GB", mig=False)
async def test_four_cards_with_the_walk_throughs_layout_give_twelve_and_eight(node: Node) -> None:
    node.start()
    node.label(SEED)
    assert await node.succeeds() < 2
    total: Counter[str] = sum((Counter(each) for each in node.multisets()), Counter())
    assert total == {"1g.5gb": 12, "2g.10gb": 8}
    states = [each.state.value for each in node.told if each.layout]
    assert list(dict.fromkeys(states)) == ["pending", "success"]
    assert {len(card.instances) for card in node.inventory_reader.inventory.gpus} == {5}
    assert node.layouts is not None
    assert fenced_devices(node.layouts) == frozenset()


async def test_without_a_layout_no_card_is_touched(node: Node) -> None:
    node.make(0, "3g.20gb", 4)
    before = node.machine.instances(node.machine.uuids()[0])
    node.start()
    await node.until(lambda: node.ownership.decided)
    await node.clock.sleep(300)
    assert node.machine.instances(node.machine.uuids()[0]) == before
    assert node.status.layout == ""


async def test_the_listener_learns_of_destroyed_instances(node: Node) -> None:
    node.make(0, "3g.20gb", 4)
    (stays,) = node.machine.instances(node.machine.uuids()[0])
    node.make(0, "2g.10gb", 0)
    goes = {each.gi_id for each in node.machine.instances(node.machine.uuids()[0])} - {stays.gi_id}
    node.start()
    node.label("all-3g.20gb")
    await node.succeeds()
    assert node.gone == [(node.machine.uuids()[0], gi_id) for gi_id in goes]


@pytest.mark.scene("2xA100-40GB")
async def test_one_impossible_card_and_no_card_is_touched(node: Node) -> None:
    device = node.make(0, "2g.10gb", 0)
    node.start()
    node.label("too-much")
    await node.until(lambda: node.state(LayoutState.FAILED, "LayoutImpossible"))
    await node.clock.sleep(300)
    assert node.multisets() == [{"2g.10gb": 1}, {}]
    assert "mig-configs.too-much[1].mig-devices: GPU 1 (NVIDIA A100-SXM4-40GB)" in node.status.message
    node.label("apart")
    await node.succeeds()
    assert node.multisets() == [{"7g.40gb": 1}, {"1g.5gb": 7}]
    assert device not in node.devices()


@pytest.mark.scene("2xA100-40GB")
async def test_it_waits_for_a_pod_names_it_and_continues_at_once_when_it_ends(node: Node) -> None:
    device = node.make(0, "7g.40gb", 0)
    node.pod("long", device)
    node.start()
    node.label(SEED)
    await node.until(lambda: node.state(LayoutState.PENDING, "CardsInUse"))
    await node.until(lambda: node.multisets()[1] != {})
    await node.clock.sleep(600)
    assert node.multisets() == [{"7g.40gb": 1}, {"1g.5gb": 3, "2g.10gb": 2}]
    assert "pod default/long" in node.status.message
    assert node.layouts is not None
    assert fenced_devices(node.layouts) == {device}
    node.ends("long")
    assert await node.succeeds() < 1
    assert node.multisets() == [{"1g.5gb": 3, "2g.10gb": 2}] * 2


class EndsPods(Evictor):
    """Ends pods as soon as it is asked."""

    def __init__(self, node: Node) -> None:
        self.node = node

    async def evict(self, namespace: str, name: str, uid: str) -> Evicted:
        assert (namespace, uid) == ("default", f"uid-{name}")
        self.node.ends(name)
        return Evicted()


async def test_no_pod_is_evicted_while_the_node_counts_its_devices_as_free(node: Node) -> None:
    # Else the scheduler would send the next pod to the same devices.
    node.evictor = EndsPods(node)
    node.pod("long", node.make(0, "7g.40gb", 0))
    node.counted_too_many = ("nvidia.com/mig-7g.40gb",)
    node.start()
    node.label(SEED)
    await node.until(lambda: node.state(LayoutState.PENDING, "CardsInUse"))
    await node.until(lambda: "evicted when the node stops counting" in node.status.message)
    assert "nvidia.com/mig-7g.40gb" in node.status.message
    await node.clock.sleep(EVICTION_DELAY_LIMIT / 2)
    assert "long" in node.pods
    node.counted_too_many = ()
    node.changes.notify()
    assert await node.succeeds() < 2


async def test_a_node_that_never_counts_right_delays_an_eviction_for_a_while_only(node: Node) -> None:
    node.evictor = EndsPods(node)
    node.pod("long", node.make(0, "7g.40gb", 0))
    node.counted_too_many = ("nvidia.com/mig-7g.40gb",)
    node.start()
    node.label(SEED)
    assert EVICTION_DELAY_LIMIT <= await node.succeeds() < EVICTION_DELAY_LIMIT + 5


async def test_nothing_is_destroyed_while_kubelet_does_not_list_users(node: Node) -> None:
    node.make(0, "7g.40gb", 0)
    node.kubelet.silent = True
    node.start()
    node.label(SEED)
    await node.until(lambda: node.state(LayoutState.PENDING, "DeviceUsersUnknown"))
    await node.clock.sleep(60)
    assert node.multisets() == [{"7g.40gb": 1}]
    node.kubelet.silent = False
    await node.succeeds()


@pytest.mark.scene("2xA100-40GB")
async def test_a_card_that_fell_off_the_bus_does_not_delay_the_others(node: Node) -> None:
    node.start()
    node.machine.lose(node.machine.uuids()[0])
    node.label(SEED)
    await node.until(lambda: node.state(LayoutState.FAILED, "NvmlFailed"))
    await node.until(lambda: node.multisets_of(1) == {"1g.5gb": 3, "2g.10gb": 2})
    assert "GPU 0" in node.status.message


async def test_an_instance_that_another_program_destroyed_is_made_again_after_the_recheck(node: Node) -> None:
    node.start()
    node.label("five-and-one")
    await node.succeeds()
    uuid = node.machine.uuids()[0]
    one = node.machine.instances(uuid)[0]
    node.machine.destroy_compute_instance(uuid, one.gi_id, 0)
    node.machine.destroy_gpu_instance(uuid, one.gi_id)
    took = await node.until(lambda: node.multisets() == [{"2g.10gb": 1, "1g.5gb": 5}])
    assert took <= DRIFT_RECHECK + 1


async def test_a_new_reading_of_the_stock_that_differs_is_looked_into_at_once(node: Node) -> None:
    node.start()
    node.label("five-and-one")
    await node.succeeds()
    node.machine.set_mig_mode(node.machine.uuids()[0], False)
    await node.inventory_reader.refresh()
    assert await node.until(lambda: node.multisets() == [{"2g.10gb": 1, "1g.5gb": 5}]) < 1


@pytest.mark.parametrize("call", range(1, 26, 2))
async def test_another_label_is_followed_at_once_during_any_step(node: Node, call: int) -> None:
    node.make(0, "7g.40gb", 0)
    node.start()
    assert node.hardware is not None
    node.hardware.at(call, lambda: node.label("five-and-one"))
    node.label(SEED)
    await node.until(lambda: node.desired.name == "five-and-one")
    assert await node.succeeds() < 2
    assert node.multisets() == [{"2g.10gb": 1, "1g.5gb": 5}]


@pytest.mark.parametrize("call", range(1, 20, 2))
async def test_the_end_of_a_pod_is_never_missed(node: Node, call: int) -> None:
    node.pod("short", node.make(0, "3g.20gb", 0))
    node.start()
    assert node.hardware is not None
    node.hardware.at(call, lambda: node.ends("short"))
    node.label("five-and-one")
    await node.until(lambda: not node.pods)
    assert await node.succeeds() < 2


# Death -------------------------------------------------------------------------------------------------------------


async def five_stay(node: Node) -> None:
    """Seven small instances, some in use, become two sizes."""
    for start in range(7):
        device = node.make(0, "1g.5gb", start)
        if start in (0, 1, 6):
            node.pod(f"pod-{start}", device)
    node.machine.start_process(MigUuid(device))


async def mode_changes(node: Node) -> None:
    """The card is not in MIG mode and needs a reset to get there."""
    node.machine.set_mig_mode(node.machine.uuids()[0], False)
    node.machine.reset(node.machine.uuids()[0])


async def dies(node: Node, number: int, *, after: bool) -> bool:
    """Plays the story with a death at one call; whether there was such a call."""
    held = {each for ids in node.kubelet.held.values() for each in ids}
    node.start(last=number, after=after)
    node.label("five-and-one")
    successor = asyncio.create_task(node.succeed_the_dead())
    try:
        await node.until(lambda: node.layouts is not None and node.state(LayoutState.SUCCESS))
        died = successor.done()
    finally:
        successor.cancel()
    assert node.multisets() == [{"2g.10gb": 1, "1g.5gb": 5}]
    assert held <= node.devices()
    return died


#: `make test` plays a death before or after every second call, `make soak` before and after each.
RARELY = [
    pytest.param(five_stay, False, marks=pytest.mark.soak),
    pytest.param(mode_changes, True, marks=pytest.mark.soak),
]


@pytest.mark.parametrize(("before", "after"), [(five_stay, True), (mode_changes, False), *RARELY])
def test_killed_at_any_call_the_next_process_ends_in_the_same_state(
    tmp_path: Path, before: Callable[[Node], Awaitable[None]], *, after: bool
) -> None:
    numbers, died = count(1, 1 if SEARCHING else 2), True
    while died:
        number = next(numbers)

        async def story(node: Node, number: int = number) -> None:
            nonlocal died
            await before(node)
            died = await dies(node, number, after=after)

        async def whole(number: int = number) -> None:
            reset = before is mode_changes
            await played(Node(tmp_path / str(number), passthrough=reset, in_file=after and not reset), story)

        run_virtual(whole())
    assert number > 30


# Resets and reboots ------------------------------------------------------------------------------------------------


@pytest.mark.scene("2xA100-40GB", mig=False, passthrough=True)
async def test_only_the_card_concerned_is_reset(node: Node) -> None:
    first, second = node.machine.uuids()
    node.machine.set_mig_mode(second, True)
    node.machine.reset(second)
    kept = [node.make(1, "1g.5gb", start) for start in range(7)]
    for device in kept:
        node.machine.start_process(MigUuid(device))
    node.start()
    node.label("apart")
    await node.succeeds()
    assert len(node.machine.processes(second)) == 7
    assert node.multisets() == [{"7g.40gb": 1}, {"1g.5gb": 7}]
    assert node.machine.processes(first) == []


@pytest.mark.scene(mig=False, passthrough=True, may_reboot=True)
async def test_the_node_is_rebooted_once_and_that_may_help(node: Node) -> None:
    node.machine.fail("reset", InUse, times=None)
    node.start()
    node.label(SEED)
    await node.until(lambda: node.state(LayoutState.REBOOTING))
    assert node.reboots == ["boot-1"]
    await node.end()
    node.rebooted()
    node.start()
    await node.succeeds()
    assert node.reboots == ["boot-1"]


@pytest.mark.scene(mig=False, passthrough=True, may_reboot=True)
async def test_a_reboot_that_does_not_help_is_not_requested_again(node: Node) -> None:
    node.machine.fail("reset", InUse, times=None)
    node.machine.fail("set_mig_mode", InUse, times=None)
    node.start()
    node.label(SEED)
    await node.until(lambda: node.state(LayoutState.REBOOTING))
    await node.end()
    node.boot = "boot-2"
    node.start()
    await node.until(lambda: node.state(LayoutState.FAILED, "ResetRequired"))
    await node.clock.sleep(600)
    assert node.reboots == ["boot-1"]
    assert "once" in node.status.message


@pytest.mark.scene(mig=False, passthrough=True, may_reboot=True)
async def test_a_process_that_starts_again_before_the_reboot_does_not_ask_again(node: Node) -> None:
    node.machine.fail("reset", InUse, times=None)
    node.start()
    node.label(SEED)
    await node.until(lambda: node.state(LayoutState.REBOOTING))
    await node.end()
    node.start()
    await node.until(lambda: node.state(LayoutState.REBOOTING))
    await node.until(lambda: node.state(LayoutState.FAILED), REBOOT_TIMEOUT + 120)
    assert node.reboots == ["boot-1"]


@pytest.mark.scene("2xA100-40GB", mig=False, passthrough=True, may_reboot=True)
async def test_a_reboot_waits_for_the_pods_of_other_cards(node: Node) -> None:
    first, second = node.machine.uuids()
    node.machine.fail("reset", InUse, times=None, gpu=first)
    node.start()
    node.label("apart")
    await node.until(lambda: node.multisets()[1] == {"1g.5gb": 7})
    device = node.machine.instances(second)[0].compute_instances[0].mig_uuid
    node.pod("other", device)
    await node.until(lambda: node.state(LayoutState.PENDING, "CardsInUse") and "other" in node.status.message)
    assert node.reboots == []
    node.ends("other")
    await node.until(lambda: node.state(LayoutState.REBOOTING))


@pytest.mark.scene(mig=False, passthrough=True, may_reboot=True)
async def test_a_failed_request_for_a_reboot_is_reported_and_repeated(node: Node) -> None:
    node.machine.fail("reset", InUse, times=None)
    node.reboot_fails = True
    node.start()
    node.label(SEED)
    await node.until(lambda: node.state(LayoutState.FAILED, "ResetRequired"))
    assert "cannot be rebooted: no such command" in node.status.message
    node.reboot_fails = False
    await node.until(lambda: node.state(LayoutState.REBOOTING))
    assert node.reboots == ["boot-1"]


# Ownership -----------------------------------------------------------------------------------------------------------


@pytest.mark.scene("2xA100-40GB")
async def test_a_card_goes_to_the_slicer_only_after_its_pods_have_ended(node: Node) -> None:
    first, second = node.machine.uuids()
    node.start()
    node.label(SEED)
    await node.succeeds()
    node.pod("long", node.machine.instances(first)[0].compute_instances[0].mig_uuid)
    node.label("dynamic")
    await node.until(lambda: node.ownership.owner(second) is CardOwner.ON_DEMAND)
    await node.clock.sleep(100)
    assert node.ownership.owner(first) is CardOwner.STATIC
    assert node.multisets() == [{"2g.10gb": 1}, {}]
    assert node.state(LayoutState.PENDING, "CardsInUse")
    node.ends("long")
    assert await node.succeeds() < 1
    assert node.ownership.on_demand_gpus() == {first, second}
    assert node.multisets() == [{}, {}]


@pytest.mark.scene("2xA100-40GB", mig=False)
async def test_a_layout_leaves_some_cards_to_the_slicer_and_cuts_the_others(node: Node) -> None:
    first, second = node.machine.uuids()
    node.start()
    node.label("dynamic-half")
    await node.succeeds()
    assert node.ownership.on_demand_gpus() == {first}
    assert node.multisets() == [{}, {"3g.20gb": 2}]
    assert not node.machine.devices()[0].mig_enabled
    assert second in node.ownership.static_gpus()


async def test_a_card_on_demand_is_cut_only_after_its_transfer(node: Node) -> None:
    (card,) = node.machine.uuids()
    node.start()
    node.label("dynamic")
    await node.succeeds()
    node.make(0, "3g.20gb", 0)
    node.label(SEED)
    await node.until(lambda: node.ownership.is_leaving(card))
    await node.clock.sleep(100)
    assert node.multisets() == [{"3g.20gb": 1}]
    node.ownership.transfer(card)
    node.changes.notify()
    await node.succeeds()


# Files -------------------------------------------------------------------------------------------------------------


async def test_no_card_is_touched_where_nothing_can_be_noted(node: Node) -> None:
    (node.folder / "layouts.json.new").mkdir()
    node.start()
    node.label(SEED)
    await node.until(lambda: node.state(LayoutState.FAILED, "StateUnwritable"))
    await node.clock.sleep(30)
    assert node.multisets() == [{}]
    (node.folder / "layouts.json.new").rmdir()
    await node.succeeds()


@pytest.mark.scene("2xA100-40GB")
async def test_a_lost_card_that_had_the_layout_takes_it_from_nobody(node: Node) -> None:
    node.start()
    node.label(SEED)
    await node.succeeds()
    gpu = node.machine.uuids()[1]
    node.machine.lose(gpu)
    for _ in range(2):
        await node.until(lambda: "it had the layout before" in node.status.message)
        assert (node.status.state, node.status.reason) == (LayoutState.SUCCESS, "LayoutApplied")
        assert node.status.message.startswith(f'layout "{SEED}" is in force; GPU 1 ({gpu}): the card no longer')
        assert node.status.message.count(str(gpu)) == 1
        await node.end()
        node.start()
    await node.clock.sleep(600)
    assert node.status.state is LayoutState.SUCCESS
    node.label("all-1g.5gb")
    await node.until(lambda: node.state(LayoutState.FAILED, "NvmlFailed"))
    assert f"GPU 1 ({gpu}): the card no longer answers" in node.status.message


async def test_a_lost_card_is_no_reason_to_end(node: Node) -> None:
    node.machine.fail("instances", GpuLost, times=20)
    node.start()
    node.label(SEED)
    await node.succeeds(600)
