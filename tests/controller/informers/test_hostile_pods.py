"""Pods that are as costly to judge as an author can make them: each waits with the reason, and nobody else for it."""

import asyncio
import itertools
from typing import Any

import msgspec
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import GATE
from tessera.controller.leader_session import decide_until_settled
from tessera.controller.objects.pod_constraints import POD_LABELS
from tessera.controller.objects.pod_info import PodInfo, read_pod
from tessera.controller.slicing.state.instructions import RecordEvent
from tessera.kube.resources import Pod
from tessera.limits import DECISION_STEPS, NEIGHBOUR_STEPS

#: A step of planning is worth so many comparisons.
COMPARISONS_A_STEP = 4
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def pod(
    name: str,
    created: str = "2026-01-01T00:00:00Z",
    namespace: str = "default",
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> PodInfo:
    limits = {"nvidia.com/mig-1g.5gb": "1"}
    meta = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": labels or {}}
    body = {
        "metadata": {**meta, "creationTimestamp": created},
        "spec": {
            "schedulingGates": [{"name": GATE}],
            "containers": [{"name": "c", "resources": {"limits": limits}}],
            **spec,
        },
    }
    return read_pod(msgspec.convert(body, Pod))


def terms(prefix: str, count: int) -> dict[str, Any]:
    rows = [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": [f"{prefix}-{i}"]}]} for i in range(count)
    ]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": rows}}}


def bound(name: str, node: str, **more: Any) -> PodInfo:
    """A pod without GPUs that runs."""
    return pod(name, nodeName=node, schedulingGates=[], containers=[{"name": "c"}], **more)


def anti_affinity(*selectors: dict[str, Any], **more: Any) -> dict[str, Any]:
    rows = [{"labelSelector": each, "topologyKey": "kubernetes.io/hostname", **more} for each in selectors]
    return {"podAntiAffinity": {REQUIRED: rows}}


def without(*values: str) -> dict[str, Any]:
    """A selector of the pods whose label ``a`` has none of these values; no index leads to them."""
    return {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": list(values)}]}


def told(cluster: SlicerCluster, one: PodInfo) -> list[RecordEvent]:
    return [tell for tell in cluster.told if tell.uid == one.uid]


def test_a_pod_with_12_000_terms_waits_and_is_told_the_limit(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    hostile = [cluster.put(pod(f"h{i}", affinity=terms(f"h{i}", 12_000))) for i in range(4)]
    innocent = cluster.put(pod("z", created="2026-01-02T00:00:00Z"))
    cluster.settle()
    assert [place[0] for place in cluster.where(innocent)] == ["n1"]
    for one in hostile:
        assert cluster.where(one) == []
        (tell,) = told(cluster, one)
        assert (tell.reason, tell.warning) == ("SliceRefused", True)
        for fact in ("node affinity has 12,000 terms", "at most 100 terms are allowed"):
            assert fact in tell.message
    assert cluster.slicer.state.cluster.index.cost < 100


def test_a_pod_over_a_limit_that_runs_already_keeps_its_slice_and_counts_on_its_node(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    one = cluster.put(pod("a"))
    cluster.settle()
    containers = [{"name": f"c{i}", "resources": {"requests": {"cpu": "1"}}} for i in range(300)]
    containers[0]["resources"] = {"requests": {"cpu": "1"}, "limits": {"nvidia.com/mig-1g.5gb": "1"}}
    facts = pod("a", schedulingGates=[], nodeName="n1", containers=containers)
    assert facts.fault
    cluster.put(facts)
    cluster.settle()
    assert len(cluster.where(one)) == 1
    assert cluster.slicer.state.usage.used["n1"]["cpu"] == 300_000


def test_judging_the_same_pods_again_at_a_release_compares_nothing_again(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    holder = cluster.pod("holder", "7g.40gb")
    cluster.settle()
    for i in range(300):
        cluster.put(pod(f"h{i:03}", affinity=terms(f"h{i}", 100)))
    cluster.settle()
    cost = cluster.slicer.state.cluster.index.cost
    assert cost >= 300 * 100
    cluster.remove(holder)
    cluster.settle()
    assert cluster.slicer.state.cluster.index.cost == cost


def test_pods_that_no_node_can_hold_are_refused_step_by_step_and_the_last_one_gets_its_slice(
    cluster: SlicerCluster,
) -> None:
    """3,000 pods that differ in what they ask: each would be held against 1,000 nodes, in one decision, 6 s long."""
    for number in range(100):
        cluster.node(f"n{number}")
    for number in range(1500):
        cluster.pod(f"h{number}", "1g.5gb", amounts={"cpu": 100_000 + number}, created="1")
    innocent = cluster.pod("z", "1g.5gb", created="2")
    spent = []
    while cluster.slicer.has_work:
        spent.append(steps_of(cluster))
        for instruction in cluster.slicer.pop_writes():
            cluster.answer(instruction)
    assert cluster.where(innocent) != []
    assert len(cluster.slicer.state.waiting) == len(cluster.told) == 1500
    assert max(spent) < DECISION_STEPS * 1.1
    cluster.remove(innocent)
    cluster.settle()
    assert steps_of(cluster) == 0


def test_a_freed_slot_is_offered_to_all_in_one_step(cluster: SlicerCluster) -> None:
    for number in range(50):
        cluster.node(f"n{number}")
    holder = cluster.pod("holder", "1g.5gb")
    cluster.settle()
    for number in range(100):
        cluster.pod(f"h{number}", "1g.5gb", amounts={"cpu": 100_000 + number})
    cluster.run()
    cluster.remove(holder)
    cluster.agents()
    assert steps_of(cluster) < DECISION_STEPS
    assert not cluster.slicer.has_work


def test_pods_that_come_are_compared_with_no_rule_until_one_asks(cluster: SlicerCluster) -> None:
    """300 new sets of labels were compared with 100 selectors, in a decision that planned nothing."""
    cluster.node("n1")
    hostile = [cluster.put(pod(f"h{i}", affinity=anti_affinity(without(f"x{i}")))) for i in range(100)]
    cluster.settle()
    for one in hostile:
        cluster.remove(one)
    cluster.settle()
    cost = cluster.slicer.state.cluster.placed_pods.cost
    for number in range(300):
        cluster.put(bound(f"b{number}", "n1", labels={"a": f"{number}"}))
    cluster.slicer.decide()
    assert cluster.slicer.state.cluster.placed_pods.cost == cost


def test_every_comparison_of_a_batch_is_charged_to_its_work(cluster: SlicerCluster) -> None:
    for number in range(20):
        cluster.node(f"n{number}")
    for number in range(400):
        cluster.put(bound(f"b{number}", f"n{number % 20}", labels={"a": f"{number}"}))
    cluster.slicer.decide()
    for number in range(60):
        rules = anti_affinity(*(without(f"{number}-{i}") for i in range(20)))
        cluster.put(pod(f"h{number:02}", labels={"a": f"h{number}"}, affinity=rules))
    decisions = 0
    while cluster.slicer.has_work:
        cost = cluster.slicer.state.cluster.placed_pods.cost
        steps = steps_of(cluster)
        compared = cluster.slicer.state.cluster.placed_pods.cost - cost
        assert compared // COMPARISONS_A_STEP <= steps <= DECISION_STEPS * 1.25 + NEIGHBOUR_STEPS // COMPARISONS_A_STEP
        decisions += 1
    assert decisions > 1
    assert len(cluster.slicer.state.waiting) == 60


def test_a_rule_that_alone_takes_too_much_is_left_to_the_scheduler(cluster: SlicerCluster) -> None:
    for number in range(10):
        cluster.node(f"n{number}")
    for number in range(500):
        cluster.put(bound(f"b{number}", f"n{number % 10}", labels={"a": f"{number}"}))
    cluster.slicer.decide()
    values = [f"x{i}" for i in range(999)]
    one = cluster.put(pod("h", affinity=anti_affinity(without(*values))))
    cost = cluster.slicer.state.cluster.placed_pods.cost
    cluster.settle()
    assert cluster.where(one) != []
    assert cluster.slicer.state.cluster.placed_pods.cost - cost < NEIGHBOUR_STEPS


def test_terms_of_one_namespace_do_not_displace_those_of_another(cluster: SlicerCluster) -> None:
    """1,000 terms that select nobody here were looked at first, and those that count were not."""
    cluster.node("n1")
    cluster.node("n2")
    for number in range(100):
        rules = anti_affinity(*(without(f"{number}-{i}") for i in range(20)))
        cluster.put(bound(f"a{number}", "n2", namespace="hostile", affinity=rules))
    exists = {"matchExpressions": [{"key": "app", "operator": "Exists"}]}
    for number in range(2):
        cluster.put(bound(f"b{number}", "n1", labels={"app": "x"}, affinity=anti_affinity(exists)))
    cluster.slicer.decide()
    pods = [cluster.put(pod(f"p{i}", labels={"app": f"y{i}"})) for i in range(4)]
    cluster.settle()
    assert {place[0] for one in pods for place in cluster.where(one)} == {"n2"}


def test_of_a_pods_labels_the_first_ones_count(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    for number in range(100):
        one = cluster.put(pod(f"h{number}", labels={f"l{i}": f"{number}" for i in range(5_000)}))
    assert len(one.labels) == POD_LABELS
    assert steps_of(cluster) < DECISION_STEPS


def test_host_ports_that_are_taken_everywhere_are_charged_once_a_pod(cluster: SlicerCluster) -> None:
    for number in range(50):
        cluster.node(f"n{number}")
        ports = [{"hostPort": 80, "containerPort": 80}]
        cluster.put(
            pod(f"b{number}", nodeName=f"n{number}", schedulingGates=[], containers=[{"name": "c", "ports": ports}])
        )
    ports = [{"hostPort": 40_000 + i, "containerPort": 1} for i in range(199)] + [{"hostPort": 80, "containerPort": 80}]
    limits = {"nvidia.com/mig-1g.5gb": "1"}
    one = cluster.put(pod("h", containers=[{"name": "c", "ports": ports, "resources": {"limits": limits}}]))
    assert steps_of(cluster) < 1_000
    assert cluster.where(one) == []


def steps_of(cluster: SlicerCluster) -> int:
    """The work that one decision took."""
    before = cluster.slicer.steps
    cluster.slicer.decide()
    return int(cluster.slicer.steps - before)


def test_everything_else_has_its_turn_between_two_steps(cluster: SlicerCluster) -> None:
    """The lease is renewed by the same event loop: one long decision lost it."""
    for number in range(100):
        cluster.node(f"n{number}")
    for number in range(1500):
        cluster.pod(f"h{number}", "1g.5gb", amounts={"cpu": 100_000 + number})
    trace: list[str] = []

    def step() -> None:
        trace.append("step")
        cluster.slicer.decide()
        cluster.slicer.pop_writes()

    async def other() -> None:
        while True:
            trace.append("other")
            await asyncio.sleep(0)

    async def run() -> None:
        beside = asyncio.create_task(other())
        await decide_until_settled(cluster.slicer, step)
        beside.cancel()

    asyncio.run(run())
    assert trace.count("step") > 5
    assert all(pair != ("step", "step") for pair in itertools.pairwise(trace))
