"""Gangs: all pods of one get their slices in one decision, or none does."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.searching import examples
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import GATE, NodeName
from tessera.api.pod_annotations import Gang
from tessera.controller.objects.pod_constraints import ANYWHERE
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.instructions import PatchRequests, Ungate
from tessera.limits import GANG_SIZE
from tessera.placement.cards import FleetCard
from tessera.placement.fleet import Fleet
from tessera.reasons.reason import Full, GangIncomplete, GangNoRoom, GangTooLarge, QueueFull
from tessera.reasons.words import sentence


def gang(size: int, name: str = "train") -> Gang:
    return Gang(f"default/tessera.dev/gang={name}", name, size)


def members(cluster: SlicerCluster, count: int, of: Gang, *profiles: str, **facts: Any) -> list[PodInfo]:
    """Creates so many pods of a gang."""
    return [cluster.pod(f"{of.name}-{index}", *profiles, gang=of, **facts) for index in range(count)]


def reason(cluster: SlicerCluster, pod: PodInfo) -> Any:
    return cluster.slicer.state.waiting[pod.uid].reason


def placed(cluster: SlicerCluster, pods: list[PodInfo]) -> list[bool]:
    return [bool(cluster.where(pod)) for pod in pods]


def test_the_pods_of_a_gang_wait_until_all_exist_and_then_start_together(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pods = members(cluster, 3, gang(4), "1g.5gb")
    cluster.settle()
    assert cluster.empty()
    assert reason(cluster, pods[0]) == GangIncomplete("train", 4, 3)
    assert "gang train: 3 of 4 pods exist" in cluster.told[-1].message
    pods.append(cluster.pod("train-3", "1g.5gb", gang=gang(4)))
    cluster.settle()
    assert all(placed(cluster, pods))
    assert not any(cluster.pods[pod.uid].gated for pod in pods)


def test_a_gang_without_room_for_all_holds_nothing_and_others_run(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    held = cluster.pod("held", "4g.20gb")
    cluster.settle()
    pods = members(cluster, 2, gang(2), "3g.20gb")
    cluster.settle()
    found = reason(cluster, pods[1])
    assert isinstance(found, GangNoRoom)
    assert (found.fit, found.size, found.member, type(found.reason)) == (1, 2, "default/train-1", Full)
    other = cluster.pod("other", "2g.10gb")
    cluster.settle()
    assert cluster.where(other)
    assert not any(placed(cluster, pods))
    cluster.remove(held)
    cluster.settle()
    assert not any(placed(cluster, pods))
    cluster.remove(other)
    cluster.settle()
    assert all(placed(cluster, pods))


def test_no_pod_leaves_the_gate_before_the_last_of_its_gang_has_its_slices_on_record(cluster: SlicerCluster) -> None:
    for name in ("n1", "n2"):
        cluster.node(name)
    pods = members(cluster, 2, gang(2), "7g.40gb")
    cluster.slicer.decide()
    first, second = [each for each in cluster.slicer.pop_writes() if isinstance(each, PatchRequests)]
    cluster.answer(first)
    cluster.slicer.decide()
    assert not [each for each in cluster.slicer.pop_writes() if isinstance(each, Ungate)]
    cluster.answer(second)
    cluster.slicer.decide()
    assert {each.uid for each in cluster.slicer.pop_writes() if isinstance(each, Ungate)} == {pod.uid for pod in pods}


@pytest.mark.parametrize("room", [True, False])
def test_a_controller_that_died_between_two_records_starts_all_or_none(cluster: SlicerCluster, *, room: bool) -> None:
    for name in ("n1", "n2"):
        cluster.node(name)
    pods = members(cluster, 2, gang(2), "7g.40gb")
    cluster.slicer.decide()
    first = next(each for each in cluster.slicer.pop_writes() if isinstance(each, PatchRequests))
    cluster.apply(first)
    if not room:
        cluster.pod("older", "1g.5gb", created="", priority=1)
        cluster.pod("oldest", "7g.40gb", created="", priority=2)
    cluster.resume()
    assert placed(cluster, pods) == [room, room]
    assert [cluster.pods[pod.uid].gated for pod in pods] == [not room, not room]
    assert not cluster.overlaps()


def test_pods_that_have_started_count_after_a_restart(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pods = members(cluster, 3, gang(3), "1g.5gb")
    cluster.settle()
    cluster.remove(cluster.pods[pods[0].uid])
    cluster.restart()
    again = cluster.pod("train-0-again", "1g.5gb", gang=gang(3))
    cluster.settle()
    assert all(placed(cluster, [*pods[1:], again]))


def test_a_pod_that_succeeded_counts_and_one_that_failed_does_not(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    done = members(cluster, 2, gang(3), "1g.5gb", gates=(), finished=True, succeeded=True)
    last = cluster.pod("last", "1g.5gb", gang=gang(3))
    cluster.settle()
    assert cluster.where(last)
    failed = cluster.pod("failed", "1g.5gb", gang=gang(2, "b"), gates=(), finished=True)
    alone = cluster.pod("alone", "1g.5gb", gang=gang(2, "b"))
    cluster.settle()
    assert not cluster.where(alone)
    assert reason(cluster, alone).exist == 1
    assert {pod.name for pod in (*done, failed)} == {"train-0", "train-1", "failed"}


def test_a_pod_without_slices_counts_for_its_gang(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    cluster.pod("launcher", gang=gang(2), gates=())
    worker = cluster.pod("worker", "1g.5gb", gang=gang(2))
    cluster.settle()
    assert cluster.where(worker)


def test_pods_beyond_the_size_start_one_by_one(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pods = members(cluster, 3, gang(2), "3g.20gb")
    cluster.settle()
    assert placed(cluster, pods) == [True, True, False]
    assert isinstance(reason(cluster, pods[2]), Full)


def test_a_gang_waits_while_a_gate_of_others_holds_one_of_its_pods(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    free = cluster.pod("free", "1g.5gb", gang=gang(2))
    held = cluster.pod("held", "1g.5gb", gang=gang(2), gates=("example.com/other", GATE))
    cluster.settle()
    assert reason(cluster, free) == GangIncomplete("train", 2, 2, held=1)
    assert "all 2 pods exist, but 1 cannot be placed yet" in sentence(reason(cluster, free))
    cluster.put(replace(held, gates=(GATE,)))
    cluster.settle()
    assert all(placed(cluster, [free, held]))


def test_a_gang_that_loses_a_pod_before_it_starts_gives_its_slices_back(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    cluster.node("n2")
    pods = members(cluster, 2, gang(2), "7g.40gb")
    cluster.slicer.decide()
    first, second = [each for each in cluster.slicer.pop_writes() if isinstance(each, PatchRequests)]
    cluster.answer(first)
    gone = next(pod for pod in pods if pod.uid not in first.put)
    cluster.remove(gone)
    cluster.answer(second)
    cluster.settle()
    assert cluster.empty()
    late = cluster.pod("late", "7g.40gb", gang=gang(2))
    cluster.settle()
    assert all(placed(cluster, [*(pod for pod in pods if pod is not gone), late]))


@pytest.mark.parametrize(
    ("count", "profile", "wanted", "most"),
    [(3, "7g.40gb", "3 x 7g.40gb", "2 x 7g.40gb"), (5, "3g.20gb", "5 x 3g.20gb", "4 x 3g.20gb")],
)
def test_a_gang_larger_than_all_cards_is_told_so(
    cluster: SlicerCluster, count: int, profile: str, wanted: str, most: str
) -> None:
    cluster.node("n1", count=2)
    pods = members(cluster, count, gang(count), profile)
    cluster.settle()
    assert reason(cluster, pods[0]) == GangTooLarge("train", count, wanted, most)
    cluster.node("n2", count=2)
    cluster.settle()
    assert all(placed(cluster, pods))


def test_a_mixed_gang_with_more_slots_than_all_cards_is_told_so(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    first = cluster.pod("first", "7g.40gb", gang=gang(2))
    cluster.pod("second", "1g.5gb", gang=gang(2))
    cluster.settle()
    assert reason(cluster, first) == GangTooLarge("train", 2, "9 memory slots", "8 memory slots")


def test_one_old_pod_or_one_of_high_priority_does_not_bring_its_gang_ahead(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    cluster.pod("early", "3g.20gb", gang=gang(2), created="1", priority=5)
    rival = cluster.pod("rival", "7g.40gb", created="2")
    cluster.pod("late", "3g.20gb", gang=gang(2), created="3")
    cluster.settle()
    assert cluster.where(rival)


def test_a_gang_beyond_the_maximum_of_its_queue_holds_nothing(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    cluster.queue("default", maximum="10Gi")
    pods = members(cluster, 2, gang(2), "2g.10gb")
    cluster.settle()
    found = reason(cluster, pods[0])
    assert isinstance(found, QueueFull)
    assert found.never
    assert cluster.empty()
    cluster.queue("default", maximum="20Gi")
    cluster.settle()
    assert all(placed(cluster, pods))


def test_many_gangs_that_never_complete_hold_back_nobody(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    for number in range(1_100):
        cluster.pod(f"bait-{number}", "1g.5gb", gang=gang(2, f"bait-{number}"), priority=9)
    honest = cluster.pod("honest", "7g.40gb", created="9")
    cluster.settle()
    assert cluster.where(honest)


@pytest.mark.parametrize("selector", [{}, {"pool": "a"}], ids=["any node", "64 of 200 nodes"])
def test_the_largest_gang_is_decided_in_one_decision(cluster: SlicerCluster, selector: dict[str, str]) -> None:
    for number in range(200 if selector else 64):
        labels = {"nvidia.com/mig.config": "dynamic", "kubernetes.io/hostname": f"n{number}"}
        cluster.node(f"n{number}", count=4, labels=labels | (selector if number < 64 else {}))
    constraints = replace(ANYWHERE, selector=tuple(selector.items()))
    members(cluster, GANG_SIZE, gang(GANG_SIZE), "2g.10gb", constraints=constraints)
    cluster.slicer.decide()
    assert cluster.slicer.settlement.decisions == GANG_SIZE


def test_a_gang_that_a_full_cluster_cannot_hold_costs_no_planning(cluster: SlicerCluster) -> None:
    cluster.node("n1", count=4)
    for number in range(4):
        cluster.pod(f"held-{number}", "4g.20gb")
    cluster.settle()
    before = cluster.slicer.steps
    pods = members(cluster, 6, gang(6), "3g.20gb")
    cluster.slicer.decide()
    assert cluster.slicer.steps == before
    assert (reason(cluster, pods[0]).fit, reason(cluster, pods[0]).member) == (4, "default/train-4")


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["create", "create", "delete", "finish", "restart", "decide", "write", "agents"]),
        st.integers(0, 8),
        st.sampled_from(["1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb"]),
    ),
    max_size=40,
)


@settings(max_examples=examples(300))
@given(STEPS)
def test_no_gang_ever_leaves_the_gate_in_part(steps: list[tuple[str, int, str]]) -> None:
    """Pods of three gangs and single ones come and go, the controller dies between any two writes."""
    cluster = SlicerCluster()
    for name in ("n1", "n2"):
        cluster.node(name)
    due: list[Any] = []
    #: Pods that left the gate at least once, by gang.
    left: dict[str, set[str]] = {}
    names = 0
    for step, number, profile in steps:
        living = [pod for pod in cluster.pods.values() if not pod.finished]
        if step == "create":
            names += 1
            of = None if number % 3 == 0 else gang(2 + number % 2, f"g{number % 3}")
            cluster.pod(f"p{names}", profile, gang=of)
        elif step == "delete" and living:
            cluster.remove(living[number % len(living)])
        elif step == "finish" and [pod for pod in living if not pod.gated]:
            running = [pod for pod in living if not pod.gated]
            cluster.put(replace(running[number % len(running)], finished=True, succeeded=True))
        elif step == "restart":
            due = []
            cluster.restart()
        elif step == "decide":
            cluster.slicer.decide()
            due += cluster.slicer.pop_writes()
        elif step == "write" and due:
            write = due.pop(number % len(due))
            if isinstance(write, Ungate) and (pod := cluster.pods.get(write.uid)) is not None and pod.gang is not None:
                key, size = pod.gang.key, pod.gang.size
                others = {each.uid for each in cluster.pods.values() if each.gang is not None and each.gang.key == key}
                begun = left.setdefault(key, set())
                have = {
                    uid
                    for uid in others
                    if cluster.where(cluster.pods[uid]) or cluster.pods[uid].succeeded or uid in begun
                }
                assert begun or len(have) >= size, f"{pod.name} starts with {len(have)} of {size}"
                begun.add(write.uid)
            cluster.answer(write)
        elif step == "agents":
            cluster.agents()
    cluster.resume()
    assert not cluster.overlaps()
    for pod in cluster.pods.values():
        if pod.gated and pod.gang is not None:
            assert not cluster.where(pod), f"{pod.name} holds slices behind the gate"


def test_nodes_of_the_pods_are_those_of_the_plan(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    cluster.node("n2")
    pods = members(cluster, 2, gang(2), "7g.40gb")
    cluster.settle()
    assert {node for pod in pods for node, _, _ in cluster.where(pod)} == {NodeName("n1"), NodeName("n2")}


def test_alike_gangs_count_free_slots_once_for_a_batch(cluster: SlicerCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        cluster.node(f"n{number}", count=2)
    held = [cluster.pod(f"held-{number}", "3g.20gb") for number in range(12)]
    cluster.settle()
    asked: list[str | None] = []

    class Asked(Fleet):
        def cards(self, node: str | None = None) -> Iterator[FleetCard]:
            asked.append(node)
            return super().cards(node)

    monkeypatch.setattr(cluster.slicer.state.inventory.fleet, "__class__", Asked)
    pods = [pod for number in range(40) for pod in members(cluster, 2, gang(2, f"train{number}"), "3g.20gb")]
    cluster.run()
    assert isinstance(reason(cluster, pods[-1]), GangNoRoom)
    assert sorted(map(str, asked)) == ["n0", "n1", "n2"]
    for each in held[:4]:
        cluster.remove(each)
    cluster.settle()
    assert sum(placed(cluster, pods)) == 4
