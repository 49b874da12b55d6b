"""When a new node counts as one of no use, and for what."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import NodeName, PodUid
from tessera.api.nodes.node_groups import FIRST_PAUSE, LONGEST_PAUSE, Pause
from tessera.controller.objects.pod_info import PodInfo
from tessera.kube.resources import Taint
from tessera.scale_up.useless_nodes import (
    NODE_PAUSES,
    NewNode,
    NewNodeLook,
    Standing,
    UselessNodes,
    look_at,
    request_kind,
)

ONE, SEVEN = "1g.5gb", "7g.40gb"
TAINTED = (Taint(key="team", value="x", effect="NoSchedule"),)
NOW = 1_000_000.0


def pod(name: str = "p", *profiles: str, namespace: str = "n", **amounts: int) -> PodInfo:
    return PodInfo(uid=PodUid(name), namespace=namespace, name=name, profiles=profiles or (ONE,), amounts=dict(amounts))


def look(count: int = 1, **facts: Any) -> NewNodeLook:
    """A node of A100 cards that has listed them."""
    cluster = SlicerCluster()
    cluster.node("new", count=count, **facts)
    cluster.run()
    found = look_at(cluster.slicer.state, NodeName("new"))
    assert found is not None
    return found


class Trials:
    """A group with one new node."""

    def __init__(self, waiting: Sequence[PodInfo], counting: Sequence[PodInfo] | None = None) -> None:
        self.useless, self.waiting, self.now = UselessNodes(), waiting, NOW
        self._counting = waiting if counting is None else counting
        self._number = 0

    def come_and_go(
        self, seen: NewNodeLook | None, *later: NewNodeLook | None, taken: Collection[PodInfo] = ()
    ) -> None:
        """A node comes, is seen so, then otherwise, and is on trial no longer."""
        self._number += 1
        node = NewNode(f"u{self._number}", NodeName(f"n{self._number}"), "g", seen)
        self.useless.begin_trials([node], {"g": self._counting})
        for each in later:
            self._judge([NewNode(node.uid, node.name, "g", each)])
        self._judge([], taken)

    def _judge(self, starting: Sequence[NewNode], taken: Collection[PodInfo] = ()) -> None:
        asyncio.run(self.useless.judge(starting, self.waiting, lambda _: taken, lambda _: None, self.now))

    def of(self, pod: PodInfo) -> Standing | None:
        return self.useless.standings(self.now).get("g", {}).get(request_kind(pod))

    def why(self, pod: PodInfo) -> str:
        return self.useless.pauses["g", request_kind(pod)].why


@pytest.mark.parametrize(
    ("seen", "wants", "why"),
    [
        (look(taints=TAINTED), pod(), "cannot take the pod: node(s) had untolerated taint {team: x}"),
        (look(allocatable={"cpu": 4000}), pod(cpu=5000), "cannot take the pod: node(s) were too small: cpu"),
        (look(), pod("p", SEVEN, ONE), "cannot take the pod: its cards cannot hold the pod's slices together"),
        (look(), pod("p", "1g.24gb"), "cannot take the pod: its cards offer no 1g.24gb"),
        (look(), pod(), "got no pod in planning"),
        (None, pod(), "cannot take the pod: it was gone before it was read"),
    ],
)
def test_a_node_that_took_nothing_is_of_no_use(seen: NewNodeLook | None, wants: PodInfo, why: str) -> None:
    trials = Trials([wants])
    trials.come_and_go(seen)
    assert (trials.of(wants), trials.why(wants)) == (Standing.PAUSED, f"node n1 came and {why}")
    trials.now += FIRST_PAUSE
    assert trials.of(wants) is Standing.ON_TRIAL


def test_a_node_that_others_filled_says_nothing_about_those_that_it_could_take() -> None:
    fits, never = pod("fits"), pod("never", cpu=5000)
    trials = Trials([fits, never])
    trials.come_and_go(look(allocatable={"cpu": 4000}), taken=[pod("other", SEVEN)])
    assert (trials.of(fits), trials.of(never)) == (None, Standing.PAUSED)


def test_a_node_that_takes_a_request_ends_its_pause() -> None:
    wants = pod()
    trials = Trials([wants])
    trials.come_and_go(look(taints=TAINTED))
    trials.come_and_go(look(), taken=[wants])
    assert trials.of(wants) is None


def test_a_broken_node_beside_one_that_helped_makes_no_pause() -> None:
    wants = pod()
    useless = UselessNodes()
    nodes = [NewNode("u1", NodeName("good"), "g", look()), NewNode("u2", NodeName("broken"), "g", None)]
    useless.begin_trials(nodes, {"g": [wants]})
    for starting in ([nodes[1]], []):
        asyncio.run(
            useless.judge(starting, [wants], lambda name: [wants] if name == "good" else [], lambda _: None, NOW)
        )
    assert not useless.pauses


def test_a_node_is_judged_by_what_it_was_like_before_it_began_to_leave() -> None:
    wants, leaving = pod(cpu=5000), (Taint(key="ToBeDeletedByClusterAutoscaler", effect="NoSchedule"),)
    trials = Trials([wants])
    trials.come_and_go(None, look(allocatable={"cpu": 4000}), look(taints=leaving), look(ready=False), None)
    assert trials.why(wants) == "node n1 came and cannot take the pod: node(s) were too small: cpu"


def test_pods_that_are_gone_or_have_other_requests_have_no_pause() -> None:
    wants = pod()
    trials = Trials([], [wants])
    trials.come_and_go(look(taints=TAINTED))
    assert trials.of(wants) is None
    trials.waiting = [wants]
    trials.come_and_go(look(taints=TAINTED))
    others: Mapping[str, PodInfo] = {
        "the same": replace(wants, uid=PodUid("anew"), name="anew"),
        "other namespace": pod(namespace="other"),
        "other amounts": pod(cpu=1),
        "other slices": pod("p", ONE, ONE),
    }
    assert {name for name, each in others.items() if trials.of(each) is not None} == {"the same"}


def test_a_node_of_another_request_makes_a_pause_longer_but_its_size_does_not() -> None:
    """Karpenter made it of the size of the other request."""
    wants, other = pod("wants", cpu=3000), pod("other")
    trials = Trials([wants])
    trials.come_and_go(look(taints=TAINTED))
    trials.waiting, trials._counting = [wants, other], [other]
    trials.now += 1000
    trials.come_and_go(look(allocatable={"cpu": 1000}))
    assert (trials.of(wants), trials.of(other)) == (Standing.ON_TRIAL, Standing.PAUSED)
    trials.come_and_go(look(taints=TAINTED))
    assert trials.of(wants) is Standing.PAUSED


def test_a_pause_is_forgotten_a_day_after_its_end() -> None:
    wants = pod()
    trials = Trials([wants])
    trials.come_and_go(look(taints=TAINTED))
    trials.now += FIRST_PAUSE + LONGEST_PAUSE
    trials._judge([])
    assert trials.useless.pauses
    trials.now += 1
    trials._judge([])
    assert not trials.useless.pauses


def test_pods_of_ever_other_requests_do_not_fill_the_memory() -> None:
    useless = UselessNodes()
    for number in range(int(NODE_PAUSES) + 10):
        useless.add("g", request_kind(pod(cpu=number)), Pause(NOW, NOW + 1, "why"))
    assert len(useless.pauses) == NODE_PAUSES
    assert ("g", request_kind(pod(cpu=0))) not in useless.pauses
