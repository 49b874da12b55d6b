"""The memory policy: the pods that are reported, evicted or ended, and those that never are."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.agent.base.host import ProcessId
from tessera.agent.base.settings import EnforcementMode
from tessera.api.names import PodUid
from tessera.memory_limits.policy import (
    CardUse,
    MemoryAction,
    MemoryDecision,
    MemoryGrant,
    MemoryPolicy,
    MemoryRules,
    MemorySample,
    ProcessUse,
    is_plausible,
)
from tessera.observe.record_player import DECIDERS, replay
from tessera.replay.recorder import Recorders, read_records

GIB = 2**30
HOG, NEIGHBOUR, THIRD = PodUid("hog"), PodUid("neighbour"), PodUid("third")
GPU = "GPU-1"


def use(pid: int, gib: float, pod: PodUid | None) -> ProcessUse:
    return ProcessUse(process=ProcessId(pid, 1), bytes=int(gib * GIB), pod=pod)


def grant(pod: PodUid, gib: int = 10, **more: Any) -> MemoryGrant:
    return MemoryGrant(pod=pod, **{"namespace": "team", "name": pod, "limits": {GPU: gib * GIB}, **more})


GRANTS = (grant(HOG), grant(NEIGHBOUR))


def card(*uses: ProcessUse, other: float = 0) -> CardUse:
    """A card of 40 GiB; ``other`` is used by nobody in the list."""
    used = sum(each.bytes for each in uses) + int(other * GIB)
    return CardUse(device=GPU, total=40 * GIB, used=used, uses=uses)


def sample(now: float, *cards: CardUse, grants: tuple[MemoryGrant, ...] = GRANTS, api: bool = True) -> MemorySample:
    return MemorySample(now=now, cards=cards, grants=grants, api_reachable=api)


def watch(mode: EnforcementMode, **more: Any) -> MemoryPolicy:
    return MemoryPolicy(MemoryRules(mode=mode, **{"start_grace": 0, **more}))


def acts(decisions: tuple[MemoryDecision, ...]) -> list[tuple[MemoryAction, str]]:
    return [(decision.action, decision.pod) for decision in decisions]


def run(watched: MemoryPolicy, *cards: CardUse, step: float = 2, **more: Any) -> list[list[tuple[MemoryAction, str]]]:
    return [acts(watched.handle(sample(number * step, each, **more))) for number, each in enumerate(cards)]


FAR_OVER = card(use(1, 15, HOG), use(2, 5, NEIGHBOUR))


@pytest.mark.parametrize(
    ("mode", "deeds"),
    [
        (EnforcementMode.OFF, []),
        (EnforcementMode.OBSERVE, [MemoryAction.NEAR, MemoryAction.EXCEEDED]),
        (EnforcementMode.WARN, [MemoryAction.NEAR, MemoryAction.EXCEEDED]),
        (EnforcementMode.EVICT, [MemoryAction.NEAR, MemoryAction.EXCEEDED, MemoryAction.EVICT]),
        (EnforcementMode.KILL, [MemoryAction.NEAR, MemoryAction.EXCEEDED, MemoryAction.TERMINATE]),
    ],
)
def test_how_far_each_mode_goes(mode: EnforcementMode, deeds: list[MemoryAction]) -> None:
    told = [each for turn in run(watch(mode), *[FAR_OVER] * 5) for each in turn]
    assert told == [(act, HOG) for act in deeds]


def test_nothing_is_done_before_so_many_samples_in_a_row() -> None:
    within = card(use(1, 5, HOG))
    turns = run(watch(EnforcementMode.EVICT), FAR_OVER, FAR_OVER, within, FAR_OVER, FAR_OVER, FAR_OVER)
    assert [MemoryAction.EVICT in {act for act, _ in turn} for turn in turns] == [False] * 5 + [True]


def test_a_little_over_is_let_be_while_the_neighbours_have_room() -> None:
    little = card(use(1, 10.5, HOG))
    assert MemoryAction.EVICT not in {
        act for turn in run(watch(EnforcementMode.EVICT), *[little] * 6) for act, _ in turn
    }


def test_a_little_over_is_too_much_when_the_neighbours_suffer() -> None:
    little = card(use(1, 10.5, HOG), other=28)
    assert (MemoryAction.EVICT, HOG) in run(watch(EnforcementMode.EVICT), *[little] * 3)[2]


def test_critical_memory_needs_no_samples_in_a_row() -> None:
    watched = watch(EnforcementMode.KILL, start_grace=1000)
    full = card(use(1, 11, HOG), use(2, 28.9, NEIGHBOUR))
    assert (MemoryAction.TERMINATE, NEIGHBOUR) in acts(watched.handle(sample(0, full)))


def test_a_pod_within_its_limit_is_not_touched_though_the_card_is_full() -> None:
    full = card(use(1, 10, HOG), use(2, 10, NEIGHBOUR), other=20)
    assert {act for turn in run(watch(EnforcementMode.KILL), *[full] * 5) for act, _ in turn} == {MemoryAction.NEAR}


def test_one_victim_at_a_time_the_one_farthest_over_its_own_limit() -> None:
    grants = (grant(HOG, 10), grant(NEIGHBOUR, 2))
    both = card(use(1, 15, HOG), use(2, 6, NEIGHBOUR))
    turns = run(watch(EnforcementMode.EVICT), *[both] * 16, grants=grants)
    assert [pod for turn in turns for act, pod in turn if act is MemoryAction.EVICT] == [NEIGHBOUR]


def test_after_an_action_the_card_has_a_pause() -> None:
    turns = run(watch(EnforcementMode.EVICT, cool_down=10), *[FAR_OVER] * 12)
    assert [number for number, turn in enumerate(turns) if (MemoryAction.EVICT, HOG) in turn] == [2, 7]


def test_a_process_that_ignores_sigterm_gets_sigkill() -> None:
    watched = watch(EnforcementMode.KILL, term_grace=10)
    turns = [[(each.action, each.process) for each in watched.handle(sample(2 * turn, FAR_OVER))] for turn in range(9)]
    told = [(number, *each) for number, turn in enumerate(turns) for each in turn if each[1] is not None]
    assert told == [(2, MemoryAction.TERMINATE, ProcessId(1, 1)), (7, MemoryAction.KILL, ProcessId(1, 1))]


def test_a_process_that_got_sigterm_is_finished_before_another_pod() -> None:
    watched = watch(EnforcementMode.KILL, term_grace=10, cool_down=0)
    worse = card(use(1, 15, HOG), use(2, 20, NEIGHBOUR))
    first = [watched.handle(sample(2 * turn, FAR_OVER)) for turn in range(3)][-1]
    assert (MemoryAction.TERMINATE, HOG) in acts(first)
    later = [each for turn in range(3, 9) for each in watched.handle(sample(2 * turn, worse)) if each.process]
    assert acts(tuple(later))[0] == (MemoryAction.KILL, HOG)


def test_a_pod_may_peak_when_it_starts() -> None:
    turns = run(watch(EnforcementMode.EVICT, start_grace=9), *[FAR_OVER] * 6)
    assert [number for number, turn in enumerate(turns) if (MemoryAction.EVICT, HOG) in turn] == [5]


@pytest.mark.parametrize(
    "spared",
    [
        grant(HOG, namespace="kube-system"),
        grant(HOG, namespace="infra"),
        grant(HOG, opted_out=True),
    ],
)
@pytest.mark.parametrize("mode", [EnforcementMode.EVICT, EnforcementMode.KILL])
def test_protected_pods_are_reported_and_not_touched(spared: MemoryGrant, mode: EnforcementMode) -> None:
    turns = run(watch(mode, protected=frozenset({"infra"})), *[FAR_OVER] * 5, grants=(spared,))
    told = [each for turn in turns for each in turn if each[1] == HOG]
    assert told == [(MemoryAction.NEAR, HOG), (MemoryAction.EXCEEDED, HOG)]


def test_a_pod_that_uses_its_card_before_kubelet_lists_it_is_no_stranger() -> None:
    early = card(use(1, 5, THIRD))
    watched = watch(EnforcementMode.KILL)
    turns = [watched.handle(sample(turn, early)) for turn in range(2)]
    turns += [watched.handle(sample(turn, early, grants=(grant(THIRD),))) for turn in range(2, 5)]
    assert turns == [()] * 5


def test_a_stranger_that_was_given_the_card_meanwhile_is_counted_anew() -> None:
    early = card(use(1, 5, THIRD))
    watched = watch(EnforcementMode.KILL)
    given = [GRANTS, GRANTS, (grant(THIRD),), GRANTS, GRANTS]
    assert [watched.handle(sample(turn, early, grants=each)) for turn, each in enumerate(given)] == [()] * 5


def test_a_pod_that_is_being_deleted_is_not_evicted_again_but_its_processes_end() -> None:
    leaving = (grant(HOG, leaving=True),)
    assert (MemoryAction.EVICT, HOG) not in run(watch(EnforcementMode.EVICT), *[FAR_OVER] * 3, grants=leaving)[2]
    assert (MemoryAction.TERMINATE, HOG) in run(watch(EnforcementMode.KILL), *[FAR_OVER] * 3, grants=leaving)[2]


@pytest.mark.parametrize(
    "nonsense",
    [
        msgspec.structs.replace(FAR_OVER, total=0),
        msgspec.structs.replace(FAR_OVER, used=41 * GIB),
        card(use(1, 41, HOG)),
        card(ProcessUse(process=ProcessId(1, 1), bytes=2**64 - 1, pod=HOG)),
        card(use(0, 15, HOG)),
        card(use(1, 30, HOG), use(2, 30, NEIGHBOUR), other=-25),
        card(ProcessUse(process=ProcessId(1, 1), bytes=-1, pod=HOG)),
    ],
)
def test_numbers_that_cannot_be_true_decide_nothing(nonsense: CardUse) -> None:
    assert not is_plausible(nonsense)
    assert run(watch(EnforcementMode.KILL), *[nonsense] * 5) == [[]] * 5


def test_counts_begin_anew_after_a_card_could_not_be_read() -> None:
    watched = watch(EnforcementMode.EVICT)
    for turn in range(2):
        watched.handle(sample(turn, FAR_OVER))
    watched.handle(sample(2))
    assert MemoryAction.EVICT not in {act for act, _ in acts(watched.handle(sample(3, FAR_OVER)))}


def test_an_exceeded_limit_is_reported_again_after_the_pod_was_within_it() -> None:
    within = card(use(1, 5, HOG))
    turns = run(watch(EnforcementMode.OBSERVE), *[FAR_OVER] * 3, within, *[FAR_OVER] * 3)
    assert turns[0] == turns[4] == [(MemoryAction.NEAR, HOG)]
    assert turns[2] == turns[6] == [(MemoryAction.EXCEEDED, HOG)]


PODS = st.sampled_from([HOG, NEIGHBOUR, THIRD, None])
USES = st.lists(st.builds(use, st.integers(1, 5), st.integers(0, 20), PODS), max_size=5)


@given(
    turns=st.lists(USES, max_size=20),
    mode=st.sampled_from(EnforcementMode),
    spared=st.sampled_from(["team", "kube-system"]),
    api=st.booleans(),
)
def test_any_samples_keep_the_rules(
    turns: list[list[ProcessUse]], mode: EnforcementMode, spared: str, api: bool
) -> None:
    watched = watch(mode)
    grants = (grant(HOG, namespace=spared), grant(NEIGHBOUR, 5))
    deeds = {MemoryAction.EVICT, MemoryAction.TERMINATE, MemoryAction.KILL}
    for now, uses in enumerate(turns):
        read = CardUse(
            device=GPU, total=40 * GIB, used=min(40 * GIB, sum(each.bytes for each in uses)), uses=tuple(uses)
        )
        done = [each for each in watched.handle(sample(now, read, grants=grants, api=api)) if each.action in deeds]
        assert len(done) <= 1
        for each in done:
            assert mode in {EnforcementMode.EVICT, EnforcementMode.KILL}
            assert each.used > each.limit
            assert each.pod != THIRD
            assert each.pod != HOG or spared == "team"
            assert each.action is not MemoryAction.EVICT or api
            if each.process is not None:
                assert any((one.process, one.pod) == (each.process, each.pod) for one in uses)


def test_recorded_samples_lead_to_the_same_decisions_again() -> None:
    policy, recorders = watch(EnforcementMode.KILL), Recorders(3)
    recorders.attach("memory", policy)
    decisions = [policy.handle(sample(2 * turn, FAR_OVER)) for turn in range(9)]
    assert any(decisions[3:])
    (record,) = read_records(b"\n".join(msgspec.json.encode(each) for each in recorders.records()))
    assert (record.skipped, len(record.decisions)) == (3, 6)
    assert not [*replay(record, DECIDERS["memory"])]
