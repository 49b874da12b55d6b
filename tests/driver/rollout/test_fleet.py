"""Nodes that change their driver: order, number at a time, and the end of a rollout."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from tests.driver.rollout.conftest import (
    NEW,
    NOW,
    OLD,
    OTHER,
    POLICY,
    begun,
    changed,
    gpu_pod,
    node,
    pulled,
    record,
    replaced,
    wanted,
)

from tessera.api.nodes.node_marks import UPGRADE_STATE_LABEL
from tessera.driver.node_facts import UpgradeState
from tessera.driver.rollout.candidates import Failures, NodeFailure, SetFailures, unavailable_limit
from tessera.driver.rollout.fleet import RolloutDecision, RolloutSnapshot, decide_rollout
from tessera.driver.rollout.instructions import DeletePull, ForgetFailures, PatchNode, PullImage, RecordFailure
from tessera.driver.rollout.node_view import DesiredDriver, DriverPodView, NodeView, PodView, PullPod, PullProgress
from tessera.gpu_operator.driver_policy import DrainSettings, PodDeletionSettings, UpgradePolicy
from tessera.gpu_operator.policy_objects import read_cluster_policy
from tessera.gpu_operator.policy_status import NO_EFFECT

WIDE = UpgradePolicy(max_parallel=0, max_unavailable="100%", canary=0)


def decided(
    nodes: Iterable[NodeView], policy: UpgradePolicy | None = None, failures: Failures | None = None, **more: Any
) -> RolloutDecision:
    return decide_rollout(snapshot(nodes, policy, failures, **more))


def snapshot(
    nodes: Iterable[NodeView], policy: UpgradePolicy | None = None, failures: Failures | None = None, **more: Any
) -> RolloutSnapshot:
    policies = {POLICY: policy or UpgradePolicy()}
    return RolloutSnapshot(views=tuple(nodes), policies=policies, failures=failures or {}, now=NOW, **more)


def moved(decision: RolloutDecision, to: UpgradeState) -> list[str]:
    """The nodes that get a state, in the order of decisions."""
    patches = [each for each in decision.instructions if isinstance(each, PatchNode)]
    return [each.node for each in patches if each.labels.get(UPGRADE_STATE_LABEL) == to.value]


def pulls(decision: RolloutDecision) -> list[str]:
    return [each.node for each in decision.instructions if isinstance(each, PullImage)]


def fresh(count: int, **more: Any) -> list[NodeView]:
    """Nodes that serve with the old set and have the new one's image."""
    return [node(f"n{number}", pulls=pulled(), **more) for number in range(count)]


def works(name: str = "good") -> NodeView:
    """A node that serves with the new set."""
    return node(name, current=NEW, state=UpgradeState.DONE)


# Canary, order, image


def test_the_canary_gets_the_image_first_and_alone_while_its_old_driver_serves() -> None:
    decision = decided(node(f"n{number}") for number in range(3))
    assert pulls(decision) == ["n0"]
    assert moved(decision, UpgradeState.CORDON) == []
    assert sorted(moved(decision, UpgradeState.REQUIRED)) == ["n0", "n1", "n2"]
    assert decision.notes["n1"] == f"driver set {NEW} is proven on other nodes first"


def test_the_canary_begins_when_its_image_is_there_and_the_others_wait_until_it_is_proven() -> None:
    policy = UpgradePolicy(max_parallel=5, max_unavailable="100%", canary=2)
    assert moved(decided(fresh(5), policy), UpgradeState.CORDON) == ["n0", "n1"]
    canaries = [changed(UpgradeState.VALIDATION, name=f"c{number}") for number in range(2)]
    assert moved(decided([*canaries, *fresh(5)], policy), UpgradeState.CORDON) == []
    half = [works(), canaries[1]]
    assert moved(decided([*half, *fresh(5)], policy), UpgradeState.CORDON) == []
    assert len(moved(decided([works("c0"), works("c1"), *fresh(5)], policy), UpgradeState.CORDON)) == 5


