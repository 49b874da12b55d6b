"""Reservations: slots are kept for a pod that has waited long enough, and younger pods run past only beside them."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import GATE, MIG_CONFIG_LABEL, NodeName, PodUid
from tessera.clock import rfc3339
from tessera.controller.objects.pod_constraints import NodeConstraints, PodAffinityRule, PodRelations, PodSelection
from tessera.controller.objects.pod_info import PodInfo, read_pod
from tessera.controller.slicing import batch_placement
from tessera.controller.slicing.state.events import EndsExpected, NodeObserved, StorageListed
from tessera.controller.slicing.state.node_records import RESERVATIONS_ANNOTATION
from tessera.kube.resources import Container, ObjectMeta, Pod, PodSpec, ResourceRequirements, SchedulingGate
from tessera.kube.resources.meta import Uid
from tessera.kube.resources.selectors import Requirement
from tessera.limits import DECISION_STEPS
from tessera.placement.reserved_slots import RESERVATION_SEARCHES
from tessera.reasons.reason import NeverFits, Reserved
from tessera.reasons.words import name_blockers, sentence


@pytest.fixture
def cluster() -> SlicerCluster:
    """Reservations are made after 60 s."""
    made = SlicerCluster(reserve_after=60.0)
    made.pass_time(0)
    return made


def waiting(cluster: SlicerCluster, name: str, *profiles: str, **facts: Any) -> PodInfo:
    """A pod that is created now."""
    return cluster.pod(name, *profiles, created=rfc3339(cluster.date), **facts)


def running(cluster: SlicerCluster, name: str, *profiles: str, **facts: Any) -> PodInfo:
    """A pod that is created now and starts on the node of its slices."""
    pod = waiting(cluster, name, *profiles, **facts)
    cluster.settle()
    return start(cluster, pod)


def start(cluster: SlicerCluster, pod: PodInfo) -> PodInfo:
    """Kubelet takes a pod that has slices."""
    ((node, _, _), *_) = cluster.where(pod)
    return cluster.put(replace(cluster.pods[pod.uid], node=NodeName(node), started=cluster.date))


def on(node: str) -> NodeConstraints:
    """A pod runs on this node only."""
    return NodeConstraints(selector=(("kubernetes.io/hostname", node),))


def anti_affine(app: str) -> PodRelations:
    """Pods of this app, of the same namespace, must not be on the node."""
    selection = PodSelection(frozenset({"default"}), None, (Requirement("app", "In", (app,)),))
    return PodRelations(anti_affinity=(PodAffinityRule(selection, "kubernetes.io/hostname"),))


def reserved(cluster: SlicerCluster) -> dict[str, list[int]]:
    """The starts that are reserved, by pod."""
    found = cluster.slicer.state.reservations.values()
    return {each.key: [part.start for part in each.slices] for each in found}


def test_a_large_pod_starts_when_the_older_two_have_ended_though_small_ones_keep_coming(
    cluster: SlicerCluster,
) -> None:
    cluster.node("n1")
    holders = [running(cluster, f"old{i}", "3g.20gb") for i in range(2)]
    big = waiting(cluster, "big", "7g.40gb")
    cluster.settle_and_wait(60)
    young = [waiting(cluster, f"young{i}", "3g.20gb") for i in range(3)]
    cluster.settle()
    cluster.remove(holders[0])
    cluster.wait(1)
    young += [waiting(cluster, f"late{i}", "3g.20gb") for i in range(3)]
    cluster.settle()
    assert not any(map(cluster.where, [big, *young]))
    cluster.remove(holders[1])
    cluster.settle()
    assert cluster.where(big)
    assert not any(map(cluster.where, young))
    cluster.remove(big)
    cluster.settle()
    assert [bool(cluster.where(pod)) for pod in young] == [True, True, False, False, False, False]


def test_the_pod_is_told_where_slots_are_kept_and_for_whose_end_it_waits(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    running(cluster, "a", "3g.20gb", deadline=600.0)
    running(cluster, "b", "3g.20gb", deadline=900.0)
    big = waiting(cluster, "big", "7g.40gb")
    cluster.settle()
    assert not reserved(cluster)
    cluster.wait(60)
    told = [tell for tell in cluster.told if tell.uid == big.uid]
    assert [tell.reason for tell in told] == ["SliceWaiting", "SliceReserved"]
    assert told[1].message == (
        "Reserved for 7g.40gb: 7g.40gb on GPU 0, memory slots 0-7, on node n1; younger pods do not get these slots."
        " They are free when default/a, default/b end"
    )


def test_younger_pods_run_past_beside_the_reserved_slots_and_not_on_them(cluster: SlicerCluster) -> None:
    cluster.node("n1", count=2)
    first = running(cluster, "first", "3g.20gb", deadline=100.0)
    other = [running(cluster, f"other{i}", "3g.20gb") for i in range(3)]
    big = waiting(cluster, "big", "7g.40gb")
    cluster.settle_and_wait(60)
    kept = next(iter(cluster.slicer.state.reservations.values())).slices[0].gpu_uuid
    before = [first, *other]
    beside = [pod for pod in before if not on_card(cluster, pod, kept)]
    on = [pod for pod in before if pod not in beside]
    cluster.remove(beside[0])
    young = [waiting(cluster, f"young{i}", "3g.20gb") for i in range(2)]
    cluster.settle()
    assert [bool(cluster.where(pod)) for pod in young] == [True, False]
    for pod in on:
        cluster.remove(pod)
    cluster.settle()
    assert cluster.where(big)


def on_card(cluster: SlicerCluster, pod: PodInfo, gpu: str) -> bool:
    """True if a pod's slices are on a card."""
    found = cluster.slicer.state.allocations.current_of(pod.uid)
    return any(each.gpu_uuid == gpu for each in found.slices)


