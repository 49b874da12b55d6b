"""The file of node groups is read strictly."""

import pytest

from tessera.api.nodes.node_groups import parse_node_groups
from tessera.kube.resources import Taint

FULL = """
groups:
  - name: a100
    selector: {node.kubernetes.io/instance-type: p4d.24xlarge}
    cards: {model: A100-40GB, count: 8}
    labels: {nvidia.com/gpu.product: NVIDIA-A100-SXM4-40GB}
    taints: [{key: nvidia.com/gpu, value: "true"}]
    allocatable: {cpu: 90500m, memory: 1000Gi, ephemeral-storage: 10}
    max: 4
  - {name: a30, selector: {pool: a30}, cards: {model: a30}}
"""


def test_all_fields() -> None:
    large, small = parse_node_groups(FULL)
    assert (large.cards.count, large.geometry.family, large.most) == (8, "A100-40GB", 4)
    assert large.all_labels() == {
        "node.kubernetes.io/instance-type": "p4d.24xlarge",
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
    }
    assert large.kept_taints() == (Taint(key="nvidia.com/gpu", value="true", effect="NoSchedule"),)
    assert large.amounts() == {"cpu": 90500, "memory": 1000 * 2**30, "ephemeral-storage": 10}
    assert (small.cards.count, small.most, small.amounts()) == (1, 10, {})


@pytest.mark.parametrize(
    ("cards", "devices"),
    [
        ("{model: A100-40GB, count: 8}", None),
        ("{model: A100-40GB, count: 8, kind: whole}", ("nvidia.com/gpu", 8)),
        ("{model: L40S, count: 4, kind: whole}", ("nvidia.com/gpu", 4)),
        ("{model: T4, count: 2, kind: shares, replicas: 4}", ("nvidia.com/gpu.shared", 8)),
        ("{model: T4, count: 64, kind: shares, replicas: 16}", ("nvidia.com/gpu.shared", 256)),
    ],
)
def test_nodes_offer_slices_whole_cards_or_shares(cards: str, devices: tuple[str, int] | None) -> None:
    (group,) = parse_node_groups(f"groups: [{{name: a, selector: {{pool: a}}, cards: {cards}}}]")
    assert group.devices == devices


#: Fields that no node can have, each with a part of the message; also the chart refuses them.
IMPOSSIBLE = [
    ("selector: {a b/c d: x y}", 'selector: "a b/c d": a key is at most 63 letters'),
    ("selector: {pool: x y}", 'selector: pool: "x y": a value is empty, or at most 63 letters'),
    ("selector: {Upper.Case/pool: a}", 'selector: "Upper.Case/pool": a key is'),
    ("selector: {/pool: a}", 'selector: "/pool": a key is'),
    ("selector: {example.com/: a}", 'selector: "example.com/": a key is'),
    ("selector: {a/b/c: a}", 'selector: "a/b/c": a key is'),
    ("selector: {-pool: a}", 'selector: "-pool": a key is'),
    (f"selector: {{{'a' * 64}: a}}", "a key is at most 63 letters"),
    ("labels: {zone: b-}", 'labels: zone: "b-": a value is'),
    ("labels: {pool: b}", 'labels: pool: "b": selector says "a"; a node has one value for each'),
    ("taints: [{key: x}, {key: a b}]", 'taints[1].key: "a b": a key is'),
    ("taints: [{key: a, value: x y}]", 'taints[0].value: "x y": a value is'),
    ("allocatable: {cpu: '-4'}", 'allocatable: cpu: "-4": an amount is 0 or more'),
    ("allocatable: {memory: -1}", 'allocatable: memory: "-1": an amount is 0 or more'),
    ("allocatable: {x y: 1}", 'allocatable: "x y": a key is'),
    ("allocatable: {cpu: much}", "allocatable: cpu: quantity 'much'"),
    (f"selector: {{{'b.' * 127}b/pool: a}}", "a key is at most 63 letters"),
]


@pytest.mark.parametrize(("more", "words"), IMPOSSIBLE)
def test_what_no_node_can_have_is_refused_by_group_field_value_and_rule(more: str, words: str) -> None:
    selector = "" if more.startswith("selector") else "selector: {pool: a}, "
    with pytest.raises(ValueError, match=r'^groups\.yaml: group "a": .*; correct the file$') as refused:
        parse_node_groups(f"groups: [{{name: a, {selector}{more}, cards: {{model: A100-40GB}}}}]", "groups.yaml")
    assert words in str(refused.value)