def test_a_node_that_came_up_with_the_set_is_proof_enough() -> None:
    assert moved(decided([works(), *fresh(2)]), UpgradeState.CORDON) == ["n0"]
    not_validated = replaced(works(), validated=False)
    parallel = UpgradePolicy(max_parallel=5, max_unavailable=5)
    assert moved(decided([not_validated, *fresh(3)], parallel), UpgradeState.CORDON) == ["n0"]


def test_requested_nodes_go_first_then_idle_ones_then_those_with_the_fewest_pods() -> None:
    names = {"many": 3, "few": 1, "idle": 0, "asked": 5}
    nodes = [
        node(name, pods=tuple(gpu_pod(f"p{n}") for n in range(pods)), pulls=pulled(), requested=name == "asked")
        for name, pods in names.items()
    ]
    assert moved(decided(nodes, WIDE), UpgradeState.CORDON) == ["asked", "idle", "few", "many"]


def test_the_next_nodes_have_the_image_before_their_turn() -> None:
    policy = UpgradePolicy(max_parallel=2, max_unavailable=2)
    under_way = [changed(UpgradeState.RESTART, name="a"), changed(UpgradeState.RESTART, name="b")]
    decision = decided([works(), *under_way, *(node(f"n{number}") for number in range(5))], policy)
    assert pulls(decision) == ["n0", "n1"]
    assert moved(decision, UpgradeState.CORDON) == []


def test_an_image_that_is_on_its_way_is_not_asked_for_twice() -> None:
    decision = decided([node(pulls=pulled(PullProgress.PULLING))])
    assert pulls(decision) == []
    assert "is being pulled" in decision.notes["n1"]


def test_a_node_to_which_the_image_does_not_come_is_not_touched_and_uses_up_the_budget() -> None:
    bad = node("n0", pulls=pulled(PullProgress.FAILED, "ErrImagePull: manifest unknown"))
    decision = decided([bad, *fresh(0), node("n1")])
    assert moved(decision, UpgradeState.FAILED) == ["n0"]
    assert "manifest unknown" in decision.stopped[POLICY]
    assert all(each.unschedulable is None for each in decision.instructions if isinstance(each, PatchNode))


def test_pods_that_brought_images_go_when_nobody_waits_for_them() -> None:
    old = (PullPod(uid="p", namespace="tessera-system", name="old", set=OTHER, pull=PullProgress.PRESENT),)
    for view in (node(pulls=old), works_with(pulled()), begun(UpgradeState.PODS, pulls=pulled())):
        assert [each.uid for each in decided([view]).instructions if isinstance(each, DeletePull)] != []
    assert not [each for each in decided([node(pulls=pulled())]).instructions if isinstance(each, DeletePull)]


def works_with(images: tuple[PullPod, ...]) -> NodeView:
    return replaced(works(), pulls=images)


# How many


def test_no_more_are_under_way_than_may_be_in_parallel() -> None:
    policy = UpgradePolicy(max_parallel=3, max_unavailable="100%", canary=0)
    assert len(moved(decided([changed(UpgradeState.RESTART, name="a"), *fresh(9)], policy), UpgradeState.CORDON)) == 2


@pytest.mark.parametrize(
    ("limit", "total", "nodes"),
    [("25%", 4, 1), ("25%", 5, 2), ("1%", 3, 1), (2, 9, 2), (0, 9, 0), ("100%", 7, 7), ("3", 9, 3), ("many", 9, 1)],
)
def test_a_percentage_is_rounded_up(limit: int | str, total: int, nodes: int) -> None:
    assert unavailable_limit(UpgradePolicy(max_unavailable=limit), total) == nodes


def test_nodes_that_are_not_ready_or_failed_are_out_of_service_too() -> None:
    policy = UpgradePolicy(max_parallel=0, max_unavailable=3, canary=0, failure_budget=9)
    down = node("down", ready=False)
    failed = changed(UpgradeState.FAILED, name="failed", record=record(changed=True, returning=True, cause="x"))
    decision = decided([down, failed, *fresh(5)], policy)
    assert len(moved(decision, UpgradeState.CORDON)) == 1
    assert decision.notes["down"] == "the node is not ready"


