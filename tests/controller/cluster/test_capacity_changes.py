"""Pods that are planned again after a change of capacity, with the nodes to look at, each in its turn."""

from tessera.api.names import NodeName, PodUid
from tessera.controller.cluster.cluster_state import CapacityChanges

N1, N2 = NodeName("n1"), NodeName("n2")
PODS = [PodUid(name) for name in "abc"]


def test_a_new_pod_is_asked_about_all_nodes_and_a_refused_one_about_what_changed() -> None:
    growth = CapacityChanges()
    growth.room_may_have_grown(N1)
    assert growth.candidates(PODS) == PODS
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
    for pod in growth.candidates(PODS):
        growth.note_refusal(pod)
    assert not growth.concerns_any_of(PODS)
    assert growth.candidates(PODS) == []
    growth.forget_refusal(PODS[1])
    assert growth.concerns_any_of(PODS)
    assert growth.candidates(PODS) == [PODS[1]]


def test_whoever_was_asked_waits_for_the_next_round_however_often_room_grows() -> None:
    growth = CapacityChanges()
    asked = []
    for _ in range(6):
        growth.room_may_have_grown(N1)
        first = growth.candidates(PODS)[0]
        asked.append(first)
        growth.note_refusal(first)
    assert asked == PODS * 2