def test_labels_and_amounts_at_the_edge_of_the_rules_are_read() -> None:
    text = f"""
groups:
  - name: a
    selector: {{pool: a, {"b." * 126}b/{"c" * 63}: '', A_b.c-1: {"d" * 63}}}
    labels: {{pool: a}}
    allocatable: {{cpu: 0, example.com/Fast_disk: 2}}
    cards: {{model: A100-40GB}}
"""
    (group,) = parse_node_groups(text)
    assert (len(group.selector), group.amounts()) == (3, {"cpu": 0, "example.com/Fast_disk": 2})


@pytest.mark.parametrize("text", ["", "groups: []", "{}"])
def test_no_groups(text: str) -> None:
    assert parse_node_groups(text) == ()


GROUP = "name: a, selector: {pool: a}, cards: {model: A100-40GB}"


#: Files with a mistake, each with parts of the message; also the chart refuses those that are YAML.
MISTAKES: list[tuple[str, list[str]]] = [
    ("groups: [", ["groups.yaml", "not YAML"]),
    ("group: []", ["unknown field `group`"]),
    ("groups: [{name: a, cards: {model: A100-40GB}}]", ["missing required field `selector`", "$.groups[0]"]),
    ("groups: [{name: a, selector: {}, cards: {model: A100-40GB}}]", ["$.groups[0].selector"]),
    (
        "groups: [{name: A b, selector: {pool: a}, cards: {model: A100-40GB}}]",
        ['group "A b": name: "A b": a name is'],
    ),
    (f"groups: [{{{GROUP}, replicas: 2}}]", ["unknown field `replicas`"]),
    (f"groups: [{{{GROUP}, max: 101}}]", ["$.groups[0].max`: 101; correct the file"]),
    (
        f"groups: [{{{GROUP}, taints: [{{key: a, effect: NoStart}}]}}]",
        ['$.groups[0].taints[0].effect`: "NoStart"; correct'],
    ),
    (f"groups: [{{{GROUP}, taints: [{{key: a, operator: Exists}}]}}]", ["unknown field `operator`"]),
    (f"groups: [{{{GROUP}, labels: {{pool: 5}}}}]", ["$.groups[0].labels"]),
    (f"groups: [{{{GROUP}, labels: {{pool: {'a' * 64}}}}}]", ["$.groups[0].labels"]),
    (f"groups: [{{{GROUP}, allocatable: {{cpu: 1.5}}}}]", ["$.groups[0].allocatable"]),
    (f"groups: [{{{GROUP}, allocatable: {{cpu: '{'1' * 65}'}}}}]", ["$.groups[0].allocatable"]),
    (f"groups: [{{{GROUP}, allocatable: {{cpu: 1e31}}}}]", ["1e31"]),
    (f"groups: [{', '.join(f'{{{GROUP}}}'.replace('name: a', f'name: a{n}') for n in range(51))}]", ["$.groups"]),
    (f"groups: [{{{GROUP}, allocatable: {{cpu: much}}}}]", ['group "a"', "much"]),
    (f"groups: [{{{GROUP}}}, {{{GROUP}}}]", ['two groups are named "a"']),
    (
        "groups: [{name: a, selector: {pool: a}, cards: {model: A100-50GB}}]",
        ['group "a"', "A100-50GB", "A100-40GB"],
    ),
    ("groups: [{name: a, selector: {pool: a}, cards: {model: T4}}]", ['group "a"', "T4", "no MIG"]),
    ("groups: [{name: a, selector: {pool: a}, cards: {model: L40S}}]", ['group "a"', "L40S"]),
    (
        "groups: [{name: a, selector: {pool: a}, cards: {model: T4, kind: whole, replicas: 2}}]",
        ['group "a"', "kind whole with replicas 2: replicas of 2 or more are stated for kind shares"],
    ),
    ("groups: [{name: a, selector: {pool: a}, cards: {model: T4, kind: shares}}]", ["kind shares with replicas 1"]),
    (
        "groups: [{name: a, selector: {pool: a}, cards: {model: T4, kind: half}}]",
        ['$.groups[0].cards.kind`: "half"; correct'],
    ),
    (
        "groups: [{name: a, selector: {pool: a}, cards: {model: A100-40GB, count: 65}}]",
        ["$.groups[0].cards.count`: 65; correct"],
    ),
]


@pytest.mark.parametrize(("text", "words"), MISTAKES)
def test_a_mistake_is_named_with_its_place(text: str, words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"^ConfigMap tessera-node-groups: groups\.yaml: ") as refused:
        parse_node_groups(text)
    for word in words:
        assert word in str(refused.value)
