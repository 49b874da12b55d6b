"""Hand-over: an old pod of a Deployment ends for a new one that has no room, and a failed new one for an old one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.handover.test_inheritance import NEW, OLD, end, gone, has_slices, running, waiting
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import QUEUE_LABEL, NodeName, PodUid, resource_of
from tessera.controller.informers import unknown_owners
from tessera.controller.objects.pod_info import PodInfo, Workload
from tessera.controller.slicing.state.events import NodeObserved, OwnerLookedUp
from tessera.controller.slicing.state.instructions import Evict, PatchRequests
from tessera.controller.slicing.state.node_records import MOVES_ANNOTATION, RESERVATIONS_ANNOTATION
from tessera.handover.hand_over import EVICTED_AGAIN
from tessera.handover.satellite import HandOverMode
from tessera.handover.updates import NAMED_PODS, PULL_SECONDS, RESTARTS, UPDATES
from tessera.reasons.reason import UpdateStep


def deployment(revision: int, wanted: int = 1, **facts: Any) -> Workload:
    return Workload("svc", wanted, revision, **{"name": "svc", "keeps_old": True, **facts})


@pytest.fixture
def cluster() -> SlicerCluster:
    """One A100 card; a Deployment with an old and a new ReplicaSet."""
    made = SlicerCluster()
    made.pass_time(0)
    made.node("n1")
    made.workloads = {"old": deployment(1), "new": deployment(2)}
    return made


def surge(cluster: SlicerCluster, name: str = "svc-2-a", profile: str = "7g.40gb", **facts: Any) -> PodInfo:
    """A new pod of the update."""
    return waiting(cluster, name, profile, **{"maker": NEW, "owner": "new", "hands_over": True, **facts})


def evicted(cluster: SlicerCluster) -> list[str]:
    return [each.name for each in cluster.writes if isinstance(each, Evict)]


def step_of(cluster: SlicerCluster, pod: PodInfo) -> UpdateStep | None:
    found = cluster.slicer.state.updates.get(pod.uid)
    return found.step if found is not None else None


def test_the_new_pod_gets_the_slots_though_another_pod_has_waited_longer(cluster: SlicerCluster) -> None:
    running(cluster, "svc-1-a", "7g.40gb")
    batch = waiting(cluster, "batch", "3g.20gb", namespace="team-b")
    cluster.settle()
    new = surge(cluster)
    cluster.settle()
    assert evicted(cluster) == ["svc-1-a"]
    assert [has_slices(cluster, each) for each in (new, batch)] == [True, False]


def test_without_the_annotation_the_deadlock_is_named(cluster: SlicerCluster) -> None:
    running(cluster, "svc-1-a", "7g.40gb")
    new = surge(cluster, hands_over=False)
    cluster.settle()
    assert not evicted(cluster)
    assert step_of(cluster, new) is UpdateStep.STAY
    (told,) = [each.message for each in cluster.told if each.reason == "SliceUpdate"]
    assert "svc-1-a" in told
    assert '"maxSurge":0' in told
    assert "tessera.dev/update: hand-over" in told


def in_queue(cluster: SlicerCluster, pod: PodInfo, queue: str) -> PodInfo:
    made = cluster.put(replace(cluster.pods[pod.uid], labels=((QUEUE_LABEL, queue),)))
    cluster.settle()
    return made


@pytest.mark.parametrize(("queue", "ends"), [("q", True), ("full", False), ("free", True)])
def test_no_old_pod_ends_for_a_new_one_that_its_queue_may_not_hold(
    cluster: SlicerCluster, queue: str, ends: bool
) -> None:
    cluster.node("n2")
    for name in ("q", "full", "free"):
        cluster.queue(name, maximum="40Gi", namespaces=["default"])
    in_queue(cluster, running(cluster, "other", "7g.40gb", maker="ReplicaSet/other-1", owner="other"), "full")
    in_queue(cluster, running(cluster, "svc-1-a", "7g.40gb"), "q")
    new = surge(cluster, labels=((QUEUE_LABEL, queue),))
    cluster.settle()
    assert evicted(cluster) == ["svc-1-a"] * ends
    assert has_slices(cluster, new) is ends


def test_no_old_pod_ends_while_its_queue_holds_more_than_it_may(cluster: SlicerCluster) -> None:
    cluster.node("n2")
    cluster.queue("default", maximum="80Gi")
    for name, maker in (("svc-1-a", OLD), ("other", "ReplicaSet/other-1")):
        running(cluster, name, "7g.40gb", maker=maker, owner="old" if maker == OLD else "other")
    cluster.queue("default", maximum="40Gi")
    new = surge(cluster)
    cluster.settle()
    assert not evicted(cluster)
    cluster.queue("default", maximum="80Gi")
    cluster.settle()
    assert evicted(cluster) == ["svc-1-a"]
    assert has_slices(cluster, new)


@pytest.mark.parametrize(("cpu", "ends"), [(1_000, True), (2_000, True), (2_001, False)])
def test_no_old_pod_ends_for_a_new_one_that_requests_more_than_it_leaves(cpu: int, ends: bool) -> None:
    """The node would refuse it, and the next old pod, made in place of the first one, would end for it again."""
    cluster = SlicerCluster()
    cluster.pass_time(0)
    cluster.node("n1", allocatable={"cpu": 4000, "memory": 2**40, "pods": 110, resource_of("7g.40gb"): 1})
    cluster.workloads = {"old": deployment(1), "new": deployment(2)}
    cluster.pod("of others", amounts={"cpu": 2000}, node=NodeName("n1"), started=1.0)
    running(cluster, "svc-1-a", "7g.40gb")
    new = surge(cluster, amounts={"cpu": cpu})
    cluster.settle()
    assert evicted(cluster) == ["svc-1-a"] * ends
    assert has_slices(cluster, new) is ends


def test_of_a_thousand_old_pods_a_few_are_named(cluster: SlicerCluster) -> None:
    """What a reason names goes to every reader of the queue, for each new pod that waits."""
    cluster.node("n2")
    cluster.workloads = {"old": deployment(1, 14), "new": deployment(2, 14)}
    for number in range(14):
        running(cluster, f"svc-1-{number:02}", "1g.5gb")
    new = surge(cluster, profile="1g.5gb", hands_over=False)
    cluster.settle()
    found = cluster.slicer.state.updates[new.uid].old
    assert found == tuple(f"default/svc-1-{number:02}" for number in range(NAMED_PODS))


def ready(cluster: SlicerCluster, pod: PodInfo, **facts: Any) -> PodInfo:
    """A pod with slots runs and is ready."""
    ((node, _, _), *_) = cluster.where(pod)
    made = replace(cluster.pods[pod.uid], node=NodeName(node), started=cluster.date, ready_since=cluster.date)
    return cluster.put(replace(made, **facts))


def old_again(cluster: SlicerCluster, name: str = "svc-1-z", profile: str = "7g.40gb") -> PodInfo:
    """The old ReplicaSet makes a pod in place of the evicted one."""
    return waiting(cluster, name, profile, maker=OLD, owner="old", hands_over=True)


def test_one_old_pod_ends_at_a_time_and_the_next_when_the_new_one_is_ready_for_long_enough() -> None:
    cluster = SlicerCluster()
    cluster.pass_time(0)
    cluster.node("n1")
    cluster.workloads = {"old": deployment(1, 2), "new": deployment(2, 2, ready_for=30)}
    for name in ("svc-1-a", "svc-1-b"):
        running(cluster, name, "3g.20gb")
    first, second = (surge(cluster, f"svc-2-{each}", "3g.20gb") for each in "ab")
    cluster.settle()
    assert len(evicted(cluster)) == 1
    assert [has_slices(cluster, each) for each in (first, second)] == [True, False]
    assert step_of(cluster, second) is UpdateStep.FOLLOW
    ready(cluster, first)
    cluster.settle()
    cluster.pass_time(29)
    cluster.settle()
    assert len(evicted(cluster)) == 1
    cluster.pass_time(1)
    cluster.settle()
    assert len(evicted(cluster)) == 2
    assert has_slices(cluster, second)


def test_an_eviction_that_a_budget_refuses_is_told_and_asked_for_again(cluster: SlicerCluster) -> None:
    old = running(cluster, "svc-1-a", "7g.40gb")
    cluster.protected = {old.uid}
    new = surge(cluster)
    cluster.settle()
    assert step_of(cluster, new) is UpdateStep.REFUSED
    (told,) = [each.message for each in cluster.told if "refused" in each.message]
    assert "it would violate the pod's disruption budget" in told
    assert "set maxUnavailable 1 in its PodDisruptionBudget" in told
    cluster.protected = set()
    cluster.pass_time(EVICTED_AGAIN)
    cluster.settle()
    assert has_slices(cluster, new)
    assert step_of(cluster, new) is None


@pytest.mark.parametrize("fault", ["restarts", "deadline", "image"])
def test_a_new_pod_that_fails_gives_the_slots_back_and_its_revision_gets_no_further_try(
    cluster: SlicerCluster, fault: str
) -> None:
    running(cluster, "svc-1-a", "7g.40gb")
    batch = waiting(cluster, "batch", "3g.20gb", namespace="team-b")
    new = surge(cluster)
    cluster.settle()
    back = old_again(cluster)
    ready(cluster, new, ready_since=0.0, restarts=RESTARTS * (fault == "restarts"), lacks_image=fault == "image")
    cluster.settle()
    if fault == "deadline":
        assert has_slices(cluster, new)
        cluster.pass_time(cluster.workloads["new"].deadline)
        cluster.settle()
    assert evicted(cluster) == ["svc-1-a", "svc-2-a"]
    again = surge(cluster, "svc-2-b")
    cluster.settle()
    assert [has_slices(cluster, each) for each in (back, again, batch)] == [True, False, False]
    assert step_of(cluster, again) is UpdateStep.FAILED
    ready(cluster, back)
    cluster.pass_time(7_200)
    for _ in range(2):
        cluster.settle()
        assert len(evicted(cluster)) == 2
        assert step_of(cluster, again) is UpdateStep.FAILED
        cluster.restart()
    cluster.workloads["new"] = deployment(3)  # the update was taken back, and made again
    third = surge(cluster, "svc-2-c")
    cluster.pass_time(60)
    cluster.settle()
    assert has_slices(cluster, again) or has_slices(cluster, third)


def test_a_new_pod_that_fails_stays_where_no_old_one_waits(cluster: SlicerCluster) -> None:
    running(cluster, "svc-1-a", "7g.40gb")
    new = surge(cluster)
    cluster.settle()
    ready(cluster, new, ready_since=0.0, restarts=RESTARTS)
    cluster.pass_time(700)
    cluster.settle()
    assert has_slices(cluster, new)


def test_a_mark_goes_with_the_pods_of_its_revision(cluster: SlicerCluster) -> None:
    running(cluster, "svc-1-a", "7g.40gb")
    new = surge(cluster)
    cluster.settle()
    old_again(cluster)
    ready(cluster, new, ready_since=0.0, restarts=RESTARTS)
    cluster.settle()
    assert MOVES_ANNOTATION in cluster.objects["n1"]["metadata"]["annotations"]
    cluster.pass_time(4_000)
    cluster.settle()
    assert MOVES_ANNOTATION not in cluster.objects["n1"]["metadata"]["annotations"]


def stranger(cluster: SlicerCluster) -> None:
    cluster.workloads["new"] = deployment(2)._replace(top="another")


def made_up(cluster: SlicerCluster) -> None:
    cluster.made_up = {"new"}


def scaled_to_zero(cluster: SlicerCluster) -> None:
    cluster.workloads = {"old": deployment(1, 0), "new": deployment(2, 0)}


def older(cluster: SlicerCluster) -> None:
    cluster.workloads["new"] = deployment(2)._replace(revision=1)
    cluster.workloads["old"] = deployment(2)


def switched_off(cluster: SlicerCluster) -> None:
    cluster.updates = HandOverMode.INHERIT
    cluster.restart()


def cordoned(cluster: SlicerCluster) -> None:
    node = replace(cluster.nodes[NodeName("n1")], cordoned=True)
    cluster.nodes[node.name] = node
    cluster.slicer.handle(NodeObserved(node))


def ends_old_pods_itself(cluster: SlicerCluster) -> None:
    cluster.workloads = {"old": deployment(1, keeps_old=False), "new": deployment(2, keeps_old=False)}


@pytest.mark.parametrize(
    "way", [stranger, made_up, scaled_to_zero, older, switched_off, cordoned, ends_old_pods_itself]
)
def test_no_pod_ends(cluster: SlicerCluster, way: Callable[[SlicerCluster], None]) -> None:
    running(cluster, "svc-1-a", "7g.40gb")
    way(cluster)
    surge(cluster)
    cluster.settle()
    assert not evicted(cluster)


def test_pods_that_are_deleted_meanwhile_leave_their_slots_too() -> None:
    """The new pod and the old one whose slots it gets are one of the wanted pods, not two."""
    cluster = SlicerCluster()
    cluster.pass_time(0)
    for name in ("n1", "n2"):
        cluster.node(name)
    cluster.workloads = {"old": deployment(1, 3), "new": deployment(2, 3)}
    olds = [running(cluster, f"svc-1-{each}", "3g.20gb") for each in "abc"]
    running(cluster, "other", "3g.20gb", maker="StatefulSet/other", owner="other")
    batch = waiting(cluster, "batch", "3g.20gb", namespace="team-b")
    cluster.protected = {each.uid for each in olds}
    new = surge(cluster, profile="3g.20gb")
    cluster.settle()
    (kept,) = cluster.slicer.state.reservations[new.uid].holders
    others = [each for each in olds if each.uid != kept]
    for each in others:
        end(cluster, each)
    for each in others:
        gone(cluster, each)
    again = old_again(cluster, profile="3g.20gb")
    cluster.settle()
    assert [has_slices(cluster, each) for each in (new, again, batch)] == [True, True, False]


@pytest.mark.parametrize("facts", [{"maker": "", "owner": ""}, {"namespace": "team-b"}, {"profile": "2g.10gb"}])
def test_no_pod_ends_for_one_without_owner_of_another_namespace_or_with_room(
    cluster: SlicerCluster, facts: dict[str, Any]
) -> None:
    running(cluster, "svc-1-a", "4g.20gb")
    surge(cluster, **{"profile": "4g.20gb", **facts})
    cluster.settle()
    assert not evicted(cluster)


@pytest.mark.parametrize("killed", ["before the reservation is written", "before the eviction", "after it"])
def test_a_new_controller_goes_on_where_the_old_one_ended(cluster: SlicerCluster, killed: str) -> None:
    running(cluster, "svc-1-a", "7g.40gb")
    batch = waiting(cluster, "batch", "7g.40gb", namespace="team-b")
    cluster.settle()
    new = surge(cluster)
    for _ in range(20):
        for owner in list(unknown_owners(cluster.slicer)):
            cluster.slicer.handle(OwnerLookedUp(owner, cluster.workloads[owner.uid]))
        cluster.slicer.decide()
        writes = cluster.slicer.pop_writes()
        reserves = any(
            isinstance(each, PatchRequests) and RESERVATIONS_ANNOTATION in each.annotations for each in writes
        )
        evicts = any(isinstance(each, Evict) for each in writes)
        if (killed.startswith("before the reservation") and reserves) or (killed == "before the eviction" and evicts):
            break
        for each in writes:
            cluster.answer(each)
        if evicts:
            break
    cluster.restart()
    cluster.settle()
    assert evicted(cluster) == ["svc-1-a"]
    assert [has_slices(cluster, each) for each in (new, batch)] == [True, False]


def test_a_forged_record_ends_no_pod_of_another_owner(cluster: SlicerCluster) -> None:
    """The node's agent writes that slots of a stranger are kept for the new pod."""
    running(cluster, "other-a", "7g.40gb", maker="StatefulSet/other", owner="other")
    cluster.node("n2")
    running(cluster, "svc-1-a", "7g.40gb")
    old = cluster.read("n1").spec.pod_allocation_requests["uid-other-a"].slices
    new = surge(cluster)
    cluster.protected = {PodUid("uid-svc-1-a")}
    cluster.settle()
    entry = {
        "podRef": {"namespace": "default", "name": new.name, "uid": new.uid},
        "queue": "default",
        "slices": msgspec.to_builtins(old),
        "number": 0,
        "made": cluster.date,
        "until": cluster.date,
        "patience": 600.0,
        "holders": ["uid-other-a"],
    }
    text = msgspec.json.encode([entry]).decode()
    cluster.patch("n1", {"metadata": {"annotations": {RESERVATIONS_ANNOTATION: text}}})
    cluster.patch("n2", {"metadata": {"annotations": {RESERVATIONS_ANNOTATION: None}}})
    cluster.restart()
    cluster.settle()
    assert "other-a" not in evicted(cluster)


