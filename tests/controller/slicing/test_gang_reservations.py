"""Reservations of gangs: slots for all of their pods together, or none."""

from dataclasses import replace

import pytest
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import NodeName
from tessera.api.pod_annotations import Gang
from tessera.clock import rfc3339
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.proposers.reserver import GANG_RESERVED_PODS

WHOLE, HALF, SMALL = "7g.40gb", "3g.20gb", "1g.5gb"


@pytest.fixture
def busy() -> SlicerCluster:
    """Two nodes with one A100-40GB each, and slots that are reserved after 60 seconds."""
    cluster = SlicerCluster(60.0)
    cluster.pass_time(0)
    cluster.node("n1")
    cluster.node("n2")
    return cluster


def runs(cluster: SlicerCluster, name: str, profile: str, node: str, **facts: object) -> PodInfo:
    """A pod that runs on a node."""
    selected = replace(cluster.pod(name, profile, created=rfc3339(cluster.date), **facts))
    cluster.settle()
    ((found, *_),) = cluster.where(selected)
    assert found == node
    return cluster.put(replace(cluster.pods[selected.uid], node=NodeName(node), started=cluster.date))


def gang(cluster: SlicerCluster, *profiles: str, name: str = "g", **facts: object) -> list[PodInfo]:
    """The pods of a gang come."""
    whole = Gang(f"default/{name}", name, len(profiles))
    created = rfc3339(cluster.date)
    return [
        cluster.pod(f"{name}-{number}", profile, gang=whole, created=created, **facts)
        for number, profile in enumerate(profiles)
    ]


def reserved(cluster: SlicerCluster) -> dict[str, str]:
    """The nodes on which slots are kept, by pod."""
    return {each.key.partition("/")[2]: each.node for each in cluster.slicer.state.reservations.values()}


def test_a_gang_that_waits_long_enough_gets_slots_for_all_of_its_pods(busy: SlicerCluster) -> None:
    first, second = runs(busy, "first", WHOLE, "n1"), runs(busy, "second", WHOLE, "n2")
    pods = gang(busy, WHOLE, WHOLE)
    busy.settle()
    assert reserved(busy) == {}
    busy.wait(61)
    assert sorted(reserved(busy).values()) == ["n1", "n2"]
    busy.remove(first)
    small = busy.pod("small", SMALL, created=rfc3339(busy.date))
    busy.settle()
    assert not busy.where(small), "the free card is kept until the other is free too"
    busy.remove(second)
    busy.settle()
    assert all(busy.where(pod) for pod in pods)
    assert reserved(busy) == {}
    told = [each for each in busy.told if each.reason == "SliceReserved"]
    assert sorted(each.name for each in told) == ["g-0", "g-1"]


def test_nothing_is_kept_for_a_part_of_a_gang(busy: SlicerCluster) -> None:
    runs(busy, "first", WHOLE, "n1")
    runs(busy, "second", WHOLE, "n2")
    gang(busy, WHOLE, WHOLE, WHOLE)
    busy.settle_and_wait(61)
    assert reserved(busy) == {}


def test_a_gang_gives_its_slots_back_when_a_pod_of_it_goes(busy: SlicerCluster) -> None:
    runs(busy, "first", WHOLE, "n1")
    runs(busy, "second", WHOLE, "n2")
    pods = gang(busy, WHOLE, WHOLE)
    busy.settle_and_wait(61)
    assert len(reserved(busy)) == 2
    busy.remove(pods[0])
    busy.settle()
    assert reserved(busy) == {}
    anew = busy.pod("g-0b", WHOLE, gang=pods[0].gang, created=rfc3339(busy.date))
    busy.settle_and_wait(61)
    assert reserved(busy).keys() == {"g-1", "g-0b"}
    assert anew.uid in busy.slicer.state.reservations


def test_a_pod_with_a_deadline_may_use_kept_slots_until_the_last_is_expected_to_be_free(busy: SlicerCluster) -> None:
    first = runs(busy, "first", WHOLE, "n1", deadline=1000.0)
    runs(busy, "second", WHOLE, "n2", deadline=9000.0)
    gang(busy, WHOLE, WHOLE)
    busy.settle_and_wait(61)
    assert len(reserved(busy)) == 2
    busy.remove(first)
    short = busy.pod("short", WHOLE, created=rfc3339(busy.date), deadline=3000.0)
    long = busy.pod("long", WHOLE, created=rfc3339(busy.date), deadline=20_000.0)
    busy.settle()
    assert (bool(busy.where(short)), bool(busy.where(long))) == (True, False)


