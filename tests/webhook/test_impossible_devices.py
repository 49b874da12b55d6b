"""Whole cards and shares that no node has, even if it were empty, are refused; what one might have is admitted."""

import re
from collections.abc import Sequence
from typing import Any

import pytest

from tessera.api.nodes.node_groups import NodeGroup, parse_node_groups
from tessera.api.nodes.offers import NodeOffer, OfferKind
from tessera.kube.resources import Node
from tessera.kube.resources.meta import ObjectMeta
from tessera.kube.resources.nodes import NodeStatus
from tessera.webhook.base import PodRefused, Rule
from tessera.webhook.capabilities import Capabilities, GpuNode, read_gpu_node
from tessera.webhook.device_admission import decide_device_admission, requested_devices

WHOLE, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"


def node(name: str, capacity: dict[str, str], *offers: NodeOffer, **labels: str) -> GpuNode:
    status = NodeStatus(capacity=capacity, allocatable=capacity)
    found = read_gpu_node(name, Node(metadata=ObjectMeta(name=name, labels=labels), status=status), offers, None)
    assert found is not None
    return found


def offer(resource: str, kind: OfferKind, count: int, replicas: int = 1) -> NodeOffer:
    return NodeOffer(
        resource=resource,
        kind=kind,
        product="NVIDIA A100",
        card_memory_mib=40_960,
        memory_mib=40_960 // replicas,
        compute_capability="8.0",
        count=count,
        replicas=replicas,
    )


FOUR, EIGHT = node("four", {WHOLE: "4"}, pool="four"), node("eight", {WHOLE: "8"}, pool="eight")
SHARES = node("shares", {SHARED: "16"}, offer(SHARED, OfferKind.SHARE, 16, 4))


def container(**limits: int) -> dict[str, Any]:
    names = {"whole": WHOLE, "shared": SHARED}
    return {"name": "c", "resources": {"limits": {names[name]: str(count) for name, count in limits.items()}}}


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"containers": list(containers), **spec}}


def groups(*cards: str) -> Sequence[NodeGroup]:
    """Groups ``g0``, ``g1`` and so on, each with such cards and the label ``pool``."""
    listed = [
        f"{{name: g{n}, selector: {{pool: g{n}}}, cards: {{model: A100-40GB, {text}}}}}" for n, text in enumerate(cards)
    ]
    return parse_node_groups(f"groups: [{', '.join(listed)}]")


def is_gated(item: dict[str, Any], known: Capabilities) -> bool:
    return bool(decide_device_admission(item, known))


def refusal(item: dict[str, Any], *nodes: GpuNode) -> str:
    with pytest.raises(PodRefused) as refused:
        decide_device_admission(item, Capabilities.of(nodes))
    assert refused.value.rule is Rule.IMPOSSIBLE
    return str(refused.value)


def test_the_text_has_the_request_the_rule_the_largest_and_the_next_step() -> None:
    assert refusal(pod(container(whole=9)), FOUR, EIGHT) == (
        "spec.containers: no node could hold 9 x nvidia.com/gpu, even empty; all cards of a pod are on one node, and"
        " the largest holds 8 x nvidia.com/gpu: ask for no more, or divide the work among pods"
    )


def test_the_nodes_that_the_pod_selects_decide() -> None:
    why = refusal(pod(container(whole=8), nodeSelector={"pool": "four"}), FOUR, EIGHT)
    assert "no node that it selects could hold 8 x nvidia.com/gpu, even empty; " in why
    assert "and the largest holds 4 x nvidia.com/gpu: ask" in why
    assert is_gated(pod(container(whole=8), nodeSelector={"pool": "eight"}), Capabilities.of([FOUR, EIGHT]))


@pytest.mark.parametrize(
    ("item", "nodes"),
    [
        (pod(container(whole=8)), [EIGHT]),
        (pod(container(shared=16)), [SHARES]),
        (pod(container(shared=17)), [FOUR]),  # no node has shares yet
        (pod(container(whole=9), nodeSelector={"pool": "none"}), [SHARES]),  # no node has whole cards yet
        (pod(container(whole=9)), []),
        (pod(container(whole=8)), [node("sick", {WHOLE: "3"}, offer(WHOLE, OfferKind.WHOLE, 8))]),
        (pod(container(whole=9)), [EIGHT, node("starts", {}, **{"nvidia.com/gpu.present": "true"})]),
        (
            pod(container(whole=9)),
            [
                EIGHT,
                node("cut", {WHOLE: "1"}, **{"nvidia.com/mig.config": "x", "nvidia.com/mig.config.state": "pending"}),
            ],
        ),
    ],
)
def test_what_a_node_may_hold_is_admitted(item: dict[str, Any], nodes: list[GpuNode]) -> None:
    assert is_gated(item, Capabilities.of(nodes))