def test_a_preemption_of_the_old_pod_goes_first() -> None:
    cluster = SlicerCluster(preempts=True)
    cluster.pass_time(0)
    cluster.node("n1")
    cluster.workloads = {"old": deployment(1), "new": deployment(2)}
    old = running(cluster, "svc-1-a", "7g.40gb")
    cluster.protected = {old.uid}
    urgent = waiting(cluster, "urgent", "7g.40gb", priority=100, namespace="team-b")
    cluster.settle()
    new = surge(cluster)
    cluster.settle()
    assert urgent.uid in cluster.slicer.state.reservations
    assert step_of(cluster, new) is None
    cluster.remove(cluster.pods[old.uid])
    cluster.settle()
    assert [has_slices(cluster, each) for each in (urgent, new)] == [True, False]


def test_a_third_template_gets_the_slots_of_a_second_one_that_is_not_ready(cluster: SlicerCluster) -> None:
    running(cluster, "svc-1-a", "7g.40gb")
    second = surge(cluster)
    cluster.settle()
    ready(cluster, second, ready_since=0.0)
    cluster.workloads["newest"] = deployment(3)
    third = surge(cluster, "svc-3-a", maker="ReplicaSet/svc-3", owner="newest")
    cluster.pass_time(60)
    cluster.settle()
    assert evicted(cluster) == ["svc-1-a", "svc-2-a"]
    assert has_slices(cluster, third)


