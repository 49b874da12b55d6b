"""Queues: pods of the queue that had less go first, a guarantee goes before, a maximum holds back."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from heapq import nsmallest
from itertools import count
from typing import Any

import pytest
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import MIG_CONFIG_LABEL, QUEUE_LABEL, NodeName, PodUid
from tessera.api.pod_annotations import Gang
from tessera.api.queues import Queue, Share, read_queue
from tessera.clock import rfc3339
from tessera.controller.objects.pod_constraints import (
    NO_RELATIONS,
    NodeConstraints,
    PodAffinityRule,
    PodRelations,
    PodSelection,
)
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing import batch_placement, lasting_refusals
from tessera.controller.slicing.state import queue_ledger
from tessera.controller.slicing.state.events import NamespaceObserved, NodeDeleted, QueueDeleted, StorageListed
from tessera.controller.slicing.state.instructions import ReportQueue
from tessera.controller.slicing.state.queue_ledger import Holding, QueueLedger
from tessera.controller.slicing.state.waiting_pods import RETRIED_PODS
from tessera.kube.resources import Taint, Toleration
from tessera.kube.resources.selectors import Requirement
from tessera.limits import DECISION_STEPS
from tessera.reasons.node_rules import NodeRule, RuleKind, name_rule
from tessera.reasons.reason import Full, NoNode, QueueFull, RuleCount
from tessera.reasons.words import sentence

ALL = "1g.5gb"
NUMBERS = count(1)
TOLERATED = (Toleration(key="a", operator="Exists"),)


@pytest.fixture
def cluster() -> SlicerCluster:
    made = SlicerCluster(reserve_after=60.0)
    made.pass_time(0)
    return made


def pods(cluster: SlicerCluster, namespace: str, many: int, profile: str = ALL, **facts: Any) -> list[PodInfo]:
    """Pods of one namespace, created one after the other from now on."""
    found = []
    for number in range(many):
        created = rfc3339(cluster.date + number)
        name = f"{namespace}-{next(NUMBERS):03}"
        found.append(cluster.pod(name, profile, created=created, namespace=namespace, **facts))
    return found


def placed(cluster: SlicerCluster, found: list[PodInfo]) -> int:
    """The number of these pods that have slices."""
    return sum(bool(cluster.where(pod)) for pod in found)


def end(cluster: SlicerCluster, found: list[PodInfo], number: int = 1) -> None:
    """The first of these pods that have slices end."""
    for pod in [each for each in found if cluster.where(each)][:number]:
        cluster.remove(pod)
        found.remove(pod)
    cluster.settle()


def test_without_a_queue_object_the_older_goes_first(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    many = pods(cluster, "team-a", 10)
    cluster.pass_time(20)
    few = pods(cluster, "team-b", 4)
    cluster.settle()
    end(cluster, many, 2)
    assert (placed(cluster, many), placed(cluster, few)) == (7, 0)


def test_queues_take_turns_though_one_came_first(cluster: SlicerCluster) -> None:
    many = pods(cluster, "team-a", 10)
    cluster.pass_time(20)
    few = pods(cluster, "team-b", 4)
    cluster.queue("team-a")
    cluster.settle()
    cluster.node("n1")
    cluster.settle()
    assert (placed(cluster, many), placed(cluster, few)) == (4, 3)


def test_a_queue_of_twice_the_weight_gets_twice_as_much(cluster: SlicerCluster) -> None:
    heavy, light = pods(cluster, "team-a", 10), pods(cluster, "team-b", 10)
    cluster.queue("team-a", weight=2)
    cluster.settle()
    cluster.node("n1", count=3)
    cluster.settle()
    assert (placed(cluster, heavy), placed(cluster, light)) == (10, 10)
    assert [each.queue for each in cluster.slicer.order.all()] == []
    more = [*pods(cluster, "team-a", 6), *pods(cluster, "team-b", 6)]
    cluster.settle()
    assert placed(cluster, more[:6]) == 1, "team-a holds less by its weight, and there is one slot"
    assert placed(cluster, more[6:]) == 0


def test_a_higher_priority_goes_before_a_smaller_share(cluster: SlicerCluster) -> None:
    cluster.queue("team-a")
    many = pods(cluster, "team-a", 7)
    cluster.node("n1")
    cluster.settle()
    urgent, other = pods(cluster, "team-a", 1, priority=5), pods(cluster, "team-b", 1)
    cluster.settle()
    end(cluster, many)
    assert (placed(cluster, urgent), placed(cluster, other)) == (1, 0)


def test_what_a_queue_has_used_counts_after_its_pods_have_ended(cluster: SlicerCluster) -> None:
    cluster.queue("team-a", halfLife="1h")
    cluster.queue("team-b", halfLife="1h")
    cluster.node("n1")
    past = pods(cluster, "team-a", 7)
    cluster.settle()
    cluster.pass_time(3600)
    blocker = pods(cluster, "team-c", 1, "7g.40gb", priority=9)
    end(cluster, past, 7)
    assert placed(cluster, blocker) == 1
    older, younger = pods(cluster, "team-a", 1, "4g.20gb"), pods(cluster, "team-b", 1, "4g.20gb")
    cluster.settle()
    end(cluster, blocker)
    assert (placed(cluster, older), placed(cluster, younger)) == (0, 1), "half of the card for an hour counts"


def test_the_past_fades_with_the_half_life_and_0_forgets_it(cluster: SlicerCluster) -> None:
    for name, half_life in (("fades", "1h"), ("forgets", "0")):
        cluster.queue(name, halfLife=half_life)
    cluster.node("n1", count=2)
    found = [*pods(cluster, "fades", 1, "4g.20gb"), *pods(cluster, "forgets", 1, "4g.20gb")]
    cluster.settle()
    cluster.pass_time(36_000)
    end(cluster, found, 2)
    totals, ledger = cluster.slicer.state.inventory.totals, cluster.slicer.state.ledger
    assert ledger.share("fades", totals, cluster.date) == pytest.approx(4 / 16, rel=0.01)
    assert ledger.share("fades", totals, cluster.date + 3600) == pytest.approx(2 / 16, rel=0.01)
    assert ledger.share("forgets", totals, cluster.date) == 0


def test_a_guarantee_goes_before_the_share(cluster: SlicerCluster) -> None:
    cluster.queue("team-a", guaranteed="20Gi")
    cluster.node("n1")
    theirs, others = pods(cluster, "team-a", 3), pods(cluster, "team-b", 4)
    cluster.settle()
    later = [*pods(cluster, "team-b", 2), *pods(cluster, "team-a", 2)]
    cluster.settle()
    end(cluster, others)
    assert placed(cluster, later[2:]) == 1, "15 GiB are held, and 20 GiB are guaranteed"
    end(cluster, theirs)
    end(cluster, others)
    assert placed(cluster, later[:2]) <= 1


def test_a_maximum_holds_back_with_a_reason_that_names_it(cluster: SlicerCluster) -> None:
    cluster.queue("team-a", maximum="10Gi")
    cluster.node("n1")
    found = pods(cluster, "team-a", 3)
    cluster.settle()
    assert placed(cluster, found) == 2
    reason = cluster.slicer.state.waiting[found[2].uid].reason
    assert sentence(reason) == (
        "queue team-a may hold 10Gi (spec.maximum), and holds 10Gi: 1g.5gb waits until pods of the queue end"
    )
    end(cluster, found)
    assert placed(cluster, found) == 2
    late = pods(cluster, "team-a", 2)
    cluster.settle()
    assert placed(cluster, late) == 0
    cluster.queue("team-a", maximum=8)
    cluster.settle()
    assert placed(cluster, late) == 2


def test_a_small_pod_does_not_run_past_an_older_one_that_waits_for_the_maximum(cluster: SlicerCluster) -> None:
    cluster.queue("team-a", maximum=4)
    cluster.node("n1")
    first = pods(cluster, "team-a", 1, "2g.10gb")
    cluster.settle()
    large = pods(cluster, "team-a", 1, "4g.20gb")
    cluster.settle()
    small = pods(cluster, "team-a", 2)
    cluster.settle()
    assert (placed(cluster, large), placed(cluster, small)) == (0, 0)
    end(cluster, first)
    assert (placed(cluster, large), placed(cluster, small)) == (1, 0)


@pytest.mark.parametrize(
    "change",
    [
        lambda cluster, pod: cluster.remove(pod),
        lambda cluster, pod: cluster.put(replace(pod, terminating=True)),
        lambda cluster, pod: cluster.put(replace(pod, gates=(*pod.gates, "others"))),
        lambda cluster, pod: cluster.put(replace(pod, labels=((QUEUE_LABEL, "other"),))),
        lambda cluster, pod: cluster.put(replace(pod, labels=((QUEUE_LABEL, "smaller"),))),
        lambda cluster, pod: cluster.put(replace(pod, gang=Gang("team-a/g", "g", 2))),
    ],
    ids=["deleted", "terminating", "gate-of-others", "other-queue", "too-small-queue", "incomplete-gang"],
)
def test_who_waits_for_the_maximum_no_more_holds_back_nobody(
    cluster: SlicerCluster, change: Callable[[SlicerCluster, PodInfo], object]
) -> None:
    cluster.queue("team-a", maximum=4)
    cluster.queue("other", namespaces=["*"])
    cluster.queue("smaller", namespaces=["*"], maximum=2)
    cluster.node("n1", count=2)
    pods(cluster, "team-a", 1, "2g.10gb")
    cluster.settle()
    (large,) = pods(cluster, "team-a", 1, "4g.20gb")
    small = pods(cluster, "team-a", 2)
    cluster.settle()
    assert placed(cluster, small) == 0
    change(cluster, large)
    cluster.settle()
    assert placed(cluster, small) == 2


def test_more_pods_than_are_retried_at_once_follow_a_higher_maximum(cluster: SlicerCluster) -> None:
    cluster.queue("team-a", maximum=1)
    for number in range(12):
        cluster.node(f"n{number}")
    found = pods(cluster, "team-a", RETRIED_PODS + 10)
    cluster.settle()
    assert placed(cluster, found) == 1
    cluster.queue("team-a", maximum=100)
    cluster.settle()
    assert placed(cluster, found) == len(found)


def test_pods_that_are_retried_and_wait_for_room_let_the_next_ones_follow() -> None:
    """The next ones waited for the maximum of a queue that held nothing."""
    cluster = SlicerCluster()
    cluster.pass_time(0)
    cluster.queue("team-a", maximum=8, halfLife="0")
    cluster.node("n1", count=2)
    pods(cluster, "team-b", 2, "4g.20gb")
    runs = pods(cluster, "team-a", 1, "3g.20gb")
    cluster.settle()
    large = pods(cluster, "team-a", RETRIED_PODS, "7g.40gb")
    cluster.pass_time(RETRIED_PODS)
    small = pods(cluster, "team-a", 1)
    cluster.settle()
    assert placed(cluster, small) == 0
    end(cluster, runs)
    assert (placed(cluster, large), placed(cluster, small)) == (0, 1)


def test_the_end_of_a_pod_takes_few_decisions_where_the_cards_are_full(cluster: SlicerCluster) -> None:
    """Each pod wants its own amount of CPU, so no refusal answers for another one."""
    cluster.queue("team-a", maximum=8)
    cluster.node("n1", count=2)
    pods(cluster, "team-b", 2, "4g.20gb")
    runs = pods(cluster, "team-a", 2, "3g.20gb")
    cluster.settle()
    found = [pods(cluster, "team-a", 1, "4g.20gb", amounts={"cpu": each, "pods": 1}) for each in range(300)]
    cluster.settle()
    assert not any(placed(cluster, each) for each in found)
    cluster.remove(runs[0])
    decisions = 0
    while cluster.slicer.has_work:
        decisions += 1
        cluster.slicer.decide()
        for each in cluster.slicer.pop_writes():
            cluster.answer(each)
    assert decisions < 2 * RETRIED_PODS


def test_a_pod_that_reserved_slots_leave_no_maximum_waits_and_is_told(cluster: SlicerCluster) -> None:
    """Slots that are reserved for a queue count for its maximum. The controller once decided on and on here."""
    cluster.queue("team-a", maximum=8)
    cluster.node("n1")
    blocker = pods(cluster, "team-b", 1, "3g.20gb")
    cluster.settle()
    (large,) = pods(cluster, "team-a", 1, "7g.40gb")
    cluster.settle_and_wait(61)
    assert cluster.slicer.state.reservations.keys() == {large.uid}
    (small,) = pods(cluster, "team-a", 1)
    cluster.settle()
    assert isinstance(cluster.slicer.state.waiting[small.uid].reason, QueueFull)
    cluster.remove(large)
    cluster.settle()
    assert (placed(cluster, blocker), placed(cluster, [small])) == (1, 1)


def test_no_pod_is_evicted_for_one_that_its_queue_could_not_hold() -> None:
    """Slots are reserved for another pod of the queue, on cards of another kind. A budget keeps its victim."""
    cluster = SlicerCluster(preempts=True)
    cluster.pass_time(0)
    cluster.queue("team-a", maximum=8)
    cluster.node("n1")
    cluster.node("n2", cards="A100-80GB")
    cluster.node("n3", count=6, taints=(Taint(key="a", effect="NoSchedule"),))
    victims = [*pods(cluster, "team-b", 1, "3g.20gb"), *pods(cluster, "team-b", 1, "3g.40gb")]
    cluster.settle()
    cluster.protected.add(victims[0].uid)
    first = pods(cluster, "team-a", 1, "7g.40gb", priority=1)
    cluster.pass_time(1)
    second = pods(cluster, "team-a", 1, "7g.80gb", priority=1)
    cluster.settle()
    assert cluster.slicer.state.reservations.keys() == {first[0].uid}
    assert (placed(cluster, second), placed(cluster, victims)) == (0, 2)


def test_a_younger_pod_that_waits_for_the_maximum_holds_back_nobody_before_it(cluster: SlicerCluster) -> None:
    cluster.queue("team-a", maximum=8)
    cluster.node("n1")
    pods(cluster, "team-a", 1, "3g.20gb")
    pods(cluster, "team-a", 1)
    cluster.settle()
    cluster.node("n2", labels={MIG_CONFIG_LABEL: "dynamic", "kubernetes.io/hostname": "n2", "zone": "b"})
    there = NodeConstraints(selector=(("zone", "b"),))
    pods(cluster, "team-b", 1, "7g.40gb", constraints=there)
    cluster.settle()
    large = pods(cluster, "team-a", 1, "4g.20gb")
    cluster.settle()
    assert isinstance(cluster.slicer.state.waiting[large[0].uid].reason, QueueFull)
    pods(cluster, "team-a", 1, "2g.10gb", priority=1, constraints=there)
    cluster.pass_time(1)
    urgent = pods(cluster, "team-a", 1, "2g.10gb", priority=1)
    cluster.settle()
    assert placed(cluster, urgent) == 1


def test_slots_that_a_gang_gives_back_let_in_a_pod_of_another_queue_at_its_maximum(cluster: SlicerCluster) -> None:
    cluster.queue("team-a")
    cluster.queue("shared", namespaces=["*"], maximum=4)
    cluster.node("n1", count=2)
    pods(cluster, "team-b", 2, "4g.20gb")
    cluster.settle()
    gang, label = Gang("team-a/g", "g", 2), ((QUEUE_LABEL, "shared"),)
    first = pods(cluster, "team-a", 1, "4g.20gb", gang=gang, labels=label)
    cluster.pass_time(1)
    last = pods(cluster, "team-a", 1, "4g.20gb", gang=gang)
    cluster.settle_and_wait(61)
    assert cluster.slicer.state.reservations.keys() == {first[0].uid, last[0].uid}
    small = pods(cluster, "team-b", 1, labels=label)
    cluster.settle()
    assert isinstance(cluster.slicer.state.waiting[small[0].uid].reason, QueueFull)
    cluster.remove(last[0])
    cluster.settle()
    assert placed(cluster, small) == 1


def test_slots_that_are_reserved_for_a_namespace_that_leaves_a_queue_count_for_it_no_more(
    cluster: SlicerCluster,
) -> None:
    for namespace in ("team-a", "team-b"):
        cluster.namespace(namespace, **{QUEUE_LABEL: "shared"})
    cluster.queue("shared", maximum=8)
    cluster.node("n1", count=2)
    cluster.queue("others")
    pods(cluster, "team-c", 2, "4g.20gb")
    cluster.settle()
    large = pods(cluster, "team-a", 1, "7g.40gb")
    cluster.settle_and_wait(61)
    assert cluster.slicer.state.reservations.keys() == {large[0].uid}
    small = pods(cluster, "team-b", 1)
    cluster.settle()
    assert isinstance(cluster.slicer.state.waiting[small[0].uid].reason, QueueFull)
    cluster.namespace("team-a", **{QUEUE_LABEL: "others"})
    cluster.settle()
    assert placed(cluster, small) == 1


def test_a_gang_behind_a_pod_that_finds_no_room_does_not_wait_for_the_maximum(cluster: SlicerCluster) -> None:
    cluster.queue("team-a", maximum=8)
    cluster.node("n1")
    pods(cluster, "team-b", 1, "3g.20gb")
    cluster.settle()
    pods(cluster, "team-a", 1, "7g.40gb")
    gang = pods(cluster, "team-a", 2, gang=Gang("team-a/g", "g", 2))
    cluster.settle()
    assert placed(cluster, gang) == 2


def test_pods_behind_one_that_is_planned_in_a_later_step_do_not_wait_for_the_maximum(
    cluster: SlicerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_placement, "BATCH_RULES", 2)
    cluster.queue("team-a", maximum=8)
    cluster.node("n1")
    pods(cluster, "team-b", 1, "4g.20gb")
    cluster.settle()
    pods(cluster, "team-b", 2, "7g.40gb", relations=_anti_affine("server"), priority=1)
    pods(cluster, "team-a", 1, "7g.40gb", relations=_anti_affine("server"))
    small = pods(cluster, "team-a", 3)
    cluster.settle()
    assert placed(cluster, small) == 3


def test_a_pod_that_was_held_back_for_pods_without_room_gets_no_room_before_an_older_one(
    cluster: SlicerCluster,
) -> None:
    """A slot becomes free just after the decision that refused both, and a new pod comes."""
    cluster.queue("team-a", maximum=8)
    cluster.node("n1")
    runs = pods(cluster, "team-b", 7)
    cluster.settle()
    cluster.remove(runs[0])
    cluster.run()
    cluster.pass_time(1)
    older = pods(cluster, "team-b", 1, priority=1)
    pods(cluster, "team-a", 1, "7g.40gb")
    held = pods(cluster, "team-a", 1)
    cluster.slicer.decide()
    cluster.agents()
    new = pods(cluster, "team-c", 1)
    cluster.settle()
    assert (placed(cluster, older), placed(cluster, held), placed(cluster, new)) == (1, 0, 0)


def test_a_step_stays_short_while_many_pods_are_refused_that_held_each_other_back(cluster: SlicerCluster) -> None:
    """All others were put in order again after each of them: steps of 2 s instead of 0.3 s with 1,000 pods."""
    cluster.queue("team-a", maximum=8)
    cluster.node("n1")
    pods(cluster, "team-b", 1)
    cluster.settle()
    found = [pods(cluster, "team-a", 1, "7g.40gb", amounts={"cpu": 1000 + number})[0] for number in range(200)]
    counts: list[PodUid] = []
    first = cluster.slicer.order.first

    def first_counted(candidates: Iterable[PodInfo], most: int) -> Any:
        ordered = list(candidates)
        counts.extend(each.uid for each in ordered)
        return first(ordered, most)

    cluster.slicer.order.first = first_counted
    while cluster.slicer.has_work:
        counts.clear()
        cluster.slicer.decide()
        assert len(counts) <= len(found) + DECISION_STEPS // 8
        cluster.slicer.pop_writes()
    assert {type(cluster.slicer.state.waiting[pod.uid].reason) for pod in found} == {Full}


def test_a_gang_does_not_run_past_an_older_pod_that_is_refused_in_the_same_step(cluster: SlicerCluster) -> None:
    cluster.queue("team-a", maximum=8)
    cluster.node("n1", count=2)
    pods(cluster, "team-a", 1, "2g.10gb")
    cluster.settle()
    pods(cluster, "team-a", 1, "7g.40gb")
    cluster.pass_time(1)
    gang = pods(cluster, "team-a", 2, gang=Gang("team-a/g", "g", 2))
    cluster.settle()
    assert placed(cluster, gang) == 0
    cluster.resume()
    assert placed(cluster, gang) == 0


def test_an_incomplete_gang_leaves_nobody_waiting_for_the_maximum(cluster: SlicerCluster) -> None:
    cluster.queue("team-a", maximum=4)
    cluster.node("n1")
    runs = pods(cluster, "team-a", 1, "2g.10gb")
    cluster.settle()
    gang = pods(cluster, "team-a", 1, "4g.20gb", gang=Gang("team-a/g", "g", 2))
    small = pods(cluster, "team-a", 2)
    cluster.settle()
    assert (placed(cluster, runs), placed(cluster, gang), placed(cluster, small)) == (1, 0, 2)


def test_the_controller_rests_if_the_last_queue_goes_while_nodes_are_left_to_ask(cluster: SlicerCluster) -> None:
    """It decided on and on: what was left of a maximum ended only while there was a Queue."""
    cluster.queue("team-a", maximum=4)
    cluster.node("n1")
    cluster.settle()
    cluster.slicer.order.refusals.is_behind = True
    cluster.slicer.handle(QueueDeleted("team-a"))
    cluster.settle()
    assert not cluster.slicer.has_work


@pytest.mark.parametrize("waits", [False, True])
def test_a_reservation_of_a_pod_that_is_gone_ends_although_nobody_waits_any_more(
    cluster: SlicerCluster, waits: bool
) -> None:
    cluster.node("n1")
    (holder,) = pods(cluster, "team-a", 1, "7g.40gb")
    cluster.settle()
    cluster.put(replace(cluster.pods[holder.uid], node=NodeName("n1"), started=cluster.date))
    (first, second) = pods(cluster, "team-b", 2, "7g.40gb")
    cluster.settle()
    cluster.wait(61)
    assert first.uid in cluster.slicer.state.reservations
    cluster.remove(cluster.pods[first.uid])
    if not waits:
        cluster.remove(cluster.pods[second.uid])
    cluster.settle()
    assert first.uid not in cluster.slicer.state.reservations
    assert not cluster.slicer.has_work
    cluster.wait(61)
    noted = cluster.read("n1").metadata.annotations
    assert ("tessera.dev/reservations" in noted) is waits


def test_a_younger_gang_takes_nothing_of_the_maximum_that_is_reserved(cluster: SlicerCluster) -> None:
    cluster.queue("team-a", maximum=8)
    cluster.node("n1")
    blocker = pods(cluster, "team-b", 1, "3g.20gb")
    cluster.settle()
    large = pods(cluster, "team-a", 1, "7g.40gb")
    cluster.settle_and_wait(61)
    assert cluster.slicer.state.reservations.keys() == {large[0].uid}
    cluster.node("n2", cards="A100-40GB", taints=(Taint(key="a", effect="NoSchedule"),))
    gang = pods(cluster, "team-a", 2, gang=Gang("team-a/g", "g", 2), constraints=NodeConstraints(tolerations=TOLERATED))
    cluster.settle()
    assert (placed(cluster, large), placed(cluster, gang)) == (0, 0)
    end(cluster, blocker)
    assert placed(cluster, large) == 1


def test_a_pod_larger_than_the_maximum_is_told_so_and_blocks_nobody(cluster: SlicerCluster) -> None:
    cluster.queue("team-a", maximum="10Gi")
    cluster.node("n1")
    never, small = pods(cluster, "team-a", 1, "3g.20gb"), pods(cluster, "team-a", 2)
    cluster.settle()
    reason = cluster.slicer.state.waiting[never[0].uid].reason
    assert isinstance(reason, QueueFull)
    assert reason.never
    assert placed(cluster, small) == 2


def test_a_pod_that_no_node_lets_in_holds_back_no_team_of_its_queue(cluster: SlicerCluster) -> None:
    """It would wait for all pods of the queue to end, start never, and keep the other teams waiting meanwhile."""
    for namespace in ("team-a", "team-b"):
        cluster.namespace(namespace, **{QUEUE_LABEL: "shared"})
    cluster.queue("shared", maximum=8)
    cluster.node("n1")
    runs = pods(cluster, "team-b", 1, "1g.5gb")
    cluster.settle()
    nowhere = NodeConstraints(selector=(("kubernetes.io/os", "plan9"),))
    stuck = pods(cluster, "team-a", 1, "7g.40gb", constraints=nowhere)
    small = pods(cluster, "team-b", 2)
    cluster.settle()
    assert isinstance(cluster.slicer.state.waiting[stuck[0].uid].reason, NoNode)
    assert (placed(cluster, runs), placed(cluster, small)) == (1, 2)
    large = pods(cluster, "team-a", 1, "7g.40gb")
    late = pods(cluster, "team-b", 1)
    cluster.settle()
    assert isinstance(cluster.slicer.state.waiting[large[0].uid].reason, QueueFull)
    assert placed(cluster, late) == 0


def _anti_affine(app: str) -> PodRelations:
    selection = PodSelection(frozenset({"team-a", "team-b", "team-c"}), None, (Requirement("app", "In", (app,)),))
    return PodRelations(anti_affinity=(PodAffinityRule(selection, "kubernetes.io/hostname"),))


@pytest.mark.parametrize(
    "facts",
    [
        {"claims": ("team-a/elsewhere",)},
        {"relations": _anti_affine("server")},
        {"amounts": {"cpu": 10**9, "pods": 1}},
    ],
    ids=["volume", "anti-affinity", "cpu"],
)
def test_a_pod_that_rules_keep_off_all_nodes_holds_back_no_team_of_its_queue(
    cluster: SlicerCluster, facts: dict[str, Any]
) -> None:
    cluster.slicer.handle(StorageListed())
    for namespace in ("team-a", "team-b"):
        cluster.namespace(namespace, **{QUEUE_LABEL: "shared"})
    cluster.queue("shared", maximum=8)
    cluster.node("n1")
    runs = pods(cluster, "team-b", 1, labels=(("app", "server"),))
    cluster.settle()
    stuck = pods(cluster, "team-a", 1, "7g.40gb", **facts)
    small = pods(cluster, "team-b", 2)
    cluster.settle()
    assert isinstance(cluster.slicer.state.waiting[stuck[0].uid].reason, NoNode)
    assert (placed(cluster, runs), placed(cluster, small)) == (1, 2)
    cluster.put(replace(stuck[0], claims=(), relations=NO_RELATIONS, amounts={"cpu": 1000, "pods": 1}))
    late = pods(cluster, "team-b", 1)
    cluster.settle()
    assert isinstance(cluster.slicer.state.waiting[stuck[0].uid].reason, QueueFull)
    assert placed(cluster, late) == 0


def test_a_pod_is_found_to_be_refused_by_more_nodes_than_one_decision_asks(
    cluster: SlicerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second kind found no budget left, in each decision anew, and closed its queue until a pod of it ended."""
    monkeypatch.setattr(lasting_refusals, "_REFUSAL_STEPS", 4)
    monkeypatch.setattr(lasting_refusals, "_LEAST_NODES", 1)
    for number in range(6):
        cluster.node(f"n{number}")
    queues = ("team-a", "team-b", "team-c")
    for queue in queues:
        cluster.queue(queue, maximum=8)
    runs = [pod for queue in queues for pod in pods(cluster, queue, 1)]
    cluster.settle()
    stuck = [pods(cluster, queue, 1, "7g.40gb", amounts={"cpu": 10**9 + n})[0] for n, queue in enumerate(queues)]
    small = [pod for queue in queues for pod in pods(cluster, queue, 1)]
    cluster.settle()
    assert {type(cluster.slicer.state.waiting[pod.uid].reason) for pod in stuck} == {NoNode}
    assert (placed(cluster, runs), placed(cluster, small)) == (3, 3)
    cluster.node("large", allocatable={"cpu": 2 * 10**9, "pods": 110})
    cluster.settle()
    assert {type(cluster.slicer.state.waiting[pod.uid].reason) for pod in stuck} == {QueueFull}, "a node lets them in"
    end(cluster, runs, 3)
    end(cluster, small, 3)
    assert placed(cluster, stuck) == 1


