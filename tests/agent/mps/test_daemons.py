"""Life cycle of a node's MPS daemons, on simulated cards and virtual time."""

import asyncio
import itertools

import pytest
from tests.agent.mps.conftest import OTHER, SHARED, MpsNode

from tessera.agent.mps.daemons import CHECK_INTERVAL, LONGEST_PAUSE, SHORTEST_PAUSE, STABLE
from tessera.agent.mps.state import DaemonId, DaemonSpec
from tessera.nvml.errors import NoPermission
from tessera.nvml.interface import ComputeMode, GpuUuid

DEFAULT, EXCLUSIVE = ComputeMode.DEFAULT, ComputeMode.EXCLUSIVE_PROCESS


async def test_a_daemon_has_its_cards_to_itself_and_its_limits_set_before_a_share_is_ready(node: MpsNode) -> None:
    node.daemons.set_plans({SHARED: node.plan(0, 1)})
    daemon = await node.until_ready()

    assert (node.mode(0), node.mode(1)) == (EXCLUSIVE, EXCLUSIVE)
    assert daemon.spec == DaemonSpec(SHARED, tuple(node.cards))
    assert daemon.limits == dict.fromkeys(node.cards, "10240M")
    assert daemon.thread_percent == "25"
    assert node.daemons.summary() == {SHARED: ""}


async def test_a_card_without_a_plan_is_left_alone(node: MpsNode) -> None:
    node.daemons.set_plans({SHARED: node.plan(1)})
    await node.until_ready()

    assert (node.mode(0), node.mode(1)) == (DEFAULT, EXCLUSIVE)


@pytest.mark.scene(start_seconds=3.0)
async def test_no_share_is_ready_while_the_daemon_starts(node: MpsNode) -> None:
    node.daemons.set_plans({SHARED: node.plan(0)})
    await asyncio.sleep(2)

    assert not node.daemons.ready(SHARED)
    assert node.daemons.problem(SHARED) == "the MPS daemon is being started"
    await node.until_ready()


async def test_a_daemon_that_dies_takes_its_shares_with_it_until_another_one_serves_with_the_same_limits(
    node: MpsNode,
) -> None:
    node.daemons.set_plans({SHARED: node.plan(0)})
    first = await node.until_ready()
    first.die("signal SIGSEGV")
    await node.until(lambda: not node.daemons.ready(SHARED))

    assert "the MPS daemon ended: signal SIGSEGV" in node.daemons.problem(SHARED)
    second = await node.until_ready()
    assert (second.limits, second.thread_percent) == (first.limits, first.thread_percent)
    assert node.mode(0) == EXCLUSIVE


async def test_a_share_that_is_not_ready_always_has_a_reason(node: MpsNode) -> None:
    node.daemons.set_plans({SHARED: node.plan(0)})
    assert node.daemons.problem(SHARED) == "the MPS daemon does not serve all cards of its plan yet"
    await node.until_ready()
    node.daemons.set_plans({SHARED: node.plan(0, 1)})
    assert not node.daemons.ready(SHARED, node.cards[1])
    assert node.daemons.summary() == {SHARED: "the MPS daemon does not serve all cards of its plan yet"}


async def test_the_death_of_one_daemon_concerns_no_other(node: MpsNode) -> None:
    node.daemons.set_plans({SHARED: node.plan(0), OTHER: node.plan(1)})
    dies, stays = await node.until_ready(SHARED), await node.until_ready(OTHER)
    dies.die()
    await node.until(lambda: not node.daemons.ready(SHARED))

    assert node.daemons.ready(OTHER)
    await node.until_ready(SHARED)
    assert stays.alive


async def test_a_daemon_that_does_not_answer_any_more_is_replaced(node: MpsNode) -> None:
    node.daemons.set_plans({SHARED: node.plan(0)})
    silent = await node.until_ready()
    silent.hung = True
    asked = node.clock.monotonic()
    await node.until(lambda: not node.daemons.ready(SHARED))

    assert node.clock.monotonic() - asked <= 2 * CHECK_INTERVAL
    assert "does not answer `get_server_list`" in node.daemons.problem(SHARED)
    assert await node.until_ready() is not silent
    assert not silent.alive


