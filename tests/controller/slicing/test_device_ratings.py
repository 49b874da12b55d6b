"""Nodes are ranked for whole cards and shares by the pods that hold cards; nobody else can change that much."""

import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import GATE, NodeName, PodUid
from tessera.controller.objects.node_info import NodeDevices, NodeInfo
from tessera.controller.objects.pod_constraints import NodeConstraints
from tessera.controller.objects.pod_info import PodInfo, read_pod
from tessera.controller.slicing.state.device_inventory import COUNTED_WAITING_DEVICES, AskedDevices, DeviceDemand
from tessera.kube.resources import (
    ComputeQuantities,
    Condition,
    Container,
    ContainerStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    ResourceRequirements,
    Uid,
)
from tessera.placement.demand import StepBudget

GPU, SHARE = "nvidia.com/gpu", "nvidia.com/gpu.shared"
NODE = NodeInfo(NodeName("n"), "n", allocatable={"cpu": 1_000_000, "memory": 2**40})


def pin(cluster: SlicerCluster, pod: PodInfo) -> str:
    found = cluster.pods[pod.uid]
    return "" if found.gated else found.hostname


def only_on(model: str) -> NodeConstraints:
    return NodeConstraints(selector=(("nvidia.com/gpu.product", model),), devices=frozenset({GPU}))


def asking(cpu: int, cards: int = 1) -> dict[str, int]:
    return {"cpu": cpu, "pods": 1, GPU: cards}


def share_node(cluster: SlicerCluster, name: str, count: int, cpu: int) -> None:
    cluster.device_node(
        name,
        allocatable={"cpu": cpu, "pods": 110, SHARE: count},
        devices=(NodeDevices(SHARE, "A100", count, 1, 10),),
    )


def share(cluster: SlicerCluster, name: str, cpu: int) -> PodInfo:
    amounts = {"cpu": cpu, "pods": 1, SHARE: 1}
    return cluster.pod(
        name, SHARE, devices=(SHARE,), amounts=amounts, constraints=NodeConstraints(devices=frozenset({SHARE}))
    )


def order(cluster: SlicerCluster, pod: PodInfo) -> list[str]:
    cluster.slicer.state.ratings.update()
    return [node for node, _ in cluster.slicer.state.ratings.rank(pod, {}, None, StepBudget(sys.maxsize))]


def test_a_share_goes_where_it_leaves_the_others_their_cpu(cluster: SlicerCluster) -> None:
    share_node(cluster, "n1", 4, 10_000)
    share_node(cluster, "n2", 12, 64_000)
    for number in range(5):
        cluster.pod(
            f"held-{number}",
            gates=(),
            node=NodeName("n2"),
            devices=(SHARE,),
            amounts={"cpu": 3_000, "pods": 1, SHARE: 1},
            constraints=NodeConstraints(devices=frozenset({SHARE})),
        )
    cluster.settle()
    large, small = share(cluster, "large", 6_000), share(cluster, "small", 500)
    cluster.settle()
    assert (pin(cluster, large), pin(cluster, small)) == ("n2", "n1")


def test_cards_are_kept_for_a_waiting_pod_that_only_they_suit(cluster: SlicerCluster) -> None:
    """The other pod is older and no pod with cards runs yet."""
    cluster.device_node("h1", "H100", count=1)
    cluster.device_node("a1", "A100", count=3)
    anywhere = cluster.whole("anywhere", created="1")
    needs = cluster.whole("needs", constraints=only_on("H100"), created="2", gates=(GATE, "others/gate"))
    cluster.settle()
    assert (pin(cluster, anywhere), pin(cluster, needs)) == ("a1", "")


