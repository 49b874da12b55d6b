"""Each waiting pod's position, reason and expected start, from the controller's own state."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.forecast_cluster import BEGIN, ForecastCluster

from tessera.api.names import GATE, NodeName, PodUid
from tessera.api.pod_annotations import Gang
from tessera.clock import rfc3339
from tessera.controller.objects.pod_constraints import NodeConstraints
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.events import InstasliceDeleted, NodeDeleted, StorageListed
from tessera.forecast.past_times import WAIT_SAMPLES

WHOLE, HALF = "7g.40gb", "3g.20gb"


@pytest.fixture
def cluster() -> ForecastCluster:
    found = ForecastCluster()
    found.node("n1")
    return found


def _waits(cluster: ForecastCluster, name: str, *profiles: str, **facts: Any) -> PodInfo:
    cluster.now += 1
    return cluster.submit(name, *profiles, **facts)


def test_a_pod_starts_when_the_deadline_of_the_one_in_its_way_is_over(cluster: ForecastCluster) -> None:
    cluster.submit("holder", WHOLE, deadline=600)
    row = cluster.row(_waits(cluster, "next", WHOLE))
    assert (row.start.basis, row.start.p50, row.start.p90) == ("deadline", BEGIN + 610, BEGIN + 610)
    assert (row.position, row.of, row.reason) == (1, 1, "full")
    assert [(each.pod, each.node, each.profile) for each in row.blockers] == [("default/holder", "n1", WHOLE)]


def test_a_pod_that_is_deleted_ends_with_its_grace_period(cluster: ForecastCluster) -> None:
    holder = cluster.submit("holder", WHOLE)
    waits = _waits(cluster, "next", WHOLE)
    cluster.row(waits)
    gone_by = cluster.now + 3_600
    cluster.put(replace(cluster.pods[holder.uid], node=NodeName("n1"), terminating=True, gone_by=gone_by))
    assert cluster.row(waits).start.p50 == gone_by


@pytest.mark.parametrize(
    ("of_pod", "of_job", "starts", "basis"),
    [
        (None, 600, 610, "deadline"),
        (300, 600, 310, "deadline"),
        (900, 600, 610, "deadline"),
        (None, None, None, "unknown"),
    ],
)
def test_the_earlier_deadline_counts_of_a_pod_and_its_job(
    cluster: ForecastCluster, of_pod: int | None, of_job: int | None, starts: int | None, basis: str
) -> None:
    cluster.submit("holder", WHOLE, deadline=of_pod)
    jobs = cluster.forecaster.jobs
    (job,) = jobs.due(cluster.forecaster.tracker.started_of_jobs())
    jobs.put(job, None if of_job is None else BEGIN + of_job)
    assert list(jobs.due(cluster.forecaster.tracker.started_of_jobs())) == []
    row = cluster.row(_waits(cluster, "next", WHOLE))
    assert (row.start.basis, row.start.p50) == (basis, None if starts is None else BEGIN + starts)


def test_a_pod_starts_when_those_like_the_one_in_its_way_have_ended(cluster: ForecastCluster) -> None:
    cluster.live(*[300.0] * 20)
    began = cluster.now
    cluster.submit("holder", WHOLE)
    row = cluster.row(_waits(cluster, "next", WHOLE))
    assert row.start.basis == "history"
    assert row.start.p50 == pytest.approx(began + 300, abs=5)


@pytest.mark.parametrize("owner", ["DaemonSet", "Node"])
def test_ends_of_others_say_nothing_of_a_pod_that_lasts_as_long_as_its_node(
    cluster: ForecastCluster, owner: str
) -> None:
    cluster.live(*[300.0] * 20)
    cluster.live(*[300.0] * 20, owner=owner)
    holder = cluster.submit("holder", WHOLE, owner=owner)
    waits = _waits(cluster, "next", WHOLE)
    row = cluster.row(waits)
    assert (row.start.basis, row.start.p50) == ("unknown", None)
    gone_by = cluster.now + 30
    cluster.put(replace(cluster.pods[holder.uid], node=NodeName("n1"), terminating=True, gone_by=gone_by))
    assert cluster.row(waits).start.p50 == gone_by


def test_a_static_pod_that_ends_by_itself_ends_as_such_pods_did(cluster: ForecastCluster) -> None:
    cluster.live(*[300.0] * 20, owner="Node")
    began = cluster.now
    cluster.submit("holder", WHOLE, owner="Node", deadline=86_400)
    row = cluster.row(_waits(cluster, "next", WHOLE))
    assert row.start.basis == "history"
    assert row.start.p50 == pytest.approx(began + 300, abs=5)


def _jam(cluster: ForecastCluster, pods: int, *, deadline: int | None = None) -> PodInfo:
    """Lets pods come at once and run one after the other, 300 s each; one more waits behind the last of them."""
    cluster.live(*[300.0] * 20)
    waiting = [_waits(cluster, f"j{number}", WHOLE, deadline=deadline) for number in range(pods)]
    last = _waits(cluster, "last", WHOLE, deadline=deadline)
    cluster.forecast()
    for pod in waiting[:-1]:
        cluster.now += 300
        cluster.end(pod)
    return last


def test_waits_of_such_pods_are_a_part_of_the_forecast_once_enough_waited_longer(cluster: ForecastCluster) -> None:
    _jam(cluster, 12)
    start = cluster.row(_waits(cluster, "new", WHOLE)).start
    assert (start.basis, start.waits) == ("history", True)
    assert start.p50 is not None
    assert start.p50 - cluster.now > 610  # the simulation knows two pods of 300 s before it; waits were up to 3,300 s


def _start_of_new(cluster: ForecastCluster, others: int, **facts: Any) -> float:
    """Seconds until the late end of a new pod's range, after a jam and with others that have waited for 12 days."""
    _jam(cluster, 12)
    for number in range(others):
        cluster.submit(f"other{number}", WHOLE, created=rfc3339(cluster.now - 12 * 86400), **facts)
    cluster.forecast()
    start = cluster.row(_waits(cluster, "new", WHOLE)).start
    assert start.waits
    assert start.p90 is not None
    return start.p90 - cluster.now


