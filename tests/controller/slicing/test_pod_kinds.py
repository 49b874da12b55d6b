"""Of waiting pods that planning cannot tell apart, a freed slot asks the first ones; the others share their refusal."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.searching import examples
from tests.support.slicer_cluster import SlicerCluster

from tessera.controller.slicing.batch_placement import Unplaced
from tessera.controller.slicing.lasting_refusals import kind_of
from tessera.reasons.reason import Full, NoNode


def full_cluster(pods: int, cpu: int = 1000) -> SlicerCluster:
    """A full card, and pods that wait for it."""
    cluster = SlicerCluster()
    cluster.node("n1")
    cluster.pod("old", "7g.40gb")
    cluster.settle()
    for number in range(pods):
        cluster.pod(f"p{number:03}", "3g.20gb", created=f"{number:03}", amounts={"cpu": cpu, "pods": 1})
    cluster.settle()
    return cluster


def test_the_work_of_a_freed_slot_does_not_grow_with_the_pods_of_a_kind() -> None:
    work = []
    for count in (20, 200):
        cluster = full_cluster(count)
        before = cluster.slicer.steps
        cluster.remove(cluster.pods["uid-old"])
        cluster.settle()
        assert [uid for uid in cluster.pods if cluster.slicer.state.allocations.of(uid)] == ["uid-p000", "uid-p001"]
        work.append(cluster.slicer.steps - before)
    assert work[0] == work[1]


def test_pods_that_are_not_asked_share_the_new_reason() -> None:
    cluster = full_cluster(20)
    cluster.remove(cluster.pods["uid-old"])
    cluster.settle()
    reasons = {cluster.slicer.state.waiting[uid].reason for uid in cluster.slicer.state.waiting}
    assert len(cluster.slicer.state.waiting) == 18
    (reason,) = reasons
    assert isinstance(reason, Full)
    assert {one.pod for one in reason.frees} <= {"default/p000", "default/p001"}


def test_pods_that_are_not_asked_are_told_when_their_reason_is_of_another_class() -> None:
    cluster = full_cluster(6, cpu=40_000)
    cluster.told.clear()
    cluster.remove(cluster.pods["uid-old"])
    cluster.settle()
    told = [each.name for each in cluster.told if each.reason == "SliceWaiting"]
    assert sorted(told) == [f"p{number:03}" for number in range(1, 6)]
    assert {type(one.reason) for one in cluster.slicer.state.waiting.values()} == {NoNode}


def test_pods_that_differ_for_planning_are_of_different_kinds() -> None:
    cluster = full_cluster(0)
    pod = cluster.pod("one", "1g.5gb")
    state = cluster.slicer.state
    like = [cluster.pod("two", "1g.5gb", created="9"), cluster.pod("three", "1g.5gb", labels=(("app", "x"),))]
    assert {kind_of(state, each) for each in like} == {kind_of(state, pod)}
    other = [
        cluster.pod("four", "2g.10gb"),
        cluster.pod("five", "1g.5gb", priority=1),
        cluster.pod("six", "1g.5gb", amounts={"cpu": 1, "pods": 1}),
        cluster.pod("seven", "1g.5gb", namespace="team"),
    ]
    assert len({kind_of(state, each) for each in (pod, *other)}) == 5
    alone = [
        cluster.pod("eight", "1g.5gb", deadline=60.0),
        cluster.pod("nine", "1g.5gb", ports=frozenset({("TCP", "", 80)})),
        cluster.pod("ten", "1g.5gb", claims=("default/data",)),
    ]
    assert {kind_of(state, each) for each in alone} == {None}


_PODS = st.tuples(
    st.sampled_from(["1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb"]), st.sampled_from([0, 1]), st.sampled_from([1, 40_000])
)


@settings(max_examples=examples(60), deadline=None)
@given(
    steps=st.lists(st.one_of(st.lists(_PODS, min_size=1, max_size=6), st.integers(0, 40)), min_size=2, max_size=14),
    reserves=st.booleans(),
)
def test_no_pod_waits_that_has_room(steps: list[list[tuple[str, int, int]] | int], *, reserves: bool) -> None:
    cluster = SlicerCluster(0.0 if reserves else None)
    cluster.pass_time(0)
    for name in ("n1", "n2"):
        cluster.node(name)
    number = 0
    for step in steps:
        if isinstance(step, int):
            held = [pod for uid, pod in cluster.pods.items() if cluster.slicer.state.allocations.of(uid)]
            if held:
                cluster.remove(held[step % len(held)])
        else:
            for profile, priority, cpu in step:
                number += 1
                amounts = {"cpu": cpu, "pods": 1}
                cluster.pod(f"p{number:03}", profile, priority=priority, amounts=amounts, created=f"{number:03}")
        cluster.settle()
        state = cluster.slicer.state
        for uid in state.waiting:
            (found,) = cluster.slicer.planner.plan_alone([cluster.pods[uid]])
            assert isinstance(found, Unplaced)
