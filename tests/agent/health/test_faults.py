"""Faults begin, last and end, and withhold the right devices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.agent.health.fault import (
    CardProbed,
    CardReset,
    CardsListed,
    CardsUnheard,
    Fault,
    FaultsSpared,
    HardwareEventReported,
    HealthEvent,
    InstanceDestroyed,
    NodeRebooted,
    ProbeResult,
)
from tessera.agent.health.faults import HealthStateMachine
from tessera.agent.health.policy import HealthPolicy, RecoveryAction
from tessera.agent.inventory.device_state import DeviceHealth, DeviceScope, Reaction
from tessera.nvml.errors import XIDS
from tessera.nvml.interface import GpuEvent, GpuEventKind, GpuUuid

ONE, OTHER = GpuUuid("GPU-1"), GpuUuid("GPU-2")


def node(policy: HealthPolicy | None = None) -> HealthStateMachine:
    health = HealthStateMachine(policy or HealthPolicy())
    assert health.handle(CardsListed(frozenset({ONE, OTHER})), 0) == ()
    return health


def xid(number: int, gpu: GpuUuid | None = ONE, gi: int | None = None, ci: int | None = None) -> HardwareEventReported:
    return HardwareEventReported(GpuEvent(kind=GpuEventKind.XID, gpu=gpu, xid=number, gi_id=gi, ci_id=ci))


def probe(
    result: ProbeResult = ProbeResult.CLEAN, recovery: RecoveryAction | None = None, gpu: str = ONE
) -> CardProbed:
    return CardProbed(gpu=gpu, result=result, recovery=recovery)


def probes(
    health: HealthStateMachine, start: float, count: int, recovery: RecoveryAction | None = None
) -> float | None:
    """Clean probes every ten seconds; returns when the card was fit again."""
    for number in range(count):
        health.handle(probe(recovery=recovery), start + 10 * number)
        if health.health_of(DeviceScope(ONE)).healthy:
            return start + 10 * number
    return None


@pytest.fixture
def health() -> HealthStateMachine:
    return node()


def test_a_double_bit_error_is_of_the_whole_card_and_of_no_other(health: HealthStateMachine) -> None:
    (change,) = health.handle(xid(48), 1)
    assert (change.scope, change.after.reaction) == (DeviceScope(ONE), Reaction.RESET)
    assert change.after.text == f"XID 48, {XIDS[48].text}"
    assert not health.health_of(DeviceScope(ONE)).healthy
    assert not health.health_of(DeviceScope(ONE, 3, 0)).healthy
    assert health.health_of(DeviceScope(OTHER)).healthy


def test_a_contained_error_is_of_its_instance_only_and_goes_by_itself(health: HealthStateMachine) -> None:
    (change,) = health.handle(xid(94, gi=3, ci=0), 0)
    assert change.scope == DeviceScope(ONE, 3, 0)
    assert not health.health_of(DeviceScope(ONE, 3, 0)).healthy
    assert health.health_of(DeviceScope(ONE, 4, 0)).healthy
    assert health.health_of(DeviceScope(ONE, 3, 1)).healthy
    assert health.health_of(DeviceScope(ONE)).healthy
    health.handle(probe(), 10)
    health.handle(probe(), 20)
    (back,) = health.handle(probe(), 30)
    assert (back.scope, back.after.healthy) == (DeviceScope(ONE, 3, 0), True)


def test_an_error_of_a_gpu_instance_is_of_all_its_compute_instances(health: HealthStateMachine) -> None:
    health.handle(xid(94, gi=3), 0)
    assert not health.health_of(DeviceScope(ONE, 3, 0)).healthy
    assert not health.health_of(DeviceScope(ONE, 3, 1)).healthy
    assert health.health_of(DeviceScope(ONE, 4, 0)).healthy


def test_an_uncontained_error_is_of_the_whole_card_though_it_names_an_instance(health: HealthStateMachine) -> None:
    health.handle(xid(95, gi=3, ci=0), 0)
    assert not health.health_of(DeviceScope(ONE, 4, 0)).healthy


def test_an_error_of_the_program_changes_nothing(health: HealthStateMachine) -> None:
    assert health.handle(xid(13), 0) == ()
    assert health.faults() == ()


def test_a_degraded_card_is_allocated_and_shown(health: HealthStateMachine) -> None:
    (change,) = health.handle(xid(63), 0)
    assert change.after.reaction is Reaction.DEGRADE
    assert health.health_of(DeviceScope(ONE)).healthy


def test_probes_without_a_quiet_time_do_not_suffice(health: HealthStateMachine) -> None:
    health.handle(xid(94), 0)
    for second in range(1, 29):
        health.handle(probe(), second)
    assert not health.health_of(DeviceScope(ONE)).healthy
    health.handle(probe(), 30)
    assert health.health_of(DeviceScope(ONE)).healthy


def test_a_quiet_time_without_probes_does_not_suffice(health: HealthStateMachine) -> None:
    health.handle(xid(94), 0)
    health.handle(probe(), 1000)
    health.handle(probe(), 1001)
    assert not health.health_of(DeviceScope(ONE)).healthy


def test_a_failed_probe_begins_the_count_again(health: HealthStateMachine) -> None:
    health.handle(xid(94), 0)
    for second, result in ((40, ProbeResult.CLEAN), (50, ProbeResult.CLEAN), (60, ProbeResult.FAILED)):
        health.handle(probe(result), second)
    assert probes(health, 70, 3) == 90


def test_an_error_that_returns_stays_twice_as_long(health: HealthStateMachine) -> None:
    health.handle(xid(94), 0)
    assert probes(health, 10, 10) == 30
    health.handle(xid(94), 100)
    assert probes(health, 110, 20) == 160
    health.handle(xid(94), 200)
    assert probes(health, 210, 20) == 320


def test_an_error_that_was_long_ago_is_forgotten(health: HealthStateMachine) -> None:
    health.handle(xid(94), 0)
    assert probes(health, 10, 10) == 30
    health.handle(xid(94), 10_000)
    assert probes(health, 10_010, 10) == 10_030


def test_an_error_that_returned_all_year_still_goes_by_itself() -> None:
    mark = Fault(
        scope=DeviceScope(ONE), source="XID 94", reaction=Reaction.WITHHOLD, text="", since=0, last=0, returns=5000
    )
    health = HealthStateMachine(HealthPolicy(), faults=[mark])
    assert probes(health, 900, 20) == 960, "no number of returns makes it stay longer than the longest quiet time"


def test_a_fault_that_needs_a_reset_ends_when_the_driver_asks_for_no_action(health: HealthStateMachine) -> None:
    health.handle(xid(48), 0)
    assert probes(health, 10, 10, RecoveryAction.GPU_RESET) is None
    assert probes(health, 200, 10, RecoveryAction.NONE) == 220


def test_an_error_after_the_reset_asks_for_another(health: HealthStateMachine) -> None:
    health.handle(xid(48), 0)
    health.handle(CardReset(ONE), 10)
    health.handle(xid(48), 20)
    assert probes(health, 30, 100) is None


def test_the_drivers_verdict_alone_takes_a_card_out(health: HealthStateMachine) -> None:
    (change,) = health.handle(probe(recovery=RecoveryAction.NODE_REBOOT), 0)
    assert change.after.reaction is Reaction.REBOOT
    assert change.after.text == "the driver asks for: node reboot"


def test_one_failed_probe_proves_nothing_three_do(health: HealthStateMachine) -> None:
    assert health.handle(probe(ProbeResult.FAILED), 0) == ()
    assert health.handle(probe(ProbeResult.FAILED), 10) == ()
    (change,) = health.handle(probe(ProbeResult.FAILED), 20)
    assert change.after.reaction is Reaction.WITHHOLD
    assert probes(health, 30, 10) == 50


def test_an_event_of_an_unnamed_card_drains_all_and_all_come_back(health: HealthStateMachine) -> None:
    changes = health.handle(xid(48, gpu=None), 0)
    assert {change.scope.gpu for change in changes} == {ONE, OTHER}
    assert {change.after.reaction for change in changes} == {Reaction.WITHHOLD}
    assert probes(health, 10, 10) == 30
    assert not health.health_of(DeviceScope(OTHER)).healthy


def test_an_event_of_a_card_that_is_not_ours_is_passed_over() -> None:
    assert node().handle(xid(48, gpu=GpuUuid("GPU-9")), 0) == ()


def test_a_card_whose_errors_cannot_be_heard_is_degraded_and_stays(health: HealthStateMachine) -> None:
    (change,) = health.handle(CardsUnheard({ONE: "unknown error"}), 0)
    assert (change.scope.gpu, change.after.text) == (ONE, "its errors cannot be heard: unknown error")
    assert health.health_of(DeviceScope(ONE)).healthy
    assert health.handle(CardsUnheard({ONE: "another error"}), 1) == (), "nobody is told anew every time"


def test_it_is_degraded_until_its_errors_are_heard_despite_clean_probes(health: HealthStateMachine) -> None:
    health.handle(CardsUnheard({ONE: "unknown error", OTHER: "unknown error"}), 0)
    for number in range(10):
        health.handle(probe(), 100 + 10 * number)
    assert health.health_of(DeviceScope(ONE)).reaction is Reaction.DEGRADE
    assert [change.scope.gpu for change in health.handle(CardsUnheard({ONE: "unknown error"}), 200)] == [OTHER]
    (change,) = health.handle(CardsUnheard({}), 300)
    assert change.after.reaction is Reaction.IGNORE


def test_a_card_that_cannot_be_read_has_one_fault_and_not_that_one_too(health: HealthStateMachine) -> None:
    health.handle(CardProbed(gpu=ONE, result=ProbeResult.LOST), 0)
    health.handle(CardsUnheard({ONE: "unknown error"}), 1)
    assert [fault.source for fault in health.faults()] == ["probe"]


def test_a_boot_ends_every_fault_and_one_that_returns_lasts_longer(health: HealthStateMachine) -> None:
    health.handle(xid(79), 0)
    health.handle(xid(94, gi=3), 0)
    health.handle(NodeRebooted(), 100)
    assert health.faults() == ()
    health.handle(xid(79), 200)
    assert health.faults()[0].returns == 1


def test_a_card_needs_a_reset_until_it_was_reset_or_needs_a_reboot(health: HealthStateMachine) -> None:
    health.handle(xid(94), 0)
    assert not health.needs_reset(ONE)
    health.handle(xid(48), 0)
    assert (health.needs_reset(ONE), health.needs_reset(OTHER)) == (True, False)
    health.handle(CardReset(ONE), 10)
    assert not health.needs_reset(ONE)
    health.handle(xid(48), 20)
    assert health.needs_reset(ONE)
    health.handle(xid(79), 30)
    assert not health.needs_reset(ONE)


def test_a_card_is_suspected_while_it_has_marks_or_fails(health: HealthStateMachine) -> None:
    assert not health.is_suspect(ONE)
    health.handle(probe(ProbeResult.FAILED), 0)
    assert health.is_suspect(ONE)
    health.handle(probe(), 10)
    assert not health.is_suspect(ONE)
    health.handle(xid(94, gi=3), 20)
    assert (health.is_suspect(ONE), health.is_suspect(OTHER)) == (True, False)


def test_ecc_events_alone_take_nothing_away(health: HealthStateMachine) -> None:
    (change,) = health.handle(HardwareEventReported(GpuEvent(kind=GpuEventKind.DOUBLE_BIT_ECC, gpu=ONE)), 0)
    assert change.after.reaction is Reaction.DEGRADE
    assert health.handle(HardwareEventReported(GpuEvent(kind=GpuEventKind.SINGLE_BIT_ECC, gpu=OTHER)), 0) == ()


FACTS = st.one_of(
    st.builds(
        xid,
        st.sampled_from([13, 63, 94, 48, 79, 500]),
        st.sampled_from([ONE, OTHER, None]),
        st.sampled_from([None, 1, 2]),
        st.sampled_from([None, 0]),
    ),
    st.builds(
        probe, st.sampled_from(ProbeResult), st.sampled_from([None, *RecoveryAction]), st.sampled_from([ONE, OTHER])
    ),
    st.builds(CardReset, st.sampled_from([ONE, OTHER])),
    st.builds(InstanceDestroyed, st.sampled_from([ONE, OTHER]), st.sampled_from([1, 2])),
    st.builds(CardsUnheard, st.dictionaries(st.sampled_from([ONE, OTHER]), st.just("x"))),
    st.builds(NodeRebooted),
)


@given(facts=st.lists(FACTS, max_size=30))
def test_a_reset_and_clean_probes_end_every_fault(facts: list[HealthEvent]) -> None:
    health = node()
    now = 0.0
    for fact in facts:
        now += 1
        health.handle(fact, now)
    health.handle(CardsUnheard({}), now)
    for gpu in (ONE, OTHER):
        health.handle(CardReset(gpu), now)
        for number in range(4):
            health.handle(probe(gpu=gpu), now + 2000 + number)
    assert health.faults() == ()


def test_an_error_on_an_instance_of_a_degraded_card_changes_from_degraded(health: HealthStateMachine) -> None:
    health.handle(CardsUnheard({ONE: "x"}), 1)
    (change,) = health.handle(xid(94, ONE, 1, None), 2)
    assert change.scope == DeviceScope(ONE, 1)
    assert change.before.reaction is Reaction.DEGRADE


@given(facts=st.lists(FACTS, max_size=30))
def test_changes_tell_every_change_of_verdict(facts: list[HealthEvent]) -> None:
    health = node()
    told: dict[DeviceScope, Reaction] = {}
    for now, fact in enumerate(facts):
        for change in health.handle(fact, now):
            assert change.before.reaction == told.get(change.scope, change.before.reaction)
            told = {scope: known for scope, known in told.items() if not change.scope.covers(scope)}
            told[change.scope] = change.after.reaction
        if isinstance(fact, InstanceDestroyed):
            told = {scope: known for scope, known in told.items() if (scope.gpu, scope.gi_id) != (fact.gpu, fact.gi_id)}
    for gpu in (ONE, OTHER):
        assert told.get(DeviceScope(gpu), Reaction.IGNORE) == health.health_of(DeviceScope(gpu)).reaction


@given(facts=st.lists(FACTS, max_size=30))
def test_the_sets_of_cards_are_those_of_the_faults_after_every_event(facts: list[HealthEvent]) -> None:
    """Others hold the sets themselves, and ask for no card without faults."""
    health = node()
    faulty, unhealthy = health.faulty_gpus, health.unhealthy_gpus
    for now, fact in enumerate(facts):
        health.handle(fact, now)
        assert faulty == {each.scope.gpu for each in health.faults()}
        assert unhealthy == {gpu for gpu in (ONE, OTHER) if not health.health_of(DeviceScope(gpu)).healthy}
        assert all(health.health_of(DeviceScope(gpu, 1, 0)) == DeviceHealth() for gpu in {ONE, OTHER} - faulty)


def listed(unreadable: dict[str, str] | None = None, *more: str) -> CardsListed:
    return CardsListed(frozenset({ONE, OTHER, *more}), unreadable or {})


def test_a_card_that_is_listed_with_an_error_is_withheld_at_once_and_no_other(health: HealthStateMachine) -> None:
    (change,) = health.handle(listed({ONE: "card 0: Unknown Error"}), 1)
    assert (change.scope, change.after.reaction) == (DeviceScope(ONE), Reaction.WITHHOLD)
    assert change.after.text == "the card cannot be read: card 0: Unknown Error"
    assert health.health_of(DeviceScope(OTHER)).healthy


def test_clean_probes_do_not_end_the_fault_of_a_card_while_it_is_listed_with_an_error(
    health: HealthStateMachine,
) -> None:
    health.handle(listed({ONE: "card 0: Unknown Error"}), 0)
    assert probes(health, 10, 20) is None
    health.handle(listed(), 300)
    assert probes(health, 310, 3) == 330


def test_the_same_list_again_is_no_further_error(health: HealthStateMachine) -> None:
    for now in range(5):
        health.handle(listed({ONE: "card 0: Unknown Error"}), now)
    (fault,) = health.faults()
    assert (fault.count, fault.last) == (1, 0)


def test_a_card_whose_errors_alternate_is_told_by_the_first_one(health: HealthStateMachine) -> None:
    for now, error in enumerate(["Unknown Error", "GPU is lost", "Unknown Error"]):
        health.handle(listed({ONE: error}), now)
        health.handle(listed(), now)
    (fault,) = health.faults()
    assert (fault.text, fault.count, fault.last) == ("the card cannot be read: Unknown Error", 3, 2)


@pytest.mark.parametrize("first", ["Unknown Error", "the card is lost"])
def test_a_card_whose_failed_probes_alternate_is_told_by_the_first_one(health: HealthStateMachine, first: str) -> None:
    lost = first != "Unknown Error"
    for now, text in enumerate([first, first, first, "Timeout", "Timeout", "Timeout"]):
        result = ProbeResult.LOST if lost and now < 3 else ProbeResult.FAILED
        health.handle(CardProbed(gpu=ONE, result=result, text=text), now)
    (fault,) = health.faults()
    assert first in fault.text
    assert fault.last == 5


def test_a_card_that_is_listed_with_an_error_has_one_fault_though_its_probes_fail_too(
    health: HealthStateMachine,
) -> None:
    health.handle(listed({ONE: "card 0: Unknown Error"}), 0)
    for now in range(1, 5):
        health.handle(probe(ProbeResult.FAILED), now)
    assert [fault.source for fault in health.faults()] == ["unreadable"]


def test_the_breaker_spares_no_card_that_cannot_be_read(health: HealthStateMachine) -> None:
    health.handle(listed({ONE: "card 0: Unknown Error"}), 0)
    health.handle(FaultsSpared(frozenset({fault.rule for fault in health.faults()})), 1)
    assert not health.health_of(DeviceScope(ONE)).healthy


def test_the_fault_of_a_card_without_a_name_ends_when_the_card_has_one(health: HealthStateMachine) -> None:
    health.handle(listed({"GPU-unread-2": "card 2: Unknown Error"}, "GPU-unread-2"), 0)
    assert not health.health_of(DeviceScope("GPU-unread-2")).healthy
    health.handle(listed(None, "GPU-3"), 1)
    assert health.faults() == ()


def test_a_card_that_is_still_listed_with_an_error_has_its_fault_after_a_boot(health: HealthStateMachine) -> None:
    health.handle(listed({ONE: "card 0: Unknown Error"}), 0)
    health.handle(NodeRebooted(), 1)
    health.handle(probe(ProbeResult.FAILED), 2)
    assert [(fault.scope, fault.source) for fault in health.faults()] == [(DeviceScope(ONE), "unreadable")]
