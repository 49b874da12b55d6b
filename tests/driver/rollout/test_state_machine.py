"""One node, state by state: what is due, and what comes next."""

from typing import Any

import pytest
from tests.driver.rollout.conftest import NEW, NOW, OLD, OTHER, begun, changed, gpu_pod, node, record, replaced, wanted

from tessera.api.nodes.node_marks import DRIVER_SET_LABEL, PAUSE_LABEL, PAUSED, UPGRADE_STATE_LABEL
from tessera.driver.node_facts import (
    CHANGING,
    CORDONED_ANNOTATION,
    ENABLED_ANNOTATION,
    INITIAL_ANNOTATION,
    RECORD_ANNOTATION,
    REQUESTED_ANNOTATION,
    UpgradeRecord,
    UpgradeState,
    parse_upgrade_record,
)
from tessera.driver.rollout.instructions import NodeStep, PatchNode
from tessera.driver.rollout.node_view import DriverPodView, NodeView, PodView
from tessera.driver.rollout.state_machine import begin_upgrade, next_step, refuse_upgrade
from tessera.gpu_operator.driver_policy import (
    DrainSettings,
    PodDeletionSettings,
    UpgradePolicy,
    WaitForCompletion,
)

POLICY = UpgradePolicy()


def due(view: NodeView, policy: UpgradePolicy = POLICY, now: float = NOW, **more: Any) -> NodeStep:
    return next_step(view, policy, now, **more)


def patched(view: NodeView, policy: UpgradePolicy = POLICY, now: float = NOW, **more: Any) -> PatchNode:
    patch = due(view, policy, now, **more).patch
    assert patch is not None
    return patch


def state(patch: PatchNode) -> UpgradeState:
    return UpgradeState(patch.labels[UPGRADE_STATE_LABEL] or "")


def kept(patch: PatchNode) -> UpgradeRecord:
    found = parse_upgrade_record(patch.annotations[RECORD_ANNOTATION] or "")
    assert found is not None
    return found


def note(failed: NodeStep) -> str:
    """Returns the text about a node whose pods could not leave; this does not count against the driver set."""
    assert failed.patch is not None
    assert (state(failed.patch), kept(failed.patch).occupied, failed.cause) == (UpgradeState.FAILED, True, "")
    return failed.patch.note


def test_a_node_that_begins_carries_from_where_to_where_and_is_no_longer_asked_for() -> None:
    patch = begin_upgrade(node(requested=True, pause_label="true"), NOW)
    assert state(patch) is UpgradeState.CORDON
    assert kept(patch) == record(deploy="true", requested=True)
    assert (patch.annotations[REQUESTED_ANNOTATION], patch.annotations[ENABLED_ANNOTATION]) == (None, "true")
    assert patch.unschedulable is None


# Before the driver is touched


@pytest.mark.parametrize(
    ("policy", "following"),
    [
        (POLICY, UpgradeState.PODS),
        (UpgradePolicy(wait_for_completion=WaitForCompletion(pod_selector="job=yes")), UpgradeState.JOBS),
    ],
)
def test_a_node_is_cordoned_with_our_mark(policy: UpgradePolicy, following: UpgradeState) -> None:
    patch = patched(begun(UpgradeState.CORDON, unschedulable=False, cordoned_by_us=False), policy)
    assert (state(patch), patch.unschedulable) == (following, True)
    assert patch.annotations[CORDONED_ANNOTATION] == "true"


def test_a_cordon_of_somebody_else_is_only_noted() -> None:
    patch = patched(begun(UpgradeState.CORDON, cordoned_by_us=False))
    assert (state(patch), patch.unschedulable) == (UpgradeState.PODS, None)
    assert patch.annotations[INITIAL_ANNOTATION] == "true"
    assert CORDONED_ANNOTATION not in patch.annotations


