"""Whole cards of managed namespaces: one order with slices, all or none, and pods of others counted as taken."""

from dataclasses import replace

import pytest
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import NodeName
from tessera.api.pod_annotations import Gang
from tessera.controller.objects.node_info import NodeDevices
from tessera.controller.objects.pod_constraints import NodeConstraints
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.events import RefusalTimedOut
from tessera.controller.slicing.state.instructions import Evict, PatchRequests, Ungate
from tessera.reasons.reason import Full, GangNoRoom, UnknownProfile
from tessera.reasons.words import name_blockers

GPU = "nvidia.com/gpu"


def pin(cluster: SlicerCluster, pod: PodInfo) -> str:
    """The node that a pod is pinned to; empty while it waits."""
    found = cluster.pods[pod.uid]
    return "" if found.gated else found.hostname


def only_on(model: str) -> NodeConstraints:
    return NodeConstraints(selector=(("nvidia.com/gpu.product", model),), devices=frozenset({GPU}))


def test_a_pod_is_pinned_to_a_node_with_free_cards_by_one_write(cluster: SlicerCluster) -> None:
    cluster.device_node("n1", count=2)
    pod = cluster.whole("one", 2)
    cluster.settle()
    assert pin(cluster, pod) == "n1"
    assert [type(each) for each in cluster.writes] == [Ungate]


def test_cards_of_pods_that_the_scheduler_placed_count_as_taken(cluster: SlicerCluster) -> None:
    cluster.device_node("n1", count=4)
    others = cluster.whole("others", 3, gated=False, node=NodeName("n1"))
    pod = cluster.whole("two", 2)
    cluster.settle()
    reason = cluster.slicer.state.waiting[pod.uid].reason
    assert isinstance(reason, Full)
    assert {each.pod for each in reason.frees} == {"default/others"}
    assert "room comes when default/others (nvidia.com/gpu) on node n1 ends" in name_blockers(reason)
    cluster.remove(others)
    cluster.settle()
    assert pin(cluster, pod) == "n1"


def test_pods_take_turns_by_priority_and_age(cluster: SlicerCluster) -> None:
    cluster.device_node("n1", count=1)
    first = cluster.whole("first")
    cluster.settle()
    young, old = cluster.whole("young", created="5"), cluster.whole("old", created="3")
    urgent = cluster.whole("urgent", created="9", priority=7)
    cluster.settle()
    order = []
    for ended in (first, urgent, old):
        cluster.remove(ended)
        cluster.settle()
        order.append([each.name for each in (young, old, urgent) if each.uid in cluster.pods and pin(cluster, each)])
    assert order == [["urgent"], ["old"], ["young"]]


def test_the_fullest_node_with_room_is_taken(cluster: SlicerCluster) -> None:
    for name in ("n1", "n2"):
        cluster.device_node(name, count=8)
    cluster.whole("others", 5, gated=False, node=NodeName("n2"))
    small, large = cluster.whole("small", 2), cluster.whole("large", 4)
    cluster.settle()
    assert (pin(cluster, small), pin(cluster, large)) == ("n2", "n1")


@pytest.mark.parametrize(("cards", "cpu", "next_node"), [(1, 32_000, "n1"), (2, 38_000, "n2")])
def test_a_pod_with_much_cpu_does_not_strand_the_cards_beside_it(
    cluster: SlicerCluster, cards: int, cpu: int, next_node: str
) -> None:
    """Node n1 is fuller, but has too little CPU for its free cards. A small pod takes the node that is fuller then."""
    cluster.device_node("n1", count=4, allocatable={"cpu": 40_000, "pods": 110, GPU: 4})
    cluster.device_node("n2", count=8, allocatable={"cpu": 200_000, "pods": 110, GPU: 8})
    held = {"cpu": 30_000, "pods": 1, GPU: 3}
    cluster.whole("others", 3, gated=False, node=NodeName("n2"), amounts=held)
    large = cluster.whole("large", cards, amounts={"cpu": cpu, "pods": 1, GPU: cards})
    small = cluster.whole("small", amounts={"cpu": 4_000, "pods": 1, GPU: 1}, created="9")
    cluster.settle()
    assert (pin(cluster, large), pin(cluster, small)) == ("n2", next_node)


def test_a_pod_that_any_card_suits_leaves_the_model_that_others_need(cluster: SlicerCluster) -> None:
    cluster.device_node("h1", "H100", count=2)
    cluster.device_node("a1", "A100", count=2)
    needs = cluster.whole("needs", constraints=only_on("H100"))
    cluster.settle()
    assert pin(cluster, needs) == "h1"
    pods = [cluster.whole(f"any-{number}") for number in range(2)]
    cluster.settle()
    assert {pin(cluster, pod) for pod in pods} == {"a1"}
    last = cluster.whole("last")
    cluster.settle()
    assert pin(cluster, last) == "h1"