def test_a_gang_takes_its_turn_among_the_pods_of_its_queue(busy: SlicerCluster) -> None:
    runs(busy, "first", WHOLE, "n1")
    runs(busy, "second", WHOLE, "n2")
    older = busy.pod("older", WHOLE, created=rfc3339(busy.date))
    busy.pass_time(1)
    gang(busy, WHOLE, WHOLE)
    busy.pass_time(1)
    busy.pod("younger", WHOLE, created=rfc3339(busy.date))
    busy.settle_and_wait(100)
    assert reserved(busy).keys() == {"older"}
    busy.remove(older)
    busy.settle_and_wait(1)
    assert reserved(busy).keys() == {"g-0", "g-1"}


def test_a_new_controller_keeps_the_slots_of_a_gang_or_drops_them_all(busy: SlicerCluster) -> None:
    runs(busy, "first", WHOLE, "n1")
    runs(busy, "second", WHOLE, "n2")
    gang(busy, WHOLE, WHOLE)
    busy.settle_and_wait(61)
    before = reserved(busy)
    numbers = {each.number for each in busy.slicer.state.reservations.values()}
    busy.restart()
    busy.slicer.decide()
    assert reserved(busy) == before
    assert {each.number for each in busy.slicer.state.reservations.values()} == numbers
    busy.patch("n1", {"metadata": {"annotations": {"tessera.dev/reservations": None}}})
    busy.restart()
    busy.slicer.decide()
    assert len(reserved(busy)) in {0, 2}
    busy.settle()
    assert reserved(busy).keys() == before.keys()


def test_a_node_that_goes_takes_all_slots_of_the_gang_along_and_others_are_found() -> None:
    cluster = SlicerCluster(60.0)
    cluster.pass_time(0)
    for name in ("n1", "n2", "n3"):
        cluster.node(name)
        runs(cluster, f"on-{name}", WHOLE, name, deadline=1000.0 * int(name[1]))
    gang(cluster, WHOLE, WHOLE)
    cluster.settle_and_wait(61)
    assert sorted(reserved(cluster).values()) == ["n1", "n2"]
    cluster.node("n1", labels={"kubernetes.io/hostname": "n1"})  # not open for slices any more
    cluster.settle_and_wait(31)
    assert sorted(reserved(cluster).values()) == ["n2", "n3"]


def test_slots_of_one_node_are_kept_for_several_pods_of_a_gang(busy: SlicerCluster) -> None:
    runs(busy, "first", WHOLE, "n1", deadline=1000.0)
    runs(busy, "second", WHOLE, "n2", deadline=2000.0)
    gang(busy, HALF, HALF)
    busy.settle_and_wait(61)
    assert reserved(busy) == {"g-0": "n1", "g-1": "n1"}


def test_pods_of_a_gang_that_a_node_cannot_hold_together_get_slots_on_several(busy: SlicerCluster) -> None:
    runs(busy, "first", WHOLE, "n1")
    runs(busy, "second", WHOLE, "n2")
    gang(busy, HALF, HALF, amounts={"cpu": 40_000, "pods": 1})
    busy.settle_and_wait(61)
    assert sorted(reserved(busy).values()) == ["n1", "n2"]


def test_a_gang_of_whole_cards_has_reservations_too() -> None:
    cluster = SlicerCluster(60.0)
    cluster.namespace("default", **{"tessera.dev/placement": "managed"})
    cluster.pass_time(0)
    for name in ("n1", "n2"):
        cluster.device_node(name, count=2)
        cluster.whole(f"on-{name}", 2, created=rfc3339(cluster.date))
    cluster.settle()
    whole = Gang("default/g", "g", 2)
    pods = [cluster.whole(f"g-{number}", 2, gang=whole, created=rfc3339(cluster.date)) for number in range(2)]
    cluster.settle_and_wait(61)
    assert sorted(reserved(cluster).values()) == ["n1", "n2"]
    for name in ("n1", "n2"):
        cluster.remove(cluster.pods[f"uid-on-{name}"])
        small = cluster.whole(f"small-{name}", created=rfc3339(cluster.date))
        cluster.settle()
        assert cluster.pods[small.uid].gated
    assert not any(cluster.pods[pod.uid].gated for pod in pods)


def test_a_gang_of_many_pods_waits_without(busy: SlicerCluster) -> None:
    many = int(GANG_RESERVED_PODS) + 1
    cluster = SlicerCluster(60.0)
    cluster.pass_time(0)
    for node in range(many // 70 + 1):  # 10 cards with room for 7 small pods each
        cluster.node(f"n{node}", count=10)
        for number in range(10):
            runs(cluster, f"on-{node}-{number}", WHOLE, f"n{node}")
    gang(cluster, *[SMALL] * many)
    cluster.settle_and_wait(61)
    assert reserved(cluster) == {}
    gang(cluster, *[SMALL] * (many - 1), name="fewer")
    cluster.settle_and_wait(61)
    assert len(reserved(cluster)) == many - 1
