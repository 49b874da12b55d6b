"""Gangs whose size a PodGroup object states."""

import pytest
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.pod_annotations import Gang, pod_group_key
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.events import PodGroupObserved, PodGroupsListed
from tessera.reasons.reason import GangIncomplete
from tessera.reasons.words import sentence

KEY = pod_group_key("default", "train")
SMALL = "1g.5gb"


@pytest.fixture
def nodes() -> SlicerCluster:
    cluster = SlicerCluster()
    cluster.node("n1")
    return cluster


def members(cluster: SlicerCluster, count: int, first: int = 0) -> list[PodInfo]:
    """Pods with the label of the PodGroup and no size."""
    return [cluster.pod(f"train-{number}", SMALL, gang=Gang(KEY, "train", 0)) for number in range(first, first + count)]


def placed(cluster: SlicerCluster, pods: list[PodInfo]) -> int:
    cluster.settle()
    return sum(bool(cluster.where(pod)) for pod in pods)


def test_pods_wait_until_it_is_known_whether_there_are_pod_groups(nodes: SlicerCluster) -> None:
    pods = members(nodes, 2)
    assert placed(nodes, pods) == 0
    nodes.slicer.handle(PodGroupsListed(served=False))
    assert placed(nodes, pods) == 2


def test_pods_wait_for_their_pod_group_where_the_kind_exists(nodes: SlicerCluster) -> None:
    nodes.slicer.handle(PodGroupsListed(served=True))
    pods = members(nodes, 3)
    assert placed(nodes, pods) == 0
    reason = nodes.slicer.state.waiting[pods[0].uid].reason
    assert isinstance(reason, GangIncomplete)
    assert "no PodGroup of this name says how many pods, at most 256, start together" in sentence(reason)
    nodes.slicer.handle(PodGroupObserved(KEY, 3))
    assert placed(nodes, pods) == 3


def test_as_many_pods_as_min_member_says_start_together(nodes: SlicerCluster) -> None:
    nodes.slicer.handle(PodGroupObserved(KEY, 3))
    nodes.slicer.handle(PodGroupsListed(served=True))
    pods = members(nodes, 2)
    assert placed(nodes, pods) == 0
    reason = nodes.slicer.state.waiting[pods[0].uid].reason
    assert isinstance(reason, GangIncomplete)
    assert (reason.size, reason.exist) == (3, 2)
    pods += members(nodes, 1, first=2)
    assert placed(nodes, pods) == 3


def test_a_smaller_min_member_lets_the_pods_that_exist_start(nodes: SlicerCluster) -> None:
    nodes.slicer.handle(PodGroupObserved(KEY, 3))
    nodes.slicer.handle(PodGroupsListed(served=True))
    pods = members(nodes, 2)
    assert placed(nodes, pods) == 0
    nodes.slicer.handle(PodGroupObserved(KEY, 2))
    assert placed(nodes, pods) == 2


def test_a_group_of_one_is_no_gang(nodes: SlicerCluster) -> None:
    nodes.slicer.handle(PodGroupObserved(KEY, 1))
    nodes.slicer.handle(PodGroupsListed(served=True))
    assert placed(nodes, members(nodes, 1)) == 1


def test_a_pod_group_that_goes_does_not_stop_pods_that_run(nodes: SlicerCluster) -> None:
    nodes.slicer.handle(PodGroupObserved(KEY, 2))
    nodes.slicer.handle(PodGroupsListed(served=True))
    pods = members(nodes, 2)
    assert placed(nodes, pods) == 2
    nodes.slicer.handle(PodGroupObserved(KEY, None))
    assert placed(nodes, pods) == 2
    later = members(nodes, 1, first=2)
    assert placed(nodes, later) == 0


def test_a_size_on_the_pods_counts_without_the_object(nodes: SlicerCluster) -> None:
    pods = [nodes.pod(f"train-{number}", SMALL, gang=Gang(KEY, "train", 2)) for number in range(2)]
    assert placed(nodes, pods) == 2