def test_nodes_that_somebody_cordoned_are_not_counted_and_are_taken_only_when_idle() -> None:
    policy = UpgradePolicy(max_parallel=0, max_unavailable=1, canary=0)
    idle = node("idle", unschedulable=True, pulls=pulled())
    busy = node("busy", unschedulable=True, pods=(gpu_pod(),), pulls=pulled())
    decision = decided([idle, busy, *fresh(3)], policy)
    assert moved(decision, UpgradeState.CORDON) == ["n0", "idle"]
    assert "somebody cordoned the node" in decision.notes["busy"]


def test_a_write_whose_outcome_was_not_seen_holds_its_place() -> None:
    decision = decided(fresh(3), UpgradePolicy(canary=0), busy=frozenset({"n0"}))
    assert moved(decision, UpgradeState.CORDON) == []


# Who may not


@pytest.mark.parametrize(
    ("view", "told"),
    [
        (node(skip_reason="label nvidia.com/gpu-driver-upgrade.skip=true keeps it out"), "skip=true keeps it out"),
        (node(ready=False), "not ready"),
        (
            node(desired=wanted(obstacle="its DaemonSet is refused")),
            "cannot be installed yet: its DaemonSet is refused",
        ),
        (node(pods=(gpu_pod(controlled=False),)), "set upgradePolicy.podDeletion.force"),
        (node(desired=wanted(when_idle=True), pods=(gpu_pod(),)), "is installed when no pod uses its cards"),
    ],
)
def test_a_node_that_may_not_change_is_passed_over_with_the_reason(view: NodeView, told: str) -> None:
    decision = decided([view, *fresh(1)], UpgradePolicy(max_unavailable=2))
    assert told in decision.notes["n1"]
    assert moved(decision, UpgradeState.CORDON) == ["n0"]


def test_without_auto_upgrade_only_requested_nodes_change_and_the_others_are_told_what_is_available() -> None:
    off = UpgradePolicy(auto_upgrade=False)
    nodes = [node("asked", requested=True, pulls=pulled()), node("other"), node("was", state=UpgradeState.REQUIRED)]
    decision = decided(nodes, off)
    assert moved(decision, UpgradeState.CORDON) == ["asked"]
    assert decision.notes["other"] == f"driver set {NEW} is available; upgradePolicy.autoUpgrade is off"
    assert moved(decision, UpgradeState.DONE) == ["was"]
    assert (decision.counts[POLICY].available, decision.counts[POLICY].pending) == (2, 1)


def test_auto_upgrade_that_is_turned_off_gives_back_what_was_not_changed_yet() -> None:
    off = UpgradePolicy(auto_upgrade=False)
    decision = decided([begun(UpgradeState.PODS, name="early"), changed(UpgradeState.RESTART, name="late")], off)
    assert moved(decision, UpgradeState.UNCORDON) == ["early"]


def test_a_request_for_what_a_node_has_already_is_taken_back() -> None:
    assert moved(decided([replaced(works(), requested=True)]), UpgradeState.DONE) == ["good"]


# Failures


def failed_node(name: str = "bad", **more: Any) -> NodeView:
    resting = record(returning=True, restored=True, cause="it broke")
    return node(name, state=UpgradeState.FAILED, record=resting, **more)


def remembered(*names: str, set_: str = NEW) -> dict[str, SetFailures]:
    nodes = {name: NodeFailure(cause="it broke", at=NOW) for name in names}
    return {set_: SetFailures(policy=POLICY, nodes=nodes)}


def test_with_the_budget_used_up_nothing_begins_and_the_cause_is_told() -> None:
    decision = decided([failed_node(), *fresh(3)])
    assert moved(decision, UpgradeState.CORDON) == []
    assert decision.stopped[POLICY].endswith("1 failed, the budget is 1; node bad: it broke")
    assert "it broke" in decision.notes["n0"]


