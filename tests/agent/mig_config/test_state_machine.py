"""One card reaches its layout, from any state, with any users, failures and deaths of the process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from tessera.agent.inventory.gpu_inventory import CardOwner
from tessera.agent.mig_config.events import (
    CreateCi,
    CreateGi,
    DestroyCi,
    EvictUsers,
    GoalSet,
    InstancePlace,
    InSync,
    ReleaseCard,
    RequestReboot,
    Reset,
    SetFence,
    SetMigMode,
    Wait,
)
from tessera.agent.mig_config.state_machine import FAILURE_ATTEMPTS, HELD_RECHECK
from tessera.nvml.errors import (
    InsufficientResources,
    InUse,
    NoPermission,
    NotSupported,
    NvmlError,
    ResetRequired,
    UnknownNvmlError,
)
from tessera.observe.record_player import DECIDERS, replay
from tessera.replay.recorder import Recorders, read_records

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.agent.mig_config.conftest import Bench

    Benches = Callable[..., Bench]

SEED = {"2g.10gb": 2, "1g.5gb": 3}
SEVEN = [("1g.5gb", start) for start in range(7)]


@pytest.fixture
def card(bench: Benches) -> Bench:
    return bench()


def test_an_empty_card_is_cut_by_the_layout(card: Bench) -> None:
    card.aim(SEED)
    assert card.settle() == InSync()
    assert card.multiset() == SEED
    assert card.calls() == ["CreateGi", "CreateCi"] * 5


def test_a_card_without_mig_mode_gets_it_first_behind_a_fence(bench: Benches) -> None:
    card = bench(mig=False)
    card.aim({"7g.40gb": 1})
    assert card.settle() == InSync()
    assert card.done.index(SetFence(frozenset({card.uuid}))) < card.done.index(SetMigMode(True))
    assert card.multiset() == {"7g.40gb": 1}
    assert card.fence == frozenset()


def test_mig_mode_is_turned_off_after_the_instances_are_gone(card: Bench) -> None:
    card.make(*SEVEN)
    card.aim({}, mig=False)
    assert card.settle() == InSync()
    assert not card.seen().mig_enabled
    assert card.calls()[-1] == "SetMigMode"


def test_the_same_instances_at_other_starts_stay(card: Bench) -> None:
    card.make(("1g.5gb", 5), ("2g.10gb", 2), ("1g.5gb", 0), ("1g.5gb", 6))
    card.aim({"1g.5gb": 3, "2g.10gb": 1})
    assert card.settle() == InSync()
    assert card.calls() == []


def test_seven_small_ones_become_two_sizes_and_five_pods_notice_nothing(card: Bench) -> None:
    devices = card.make(*SEVEN)
    for number in (0, 1, 2, 3, 6):
        card.hold(f"pod-{number}", devices[number])
    card.aim({"2g.10gb": 1, "1g.5gb": 5})
    assert card.settle() == InSync()
    assert card.starts() == {0: "1g.5gb", 1: "1g.5gb", 2: "1g.5gb", 3: "1g.5gb", 4: "2g.10gb", 6: "1g.5gb"}


def test_where_all_are_busy_only_as_many_as_must_are_waited_for(card: Bench) -> None:
    for number, device in enumerate(card.make(*SEVEN)):
        card.hold(f"pod-{number}", device)
    card.aim({"2g.10gb": 1, "1g.5gb": 5})
    step = card.waits()
    assert step.reason == "CardsInUse"
    assert step.text.count("pod default/") == 2
    assert len(card.fence) == 2
    assert card.calls() == []


def test_it_waits_for_a_pod_and_goes_on_when_the_pod_has_ended(card: Bench) -> None:
    (device,) = card.make(("7g.40gb", 0))
    card.hold("long", device)
    card.aim(SEED)
    step = card.waits()
    assert (step.reason, step.failed, step.until) == ("CardsInUse", False, HELD_RECHECK)
    assert "pod default/long" in step.text
    card.ends("long")
    assert card.settle() == InSync()
    assert card.multiset() == SEED


def test_idle_work_is_done_before_any_pod_is_waited_for(card: Bench) -> None:
    _, busy = card.make(("3g.20gb", 0), ("3g.20gb", 4))
    card.hold("long", busy)
    card.aim({"1g.5gb": 7})
    assert isinstance(card.run(), Wait)
    assert card.starts() == {0: "1g.5gb", 1: "1g.5gb", 2: "1g.5gb", 3: "1g.5gb", 4: "3g.20gb"}


def test_a_process_that_no_pod_explains_is_waited_for_too(card: Bench) -> None:
    (device,) = card.make(("7g.40gb", 0))
    pid = card.cards.start_process(device)  # type: ignore[arg-type]
    card.aim(SEED)
    step = card.waits()
    assert step.reason == "CardsInUse"
    assert f"process {pid}" in step.text
    card.cards.end_process(pid)
    assert card.settle() == InSync()


def test_a_device_allocated_just_before_the_fence_is_not_destroyed(card: Bench) -> None:
    devices = card.make(*SEVEN)
    card.aim({"2g.10gb": 1, "1g.5gb": 5})
    while not isinstance(card.done[-1] if card.done else None, SetFence):
        card.step()
    late = min(card.fence)
    card.fence -= {late}
    card.hold("late", late)
    card.fence |= {late}
    assert card.settle() == InSync()
    assert late in card.devices()
    assert len(devices) == 7


# What somebody else did --------------------------------------------------------------------------------------------


def test_an_idle_instance_outside_the_layout_is_destroyed(card: Bench) -> None:
    card.aim({"3g.20gb": 1})
    card.settle()
    (foreign,) = card.make(("1g.5gb", 4 if 0 in card.starts() else 0))
    card.hold("guest", foreign)
    assert isinstance(card.run(), Wait)
    card.ends("guest")
    assert card.settle() == InSync()
    assert card.multiset() == {"3g.20gb": 1}


def test_a_half_made_instance_of_the_target_is_completed(card: Bench) -> None:
    card.make(("3g.20gb", 4), half=True)
    card.aim({"3g.20gb": 1})
    assert card.settle() == InSync()
    assert card.calls() == ["CreateCi"]


def test_a_half_made_instance_outside_the_goal_is_destroyed(card: Bench) -> None:
    card.make(("4g.20gb", 0), half=True)
    card.aim({"3g.20gb": 1})
    assert card.settle() == InSync()
    assert card.multiset() == {"3g.20gb": 1}


def test_a_compute_instance_that_does_not_span_its_gpu_instance_is_replaced_when_idle(card: Bench) -> None:
    card.make(("3g.20gb", 4), half=True)
    gi_id = card.cards.instances(card.uuid)[0].gi_id
    part = card.cards.create_compute_instance(card.uuid, gi_id, 0).mig_uuid
    card.hold("part", part)
    card.aim({"3g.20gb": 1})
    assert isinstance(card.run(), Wait)
    card.ends("part")
    assert card.settle() == InSync()
    assert card.multiset() == {"3g.20gb": 1}
    assert card.calls() == ["DestroyCi", "CreateCi"]


# What fails --------------------------------------------------------------------------------------------------------


CALLS = ["create_gpu_instance", "create_compute_instance", "destroy_gpu_instance", "destroy_compute_instance"]


@pytest.mark.parametrize("operation", CALLS)
def test_a_failed_call_is_tried_again_after_growing_delays(card: Bench, operation: str) -> None:
    card.make(("1g.5gb", 0))
    card.cards.fail(operation, UnknownNvmlError, times=2)
    card.aim({"7g.40gb": 1})
    times = []
    while not isinstance(step := card.run(), InSync):
        assert isinstance(step, Wait)
        assert step.until is not None
        times.append(step.until - card.now)
        card.now = step.until
    assert times == [0.5, 1.0]
    assert card.multiset() == {"7g.40gb": 1}


def test_a_call_that_keeps_failing_is_reported_and_tried_again(card: Bench) -> None:
    card.cards.fail("create_gpu_instance", InsufficientResources, times=None)
    card.aim(SEED)
    steps = [card.run()]
    while len(steps) < FAILURE_ATTEMPTS:
        assert isinstance(steps[-1], Wait)
        assert steps[-1].until is not None
        card.now = steps[-1].until
        steps.append(card.run())
    assert [isinstance(each, Wait) and each.failed for each in steps] == [False] * (FAILURE_ATTEMPTS - 1) + [True]
    assert isinstance(steps[-1], Wait)
    assert steps[-1].reason == "NvmlFailed"
    card.cards.heal()
    assert card.settle() == InSync()


@pytest.mark.parametrize("pair", [(0, 1), (2, 3), (4, 5)])
def test_failures_are_reported_whichever_instances_are_in_use(card: Bench, pair: tuple[int, int]) -> None:
    for number, device in enumerate(card.make(*SEVEN)):
        if number not in pair:
            card.hold(f"pod-{number}", device)
    card.cards.fail("destroy_compute_instance", UnknownNvmlError, times=None)
    card.aim({"2g.10gb": 1, "1g.5gb": 5})
    told = []
    for _ in range(2 * FAILURE_ATTEMPTS):
        step = card.waits()
        assert step.until is not None
        card.now = step.until
        told.append((step.failed, step.reason))
    assert told[-1] == (True, "NvmlFailed")


def test_a_compute_instance_that_cannot_be_made_takes_its_gpu_instance_down(card: Bench) -> None:
    card.cards.fail("create_compute_instance", InsufficientResources, times=1)
    card.aim({"7g.40gb": 1})
    assert card.settle() == InSync()
    assert card.calls() == ["CreateGi", "CreateCi", "DestroyGi", "CreateGi", "CreateCi"]


def test_a_call_that_succeeds_and_changes_nothing_is_a_failed_one(card: Bench) -> None:
    card.aim({"7g.40gb": 1})
    card.perform = lambda call: None  # type: ignore[method-assign]
    step = card.waits()
    assert "changed nothing" in step.text


# Modes, resets and reboots -----------------------------------------------------------------------------------------


def test_a_card_that_a_pod_holds_whole_is_not_put_into_mig_mode(bench: Benches) -> None:
    card = bench(mig=False)
    card.hold("whole", card.uuid)
    card.aim(SEED)
    step = card.waits()
    assert step.reason == "CardsInUse"
    assert card.fence == {card.uuid}
    card.ends("whole")
    assert card.settle() == InSync()


def test_an_impossible_reset_is_reported_and_tried_again(bench: Benches) -> None:
    card = bench(mig=False, passthrough=True)
    card.cards.fail("reset", InUse, times=None)
    card.aim(SEED)
    waits = []
    for _ in range(6):
        step = card.waits()
        assert step.until is not None
        card.now = step.until
        waits.append(step)
    assert waits[-1].failed
    assert waits[-1].reason == "ResetRequired"
    card.cards.heal()
    assert card.settle() == InSync()


def test_a_card_that_needs_a_reset_gets_one_when_it_is_unused(card: Bench) -> None:
    (device,) = card.make(("3g.20gb", 0))
    card.hold("long", device)
    card.aim({"3g.20gb": 1, "2g.10gb": 1})
    card.cards.fail("create_gpu_instance", ResetRequired, times=1)
    card.waits()
    assert Reset() not in card.done
    card.ends("long")
    assert card.settle() == InSync()
    assert Reset() in card.done
    assert card.multiset() == {"3g.20gb": 1, "2g.10gb": 1}


def test_a_pending_mode_that_is_no_longer_desired_is_undone_without_a_reset(bench: Benches) -> None:
    card = bench(mig=False, passthrough=True, may_reboot=True)
    card.cards.fail("reset", NotSupported, times=None)
    card.aim(SEED)
    assert isinstance(card.settle(), RequestReboot)
    assert card.seen().mig_pending
    card.aim({}, mig=False)
    assert card.settle() == InSync()
    assert not card.seen().mig_pending
    card.cards.reboot()
    assert not card.seen().mig_enabled


def test_a_foreign_pending_mode_is_undone_when_the_card_is_empty(bench: Benches) -> None:
    card = bench(mig=False, passthrough=True)
    card.cards.set_mig_mode(card.uuid, True)
    card.hold("whole", card.uuid)
    card.aim({}, mig=False)
    assert card.run() == InSync()
    assert (card.seen().mig_pending, card.fence) == (True, frozenset())
    card.ends("whole")
    assert card.settle() == InSync()
    assert card.calls() == ["SetMigMode"]
    assert not card.seen().mig_pending


def test_a_reset_never_applies_a_mode_that_is_not_desired(bench: Benches) -> None:
    card = bench(passthrough=True)
    card.cards.set_mig_mode(card.uuid, False)
    card.make(("3g.20gb", 0))
    card.aim({"2g.10gb": 3})
    card.cards.fail("create_gpu_instance", ResetRequired, times=1)
    assert card.settle() == InSync()
    assert card.seen().mig_enabled
    assert card.calls().count("Reset") <= 1
    assert card.multiset() == {"2g.10gb": 3}


def test_a_mode_that_is_refused_outright_is_no_matter_of_resets(bench: Benches) -> None:
    card = bench(mig=False, may_reboot=True)
    card.cards.fail("set_mig_mode", NoPermission, times=None)
    card.aim(SEED)
    reasons = []
    for _ in range(FAILURE_ATTEMPTS):
        step = card.waits()
        assert step.until is not None
        card.now = step.until
        reasons.append(step.reason)
    assert reasons[-1] == "NvmlFailed"


# Evictions ---------------------------------------------------------------------------------------------------------


def test_pods_are_evicted_if_the_policy_allows_it_after_the_idle_work(bench: Benches) -> None:
    card = bench(may_evict=True)
    _, busy = card.make(("3g.20gb", 0), ("3g.20gb", 4))
    card.hold("long", busy)
    card.aim({"1g.5gb": 7})
    assert card.settle() == InSync()
    evicted = next(each for each in card.done if isinstance(each, EvictUsers))
    assert [each.name for each in evicted.users] == ["long"]
    before = card.done[: card.done.index(evicted)]
    assert sum(isinstance(each, CreateCi) for each in before) == 4


def test_a_refused_eviction_is_reported_and_requested_again(bench: Benches) -> None:
    card = bench(may_evict=True)
    (device,) = card.make(("7g.40gb", 0))
    card.hold("guarded", device)
    card.refusals["guarded"] = "disruption budget web allows none"
    card.aim(SEED)
    step = card.waits()
    assert step.until == 2.0
    assert "disruption budget web allows none" in step.text
    card.now = step.until
    card.run()
    assert sum(isinstance(each, EvictUsers) for each in card.done) == 2
    card.refusals.clear()
    assert card.settle() == InSync()


# Cards that change hands -------------------------------------------------------------------------------------------


def test_a_card_of_the_slicer_is_not_touched(card: Bench) -> None:
    card.make(*SEVEN)
    card.owner = CardOwner.ON_DEMAND
    card.aim({}, mig=False)
    step = card.waits()
    assert step.reason == "CardsInUse"
    assert card.calls() == []


def test_a_transferred_card_loses_the_managed_instances(card: Bench) -> None:
    card.make(("2g.10gb", 0))
    card.aim(SEED)
    card.settle()
    card.kill()
    card.aim({}, owner=CardOwner.ON_DEMAND)
    assert card.settle() == ReleaseCard()
    assert card.starts() == {}
    assert card.seen().mig_enabled


def test_a_transferred_card_keeps_foreign_instances(card: Bench) -> None:
    card.make(("2g.10gb", 0))
    card.aim({}, owner=CardOwner.ON_DEMAND)
    assert card.settle() == ReleaseCard()
    assert card.starts() == {0: "2g.10gb"}


def test_a_card_without_a_goal_is_left_as_it_is_in_the_middle_of_anything(card: Bench) -> None:
    card.make(*SEVEN)
    card.aim(SEED)
    for _ in range(4):
        card.step()
    before = card.starts()
    card.events.append(GoalSet(None))
    assert card.run() == InSync()
    assert card.fence == frozenset()
    assert card.starts() == before


def test_an_instance_is_managed_before_the_call_that_creates_it(card: Bench) -> None:
    card.aim({"7g.40gb": 1})
    while not isinstance(card.done[-1] if card.done else None, CreateGi):
        card.step()
    assert card.machine.managed_places == {InstancePlace("7g.40gb", 0)}


def test_a_layout_that_the_cards_own_table_forbids_is_refused_untouched(card: Bench) -> None:
    card.make(*SEVEN)
    card.aim({"3g.20gb": 2, "1g.5gb": 1})
    step = card.waits()
    assert (step.reason, step.failed) == ("LayoutImpossible", True)
    assert "mig-configs.wanted[0]" in step.text
    assert card.calls() == []


def test_unknown_failures_of_a_destroy_never_skip_the_fence(card: Bench) -> None:
    card.make(*SEVEN)
    card.cards.fail("destroy_compute_instance", NvmlError, times=3)
    card.aim({"7g.40gb": 1})
    assert card.settle() == InSync()
    assert any(isinstance(each, DestroyCi) for each in card.done)


def test_a_record_with_failed_calls_for_the_whole_card_is_replayed(bench: Benches) -> None:
    card, recorders = bench(mig=False, passthrough=True), Recorders(2)
    recorders.attach("mig-config", card.machine, card.uuid)
    card.cards.fail("reset", NotSupported, times=3)
    card.aim(SEED)
    assert card.settle() == InSync()
    (record,) = read_records(b"\n".join(msgspec.json.encode(each) for each in recorders.records()))
    assert record.skipped
    assert not [*replay(record, DECIDERS["mig-config"])]
