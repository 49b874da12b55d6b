"""A recording of the controller begins with the slicer's state, which is plain data whatever is switched on."""

from dataclasses import replace

import pytest
from tests.support.slicer_cluster import CheckedSlicer, SlicerCluster

from tessera.api.names import NodeName
from tessera.api.pod_annotations import Gang
from tessera.clock import rfc3339
from tessera.controller.base import MoveMode, MoveSettings
from tessera.controller.slicing.state.events import DecisionDue, PodObserved, TimePassed, WritesDue
from tessera.observe.record_player import DECIDERS
from tessera.replay.state_codec import decode, encode


def busy() -> SlicerCluster:
    """A waiting gang, a waiting pod, a pod that may move, reservations, preemption and a queue."""
    cluster = SlicerCluster(60.0, preempts=True, moves=MoveSettings(mode=MoveMode.EVICT))
    cluster.pass_time(0)
    for node in ("n1", "n2"):
        cluster.node(node)
    for name, node in (("a", "n1"), ("b", "n2")):
        pod = cluster.pod(name, "4g.20gb", owner=f"owner-{name}", movable=True, created=rfc3339(cluster.date))
        cluster.settle()
        cluster.put(replace(cluster.pods[pod.uid], node=NodeName(node), started=cluster.date))
    for number in range(2):
        created = rfc3339(cluster.date)
        cluster.pod(f"g-{number}", "7g.40gb", gang=Gang("default/g", "g", 2), created=created)
    cluster.pod("whole", "7g.40gb", created=rfc3339(cluster.date))
    cluster.settle_and_wait(61)
    return cluster


def test_a_slicer_that_is_read_from_its_record_decides_the_same() -> None:
    slicer = busy().slicer
    assert slicer.state.waiting
    assert slicer.state.reservations
    copy = decode(encode(slicer, shared=True), (*DECIDERS["slicer"].modules, CheckedSlicer.__module__))
    for event in (TimePassed(4000.0, 4000.0), DecisionDue(), WritesDue()):
        assert copy.handle(event) == slicer.handle(event)
    assert copy.state.reservations.keys() == slicer.state.reservations.keys()


@pytest.mark.parametrize("profile", ["1g.5gb", "1g.10gb", "2g.20gb", "7g.80gb", "9g.90gb"])
def test_a_slicer_of_two_models_read_from_its_record_takes_requests_that_are_new_to_it(profile: str) -> None:
    cluster = SlicerCluster()
    cluster.pass_time(0)
    cluster.node("n1")
    cluster.node("n2", "H100-80GB")
    cluster.pod("first", "3g.20gb")
    cluster.settle()
    slicer = cluster.slicer
    copy = decode(encode(slicer, shared=True), (*DECIDERS["slicer"].modules, CheckedSlicer.__module__))
    made = cluster.pod("next", profile)
    event = PodObserved(cluster.pods[made.uid])
    copy.handle(event)
    for each in (TimePassed(10.0, 10.0), DecisionDue(), WritesDue()):
        assert copy.handle(each) == slicer.handle(each)
