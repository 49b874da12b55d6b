"""Pods that are planned again after a change of capacity, with the nodes to look at, each in its turn."""

from collections.abc import Hashable

from tessera.api.names import NodeName, PodUid
from tessera.controller.cluster.cluster_state import ClusterState
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.waiting_pod import PodState
from tessera.controller.slicing.state.waiting_pods import WaitingPods

N1, N2 = NodeName("n1"), NodeName("n2")
PODS = [PodUid(name) for name in "abc"]


def one_more(_kind: Hashable) -> int:
    """No pod fits; one of each kind is asked."""
    return 1


class Town:
    """Waiting pods, and the changes that may make room for them."""

    def __init__(self) -> None:
        cluster = ClusterState()
        self.changes, self.pods, self.cluster = cluster.capacity_changes, WaitingPods(cluster, set()), cluster

    def wait(self, uids: list[PodUid]) -> None:
        """These pods begin to wait, each younger than the one before."""
        for uid in uids:
            self.cluster.pods[uid] = PodInfo(uid=uid, namespace="team", name=uid, created=str(len(self.cluster.pods)))
            self.pods.move(uid, PodState.QUEUED)

    def refuse_kind(self, uid: PodUid) -> None:
        """The refusal of a pod answers for its kind."""
        self.pods.note_refusal_of_kind(self.cluster.pods[uid], "kind")


def town(uids: list[PodUid]) -> Town:
    """A cluster in which these pods wait, after room may have grown."""
    found = Town()
    found.wait(uids)
    found.changes.room_may_have_grown(N1)
    return found


def test_a_new_pod_is_asked_about_all_nodes_and_a_refused_one_about_what_changed() -> None:
    growth = town(PODS)
    assert growth.pods.next_in_round(one_more) == PODS
    assert growth.pods.nodes_changed_since_refusal(PODS[0]) is None
    growth.pods.note_refusal(PODS[0])
    growth.changes.room_may_have_grown(N2)
    assert growth.pods.nodes_changed_since_refusal(PODS[0]) == frozenset({N2})
    growth.pods.note_refusal(PODS[0])
    assert growth.pods.nodes_changed_since_refusal(PODS[0]) == frozenset()
    growth.changes.room_may_have_grown(N1)
    growth.changes.room_may_have_grown(N2)
    growth.changes.remove_node(N2)
    assert growth.pods.nodes_changed_since_refusal(PODS[0]) == frozenset({N1})
    growth.changes.room_may_have_grown_anywhere()
    assert growth.pods.nodes_changed_since_refusal(PODS[0]) is None


def test_nobody_is_asked_for_nothing() -> None:
    growth = town(PODS)
    for pod in growth.pods.next_in_round(one_more):
        growth.pods.note_refusal(pod)
    assert not growth.pods.are_due
    assert growth.pods.next_in_round(one_more) == []
    growth.pods.forget_refusal(PODS[1])
    assert growth.pods.are_due
    assert growth.pods.next_in_round(one_more) == [PODS[1]]


def test_a_pod_that_got_a_place_and_waits_again_does_not_prolong_the_round() -> None:
    """It went alone before pods that were refused in that round, older ones and those of higher priority too."""
    older, younger = PODS[:2]
    growth = town([older, younger])
    assert growth.pods.next_in_round(one_more) == [older, younger]
    growth.pods.note_refusal(older)
    growth.pods.move(younger, PodState.PLACED)
    growth.changes.room_may_have_grown(N1)
    growth.pods.move(younger, PodState.QUEUED)
    assert growth.pods.next_in_round(one_more) == [older, younger]


def test_whoever_was_asked_waits_for_the_next_round_however_often_room_grows() -> None:
    growth = town(PODS)
    asked = []
    for _ in range(6):
        growth.changes.room_may_have_grown(N1)
        first = growth.pods.next_in_round(one_more)[0]
        asked.append(first)
        growth.pods.note_refusal(first)
    assert asked == PODS * 2


def test_a_pod_that_comes_later_does_not_keep_the_next_round_from_those_that_were_refused() -> None:
    growth = town(PODS[:2])
    for uid in growth.pods.next_in_round(one_more):
        growth.pods.note_refusal(uid)
    growth.wait(PODS[2:])
    growth.changes.room_may_have_grown(N1)
    assert growth.pods.next_in_round(one_more) == PODS


def test_a_pod_that_is_forgotten_again_and_again_does_not_keep_a_round_from_its_end() -> None:
    growth = town(PODS)
    for uid in growth.pods.next_in_round(one_more):
        growth.pods.note_refusal(uid)
    growth.pods.forget_refusal(PODS[0])
    growth.changes.room_may_have_grown(N1)
    assert growth.pods.next_in_round(one_more) == PODS


def test_the_refusal_of_a_pod_answers_for_its_kind_until_room_grows() -> None:
    growth = town(PODS[::-1])
    for uid in PODS:
        growth.refuse_kind(uid)
    assert growth.pods.pods_of_kind("kind") == PODS[::-1]
    growth.changes.room_may_have_grown(N2)
    assert growth.pods.are_due
    assert growth.pods.next_in_round(one_more) == [PODS[2]]
    assert growth.pods.next_in_round(lambda _kind: 2) == [PODS[2], PODS[1]]
    growth.refuse_kind(PODS[2])
    assert not growth.pods.are_due
    assert growth.pods.next_in_round(one_more) == []
    assert [growth.pods.is_refused_on(N2, uid) for uid in PODS] == [True] * 3
    assert growth.pods.nodes_changed_since_refusal(PODS[0]) == frozenset()


def test_a_pod_that_leaves_its_kind_is_asked_by_itself() -> None:
    growth = town(PODS)
    for uid in PODS:
        growth.refuse_kind(uid)
    growth.pods.separate(PODS[0])
    assert (growth.pods.is_due(PODS[0]), growth.pods.pods_of_kind("kind")) == (False, PODS[1:])
    growth.pods.forget_refusal(PODS[1])
    assert growth.pods.next_in_round(one_more) == [PODS[1]]
    growth.pods.note_refusal(PODS[1])
    growth.changes.room_may_have_grown(N1)
    assert growth.pods.next_in_round(one_more) == PODS
