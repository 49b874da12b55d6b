"""The controller is killed at every write of an update, in the middle of which comes a preemption, a move or a drain.

No slot is given twice at any time; afterwards each pod that can run has slots, and nothing is reserved for ever.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.handover.test_hand_over import deployment, surge
from tests.handover.test_inheritance import running, waiting
from tests.support.mortal_process import die_at
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import NodeName, PodUid
from tessera.controller.base import MoveMode, MoveSettings
from tessera.controller.slicing.state.events import NodeObserved
from tessera.controller.slicing.state.instructions import Instruction, RecordEvent

#: More writes than a story has; the test proves that it is.
WRITES = 30


class _KilledError(Exception):
    """The controller is dead."""


class _MortalCluster(SlicerCluster):
    """A cluster whose controller dies once, at one of its writes.

    Attributes:
        at: the write, from 1; 0 for none.
        after: True to die when the write is done and not answered, False to die before it.
    """

    at, after = 0, False

    def answer(self, instruction: Instruction) -> None:
        if self.at and not isinstance(instruction, RecordEvent):
            self.at -= 1
            if not self.at:
                if self.after:
                    self.apply(instruction)
                raise _KilledError
        super().answer(instruction)

    def settle(self) -> None:
        try:
            super().settle()
        except _KilledError:
            self.restart()
            super().settle()
        assert self.overlaps() == []


def start(cluster: SlicerCluster) -> None:
    """Kubelet ends what is deleted, and starts what has slices."""
    for pod in list(cluster.pods.values()):
        if pod.terminating:
            cluster.remove(pod)
        elif not pod.gated and not pod.node and cluster.where(pod):
            node = NodeName(cluster.where(pod)[0][0])
            cluster.put(replace(pod, node=node, started=cluster.date, ready_since=cluster.date))


def live(cluster: SlicerCluster) -> None:
    """The same, and owners make anew what is missing."""
    start(cluster)
    new = [pod for pod in cluster.pods.values() if pod.owner == "new"]
    if len(new) < 2 and all(pod.ready_since for pod in new):
        surge(cluster, f"svc-2-{cluster.date}", "3g.20gb")
    small = [pod for pod in cluster.pods.values() if pod.owner == "small"]
    for number in range(2 - len(small)):
        facts = {"movable": True, "maker": "ReplicaSet/small-1", "owner": "small", "namespace": "team-c"}
        waiting(cluster, f"small-{cluster.date}-{number}", "1g.5gb", **facts)
    cluster.settle()


def preempt(cluster: SlicerCluster) -> None:
    waiting(cluster, "urgent", "3g.20gb", priority=100, namespace="team-b")


def move(cluster: SlicerCluster) -> None:
    """A pod comes that fits once a small one has gone elsewhere, as does the new pod of the update."""
    waiting(cluster, "large", "3g.20gb", namespace="team-b")


def cordon(cluster: SlicerCluster, name: str, *, cordoned: bool = True) -> None:
    node = replace(cluster.nodes[NodeName(name)], cordoned=cordoned)
    cluster.nodes[node.name] = node
    cluster.slicer.handle(NodeObserved(node))


def drain(cluster: SlicerCluster) -> None:
    cordon(cluster, "n2")
    for pod in [pod for pod in cluster.pods.values() if pod.node == "n2"]:
        cluster.put(replace(pod, terminating=True, disrupted=True, gone_by=cluster.date + 30))


def play(at: int, disturb: Callable[[SlicerCluster], None], *, after: bool, pulls: bool) -> bool:
    """An update of a pod on each of two cards, beside another on each; returns True if the controller was killed."""
    cluster = _MortalCluster(preempts=True, moves=MoveSettings(mode=MoveMode.EVICT, per_hour=100))
    cluster.pass_time(0)
    cluster.workloads = {"old": deployment(1, 2), "new": deployment(2, 2)}
    for node, which in (("n1", "a"), ("n2", "b")):
        cluster.node(node)
        pod = running(cluster, f"svc-1-{which}", "3g.20gb")
        cluster.put(replace(cluster.pods[pod.uid], hands_over=True, ready_since=cluster.date))
        facts = {"movable": disturb is move, "maker": "ReplicaSet/small-1", "owner": "small", "namespace": "team-c"}
        small = waiting(cluster, f"small-{which}", "1g.5gb" if disturb is move else "3g.20gb", **facts)
        cluster.settle()
        assert [cluster.where(each)[0][0] for each in (pod, small)] == [node, node]
        start(cluster)
        cordon(cluster, node)
    cordon(cluster, "n1", cordoned=False)
    cordon(cluster, "n2", cordoned=False)
    cluster.pass_time(400)
    cluster.at, cluster.after, cluster.pulls = at, after, pulls
    surge(cluster, profile="3g.20gb")
    cluster.settle()
    disturb(cluster)
    cluster.settle()
    cluster.pulls = True
    for _ in range(16):
        live(cluster)
        cluster.pass_time(60)
        cluster.settle()
    placed = [pod for pod in cluster.pods.values() if pod.owner == "new" and cluster.where(pod)]
    urgent = cluster.pods.get(PodUid("uid-urgent"))
    assert placed, "the update does not go on"
    assert urgent is None or cluster.where(urgent), "the pod of higher priority has no slots"
    assert cluster.slicer.state.reservations.keys() <= cluster.pods.keys(), "slots are kept for nobody"
    return not cluster.at


@pytest.mark.parametrize("pulls", [False, True], ids=["while images come", "once the old pod has ended"])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("disturb", [preempt, move, drain])
def test_an_update_outlives_the_end_of_its_controller(
    disturb: Callable[[SlicerCluster], None], after: bool, pulls: bool
) -> None:
    die_at(range(1, WRITES + 1), lambda at: play(at, disturb, after=after, pulls=pulls), every=4)
