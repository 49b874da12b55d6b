"""When the admission check of a Workload is answered, and how: plain values around a slicer."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import GATE, NodeName
from tessera.api.pod_annotations import GANG_SIZE_ANNOTATION
from tessera.clock import rfc3339
from tessera.controller.slicing.cycle import take_in
from tessera.controller.slicing.state.events import NodeDeleted, NodeObserved
from tessera.kueue import check_decisions
from tessera.kueue.check_decisions import (
    CHECKED_WORKLOADS,
    EXPECTED_SECONDS,
    FIRST_DELAY,
    LONGEST_DELAY,
    PATIENCE,
    Answer,
    CheckDecisions,
)
from tessera.kueue.objects import Workload
from tessera.kueue.queued_workload import CHECKED_PODS, read_workload


def spec(*profiles: str, **more: Any) -> dict[str, Any]:
    """A pod's spec with a container for each slice."""
    containers = [
        {"name": f"c{number}", "resources": {"limits": {f"nvidia.com/mig-{profile}": "1"}}}
        for number, profile in enumerate(profiles)
    ]
    return {"containers": containers or [{"name": "c"}], **more}


def workload(name: str, *pod_sets: tuple[int, dict[str, Any]], **facts: Any) -> Workload:
    """A Workload with reserved quota whose check is pending."""
    names = [f"set-{number}" for number in range(len(pod_sets))]
    template = {"annotations": facts.pop("annotations", {})}
    made = {
        "metadata": {
            "name": name,
            "namespace": "team-a",
            "uid": f"workload-{name}",
            "resourceVersion": facts.pop("version", "1"),
            "creationTimestamp": facts.pop("created", "2026-01-01T00:00:00Z"),
            "ownerReferences": [{"kind": "Job", "name": name, "uid": f"job-{name}", "controller": True}],
        },
        "spec": {
            "queueName": "slices",
            "priority": facts.pop("priority", 0),
            "podSets": [
                {"name": each, "count": count, "template": {"metadata": template, "spec": pods}}
                for each, (count, pods) in zip(names, pod_sets, strict=True)
            ],
        },
        "status": {
            "conditions": [{"type": "QuotaReserved", "status": "True"}],
            "admission": {
                "clusterQueue": "q",
                "podSetAssignments": [{"name": each, "flavors": {"cpu": "flavor"}} for each in names],
            },
            "admissionChecks": [{"name": "packable", "state": "Pending"}, {"name": "other", "state": "Pending"}],
            **facts,
        },
    }
    return msgspec.convert(made, Workload)


class Checks:
    """The decisions about a cluster."""

    def __init__(self, cluster: SlicerCluster, **labels: str) -> None:
        self.cluster = cluster
        self.groups = False
        self.decisions = CheckDecisions(cluster.slicer, nodes_may_come=lambda: self.groups)
        self._labels = {"flavor": labels}

    def see(self, item: Workload) -> None:
        uid = item.metadata.uid
        self.decisions.put(
            uid, read_workload(item, {"packable": None}, self._labels, self.cluster.slicer.state.cluster.is_managed)
        )

    def answers(self, now: float = 0.0) -> list[tuple[str, str, str]]:
        """Workload, state and text of each answer."""
        self.cluster.slicer.decide()
        return [(each.workload.name, each.state, each.text) for each in self.decisions.decide(now)]

    def answer(self, now: float = 0.0) -> Answer:
        self.cluster.slicer.decide()
        (found,) = self.decisions.decide(now)
        return found


@pytest.fixture
def checks() -> Checks:
    """One node with one A100-40GB."""
    cluster = SlicerCluster()
    cluster.node("n")
    return Checks(cluster)


def fill(checks: Checks, *profiles: str) -> Any:
    """A pod with slices on the card."""
    pod = checks.cluster.pod(f"holder-{'-'.join(profiles)}", *profiles)
    checks.cluster.settle()
    return pod


def test_a_workload_with_room_is_ready_at_once(checks: Checks) -> None:
    checks.see(workload("a", (2, spec("3g.20gb"))))
    assert checks.answers() == [("a", "Ready", "there is room for 2 pods with 3g.20gb")]
    assert checks.answers() == []