def test_large_nodes_are_kept_for_pods_that_only_they_can_hold(cluster: SlicerCluster) -> None:
    """A pod with 120 CPUs holds a large node, and nothing names a model."""
    for name, model, cpu in (("a-large", "A100", 128_000), ("b-large", "A100", 128_000), ("usual", "H100", 96_000)):
        cluster.device_node(name, model, count=8, allocatable={"cpu": cpu, "pods": 110, GPU: 8})
    cluster.device_node("busy", "H100", count=200, allocatable={"cpu": 100_000, "pods": 250, GPU: 200})
    cluster.whole("holds", 8, gated=False, node=NodeName("a-large"), amounts=asking(120_000, 8))
    for number in range(200):
        cluster.whole(f"small-{number}", gated=False, node=NodeName("busy"), amounts=asking(500))
    cluster.settle()
    usual = cluster.whole("usual", 8, amounts=asking(64_000, 8), created="1")
    cluster.settle()
    assert pin(cluster, usual) == "usual"
    huge = cluster.whole("huge", 8, amounts=asking(120_000, 8), created="2")
    cluster.settle()
    assert pin(cluster, huge) == "b-large"


def test_gated_pods_of_a_tenant_hardly_change_where_others_go(cluster: SlicerCluster) -> None:
    """Twenty pods hold an H100 and need it. Hundreds that nobody can place need an A100."""
    cluster.device_node("h1", "H100", count=24)
    cluster.device_node("a1", "A100", count=24)
    for number in range(20):
        cluster.whole(f"needs-{number}", gated=False, node=NodeName("h1"), constraints=only_on("H100"))
    for number in range(300):
        cluster.whole(
            f"odd-{number}", namespace="hostile", constraints=only_on("A100"), amounts=asking(900_000 + 1_000 * number)
        )
    pod = cluster.whole("anywhere", created="0")
    cluster.settle()
    assert pin(cluster, pod) == "a1"


@pytest.mark.parametrize("amounts", [{"cpu": 10**9}, {"memory": 2**60}, {"cpu": 10**9, "memory": 2**60}])
def test_amounts_of_a_pod_that_nobody_can_place_change_no_place(amounts: dict[str, int]) -> None:
    """Nodes have little CPU and memory beside their cards, or much; so have the pods."""
    without, beside = place_unequal_pods({}), place_unequal_pods(amounts)
    assert "" not in without.values()
    assert beside == without


def place_unequal_pods(hostile: dict[str, int], holder: PodInfo | None = None) -> dict[str, str]:
    cluster = SlicerCluster()
    for number in range(4):
        amounts = {"cpu": 20_000, "memory": 64 << 30} if number % 2 else {"cpu": 96_000, "memory": 512 << 30}
        cluster.device_node(f"n{number}", allocatable={**amounts, "pods": 110, GPU: 4})
    for node in (0, 1):
        held = {**asking(6_000), "memory": 24 << 30}
        cluster.whole(f"held-{node}", gated=False, node=NodeName(f"n{node}"), amounts=held)
    if hostile:
        cluster.whole("hostile", namespace="hostile", created="", amounts={**asking(1_000), **hostile})
    if holder is not None:
        cluster.put(holder)
    cluster.settle()
    found = {}
    for number in range(14):
        large = number % 2 == 0
        amounts = {**asking(12_000 if large else 2_000), "memory": (64 if large else 8) << 30}
        pod = cluster.whole(f"p{number}", created=f"1{number:02}", amounts=amounts)
        cluster.settle()
        found[pod.name] = pin(cluster, pod)
    return found


def test_a_new_controller_ranks_the_nodes_as_the_one_before(cluster: SlicerCluster) -> None:
    cluster.namespace("default", **{"tessera.dev/placement": "managed"})
    for number, model in enumerate(("A100", "A100", "H100", "H100", "L40")):
        cluster.device_node(f"n{number}", model, count=8)
    pods = [
        cluster.whole(f"p{number}", 1 + number % 3, amounts=asking(4_000 * (1 + number % 4), 1 + number % 3))
        for number in range(8)
    ]
    pods += [cluster.whole(f"h{number}", constraints=only_on("H100")) for number in range(4)]
    cluster.settle()
    for pod in pods[::3]:
        cluster.remove(cluster.pods[pod.uid])
    cluster.whole("waits", 9, created="7")
    cluster.settle()
    probes = [PodInfo(PodUid("probe"), "default", "probe", devices=(GPU,) * count) for count in (1, 2, 4)]
    probes = [replace(each, constraints=NodeConstraints(devices=frozenset({GPU}))) for each in probes]
    before = [order(cluster, each) for each in probes]
    cluster.resume()
    assert [order(cluster, each) for each in probes] == before
    assert before[0]