async def test_a_daemon_that_cannot_be_started_is_tried_with_longer_and_longer_pauses(node: MpsNode) -> None:
    node.launcher.refusal = "nvidia-cuda-mps-control is not installed"
    node.daemons.set_plans({SHARED: node.plan(0)})
    await asyncio.sleep(300)

    assert node.daemons.problem(SHARED) == "nvidia-cuda-mps-control is not installed"
    pauses = [round(later - sooner, 3) for sooner, later in itertools.pairwise(node.launcher.asked)]
    assert pauses == sorted(pauses)
    assert pauses[0] >= SHORTEST_PAUSE
    assert pauses[-1] == LONGEST_PAUSE
    node.launcher.refusal = ""
    await node.until_ready()


async def test_a_daemon_that_was_up_for_long_starts_again_soon(node: MpsNode) -> None:
    node.daemons.set_plans({SHARED: node.plan(0)})
    for _ in range(8):
        (await node.until_ready()).die()
        await node.until(lambda: not node.daemons.ready(SHARED))
    daemon = await node.until_ready()
    await asyncio.sleep(STABLE + 1)
    daemon.die()
    died = node.clock.monotonic()
    await node.until(lambda: not node.daemons.ready(SHARED))
    await node.until_ready()

    assert node.clock.monotonic() - died <= 1.0


async def test_other_limits_are_set_while_the_daemon_runs(node: MpsNode) -> None:
    node.daemons.set_plans({SHARED: node.plan(0)})
    daemon = await node.until_ready()
    daemon.connect()
    node.daemons.set_plans({SHARED: node.plan(0, replicas=8)})
    await asyncio.sleep(1)

    (server,) = daemon.servers.values()
    assert (daemon.limits, daemon.thread_percent) == ({node.cards[0]: "5120M"}, "12")
    assert (server.limits, server.thread_percent) == ({node.cards[0]: "5120M"}, "12")
    assert node.launcher.started == [daemon]
    assert node.daemons.ready(SHARED)


async def test_other_cards_need_another_daemon(node: MpsNode) -> None:
    node.daemons.set_plans({SHARED: node.plan(0)})
    first = await node.until_ready()
    node.daemons.set_plans({SHARED: node.plan(1)})
    await node.until(lambda: node.daemons.ready(SHARED, node.cards[1]))

    assert not first.alive
    assert (node.mode(0), node.mode(1)) == (DEFAULT, EXCLUSIVE)


async def test_a_card_joins_when_no_client_is_disturbed_by_it(node: MpsNode) -> None:
    node.daemons.set_plans({SHARED: node.plan(0)})
    first = await node.until_ready()
    client = first.connect()
    node.daemons.set_plans({SHARED: node.plan(0, 1)})
    await node.until(lambda: "once its clients have ended" in node.daemons.problem(SHARED))

    assert [node.daemons.ready(SHARED, card) for card in node.cards] == [True, False]
    assert not node.daemons.ready(SHARED)
    first.disconnect(client)
    second = await node.until_ready()
    assert second.spec.cards == tuple(node.cards)


async def test_cards_are_exchanged_for_others_when_the_clients_have_ended(node: MpsNode) -> None:
    node.daemons.set_plans({SHARED: node.plan(0)})
    first = await node.until_ready()
    client = first.connect()
    node.daemons.set_plans({SHARED: node.plan(1, replicas=2)})
    await node.until(lambda: "once its clients have ended" in node.daemons.problem(SHARED))

    assert first.limits == {node.cards[0]: "10240M"}
    assert node.daemons.fenced_devices() == {node.cards[0]}
    first.disconnect(client)
    assert (await node.until_ready()).limits == {node.cards[1]: "20480M"}


async def test_a_daemon_that_is_not_wanted_any_more_ends_and_gives_its_cards_back(node: MpsNode) -> None:
    node.daemons.set_plans({SHARED: node.plan(0, 1)})
    daemon = await node.until_ready()
    node.daemons.set_plans({})
    await node.until(lambda: not node.daemons.summary())

    assert not daemon.alive
    assert (node.mode(0), node.mode(1)) == (DEFAULT, DEFAULT)
    assert node.daemons.fenced_devices() == frozenset()


async def test_cards_are_fenced_until_the_clients_of_an_unwanted_daemon_have_ended(node: MpsNode) -> None:
    node.daemons.set_plans({SHARED: node.plan(0)})
    daemon = await node.until_ready()
    client = daemon.connect()
    node.daemons.set_plans({})
    await asyncio.sleep(60)

    assert daemon.alive
    assert node.daemons.fenced_devices() == {node.cards[0]}
    daemon.disconnect(client)
    await node.until(lambda: not node.daemons.fenced_devices())
    assert node.mode(0) == DEFAULT


