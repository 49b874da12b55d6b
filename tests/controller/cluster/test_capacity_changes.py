"""Pods that are planned again after a change of capacity, with the nodes to look at, each in its turn."""

from collections.abc import Hashable

from tessera.api.names import NodeName, PodUid
from tessera.controller.cluster.capacity_changes import CapacityChanges
from tessera.controller.objects.pod_info import PodInfo

N1, N2 = NodeName("n1"), NodeName("n2")
PODS = [PodUid(name) for name in "abc"]


def one_more(_kind: Hashable) -> int:
    """No pod fits; one of each kind is asked."""
    return 1


def pod(uid: PodUid, created: str) -> PodInfo:
    return PodInfo(uid=uid, namespace="team", name=uid, created=created)


def test_a_new_pod_is_asked_about_all_nodes_and_a_refused_one_about_what_changed() -> None:
    growth = CapacityChanges()
    growth.room_may_have_grown(N1)
    assert growth.candidates(PODS, one_more) == PODS
    assert growth.nodes_changed_since_refusal(PODS[0]) is None
    growth.note_refusal(PODS[0])
    growth.room_may_have_grown(N2)
    assert growth.nodes_changed_since_refusal(PODS[0]) == frozenset({N2})
    growth.note_refusal(PODS[0])
    assert growth.nodes_changed_since_refusal(PODS[0]) == frozenset()
    growth.room_may_have_grown(N1)
    growth.room_may_have_grown(N2)
    growth.remove_node(N2)
    assert growth.nodes_changed_since_refusal(PODS[0]) == frozenset({N1})
    growth.room_may_have_grown_anywhere()
    assert growth.nodes_changed_since_refusal(PODS[0]) is None


def test_nobody_is_asked_for_nothing() -> None:
    growth = CapacityChanges()
    growth.room_may_have_grown(N1)
    for pod in growth.candidates(PODS, one_more):
        growth.note_refusal(pod)
    assert not growth.concerns_any_of(PODS)
    assert growth.candidates(PODS, one_more) == []
    growth.forget_refusal(PODS[1])
    assert growth.concerns_any_of(PODS)
    assert growth.candidates(PODS, one_more) == [PODS[1]]


def test_whoever_was_asked_waits_for_the_next_round_however_often_room_grows() -> None:
    growth = CapacityChanges()
    asked = []
    for _ in range(6):
        growth.room_may_have_grown(N1)
        first = growth.candidates(PODS, one_more)[0]
        asked.append(first)
        growth.note_refusal(first)
    assert asked == PODS * 2


def test_a_pod_that_comes_later_does_not_keep_the_next_round_from_those_that_were_refused() -> None:
    growth = CapacityChanges()
    growth.room_may_have_grown(N1)
    for uid in growth.candidates(PODS[:2], one_more):
        growth.note_refusal(uid)
    growth.room_may_have_grown(N1)
    assert growth.candidates(PODS, one_more) == PODS


def test_a_pod_that_is_forgotten_again_and_again_does_not_keep_a_round_from_its_end() -> None:
    growth = CapacityChanges()
    growth.room_may_have_grown(N1)
    for uid in growth.candidates(PODS, one_more):
        growth.note_refusal(uid)
    growth.forget_refusal(PODS[0])
    growth.room_may_have_grown(N1)
    assert growth.candidates(PODS, one_more) == PODS


def test_the_refusal_of_a_pod_answers_for_its_kind_until_room_grows() -> None:
    growth = CapacityChanges()
    growth.room_may_have_grown(N1)
    for number, uid in enumerate(reversed(PODS)):
        growth.note_refusal_of_kind(pod(uid, str(number)), "kind")
    assert growth.pods_of_kind("kind") == PODS[::-1]
    growth.room_may_have_grown(N2)
    assert growth.concerns_any_of(PODS)
    assert growth.candidates(PODS, one_more) == [PODS[2]]
    assert growth.candidates(PODS, lambda _kind: 2) == [PODS[2], PODS[1]]
    growth.note_refusal_of_kind(pod(PODS[2], "0"), "kind")
    assert not growth.concerns_any_of(PODS)
    assert growth.candidates(PODS, one_more) == []
    assert [growth.is_refused_on(N2, uid) for uid in PODS] == [True] * 3
    assert growth.nodes_changed_since_refusal(PODS[0]) == frozenset()


def test_a_pod_that_leaves_its_kind_is_asked_by_itself() -> None:
    growth = CapacityChanges()
    growth.room_may_have_grown(N1)
    for uid in PODS:
        growth.note_refusal_of_kind(pod(uid, uid), "kind")
    growth.separate(PODS[0])
    assert (growth.is_due(PODS[0]), growth.pods_of_kind("kind")) == (False, PODS[1:])
    growth.forget_refusal(PODS[1])
    assert growth.candidates(PODS, one_more) == [PODS[1]]
    growth.note_refusal(PODS[1])
    growth.room_may_have_grown(N1)
    assert growth.candidates(PODS, one_more) == PODS