def test_pods_that_no_node_admits_change_nobody_elses_expected_start(cluster: ForecastCluster) -> None:
    other = ForecastCluster()
    other.node("n1")
    found = _start_of_new(other, 100, constraints=NodeConstraints((("zone", "nowhere"),)))
    assert found == pytest.approx(_start_of_new(cluster, 0))


def test_one_namespace_cannot_make_the_expected_starts_of_others_late(cluster: ForecastCluster) -> None:
    """Another namespace's pods, behind all others, have waited for room for 12 days: few of them count."""
    for number in range(WAIT_SAMPLES):
        cluster.history.waits.add(WHOLE, 20_000 + number, "team")
    assert _start_of_new(cluster, 50, namespace="b", priority=-1) < 86400


def test_past_waits_say_nothing_of_a_pod_that_has_waited_longer(cluster: ForecastCluster) -> None:
    start = cluster.row(_jam(cluster, 12)).start
    assert (start.basis, start.waits) == ("history", False)


def test_pods_that_found_room_at_once_have_no_wait(cluster: ForecastCluster) -> None:
    cluster.live(*[300.0] * 20)
    assert not cluster.history.waits.times


def test_a_start_by_deadlines_is_not_blended(cluster: ForecastCluster) -> None:
    _jam(cluster, 12, deadline=200)
    start = cluster.row(_waits(cluster, "new", WHOLE)).start
    assert (start.basis, start.waits) == ("deadline", False)


def test_the_blend_learns_from_each_start_of_a_blended_forecast(cluster: ForecastCluster) -> None:
    last = _jam(cluster, 12)
    pod = _waits(cluster, "new", WHOLE)
    assert cluster.row(pod).start.waits
    assert cluster.history.blend.late == 0.5
    for each in ("j11", last.name):
        cluster.now += 300
        cluster.end(next(one for one in cluster.pods.values() if one.name == each))
    assert cluster.history.blend.late != 0.5


def test_nothing_is_known_while_too_few_have_ended(cluster: ForecastCluster) -> None:
    cluster.submit("holder", WHOLE)
    row = cluster.row(_waits(cluster, "next", WHOLE))
    assert (row.start.basis, row.start.p50, row.start.p90, row.start.starts) == ("unknown", None, None, 1)


def test_the_rate_of_the_last_hour_serves_where_no_history_does(cluster: ForecastCluster) -> None:
    cluster.forecast()  # counting begins
    first = cluster.submit("first", WHOLE)
    waiting = [_waits(cluster, f"p{number}", WHOLE) for number in range(7)]
    cluster.forecast()
    for pod in [first, *waiting[:4]]:
        cluster.now += 600
        cluster.end(pod)
    row = cluster.row(waiting[-1])
    assert (row.start.basis, row.start.starts) == ("rate", 6)
    assert row.start.p50 is not None
    assert row.start.p90 is not None
    assert 600 < row.start.p50 - cluster.now < row.start.p90 - cluster.now < 6 * 3600