def test_a_failure_is_told_until_another_set_is_wanted_even_if_that_has_to_wait() -> None:
    resting = record(target="elsewhere", returning=True, restored=True, cause="it broke")
    waits = node(state=UpgradeState.FAILED, record=resting, desired=wanted(when_idle=True), pods=(gpu_pod(),))
    decision = decided([waits])
    assert moved(decision, UpgradeState.REQUIRED) == ["n1"]
    assert decision.notes["n1"].endswith("is installed when no pod uses its cards")
    assert moved(decided([waits], UpgradePolicy(auto_upgrade=False)), UpgradeState.DONE) == ["n1"]
    unsure = replaced(waits, desired=msgspec.structs.replace(waits.desired, undecided=True))
    assert moved(decided([unsure]), UpgradeState.REQUIRED) == []


def test_with_budget_left_the_others_go_on() -> None:
    policy = UpgradePolicy(failure_budget=2)
    assert moved(decided([failed_node(), *fresh(3)], policy), UpgradeState.CORDON) == ["n0"]


def test_a_failure_is_remembered_longer_than_its_node_lives() -> None:
    (told,) = [each for each in decided([failed_node()]).instructions if isinstance(each, RecordFailure)]
    assert (told.set, told.node, told.cause) == (NEW, "bad", "it broke")
    assert moved(decided(fresh(3), failures=remembered("bad")), UpgradeState.CORDON) == []
    again = decided([failed_node()], failures=remembered("bad"))
    assert not [each for each in again.instructions if isinstance(each, RecordFailure)]


def test_a_set_that_failed_is_not_tried_again_until_another_one_is_wanted() -> None:
    nodes = [msgspec.structs.replace(each, desired=wanted(OTHER), pulls=pulled(set_=OTHER)) for each in fresh(3)]
    assert moved(decided(nodes, failures=remembered("bad")), UpgradeState.CORDON) == ["n0"]
    back_again = decided(fresh(3), failures=remembered("bad"))
    assert moved(back_again, UpgradeState.CORDON) == []


def test_a_failed_node_begins_anew_with_another_set() -> None:
    view = failed_node(desired=wanted(OTHER), pulls=pulled(set_=OTHER))
    assert moved(decided([view]), UpgradeState.CORDON) == ["bad"]


def test_a_failure_in_this_very_round_stops_what_was_not_changed_yet() -> None:
    policy = UpgradePolicy(max_parallel=5, max_unavailable=5, canary=0)
    broken = changed(UpgradeState.RESTART, name="a", drivers=(DriverPodView(set=NEW, fault="ended 5 times"),))
    decision = decided([broken, begun(UpgradeState.PODS, name="b"), *fresh(2)], policy)
    assert moved(decision, UpgradeState.FAILED) == ["a"]
    assert moved(decision, UpgradeState.UNCORDON) == ["b"]
    assert moved(decision, UpgradeState.CORDON) == []


def test_a_node_that_fails_untouched_and_uses_up_the_budget_has_failed_and_does_not_only_turn_back() -> None:
    stuck = begun(UpgradeState.PODS, name="a", pods=(gpu_pod(empty_dir=True),))
    decision = decided([stuck])
    assert (moved(decision, UpgradeState.FAILED), moved(decision, UpgradeState.UNCORDON)) == (["a"], [])


def test_what_a_person_asks_for_is_tried_in_spite_of_failures_and_success_forgets_them() -> None:
    asked = failed_node(requested=True, pulls=pulled())
    assert moved(decided([asked], failures=remembered("bad")), UpgradeState.CORDON) == ["bad"]
    decision = decided([works("bad"), *fresh(1)], failures=remembered("bad"))
    assert ForgetFailures(set=NEW) in decision.instructions


