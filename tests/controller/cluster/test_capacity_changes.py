"""Who is asked again about which nodes, and that everybody's turn comes."""

from tessera.api.names import NodeName, PodUid
from tessera.controller.cluster.capacity_changes import Growth

N1, N2 = NodeName("n1"), NodeName("n2")
PODS = [PodUid(name) for name in "abc"]


def test_a_new_pod_is_asked_about_all_nodes_and_a_refused_one_about_what_changed() -> None:
    growth = Growth()
    growth.at(N1)
    assert growth.candidates(PODS) == PODS
    assert growth.since_refusal(PODS[0]) is None
    growth.refuse(PODS[0])
    growth.at(N2)
    assert growth.since_refusal(PODS[0]) == frozenset({N2})
    growth.refuse(PODS[0])
    assert growth.since_refusal(PODS[0]) == frozenset()
    growth.at(N1)
    growth.at(N2)
    growth.remove(N2)
    assert growth.since_refusal(PODS[0]) == frozenset({N1})
    growth.everywhere()
    assert growth.since_refusal(PODS[0]) is None


def test_nobody_is_asked_for_nothing() -> None:
    growth = Growth()
    growth.at(N1)
    for pod in growth.candidates(PODS):
        growth.refuse(pod)
    assert not growth.concerns(PODS)
    assert growth.candidates(PODS) == []
    growth.forget(PODS[1])
    assert growth.concerns(PODS)
    assert growth.candidates(PODS) == [PODS[1]]


def test_whoever_was_asked_waits_for_the_next_round_however_often_room_grows() -> None:
    growth = Growth()
    asked = []
    for _ in range(6):
        growth.at(N1)
        first = growth.candidates(PODS)[0]
        asked.append(first)
        growth.refuse(first)
    assert asked == PODS * 2
