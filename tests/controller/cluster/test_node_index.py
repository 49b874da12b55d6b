"""The index says of all nodes what the scheduler's filters say of one, and says it again for nothing."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.searching import examples

from tessera.api.names import NodeName
from tessera.controller.cluster.node_index import NodeIndex
from tessera.controller.objects.node_info import NodeInfo
from tessera.controller.objects.pod_constraints import NodeConstraints, admits_node, find_refusal
from tessera.kube.resources import NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration

KEYS = st.sampled_from(["a", "b"])
VALUES = st.sampled_from(["", "x", "y", "-1", "7", "12", "1_0", "9" * 30])
NAMES = st.sampled_from(["n1", "n2", "n3"]).map(NodeName)
TAINT_KEYS = st.sampled_from(["t", "u", "node.kubernetes.io/unschedulable"])
TAINTS = st.builds(
    lambda key, value, effect: Taint(key=key, value=value, effect=effect),
    TAINT_KEYS,
    st.sampled_from(["", "v"]),
    st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"]),
)
TOLERATIONS = st.builds(
    lambda key, operator, value, effect: Toleration(key=key, operator=operator, value=value, effect=effect),
    st.one_of(st.just(""), TAINT_KEYS),
    st.sampled_from(["", "Equal", "Exists"]),
    st.sampled_from(["", "v"]),
    st.sampled_from(["", "NoSchedule", "NoExecute"]),
)
NODES = st.builds(
    lambda name, labels, taints, cordoned, ready, dynamic: NodeInfo(
        name=name,
        hostname=name,
        labels={
            **labels,
            **({"nvidia.com/mig.config": "dynamic"} if dynamic else {}),
            "kubernetes.io/hostname": name,
        },
        taints=tuple(taints),
        cordoned=cordoned,
        ready=ready,
    ),
    NAMES,
    st.dictionaries(KEYS, VALUES),
    st.lists(TAINTS, max_size=2),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
OPERATORS = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Sounds"]


def requirement(keys: Any, values: Any) -> Any:
    return st.builds(
        lambda key, operator, listed: NodeSelectorRequirement(key=key, operator=operator, values=tuple(listed)),
        keys,
        st.sampled_from(OPERATORS),
        st.lists(values, max_size=2),
    )


TERMS = st.builds(
    lambda labels, fields: NodeSelectorTerm(match_expressions=tuple(labels), match_fields=tuple(fields)),
    st.lists(requirement(KEYS, VALUES), max_size=2),
    st.lists(requirement(st.sampled_from(["metadata.name", "a"]), NAMES), max_size=1),
)
CONSTRAINTS = st.builds(
    lambda selector, terms, tolerations: NodeConstraints(
        tuple(sorted(selector.items())), terms if terms is None else tuple(terms), tuple(tolerations)
    ),
    st.dictionaries(KEYS, VALUES, max_size=1),
    st.one_of(st.none(), st.lists(TERMS, max_size=2)),
    st.lists(TOLERATIONS, max_size=2),
)
CHANGES = st.lists(st.one_of(NODES, NAMES), min_size=1, max_size=8)


@given(CHANGES, st.lists(CONSTRAINTS, min_size=1, max_size=4))
@settings(deadline=None, max_examples=examples(500))
def test_it_agrees_with_the_filters_after_every_change(changes: list[Any], asked: list[NodeConstraints]) -> None:
    index = NodeIndex()
    nodes: dict[NodeName, NodeInfo] = {}
    for change in changes:
        if isinstance(change, NodeInfo):
            nodes[change.name] = change
            index.put(change)
        else:
            nodes.pop(change, None)
            index.remove(change)
        for constraints in asked:
            selected, open_to = index.selected_nodes(constraints), index.open_to(constraints)
            assert index.names(selected) == {
                name for name, node in nodes.items() if admits_node(constraints, name, node.labels)
            }
            assert index.names(open_to) == {name for name, node in nodes.items() if not find_refusal(constraints, node)}


def cluster(count: int) -> NodeIndex:
    index = NodeIndex()
    for number in range(count):
        labels = {"nvidia.com/mig.config": "dynamic", "kubernetes.io/hostname": f"n{number}", "cores": str(number)}
        taints = (Taint(key="team", value=str(number), effect="NoSchedule"),)
        index.put(NodeInfo(name=NodeName(f"n{number}"), hostname=f"n{number}", labels=labels, taints=taints))
    return index


def many_terms(prefix: str, count: int) -> NodeConstraints:
    tests = [NodeSelectorRequirement(key="zone", operator="In", values=(f"{prefix}-{i}",)) for i in range(count)]
    return NodeConstraints(terms=tuple(NodeSelectorTerm(match_expressions=(test,)) for test in tests))


def test_what_constraints_cost_does_not_grow_with_the_nodes() -> None:
    costs = set()
    for count in (10, 1000):
        index = cluster(count)
        assert index.selected_nodes(many_terms("a", 500)) == 0
        costs.add(index.cost)
    assert len(costs) == 1


def test_what_was_answered_costs_nothing_until_a_label_that_it_asks_for_changes() -> None:
    index = cluster(1000)
    asked = [many_terms(str(pod), 500) for pod in range(300)]
    for constraints in asked:
        index.open_to(constraints)
    first = index.cost
    equal = [many_terms(str(pod), 500) for pod in range(300)]
    for constraints in equal:
        index.open_to(constraints)
    labels = {"nvidia.com/mig.config": "dynamic", "kubernetes.io/hostname": "n1", "other": "label"}
    taints = (Taint(key="team", value="1", effect="NoSchedule"),)
    index.put(NodeInfo(name=NodeName("n1"), hostname="n1", labels=labels, taints=taints))
    for constraints in asked:
        index.open_to(constraints)
    assert index.cost == first
    index.put(NodeInfo(name=NodeName("n1"), hostname="n1", labels={**labels, "zone": "7-7"}, taints=taints))
    assert index.names(index.open_to(asked[7])) == frozenset()
    assert index.names(index.selected_nodes(asked[7])) == {"n1"}
    assert index.cost > first


def test_a_toleration_is_not_held_against_every_taint() -> None:
    index = cluster(1000)
    own = NodeConstraints(tolerations=tuple(Toleration(key="team", value=str(number)) for number in range(200)))
    assert len(index.names(index.open_to(own))) == 200
    assert index.cost < 2000