def test_the_work_for_many_updates_is_bounded() -> None:
    """A tenant names 400 owners that do not exist, two for each of 200 services, beside another's update."""
    cluster = SlicerCluster()
    cluster.pass_time(0)
    cluster.node("n1")
    cluster.workloads = {"old": deployment(1), "new": deployment(2)}
    running(cluster, "svc-1-a", "7g.40gb")
    for number in range(UPDATES + 50):
        for which in (1, 2):
            maker = f"ReplicaSet/x{number}-{which}"
            waiting(cluster, f"x{number}-{which}", "7g.40gb", maker=maker, owner=maker, namespace="team-b")
    cluster.settle()
    new = surge(cluster)
    cluster.settle()
    cluster.pass_time(60)
    cluster.settle()
    assert has_slices(cluster, new)


def test_a_second_update_does_not_end_the_last_ready_pod_while_the_first_has_ended_one() -> None:
    cluster = SlicerCluster()
    cluster.pass_time(0)
    cluster.node("n1")
    cluster.workloads = {"old": deployment(1, 2), "new": deployment(2, 2), "newest": deployment(3, 2)}
    olds = [ready(cluster, running(cluster, f"svc-1-{each}", "3g.20gb"), hands_over=True) for each in "ab"]
    second = surge(cluster, profile="3g.20gb")
    cluster.settle()
    assert len(evicted(cluster)) == 1
    cluster.remove(cluster.pods[second.uid])  # by its Deployment, before it has started
    batch = waiting(cluster, "batch", "3g.20gb", namespace="team-b")
    cluster.settle()
    assert has_slices(cluster, batch)
    third = surge(cluster, "svc-3-a", "3g.20gb", maker="ReplicaSet/svc-3", owner="newest")
    cluster.settle()
    assert len(evicted(cluster)) == 1
    assert any(each.uid in cluster.pods for each in olds)
    cluster.pass_time(cluster.workloads["newest"].deadline)
    cluster.settle()
    assert has_slices(cluster, third)