def test_two_pools_of_a_policy_have_a_canary_each_and_share_limits_and_budget() -> None:
    policy = UpgradePolicy(max_parallel=5, max_unavailable=5)
    second = [
        replaced(each, name=f"m{each.name}", desired=wanted(OTHER), pulls=pulled(set_=OTHER)) for each in fresh(3)
    ]
    assert moved(decided([*fresh(3), *second], policy), UpgradeState.CORDON) == ["mn0", "n0"]
    one = UpgradePolicy(max_parallel=1)
    assert len(moved(decided([*fresh(3), *second], one), UpgradeState.CORDON)) == 1
    assert moved(decided([failed_node(), *second], policy), UpgradeState.CORDON) == []


def test_policies_do_not_touch_each_other() -> None:
    theirs = DesiredDriver(policy="NVIDIADriver/b", set=NEW, image="x")
    other = [replaced(each, name=f"m{each.name}", desired=theirs) for each in fresh(2)]
    decision = decided([failed_node(), *fresh(2), *other])
    assert moved(decision, UpgradeState.CORDON) == ["mn0"]
    assert set(decision.stopped) == {POLICY}


def test_a_node_whose_pods_could_not_leave_does_not_become_the_canary() -> None:
    stuck = node("n0", pods=(gpu_pod(empty_dir=True),), pulls=pulled())
    busy = node("n1", pods=(gpu_pod("a"), gpu_pod("b")), pulls=pulled())
    assert moved(decided([stuck, busy]), UpgradeState.CORDON) == ["n1"]
    may = UpgradePolicy(pod_deletion=PodDeletionSettings(delete_empty_dir=True))
    assert moved(decided([stuck, busy], may), UpgradeState.CORDON) == ["n0"]


def test_a_node_that_a_drain_can_empty_is_not_passed_over() -> None:
    pods = (gpu_pod("alone", controlled=False), gpu_pod("data", empty_dir=True))
    may = UpgradePolicy(drain=DrainSettings(enable=True, force=True, delete_empty_dir=True))
    assert moved(decided([node(pods=pods, pulls=pulled())], may), UpgradeState.CORDON) == ["n1"]
    for drain, told in (
        (DrainSettings(enable=True), "upgradePolicy.drain.force"),
        (DrainSettings(enable=True, force=True), "upgradePolicy.drain.deleteEmptyDir"),
        (DrainSettings(enable=True, force=True, delete_empty_dir=True, pod_selector="app=web"), "kept out of drains"),
        (DrainSettings(enable=True, pod_selector="(("), "label selector"),
    ):
        assert told in decided([node(pods=pods)], UpgradePolicy(drain=drain)).notes["n1"]


@pytest.mark.parametrize(
    ("stuck", "written"),
    [
        ({"controlled": False}, {}),
        ({"empty_dir": True}, {}),
        ({"controlled": False}, {"drain": {"enable": True}}),
        ({"empty_dir": True}, {"drain": {"enable": True}}),
    ],
)
def test_a_node_that_pods_hold_back_names_a_field_of_the_policy_that_lets_it_go(
    stuck: dict[str, bool], written: dict[str, Any]
) -> None:
    held = [node(pods=(gpu_pod("a", **stuck),), pulls=pulled())]
    told = decided(held, upgrade_policy(written)).notes["n1"]
    (section, field) = re.findall(r"set upgradePolicy\.(\w+)\.(\w+)$", told)[0]
    freed = upgrade_policy({**written, section: {**written.get(section, {}), field: True}})
    assert moved(decided(held, freed), UpgradeState.CORDON) == ["n1"]


def upgrade_policy(written: dict[str, Any]) -> UpgradePolicy:
    """The upgrade settings of a ClusterPolicy; no field is without effect."""
    source = {"repository": "nvcr.io/nvidia", "image": "driver", "version": "535.54.03"}
    spec = {"driver": {**source, "upgradePolicy": {"autoUpgrade": True, **written}}}
    read = read_cluster_policy({"metadata": {"name": "p"}, "spec": spec})
    assert read.policy is not None
    assert not [each for each in read.notices if each.text.startswith(NO_EFFECT)]
    return read.policy.upgrade


