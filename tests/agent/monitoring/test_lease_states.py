"""States of leases: each rule, its evidence, and the time that counts as wasted."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.agent.monitoring.lease_states import (
    BUSY,
    ENDED_LEASES,
    GRACE,
    MEMORY,
    WINDOW,
    JudgedLease,
    LeaseState,
    LeaseStates,
)
from tessera.agent.monitoring.sample import DeviceSample, GpuSample, Lease, NodeSample, ProcessUse
from tessera.api.names import PodUid
from tessera.nvml.interface import GpuInfo, GpuUuid
from tessera.nvml.measurements import Measurements, Quantity

GPU, POD = GpuUuid("GPU-1"), PodUid("uid-a")
GIB = 1 << 30
INFO = GpuInfo(
    uuid=GPU,
    index=0,
    minor=0,
    name="NVIDIA A100",
    memory_mib=40960,
    pci_bus_id="00000000:07:00.0",
    pci_device_id="0x20B010DE",
    compute_capability=(8, 0),
)
OWN = ProcessUse(None, 2 * GIB)
Look = tuple[float, float | None, tuple[ProcessUse, ...]]


def judge(
    looks: Iterable[Look], *, ratio: float = 1.0, share: float = 1.0, exchanged: bool = False
) -> list[JudgedLease]:
    """Plays (time, activity, processes) of a card that one container holds."""
    states = LeaseStates()
    lease = Lease(
        namespace="team", pod="a", uid=POD, container="main", device=GPU, kind="whole", ratio=ratio, exchanged=exchanged
    )
    found: list[JudgedLease] = []
    for taken, busy, processes in looks:
        values = {Quantity.MEMORY_USED: 2.0 * GIB}
        if busy is not None:
            values[Quantity.GPU_UTILIZATION] = busy
        card = DeviceSample(uuid=GPU, measured=Measurements(values), processes=processes, share=share)
        sample = NodeSample(taken=taken, gpus=(GpuSample(info=INFO, card=card),), leases=(lease,))
        found += states.handle(sample)
    return found


def every(seconds: float, until: float, busy: float | None, *processes: ProcessUse, begin: float = 0.0) -> list[Look]:
    return [(begin + seconds * n, busy, processes) for n in range(int((until - begin) / seconds) + 1)]


def test_a_card_without_any_process_is_never_used_after_a_grace() -> None:
    found = judge(every(60, 2 * GRACE, 0.0))
    assert [each.state for each in found[:10]] == [LeaseState.UNKNOWN] * 10
    assert found[-1].state is LeaseState.NEVER_USED
    assert "20 min" in found[-1].evidence
    assert found[-1].wasted == pytest.approx(2 * GRACE - GRACE + 60)


def test_a_slice_that_is_exchanged_says_why_nobody_uses_it() -> None:
    found = judge(every(60, 2 * GRACE, 0.0), exchanged=True)
    assert found[-1].evidence.endswith(
        "; its container has the slice that another pod lends it, and this one again after tessera resize --back"
    )


def test_a_lease_that_looks_unused_so_far_says_from_when_on_that_counts() -> None:
    for looks, evidence, counts_from in (
        (every(30, 40, None), "held for 30 s, no process yet", None),
        (every(30, 70, None), "held for 1 min, no process yet", GRACE),
        (every(30, 40, 0.0, OWN), "held for 30 s, at most 0.0% busy so far", None),
        (every(60, 480, 0.0, OWN), "held for 8 min, at most 0.0% busy so far", WINDOW),
        ([*every(60, 480, 0.0, OWN), (600, 0.0, ())], "no process for 2 min", WINDOW),
        (every(60, 480, None, OWN), "processes hold it, and its activity cannot be measured", None),
        (every(60, 480, 0.5, OWN), "up to 50% busy in the last 8 min", None),
        (every(60, GRACE, None), "no process in the 10 min since it is held", None),
    ):
        last = judge(looks)[-1]
        assert (last.evidence, last.counts_from) == (evidence, counts_from)


def test_evidence_has_full_minutes_as_the_time_held_has() -> None:
    found = judge(every(35, 2630, 0.0))
    assert found[-1].held == 2625
    assert "43 min" in found[-1].evidence


def test_one_busy_moment_in_the_window_makes_it_busy() -> None:
    looks = [*every(60, WINDOW, 0.0, OWN), (WINDOW + 60, 0.4, (OWN,)), *every(60, 2 * WINDOW, 0.0, OWN, begin=1920)]
    found = {each.held: each for each in judge(looks)}
    assert found[WINDOW + 60].state is LeaseState.BUSY
    assert "40%" in found[2 * WINDOW].evidence
    assert found[2 * WINDOW].state is LeaseState.BUSY


def test_processes_that_do_nothing_for_the_whole_window_are_resident() -> None:
    found = judge(every(60, WINDOW, BUSY / 2, OWN))
    assert found[-2].state is LeaseState.UNKNOWN
    assert found[-1].state is LeaseState.RESIDENT
    assert "2.0 GiB" in found[-1].evidence
    assert "0.5%" in found[-1].evidence


def test_a_card_whose_processes_ended_is_idle_after_the_window() -> None:
    looks = [(0.0, 0.9, (OWN,)), *every(60, WINDOW + 120, 0.0, begin=60)]
    found = judge(looks)
    assert found[1].state is LeaseState.BUSY
    assert found[-1].state is LeaseState.IDLE
    assert "32 min" in found[-1].evidence


def test_activity_that_cannot_be_measured_is_unknown_however_long() -> None:
    found = judge(every(60, 3 * WINDOW, None, OWN))
    assert {each.state for each in found} == {LeaseState.UNKNOWN}
    assert found[-1].wasted == 0


def test_processes_that_no_pod_provably_has_decide_nothing() -> None:
    stranger = ProcessUse(None, GIB, 0.5)
    found = judge(every(60, 3 * WINDOW, 0.5, stranger), ratio=0.25)
    assert {each.state for each in found} == {LeaseState.UNKNOWN}


def test_a_share_is_judged_by_the_pods_own_processes() -> None:
    own, other = ProcessUse(POD, GIB, 0.0), ProcessUse(PodUid("uid-b"), GIB, 0.9)
    found = judge(every(60, 2 * WINDOW, 0.9, own, other), ratio=0.25)
    assert found[-1].state is LeaseState.RESIDENT
    busy = judge(every(60, WINDOW, 0.9, ProcessUse(POD, GIB, 0.2), other), ratio=0.25)
    assert busy[-1].state is LeaseState.BUSY


def test_waste_counts_by_the_part_of_the_card() -> None:
    whole, part = judge(every(60, 2 * GRACE, 0.0)), judge(every(60, 2 * GRACE, 0.0), ratio=0.5, share=0.5)
    assert part[-1].wasted == pytest.approx(whole[-1].wasted / 4)


@given(
    st.lists(
        st.tuples(st.floats(1, 600), st.one_of(st.none(), st.floats(0, 1)), st.sampled_from([(), (OWN,), (OWN, OWN)])),
        min_size=1,
        max_size=80,
    )
)
def test_waste_never_falls_and_never_exceeds_the_time_held(
    steps: list[tuple[float, float | None, tuple[ProcessUse, ...]]],
) -> None:
    now, looks = 0.0, []
    for passed, busy, processes in steps:
        now += passed
        looks.append((now, busy, processes))
    found = judge(looks)
    wasted = [each.wasted for each in found]
    assert wasted == sorted(wasted)
    assert all(each.wasted <= each.held for each in found)
    for (_, busy, _), each in zip(looks, found, strict=True):
        if busy is not None and busy >= BUSY and each.state is not LeaseState.BUSY:
            assert each.state in {LeaseState.NEVER_USED, LeaseState.IDLE, LeaseState.UNKNOWN}


def holding(taken: float, *pods: str, busy: float = 0.9) -> NodeSample:
    """A sample of one card, with a quarter of it for each of these pods."""
    leases = tuple(
        Lease(namespace="team", pod=pod, uid=PodUid(pod), container="main", device=GPU, kind="mps", ratio=0.25)
        for pod in pods
    )
    processes = tuple(ProcessUse(PodUid(pod), GIB, busy) for pod in pods)
    card = DeviceSample(uuid=GPU, measured=Measurements({}), processes=processes)
    return NodeSample(taken=taken, gpus=(GpuSample(info=INFO, card=card),), leases=leases)


def test_a_lease_that_ended_is_remembered_with_its_counts_to_the_end() -> None:
    states = LeaseStates()
    for sample in (holding(0), holding(10, "a", "b"), holding(30, "a", "b"), holding(40, "b")):
        states.handle(sample)
    (past,) = states.ended
    assert (past.last.lease.pod, past.gpu, past.share, past.ended) == ("a", GPU, 0.25, 40)
    assert (past.last.held, past.last.active, past.last.wasted) == (30, 7.5, 0)
    assert states.complete_from == 0


def test_a_lease_that_ended_is_forgotten_after_a_quarter_of_an_hour_and_the_list_says_since_when_it_is_complete() -> (
    None
):
    states = LeaseStates()
    for sample in (holding(0, "a"), holding(10, "b"), holding(20), holding(10 + MEMORY), holding(11 + MEMORY)):
        states.handle(sample)
    assert [each.last.lease.pod for each in states.ended] == ["b"]
    assert states.complete_from == 10


def test_of_very_many_leases_that_ended_the_last_are_remembered() -> None:
    states = LeaseStates()
    states.handle(holding(0, *(f"p{n:04}" for n in range(ENDED_LEASES + 2))))
    states.handle(holding(10))
    assert len(states.ended) == ENDED_LEASES
    assert states.complete_from == 10


def test_the_active_and_the_wasted_time_of_a_lease_sum_to_at_most_the_time_held() -> None:
    found = judge([*every(60, WINDOW, 0.5, OWN), *every(60, 3 * WINDOW, 0.0, begin=WINDOW + 60)])
    assert found[-1].state is LeaseState.IDLE
    assert found[-1].active > 0
    assert found[-1].wasted > 0
    assert all(each.active + each.wasted <= each.held for each in found)