def test_a_batch_that_was_only_tried_leaves_no_trace_in_the_ratings(cluster: SlicerCluster) -> None:
    """The slices leave too little CPU for the card's pod, while both are planned together."""
    cluster.namespace("default", **{"tessera.dev/placement": "managed"})
    node = cluster.node("n1")
    devices = (NodeDevices(GPU, "A100", 2, 8, 40),)
    cluster.nodes[NodeName("n1")] = replace(node, devices=devices, allocatable={**node.allocatable, GPU: 2})
    cluster.restart()
    cluster.whole("first", gated=False, node=NodeName("n1"))
    cluster.settle()
    slices = PodInfo(PodUid("s"), "default", "s", gates=(GATE,), profiles=("7g.40gb",), amounts=asking(60_000, 0))
    card = replace(cluster.whole("card"), uid=PodUid("c"), amounts=asking(5_000))
    found = cluster.slicer.planner.plan_alone([slices, card])
    assert [type(each).__name__ for each in found] == ["Placed", "Unplaced"]
    assert order(cluster, replace(card, amounts=asking(10_000))) == ["n1"]


def resized_pod(asked: str, allocated: str, reason: str) -> Pod:
    """A pod that holds a card on n1, and whose CPU cannot be resized now."""
    limits = {GPU: "1"}
    requests = ResourceRequirements(limits=limits, requests={"cpu": asked, **limits})
    has = ContainerStatus(name="c", allocated_resources=ComputeQuantities(cpu=allocated))
    return Pod(
        metadata=ObjectMeta(name="resized", namespace="hostile", uid=Uid("resized")),
        spec=PodSpec(node_name="n1", containers=(Container(name="c", resources=requests),)),
        status=PodStatus(
            phase="Running",
            conditions=(Condition(type="PodResizePending", status="True", reason=reason),),
            container_statuses=(has,),
        ),
    )


def test_a_resize_that_no_node_can_do_closes_no_node(cluster: SlicerCluster) -> None:
    cluster.device_node("n1")
    cluster.put(read_pod(resized_pod("100000", "1", "Infeasible")))
    fits, too_large = cluster.whole("fits", amounts=asking(63_000)), cluster.whole("large", amounts=asking(1_000))
    cluster.settle()
    assert (pin(cluster, fits), pin(cluster, too_large)) == ("n1", "")


def test_a_resize_that_waits_keeps_its_room_as_in_the_scheduler(cluster: SlicerCluster) -> None:
    cluster.device_node("n1")
    cluster.put(read_pod(resized_pod("60", "1", "Deferred")))
    fits, too_large = cluster.whole("fits", amounts=asking(4_000)), cluster.whole("large", amounts=asking(1_000))
    cluster.settle()
    assert (pin(cluster, fits), pin(cluster, too_large)) == ("n1", "")


@pytest.mark.parametrize(
    "hostile",
    [
        read_pod(resized_pod("100000", "1", "Infeasible")),
        PodInfo(PodUid("resized"), "hostile", "resized", node=NodeName("n1"), devices=(GPU,), amounts=asking(1_000)),
    ],
)
def test_a_resize_changes_no_place_of_others(hostile: PodInfo) -> None:
    """The pod counts as if nobody had asked to resize it."""
    assert place_unequal_pods({}, hostile) == place_unequal_pods({}, replace(hostile, amounts=asking(1_000)))


