"""The room of a service is the number of further pods that the planner would place at this moment."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import PodUid, resource_of
from tessera.controller.objects.pod_constraints import NodeConstraints
from tessera.controller.objects.pod_info import PodInfo
from tessera.signals.page import ROOM_COUNTED
from tessera.signals.room import count_room, has_room_number


def placed(cluster: SlicerCluster, name: str, *profiles: str, **facts: Any) -> PodInfo:
    """A pod of a service that got its slices."""
    made = cluster.pod(name, *profiles, **facts)
    cluster.run()
    cluster.agents()
    return cluster.pods[made.uid]


def room(cluster: SlicerCluster, pod: PodInfo) -> int:
    return count_room(cluster.slicer, pod)[0]


@pytest.mark.parametrize(
    ("profiles", "count", "wanted"),
    [
        (("1g.5gb",), 1, 6),
        (("3g.20gb",), 1, 1),
        (("3g.20gb",), 4, 7),
        (("7g.40gb",), 3, 2),
        (("2g.10gb", "2g.10gb"), 2, 2),
        (("1g.5gb",), 20, ROOM_COUNTED),
    ],
)
def test_the_cards_of_all_nodes_count(profiles: tuple[str, ...], count: int, wanted: int) -> None:
    cluster = SlicerCluster()
    cluster.node("n1", count=count)
    assert room(cluster, placed(cluster, "s-0", *profiles, amounts={"pods": 1})) == wanted


def test_a_pod_that_is_pinned_to_a_node_has_room_on_others() -> None:
    cluster = SlicerCluster()
    cluster.node("n1")
    cluster.node("n2")
    pod = placed(cluster, "s-0", "7g.40gb")
    assert (pod.hostname, room(cluster, pod)) in {("n1", 1), ("n2", 1)}


def test_other_resources_constraints_and_the_queue_bound_it() -> None:
    cluster = SlicerCluster()
    cluster.node("n1", count=4, allocatable={"cpu": 3000, "memory": 2**40, "pods": 110, resource_of("1g.5gb"): 28})
    cluster.node("n2", count=4)
    pod = placed(cluster, "s-0", "1g.5gb")
    elsewhere = cluster.pod("w-0", "1g.5gb", constraints=NodeConstraints(selector=(("zone", "x"),)))
    assert room(cluster, elsewhere) == 0
    named = NodeConstraints(selector=(("kubernetes.io/hostname", "n1"),))
    assert room(cluster, cluster.pod("w-1", "1g.5gb", constraints=named, amounts={"cpu": 500})) == 2000 // 500
    assert room(cluster, pod) == 2 + 28  # two more by the CPU of the first node
    cluster.queue("default", maximum="20Gi")
    cluster.run()
    assert room(cluster, pod) == 2


def test_what_waits_or_is_full_has_no_room_and_nothing_changes() -> None:
    cluster = SlicerCluster()
    cluster.node("n1")
    pod = placed(cluster, "s-0", "4g.20gb")
    waiting = cluster.pod("s-1", "4g.20gb")
    cluster.run()
    before = dict(cluster.slicer.state.waiting)
    assert (room(cluster, pod), room(cluster, waiting)) == (0, 0)
    assert dict(cluster.slicer.state.waiting) == before
    assert not cluster.slicer.has_work


def test_slots_that_are_reserved_for_others_are_no_room() -> None:
    cluster = SlicerCluster(reserve_after=10.0)
    cluster.node("n1")
    cluster.pass_time(1.0)
    small = placed(cluster, "s-0", "1g.5gb")
    assert room(cluster, small) == 6
    cluster.pod("big", "7g.40gb")
    cluster.run()
    assert room(cluster, small) == 0


def test_only_pods_with_slices_that_start_alone_have_a_number() -> None:
    cluster = SlicerCluster()
    cluster.node("n1")
    cluster.device_node("n2")
    assert has_room_number(cluster.pod("a", "1g.5gb"))
    assert not has_room_number(cluster.whole("b", gated=False))
    assert not has_room_number(cluster.pod("c", "1g.5gb", fault="wrong"))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(["1g.5gb", "2g.10gb", "3g.20gb"]), max_size=6), st.integers(1, 2))
def test_so_many_pods_are_placed_as_the_room_said(held: list[str], count: int) -> None:
    cluster = SlicerCluster()
    cluster.node("n1", count=count)
    for number, profile in enumerate(held):
        placed(cluster, f"held-{number}", profile)
    cluster.run()
    amounts = {"cpu": 1000, "pods": 1}
    found = room(cluster, PodInfo(PodUid("probe"), "default", "probe", profiles=("2g.10gb",), amounts=amounts))
    pods = [cluster.pod(f"s-{number}", "2g.10gb") for number in range(10)]
    cluster.run()
    assert sum(cluster.slicer.state.allocations.current_of(pod.uid) is not None for pod in pods) == found