def test_a_workload_that_fits_in_sum_and_not_on_the_cards_is_sent_back_after_a_while(checks: Checks) -> None:
    fill(checks, "1g.5gb")
    checks.see(workload("a", (1, spec("7g.40gb"))))
    ((name, state, text),) = checks.answers(0.0)
    assert (name, state) == ("a", "Pending")
    assert text.startswith("there is no room (7g.40gb): ")
    assert checks.answers(1.0) == []
    assert checks.decisions.undecided
    assert checks.decisions.next_time() == PATIENCE
    assert checks.answers(PATIENCE - 1) == []
    answer = checks.answer(PATIENCE)
    assert (answer.state, answer.delay) == ("Retry", FIRST_DELAY)
    assert answer.text.startswith("there is no room (7g.40gb): ")
    assert not checks.decisions.undecided


def test_room_that_comes_meanwhile_makes_it_ready(checks: Checks) -> None:
    holder = fill(checks, "1g.5gb")
    checks.see(workload("a", (1, spec("7g.40gb"))))
    assert checks.answer(0.0).state == "Pending"
    checks.cluster.remove(holder)
    checks.cluster.settle()
    assert checks.answer(5.0).state == "Ready"


@pytest.mark.parametrize(("attempts", "delay"), [(0, 15), (1, 30), (3, 120), (20, LONGEST_DELAY)])
def test_the_delay_doubles_with_each_attempt(checks: Checks, attempts: int, delay: int) -> None:
    fill(checks, "7g.40gb")
    checks.see(workload("a", (1, spec("1g.5gb")), requeueState={"count": attempts}))
    checks.answers(0.0)
    assert checks.answer(PATIENCE).delay == delay


def test_all_pods_of_a_workload_have_to_fit(checks: Checks) -> None:
    checks.see(workload("a", (3, spec("3g.20gb"))))
    checks.answers(0.0)
    assert checks.answer(PATIENCE).text.startswith("there is room for 2 of 3 pods (3 pods with 3g.20gb): ")


def test_two_workloads_are_not_admitted_into_the_same_room(checks: Checks) -> None:
    checks.see(workload("b", (1, spec("7g.40gb")), created="2026-01-01T00:00:01Z"))
    checks.see(workload("a", (1, spec("7g.40gb"))))
    assert [each[:2] for each in checks.answers(0.0)] == [("a", "Ready"), ("b", "Pending")]
    assert checks.answers(EXPECTED_SECONDS - PATIENCE - 1) == []


def test_a_higher_priority_is_tested_first(checks: Checks) -> None:
    checks.see(workload("old", (1, spec("7g.40gb"))))
    checks.see(workload("high", (1, spec("7g.40gb")), created="2026-01-02T00:00:00Z", priority=5))
    assert [each[:2] for each in checks.answers(0.0)] == [("high", "Ready"), ("old", "Pending")]


def test_expected_pods_count_until_they_have_slices(checks: Checks) -> None:
    checks.see(workload("a", (2, spec("3g.20gb"))))
    assert checks.answer().state == "Ready"
    for number in range(2):
        checks.cluster.pod(f"a-{number}", "3g.20gb", owner="job-a")
    checks.cluster.settle()
    checks.cluster.node("second")
    checks.see(workload("b", (2, spec("3g.20gb"))))
    assert [state for _, state, _ in checks.answers(1.0)] == ["Ready"]


def test_expected_pods_that_do_not_come_stop_counting(checks: Checks) -> None:
    checks.see(workload("a", (1, spec("7g.40gb"))))
    assert checks.answer().state == "Ready"
    checks.see(workload("b", (1, spec("7g.40gb"))))
    assert checks.answer(EXPECTED_SECONDS - 1).state == "Pending"
    assert checks.answer(EXPECTED_SECONDS).state == "Ready"


def test_a_workload_that_is_gone_no_longer_counts(checks: Checks) -> None:
    checks.see(workload("a", (1, spec("7g.40gb"))))
    checks.answers()
    checks.decisions.drop("workload-a")
    checks.see(workload("b", (1, spec("7g.40gb"))))
    assert checks.answer().state == "Ready"