async def test_a_card_goes_from_one_resource_to_another_without_two_daemons_on_it(node: MpsNode) -> None:
    node.daemons.set_plans({SHARED: node.plan(0)})
    first = await node.until_ready()
    client = first.connect()
    node.daemons.set_plans({OTHER: node.plan(0)})
    await node.until(lambda: "is still served" in node.daemons.problem(OTHER))

    assert node.launcher.daemon(OTHER) is None
    first.disconnect(client)
    await node.until_ready(OTHER)
    assert not first.alive
    assert node.mode(0) == EXCLUSIVE


async def test_two_resources_exchange_their_cards(node: MpsNode) -> None:
    node.daemons.set_plans({SHARED: node.plan(0), OTHER: node.plan(1)})
    await node.until_ready(SHARED)
    await node.until_ready(OTHER)
    node.daemons.set_plans({SHARED: node.plan(1), OTHER: node.plan(0)})
    await node.until(lambda: node.daemons.ready(SHARED) and node.daemons.ready(OTHER))

    serving = {each.spec.resource: each.spec.cards for each in node.launcher.started if each.alive}
    assert serving == {SHARED: (node.cards[1],), OTHER: (node.cards[0],)}


async def test_a_card_that_computes_for_somebody_else_is_not_touched_and_joins_later(node: MpsNode) -> None:
    process = node.machine.start_process(GpuUuid(node.cards[0]))
    node.daemons.set_plans({SHARED: node.plan(0, 1)})
    await node.until(lambda: node.daemons.ready(SHARED, node.cards[1]))

    assert node.mode(0) == DEFAULT
    assert node.daemons.problem(SHARED) == f"card {node.cards[0]} still computes for others than MPS"
    node.machine.end_process(process)
    assert (await node.until_ready()).spec.cards == tuple(node.cards)
    assert node.mode(0) == EXCLUSIVE


async def test_a_card_that_a_pod_has_otherwise_is_not_touched(node: MpsNode) -> None:
    node.occupied[node.cards[0]] = "pod default/train has it whole"
    node.daemons.set_plans({SHARED: node.plan(0)})
    await node.until(lambda: node.daemons.problem(SHARED) == f"card {node.cards[0]}: pod default/train has it whole")
    await asyncio.sleep(60)

    assert node.mode(0) == DEFAULT
    assert node.launcher.started == []
    node.occupied.clear()
    await node.until_ready()


async def test_a_card_that_was_taken_before_the_record_was_lost_is_taken_over(node: MpsNode) -> None:
    node.machine.set_compute_mode(GpuUuid(node.cards[0]), EXCLUSIVE)
    node.occupied[node.cards[0]] = "pod default/client holds a share of it"
    node.daemons.set_plans({SHARED: node.plan(0)})
    await node.until_ready()


async def test_a_card_that_refuses_its_mode_keeps_its_shares_unready_and_says_why(node: MpsNode) -> None:
    node.machine.fail("set_compute_mode", NoPermission)
    node.daemons.set_plans({SHARED: node.plan(0)})
    await node.until(lambda: "set_compute_mode" in node.daemons.problem(SHARED))

    assert node.launcher.started == []
    await node.until_ready()


async def test_a_lost_card_does_not_keep_the_others_from_being_served(node: MpsNode) -> None:
    node.daemons.set_plans({SHARED: node.plan(0, 1)})
    await node.until_ready()
    node.machine.lose(GpuUuid(node.cards[0]))
    node.daemons.set_plans({SHARED: node.plan(1)})
    await asyncio.sleep(1)

    assert (await node.until_ready()).spec.cards == (node.cards[1],)
    assert node.daemons.fenced_devices() == frozenset()


async def test_an_agent_that_starts_again_takes_its_daemons_over(node: MpsNode) -> None:
    node.daemons.set_plans({SHARED: node.plan(0)})
    daemon = await node.until_ready()
    daemon.connect()
    await node.restart()
    await asyncio.sleep(60)
    assert daemon.alive
    node.daemons.set_plans({SHARED: node.plan(0, replicas=2)})
    await node.until_ready()

    assert node.launcher.started == [daemon]
    assert daemon.limits == {node.cards[0]: "20480M"}


async def test_an_agent_that_starts_again_replaces_a_daemon_that_died_meanwhile(node: MpsNode) -> None:
    node.daemons.set_plans({SHARED: node.plan(0)})
    daemon = await node.until_ready()
    await node.restart()
    daemon.die()
    node.daemons.set_plans({SHARED: node.plan(0)})

    assert await node.until_ready() is not daemon