def test_the_place_that_empties_soonest_is_chosen(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    cluster.node("n2")
    long = running(cluster, "long", "7g.40gb", deadline=5000.0)
    short = running(cluster, "short", "7g.40gb", deadline=500.0)
    waiting(cluster, "big", "3g.20gb", "4g.20gb")
    cluster.settle_and_wait(60)
    (found,) = cluster.slicer.state.reservations.values()
    assert found.node == cluster.where(short)[0][0] != cluster.where(long)[0][0]


def test_of_pods_without_a_deadline_the_older_is_taken_to_run_longer(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    service = running(cluster, "service", "7g.40gb")
    cluster.wait(5000)
    cluster.node("n2")
    job = running(cluster, "job", "7g.40gb")
    waiting(cluster, "big", "7g.40gb")
    cluster.settle_and_wait(60)
    (found,) = cluster.slicer.state.reservations.values()
    assert found.node == cluster.where(job)[0][0] != cluster.where(service)[0][0]


def test_a_pod_that_ends_before_the_slots_are_expected_to_be_free_may_use_them(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    running(cluster, "old", "3g.20gb", deadline=1000.0)
    gone = running(cluster, "gone", "3g.20gb", deadline=1000.0)
    big = waiting(cluster, "big", "7g.40gb")
    cluster.settle_and_wait(60)
    cluster.remove(gone)
    long = waiting(cluster, "long", "3g.20gb", deadline=2000.0)
    short = waiting(cluster, "short", "3g.20gb", deadline=300.0)
    cluster.settle()
    assert [bool(cluster.where(pod)) for pod in (big, long, short)] == [False, False, True]
    assert "default/big" in reserved(cluster), "the pod that passes does not end the reservation"


def test_a_pod_that_leaves_the_gate_for_a_fixed_layout_does_not_stop_those_behind_it(cluster: SlicerCluster) -> None:
    """The step that let the first one go once gave no reserved slots to the next one, which waited until a change."""
    cluster.node("n1")
    running(cluster, "old", "3g.20gb", deadline=1000.0)
    gone = running(cluster, "gone", "3g.20gb", deadline=1000.0)
    waiting(cluster, "big", "7g.40gb")
    cluster.settle_and_wait(60)
    cluster.device_node("fixed", count=0, fixed_profiles=frozenset({"1g.12gb"}))
    cluster.remove(gone)
    cluster.settle()
    other = waiting(cluster, "other", "1g.12gb", deadline=300.0)
    short = waiting(cluster, "short", "3g.20gb", deadline=300.0)
    cluster.settle()
    assert (cluster.pods[other.uid].gated, bool(cluster.where(short))) == (False, True)


def test_a_pod_that_may_ignore_its_deadline_for_days_does_not_get_reserved_slots(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    running(cluster, "old", "3g.20gb", deadline=1000.0)
    gone = running(cluster, "gone", "3g.20gb", deadline=1000.0)
    waiting(cluster, "big", "7g.40gb")
    cluster.settle_and_wait(60)
    cluster.remove(gone)
    stubborn = created_as(cluster, "stubborn", 1_000_000)
    cluster.settle()
    assert not cluster.where(stubborn)
    plain = created_as(cluster, "plain", None)
    cluster.settle()
    assert cluster.where(plain)


def created_as(cluster: SlicerCluster, name: str, grace: int | None) -> PodInfo:
    """A pod of a minute as its author writes it, with this grace period."""
    container = Container(name="c", resources=ResourceRequirements(limits={"nvidia.com/mig-3g.20gb": "1"}))
    spec = PodSpec(
        containers=(container,),
        scheduling_gates=(SchedulingGate(name=GATE),),
        active_deadline_seconds=60,
        termination_grace_period_seconds=grace,
    )
    metadata = ObjectMeta(
        name=name, namespace="default", uid=Uid(f"uid-{name}"), creation_timestamp=rfc3339(cluster.date)
    )
    return cluster.put(read_pod(Pod(metadata=metadata, spec=spec)))


def test_the_reason_names_the_pod_for_which_the_slots_are_kept(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    running(cluster, "old", "3g.20gb")
    gone = running(cluster, "gone", "3g.20gb")
    waiting(cluster, "big", "7g.40gb")
    cluster.settle_and_wait(60)
    cluster.remove(gone)
    young = waiting(cluster, "young", "3g.20gb")
    cluster.settle()
    reason = cluster.slicer.state.waiting[young.uid].reason
    assert isinstance(reason, Reserved)
    assert sentence(reason) == "the free memory slots that would do for 3g.20gb are reserved for 1 pod that goes first"
    assert name_blockers(reason) == "first goes default/big"


def test_a_higher_priority_takes_reserved_slots(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    gone = running(cluster, "gone", "3g.20gb")
    running(cluster, "old", "3g.20gb")
    waiting(cluster, "big", "7g.40gb")
    cluster.settle_and_wait(60)
    urgent = waiting(cluster, "urgent", "3g.20gb", priority=5)
    cluster.remove(gone)
    cluster.settle()
    assert cluster.where(urgent)


def test_a_reservation_is_kept_if_a_pod_of_higher_priority_finds_no_place(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    cluster.node("other")
    elsewhere = restricted("other")
    running(cluster, "service", "7g.40gb", constraints=elsewhere, deadline=1_000_000.0)
    running(cluster, "old", "7g.40gb")
    waiting(cluster, "big", "7g.40gb")
    cluster.settle_and_wait(60)
    before = list(cluster.slicer.state.reservations.values())
    assert [each.key for each in before] == ["default/big"]
    waiting(cluster, "urgent", "7g.40gb", priority=5, namespace="urgent", constraints=elsewhere)
    cluster.settle_and_wait(60)
    assert list(cluster.slicer.state.reservations.values()) == before


def test_at_the_bound_the_pod_of_higher_priority_replaces_the_last_reservation(cluster: SlicerCluster) -> None:
    for name in ("n1", "n2"):
        cluster.node(name)
        running(cluster, f"old-{name}", "7g.40gb", constraints=restricted(name))
    waiting(cluster, "big", "7g.40gb", constraints=restricted("n1"))
    cluster.settle_and_wait(60)
    assert list(reserved(cluster)) == ["default/big"]
    waiting(cluster, "urgent", "7g.40gb", priority=5, namespace="urgent", constraints=restricted("n2"))
    cluster.settle_and_wait(60)
    assert list(reserved(cluster)) == ["urgent/urgent"]


def restricted(node: str) -> NodeConstraints:
    """Constraints that only one node meets."""
    return NodeConstraints(selector=(("kubernetes.io/hostname", node),))


def test_the_reservation_ends_with_its_pod_and_others_get_the_room(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    running(cluster, "old", "3g.20gb")
    gone = running(cluster, "gone", "3g.20gb")
    big = waiting(cluster, "big", "7g.40gb")
    cluster.settle_and_wait(60)
    cluster.remove(gone)
    young = waiting(cluster, "young", "3g.20gb")
    cluster.settle()
    cluster.remove(big)
    cluster.settle()
    assert cluster.where(young)
    assert not reserved(cluster)


def test_no_slot_stays_idle_for_a_pod_that_its_node_refuses(cluster: SlicerCluster) -> None:
    cluster.node("n1", allocatable={"cpu": 8000, "pods": 110})
    old = running(cluster, "old", "7g.40gb")
    big = waiting(cluster, "big", "7g.40gb", amounts={"cpu": 8000, "pods": 1})
    cluster.settle_and_wait(60)
    assert reserved(cluster)
    cluster.pod("plain", gates=(), node=NodeName("n1"), amounts={"cpu": 4000, "pods": 1})
    cluster.remove(old)
    young = waiting(cluster, "young", "3g.20gb")
    cluster.settle()
    assert not cluster.where(big)
    assert cluster.where(young)
    assert not reserved(cluster)


def test_no_slot_stays_idle_for_a_pod_that_volumes_keep_off_all_nodes(cluster: SlicerCluster) -> None:
    """Its slots were kept until the last holder had ended, though the pod could start nowhere."""
    cluster.slicer.handle(StorageListed())
    for name in ("n1", "n2"):
        cluster.node(name)
        running(cluster, f"on-{name}", "4g.20gb", constraints=restricted(name))
    large = waiting(cluster, "large", "7g.40gb")
    cluster.wait(61)
    assert large.uid in cluster.slicer.state.reservations
    cluster.put(replace(cluster.pods[large.uid], claims=("default/elsewhere",)))
    small = [waiting(cluster, f"small-{number}", "3g.20gb") for number in range(2)]
    cluster.wait(1)
    assert not cluster.slicer.state.reservations
    assert all(cluster.where(pod) for pod in small)


def test_cpu_that_the_pod_needs_is_kept_too(cluster: SlicerCluster) -> None:
    cluster.node("n1", count=2, allocatable={"cpu": 8000, "pods": 110})
    old = running(cluster, "old", "7g.40gb", amounts={"cpu": 4000, "pods": 1}, deadline=100.0)
    gone = running(cluster, "gone", "7g.40gb", amounts={"cpu": 4000, "pods": 1}, deadline=2000.0)
    big = waiting(cluster, "big", "7g.40gb", amounts={"cpu": 6000, "pods": 1})
    cluster.settle_and_wait(60)
    assert reserved(cluster)
    cluster.remove(gone)
    waiting(cluster, "small", "1g.5gb", amounts={"cpu": 4000, "pods": 1})
    cluster.settle()
    cluster.remove(old)
    cluster.settle()
    assert cluster.where(big)


def test_free_slots_are_kept_while_a_pod_on_another_card_still_holds_the_cpu(cluster: SlicerCluster) -> None:
    cluster.node("n1", count=2, allocatable={"cpu": 8000, "pods": 110})
    pods = [running(cluster, f"p{i}", "7g.40gb", amounts={"cpu": 4000, "pods": 1}, deadline=600.0) for i in range(2)]
    big = waiting(cluster, "big", "7g.40gb", amounts={"cpu": 6000, "pods": 1})
    cluster.settle_and_wait(60)
    (found,) = cluster.slicer.state.reservations.values()
    first, last = sorted(pods, key=lambda pod: not on_card(cluster, pod, found.slices[0].gpu_uuid))
    cluster.remove(first)
    cluster.settle()
    small = waiting(cluster, "small", "1g.5gb", amounts={"cpu": 4000, "pods": 1})
    cluster.settle()
    assert list(cluster.slicer.state.reservations.values()) == [found]
    assert not cluster.where(small)
    cluster.remove(last)
    cluster.settle()
    assert cluster.where(big)


def test_free_slots_are_no_longer_kept_when_the_cpu_comes_later_than_expected(cluster: SlicerCluster) -> None:
    cluster.node("n1", count=2, allocatable={"cpu": 8000, "pods": 110})
    pods = [running(cluster, f"p{i}", "7g.40gb", amounts={"cpu": 4000, "pods": 1}, deadline=600.0) for i in range(2)]
    waiting(cluster, "big", "7g.40gb", amounts={"cpu": 6000, "pods": 1})
    cluster.settle_and_wait(60)
    (found,) = cluster.slicer.state.reservations.values()
    first, second = sorted(pods, key=lambda pod: not on_card(cluster, pod, found.slices[0].gpu_uuid))
    cluster.remove(first)
    cluster.settle()
    cluster.protected.add(second.uid)  # it stays beyond its deadline
    cluster.wait(1200)
    small = waiting(cluster, "small", "1g.5gb", amounts={"cpu": 4000, "pods": 1})
    cluster.settle()
    assert cluster.where(small)


def test_a_service_of_days_gets_no_reservation_behind_it(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    running(cluster, "service", "1g.5gb")
    cluster.wait(200_000)
    waiting(cluster, "big", "7g.40gb")
    cluster.settle_and_wait(60)
    small = waiting(cluster, "small", "3g.20gb")
    cluster.settle()
    assert not reserved(cluster)
    assert cluster.where(small)


@pytest.mark.parametrize(("reserve_after", "made"), [(None, False), (0.0, True), (600.0, False)])
def test_off_always_and_after_an_age(reserve_after: float | None, made: bool) -> None:
    cluster = SlicerCluster(reserve_after)
    cluster.pass_time(0)
    cluster.node("n1")
    running(cluster, "old", "3g.20gb")
    waiting(cluster, "big", "7g.40gb")
    cluster.settle_and_wait(60)
    young = waiting(cluster, "young", "3g.20gb")
    cluster.settle()
    assert bool(reserved(cluster)) is made
    assert bool(cluster.where(young)) is not made


def test_always_keeps_the_slots_from_pods_of_the_same_batch(cluster: SlicerCluster) -> None:
    cluster = SlicerCluster(0.0)
    cluster.pass_time(0)
    cluster.node("n1")
    running(cluster, "old", "3g.20gb")
    big = cluster.pod("big", "7g.40gb", created=rfc3339(cluster.date))
    young = cluster.pod("young", "3g.20gb", created=rfc3339(cluster.date + 1))
    cluster.settle()
    assert reserved(cluster) == {big.key: [0]}
    assert not cluster.where(young)


def test_one_queue_has_one_reservation(cluster: SlicerCluster) -> None:
    cluster.node("n1", count=8)
    for number in range(8):
        running(cluster, f"old{number}", "3g.20gb")
        running(cluster, f"older{number}", "3g.20gb")
    for number in range(4):
        waiting(cluster, f"big{number}", "7g.40gb")
    cluster.settle_and_wait(60)
    assert list(reserved(cluster)) == ["default/big0"]


def test_reservations_of_many_queues_keep_a_quarter_of_the_slots_at_most_beside_the_first(
    cluster: SlicerCluster,
) -> None:
    cluster.node("n1", count=8)
    for number in range(16):
        running(cluster, f"old{number}", "3g.20gb")
    for number in range(8):
        pod = waiting(cluster, f"big{number}", "7g.40gb")
        cluster.remove(pod)
        cluster.put(replace(pod, namespace=f"team-{number}"))
    cluster.settle_and_wait(60)
    assert sum(each.slots for each in cluster.slicer.state.reservations.values()) <= 64 * 25 // 100 + 8


def test_a_new_process_makes_the_same_reservation(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    running(cluster, "old", "3g.20gb")
    gone = running(cluster, "gone", "3g.20gb")
    big = waiting(cluster, "big", "7g.40gb")
    cluster.settle_and_wait(60)
    before = reserved(cluster)
    cluster.restart()
    cluster.remove(gone)
    young = waiting(cluster, "young", "3g.20gb")
    cluster.settle()
    assert reserved(cluster) == before == {big.key: [0]}
    assert not cluster.where(young)


def test_a_new_process_keeps_the_place_that_was_recorded(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    running(cluster, "old", "7g.40gb", deadline=100.0)
    big = waiting(cluster, "big", "7g.40gb")
    cluster.settle_and_wait(60)
    cluster.node("n2")
    running(cluster, "sooner", "7g.40gb", deadline=10.0, priority=5)
    cluster.resume()
    (found,) = cluster.slicer.state.reservations.values()
    assert (found.key, found.node) == (big.key, NodeName("n1"))
    cluster.remove(big)
    cluster.settle()
    assert RESERVATIONS_ANNOTATION not in cluster.read("n1").metadata.annotations


def entry(uid: str, start: int, patience: str = "1") -> str:
    """A recorded reservation of the one card's whole."""
    pod = f'{{"namespace":"default","name":"big","uid":"{uid}"}}'
    part = f'{{"id":"a","profile":"7g.40gb","gpuUUID":"GPU-n1-0","start":{start},"size":8}}'
    facts = f'"queue":"default","number":1,"made":1,"until":1,"patience":{patience}'
    return f'[{{"podRef":{pod},{facts},"slices":[{part}]}}]'


@pytest.mark.parametrize(
    "text",
    [
        "x" * 100_000,
        "{",
        "[{}]",
        f'[{{"x":{"[" * 30_000}',
        entry("uid-big", 5),
        entry("uid-big", 0, "1e999"),
        entry("other", 0),
    ],
    ids=["long", "no JSON", "no fields", "deep", "off the card", "infinite", "another pod"],
)
def test_a_forged_record_counts_for_nothing_and_is_removed(cluster: SlicerCluster, text: str) -> None:
    cluster.node("n1")
    waiting(cluster, "big", "7g.40gb", "7g.40gb")
    cluster.patch("n1", {"metadata": {"annotations": {RESERVATIONS_ANNOTATION: text}}})
    cluster.settle()
    young = waiting(cluster, "young", "7g.40gb")
    cluster.settle()
    assert cluster.where(young)
    assert not reserved(cluster)
    assert RESERVATIONS_ANNOTATION not in cluster.read("n1").metadata.annotations


def test_a_reservation_leaves_a_node_that_is_cordoned(cluster: SlicerCluster) -> None:
    first = cluster.node("n1")
    old = running(cluster, "old", "7g.40gb", deadline=100.0)
    cluster.node("n2")
    running(cluster, "other", "7g.40gb", deadline=1000.0)
    big = waiting(cluster, "big", "7g.40gb")
    cluster.settle_and_wait(60)
    (found,) = cluster.slicer.state.reservations.values()
    assert found.node == cluster.where(old)[0][0] == first.name
    cluster.nodes[first.name] = replace(cluster.nodes[first.name], cordoned=True)
    cluster.slicer.handle(NodeObserved(cluster.nodes[first.name]))
    cluster.settle()
    (found,) = cluster.slicer.state.reservations.values()
    assert (found.key, found.node) == (big.key, NodeName("n2"))


def test_a_cordon_of_many_nodes_costs_no_more_searches_in_one_decision_than_the_limit(cluster: SlicerCluster) -> None:
    moving = int(RESERVATION_SEARCHES) + 2
    nodes = [cluster.node(f"n{number:02}").name for number in range(4 * moving)]
    for number, name in enumerate(nodes):
        running(cluster, f"old-{name}", "7g.40gb", constraints=restricted(name), deadline=1000.0 + number)
    for number in range(moving):
        waiting(cluster, f"big{number}", "7g.40gb", namespace=f"team-{number}")
    cluster.settle_and_wait(60)
    assert reserved_nodes(cluster) == set(nodes[:moving])
    for name in nodes[:moving]:
        cluster.nodes[name] = replace(cluster.nodes[name], cordoned=True)
        cluster.slicer.handle(NodeObserved(cluster.nodes[name]))
    cluster.slicer.decide()
    assert len(reserved_nodes(cluster) & set(nodes[:moving])) == moving - RESERVATION_SEARCHES
    cluster.settle()
    assert reserved_nodes(cluster) == set(nodes[moving : 2 * moving])


def reserved_nodes(cluster: SlicerCluster) -> set[NodeName]:
    """The nodes of all reservations."""
    return {each.node for each in cluster.slicer.state.reservations.values()}


def test_a_pod_that_no_empty_card_could_hold_gets_none(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    running(cluster, "old", "3g.20gb")
    never = waiting(cluster, "never", "7g.40gb", "7g.40gb")
    waiting(cluster, "big", "7g.40gb")
    cluster.settle_and_wait(60)
    assert list(reserved(cluster)) == ["default/big"]
    assert isinstance(cluster.slicer.state.waiting[never.uid].reason, NeverFits)


def test_slots_are_kept_where_leases_like_those_end_first_though_the_others_are_younger(
    cluster: SlicerCluster,
) -> None:
    cluster.node("n1", count=2)
    old = running(cluster, "old", "7g.40gb")
    cluster.wait(1000)
    young = running(cluster, "young", "7g.40gb")
    ends = {old.uid: cluster.date + 200, young.uid: cluster.date + 5000, PodUid("gone"): 1.0}
    cluster.slicer.handle(EndsExpected(ends))
    pod = waiting(cluster, "next", "7g.40gb")
    cluster.wait(61)
    (found,) = cluster.slicer.state.reservations.values()
    assert found.uid == pod.uid
    assert found.holders == {old.uid}
    assert found.until == pytest.approx(ends[old.uid])
    cluster.remove(young)
    cluster.slicer.handle(EndsExpected({}))
    assert cluster.slicer.state.expected_ends == {old.uid: ends[old.uid]}


def test_a_deadline_bounds_what_is_learned(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    holder = running(cluster, "holder", "7g.40gb", deadline=500)
    cluster.slicer.handle(EndsExpected({holder.uid: cluster.date + 9000}))
    waiting(cluster, "next", "7g.40gb")
    cluster.wait(61)
    (found,) = cluster.slicer.state.reservations.values()
    assert found.until - cluster.date < 500


@pytest.mark.parametrize("gone_by", [86_000.0, -3_600.0], ids=["long-grace-period", "late"])
def test_a_pod_that_is_deleted_and_does_not_go_draws_no_reservation(cluster: SlicerCluster, gone_by: float) -> None:
    """Its author chooses the grace period, and a finalizer holds its object for ever."""
    for node in ("n1", "n2"):
        cluster.node(node)
    stays, ends = (running(cluster, name, "7g.40gb") for name in ("stays", "ends"))
    cluster.put(replace(cluster.pods[stays.uid], terminating=True, gone_by=cluster.date + gone_by))
    waiting(cluster, "big", "7g.40gb")
    cluster.settle_and_wait(60)
    (found,) = cluster.slicer.state.reservations.values()
    assert found.node == cluster.pods[ends.uid].node


def test_slots_kept_for_a_pod_that_starts_elsewhere_are_free_for_the_next_one_at_once() -> None:
    cluster = SlicerCluster(reserve_after=0.0)
    cluster.pass_time(0)
    cluster.node("n1")
    soon = cluster.pod("soon", "2g.10gb", deadline=1010.0, created=rfc3339(cluster.date))
    other = cluster.pod("other", "2g.10gb", created=rfc3339(cluster.date))
    cluster.pod("stays", "3g.20gb")
    cluster.settle()
    cluster.node("n2")
    names = (("large", "4g.20gb"), ("tight", "2g.10gb"), ("small", "1g.5gb"))
    tight = [cluster.pod(name, profile, created=rfc3339(cluster.date)) for name, profile in names][1]
    cluster.settle()
    for pod in list(cluster.pods.values()):
        cluster.put(replace(pod, node=NodeName(pod.hostname), started=cluster.date))
    cluster.pass_time(1000)
    first = cluster.pod("first", "2g.10gb", priority=1, created=rfc3339(cluster.date))
    second = cluster.pod("second", "4g.20gb", priority=1, created=rfc3339(cluster.date + 1))
    cluster.settle()
    assert [(each.node, each.key) for each in cluster.slicer.state.reservations.values()] == [("n1", first.key)]
    late = cluster.pod("late", "1g.5gb", created=rfc3339(cluster.date + 2))
    cluster.settle()
    for pod in (soon, other, tight):
        cluster.remove(pod)
    cluster.run()
    cluster.agents()
    cluster.settle()
    assert [name for name, _, _ in cluster.where(first)] == ["n2"]
    assert cluster.where(second)
    assert not cluster.where(late)


def test_a_reservation_takes_no_slot_from_an_older_pod_that_fits_now() -> None:
    """Both waited for something else before, such as a gate of others or a node that was not ready."""
    cluster = SlicerCluster(reserve_after=60.0)
    cluster.pass_time(0)
    cluster.node("n1")
    for number in range(6):
        cluster.pod(f"p{number}", "1g.5gb", created=rfc3339(cluster.date))
    cluster.settle()
    cluster.pass_time(100)
    older = cluster.pod("older", "1g.5gb", waits_since=rfc3339(cluster.date - 90))
    large = cluster.pod("large", "7g.40gb", waits_since=rfc3339(cluster.date - 80))
    younger = cluster.pod("younger", "1g.5gb", created=rfc3339(cluster.date))
    cluster.settle()
    assert cluster.where(older)
    assert cluster.slicer.state.reservations.keys() == {large.uid}
    assert not cluster.where(younger)


def test_a_reservation_that_ends_opens_no_other_to_the_pods_behind() -> None:
    """Its end made the pods before and behind another reservation look alike, so they were planned together."""
    cluster = SlicerCluster(reserve_after=0.0)
    cluster.pass_time(0)
    for number in range(10):
        cluster.node(f"n{number}")
        running(cluster, f"stays-{number}", "4g.20gb" if number < 2 else "7g.40gb", priority=100)
    cluster.node("other")
    labels, relations = (("app", "server"),), anti_affine("server")
    server = cluster.pod("server", gates=(), node=NodeName("other"), labels=labels)
    cluster.settle()
    cluster.pass_time(1000)
    first = waiting(cluster, "first", "7g.40gb", priority=2, relations=relations)
    cluster.settle()
    (of_first,) = cluster.slicer.state.reservations.values()
    last = on("n1" if of_first.node == "n0" else "n0")
    second = waiting(cluster, "second", "7g.40gb", namespace="team-b", constraints=last)
    cluster.settle()
    assert cluster.slicer.state.reservations.keys() == {first.uid, second.uid}
    cluster.put(replace(server, labels=()))
    between = waiting(cluster, "between", "1g.5gb", priority=1)
    behind = waiting(cluster, "behind", "1g.5gb", constraints=last)
    cluster.settle()
    assert [node for node, _, _ in cluster.where(first)] == ["other"]
    assert cluster.where(between)
    assert not cluster.where(behind)


def test_a_pod_that_a_step_leaves_to_the_next_one_is_passed_by_none_of_lower_priority(
    cluster: SlicerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.node("n1")
    cluster.node("n2", count=8)
    for number in range(5):
        running(cluster, f"first-{number}", "1g.5gb", constraints=on("n1"))
    for number in range(8):
        running(cluster, f"stays-{number}", "4g.20gb", constraints=on("n2"))
    waiting(cluster, "large", "7g.40gb", priority=1, constraints=on("n2"))
    cluster.wait(60)
    assert cluster.slicer.state.reservations
    monkeypatch.setattr(batch_placement, "_CONSTRAINTS_SHARE", 1 / DECISION_STEPS)
    other = NodeConstraints(selector=(*on("n1").selector, (MIG_CONFIG_LABEL, "dynamic")))
    first = waiting(cluster, "high-1", "1g.5gb", priority=2, constraints=on("n1"))
    second = waiting(cluster, "high-2", "1g.5gb", priority=2, constraints=other)
    low = waiting(cluster, "low", "1g.5gb", constraints=on("n1"))
    cluster.settle()
    assert cluster.where(first)
    assert cluster.where(second)
    assert not cluster.where(low)