@pytest.mark.parametrize(
    ("pods", "words"),
    [
        (spec("7g.40gb", "1g.5gb"), "no node could hold 1g.5gb + 7g.40gb, even empty; "),
        (spec("3g.40gb"), 'no card has a profile "3g.40gb"'),
        (
            {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/mig-1g.5gb": "500m"}}}]},
            'no node can ever take it: container "c": limits of nvidia.com/mig-1g.5gb is 500m',
        ),
    ],
)
def test_what_could_never_run_is_rejected_at_once(checks: Checks, pods: dict[str, Any], words: str) -> None:
    fill(checks, "7g.40gb")
    checks.see(workload("a", (1, pods)))
    answer = checks.answer()
    assert answer.state == "Rejected"
    assert answer.text.startswith(words)


def test_without_any_node_nothing_is_rejected() -> None:
    """A cluster whose nodes come on demand."""
    checks = Checks(SlicerCluster())
    checks.see(workload("a", (1, spec("3g.20gb"))))
    assert checks.answer(0.0).state == "Pending"
    assert checks.answer(PATIENCE).state == "Retry"


def test_a_workload_without_slices_is_none_of_ours(checks: Checks) -> None:
    fill(checks, "7g.40gb")
    checks.see(workload("a", (5, spec())))
    assert checks.answers() == [("a", "Ready", "asks for nothing that Tessera places")]


def test_the_flavors_labels_count_as_node_selector() -> None:
    cluster = SlicerCluster()
    cluster.node("n")
    checks = Checks(cluster, pool="other")
    checks.see(workload("a", (1, spec("1g.5gb"))))
    assert checks.answer(0.0).state == "Pending"
    assert "node affinity/selector" in checks.answer(PATIENCE).text


@pytest.mark.parametrize(
    "status",
    [
        {"conditions": []},
        {"conditions": [{"type": "QuotaReserved", "status": "True"}, {"type": "Admitted", "status": "True"}]},
        {"admissionChecks": [{"name": "packable", "state": "Ready"}]},
        {"admissionChecks": [{"name": "other", "state": "Pending"}]},
    ],
)
def test_only_a_pending_check_of_ours_with_reserved_quota_is_answered(checks: Checks, status: dict[str, Any]) -> None:
    checks.see(workload("a", (1, spec("1g.5gb")), **status))
    assert checks.answers() == []


def test_a_changed_workload_is_answered_again(checks: Checks) -> None:
    checks.see(workload("a", (1, spec("1g.5gb"))))
    assert checks.answer().state == "Ready"
    checks.see(workload("a", (1, spec("1g.5gb")), version="2"))
    assert checks.answer().workload.version == "2"


def test_an_answer_that_was_not_written_is_given_again(checks: Checks) -> None:
    checks.see(workload("a", (1, spec("1g.5gb"))))
    checks.answers()
    checks.decisions.forget_answer("workload-a")
    assert checks.answer().state == "Ready"


def test_a_huge_workload_is_tested_with_its_first_pods(checks: Checks) -> None:
    found = read_workload(workload("a", (10**9, spec("1g.5gb")), (10**9, spec("3g.20gb"))), {"packable": None}, {})
    assert found is not None
    assert len(found.pods) == CHECKED_PODS
    assert found.pods[0].gates == (GATE,)


def test_a_template_with_the_size_of_a_gang_is_one_of_its_owner(checks: Checks) -> None:
    checks.see(workload("a", (2, spec("1g.5gb")), annotations={GANG_SIZE_ANNOTATION: "2"}))
    assert checks.answer().state == "Ready"


def test_what_only_a_new_node_could_hold_is_asked_again_where_groups_are_known(checks: Checks) -> None:
    checks.groups = True
    checks.see(workload("a", (1, spec("7g.40gb", "7g.40gb"))))
    pending = checks.answer()
    assert pending.state == "Pending"
    assert "a new node may" in pending.text
    assert checks.answer(PATIENCE).state == "Retry"


def test_what_a_round_cannot_test_is_tested_in_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is admitted untested because others cost the round's work."""
    cluster = SlicerCluster()
    cluster.node("n")
    checks = Checks(cluster)
    monkeypatch.setattr(check_decisions, "DECISION_STEPS", 60)
    for name in "abc":
        checks.see(workload(name, (2, spec("3g.20gb")), created=f"2026-01-01T00:00:0{ord(name) - 97}Z"))
    states: dict[str, str] = {}
    for _ in range(10):
        states |= {name: state for name, state, _ in checks.answers()}
        if not checks.decisions.left_some:
            break
    assert states == {"a": "Ready", "b": "Pending", "c": "Pending"}


def test_a_workload_that_found_no_place_is_told_so() -> None:
    cluster = SlicerCluster()
    cluster.node("n")
    checks = Checks(cluster)
    found = read_workload(workload("a", (1, spec("7g.40gb"))), {"packable": None}, {})
    for number in range(CHECKED_WORKLOADS):
        assert checks.decisions.put(f"w{number}", found)
    assert not checks.decisions.put("late", found)
    checks.decisions.put("w0", None)
    assert checks.decisions.put("late", found)


CARDS = {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]}