@pytest.mark.parametrize(
    ("pod", "counted"),
    [
        (resized_pod("60", "1", "Deferred"), 1_000),
        (resized_pod("100000", "1", "Infeasible"), 1_000),
        (resized_pod("2", "2", ""), 2_000),
        (resized_pod("100000", "100000", ""), 64_000),
    ],
)
def test_of_a_pod_with_cards_counts_what_its_node_has_allocated(pod: Pod, counted: int) -> None:
    counts = Counts()
    node = replace(NODE, allocatable={"cpu": 64_000})
    DeviceDemand(counts).observe(PodUid("resized"), read_pod(pod), node)
    assert [(each.cpu, hold) for each, hold in counts.found] == [(counted, True)]


class Counts:
    """Requests that count now."""

    def __init__(self) -> None:
        self.found: dict[tuple[AskedDevices, bool], int] = {}

    def count(self, asked: AskedDevices, pods: int, *, hold: bool) -> None:
        key = (asked, hold)
        self.found[key] = self.found.get(key, 0) + pods
        assert self.found[key] >= 0
        if not self.found[key]:
            del self.found[key]


def pod_of(number: int, namespace: str, cards: int) -> PodInfo:
    uid, devices = PodUid(f"{namespace}-{number}"), (GPU,) * cards
    return PodInfo(uid, namespace, f"{number}", devices=devices, amounts={"cpu": 1000 * number}, created=f"{number:04}")


def test_waiting_pods_of_a_namespace_count_up_to_a_limit_the_oldest_first() -> None:
    counts = Counts()
    demand = DeviceDemand(counts)
    for number in reversed(range(1000)):
        demand.observe(PodUid(f"a-{number}"), pod_of(number, "a", 1), None)
    assert sorted(each.cpu for each, _ in counts.found) == [1000 * number for number in range(COUNTED_WAITING_DEVICES)]
    demand.observe(PodUid("a-999"), pod_of(999, "a", 1), NODE)
    assert sum(counts.found.values()) == COUNTED_WAITING_DEVICES + 1
    assert [each.cpu for each, hold in counts.found if hold] == [999_000]
    demand.observe(PodUid("a-0"), None, None)
    assert sum(counts.found.values()) == COUNTED_WAITING_DEVICES + 1


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from("ab"), st.integers(1, 9), st.sampled_from("hwg")), max_size=40
    )
)
@settings(deadline=None)
def test_what_counts_follows_from_the_pods_whatever_came_before(
    steps: list[tuple[int, str, int, str]],
) -> None:
    counts = Counts()
    demand = DeviceDemand(counts)
    living: dict[PodUid, tuple[PodInfo, bool]] = {}
    for number, namespace, cards, state in steps:
        pod = pod_of(number, namespace, cards)
        living.pop(pod.uid, None)
        if state != "g":
            living[pod.uid] = (pod, state == "h")
        demand.observe(pod.uid, pod if state != "g" else None, NODE if state == "h" else None)
    fresh = Counts()
    again = DeviceDemand(fresh)
    for uid, (pod, holds) in living.items():
        again.observe(uid, pod, NODE if holds else None)
    assert counts.found == fresh.found


def test_a_pod_counts_on_a_node_with_cards_and_up_to_what_the_node_has(cluster: SlicerCluster) -> None:
    """Authors of these pods named the nodes, so nobody has compared their amounts with those of a node."""
    counts = Counts()
    cluster.slicer.state.device_demand = DeviceDemand(counts)
    cluster.namespace("default", **{"tessera.dev/placement": "managed"})
    cluster.device_node("late", count=0)
    cluster.whole("gone", gated=False, node=NodeName("nowhere"), amounts=asking(10**9))
    cluster.whole("early", gated=False, node=NodeName("late"), amounts=asking(10**9))
    cluster.settle()
    assert not counts.found
    cluster.device_node("late", count=1)
    cluster.settle()
    assert [(each.cpu, hold) for each, hold in counts.found] == [(64_000, True)]