def test_prices_of_models_outlive_the_controller(cluster: SlicerCluster) -> None:
    cluster.device_node("h1", "H100", count=4)
    cluster.device_node("a1", "A100", count=2)
    cluster.whole("needs", constraints=only_on("H100"))
    cluster.settle()
    cluster.restart()
    pod = cluster.whole("any")
    cluster.settle()
    assert pin(cluster, pod) == "a1"


def test_a_gang_gets_cards_for_all_or_for_none(cluster: SlicerCluster) -> None:
    gang = Gang("default/g", "g", 3)
    for name in ("n1", "n2"):
        cluster.device_node(name, count=2)
    held = cluster.whole("held", 2, gated=False, node=NodeName("n2"))
    pods = [cluster.whole(f"g-{number}", gang=gang) for number in range(3)]
    cluster.settle()
    assert [pin(cluster, pod) for pod in pods] == ["", "", ""]
    reason = cluster.slicer.state.waiting[pods[0].uid].reason
    assert isinstance(reason, GangNoRoom)
    other = cluster.whole("other", 2)
    cluster.settle()
    assert pin(cluster, other) == "n1"
    for ended in (held, other):
        cluster.remove(ended)
        cluster.settle()
    assert all(pin(cluster, pod) for pod in pods)


def test_a_controller_that_dies_while_a_gang_leaves_the_gate_places_the_rest_before_all_others(
    cluster: SlicerCluster,
) -> None:
    cluster.namespace("default", **{"tessera.dev/placement": "managed"})
    cluster.device_node("n1", count=2)
    gang = Gang("default/g", "g", 2)
    pods = [cluster.whole(f"g-{number}", gang=gang, created="9") for number in range(2)]
    cluster.slicer.decide()
    first, _lost = [each for each in cluster.slicer.pop_writes() if isinstance(each, Ungate)]
    cluster.apply(first)
    older = cluster.whole("older", created="1", priority=9)
    cluster.resume()
    assert [pin(cluster, pod) for pod in pods] == ["n1", "n1"]
    assert not pin(cluster, older)


def test_a_restarted_controller_counts_the_cards_of_pinned_pods(cluster: SlicerCluster) -> None:
    cluster.namespace("default", **{"tessera.dev/placement": "managed"})
    cluster.device_node("n1", count=2)
    first = cluster.whole("first")
    cluster.settle()
    assert pin(cluster, first) == "n1"
    cluster.restart()
    second, third = cluster.whole("second"), cluster.whole("third")
    cluster.settle()
    assert (pin(cluster, second), pin(cluster, third)) == ("n1", "")


def test_slices_and_whole_cards_of_one_cluster_do_not_meet(cluster: SlicerCluster) -> None:
    cluster.node("cut")
    cluster.device_node("whole", count=1)
    slices, cards = cluster.pod("slices", "7g.40gb"), cluster.whole("cards")
    cluster.settle()
    assert cluster.where(slices) == [("cut", "7g.40gb", 0)]
    assert pin(cluster, cards) == "whole"
    assert not [each for each in cluster.writes if isinstance(each, PatchRequests) and cards.uid in each.put]


def test_a_node_with_both_has_slices_and_whole_cards(cluster: SlicerCluster) -> None:
    node = cluster.node("n1")
    devices = (NodeDevices(GPU, "A100", 1, 8, 40),)
    cluster.nodes[NodeName("n1")] = replace(node, devices=devices, allocatable={**node.allocatable, GPU: 1})
    cluster.restart()
    slices, cards = cluster.pod("slices", "7g.40gb"), cluster.whole("cards")
    cluster.settle()
    assert cluster.where(slices)
    assert pin(cluster, cards) == "n1"


def test_a_card_that_fails_is_not_given_twice(cluster: SlicerCluster) -> None:
    cluster.device_node("n1", count=2)
    pods = [cluster.whole(f"p{number}") for number in range(2)]
    cluster.settle()
    assert {pin(cluster, pod) for pod in pods} == {"n1"}
    for pod in pods:
        cluster.put(replace(cluster.pods[pod.uid], node=NodeName("n1")))
    cluster.device_node("n1", count=1)
    late = cluster.whole("late")
    cluster.settle()
    assert not pin(cluster, late)
    cluster.remove(cluster.pods[pods[0].uid])
    cluster.settle()
    assert not pin(cluster, late)
    cluster.remove(cluster.pods[pods[1].uid])
    cluster.settle()
    assert pin(cluster, late) == "n1"


