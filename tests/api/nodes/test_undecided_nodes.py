"""A node that has just registered may turn out to have GPUs, until its features are read or its time is over."""

import pytest

from tessera.api.nodes.node_cards import DISCOVERY_SECONDS, UndecidedNodes
from tessera.clock import rfc3339
from tessera.kube.cache import EventKind, WatchEvent
from tessera.kube.resources import Node, NodeStatus, ObjectMeta

NOW = 1_800_000_000.0
FEATURE = "feature.node.kubernetes.io/"
DISCOVERED = "nfd.node.kubernetes.io/feature-labels"


def node(
    name: str = "n",
    *labels: str,
    age: float = 10.0,
    capacity: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> Node:
    return Node(
        metadata=ObjectMeta(
            name=name,
            labels=dict.fromkeys(labels, "true"),
            annotations=annotations or {},
            creation_timestamp=rfc3339(NOW - age),
        ),
        status=NodeStatus(capacity={"cpu": "4"} | (capacity or {})),
    )


def discovered(*labels: str, name: str = "n", by: str = DISCOVERED) -> Node:
    """A node whose labels feature discovery wrote."""
    return node(name, *labels, annotations={by: ",".join(label.removeprefix(FEATURE) for label in labels)})


def changed(nodes: UndecidedNodes, item: Node, kind: EventKind = EventKind.MODIFIED) -> None:
    nodes.node_changed(WatchEvent(kind, item))


@pytest.mark.parametrize(
    ("item", "undecided"),
    [
        pytest.param(node(), True, id="no discovery yet"),
        pytest.param(node("n", "topology.kubernetes.io/zone"), True, id="labels of the cloud alone"),
        pytest.param(discovered(FEATURE + "cpu-cpuid.AVX512F"), False, id="discovery found no GPU"),
        pytest.param(node("n", FEATURE + "cpu-cpuid.AVX512F"), True, id="a label of the node pool's template"),
        pytest.param(discovered(FEATURE + "cpu-x", by="net." + DISCOVERED), False, id="an instance of discovery"),
        pytest.param(discovered(FEATURE + "cpu-x", by="not-" + DISCOVERED), True, id="somebody's annotation"),
        pytest.param(discovered(FEATURE + "pci-1a03.present"), False, id="discovery found another vendor's card"),
        pytest.param(discovered(FEATURE + "pci-10de.present"), True, id="discovery found a GPU that nobody has read"),
        pytest.param(discovered(FEATURE + "pci-0302_10de_20b0.present"), True, id="discovery names the device too"),
        pytest.param(discovered(FEATURE + "cpu-x", "nvidia.com/gpu.present"), True, id="the operator's label"),
        pytest.param(node("n", "cloud.google.com/gke-accelerator"), True, id="an autoscaler's label"),
        pytest.param(node(capacity={"nvidia.com/gpu": "0"}), True, id="a device plugin that has listed nothing"),
        pytest.param(node(capacity={"nvidia.com/gpu": "4"}), False, id="kubelet counts cards"),
        pytest.param(node(annotations={"tessera.dev/offers": "[]"}), False, id="the agent has told"),
        pytest.param(node(age=DISCOVERY_SECONDS - 1), True, id="before its time is over"),
        pytest.param(node(age=DISCOVERY_SECONDS), False, id="its time is over"),
        pytest.param(Node(metadata=ObjectMeta(name="n")), False, id="no time of registration"),
    ],
)
def test_whether_a_new_node_may_turn_out_to_have_gpus(item: Node, undecided: bool) -> None:
    nodes = UndecidedNodes(lambda: NOW)
    changed(nodes, item, EventKind.ADDED)
    assert nodes.any_undecided() is undecided


def test_each_node_counts_until_it_is_read_or_gone_or_old() -> None:
    now = NOW
    nodes = UndecidedNodes(lambda: now)
    for name, age in (("young", 0.0), ("older", 600.0), ("goes", 0.0)):
        changed(nodes, node(name, age=age), EventKind.ADDED)
    changed(nodes, discovered(FEATURE + "cpu-x", name="young"))
    changed(nodes, node("goes"), EventKind.DELETED)
    assert nodes.any_undecided()
    now += 300.0
    assert not nodes.any_undecided()
    changed(nodes, node("older", age=600.0))
    assert not nodes.any_undecided()