def test_our_mark_goes_with_a_cordon_that_somebody_lifted_and_the_cordon_does_not_come_back() -> None:
    patch = patched(begun(UpgradeState.PODS, unschedulable=False))
    assert (state(patch), patch.unschedulable) == (UpgradeState.PODS, None)
    assert patch.annotations[CORDONED_ANNOTATION] is None


WAITING = UpgradePolicy(wait_for_completion=WaitForCompletion(pod_selector="job=yes", timeout_seconds=60))


def test_jobs_that_are_waited_for_may_end_by_themselves_until_the_timeout() -> None:
    view = begun(UpgradeState.JOBS, pods=(gpu_pod("j", labels={"job": "yes"}), gpu_pod("other")))
    waits = due(view, WAITING)
    assert (waits.patch, waits.evict, waits.until) == (None, (), NOW + 60)
    assert "default/j" in waits.waits
    assert state(patched(view, WAITING, NOW + 60)) is UpgradeState.PODS
    assert state(patched(begun(UpgradeState.JOBS, pods=(gpu_pod("other"),)), WAITING)) is UpgradeState.PODS


def test_a_timeout_of_0_waits_for_jobs_for_ever() -> None:
    policy = UpgradePolicy(wait_for_completion=WaitForCompletion(pod_selector="job=yes"))
    waits = due(begun(UpgradeState.JOBS, pods=(gpu_pod("j", labels={"job": "yes"}),)), policy, NOW + 1e9)
    assert (waits.patch, waits.until) == (None, None)


def test_pods_with_cards_are_evicted_and_others_stay() -> None:
    web = PodView(uid="uid-web", namespace="default", name="web")
    ending, daemon = gpu_pod("ending", terminating=True), gpu_pod("daemon", stays=True)
    view = begun(UpgradeState.PODS, pods=(gpu_pod("a"), ending, daemon, web, gpu_pod("b")))
    now = due(view)
    assert [each.name for each in now.evict] == ["a", "b"]
    assert now.until == NOW + 300
    assert now.patch is None


def test_a_pod_that_is_ending_is_awaited_and_not_evicted_again() -> None:
    waits = due(begun(UpgradeState.PODS, pods=(gpu_pod(terminating=True),)))
    assert (waits.evict, waits.patch) == ((), None)
    assert "default/train" in waits.waits


def test_once_no_pod_uses_cards_the_driver_is_next() -> None:
    assert state(patched(begun(UpgradeState.PODS, pods=(gpu_pod("daemon", stays=True),)))) is UpgradeState.RESTART


@pytest.mark.parametrize(
    ("pod", "told"),
    [
        (gpu_pod(controlled=False), "upgradePolicy.podDeletion.force"),
        (gpu_pod(empty_dir=True), "upgradePolicy.podDeletion.deleteEmptyDir"),
    ],
)
def test_a_pod_that_must_not_be_evicted_lets_the_node_fail_before_any_pod_went(pod: Any, told: str) -> None:
    failed = due(begun(UpgradeState.PODS, pods=(gpu_pod("a"), pod)))
    assert failed.evict == ()
    assert failed.patch is not None
    assert (state(failed.patch), kept(failed.patch).returning) == (UpgradeState.FAILED, True)
    assert told in note(failed)
    assert failed.patch.warning


def test_the_drain_goes_where_the_deletion_of_pods_may_not() -> None:
    policy = UpgradePolicy(drain=DrainSettings(enable=True, force=True))
    view = begun(UpgradeState.PODS, pods=(gpu_pod(controlled=False),))
    assert state(patched(view, policy)) is UpgradeState.DRAIN
    draining = begun(UpgradeState.DRAIN, pods=(gpu_pod(controlled=False), gpu_pod("kept", labels=SKIP)))
    assert [each.name for each in due(draining, policy).evict] == ["train"]


SKIP = {"nvidia.com/gpu-driver-upgrade-drain.skip": "true"}


def test_a_pod_that_people_keep_out_of_drains_and_that_uses_cards_ends_the_upgrade() -> None:
    policy = UpgradePolicy(drain=DrainSettings(enable=True))
    failed = due(begun(UpgradeState.DRAIN, pods=(gpu_pod(labels=SKIP),)), policy)
    assert "kept out of drains" in note(failed)