def test_a_node_that_pods_hold_back_is_marked_once_and_keeps_the_image_that_it_pulls() -> None:
    held = node(pods=(gpu_pod(controlled=False),), pulls=pulled(PullProgress.PULLING))
    assert moved(decided([held]), UpgradeState.REQUIRED) == ["n1"]
    assert not [each for each in decided([held]).instructions if isinstance(each, DeletePull)]
    assert decided([replaced(held, state=UpgradeState.REQUIRED)]).instructions == ()
    idle = replaced(held, desired=wanted(when_idle=True))
    assert moved(decided([idle]), UpgradeState.REQUIRED) == []


def test_a_node_that_pods_come_to_and_leave_says_the_same_all_the_time() -> None:
    """Each other note would be two writes of the node."""
    for more in ({"controlled": False}, {"empty_dir": True}, {"controlled": False, "labels": {"a": "b"}}):
        for policy in (UpgradePolicy(), UpgradePolicy(drain=DrainSettings(enable=True, pod_selector="a!=b"))):
            notes = {decided([node(pods=pods)], policy).notes["n1"] for pods in streams(more)}
            assert len(notes) == 1
    cordoned = {decided([node(pods=pods, unschedulable=True)]).notes["n1"] for pods in streams({})}
    assert len(cordoned) == 1


def streams(more: dict[str, Any]) -> Iterable[tuple[PodView, ...]]:
    """The pods of a node at some moments."""
    pods = [gpu_pod(f"p{number}", **more) for number in range(4)]
    return [tuple(pods[:1]), tuple(pods[1:3]), (pods[3], gpu_pod("train"))]


def test_a_pod_without_cards_that_no_drain_could_take_is_in_nobodys_way() -> None:
    web = PodView(uid="w", namespace="default", name="web", controlled=False)
    view = node(pods=(web, gpu_pod()), pulls=pulled())
    assert moved(decided([view], UpgradePolicy(drain=DrainSettings(enable=True))), UpgradeState.CORDON) == ["n1"]


def test_a_failing_pull_is_looked_at_again_at_its_timeout() -> None:
    (pod,) = pulled(PullProgress.PULLING)
    view = node(pulls=(msgspec.structs.replace(pod, until=NOW + 600),))
    assert decided([view]).until == NOW + 600


def test_the_counts_are_upstreams() -> None:
    nodes = [works(), failed_node(), changed(UpgradeState.RESTART, name="a"), *fresh(2)]
    counts = decided(nodes, UpgradePolicy(failure_budget=5)).counts[POLICY]
    assert (counts.done, counts.failed, counts.in_progress, counts.pending, counts.available) == (1, 1, 1, 2, 0)


def test_nodes_that_are_to_have_what_they_have_are_left_alone() -> None:
    content = [
        works(),
        node("fixed", desired=wanted(OLD)),
        node("none", current="", desired=wanted("")),
        node("x", current=""),
    ]
    assert decided(content).instructions == ()


def test_while_a_registry_is_asked_what_is_wanted_nothing_is_told_to_be_done() -> None:
    """As after a change of the policy: what nodes serve with counts as wanted until the answer is there."""
    asked = wanted(OLD, undecided=True)
    failed = record(returning=True, restored=True, cause="it broke")
    decision = decided(
        [
            node("waits", state=UpgradeState.REQUIRED, desired=asked),
            node("failed", state=UpgradeState.FAILED, record=failed, desired=asked),
        ]
    )
    assert not any(isinstance(each, PatchNode) for each in decision.instructions)


# Pods that could not leave


OCCUPIED = record(cause="pod default/train was still there", occupied=True, returning=True, restored=True)


def test_a_node_whose_pods_could_not_leave_says_nothing_against_the_driver() -> None:
    occupied = node("a", state=UpgradeState.FAILED, record=OCCUPIED, pods=(gpu_pod(),), pulls=pulled())
    decision = decided([occupied, *fresh(1)], WIDE)
    assert moved(decision, UpgradeState.CORDON) == ["n0"]
    assert not [each for each in decision.instructions if isinstance(each, RecordFailure)]
    for fact in ("is installed when no pod uses the node's cards", "pod default/train was still there"):
        assert fact in decision.notes["a"]


