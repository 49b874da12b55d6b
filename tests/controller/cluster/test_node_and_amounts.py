"""The scheduler's filters, decided before a slice is promised."""

from typing import Any

import pytest

from tessera.controller.cluster.filters import device_shortages, first_shortage
from tessera.controller.objects.node_info import AgentState, NodeInfo
from tessera.controller.objects.pod_constraints import MISMATCH, NodeConstraints, find_refusal
from tessera.kube.resources import NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration
from tessera.reasons.node_rules import name_rule

LABELS = {"nvidia.com/mig.config": "dynamic", "kubernetes.io/hostname": "n1", "zone": "a", "cores": "64"}


def node(**facts: Any) -> NodeInfo:
    return NodeInfo(**{"name": "n1", "hostname": "n1", "labels": LABELS, **facts})


def term(*tests: tuple[str, str, tuple[str, ...]], fields: bool = False) -> NodeSelectorTerm:
    made = tuple(NodeSelectorRequirement(key=key, operator=operator, values=values) for key, operator, values in tests)
    return NodeSelectorTerm(match_fields=made) if fields else NodeSelectorTerm(match_expressions=made)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, ""),
        ({"labels": {}}, "did not offer on-demand slices"),
        ({"labels": {"nvidia.com/mig.config": "all-1g.5gb"}}, "did not offer on-demand slices"),
        ({"labels": {"nvidia.com/mig.config": "dynamic"}}, "had no label kubernetes.io/hostname"),
        ({"ready": False}, "were not ready"),
        ({"agent": AgentState.DOWN}, "had no agent that is ready"),
        ({"agent": AgentState.READY}, ""),
        ({"cordoned": True}, "were unschedulable"),
        ({"taints": (Taint(key="gpu", value="down", effect="NoSchedule"),)}, "untolerated taint {gpu: down}"),
        ({"taints": (Taint(key="gpu", effect="NoExecute"),)}, "untolerated taint {gpu: }"),
        ({"taints": (Taint(key="gpu", effect="PreferNoSchedule"),)}, ""),
    ],
)
def test_the_nodes_own_state(facts: dict[str, Any], words: str) -> None:
    found = find_refusal(NodeConstraints(), node(**facts))
    assert words in (name_rule(found) if found is not None else "")
    assert bool(words) == (found is not None)


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        (Toleration(operator="Exists"), True),
        (Toleration(key="gpu", operator="Exists"), True),
        (Toleration(key="gpu", operator="Equal", value="down"), True),
        (Toleration(key="gpu", value="down"), True),
        (Toleration(key="gpu", value="up"), False),
        (Toleration(key="cpu", operator="Exists"), False),
        (Toleration(key="gpu", operator="Exists", effect="NoSchedule"), True),
        (Toleration(key="gpu", operator="Exists", effect="NoExecute"), False),
    ],
)
def test_tolerations(toleration: Toleration, tolerated: bool) -> None:
    tainted = node(taints=(Taint(key="gpu", value="down", effect="NoSchedule"),))
    assert (find_refusal(NodeConstraints(tolerations=(toleration,)), tainted) is None) == tolerated


def test_a_cordon_may_be_tolerated() -> None:
    toleration = Toleration(key="node.kubernetes.io/unschedulable", operator="Exists")
    assert find_refusal(NodeConstraints(tolerations=(toleration,)), node(cordoned=True)) is None