def test_whole_cards_are_the_schedulers_outside_managed_namespaces(checks: Checks) -> None:
    checks.see(workload("a", (100, CARDS)))
    assert checks.answers() == [("a", "Ready", "asks for nothing that Tessera places")]


def test_whole_cards_of_a_managed_namespace_have_to_fit_and_count_until_they_are_held(checks: Checks) -> None:
    checks.cluster.namespace("team-a", **{"tessera.dev/placement": "managed"})
    checks.cluster.device_node("cards", count=4)
    checks.see(workload("a", (2, CARDS)))
    checks.see(workload("b", (1, CARDS), created="2026-01-01T00:00:01Z"))
    assert [each[:2] for each in checks.answers(0.0)] == [("a", "Ready"), ("b", "Pending")]
    pods = [checks.cluster.whole(f"a-{number}", 2, owner="job-a", namespace="team-a") for number in range(2)]
    checks.cluster.settle()
    assert checks.answers(1.0) == []
    for pod in pods:
        checks.cluster.remove(checks.cluster.pods[pod.uid])
    assert [each[:2] for each in checks.answers(2.0)] == [("b", "Ready")]


def test_free_whole_cards_on_several_nodes_are_told_as_cards(checks: Checks) -> None:
    checks.cluster.namespace("team-a", **{"tessera.dev/placement": "managed"})
    for number, held in enumerate((2, 3)):
        checks.cluster.device_node(f"cards-{number}", count=4)
        checks.cluster.whole(f"holder-{number}", held)
        checks.cluster.settle()
    checks.see(workload("a", (1, amounts({"nvidia.com/gpu": 3}))))
    assert "no node has 3 whole cards free; the most on one node is 2; room comes when" in checks.answer().text


def test_no_node_with_whole_cards_yet_is_no_reason_to_reject(checks: Checks) -> None:
    checks.cluster.namespace("team-a", **{"tessera.dev/placement": "managed"})
    checks.see(workload("a", (1, CARDS)))
    assert checks.answer(0.0).state == "Pending"
    assert checks.answer(PATIENCE).state == "Retry"


def test_nothing_is_answered_from_a_part_of_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(take_in, "ABSORBED_CHANGES", 2)
    cluster = SlicerCluster()
    for number in range(8):
        cluster.node(f"n{number}")
    cluster.node("n8", "H100-80GB")
    checks = Checks(cluster)
    checks.see(workload("a", (1, spec("1g.20gb"))))
    assert checks.decisions.decide(0.0) == (), "before the first decision"
    parts = 0
    while not cluster.slicer.is_caught_up:
        assert checks.decisions.decide(0.0) == ()
        assert checks.decisions.undecided, "the next step of the slicer wakes the checks"
        cluster.slicer.decide()
        parts += 1
    assert parts > 3
    assert [each.state for each in checks.decisions.decide(0.0)] == ["Ready"]


def test_a_workload_is_not_rejected_before_a_new_node_is_taken_in(checks: Checks) -> None:
    checks.cluster.run()
    checks.cluster.node("new", "H100-80GB")
    checks.see(workload("a", (1, spec("1g.20gb"))))
    (answer,) = checks.decisions.decide(0.0)
    assert (answer.state, answer.text[-34:]) == ("Pending", "; a node that has just changed may")
    assert checks.decisions.undecided, "the next step of the slicer wakes the checks"
    assert [state for _, state, _ in checks.answers()] == ["Ready"]