def test_evictions_that_are_refused_end_with_the_timeout_and_what_the_server_said() -> None:
    view = begun(UpgradeState.PODS, pods=(gpu_pod(),))
    blocked = {"uid-train": "the disruption budget web needs 2 healthy pods"}
    waiting = due(view, now=NOW + 299, eviction_refusals=blocked)
    assert (waiting.cause, waiting.waits) == ("", f"waiting for pod default/train to leave: {blocked['uid-train']}")
    failed = due(view, now=NOW + 300, eviction_refusals=blocked)
    for fact in ("default/train was still there after 300 s", "disruption budget web"):
        assert fact in note(failed)
    forever = UpgradePolicy(pod_deletion=PodDeletionSettings(timeout_seconds=0))
    assert due(view, forever, NOW + 1e9, eviction_refusals=blocked).cause == ""


# The change


def test_users_of_cards_are_paused_before_the_label_of_the_set_is_touched() -> None:
    patch = patched(begun(UpgradeState.RESTART, pause_label="true"))
    assert patch.labels[PAUSE_LABEL] == PAUSED
    assert DRIVER_SET_LABEL not in patch.labels
    assert kept(patch).deploy == "true"


def test_the_label_is_taken_away_once_the_node_offers_no_card() -> None:
    waits = due(begun(UpgradeState.RESTART, pause_label=PAUSED, offers_gpus=True))
    assert (waits.patch, waits.until) == (None, NOW + 300)
    patch = patched(begun(UpgradeState.RESTART, pause_label=PAUSED, offers_gpus=False))
    assert patch.labels[DRIVER_SET_LABEL] == CHANGING
    assert patch.without_gpu_pods
    assert kept(patch).changed


def test_the_old_driver_stays_while_the_nodes_agent_has_its_cards_open() -> None:
    holds = begun(UpgradeState.RESTART, pause_label=PAUSED, offers_gpus=False, agent_holds_gpus=True)
    assert (due(holds).patch, due(holds).until) == (None, NOW + 300)
    assert "agent still has its cards open 300 s" in due(holds, now=NOW + 300).cause


def test_users_that_do_not_let_go_end_the_upgrade() -> None:
    assert "still offers cards 300 s" in due(begun(UpgradeState.RESTART, pause_label=PAUSED), now=NOW + 300).cause


def test_a_pod_that_came_in_spite_of_the_cordon_is_evicted_first() -> None:
    assert state(patched(begun(UpgradeState.RESTART, pods=(gpu_pod(),)))) is UpgradeState.PODS


def test_the_new_set_comes_when_nothing_of_the_old_one_is_left() -> None:
    view = changed(UpgradeState.RESTART, current=CHANGING, drivers=(DriverPodView(set=OLD),))
    assert due(view).patch is None
    assert "did not end within 300 s" in due(view, now=NOW + 300).cause
    patch = patched(changed(UpgradeState.RESTART, current=CHANGING, drivers=()))
    assert patch.labels[DRIVER_SET_LABEL] == NEW


@pytest.mark.parametrize(
    ("drivers", "now", "told"),
    [
        ((DriverPodView(set=NEW, fault="container nvidia-driver-ctr ended 5 times"),), NOW, "ended 5 times"),
        ((DriverPodView(set=NEW),), NOW + 1260, "not ready within 1260 s"),
        ((), NOW + 1260, "not ready within 1260 s"),
    ],
)
def test_a_driver_that_does_not_start_lets_the_node_fail(drivers: Any, now: float, told: str) -> None:
    assert told in due(changed(UpgradeState.RESTART, drivers=drivers), now=now).cause