def test_an_update_that_waits_for_pods_which_an_autoscaler_wants_says_so(cluster: SlicerCluster) -> None:
    cluster.workloads = {"old": deployment(1, 2), "new": deployment(2, 2)}
    old = ready(cluster, running(cluster, "svc-1-a", "7g.40gb"), hands_over=True)
    new = surge(cluster)
    cluster.settle()
    assert not evicted(cluster)
    assert step_of(cluster, new) is UpdateStep.SHORT
    (told,) = [each.message for each in cluster.told if each.reason == "SliceUpdate"]
    assert (
        "once as many pods are ready as its Deployment wants, or once this pod is progressDeadlineSeconds old" in told
    )
    assert old.name in told
    cluster.pass_time(cluster.workloads["new"].deadline)
    cluster.settle()
    assert evicted(cluster) == [old.name]
    assert has_slices(cluster, new)


def test_an_image_that_does_not_come_holds_the_update_up_for_a_while_only(cluster: SlicerCluster) -> None:
    running(cluster, "svc-1-a", "7g.40gb")
    cluster.pulls = False
    new = surge(cluster)
    cluster.settle()
    assert step_of(cluster, new) is UpdateStep.PULL
    assert cluster.image_pulls == {new.uid: "n1"}
    cluster.pass_time(PULL_SECONDS - 1)
    cluster.settle()
    assert not evicted(cluster)
    cluster.pass_time(1)
    cluster.settle()
    assert has_slices(cluster, new)
    assert not cluster.image_pulls