def test_a_workload_is_answered_while_a_node_changes_all_the_time(checks: Checks) -> None:
    checks.cluster.run()
    node = checks.cluster.nodes[NodeName("n")]
    less = replace(node, allocatable={**node.allocatable, "cpu": 63_000})
    checks.cluster.slicer.handle(NodeObserved(less))
    checks.see(workload("fits", (1, spec("1g.5gb"))))
    checks.see(workload("waits", (8, spec("1g.5gb"))))
    checks.see(workload("never", (1, spec("1g.20gb"))))
    found = {each.workload.name: each.state for each in checks.decisions.decide(0.0)}
    assert found == {"fits": "Ready", "waits": "Pending", "never": "Pending"}
    assert {each.workload.name: each.state for each in checks.decisions.decide(PATIENCE)} == {
        "waits": "Retry",
        "never": "Retry",
    }


def test_a_workload_is_answered_while_other_pods_change_all_the_time(checks: Checks) -> None:
    checks.cluster.run()
    checks.cluster.pod("other", "1g.5gb")
    checks.see(workload("a", (1, spec("1g.5gb"))))
    assert [each.state for each in checks.decisions.decide(0.0)] == ["Ready"]


def test_a_workload_is_not_rejected_before_the_object_of_a_node_lists_its_cards(checks: Checks) -> None:
    """The node says what it offers; its Instaslice object comes a moment later."""
    checks.cluster.run()
    large = replace(checks.cluster.nodes[NodeName("n")], name=NodeName("large"), hostname="large", object_expected=True)
    checks.cluster.slicer.handle(NodeObserved(large))
    checks.see(workload("a", (1, spec("1g.20gb"))))
    ((_, state, text),) = checks.answers()
    assert state == "Pending"
    assert text.endswith("a node that does not show all of its cards now may")
    checks.cluster.node("large", "H100-80GB", object_expected=True)
    assert [state for _, state, _ in checks.answers()] == ["Ready"]


def test_a_workload_is_not_rejected_while_an_object_lists_no_card_yet(checks: Checks) -> None:
    checks.cluster.run()
    checks.cluster.node("large", "H100-80GB", count=0, object_expected=True)
    checks.see(workload("a", (1, spec("1g.20gb"))))
    assert [state for _, state, _ in checks.answers()] == ["Pending"]
    checks.cluster.node("large", "A100-40GB", object_expected=True)
    assert [state for _, state, _ in checks.answers()] == ["Rejected"]


def test_a_workload_is_not_rejected_while_a_card_does_not_answer(checks: Checks) -> None:
    checks.cluster.node("large", "H100-80GB", object_expected=True, sliced_cards=2)
    checks.see(workload("a", (1, spec("7g.80gb", "7g.80gb"))))
    assert [state for _, state, _ in checks.answers()] == ["Pending"]
    checks.cluster.node("large", "H100-80GB", object_expected=True, sliced_cards=1)
    assert [state for _, state, _ in checks.answers()] == ["Rejected"]


def test_a_workload_is_not_rejected_while_an_object_comes_before_its_node(checks: Checks) -> None:
    checks.cluster.run()
    checks.cluster.node("large", "H100-80GB")
    node = checks.cluster.nodes[NodeName("large")]
    checks.cluster.slicer.handle(NodeDeleted(node.name))
    checks.see(workload("a", (1, spec("1g.20gb"))))
    assert [state for _, state, _ in checks.answers()] == ["Pending"]
    checks.cluster.slicer.handle(NodeObserved(node))
    assert [state for _, state, _ in checks.answers()] == ["Ready"]


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ({}, "Rejected"),
        ({"device_counts": (("nvidia.com/gpu", 1),)}, "Rejected"),
        ({"device_counts": (("nvidia.com/gpu", 2),)}, "Pending"),  # kubelet has not published the second card
        ({"unread_devices": True}, "Pending"),
    ],
)
def test_whole_cards_that_a_node_does_not_show_yet_keep_a_workload(facts: dict[str, Any], state: str) -> None:
    checks = Checks(SlicerCluster())
    checks.cluster.namespace("team-a", **{"tessera.dev/placement": "managed"})
    checks.cluster.device_node("cards", count=1, **facts)
    checks.see(workload("a", (1, CARDS)))
    assert [found for _, found, _ in checks.answers()] == [state]


def test_pods_of_other_namespaces_are_not_named(checks: Checks) -> None:
    checks.cluster.pod("secret-project", "7g.40gb", namespace="team-b")
    checks.cluster.settle()
    checks.see(workload("w", (1, spec("1g.5gb"))))
    answer = checks.answer()
    assert answer.state == "Pending"
    assert "room comes when a pod of another namespace (7g.40gb, memory slots 0-7) on node n ends" in answer.text