def test_of_many_namespaces_those_are_forgotten_that_used_least(
    cluster: SlicerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a Queue object, each namespace that had ever held a slice kept its account."""
    monkeypatch.setattr(queue_ledger, "QUEUE_ACCOUNTS", 8)
    cluster.queue("research")
    cluster.node("n1")
    keeps = pods(cluster, "keeps", 1)
    cluster.settle()
    for number in range(12):
        short = pods(cluster, f"team-{number}", 1, "3g.20gb" if number == 2 else ALL)
        cluster.settle()
        cluster.pass_time(3600)
        cluster.remove(short[0])
        cluster.settle()
    ledger, totals = cluster.slicer.state.ledger, cluster.slicer.state.inventory.totals
    known = [name for name in ("keeps", *(f"team-{n}" for n in range(12))) if ledger.share(name, totals, cluster.date)]
    assert placed(cluster, keeps) == 1
    assert "keeps" in known
    assert "team-2" in known, "it used most"
    assert len(known) <= 8


def test_namespaces_that_all_hold_slices_are_not_searched_for_each_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 14,000 of them, each pod that came or went took 0.6 ms."""
    searches: list[int] = []

    def search(number: int, names: Iterable[str], key: Any) -> list[str]:
        searches.append(number)
        return nsmallest(number, names, key=key)

    monkeypatch.setattr(queue_ledger, "QUEUE_ACCOUNTS", 8)
    monkeypatch.setattr(queue_ledger, "nsmallest", search)
    ledger = QueueLedger({"research": Queue(name="research")})
    one = Holding(Counter({"A100": 1}), 5)
    for number in range(64):
        ledger.assign(PodUid(f"uid-{number}"), f"team-{number}", one, 1.0)
    assert len(searches) == 12, "once for 4 or 5 further namespaces"
    for number in range(64):
        ledger.assign(PodUid(f"uid-{number}"), f"team-{number}", None, 2.0)
    for number in range(64, 128):
        ledger.assign(PodUid(f"uid-{number}"), f"team-{number}", one, 3.0)
    assert not ledger.account("team-0").usage, "those that hold nothing any more are forgotten"


def test_pods_that_all_nodes_refuse_are_asked_about_on_nodes_that_change(
    cluster: SlicerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All nodes were asked again about more kinds than are kept: 15 s of CPU for each pod that ended, with 3,000."""
    monkeypatch.setattr(lasting_refusals, "REFUSED_KINDS", 1)
    for number in range(10):
        cluster.node(f"n{number}")
    cluster.queue("team-a", maximum=8)
    runs = pods(cluster, "team-b", 1)
    cluster.settle()
    stuck = [pods(cluster, "team-a", 1, amounts={"cpu": 10**9 + number})[0] for number in range(5)]
    cluster.settle()
    cluster.remove(runs[0])
    cluster.slicer.decide()
    work = cluster.slicer.order.refusals.work
    assert lasting_refusals._REFUSAL_STEPS - work.remaining <= len(stuck)
    assert {type(cluster.slicer.state.waiting[pod.uid].reason) for pod in stuck} == {NoNode}
    cluster.node("large", allocatable={"cpu": 2 * 10**9, "pods": 110})
    cluster.settle()
    assert placed(cluster, stuck) == 1


def refused_by_all(cluster: SlicerCluster) -> set[PodUid]:
    """The waiting pods of which the slicer remembers that all nodes refuse them."""
    return {uid for uid, one in cluster.slicer.state.waiting.items() if one.refused_by_all}


def test_pods_that_all_nodes_refuse_stay_known_behind_those_that_spend_the_budget(
    cluster: SlicerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were planned instead, and later all nodes were asked about them anew."""
    monkeypatch.setattr(lasting_refusals, "REFUSED_KINDS", 1)
    monkeypatch.setattr(lasting_refusals, "_REFUSAL_STEPS", 60)
    for number in range(10):
        cluster.node(f"n{number}")
    cluster.queue("team-a", maximum=8)
    runs = pods(cluster, "team-b", 1)
    cluster.settle()
    stuck = [pods(cluster, "team-a", 1, amounts={"cpu": 10**9 + number})[0] for number in range(5)]
    cluster.settle()
    assert refused_by_all(cluster) == {pod.uid for pod in stuck}
    for number in range(10):
        pods(cluster, "team-a", 1, amounts={"cpu": 2 * 10**9 + number}, priority=1)
    cluster.remove(runs[0])
    cluster.slicer.decide()
    assert refused_by_all(cluster) >= {pod.uid for pod in stuck}


def test_the_reason_of_a_pod_that_all_nodes_refuse_counts_the_nodes_that_came_since(cluster: SlicerCluster) -> None:
    """The reason once stayed as it was: it named neither the new nodes nor what these lack."""
    cluster.queue("team-a", maximum=8)
    cluster.node("n1")
    cluster.node("n2")
    (stuck,) = pods(cluster, "team-a", 1, amounts={"cpu": 100_000, "memory": 2**41})
    cluster.settle()
    cluster.node("n3", allocatable={"cpu": 200_000, "memory": 2**40, "pods": 110})
    cluster.settle()
    reason = cluster.slicer.state.waiting[stuck.uid].reason
    assert isinstance(reason, NoNode)
    counts = {name_rule(each.rule): each.nodes for each in reason.counts}
    assert counts == {"node(s) were too small: cpu": 2, "node(s) were too small: memory": 1}


def test_decisions_end_while_more_pods_close_their_queues_than_one_looks_at(
    cluster: SlicerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each one looked at the same pods again, and asked for another decision for the others, without end."""
    monkeypatch.setattr(lasting_refusals, "_REFUSAL_STEPS", 4)
    cluster.node("n1", count=2)
    queues = [f"team-{letter}" for letter in "abcdef"]
    for queue in queues:
        cluster.queue(queue, maximum=2)
        pods(cluster, queue, 1)
    cluster.settle()
    waits = [pods(cluster, queue, 1, "2g.10gb", amounts={"cpu": 1000 + n})[0] for n, queue in enumerate(queues[:-1])]
    stuck = pods(cluster, queues[-1], 1, "2g.10gb", amounts={"cpu": 10**9})[0]
    small = pods(cluster, queues[-1], 1)
    cluster.settle()
    assert {type(cluster.slicer.state.waiting[pod.uid].reason) for pod in waits} == {QueueFull}
    assert isinstance(cluster.slicer.state.waiting[stuck.uid].reason, NoNode)
    assert placed(cluster, small) == 1


def test_decisions_end_though_a_pod_that_closes_its_queue_costs_all_that_one_may_spend(
    cluster: SlicerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decision that found all nodes to refuse it had nothing left to find that again when it planned the pod."""
    cluster.queue("team-a", maximum=2)
    cluster.node("n1")
    cluster.node("n2")
    for number in range(8):
        selection = PodSelection(frozenset({"team-a"}), None, (Requirement("app", "In", ("server", f"{number}")),))
        relations = PodRelations(anti_affinity=(PodAffinityRule(selection, "kubernetes.io/hostname"),))
        cluster.pod(f"away-{number}", namespace="team-a", gates=(), node=NodeName("n2"), relations=relations)
    pods(cluster, "team-a", 2)
    cluster.settle()
    on_n1 = NodeConstraints(selector=(("kubernetes.io/hostname", "n1"),))
    facts: dict[str, Any] = {"amounts": {"cpu": 50_000}, "labels": (("app", "server"),), "constraints": on_n1}
    (stuck,) = pods(cluster, "team-a", 1, "2g.10gb", **facts)
    cluster.settle()
    assert isinstance(cluster.slicer.state.waiting[stuck.uid].reason, QueueFull)
    monkeypatch.setattr(lasting_refusals, "_REFUSAL_STEPS", 4)
    cluster.node("n1", allocatable={**cluster.nodes[NodeName("n1")].allocatable, "cpu": 40_000})
    cluster.settle()
    assert isinstance(cluster.slicer.state.waiting[stuck.uid].reason, NoNode)


def test_one_decision_looks_at_no_more_pods_than_it_may(
    cluster: SlicerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It compared the labels of every pod with the terms of all others, which may take a second for 30 pods."""
    monkeypatch.setattr(lasting_refusals, "_REFUSAL_STEPS", 10)
    cluster.queue("team-a", maximum=2)
    cluster.node("n1")
    pods(cluster, "team-b", 1, relations=_anti_affine("server"))
    pods(cluster, "team-a", 2)
    cluster.settle()
    for number in range(40):
        pods(cluster, "team-a", 1, "2g.10gb", labels=(("app", f"a{number}"),))
    cluster.slicer.decide()
    assert cluster.slicer.order.refusals.work.remaining > -10


def test_a_pod_is_not_said_to_fit_never_while_a_large_enough_node_is_closed(cluster: SlicerCluster) -> None:
    cluster.queue("team-a", maximum=8)
    cluster.node("n1")
    amounts = {"cpu": 100_000, "memory": 2**41, "pods": 1}
    large = cluster.node("large", allocatable={**amounts, "pods": 110}, cordoned=True)
    (pod,) = pods(cluster, "team-a", 1, amounts=amounts)
    cluster.settle()
    reason = cluster.slicer.state.waiting[pod.uid].reason
    assert isinstance(reason, NoNode)
    assert (reason.too_small, reason.counts) == ("", (RuleCount(NodeRule(RuleKind.TOO_SMALL, "cpu"), 1),))
    cluster.node("large", allocatable={**large.allocatable, "cpu": 64_000}, cordoned=True)
    cluster.settle()
    reason = cluster.slicer.state.waiting[pod.uid].reason
    assert isinstance(reason, NoNode)
    assert reason.too_small == "100 CPUs, and the largest node has 64 CPUs"


@pytest.mark.parametrize(
    ("facts", "change"),
    [
        (
            {"relations": _anti_affine("server")},
            lambda cluster: pods(cluster, "team-c", 2, relations=_anti_affine("server"), labels=(("app", "server"),)),
        ),
        (
            {"constraints": NodeConstraints(selector=(("zone", "b"),))},
            lambda cluster: cluster.slicer.handle(NodeDeleted(NodeName("n2"))),
        ),
    ],
    ids=["pods", "nodes"],
)
def test_a_pod_that_waits_for_the_maximum_holds_back_nobody_once_all_nodes_refuse_it(
    cluster: SlicerCluster, facts: dict[str, Any], change: Callable[[SlicerCluster], object]
) -> None:
    cluster.namespace("team-c", **{QUEUE_LABEL: "team-b"})
    cluster.queue("team-a", maximum=4)
    cluster.queue("team-b")
    cluster.node("n1")
    cluster.node("n2", labels={MIG_CONFIG_LABEL: "dynamic", "kubernetes.io/hostname": "n2", "zone": "b"})
    pods(cluster, "team-a", 1, "2g.10gb")
    cluster.settle()
    stuck = pods(cluster, "team-a", 1, "4g.20gb", **facts)
    small = pods(cluster, "team-a", 2)
    cluster.settle()
    assert isinstance(cluster.slicer.state.waiting[stuck[0].uid].reason, QueueFull)
    assert placed(cluster, small) == 0
    change(cluster)
    cluster.settle()
    assert isinstance(cluster.slicer.state.waiting[stuck[0].uid].reason, NoNode)
    assert placed(cluster, small) == 2


def test_a_pod_that_other_pods_keep_off_starts_once_they_are_gone(cluster: SlicerCluster) -> None:
    cluster.queue("team-a", maximum=8)
    cluster.node("n1")
    server = pods(cluster, "team-b", 1, labels=(("app", "server"),))
    cluster.settle()
    stuck = pods(cluster, "team-a", 1, relations=_anti_affine("server"))
    cluster.settle()
    assert isinstance(cluster.slicer.state.waiting[stuck[0].uid].reason, NoNode)
    end(cluster, server)
    assert placed(cluster, stuck) == 1


def test_room_on_a_node_lets_no_pod_be_planned_again_that_waits_for_the_maximum(cluster: SlicerCluster) -> None:
    """Each end of any pod had all of them looked at again: 0.5 to 1 s of CPU with 4,000."""
    cluster.queue("team-a", maximum=2)
    cluster.node("n1")
    mine, other = pods(cluster, "team-a", 10), pods(cluster, "team-b", 6)
    cluster.settle()
    assert (placed(cluster, mine), placed(cluster, other)) == (2, 5)
    cluster.slicer.state.cluster.capacity_changes.room_may_have_grown(NodeName("n1"))
    due = [
        pod.namespace for pod in [*mine, *other] if not cluster.where(pod) and cluster.slicer.state.pods.is_due(pod.uid)
    ]
    assert due == ["team-b"], "the one that waits for room"
    end(cluster, mine)
    assert placed(cluster, mine) == 2


def test_a_card_of_which_a_pod_takes_less_lets_it_start_at_a_maximum(cluster: SlicerCluster) -> None:
    cluster.queue("team-a", maximum=3)
    cluster.node("n1")
    found = pods(cluster, "team-a", 2, "1g.10gb")
    cluster.settle()
    assert placed(cluster, found) == 1, "it takes two memory slots of an A100"
    cluster.node("n2", cards="H100-80GB", count=2)
    cluster.settle()
    assert placed(cluster, found) == 2, "and one of an H100"


def test_a_pod_before_that_finds_no_room_takes_nothing_from_the_maximum(cluster: SlicerCluster) -> None:
    cluster.queue("team-a", maximum=8)
    cluster.node("n1")
    blocker = pods(cluster, "team-b", 1, "3g.20gb")
    cluster.settle()
    large, small = pods(cluster, "team-a", 1, "7g.40gb"), pods(cluster, "team-a", 1)
    cluster.settle()
    assert (placed(cluster, blocker), placed(cluster, large), placed(cluster, small)) == (1, 0, 1)


def test_a_pod_joins_only_a_queue_that_lists_its_namespace(cluster: SlicerCluster) -> None:
    cluster.queue("shared", namespaces=["team-a"])
    label = ((QUEUE_LABEL, "shared"),)
    a, b = pods(cluster, "team-a", 1, labels=label), pods(cluster, "team-b", 1, labels=label)
    state = cluster.slicer.state.cluster
    assert (state.queue_of(a[0]), state.queue_of(b[0])) == ("shared", "team-b")
    cluster.slicer.handle(NamespaceObserved("team-b", {QUEUE_LABEL: "shared"}))
    assert state.queue_of(b[0]) == "shared"


def test_the_status_has_what_is_held_and_is_written_at_most_once_a_minute(cluster: SlicerCluster) -> None:
    cluster.queue("team-a", maximum="10Gi")
    cluster.node("n1")
    found = pods(cluster, "team-a", 3)
    cluster.wait(60)
    reports = [write for write in cluster.writes if isinstance(write, ReportQueue)]
    assert [(each.status["held"], each.status["slots"], each.status["waiting"]) for each in reports] == [("10Gi", 2, 1)]
    end(cluster, found)
    cluster.wait(30)
    assert len([write for write in cluster.writes if isinstance(write, ReportQueue)]) == 1
    cluster.wait(30)
    cluster.wait(600)
    reports = [write for write in cluster.writes if isinstance(write, ReportQueue)]
    assert [(each.status["held"], each.status["waiting"]) for each in reports[1:]] == [("10Gi", 0)]


def test_a_new_process_counts_on_from_the_recorded_usage(cluster: SlicerCluster) -> None:
    cluster.queue("team-a", halfLife="1h")
    cluster.node("n1")
    found = pods(cluster, "team-a", 1, "4g.20gb")
    cluster.settle_and_wait(7200)
    end(cluster, found)
    cluster.wait(60)
    totals = cluster.slicer.state.inventory.totals
    before = cluster.slicer.state.ledger.share("team-a", totals, cluster.date)
    assert before == pytest.approx(3 / 8, rel=0.1)
    cluster.resume()
    after = cluster.slicer.state.ledger.share("team-a", cluster.slicer.state.inventory.totals, cluster.date)
    assert after == pytest.approx(before, rel=0.05)


def test_a_deleted_queue_ends_its_maximum(cluster: SlicerCluster) -> None:
    cluster.queue("team-a", maximum=1)
    cluster.node("n1")
    found = pods(cluster, "team-a", 3)
    cluster.settle()
    cluster.slicer.handle(QueueDeleted("team-a"))
    del cluster.queues["team-a"]
    cluster.settle()
    assert placed(cluster, found) == 3


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"weight": 0}, "spec.weight is 0: write a whole number from 1 to"),
        ({"weight": True}, "spec.weight is True"),
        ({"maximum": "10GB"}, "spec.maximum is 10GB: write memory slots as a number"),
        ({"guaranteed": -1}, "spec.guaranteed is -1"),
        ({"guaranteed": 9, "maximum": 8}, "spec.guaranteed is 9 memory slots: at most spec.maximum"),
        ({"halfLife": "a week"}, "spec.halfLife is a week: write a duration: 168h, 30m"),
        ({"namespaces": "all"}, "spec.namespaces is all: write a list"),
    ],
)
def test_a_wrong_field_counts_with_its_default_and_is_told(spec: dict[str, Any], field: str) -> None:
    found = read_queue({"metadata": {"name": "q"}, "spec": spec})
    assert found.faults[0].startswith(field)
    assert (found.weight, found.guaranteed, found.namespaces) == (1, None, frozenset())


@pytest.mark.parametrize(
    "item",
    [
        {},
        {"metadata": [], "spec": 5, "status": "x"},
        {"status": {"usage": {"A100": "1e999", "B": None, "C": "-1"}, "usageTime": "nan"}},
    ],
)
def test_any_object_can_be_read(item: dict[str, Any]) -> None:
    found = read_queue(item)
    assert isinstance(found, Queue)
    assert all(value == 0 for value in found.usage.values())


def test_shares_are_slots_or_gib() -> None:
    found = read_queue({"metadata": {"name": "q"}, "spec": {"guaranteed": 4, "maximum": "1Ti"}})
    assert (found.guaranteed, found.maximum) == (Share(4), Share(1024, gib=True))
    assert found.faults == ()


def test_a_wrong_queue_leaves_the_others_alone(cluster: SlicerCluster) -> None:
    cluster.queue("team-a", weight="heavy", maximum=[])
    cluster.queue("team-b", maximum=1)
    cluster.node("n1")
    a, b = pods(cluster, "team-a", 3), pods(cluster, "team-b", 3)
    cluster.settle()
    assert (placed(cluster, a), placed(cluster, b)) == (3, 1)


def test_a_bound_pod_counts_for_its_queue_from_the_start(cluster: SlicerCluster) -> None:
    cluster.queue("team-a", maximum="5Gi")
    cluster.node("n1")
    runs = pods(cluster, "team-a", 1)
    cluster.settle()
    cluster.put(replace(cluster.pods[runs[0].uid], node=NodeName("n1"), started=cluster.date))
    cluster.restart()
    late = pods(cluster, "team-a", 1)
    cluster.settle()
    assert placed(cluster, late) == 0


@pytest.mark.parametrize(
    ("lists", "labels", "counts"),
    [
        ([], {}, False),
        (["others"], {}, False),
        (["team-a"], {}, True),
        (["*"], {}, True),
        ([], {QUEUE_LABEL: "team-a"}, True),
        (["team-a"], {QUEUE_LABEL: "others"}, False),
    ],
    ids=str,
)
def test_a_namespace_is_of_the_queue_of_its_name_only_if_somebody_says_so(
    cluster: SlicerCluster, lists: list[str], labels: dict[str, str], counts: bool
) -> None:
    cluster.namespace("team-a", **{"kubernetes.io/metadata.name": "team-a", **labels})
    cluster.queue("team-a", maximum=2, namespaces=lists)
    cluster.node("n1")
    found = pods(cluster, "team-a", 4)
    cluster.settle()
    assert placed(cluster, found) == (2 if counts else 4)
    held = cluster.slicer.state.ledger.account("team-a").held.total()
    assert held == (2 if counts else 0)
    cluster.wait(61)
    (report, *_) = (each for each in reversed(cluster.writes) if isinstance(each, ReportQueue))
    faults = [each for each in report.status["faults"] if "has the name of this Queue" in each]
    assert bool(faults) is (not counts and not labels)


def test_a_new_namespace_takes_nothing_from_the_queue_of_its_name(cluster: SlicerCluster) -> None:
    cluster.namespace("team-a", **{QUEUE_LABEL: "research"})
    cluster.queue("research", maximum=4, guaranteed=4, namespaces=[])
    cluster.node("n1", count=2)
    cluster.namespace("research", **{"kubernetes.io/metadata.name": "research"})
    pods(cluster, "research", 4)
    cluster.settle()
    theirs = pods(cluster, "team-a", 4)
    cluster.settle()
    assert placed(cluster, theirs) == 4