def test_a_driver_that_is_ready_has_to_be_validated() -> None:
    assert (
        state(patched(changed(UpgradeState.RESTART, drivers=(DriverPodView(set=NEW, ready=True),))))
        is UpgradeState.VALIDATION
    )
    ready = {"drivers": (DriverPodView(set=NEW, ready=True),)}
    assert due(changed(UpgradeState.VALIDATION, **ready)).until == NOW + 600
    assert "not validated within 600 s" in due(changed(UpgradeState.VALIDATION, **ready), now=NOW + 600).cause


def test_the_pause_ends_with_the_proof_and_the_node_has_to_offer_cards_again() -> None:
    patch = patched(changed(UpgradeState.VALIDATION, validated=True, record=record(changed=True, deploy="true")))
    assert (state(patch), patch.labels[PAUSE_LABEL], patch.unschedulable) == (UpgradeState.VALIDATION, "true", None)
    unpaused = changed(UpgradeState.VALIDATION, validated=True, pause_label="true")
    assert due(unpaused).patch is None
    assert "offers no cards within 600 s" in due(unpaused, now=NOW + 600).cause
    assert (
        state(patched(changed(UpgradeState.VALIDATION, validated=True, pause_label="true", offers_gpus=True)))
        is UpgradeState.UNCORDON
    )


def test_a_node_that_offered_nothing_before_need_not_afterwards() -> None:
    view = changed(
        UpgradeState.VALIDATION, validated=True, pause_label="true", record=record(changed=True, offered=False)
    )
    assert state(patched(view)) is UpgradeState.UNCORDON


def test_the_end_lifts_our_cordon_and_leaves_nothing_behind() -> None:
    patch = patched(changed(UpgradeState.UNCORDON, pause_label="true", offers_gpus=True, validated=True))
    assert (state(patch), patch.unschedulable) == (UpgradeState.DONE, False)
    assert patch.annotations == dict.fromkeys((RECORD_ANNOTATION, CORDONED_ANNOTATION, INITIAL_ANNOTATION))


def test_a_cordon_of_somebody_else_stays_at_the_end() -> None:
    view = changed(
        UpgradeState.VALIDATION,
        validated=True,
        pause_label="true",
        offers_gpus=True,
        cordoned_by_us=False,
        cordoned_before=True,
    )
    patch = patched(view)
    assert (state(patch), patch.unschedulable) == (UpgradeState.DONE, None)


# The way back


def test_a_failed_node_goes_back_to_its_previous_set_step_by_step() -> None:
    failed = record(changed=True, returning=True, cause="it broke", deploy="true")
    patch = patched(changed(UpgradeState.FAILED, record=failed))
    assert (state(patch), patch.labels[DRIVER_SET_LABEL]) == (UpgradeState.FAILED, CHANGING)
    leaving = changed(UpgradeState.FAILED, record=failed, current=CHANGING, drivers=(DriverPodView(set=NEW),))
    assert due(leaving).patch is None
    patch = patched(changed(UpgradeState.FAILED, record=failed, current=CHANGING, drivers=()))
    assert patch.labels[DRIVER_SET_LABEL] == OLD
    waits = due(changed(UpgradeState.FAILED, record=failed, current=OLD, drivers=(DriverPodView(set=OLD),)))
    assert waits.patch is None
    back = changed(UpgradeState.FAILED, record=failed, current=OLD, validated=True)
    patch = patched(back)
    assert (state(patch), patch.unschedulable, patch.labels[PAUSE_LABEL]) == (UpgradeState.FAILED, False, "true")
    assert (kept(patch).cause, kept(patch).restored) == ("it broke", True)
    assert "it broke" in patch.note


def test_users_of_cards_are_paused_again_before_a_set_that_failed_late_is_taken_away() -> None:
    failed = record(changed=True, returning=True, cause="it offers nothing")
    patch = patched(changed(UpgradeState.FAILED, record=failed, pause_label="true"))
    assert patch.labels[PAUSE_LABEL] == PAUSED
    offering = changed(UpgradeState.FAILED, record=failed, offers_gpus=True)
    assert due(offering).until == NOW + 300
    assert patched(offering, now=NOW + 300).labels[DRIVER_SET_LABEL] == CHANGING