def test_starts_on_empty_cards_promise_nothing_to_those_who_wait(cluster: ForecastCluster) -> None:
    """Five services start on five cards and never end: the sixth must not read that it starts like they did."""
    for number in range(2, 6):
        cluster.node(f"n{number}")
    cluster.forecast()
    for number in range(5):
        cluster.now += 10
        cluster.submit(f"service-{number}", WHOLE)
    row = cluster.row(_waits(cluster, "next", WHOLE))
    assert (row.start.basis, row.start.p50, row.start.starts) == ("unknown", None, 5)


def test_positions_count_those_that_compete_for_the_same_room(cluster: ForecastCluster) -> None:
    cluster.node("n2", labels={"nvidia.com/mig.config": "dynamic", "kubernetes.io/hostname": "n2", "zone": "b"})
    cluster.submit("a", WHOLE)
    cluster.submit("b", WHOLE)
    first = _waits(cluster, "first", HALF)
    urgent = _waits(cluster, "urgent", WHOLE, priority=10)
    last = _waits(cluster, "last", WHOLE)
    rows = {each.name: each for each in cluster.forecast().pods}
    assert [each.name for each in cluster.forecaster.page.pods] == ["urgent", "first", "last"]
    assert [(rows[each.name].position, rows[each.name].of) for each in (urgent, first, last)] == [
        (1, 3),
        (2, 3),
        (3, 3),
    ]


@pytest.mark.parametrize(
    ("profiles", "expected"),
    [
        (("3g.20gb", "1g.10gb", "3g.40gb", "3g.20gb"), [(1, 4, 0), (2, 4, 1), (3, 4, 1), (4, 4, 2)]),
        (("3g.20gb", "3g.40gb", "3g.20gb"), [(1, 2, 0), (1, 1, 0), (2, 2, 1)]),
    ],
    ids=["1g.10gb joins the two orders", "two orders"],
)
def test_the_positions_of_one_order_can_be_compared(
    profiles: tuple[str, ...], expected: list[tuple[int, int, int]]
) -> None:
    """They said 1 of 3, 2 of 4 and 2 of 2 of the same pods: each by the nodes of its own."""
    cluster = ForecastCluster()
    for name, card, whole in (("n1", "A100-40GB", "7g.40gb"), ("n2", "H100-80GB", "7g.80gb")):
        cluster.node(name, card)
        cluster.submit(f"holder-{name}", whole)
    for number, profile in enumerate(profiles):
        _waits(cluster, f"p{number}", profile)
    rows = cluster.forecast().pods
    assert [(row.position, row.of, row.ahead) for row in rows] == expected


def _unplaceable(cluster: ForecastCluster) -> list[PodInfo]:
    """Pods that go first, of which none takes room that becomes free."""
    cluster.slicer.handle(StorageListed())
    return [
        _waits(cluster, "never", WHOLE, WHOLE),
        _waits(cluster, "unknown", "3g.71gb"),
        _waits(cluster, "gang", WHOLE, gang=Gang("default/four", "four", 4)),
        _waits(cluster, "claim", WHOLE, claims=("default/none",)),
        _waits(cluster, "nowhere", WHOLE, constraints=NodeConstraints(selector=(("zone", "b"),))),
    ]


def test_pods_that_take_no_room_that_becomes_free_stand_before_nobody(cluster: ForecastCluster) -> None:
    """They had the first positions, and the others were forecast to start after them."""
    cluster.live(*[300.0] * 20)
    cluster.submit("holder", WHOLE)
    alone = cluster.row(_waits(cluster, "next", WHOLE))
    assert alone.start.p50 is not None
    other = ForecastCluster()
    other.node("n1")
    other.live(*[300.0] * 20)
    other.submit("holder", WHOLE)
    stuck = _unplaceable(other)
    pod = _waits(other, "next", WHOLE)
    rows = {each.name: each for each in other.forecast().pods}
    assert [rows[each.name].reason for each in stuck] == [
        "never-fits",
        "no-such-profile",
        "gang-incomplete",
        "volume",
        "no-node",
    ]
    assert [(rows[each.name].position, rows[each.name].of) for each in stuck] == [(0, 0)] * len(stuck)
    found = rows[pod.name]
    assert (found.position, found.of) == (1, 1)
    assert found.start.p50 == pytest.approx(alone.start.p50 + len(stuck), abs=30)