async def test_an_agent_that_starts_again_undoes_what_is_not_wanted_any_more(node: MpsNode) -> None:
    node.daemons.set_plans({SHARED: node.plan(0), OTHER: node.plan(1)})
    left, died = await node.until_ready(SHARED), await node.until_ready(OTHER)
    await node.restart()
    died.die()
    node.daemons.set_plans({})
    await asyncio.sleep(1)

    assert not left.alive
    assert (node.mode(0), node.mode(1)) == (DEFAULT, DEFAULT)


#: With every step slowed down to a second, some moment of each step until the shares are ready.
MOMENTS = [0.5 + number for number in range(10)]


def slowed(node: MpsNode) -> None:
    for operation in ("compute_mode", "set_compute_mode"):
        node.machine.slow(operation, 1.0)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.scene(start_seconds=1.0)
async def test_an_agent_killed_at_any_moment_leaves_nothing_that_the_next_one_does_not_undo(
    node: MpsNode, moment: float
) -> None:
    slowed(node)
    node.daemons.set_plans({SHARED: node.plan(0, 1)})
    await asyncio.sleep(moment)
    await node.restart()
    node.daemons.set_plans({})
    await asyncio.sleep(60)

    assert node.launcher.daemon(SHARED) is None
    assert (node.mode(0), node.mode(1)) == (DEFAULT, DEFAULT)
    assert node.daemons.summary() == {}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.scene(start_seconds=1.0)
async def test_an_agent_killed_at_any_moment_is_followed_by_one_that_goes_on(node: MpsNode, moment: float) -> None:
    slowed(node)
    node.daemons.set_plans({SHARED: node.plan(0, 1)})
    await asyncio.sleep(moment)
    await node.restart()
    node.daemons.set_plans({SHARED: node.plan(0, 1)})
    daemon = await node.until_ready()

    assert node.launcher.started == [daemon]
    assert daemon.limits == dict.fromkeys(node.cards, "10240M")
    assert (node.mode(0), node.mode(1)) == (EXCLUSIVE, EXCLUSIVE)


async def test_an_agent_that_lost_its_record_starts_over(node: MpsNode) -> None:
    node.daemons.set_plans({SHARED: node.plan(0)})
    unknown = await node.until_ready()
    node.state_file.unlink()
    await node.restart()
    node.daemons.set_plans({SHARED: node.plan(0)})
    await node.until_ready()

    assert not unknown.alive
    assert node.mode(0) == EXCLUSIVE
    node.daemons.set_plans({})
    await asyncio.sleep(1)
    assert node.mode(0) == DEFAULT


async def test_a_mode_that_somebody_else_set_is_left_alone(node: MpsNode) -> None:
    node.machine.set_compute_mode(GpuUuid(node.cards[1]), EXCLUSIVE)
    node.daemons.set_plans({SHARED: node.plan(0)})
    await node.until_ready()
    node.daemons.set_plans({})
    await asyncio.sleep(1)

    assert (node.mode(0), node.mode(1)) == (DEFAULT, EXCLUSIVE)


async def test_a_mark_that_is_not_the_daemons_finds_nothing(node: MpsNode) -> None:
    node.daemons.set_plans({SHARED: node.plan(0)})
    await node.until_ready()

    assert node.launcher.find(SHARED, DaemonId("simulated/99")) is None


async def test_before_the_driver_goes_daemons_end_whatever_their_clients_compute_and_come_back_after_it(
    node: MpsNode,
) -> None:
    plan = node.plan(0, 1)
    node.daemons.set_plans({SHARED: plan})
    daemon = await node.until_ready()
    daemon.connect()
    await node.stop()
    assert daemon.alive

    await node.daemons.end_all()
    assert not daemon.alive

    await node.restart()
    node.daemons.set_plans({SHARED: plan})
    assert await node.until_ready() is not daemon
    assert (node.mode(0), node.mode(1)) == (EXCLUSIVE, EXCLUSIVE)


async def test_other_parts_learn_when_a_card_is_released_that_had_refused(node: MpsNode) -> None:
    node.daemons.set_plans({SHARED: node.plan(0, 1)})
    await node.until_ready()
    node.machine.fail("set_compute_mode", NoPermission)
    node.daemons.set_plans({SHARED: node.plan(1)})
    await asyncio.sleep(1)
    assert node.daemons.fenced_devices() == {node.cards[0]}

    refused = node.clock.monotonic()
    await node.until(lambda: not node.daemons.fenced_devices())
    assert node.clock.monotonic() - refused <= 2 * CHECK_INTERVAL