@pytest.mark.parametrize(
    ("item", "nodes", "largest"),
    [
        (pod(container(shared=17)), [FOUR, SHARES], "16 x nvidia.com/gpu.shared"),
        (pod(container(whole=5), container(whole=4)), [EIGHT], "8 x nvidia.com/gpu"),
        (
            pod(container(whole=3, shared=3)),
            [EIGHT, node("both", {WHOLE: "2", SHARED: "8"})],
            "2 x nvidia.com/gpu + 8 x nvidia.com/gpu.shared",
        ),
        (pod(container(whole=9)), [EIGHT, node("cut", {"nvidia.com/mig-1g.5gb": "7"})], "8 x nvidia.com/gpu"),
    ],
)
def test_what_no_node_holds_is_refused(item: dict[str, Any], nodes: list[GpuNode], largest: str) -> None:
    assert f"the largest holds {largest}: ask" in refusal(item, *nodes)


def test_a_node_that_is_gone_counts_no_more() -> None:
    known = Capabilities.of([FOUR, EIGHT])
    known.drop("eight")
    with pytest.raises(PodRefused, match="the largest holds 4 x"):
        decide_device_admission(pod(container(whole=8)), known)


def test_groups_that_an_autoscaler_can_make_count_like_nodes() -> None:
    known = Capabilities.of([FOUR])
    known.set_groups(groups("count: 16", "count: 8, kind: whole", "count: 8, kind: shares, replicas: 4"))
    assert is_gated(pod(container(whole=8)), known)
    assert is_gated(pod(container(shared=32)), known)
    for more, largest in (
        (container(whole=9), "new node of group g1, holds 8 x nvidia.com/gpu"),
        (container(shared=33), "new node of group g2, holds 32 x nvidia.com/gpu.sh"),
    ):
        with pytest.raises(
            PodRefused,
            match=r"no node could hold .* and the largest, a " + re.escape(largest),
        ):
            decide_device_admission(pod(more), known)
    known.set_groups(None)
    assert is_gated(pod(container(whole=9)), known)  # the groups cannot be read


@pytest.mark.parametrize(
    ("selector", "most", "largest"),
    [
        ({}, 16, "the largest, a new node of group g1, holds 16"),
        ({"pool": "four"}, 4, "the largest holds 4"),
        ({"pool": "g0"}, 8, "the largest, a new node of group g0, holds 8"),
        ({"zone": "a"}, 16, "the largest, a new node of group g1, holds 16"),  # a label that no group declares
        ({"gen": "one"}, 8, "the largest, a new node of group g0, holds 8"),
        ({"pool": "of the future"}, 16, "the largest, a new node of group g1, holds 16"),
    ],
)
def test_a_group_counts_unless_its_declared_labels_contradict_the_pods_selector(
    selector: dict[str, str], most: int, largest: str
) -> None:
    known = Capabilities.of([FOUR])
    known.set_groups(groups("count: 8, kind: whole}, labels: {gen: one", "count: 16, kind: whole}, labels: {gen: two"))
    terms = [
        {"matchExpressions": [{"key": key, "operator": "In", "values": ["x", value]}]}
        for key, value in selector.items()
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    for spec in ({"nodeSelector": selector}, {"affinity": {"nodeAffinity": required}} if selector else {}):
        assert is_gated(pod(container(whole=most), **spec), known)
        with pytest.raises(PodRefused, match=re.escape(largest + " x nvidia.com/gpu:")):
            decide_device_admission(pod(container(whole=most + 1), **spec), known)


def test_any_new_node_may_have_any_number() -> None:
    assert is_gated(pod(container(shared=500)), Capabilities.of([SHARES], any_new_nodes=True))


@pytest.mark.parametrize(
    ("init", "apps", "held"),
    [
        ([], [container(whole=2), container(whole=1)], {WHOLE: 3}),
        ([container(whole=4)], [container(whole=1)], {WHOLE: 4}),
        ([container(whole=1) | {"restartPolicy": "Always"}, container(whole=2)], [container(whole=1)], {WHOLE: 3}),
        ([], [container(shared=2), container()], {SHARED: 2}),
        ([], [{"name": "c", "resources": {"limits": {WHOLE: "x"}}}], {}),
        ([{"name": "c"}], [{"name": "c", "resources": None}], {}),
    ],
)
def test_a_pod_asks_for_what_its_containers_hold_at_a_time(
    init: list[dict[str, Any]], apps: list[dict[str, Any]], held: dict[str, int]
) -> None:
    assert requested_devices({"initContainers": init, "containers": apps}) == held