def test_a_pod_of_another_operator_has_no_position(cluster: ForecastCluster) -> None:
    pod = cluster.pod("queued", HALF, gates=("kueue.x-k8s.io/admission", GATE))
    cluster.settle()
    row = cluster.row(pod)
    assert (row.position, row.reason, row.start.basis) == (0, "other-gate", "unknown")
    assert "Kueue holds it by the gate kueue.x-k8s.io/admission" in row.detail


def test_a_pod_that_follows_another_starts_with_it_and_leaves_the_page_with_its_node(cluster: ForecastCluster) -> None:
    cluster.submit("holder", WHOLE, deadline=600)
    first = _waits(cluster, "first", WHOLE)
    second = cluster.pod("second")
    cluster.settle()
    begun = cluster.expect_ends()
    for _ in cluster.forecaster.forecast(begun, {}, [(replace(second, profiles=(WHOLE,)), first)]):
        pass
    ahead, row = cluster.forecaster.page.pods
    assert (row.name, row.position, row.reason, row.start) == ("second", 0, "shared-claim", ahead.start)
    assert [each.pod for each in row.blockers] == [first.key]
    cluster.put(replace(second, node=NodeName("n1")))
    cluster.settle()
    assert [each.name for each in cluster.forecaster.current.read(cluster.slicer.state).pods] == ["first"]


def test_scattered_free_slots_are_told_from_a_full_card(cluster: ForecastCluster) -> None:
    pods = [cluster.submit(f"s{number}", "1g.5gb") for number in range(7)]
    for pod in pods:
        if cluster.where(pod)[0][2] % 2 == 0:
            cluster.end(pod)
    row = cluster.row(_waits(cluster, "half", HALF))
    free = "5 memory slots free, at most 5 on one card"
    assert (row.reason, row.detail) == ("fragmented", f"{free}, but not at a start that NVIDIA allows for {HALF}")


def test_too_few_free_slots_are_told_with_their_number(cluster: ForecastCluster) -> None:
    """It said "at no start that is legal" of cards whose free slots are too few for any start."""
    cluster.submit("half", "4g.20gb")
    row = cluster.row(_waits(cluster, "whole", WHOLE))
    assert (row.reason, row.detail) == ("full", f"not enough free memory slots for {WHOLE}: 4 free, 8 needed")
    cluster.node("n2")
    cluster.submit("other", "4g.20gb")
    row = cluster.row(_waits(cluster, "large", WHOLE))
    assert (row.reason, row.detail) == (
        "fragmented",
        f"8 memory slots free, at most 4 on one card, and {WHOLE} needs 8",
    )


def test_a_node_that_is_not_ready_is_the_reason() -> None:
    cluster = ForecastCluster()
    cluster.node("n1", ready=False)
    row = cluster.row(_waits(cluster, "p", HALF))
    assert (row.reason, row.start.basis) == ("node-not-ready", "unknown")


def test_a_node_that_is_gone_is_not_told_to_be_full(cluster: ForecastCluster) -> None:
    cluster.submit("holder", WHOLE)
    pod = _waits(cluster, "p", WHOLE)
    assert cluster.row(pod).reason == "full"
    cluster.slicer.handle(NodeDeleted(NodeName("n1")))
    cluster.slicer.handle(InstasliceDeleted(NodeName("n1")))
    cluster.slicer.decide()
    row = cluster.row(pod)
    assert (row.reason, row.start.p50) == ("no-card-reported", None)
    assert "no node has reported a card that is cut on demand" in row.detail


def test_cpu_that_others_hold_is_the_reason() -> None:
    cluster = ForecastCluster()
    cluster.node("n1")
    _waits(cluster, "other", HALF, amounts={"cpu": 60_000, "pods": 1})
    row = cluster.row(_waits(cluster, "p", HALF, amounts={"cpu": 10_000, "pods": 1}))
    assert (row.reason, row.position) == ("node-full", 1)


def test_a_pod_larger_than_every_node_never_starts_and_has_no_position(cluster: ForecastCluster) -> None:
    """It had a position, since CPU that pods hold is refused in the same words."""
    cluster.node("n2", allocatable={"cpu": 96_000, "memory": 2**36, "pods": 110})
    row = cluster.row(_waits(cluster, "cpu", HALF, amounts={"cpu": 400_000, "memory": 2**34, "pods": 1}))
    assert (row.reason, row.position, row.of) == ("never-fits", 0, 0)
    assert row.detail == "no node could ever take it: it requests 400 CPUs, and the largest node has 96 CPUs"
    both = cluster.row(_waits(cluster, "both", HALF, amounts={"cpu": 96_000, "memory": 2**40, "pods": 1}))
    assert both.detail == ("no node could ever take it: it requests 96 CPUs and 1024Gi of memory, and no node has both")
    cluster.node("n3", allocatable={"cpu": 400_000, "memory": 2**40, "pods": 110})
    cluster.settle()
    assert [node for node, _, _ in cluster.where(cluster.pods[PodUid("uid-cpu")])] == ["n3"]