def test_pods_of_the_workload_s_namespace_are_named(checks: Checks) -> None:
    checks.cluster.pod("mine", "7g.40gb", namespace="team-a")
    checks.cluster.settle()
    checks.see(workload("w", (1, spec("1g.5gb"))))
    assert "room comes when team-a/mine (7g.40gb, memory slots 0-7) on node n ends" in checks.answer().text


def test_a_workload_does_not_wait_for_its_own_pods(checks: Checks) -> None:
    """It said that room comes when the first pod ends, which exists only in the plan of the test."""
    checks.see(workload("w", (2, spec("7g.40gb"))))
    room = "there is room for 1 of 2 pods (2 pods with 7g.40gb)"
    assert (
        checks.answer().text
        == f"{room}: every card that it may use is full for 7g.40gb, beside the workload's other pods"
    )


def test_a_workload_does_not_wait_for_its_own_pods_with_several_slices(checks: Checks) -> None:
    checks.see(workload("w", (2, spec("3g.20gb", "3g.20gb"))))
    answer = checks.answer()
    assert answer.text.startswith("there is room for 1 of 2 pods")
    assert "room comes" not in answer.text


def amounts(limits: object, **more: Any) -> dict[str, Any]:
    """A pod's spec with one container that has these limits."""
    return {"containers": [{"name": "c", "resources": {"limits": limits}}], **more}


@pytest.mark.parametrize("amount", ["1", 1, 1.0])
def test_an_amount_may_be_a_number(checks: Checks, amount: object) -> None:
    """A Workload with a number did not decode: it was skipped, and its check stayed Pending without a reason."""
    pod = amounts({"nvidia.com/mig-3g.20gb": amount, "cpu": 0.5, "memory": 1}, overhead={"cpu": 1})
    checks.see(workload("w", (1, pod)))
    assert checks.answers() == [("w", "Ready", "there is room for 3g.20gb")]


def test_a_number_of_whole_cards_is_read(checks: Checks) -> None:
    checks.cluster.namespace("team-a", **{"tessera.dev/placement": "managed"})
    checks.cluster.device_node("cards", count=2)
    checks.see(workload("w", (1, amounts({"nvidia.com/gpu": 2}))))
    assert [state for _, state, _ in checks.answers()] == ["Ready"]


@pytest.mark.parametrize("amount", [True, [1], {"a": 1}, 1e300])
@pytest.mark.parametrize("resource", ["nvidia.com/mig-3g.20gb", "cpu"])
def test_an_amount_of_another_kind_is_rejected_with_the_reason(checks: Checks, resource: str, amount: object) -> None:
    checks.see(workload("w", (1, amounts({"nvidia.com/mig-3g.20gb": 1} | {resource: amount}))))
    answer = checks.answer()
    assert answer.state == "Rejected"
    assert "quantity" in answer.text


def test_a_workload_without_room_keeps_no_room_for_itself(checks: Checks) -> None:
    """docs/kueue.md says so, and advises large ones to wait without the check."""
    fill(checks, "3g.20gb")
    checks.see(workload("large", (1, spec("7g.40gb")), priority=100))
    assert [state for _, state, _ in checks.answers()] == ["Pending"]
    checks.see(workload("small", (1, spec("3g.20gb")), created="2026-01-02T00:00:00Z"))
    assert ("small", "Ready", "there is room for 3g.20gb") in checks.answers(5.0)


def test_room_that_is_reserved_for_a_waiting_pod_is_not_given_to_a_workload() -> None:
    cluster = SlicerCluster(reserve_after=60.0)
    cluster.node("n")
    checks = Checks(cluster)
    fill(checks, "3g.20gb")
    cluster.pass_time(0)
    cluster.pod("large", "7g.40gb", created=rfc3339(cluster.date))
    cluster.settle()
    cluster.pass_time(61)
    cluster.settle()
    checks.see(workload("small", (1, spec("3g.20gb")), created="2026-01-02T00:00:00Z"))
    ((_, state, text),) = checks.answers()
    assert state == "Pending"
    assert "reserved for 1 pod that goes first; first goes a pod of another namespace" in text