def test_a_node_that_failed_before_the_change_is_given_back_at_once() -> None:
    patch = patched(begun(UpgradeState.FAILED, record=record(returning=True, cause="a pod stayed"), validated=False))
    assert (state(patch), patch.unschedulable) == (UpgradeState.FAILED, False)
    assert DRIVER_SET_LABEL not in patch.labels


def test_a_failed_node_rests_until_another_set_is_wanted_and_is_done_when_its_own_is() -> None:
    resting = record(returning=True, restored=True, cause="it broke")
    at_rest = node(state=UpgradeState.FAILED, record=resting)
    assert due(at_rest) == NodeStep(waits=f"driver set {NEW} failed here: it broke")
    assert state(patched(node(state=UpgradeState.FAILED, record=resting, desired=wanted(OLD)))) is UpgradeState.DONE


def test_a_set_that_is_refused_before_the_node_was_touched_leaves_it_as_it_is() -> None:
    patch = refuse_upgrade(node(), "the image did not come", NOW)
    assert (state(patch), patch.unschedulable, kept(patch).restored) == (UpgradeState.FAILED, None, True)
    assert patch.labels.keys() == {UPGRADE_STATE_LABEL}


def test_where_the_node_gets_its_own_set_anew_the_old_pod_goes_first_all_the_same() -> None:
    own = begun(
        UpgradeState.RESTART, record=record(target=OLD), desired=wanted(OLD), pause_label=PAUSED, offers_gpus=False
    )
    assert patched(own).labels[DRIVER_SET_LABEL] == CHANGING
    between = begun(
        UpgradeState.RESTART, record=record(target=OLD, changed=True), desired=wanted(OLD), current=CHANGING
    )
    assert due(replaced(between, drivers=(DriverPodView(set=OLD),))).waits == "the driver is being replaced"
    assert patched(replaced(between, drivers=())).labels[DRIVER_SET_LABEL] == OLD
    back = replaced(between, current=OLD, drivers=(DriverPodView(set=OLD, ready=True),))
    assert state(patched(back)) is UpgradeState.VALIDATION


def test_a_pause_without_a_record_is_taken_back_once_the_driver_works() -> None:
    patch = patched(node(pause_label=PAUSED))
    assert (patch.labels, patch.annotations) == ({PAUSE_LABEL: "true"}, {})
    assert due(node(pause_label=PAUSED, validated=False)) == NodeStep()  # NVIDIA's driver manager may have paused them
    assert due(node(pause_label="false")) == NodeStep()


# What changes on the way


@pytest.mark.parametrize(
    "early", [UpgradeState.CORDON, UpgradeState.JOBS, UpgradeState.PODS, UpgradeState.DRAIN, UpgradeState.RESTART]
)
def test_a_stop_gives_back_what_was_not_changed_yet(early: UpgradeState) -> None:
    patch = patched(begun(early), may_continue=False)
    assert (state(patch), kept(patch).returning) == (UpgradeState.UNCORDON, True)
    patch = patched(begun(UpgradeState.UNCORDON, record=record(returning=True)), may_continue=False)
    assert (state(patch), patch.unschedulable) == (UpgradeState.DONE, False)


def test_a_stop_does_not_turn_back_what_was_changed_or_asked_for() -> None:
    ready = {"drivers": (DriverPodView(set=NEW, ready=True),)}
    assert state(patched(changed(UpgradeState.RESTART, **ready), may_continue=False)) is UpgradeState.VALIDATION
    asked = begun(UpgradeState.PODS, record=record(requested=True))
    assert state(patched(asked, may_continue=False)) is UpgradeState.RESTART


