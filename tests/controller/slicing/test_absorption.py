"""Many changes are taken in by parts, which never show a node emptier than it is."""

from dataclasses import replace

import pytest
from tests.support.cost import count_calls
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import GATE, NodeName
from tessera.controller.slicing.cycle import take_in, writes
from tessera.controller.slicing.cycle.take_in import ABSORBED_CHANGES
from tessera.controller.slicing.state.events import WritesDue
from tessera.controller.slicing.state.instructions import PatchRequests, ReportPodCondition
from tessera.limits import BATCH_PODS

CARDS = 4


def large() -> SlicerCluster:
    """More nodes than one step takes in, each with four cards of which a pod has three; two pods wait, of one card."""
    cluster = SlicerCluster()
    for number in range(2 * ABSORBED_CHANGES):
        cluster.device_node(f"n{number:04}", count=CARDS)
        cluster.whole(f"held-{number:04}", CARDS - 1, gated=False, node=NodeName(f"n{number:04}"))
    for name in ("first", "second"):
        cluster.whole(name)
    return cluster


def test_a_step_takes_in_a_bounded_part_and_all_parts_together_everything() -> None:
    cluster = large()
    slicer, parts = cluster.slicer, []
    while True:
        slicer.decide()
        parts.append(slicer.state.inventory.fleet.node_count)
        if not slicer.has_work:
            break
    grown = [after - before for before, after in zip([0, *parts], parts, strict=False)]
    assert sum(grown) == 2 * ABSORBED_CHANGES
    assert 0 < grown[0] <= ABSORBED_CHANGES // 2 + 1, "a node and its pod are two changes"
    assert max(grown) == grown[0]


def test_no_node_looks_emptier_than_it_is_and_nothing_is_decided_before_all_is_known() -> None:
    cluster = large()
    slicer = cluster.slicer
    slicer.decide()
    partly = 0
    while slicer.has_work and not slicer.settlement.decisions:
        fleet = slicer.state.inventory.fleet
        partly += fleet.node_count < 2 * ABSORBED_CHANGES
        assert all(fleet.node(name).count_empty("nvidia.com/gpu") == 1 for name in fleet.nodes)
        assert not slicer.handle(WritesDue())
        slicer.decide()
    assert partly >= 2
    assert slicer.settlement.decisions == 2
    assert [type(each).__name__ for each in slicer.handle(WritesDue())] == ["Ungate", "Ungate"]


def calls_of_second_step(nodes: int) -> int:
    """Calls of the second step in a cluster of so many nodes; the first one also takes over all changes."""
    cluster = SlicerCluster()
    for number in range(nodes):
        cluster.device_node(f"n{number:04}", count=CARDS)
        cluster.whole(f"held-{number:04}", CARDS, gated=False, node=NodeName(f"n{number:04}"))
    cluster.whole("waits")
    cluster.slicer.decide()
    return count_calls(cluster.slicer.decide)[0]


def test_a_step_costs_the_same_in_a_cluster_of_more_nodes_and_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(take_in, "ABSORBED_CHANGES", 20)
    assert calls_of_second_step(800) <= 1.1 * calls_of_second_step(200)


def test_what_changes_meanwhile_is_taken_in_before_anything_is_decided() -> None:
    cluster = large()
    slicer = cluster.slicer
    slicer.decide()
    for number in range(2 * ABSORBED_CHANGES):
        held = next(pod for pod in cluster.pods.values() if pod.name == f"held-{number:04}")
        cluster.remove(held)
        if number:
            cluster.whole(f"next-{number:04}", CARDS, gated=False, node=NodeName(f"n{number:04}"))
    cluster.settle()
    placed = {pod.name: pod.hostname for pod in cluster.pods.values() if GATE not in pod.gates and not pod.node}
    assert placed == {"first": "n0000", "second": "n0000"}


