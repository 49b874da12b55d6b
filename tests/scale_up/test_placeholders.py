"""The pods that autoscalers see in place of gated ones."""

import msgspec
import pytest

from tessera.api.nodes.node_groups import NodeGroup, parse_node_groups
from tessera.kube.resources import Pod
from tessera.scale_up.node_requests import (
    PASSED_HOSTS,
    asks_for_cards,
    can_exclude,
    group_version,
    has_cards,
    is_placeholder,
    placeholder_labels,
    pod_spec,
)


def group(selector: str = "pool: a", kind: str = "slices") -> NodeGroup:
    taints = "taints: [{key: gpu, value: x}]"
    text = f"name: a, selector: {{{selector}}}, cards: {{model: A100-40GB, count: 4, kind: {kind}}}, {taints}"
    return parse_node_groups(f"groups: [{{{text}}}]")[0]


def pod(*hosts: str, selector: str = "pool: a", kind: str = "slices") -> Pod:
    spec = pod_spec(group(selector, kind), "pause:1", hosts, has_ready=bool(hosts), least={})
    return msgspec.convert({"metadata": {"labels": placeholder_labels("a")}, "spec": spec}, Pod)


def test_for_a_group_without_nodes_it_asks_for_all_cards_of_one() -> None:
    made = pod()
    (container,) = made.spec.containers
    assert container.resources.limits == container.resources.requests
    assert container.resources.limits["nvidia.com/gpu"] == "4"
    assert has_cards(made)
    assert made.spec.node_selector == {"pool": "a"}
    assert made.spec.affinity is None
    assert [(each.key, each.value, each.effect) for each in made.spec.tolerations] == [("gpu", "x", "NoSchedule")]


def test_for_a_group_with_nodes_it_asks_for_a_node_of_its_own() -> None:
    made = pod("h2", "h1")
    assert not has_cards(made)
    affinity = made.spec.affinity
    assert affinity is not None
    assert affinity.node_affinity is not None
    assert affinity.node_affinity.required is not None
    (term,) = affinity.node_affinity.required.node_selector_terms
    assert [(test.key, test.operator, test.values) for test in term.match_expressions] == [
        ("kubernetes.io/hostname", "NotIn", ("h1", "h2"))
    ]
    assert affinity.pod_anti_affinity is not None
    (repelled,) = affinity.pod_anti_affinity.required
    assert repelled.topology_key == "kubernetes.io/hostname"
    assert repelled.label_selector is not None
    assert repelled.label_selector.match_labels.items() <= made.metadata.labels.items()


@pytest.mark.parametrize(
    ("selector", "ready", "cards"),
    [
        ("pool: a", False, True),
        ("pool: a", True, False),
        ("karpenter.sh/nodepool: a", True, True),
        ("karpenter.k8s.aws/instance-family: p4d", True, True),
    ],
)
def test_the_form_that_the_groups_autoscaler_understands(selector: str, ready: bool, cards: bool) -> None:
    assert asks_for_cards(group(selector), has_ready=ready) == cards


def test_a_group_with_more_nodes_than_a_placeholder_can_name_gets_none() -> None:
    most = int(PASSED_HOSTS)
    assert can_exclude(group(), most)
    assert not can_exclude(group(), most + 1)
    assert can_exclude(group("karpenter.sh/nodepool: a"), most + 1)


def test_a_placeholder_with_the_longest_names_of_all_nodes_is_no_third_of_the_largest_object() -> None:
    spec = pod_spec(
        group(kind="whole"), "pause:1", (f"{n:063}" for n in range(int(PASSED_HOSTS))), has_ready=True, least={}
    )
    assert len(msgspec.json.encode(spec)) < 1_500_000 / 3


def test_it_never_starts_and_has_no_rights() -> None:
    spec = pod_spec(group(), "pause:1", (), has_ready=False, least={})
    (volume,) = spec["volumes"]
    assert volume["configMap"] == {"name": "tessera-placeholder-never-starts"}, (
        "kubelet waits for it, and nobody makes it"
    )
    assert spec["containers"][0]["volumeMounts"][0]["name"] == volume["name"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True


def test_other_pods_are_no_placeholders() -> None:
    assert is_placeholder(placeholder_labels("a"))
    assert not is_placeholder({"tessera.dev/node-group": "a"})
    assert not is_placeholder({"app.kubernetes.io/name": "tessera-placeholder"})


@pytest.mark.parametrize(
    ("selector", "rule"),
    [
        ("pool: a", ("kubernetes.io/hostname", "NotIn", ("h1", "h2"))),
        ("karpenter.sh/nodepool: a", ("nvidia.com/gpu.machine", "DoesNotExist", ())),
    ],
)
def test_for_a_group_with_whole_cards_it_asks_for_those_of_a_new_node(
    selector: str, rule: tuple[str, str, tuple[str, ...]]
) -> None:
    made = pod("h2", "h1", selector=selector, kind="whole")
    assert made.spec.containers[0].resources.limits["nvidia.com/gpu"] == "4"
    affinity = made.spec.affinity
    assert affinity is not None
    assert affinity.node_affinity is not None
    assert affinity.node_affinity.required is not None
    (term,) = affinity.node_affinity.required.node_selector_terms
    assert [(test.key, test.operator, test.values) for test in term.match_expressions] == [rule]
    assert pod(selector=selector, kind="whole").spec.affinity is None


@pytest.mark.parametrize("ready", [True, False])
def test_it_asks_for_what_its_pods_ask_for(ready: bool) -> None:
    least = {"cpu": 5_000_000, "memory": 1 << 40, "ephemeral-storage": 10, "example.com/fpga": 2}
    spec = pod_spec(group(), "pause:1", ["h"] if ready else [], has_ready=ready, least=least)
    assert spec["containers"][0]["resources"]["requests"] == {
        "cpu": "5000000m",
        "memory": f"{1 << 40}",
        "ephemeral-storage": "10",
        "example.com/fpga": "2",
        **({} if ready else {"nvidia.com/gpu": "4"}),
    }


def test_a_placeholder_for_larger_pods_is_told_from_one_before() -> None:
    assert group_version(group(), {"cpu": 1}) != group_version(group(), {"cpu": 2})
    assert group_version(group(), {"cpu": 1, "memory": 2}) == group_version(group(), {"memory": 2, "cpu": 1})
