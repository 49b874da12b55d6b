"""Which pods are evicted from cards that must be empty: rules, turns, and what never happens."""

from collections.abc import Collection

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.nodes.card_faults import CardFault, CardRule, NodeCards
from tessera.api.nodes.repairs import Repairs
from tessera.controller.fault_evictions import STUCK, EvictionPlan, FaultyNode, HoldingPod, plan_evictions

REPAIRS = Repairs(evict=True, toleration_seconds=600)
NEEDS_RESET = CardFault("GPU-1", "XID 48", 100, asks="reset")
LOST = CardFault("GPU-1", "probe", 100, asks="reboot", lost=True)


def node(*faults: CardFault, **more: frozenset[object]) -> FaultyNode:
    counted = tuple(fault for fault in faults if fault.counts_for_breaker)
    others = tuple(fault for fault in faults if not fault.counts_for_breaker)
    return msgspec.structs.replace(FaultyNode(cards=NodeCards(1, counted, others)), **more)


def pod(name: str = "web", on: str = "n1", **more: object) -> HoldingPod:
    found = HoldingPod(uid=name, namespace="team", name=name, node=on, since=100, owner="ReplicaSet")
    return msgspec.structs.replace(found, **more)


def plan(
    nodes: dict[str, FaultyNode],
    *pods: HoldingPod,
    now: float = 1000,
    repairs: Repairs = REPAIRS,
    refused: Collection[str] = (),
) -> EvictionPlan:
    return plan_evictions(nodes, pods, repairs, refused=refused, own_namespace="tessera-system", now=now)


def names(found: EvictionPlan) -> list[str]:
    return [each.name for each in found.evictions]


@pytest.mark.parametrize(
    ("faulty", "holder", "evicted"),
    [
        (node(NEEDS_RESET), pod(), True),
        (node(LOST), pod(), True),
        (node(msgspec.structs.replace(NEEDS_RESET, asks="reboot")), pod(), True),
        (node(msgspec.structs.replace(NEEDS_RESET, asks="withhold")), pod(), False),
        (node(msgspec.structs.replace(NEEDS_RESET, reset=True)), pod(), False),
        (node(NEEDS_RESET, spared=frozenset({CardRule("GPU-1", "XID 48")})), pod(), False),
        (node(LOST, spared=frozenset({CardRule("GPU-1", "probe")})), pod(), True),
        (node(NEEDS_RESET, cordoned=frozenset({"GPU-1"})), pod(), False),
        (node(NEEDS_RESET), pod(on="n2"), False),
        (node(NEEDS_RESET), pod(owner=""), False),
        (node(NEEDS_RESET), pod(owner="DaemonSet"), False),
        (node(NEEDS_RESET), pod(owner="Node"), False),
        (node(NEEDS_RESET), pod(namespace="kube-system"), False),
        (node(NEEDS_RESET), pod(namespace="tessera-system"), False),
        (node(NEEDS_RESET), pod(ends=1030.0), False),
        (node(NEEDS_RESET), pod(since=950), False),
        (node(NEEDS_RESET), pod(since=500, toleration=550), False),
        (node(NEEDS_RESET), pod(since=300, toleration=1e9), True),
    ],
    ids=[
        "reset", "lost", "reboot", "withhold", "was reset", "spared", "lost and spared", "cordoned", "another node",
        "without owner", "of a DaemonSet", "static", "system", "own", "ending", "too early", "tolerates",
        "tolerates too long",
    ],
)  # fmt: skip
def test_a_pod_is_evicted_only_where_that_helps(faulty: FaultyNode, holder: HoldingPod, evicted: bool) -> None:
    assert names(plan({"n1": faulty}, holder)) == (["web"] if evicted else [])


def test_nothing_is_evicted_unless_an_administrator_says_so() -> None:
    assert plan({"n1": node(NEEDS_RESET)}, pod(), repairs=Repairs()) == EvictionPlan()


def test_the_time_of_the_next_eviction_is_known() -> None:
    assert plan({"n1": node(NEEDS_RESET)}, pod(since=980), pod("b", since=700, toleration=500)).next_due == 1040


def test_nodes_take_turns_and_a_refused_or_stuck_pod_takes_nobodys() -> None:
    later = msgspec.structs.replace(NEEDS_RESET, since=200)
    nodes = {"n1": node(later), "n2": node(NEEDS_RESET), "n3": node(later)}
    holders = [pod("a", "n1"), pod("b", "n2"), pod("c", "n2"), pod("d", "n3")]
    assert names(plan(nodes, *holders)) == ["b", "c"]
    assert names(plan(nodes, *holders, refused=["b"])) == ["c"]
    assert names(plan(nodes, *holders, refused=["b", "c"])) == ["a"]
    ending = [pod("a", "n1", ends=990.0), *holders[1:]]
    assert names(plan(nodes, *ending)) == []
    assert names(plan(nodes, *ending, now=990 + STUCK)) == ["b", "c"]


FAULTS = st.builds(
    CardFault,
    gpu=st.sampled_from(["GPU-1", "GPU-2"]),
    rule=st.sampled_from(["XID 48", "XID 79", "probe"]),
    since=st.integers(0, 300),
    asks=st.sampled_from(["attention", "withhold", "reset", "reboot"]),
    lost=st.booleans(),
    reset=st.booleans(),
)
NODES = st.dictionaries(
    st.sampled_from(["n1", "n2", "n3"]), st.lists(FAULTS, max_size=3).map(lambda faults: node(*faults))
)
PODS = st.lists(
    st.builds(
        pod,
        name=st.sampled_from("abcdefgh"),
        on=st.sampled_from(["n1", "n2", "n3", "n4"]),
        since=st.integers(0, 1000),
        toleration=st.integers(0, 2000),
        owner=st.sampled_from(["", "ReplicaSet", "DaemonSet"]),
        ends=st.sampled_from([None, 900.0]),
    ),
    unique_by=lambda each: each.uid,
    max_size=8,
)


@given(NODES, PODS, st.integers(1, 3), st.frozensets(st.sampled_from("abcdefgh")))
def test_whatever_is_there_the_rules_hold_and_the_order_of_facts_does_not_matter(
    nodes: dict[str, FaultyNode], pods: list[HoldingPod], budget: int, refused: frozenset[str]
) -> None:
    repairs = Repairs(evict=True, evict_nodes=budget, toleration_seconds=600)
    found = plan(nodes, *pods, repairs=repairs, refused=refused)
    for each in found.evictions:
        assert each.owner == "ReplicaSet"
        assert each.ends is None
        assert each.uid not in refused
        assert each.since + 60 <= 1000
        assert nodes[each.node].since() is not None
    assert len({each.node for each in found.evictions}) <= budget
    assert plan(dict(reversed(list(nodes.items()))), *reversed(pods), repairs=repairs, refused=refused) == found
    assert found.next_due is None or found.next_due > 1000
    # What is evicted ends, and is then not evicted again; in the end everything is evicted that may be.
    gone: set[str] = set()
    for _ in range(len(pods) + 1):
        step = plan(nodes, *(each for each in pods if each.uid not in gone), repairs=repairs, now=1e6)
        assert gone.isdisjoint(each.uid for each in step.evictions)
        gone |= {each.uid for each in step.evictions}
    wanted = {each.uid for each in pods if each.owner == "ReplicaSet" and each.ends is None and _needs(nodes, each)}
    assert gone == wanted


def _needs(nodes: dict[str, FaultyNode], holder: HoldingPod) -> bool:
    return holder.node in nodes and nodes[holder.node].since() is not None