@pytest.mark.parametrize("changed", [ABSORBED_CHANGES + 1, 2 * ABSORBED_CHANGES])
def test_pods_get_slices_though_many_nodes_change_between_any_two_steps(changed: int) -> None:
    """Nothing was planned until the nodes came to rest."""
    cluster = large()
    slicer = cluster.slicer
    for turn in range(40):
        for number in range(changed):
            name = f"n{number:04}"
            labels = {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": "A100", "turn": f"{turn}"}
            cluster.device_node(name, count=CARDS, labels=labels)
        slicer.decide()
        for instruction in slicer.pop_writes():
            cluster.answer(instruction)
    assert slicer.settlement.decisions == 2
    assert not any(pod.gated for pod in cluster.pods.values())
    cluster.settle()
    assert {node.labels["turn"] for name, node in slicer.state.cluster.nodes.items() if name < f"n{changed:04}"} == {
        "39"
    }


def test_events_are_held_for_no_more_steps_than_it_takes_to_take_in_all_nodes_and_pods() -> None:
    """That bounds their number, however fast the cluster changes."""
    cluster = large()
    slicer, held, longest = cluster.slicer, 0, 0
    for turn in range(30):
        for number in range(2 * ABSORBED_CHANGES):
            name = f"n{number:04}"
            labels = {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": "A100", "turn": f"{turn}"}
            cluster.device_node(name, count=CARDS, labels=labels)
        held = held + 1 if slicer.state.cluster.nodes[NodeName("n0000")].labels["turn"] != f"{turn}" else 0
        longest = max(longest, held)
        slicer.decide()
    everything = len(cluster.nodes) + len(cluster.pods)
    assert 0 < longest <= everything / ABSORBED_CHANGES + 1


def test_a_pod_whose_deletion_is_held_is_unknown_at_once_and_gone_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(take_in, "ABSORBED_CHANGES", 2)
    cluster = SlicerCluster()
    for number in range(6):
        cluster.node(f"n{number}")
    pod = cluster.pod("p", "1g.5gb")
    cluster.settle()
    slicer = cluster.slicer
    for turn in range(10):
        for number in range(6):
            labels = {**cluster.nodes[NodeName(f"n{number}")].labels, "turn": f"{turn}"}
            cluster.node(f"n{number}", labels=labels)
        if slicer.state.cluster.nodes[NodeName("n0")].labels["turn"] != f"{turn}":
            break
        slicer.decide()
    else:
        raise AssertionError("no event was held")
    assert slicer.has_news
    cluster.remove(pod)
    assert pod.uid in slicer.state.cluster.pods
    assert not slicer.intake.knows_pod(pod.uid)
    cluster.settle()
    assert pod.uid not in slicer.state.cluster.pods
    assert cluster.empty()
    assert slicer.state.cluster.nodes == {name: cluster.nodes[name] for name in slicer.state.cluster.nodes}


def test_as_many_pods_as_one_step_plans_are_taken_in_and_planned_in_one() -> None:
    cluster = SlicerCluster()
    for number in range(BATCH_PODS // 8):
        cluster.device_node(f"n{number}", count=8)
    for number in range(BATCH_PODS - 8):
        cluster.whole(f"p{number}")
    cluster.slicer.decide()
    assert cluster.slicer.settlement.decisions


def test_a_new_leader_looks_at_the_conditions_of_no_pod_that_says_nothing_of_its_slices() -> None:
    """It went through all pods of the cluster in one step with the first writes."""
    cluster = SlicerCluster()
    cluster.node("n1")
    running, withdrawn = cluster.pod("running", "1g.5gb"), cluster.pod("withdrawn", "1g.5gb")
    cluster.settle()
    for pod in (running, withdrawn):
        cluster.put(replace(cluster.pods[pod.uid], node=NodeName("n1"), slices_withdrawn=pod is withdrawn))
    cluster.restart()
    cluster.slicer.decide()
    assert cluster.slicer.state.pods_to_report == {withdrawn.uid}
    assert [each.uid for each in cluster.slicer.pop_writes() if isinstance(each, ReportPodCondition)] == [withdrawn.uid]


def test_writes_of_many_nodes_are_collected_in_steps_and_none_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writes, "WRITTEN_NODES", 3)
    cluster = SlicerCluster()
    for number in range(10):
        cluster.node(f"n{number}")
        cluster.pod(f"p{number}", "7g.40gb")
    found, steps = [], 0
    while True:
        cluster.slicer.decide()
        found += cluster.slicer.pop_writes()
        steps += 1
        if not cluster.slicer.has_work:
            break
    written = [each.node for each in found if isinstance(each, PatchRequests)]
    assert sorted(written) == sorted(set(written))
    assert len(written) == cluster.slicer.settlement.decisions > 3
    assert steps >= 4
