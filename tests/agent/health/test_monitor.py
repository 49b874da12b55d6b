"""The health of a node's cards over time: cards fail and recover, the agent restarts, the node boots."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from tests.agent.health.conftest import EPOCH, Agent, Node, play
from tests.support.agent_runtime import make_parts

from tessera.agent.base.wake_ups import ChangeNotifier
from tessera.agent.health.monitor import HealthMonitor
from tessera.agent.health.policy import RecoveryAction
from tessera.agent.inventory.device_state import DeviceScope, Reaction, entry_health
from tessera.agent.inventory.gpu_inventory import read_gpu_inventory, sharing_gpus
from tessera.api.nodes.node_marks import Cordon
from tessera.api.sharing.devices import AdvertisedDevice, SharingKind
from tessera.clock import LoopClock
from tessera.nvml.errors import UnknownNvmlError
from tessera.nvml.interface import GpuEventKind
from tessera.nvml.simulated.machine_access import InlineNvml
from tessera.nvml.simulated.machine_state import ANY, SimEvent
from tessera_lab.simulation.virtual_time import run_virtual


def shares(uuid: str, gpu: str = "", count: int = 4) -> list[AdvertisedDevice]:
    kind = SharingKind.TIME_SLICING
    return [
        AdvertisedDevice(id=f"{uuid}::{number}", uuid=uuid, gpu=gpu or uuid, index="0", replicas=count, kind=kind)
        for number in range(count)
    ]


async def unfit(agent: Agent, *devices: AdvertisedDevice) -> set[str]:
    gpus = sharing_gpus((await read_gpu_inventory(agent.hardware)).gpus)
    health = agent.watch.state_machine
    verdicts = entry_health(devices, gpus, health.faulty_gpus, health.health_of)
    return {name for name, verdict in verdicts.items() if not verdict.healthy}


@pytest.mark.scene(mig=True)
async def test_a_contained_error_takes_only_its_instance_which_is_fit_again_soon(node: Node, agent: Agent) -> None:
    made = []
    for start in (0, 1):
        gi = node.machine.create_gpu_instance(node.one, "1g.5gb", start)
        made.append((gi, node.machine.create_compute_instance(node.one, gi, 0)))
    (bad, mig), (_, neighbour) = made
    entries = [*shares(mig.mig_uuid, node.one, 2), *shares(neighbour.mig_uuid, node.one, 2)]
    node.xid(94, bad, mig.ci_id)
    await asyncio.sleep(0.1)
    assert await unfit(agent, *entries) == {f"{mig.mig_uuid}::0", f"{mig.mig_uuid}::1"}
    assert node.one not in agent.watch.state_machine.unhealthy_gpus
    await asyncio.sleep(29)
    assert await unfit(agent, *entries)
    await asyncio.sleep(11)
    assert not await unfit(agent, *entries)


@pytest.mark.scene(mig=True)
async def test_an_instance_that_was_destroyed_takes_its_mark_along(node: Node, agent: Agent) -> None:
    node.xid(94, 7, 0)
    await asyncio.sleep(0.1)
    assert not agent.watch.state_machine.health_of(DeviceScope(node.one, 7, 0)).healthy
    told = len(node.told)
    agent.watch.note_instance_destroyed(node.one, 7)
    assert agent.watch.state_machine.health_of(DeviceScope(node.one, 7, 0)).healthy
    assert len(node.told) == told, "nothing recovered, it is another instance"


@pytest.mark.scene(mig=True)
async def test_the_fault_of_a_vanished_instance_ends_with_the_next_probe(node: Node, agent: Agent) -> None:
    gi = node.machine.create_gpu_instance(node.one, "1g.5gb", 0)
    node.xid(94, gi, 0)
    await asyncio.sleep(2)
    assert not agent.watch.state_machine.health_of(DeviceScope(node.one, gi, 0)).healthy
    node.machine.destroy_gpu_instance(node.one, gi)
    await asyncio.sleep(10)
    assert agent.watch.state_machine.health_of(DeviceScope(node.one, gi, 0)).healthy


async def test_an_error_of_the_program_is_nothing(node: Node, agent: Agent) -> None:
    node.xid(13)
    await asyncio.sleep(0.1)
    assert agent.watch.condition().reason == "CardsHealthy"
    assert node.told == []
    assert agent.gauge("tessera_gpu_events_total", gpu=node.one, event="xid-13") == 1


@pytest.mark.parametrize(
    ("environment", "xid", "counts"),
    [
        ({"DP_ENABLE_HEALTHCHECKS": "13"}, 13, True),
        ({"DP_DISABLE_HEALTHCHECKS": "all", "DP_ENABLE_HEALTHCHECKS": "48"}, 48, True),
        ({"DP_DISABLE_HEALTHCHECKS": "all"}, 48, False),
        ({"DP_DISABLE_HEALTHCHECKS": "94, 74"}, 74, False),
    ],
)
def test_the_variables_of_the_device_plugin_change_the_reactions(
    tmp_path: Path, environment: Mapping[str, str], xid: int, counts: bool
) -> None:
    async def story(node: Node, agent: Agent) -> None:
        node.xid(xid)
        await asyncio.sleep(0.1)
        assert (node.one in agent.watch.state_machine.unhealthy_gpus) is counts

    play(Node(tmp_path, environment=environment), story)


async def test_a_lost_card_is_out_until_the_node_is_booted(node: Node, agent: Agent) -> None:
    node.machine.lose(node.one)
    await asyncio.sleep(0.1)
    status, reason, message = agent.watch.condition()
    assert (status, reason) == ("False", "CardUnhealthy")
    assert message.startswith(f"GPU 0 ({node.one}): ")
    assert "not allocated until the node is rebooted" in message
    await asyncio.sleep(1000)
    assert node.one in agent.watch.state_machine.unhealthy_gpus
    assert node.other not in agent.watch.state_machine.unhealthy_gpus
    await agent.stop()
    node.machine.reboot()
    node.boot = "boot-2"
    after = await node.agent()
    assert after.watch.condition().status == "True"
    await after.stop()


def test_a_card_that_was_lost_before_the_agent_came_is_out_at_once(node: Node) -> None:
    node.machine.lose(node.one)
    node.machine.wait_event(0)

    async def begun() -> None:
        agent = Agent(node)
        agent.watch.set_cards(node.machine.devices())
        assert agent.watch.state_machine.health_of(DeviceScope(node.one)).reaction is Reaction.REBOOT
        await agent.stop()

    run_virtual(begun())


def test_a_restart_of_the_agent_keeps_the_faults(node: Node) -> None:
    node.asks_for(RecoveryAction.GPU_RESET)

    async def story(node: Node, agent: Agent) -> None:
        node.xid(48)
        await asyncio.sleep(0.1)
        before = agent.watch.state_machine.faults()
        await agent.stop()
        after = Agent(node)
        assert after.watch.state_machine.faults() == before
        await after.stop()

    play(node, story)


async def test_a_boot_ends_stored_faults_also_if_its_id_comes_late(node: Node, agent: Agent) -> None:
    node.xid(79)
    await asyncio.sleep(0.1)
    await agent.stop()
    node.boot = ""
    after = await node.agent()
    assert node.one in after.watch.state_machine.unhealthy_gpus
    node.boot = "boot-2"
    after.watch.set_cards([])
    after.watch.set_cards(await after.hardware.devices())
    await asyncio.sleep(0.1)
    assert node.one not in after.watch.state_machine.unhealthy_gpus
    await after.stop()


def test_faults_before_the_boot_id_is_known_belong_to_the_first_known_boot(node: Node) -> None:
    node.boot = ""

    async def story(node: Node, agent: Agent) -> None:
        node.xid(79)
        await asyncio.sleep(2)
        node.boot = "boot-1"
        await asyncio.sleep(11)
        assert node.one in agent.watch.state_machine.unhealthy_gpus

    play(node, story)


async def test_a_restart_with_a_clock_that_went_back_prolongs_nothing(node: Node, agent: Agent) -> None:
    node.xid(94)
    await asyncio.sleep(0.1)
    await agent.stop()
    node.clock.ahead -= 86_400
    after = await node.agent()
    assert node.one in after.watch.state_machine.unhealthy_gpus
    await asyncio.sleep(41)
    assert node.one not in after.watch.state_machine.unhealthy_gpus
    await after.stop()


async def test_a_clock_that_is_set_changes_nothing_while_the_agent_runs(node: Node, agent: Agent) -> None:
    node.xid(94)
    await asyncio.sleep(0.1)
    node.clock.ahead += 86_400
    await asyncio.sleep(1)
    assert node.one in agent.watch.state_machine.unhealthy_gpus
    node.clock.ahead -= 2 * 86_400
    await asyncio.sleep(40)
    assert node.one not in agent.watch.state_machine.unhealthy_gpus


def test_faults_that_cannot_be_saved_stay_in_force_and_are_counted(node: Node) -> None:
    node.file.parent.parent.joinpath("state").write_text("a file where the folder should be")

    async def story(node: Node, agent: Agent) -> None:
        node.xid(48)
        await asyncio.sleep(0.1)
        assert node.one in agent.watch.state_machine.unhealthy_gpus
        assert agent.gauge("tessera_gpu_fault_save_failures_total")

    play(node, story)


def test_a_broken_event_watch_degrades_every_card_and_takes_none(node: Node) -> None:
    node.machine.fail("wait_event", UnknownNvmlError)

    async def story(node: Node, agent: Agent) -> None:
        assert agent.watch.condition()[:2] == ("True", "CardDegraded")
        assert node.one not in agent.watch.state_machine.unhealthy_gpus
        assert {reason for reason, _ in node.told} == {"GpuDegraded"}
        again = Agent(node)
        assert again.watch.state_machine.faults() == (), "a new process waits for events anew"
        await again.stop()
        await asyncio.sleep(130)
        assert agent.watch.condition().reason == "CardsHealthy"

    play(node, story)


async def test_while_events_cannot_be_read_all_cards_are_probed_often(node: Node, agent: Agent) -> None:
    await asyncio.sleep(65)
    agent.hardware.probes.clear()
    node.machine.fail("wait_event", UnknownNvmlError, times=None)
    agent.watch.note_event_watch_failure("unknown error")
    await asyncio.sleep(31)
    assert len(agent.hardware.probes) == 6


async def test_an_error_of_a_card_that_the_driver_cannot_name_takes_all_and_asks_all(node: Node, agent: Agent) -> None:
    await asyncio.sleep(30)
    agent.hardware.probes.clear()
    node.machine.report(SimEvent(GpuEventKind.XID, None, 94, None, None))
    await asyncio.sleep(1)
    assert node.one in agent.watch.state_machine.unhealthy_gpus
    assert node.other in agent.watch.state_machine.unhealthy_gpus
    assert len(agent.hardware.probes) == 2


async def test_the_driver_s_own_verdict_takes_a_card_and_gives_it_back(node: Node, agent: Agent) -> None:
    node.asks_for(RecoveryAction.DRAIN_AND_RESET)
    await asyncio.sleep(61)
    assert agent.watch.state_machine.health_of(DeviceScope(node.one)).text == "the driver asks for: drain and reset"
    await asyncio.sleep(600)
    assert node.one in agent.watch.state_machine.unhealthy_gpus
    node.asks_for(RecoveryAction.NONE)
    agent.watch.note_card_reset(node.one)
    await asyncio.sleep(41)
    assert node.one not in agent.watch.state_machine.unhealthy_gpus


async def test_a_verdict_that_an_event_announces_is_read_at_once(node: Node, agent: Agent) -> None:
    node.asks_for(RecoveryAction.GPU_RESET)
    node.xid(154)
    await asyncio.sleep(1.1)
    assert agent.watch.state_machine.health_of(DeviceScope(node.one)).reaction is Reaction.RESET


async def test_a_card_whose_driver_hangs_is_taken_and_no_other_is(node: Node, agent: Agent) -> None:
    node.machine.slow("memory", 10_000)
    await asyncio.sleep(200)
    out = {gpu: gpu in agent.watch.state_machine.unhealthy_gpus for gpu in (node.one, node.other)}
    assert sorted(out.values()) == [False, True]
    assert "no answer within 10 s" in agent.watch.condition().message
    assert agent.gauge("tessera_gpu_probes_total", result="not-asked")


async def test_healthy_cards_are_probed_seldom_and_suspected_ones_often(node: Node, agent: Agent) -> None:
    probes = agent.hardware.probes
    assert len(probes) == 2, "each at the start"
    await asyncio.sleep(185)
    assert len(probes) == 8
    probes.clear()
    node.xid(94)
    await asyncio.sleep(35)
    of_the_bad = [round(at - probes[0]) for at in probes]
    assert of_the_bad[:4] == [0, 10, 20, 30]


async def test_a_storm_of_events_is_no_storm_of_probes(node: Node, agent: Agent) -> None:
    agent.hardware.probes.clear()
    for _ in range(50):
        node.xid(94)
        await asyncio.sleep(0.1)
    assert len(agent.hardware.probes) <= 7


@pytest.mark.scene(mig=True)
async def test_every_change_of_health_is_reported_once_and_shown(node: Node, agent: Agent) -> None:
    gi = node.machine.create_gpu_instance(node.one, "1g.5gb", 0)
    for _ in range(3):
        node.xid(94, gi)
        await asyncio.sleep(0.1)
    where = f"GPU 0 ({node.one}) GPU instance {gi}"
    ((reason, text),) = node.told
    assert reason == "GpuUnhealthy"
    for fact in (where, "XID 94", "not allocated", "until its probes succeed"):
        assert fact in text
    assert agent.watch.condition().message == node.told[0][1]
    assert agent.gauge("tessera_gpu_health", gpu=node.one) == Reaction.WITHHOLD
    assert agent.gauge("tessera_gpu_health", gpu=node.other) == Reaction.IGNORE
    await asyncio.sleep(45)
    assert node.told[1:] == [("GpuRecovered", f"{where}: nothing is wrong with it any more")]
    assert agent.gauge("tessera_gpu_health", gpu=node.one) == Reaction.IGNORE


def test_before_the_cards_are_known_nothing_is_claimed(node: Node) -> None:
    async def begun() -> None:
        agent = Agent(node)
        assert agent.watch.condition()[:2] == ("Unknown", "NoCards")
        await agent.stop()

    run_virtual(begun())


async def test_a_card_that_left_the_node_is_not_probed_and_not_shown(node: Node, agent: Agent) -> None:
    left = [each for each in await agent.hardware.devices() if each.uuid == node.other]
    node.xid(48)
    await asyncio.sleep(0.1)
    agent.watch.set_cards(left)
    assert agent.watch.condition().status == "True"
    assert agent.gauge("tessera_gpu_health", gpu=node.one) is None


def test_the_same_cards_again_notify_no_part(node: Node) -> None:
    async def begun() -> None:
        changes = ChangeNotifier()
        hardware = InlineNvml(node.machine, LoopClock(EPOCH))
        watch = HealthMonitor(
            make_parts(
                options=node.options,
                hardware=hardware,
                object_events=node,
                changes=changes,
                clock=LoopClock(EPOCH),
            )
        )
        cards = await hardware.devices()
        watch.set_cards(cards)
        seen = changes.count
        watch.set_cards([msgspec.structs.replace(card) for card in cards])
        assert changes.count == seen
        watch.note_event_watch_failure("unknown error")
        assert changes.count == seen + 1, "a changed verdict wakes everybody"
        watch.note_event_watch_failure("unknown error")
        assert changes.count == seen + 1

    run_virtual(begun())


def test_an_error_in_the_first_list_after_a_boot_is_of_this_boot(node: Node) -> None:
    async def before(node: Node, agent: Agent) -> None:
        await asyncio.sleep(5)

    async def after() -> None:
        agent = Agent(node)
        agent.watch.set_cards(await agent.hardware.devices(), {node.one: "card 0: Unknown Error"})
        await asyncio.sleep(100)
        assert node.one in agent.watch.state_machine.unhealthy_gpus
        assert [reason for reason, _ in node.told] == ["GpuUnhealthy"]
        assert not agent.watch.state_machine.past
        await agent.stop()

    play(node, before)
    node.boot = "boot-2"
    node.machine.fail(ANY, 999, times=None, gpu=node.one)
    run_virtual(after())


def test_a_card_that_was_replaced_is_not_missed_for_its_cordon(node: Node) -> None:
    """Only faults of the hardware prove that a card was there in this boot; a person's annotation proves nothing."""
    node.cordoned = (Cordon("GPU-0000-replaced", "to be replaced"), Cordon(node.other, "mine"))

    async def story(node: Node, agent: Agent) -> None:
        node.xid(48)
        await asyncio.sleep(5)
        assert agent.watch.faulty_gpus() == {node.one}

    play(node, story)