def test_a_large_pod_gets_a_reservation_and_starts_when_the_pods_before_it_have_ended(
    new_cluster: type[SlicerCluster],
) -> None:
    cluster = new_cluster(60.0)
    cluster.device_node("n1", count=2)
    cluster.pass_time(0)
    held = [cluster.whole(f"held-{number}", created="1970-01-12T13:46:40Z") for number in range(2)]
    cluster.settle()
    large = cluster.whole("large", 2, created="1970-01-12T13:46:41Z")
    cluster.settle_and_wait(100)
    assert cluster.slicer.state.reservations[large.uid].node == "n1"
    cluster.remove(held[0])
    small = cluster.whole("small", created="1970-01-12T13:48:00Z")
    cluster.settle()
    assert not pin(cluster, small)
    cluster.remove(held[1])
    cluster.settle()
    assert pin(cluster, large) == "n1"


def test_a_queue_is_charged_for_the_cards_of_its_managed_pods_and_for_no_others(cluster: SlicerCluster) -> None:
    cluster.namespace("default", **{"tessera.dev/placement": "managed"})
    cluster.device_node("n1", count=4)
    cluster.queue("default", maximum=16)
    cluster.whole("others", 1, gated=False, node=NodeName("n1"), namespace="elsewhere")
    pods = [cluster.whole(f"p{number}") for number in range(3)]
    cluster.settle()
    assert [bool(pin(cluster, pod)) for pod in pods] == [True, True, False]
    account = cluster.slicer.state.ledger.account("default")
    assert (account.held.total(), account.gib) == (16, 80)
    assert not cluster.slicer.state.ledger.account("elsewhere").held.total()


def test_a_pod_that_its_node_refuses_is_evicted_for_its_owner_and_the_next_gets_the_cards(
    cluster: SlicerCluster,
) -> None:
    cluster.namespace("default", **{"tessera.dev/placement": "managed"})
    cluster.device_node("n1", count=1)
    refused = cluster.whole("refused", owner="set")
    cluster.settle()
    cluster.put(replace(cluster.pods[refused.uid], unschedulable_message="volume node affinity conflict", version=7))
    cluster.settle()
    assert refused.uid in cluster.slicer.state.pods.cannot_start
    cluster.slicer.handle(RefusalTimedOut(refused.uid, 1e9))
    following = cluster.whole("following")
    cluster.settle()
    assert [each.name for each in cluster.writes if isinstance(each, Evict)] == ["refused"]
    assert pin(cluster, following) == "n1"


def test_a_refused_pod_without_an_owner_is_told_and_holds_no_card(cluster: SlicerCluster) -> None:
    cluster.namespace("default", **{"tessera.dev/placement": "managed"})
    cluster.device_node("n1", count=1)
    refused = cluster.whole("refused")
    cluster.settle()
    cluster.put(replace(cluster.pods[refused.uid], unschedulable_message="volume node affinity conflict", version=7))
    cluster.settle()
    cluster.slicer.handle(RefusalTimedOut(refused.uid, 1e9))
    following = cluster.whole("following")
    cluster.settle()
    assert pin(cluster, following) == "n1"
    assert cluster.pods[refused.uid].slices_withdrawn
    cluster.resume()
    assert [each.owner for each in cluster.slicer.state.allocations] == ["default/following"]


def test_a_pod_that_lost_its_cards_to_a_faster_one_is_taken_back_also_by_the_next_controller(
    cluster: SlicerCluster,
) -> None:
    cluster.namespace("default", **{"tessera.dev/placement": "managed"})
    cluster.device_node("n1", count=1)
    slower = cluster.whole("slower")
    cluster.settle()
    cluster.whole("faster", gated=False, node=NodeName("n1"), namespace="other")
    cluster.put(replace(cluster.pods[slower.uid], unschedulable_message="Insufficient nvidia.com/gpu", version=7))
    cluster.resume()
    cluster.slicer.handle(RefusalTimedOut(slower.uid, 1e9))
    cluster.settle()
    assert cluster.pods[slower.uid].slices_withdrawn