def test_it_is_tried_anew_when_they_have_ended() -> None:
    free = node("a", state=UpgradeState.FAILED, record=OCCUPIED, pulls=pulled())
    assert moved(decided([free], WIDE), UpgradeState.CORDON) == ["a"]


# The same set anew


def held(**more: Any) -> NodeView:
    """A node whose driver cannot come back, since pods use what is left of it."""
    anew = DesiredDriver(policy=POLICY, set=OLD, reload=True)
    return node(desired=anew, drivers=(DriverPodView(set=OLD),), validated=False, pods=(gpu_pod(),), **more)


def test_a_driver_that_pods_hold_is_brought_anew_as_another_one_would_be() -> None:
    assert moved(decided([held()]), UpgradeState.CORDON) == ["n1"]
    off = decided([held()], UpgradePolicy(auto_upgrade=False))
    assert (moved(off, UpgradeState.CORDON), "autoUpgrade is off" in off.notes["n1"]) == ([], True)
    assert moved(decided([held(requested=True)], UpgradePolicy(auto_upgrade=False)), UpgradeState.CORDON) == ["n1"]


def test_what_became_of_its_set_elsewhere_does_not_hold_it_up() -> None:
    failures = {OLD: SetFailures(policy=POLICY, nodes={"other": NodeFailure(cause="it broke", at=NOW)})}
    assert moved(decided([held()], failures=failures), UpgradeState.CORDON) == ["n1"]
    under_way = held(state=UpgradeState.CORDON, record=record(target=OLD))
    assert moved(decided([under_way], failures=failures), UpgradeState.PODS) == ["n1"]


def test_where_its_pods_cannot_leave_nothing_is_said_against_the_set_and_it_is_not_tried_twice() -> None:
    failed = record(target=OLD, cause="a pod stayed", returning=True, restored=True)
    resting = decided([held(state=UpgradeState.FAILED, record=failed), works()])
    assert not resting.instructions
    assert "a pod stayed" in resting.notes["n1"]
    again = decided([held(state=UpgradeState.FAILED, record=failed, requested=True)])
    assert moved(again, UpgradeState.CORDON) == ["n1"]


def test_a_node_that_rests_without_its_driver_does_so_until_that_works_and_new_pods_are_not_evicted() -> None:
    failed = record(target=OLD, cause="its agent did not let go", returning=True, restored=True)
    resting = held(state=UpgradeState.FAILED, record=failed)
    free = replaced(resting, desired=DesiredDriver(policy=POLICY, set=OLD), pods=())
    assert not decided([free]).instructions
    assert not decided([resting]).instructions
    works_again = replaced(free, drivers=(DriverPodView(set=OLD, ready=True),), validated=True)
    assert moved(decided([works_again]), UpgradeState.DONE) == ["n1"]


def test_drivers_that_did_not_come_back_though_their_pods_had_left_end_it_for_the_others() -> None:
    failed = record(target=OLD, cause="its driver manager fails", returning=True, restored=True)
    first = replaced(held(state=UpgradeState.FAILED, record=failed), name="first")
    decision = decided([first, held()])
    assert moved(decision, UpgradeState.CORDON) == []
    assert "1 did not get their driver back" in decision.notes["n1"]
    assert moved(decided([first, held()], UpgradePolicy(failure_budget=2)), UpgradeState.CORDON) == ["n1"]


def test_a_failure_that_somebody_else_left_on_a_node_that_works_is_taken_away() -> None:
    left = node(desired=wanted(OLD), state=UpgradeState.FAILED)
    assert moved(decided([left]), UpgradeState.DONE) == ["n1"]
    assert moved(decided([replaced(left, validated=False)]), UpgradeState.DONE) == []
