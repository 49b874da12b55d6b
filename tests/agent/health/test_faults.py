"""Marks come, stay and go: which devices are out, and what brings them back."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tessera.agent.health.events import (
    CardReset,
    CardsSeen,
    Fact,
    Happened,
    InstanceGone,
    Probed,
    ProbeResult,
    Rebooted,
    WatchBroken,
    WatchMended,
)
from tessera.agent.health.faults import Health, Mark, Scope
from tessera.agent.health.policy import HealthPolicy, Reaction, RecoveryAction
from tessera.nvml.interface import Event, EventKind, GpuUuid

ONE, OTHER = GpuUuid("GPU-1"), GpuUuid("GPU-2")


def node(policy: HealthPolicy | None = None) -> Health:
    health = Health(policy or HealthPolicy())
    assert health.apply(CardsSeen(frozenset({ONE, OTHER})), 0) == ()
    return health


def xid(number: int, gpu: GpuUuid | None = ONE, gi: int | None = None, ci: int | None = None) -> Happened:
    return Happened(Event(kind=EventKind.XID, gpu=gpu, xid=number, gi_id=gi, ci_id=ci))


def probe(result: ProbeResult = ProbeResult.CLEAN, recovery: RecoveryAction | None = None, gpu: str = ONE) -> Probed:
    return Probed(gpu=gpu, result=result, recovery=recovery)


def probes(health: Health, start: float, count: int, recovery: RecoveryAction | None = None) -> float | None:
    """Clean probes every ten seconds; returns when the card was fit again."""
    for number in range(count):
        health.apply(probe(recovery=recovery), start + 10 * number)
        if health.verdict(Scope(ONE)).healthy:
            return start + 10 * number
    return None


def test_a_double_bit_error_is_of_the_whole_card_and_of_no_other() -> None:
    health = node()
    (change,) = health.apply(xid(48), 1)
    assert (change.scope, change.after.reaction, change.after.text) == (Scope(ONE), Reaction.RESET, "XID 48")
    assert not health.verdict(Scope(ONE)).healthy
    assert not health.verdict(Scope(ONE, 3, 0)).healthy
    assert health.verdict(Scope(OTHER)).healthy


def test_a_contained_error_is_of_its_instance_only_and_goes_by_itself() -> None:
    health = node()
    (change,) = health.apply(xid(94, gi=3, ci=0), 0)
    assert change.scope == Scope(ONE, 3, 0)
    assert not health.verdict(Scope(ONE, 3, 0)).healthy
    assert health.verdict(Scope(ONE, 4, 0)).healthy
    assert health.verdict(Scope(ONE, 3, 1)).healthy
    assert health.verdict(Scope(ONE)).healthy
    health.apply(probe(), 10)
    health.apply(probe(), 20)
    (back,) = health.apply(probe(), 30)
    assert (back.scope, back.after.healthy) == (Scope(ONE, 3, 0), True)


def test_an_error_of_a_gpu_instance_is_of_all_its_compute_instances() -> None:
    health = node()
    health.apply(xid(94, gi=3), 0)
    assert not health.verdict(Scope(ONE, 3, 0)).healthy
    assert not health.verdict(Scope(ONE, 3, 1)).healthy
    assert health.verdict(Scope(ONE, 4, 0)).healthy


def test_an_uncontained_error_is_of_the_whole_card_though_it_names_an_instance() -> None:
    health = node()
    health.apply(xid(95, gi=3, ci=0), 0)
    assert not health.verdict(Scope(ONE, 4, 0)).healthy


def test_an_error_of_the_program_changes_nothing() -> None:
    health = node()
    assert health.apply(xid(13), 0) == ()
    assert health.marks() == ()


def test_what_is_only_degraded_is_given_out_and_shown() -> None:
    health = node()
    (change,) = health.apply(xid(63), 0)
    assert change.after.reaction is Reaction.DEGRADE
    assert health.verdict(Scope(ONE)).healthy


def test_probes_without_a_quiet_time_do_not_suffice() -> None:
    health = node()
    health.apply(xid(94), 0)
    for second in range(1, 29):
        health.apply(probe(), second)
    assert not health.verdict(Scope(ONE)).healthy
    health.apply(probe(), 30)
    assert health.verdict(Scope(ONE)).healthy


def test_a_quiet_time_without_probes_does_not_suffice() -> None:
    health = node()
    health.apply(xid(94), 0)
    health.apply(probe(), 1000)
    health.apply(probe(), 1001)
    assert not health.verdict(Scope(ONE)).healthy


def test_a_failed_probe_begins_the_count_again() -> None:
    health = node()
    health.apply(xid(94), 0)
    for second, result in ((40, ProbeResult.CLEAN), (50, ProbeResult.CLEAN), (60, ProbeResult.FAILED)):
        health.apply(probe(result), second)
    assert probes(health, 70, 3) == 90


def test_an_error_that_returns_stays_twice_as_long() -> None:
    health = node()
    health.apply(xid(94), 0)
    assert probes(health, 10, 10) == 30
    health.apply(xid(94), 100)
    assert probes(health, 110, 20) == 160
    health.apply(xid(94), 200)
    assert probes(health, 210, 20) == 320


def test_an_error_that_was_long_ago_is_forgotten() -> None:
    health = node()
    health.apply(xid(94), 0)
    assert probes(health, 10, 10) == 30
    health.apply(xid(94), 10_000)
    assert probes(health, 10_010, 10) == 10_030


def test_an_error_that_returned_all_year_still_goes_by_itself() -> None:
    mark = Mark(scope=Scope(ONE), source="XID 94", reaction=Reaction.DRAIN, text="", since=0, last=0, returns=5000)
    health = Health(HealthPolicy(), marks=[mark])
    assert probes(health, 900, 20) == 960, "no number of returns makes it stay longer than the longest quiet time"


def test_what_asks_for_a_reset_does_not_go_by_time() -> None:
    health = node()
    health.apply(xid(48), 0)
    assert probes(health, 10, 500) is None
    health.apply(CardReset(ONE), 6000)
    assert probes(health, 6010, 10) == 6030, "it has to prove itself"


def test_what_asks_for_a_reset_goes_when_the_driver_says_that_nothing_is_left_to_do() -> None:
    health = node()
    health.apply(xid(48), 0)
    assert probes(health, 10, 10, RecoveryAction.GPU_RESET) is None
    assert probes(health, 200, 10, RecoveryAction.NONE) == 220


def test_an_error_after_the_reset_asks_for_another() -> None:
    health = node()
    health.apply(xid(48), 0)
    health.apply(CardReset(ONE), 10)
    health.apply(xid(48), 20)
    assert probes(health, 30, 100) is None


def test_the_drivers_verdict_alone_takes_a_card_out() -> None:
    health = node()
    (change,) = health.apply(probe(recovery=RecoveryAction.NODE_REBOOT), 0)
    assert change.after.reaction is Reaction.REBOOT
    assert change.after.text == "the driver asks for: node reboot"


def test_one_failed_probe_proves_nothing_three_do() -> None:
    health = node()
    assert health.apply(probe(ProbeResult.FAILED), 0) == ()
    assert health.apply(probe(ProbeResult.FAILED), 10) == ()
    (change,) = health.apply(probe(ProbeResult.FAILED), 20)
    assert change.after.reaction is Reaction.DRAIN
    assert probes(health, 30, 10) == 50


def test_a_lost_card_is_out_at_once() -> None:
    health = node()
    (change,) = health.apply(probe(ProbeResult.LOST), 0)
    assert change.after.reaction is Reaction.REBOOT
    assert health.verdict(Scope(OTHER)).healthy


def test_an_event_of_an_unnamed_card_drains_all_and_all_come_back() -> None:
    health = node()
    changes = health.apply(xid(48, gpu=None), 0)
    assert {change.scope.gpu for change in changes} == {ONE, OTHER}
    assert {change.after.reaction for change in changes} == {Reaction.DRAIN}
    assert probes(health, 10, 10) == 30
    assert not health.verdict(Scope(OTHER)).healthy


def test_an_event_of_a_card_that_is_not_ours_is_passed_over() -> None:
    assert node().apply(xid(48, gpu=GpuUuid("GPU-9")), 0) == ()


def test_a_broken_watch_degrades_and_takes_nothing_away() -> None:
    health = node()
    changes = health.apply(WatchBroken("unknown error"), 0)
    assert {change.after.text for change in changes} == {"hardware events cannot be read: unknown error"}
    assert health.verdict(Scope(ONE)).healthy


def test_a_broken_watch_degrades_until_it_works_again_whatever_probes_say() -> None:
    health = node()
    health.apply(WatchBroken("unknown error"), 0)
    for number in range(10):
        health.apply(probe(), 100 + 10 * number)
    assert health.verdict(Scope(ONE)).reaction is Reaction.DEGRADE
    changes = health.apply(WatchMended(), 300)
    assert {change.after.reaction for change in changes} == {Reaction.IGNORE}


def test_a_boot_ends_every_mark_and_what_comes_again_stays_longer() -> None:
    health = node()
    health.apply(xid(79), 0)
    health.apply(xid(94, gi=3), 0)
    health.apply(Rebooted(), 100)
    assert health.marks() == ()
    health.apply(xid(79), 200)
    assert health.marks()[0].returns == 1


def test_a_card_awaits_a_reset_until_it_had_one_or_needs_more() -> None:
    health = node()
    health.apply(xid(94), 0)
    assert not health.awaits_reset(ONE)
    health.apply(xid(48), 0)
    assert (health.awaits_reset(ONE), health.awaits_reset(OTHER)) == (True, False)
    health.apply(CardReset(ONE), 10)
    assert not health.awaits_reset(ONE)
    health.apply(xid(48), 20)
    assert health.awaits_reset(ONE)
    health.apply(xid(79), 30)
    assert not health.awaits_reset(ONE)


def test_a_card_is_suspected_while_it_has_marks_or_fails() -> None:
    health = node()
    assert not health.suspected(ONE)
    health.apply(probe(ProbeResult.FAILED), 0)
    assert health.suspected(ONE)
    health.apply(probe(), 10)
    assert not health.suspected(ONE)
    health.apply(xid(94, gi=3), 20)
    assert (health.suspected(ONE), health.suspected(OTHER)) == (True, False)


def test_an_instance_that_is_gone_takes_its_marks_along() -> None:
    health = node()
    health.apply(xid(94, gi=3, ci=0), 0)
    (change,) = health.apply(InstanceGone(ONE, 3), 5)
    assert change.after.healthy
    assert health.verdict(Scope(ONE, 3, 0)).healthy


def test_ecc_events_alone_take_nothing_away() -> None:
    health = node()
    (change,) = health.apply(Happened(Event(kind=EventKind.DOUBLE_BIT_ECC, gpu=ONE)), 0)
    assert change.after.reaction is Reaction.DEGRADE
    assert health.apply(Happened(Event(kind=EventKind.SINGLE_BIT_ECC, gpu=OTHER)), 0) == ()


def test_marks_outlive_the_process() -> None:
    health = node()
    health.apply(xid(48), 7)
    kept = msgspec.json.decode(msgspec.json.encode(health.marks()), type=tuple[Mark, ...])
    later = Health(HealthPolicy(), marks=kept)
    assert later.verdict(Scope(ONE)) == health.verdict(Scope(ONE))


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
    st.builds(InstanceGone, st.sampled_from([ONE, OTHER]), st.sampled_from([1, 2])),
    st.builds(WatchBroken, st.just("x")),
    st.builds(WatchMended),
    st.builds(Rebooted),
)


@given(facts=st.lists(FACTS, max_size=30))
def test_whatever_happened_a_reset_and_clean_probes_bring_every_card_back(facts: list[Fact]) -> None:
    health = node()
    now = 0.0
    for fact in facts:
        now += 1
        health.apply(fact, now)
    health.apply(WatchMended(), now)
    for gpu in (ONE, OTHER):
        health.apply(CardReset(gpu), now)
        for number in range(4):
            health.apply(probe(gpu=gpu), now + 2000 + number)
    assert health.marks() == ()


def test_an_error_on_an_instance_of_a_degraded_card_changes_from_degraded() -> None:
    health = node()
    health.apply(WatchBroken("x"), 1)
    (change,) = health.apply(xid(94, ONE, 1, None), 2)
    assert change.scope == Scope(ONE, 1)
    assert change.before.reaction is Reaction.DEGRADE


@given(facts=st.lists(FACTS, max_size=30))
def test_changes_tell_every_change_of_verdict(facts: list[Fact]) -> None:
    health = node()
    told: dict[Scope, Reaction] = {}
    for now, fact in enumerate(facts):
        for change in health.apply(fact, now):
            assert change.before.reaction == told.get(change.scope, change.before.reaction)
            told[change.scope] = change.after.reaction
        if isinstance(fact, InstanceGone):
            told = {scope: known for scope, known in told.items() if (scope.gpu, scope.gi_id) != (fact.gpu, fact.gi_id)}
    for gpu in (ONE, OTHER):
        assert told.get(Scope(gpu), Reaction.IGNORE) == health.verdict(Scope(gpu)).reaction