def test_a_node_turns_back_when_another_set_is_wanted_meanwhile() -> None:
    patch = patched(changed(UpgradeState.VALIDATION, desired=wanted(OTHER)))
    assert (state(patch), kept(patch).returning, kept(patch).cause) == (UpgradeState.UNCORDON, True, "")
    patch = patched(changed(UpgradeState.UNCORDON, desired=wanted(OTHER), record=record(changed=True, returning=True)))
    assert patch.labels[DRIVER_SET_LABEL] == CHANGING


def test_what_was_validated_is_finished_whatever_is_wanted_now() -> None:
    assert state(patched(changed(UpgradeState.UNCORDON, desired=wanted(OTHER), validated=True))) is UpgradeState.DONE


def test_a_node_that_does_not_come_back_either_takes_the_set_that_is_wanted_now() -> None:
    failed = record(changed=True, returning=True, cause="it broke")
    broken = (DriverPodView(set=OLD, fault="ended 5 times"),)
    stuck = changed(UpgradeState.FAILED, record=failed, current=OLD, drivers=broken)
    assert due(stuck).patch is None
    assert "ended 5 times" in due(stuck).waits
    patch = patched(changed(UpgradeState.FAILED, record=failed, current=OLD, drivers=broken, desired=wanted(OTHER)))
    assert (state(patch), kept(patch).target, kept(patch).cause) == (UpgradeState.RESTART, OTHER, "")


def test_a_node_that_got_another_set_after_a_boot_into_another_kernel_is_gone_on_with_from_there() -> None:
    patch = patched(begun(UpgradeState.PODS, current=OTHER, desired=wanted(OTHER)))
    assert (state(patch), kept(patch).previous, kept(patch).target) == (UpgradeState.RESTART, "", OTHER)
    failed = begun(
        UpgradeState.FAILED,
        current=OTHER,
        desired=wanted(OTHER),
        record=record(previous="", target=OTHER, changed=True, returning=True, cause="slow"),
        drivers=(DriverPodView(set=OTHER, ready=True),),
    )
    assert state(patched(failed)) is UpgradeState.DONE  # there is no way back, but it works after all


def test_a_node_that_is_managed_no_longer_is_given_back_at_once() -> None:
    patch = patched(changed(UpgradeState.RESTART, desired=wanted("")))
    assert (state(patch), patch.unschedulable, patch.labels[PAUSE_LABEL]) == (UpgradeState.DONE, False, "true")
    assert DRIVER_SET_LABEL not in patch.labels


@pytest.mark.parametrize("each", [each for each in UpgradeState if each.active])
def test_a_state_without_our_record_was_left_by_somebody_else_and_is_not_gone_on_with(each: UpgradeState) -> None:
    patch = patched(begun(each, record=None))
    assert (state(patch), patch.unschedulable) == (UpgradeState.DONE, False)
    assert patched(begun(each, record=None, cordoned_by_us=False)).unschedulable is None


@pytest.mark.parametrize("each", [UpgradeState.NONE, UpgradeState.REQUIRED, UpgradeState.DONE])
def test_a_node_whose_state_somebody_took_away_half_way_is_given_back(each: UpgradeState) -> None:
    patch = patched(changed(each))
    assert (state(patch), patch.unschedulable) == (UpgradeState.DONE, False)
    assert patch.labels[PAUSE_LABEL] == "true"
    assert patch.annotations[RECORD_ANNOTATION] is None


def test_a_cordon_of_ours_of_which_nothing_else_is_left_is_lifted() -> None:
    patch = patched(begun(UpgradeState.NONE, record=None))
    assert (state(patch), patch.unschedulable) == (UpgradeState.DONE, False)
    assert due(node()) == NodeStep()


def test_the_label_of_a_paused_node_says_afterwards_what_it_said_before() -> None:
    view = changed(UpgradeState.VALIDATION, validated=True, record=record(changed=True, deploy="false"))
    assert patched(view).labels[PAUSE_LABEL] == "false"


@pytest.mark.parametrize("text", ["", "{", '{"previous": 1}', "x" * 5000])
def test_a_record_that_cannot_be_read_is_none(text: str) -> None:
    assert parse_upgrade_record(text) is None