def test_a_pod_whose_node_has_gone_is_taken_back_also_by_the_next_controller(cluster: SlicerCluster) -> None:
    cluster.namespace("default", **{"tessera.dev/placement": "managed"})
    cluster.device_node("n1", count=1)
    pinned = cluster.whole("pinned", owner="set")
    cluster.settle()
    cluster.put(replace(cluster.pods[pinned.uid], unschedulable_message="no node matches", version=7))
    del cluster.nodes[NodeName("n1")]
    cluster.resume()
    cluster.slicer.handle(RefusalTimedOut(pinned.uid, 1e9))
    cluster.settle()
    assert pinned.uid not in cluster.pods


def test_a_pod_that_took_promised_cards_holds_them_all_once_the_other_has_left(cluster: SlicerCluster) -> None:
    cluster.namespace("default", **{"tessera.dev/placement": "managed"})
    cluster.device_node("n1", count=4)
    pinned = cluster.whole("pinned", 3)
    cluster.settle()
    faster = cluster.whole("faster", 4, gated=False, node=NodeName("n1"), namespace="other")
    cluster.settle()
    cluster.remove(cluster.pods[pinned.uid])
    cluster.settle()
    allocation = cluster.slicer.state.allocations.current_of(faster.uid)
    assert allocation is not None
    assert len(allocation.slices) == 4


def test_a_cluster_without_such_pods_has_no_whole_cards_in_its_fleet(cluster: SlicerCluster) -> None:
    cluster.node("cut")
    cluster.device_node("n1", count=4)
    cluster.whole("others", 1, gated=False, node=NodeName("n1"))
    cluster.settle()
    assert cluster.slicer.state.inventory.fleet.nodes == ("cut",)


def test_a_cluster_without_whole_cards_says_so(cluster: SlicerCluster) -> None:
    cluster.node("cut")
    pod = cluster.whole("one")
    cluster.settle()
    reason = cluster.slicer.state.waiting[pod.uid].reason
    assert isinstance(reason, UnknownProfile)


def test_a_label_of_a_namespace_concerns_its_own_pods_alone(cluster: SlicerCluster) -> None:
    """A tenant who creates namespaces cannot make the controller count all pods of the cluster each time."""
    cluster.device_node("n1", count=4)
    mine, others = (cluster.whole(name, gated=False, namespace=name, node=NodeName("n1")) for name in ("a", "b"))
    cluster.namespace("a", **{"tessera.dev/placement": "managed"})
    cluster.settle()
    for labels in ({}, {"tessera.dev/placement": "managed"}, {"tessera.dev/queue": "q"}):
        cluster.namespace("a", **labels)
        cluster.namespace("empty", **labels)
        assert cluster.slicer.state.cluster.changed_pods == {mine.uid}
        cluster.settle()
    cluster.namespace("empty")
    assert not cluster.slicer.has_work
    assert others.uid not in cluster.slicer.state.cluster.changed_pods


@pytest.mark.parametrize("restarts", [False, True])
def test_a_pinned_pod_holds_its_cards_after_its_namespace_has_lost_the_label(
    cluster: SlicerCluster, *, restarts: bool
) -> None:
    """While it is not bound, only the controller that has pinned it knows."""
    cluster.namespace("default", **{"tessera.dev/placement": "managed"})
    cluster.device_node("n1", count=2)
    first = cluster.whole("first", 2)
    cluster.settle()
    cluster.namespace("default")
    if restarts:
        cluster.restart()
        cluster.put(replace(cluster.pods[first.uid], node=NodeName("n1")))
    second = cluster.whole("second")
    cluster.settle()
    assert isinstance(cluster.slicer.state.waiting[second.uid].reason, Full)
    cluster.remove(first)
    cluster.settle()
    assert pin(cluster, second) == "n1"


@pytest.mark.parametrize("labels", [{}, {"tessera.dev/placement": "managed"}])
def test_a_mark_counts_in_managed_namespaces_only(cluster: SlicerCluster, labels: dict[str, str]) -> None:
    """Outside of them its author may have written it."""
    cluster.namespace("default", **labels)
    cluster.namespace("team", **{"tessera.dev/placement": "managed"})
    cluster.device_node("n1", count=2)
    marked = cluster.whole("marked", 2, gated=False, hostname="n1")
    cluster.put(replace(marked, pinned=True, version=7))
    other = cluster.whole("other", 2, namespace="team")
    cluster.settle()
    assert (other.uid in cluster.slicer.state.waiting) is bool(labels)


def test_a_pod_that_names_a_host_by_itself_holds_no_cards_there(cluster: SlicerCluster) -> None:
    cluster.device_node("n1", count=2)
    cluster.whole("own", 2, gated=False, hostname="n1")
    other = cluster.whole("other", 2)
    cluster.settle()
    assert pin(cluster, other) == "n1"