def test_slices_that_no_node_could_hold_never_start(cluster: ForecastCluster) -> None:
    row = cluster.row(_waits(cluster, "p", WHOLE, WHOLE))
    assert (row.reason, row.start.basis) == ("never-fits", "unknown")


def test_details_name_no_other_pod_and_no_node(cluster: ForecastCluster) -> None:
    cluster.submit("secret-holder", WHOLE)
    for profiles in ([WHOLE], [HALF], [WHOLE, WHOLE]):
        _waits(cluster, f"p-{len(cluster.pods)}", *profiles)
    for row in cluster.forecast().pods:
        assert "secret" not in row.detail
        assert "n1" not in row.detail


def test_pods_that_start_late_make_later_forecasts_later(cluster: ForecastCluster) -> None:
    cluster.live(*[300.0] * 30)
    holder = cluster.submit("holder", WHOLE)
    pod = _waits(cluster, "next", WHOLE)
    cluster.forecast()
    cluster.now += 3000
    cluster.forecast()
    assert cluster.forecaster.calibration.by_size[WHOLE].late > 0
    assert cluster.forecaster.outcomes.late == 1
    cluster.end(holder)
    cluster.forecast()
    assert cluster.forecaster.outcomes.counted == 1
    assert not any(each.uid == pod.uid for each in cluster.forecaster.page.pods)


def test_a_pod_that_started_and_ended_between_two_forecasts_counts(cluster: ForecastCluster) -> None:
    cluster.live(*[300.0] * 30)
    holder = cluster.submit("holder", WHOLE)
    pod = _waits(cluster, "next", WHOLE)
    cluster.forecast()
    cluster.now += 10
    cluster.end(holder)
    cluster.now += 10
    cluster.end(pod)
    cluster.forecast()
    assert (cluster.forecaster.outcomes.counted, cluster.forecaster.outcomes.late) == (1, 0)


def test_a_deleted_pod_says_nothing_of_forecasts(cluster: ForecastCluster) -> None:
    cluster.live(*[300.0] * 30)
    cluster.submit("holder", WHOLE)
    pod = _waits(cluster, "next", WHOLE)
    cluster.forecast()
    cluster.end(pod)
    cluster.now += 10_000
    cluster.forecast()
    assert cluster.forecaster.outcomes.counted == 0


def test_an_ended_pod_counts_once_and_a_pod_seen_finished_counts_nothing(cluster: ForecastCluster) -> None:
    cluster.live(300.0)
    changes = cluster.history.lives.changes
    assert changes == 1
    cluster.forecaster.tracker.drop(PodUid("uid-unknown"), cluster.now)
    assert cluster.history.lives.changes == changes


def test_a_gang_is_named_with_its_numbers_and_no_start_is_promised(cluster: ForecastCluster) -> None:
    cluster.submit("holder", HALF)
    pair, four = (Gang(f"default/g={name}", name, size) for name, size in (("pair", 2), ("four", 4)))
    alone = _waits(cluster, "alone", "1g.5gb", gang=four)
    first = _waits(cluster, "first", HALF, gang=pair)
    _waits(cluster, "second", HALF, gang=pair)
    row = cluster.row(alone)
    assert (row.reason, row.start.p50) == ("gang-incomplete", None)
    assert "gang four: 1 of 4 pods exist" in row.detail
    row = cluster.row(first)
    assert (row.reason, row.start.p50) == ("gang-no-room", None)
    assert row.detail.startswith("gang pair starts as a whole, and 1 of its 2 pods have a place now: ")
    assert [each.pod for each in row.blockers] == []


def test_pods_in_the_way_of_many_cards_are_named_once_each() -> None:
    cluster = ForecastCluster()
    cluster.node("n1", count=8)
    for number in range(4):
        cluster.submit(f"holder-{number}", WHOLE, WHOLE)
    row = cluster.row(_waits(cluster, "p", *[WHOLE] * 8))
    assert row.reason == "full"
    assert {(each.pod, each.profile) for each in row.blockers} == {
        (f"default/holder-{number}", WHOLE) for number in range(4)
    }