def test_no_old_pod_ends_while_its_node_does_not_get_the_new_image(cluster: SlicerCluster) -> None:
    running(cluster, "svc-1-a", "7g.40gb")
    cluster.no_image = "manifest unknown: svc:3"
    new = surge(cluster)
    for _ in range(3):
        cluster.settle()
        assert step_of(cluster, new) is UpdateStep.IMAGE
        assert not evicted(cluster)
        cluster.pass_time(3 * PULL_SECONDS)
    cluster.restart()
    cluster.settle()
    assert not evicted(cluster)
    (told, *_) = [each for each in cluster.told if each.reason == "SliceUpdate" and each.warning]
    for part in ("svc-1-a", "manifest unknown: svc:3", "correct the image", "kubectl rollout undo -n default"):
        assert part in told.message
    cluster.no_image = ""  # somebody has pushed it
    cluster.settle()
    assert has_slices(cluster, new)


def test_a_step_has_its_beginning_and_the_old_revision_knows_what_it_waits_for(cluster: SlicerCluster) -> None:
    running(cluster, "svc-1-a", "7g.40gb")
    cluster.pulls = False
    new = surge(cluster)
    cluster.settle()
    began = cluster.date
    cluster.pass_time(60)
    cluster.settle()
    assert cluster.slicer.state.updates[new.uid].since == began
    cluster.pulls = True
    cluster.pass_time(PULL_SECONDS)
    cluster.settle()
    again = surge(cluster, "svc-1-b", maker=OLD, owner="old")
    cluster.settle()
    reason = cluster.slicer.state.updates[again.uid]
    assert (reason.step, reason.old) == (UpdateStep.BACK, (new.key,))
    ready(cluster, cluster.pods[new.uid], hands_over=True)
    cluster.settle()
    assert again.uid not in cluster.slicer.state.updates


def test_a_waiting_pod_that_goes_is_pulled_for_no_more(cluster: SlicerCluster) -> None:
    running(cluster, "svc-1-a", "7g.40gb")
    cluster.pulls = False
    new = surge(cluster)
    cluster.settle()
    cluster.remove(new)
    cluster.settle()
    assert not cluster.image_pulls