@pytest.mark.parametrize(
    ("terms", "matches"),
    [
        (None, True),
        ((), False),
        ((NodeSelectorTerm(),), False),
        ((term(("zone", "In", ("a", "b"))),), True),
        ((term(("zone", "In", ("b",))),), False),
        ((term(("rack", "In", ("b",))),), False),
        ((term(("zone", "NotIn", ("b",))),), True),
        ((term(("rack", "NotIn", ("b",))),), True),
        ((term(("zone", "Exists", ())),), True),
        ((term(("rack", "Exists", ())),), False),
        ((term(("rack", "DoesNotExist", ())),), True),
        ((term(("cores", "Gt", ("32",))),), True),
        ((term(("cores", "Gt", ("64",))),), False),
        ((term(("cores", "Lt", ("65",))),), True),
        ((term(("zone", "Lt", ("65",))),), False),
        ((term(("rack", "Gt", ("1",))),), False),
        ((term(("metadata.name", "In", ("n1",)), fields=True),), True),
        ((term(("metadata.name", "NotIn", ("n1",)), fields=True),), False),
        ((term(("zone", "In", ("a",)), ("cores", "Exists", ())),), True),
        ((term(("zone", "In", ("a",)), ("rack", "Exists", ())),), False),
        ((term(("rack", "Exists", ())), term(("zone", "Exists", ()))), True),
        ((term(("zone", "Somehow", ())),), False),
    ],
)
def test_required_node_affinity(terms: tuple[NodeSelectorTerm, ...] | None, matches: bool) -> None:
    assert (find_refusal(NodeConstraints(terms=terms), node()) is None) == matches


def test_node_selector() -> None:
    assert find_refusal(NodeConstraints(selector=(("zone", "a"),)), node()) is None
    assert find_refusal(NodeConstraints(selector=(("zone", "b"),)), node()) == MISMATCH


@pytest.mark.parametrize(
    ("wanted", "used", "words"),
    [
        ({"cpu": 1000}, {"cpu": 3000}, ""),
        ({"cpu": 1001}, {"cpu": 3000}, "Insufficient cpu"),
        ({"memory": 10}, {"memory": 1}, "Insufficient memory"),
        ({"memory": 11}, {}, "node(s) were too small: memory"),
        ({"cpu": 1001, "memory": 11}, {"cpu": 3000}, "node(s) were too small: memory"),
        ({"pods": 1}, {"pods": 2}, "Too many pods"),
        ({"example.com/nic": 1}, {}, "node(s) were too small: example.com/nic"),
        ({}, {"cpu": 9000}, ""),
    ],
)
def test_free_amounts(wanted: dict[str, int], used: dict[str, int], words: str) -> None:
    found = first_shortage(wanted, used, node(allocatable={"cpu": 4000, "memory": 10, "pods": 2}))
    assert (name_rule(found) if found is not None else "") == words


MIG, QUOTA = "nvidia.com/mig-1g.5gb", "instaslice.redhat.com/accelerator-memory-quota"


@pytest.mark.parametrize(
    ("allocatable", "agent", "wanted", "words"),
    [
        ({MIG: 7, QUOTA: 40}, AgentState.READY, {MIG: 1, QUOTA: 5, "cpu": 9}, ""),
        ({MIG: 7, QUOTA: 40}, AgentState.UNKNOWN, {MIG: 4}, ""),
        ({MIG: 7, QUOTA: 40}, AgentState.READY, {MIG: 5}, f"Insufficient {MIG}"),
        ({MIG: 7, QUOTA: 40}, AgentState.READY, {MIG: 1, QUOTA: 31}, f"Insufficient {QUOTA}"),
        ({MIG: 0, QUOTA: 40}, AgentState.READY, {MIG: 1}, f"Insufficient {MIG}"),
        ({}, AgentState.READY, {MIG: 1, QUOTA: 5}, ""),
        ({}, AgentState.UNKNOWN, {MIG: 1}, f"Insufficient {MIG}"),
    ],
)
def test_devices_and_quota_count_as_kubelet_publishes_them(
    allocatable: dict[str, int], agent: AgentState, wanted: dict[str, int], words: str
) -> None:
    """One that is missing beside an agent that serves is on its way; kubelet says 0 of an agent that is gone."""
    used = {MIG: 3, QUOTA: 10} if allocatable.get(MIG) else {}
    found = device_shortages(wanted, used, node(allocatable=allocatable, agent=agent))
    assert [name_rule(each) for each in found][:1] == [words][: bool(words)]
