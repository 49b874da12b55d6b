"""Admission of pods in a cluster with cards of every kind; a second review changes nothing."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.names import QUOTA_RESOURCE
from tessera.api.nodes.node_cards import count_label
from tessera.api.nodes.offers import NodeOffer, OfferKind, placement_offers
from tessera.kube.resources import Node, NodeStatus, ObjectMeta
from tessera.webhook.base import PodRefused
from tessera.webhook.capabilities import Capabilities, GpuNode, read_gpu_node
from tessera.webhook.decision import decide_admission
from tessera.webhook.pod_json import apply_operations

A100 = {"product": "NVIDIA A100-SXM4-40GB", "card_memory_mib": 40960, "compute_capability": "8.0", "ecc": True}
T4 = {"product": "Tesla T4", "card_memory_mib": 15360, "compute_capability": "7.5", "ecc": True}
GATE = "instaslice.redhat.com/accelerator"
WHOLE, SHARE, SLICE, DYNAMIC = OfferKind.WHOLE, OfferKind.SHARE, OfferKind.SLICE, OfferKind.DYNAMIC_SLICE


def offer(card: dict[str, Any], resource: str, kind: OfferKind, count: int, memory: int = 0, **more: Any) -> NodeOffer:
    gib = memory * 1024 or card["card_memory_mib"]
    profile = resource.removeprefix("nvidia.com/mig-") if kind in {SLICE, DYNAMIC} else ""
    return NodeOffer(resource=resource, kind=kind, count=count, memory_mib=gib, profile=profile, **(card | more))


#: Node -> value of its label nvidia.com/mig.config, and what it offers.
CLUSTER: dict[str, tuple[str, list[NodeOffer]]] = {
    "whole": ("all-disabled", [offer(A100, "nvidia.com/gpu", WHOLE, 8, nvlink=True)]),
    "time": (
        "all-disabled",
        [offer(A100, "nvidia.com/gpu.shared", SHARE, 16, 10, replicas=4, one_per_request=True)],
    ),
    "small": ("", [offer(T4, "nvidia.com/gpu", WHOLE, 4)]),
    "fixed": (
        "all-balanced",
        [offer(A100, "nvidia.com/mig-1g.5gb", SLICE, 8, 5), offer(A100, "nvidia.com/mig-2g.10gb", SLICE, 4, 10)],
    ),
    "half": (
        "dynamic-half",
        [
            offer(A100, "nvidia.com/mig-2g.10gb", DYNAMIC, 12, 10),
            offer(A100, "nvidia.com/mig-3g.20gb", DYNAMIC, 8, 20),
            offer(A100, "nvidia.com/mig-4g.20gb", DYNAMIC, 4, 20),
            offer(A100, "nvidia.com/mig-1g.5gb.shared", SHARE, 14, 2, replicas=2, one_per_request=True),
        ],
    ),
}


def cluster(*names: str) -> Capabilities:
    found = []
    for name in names or CLUSTER:
        config, offers = CLUSTER[name]
        labels = {"kubernetes.io/hostname": name} | {count_label(each.product): "4" for each in offers}
        labels |= {"nvidia.com/mig.config": config} if config else {}
        amounts = {each.resource: str(each.count) for each in offers}
        node = Node(metadata=ObjectMeta(name=name, labels=labels), status=NodeStatus(allocatable=amounts))
        found.append(read_gpu_node(name, node, tuple(offers), None))
    return Capabilities.of(node for node in found if node is not None)


def nodes(capabilities: Capabilities) -> list[GpuNode]:
    return list(capabilities.nodes(capabilities.every))


def needing(limits: dict[str, Any] | None = None, /, **needs: str) -> dict[str, Any]:
    annotations = {f"tessera.dev/{key.replace('_', '-')}": value for key, value in needs.items()}
    container = (
        {"name": "main", "resources": {"limits": limits, "requests": dict(limits)}} if limits else {"name": "main"}
    )
    return {"metadata": {"name": "p", "annotations": annotations}, "spec": {"containers": [container]}}


def decided(pod: dict[str, Any], capabilities: Capabilities) -> Any:
    """The pod after its review; asked again on the result, nothing changes."""
    after = apply_operations(pod, decide_admission(pod, capabilities))
    assert list(decide_admission(after, capabilities)) == []
    return after


def summary(after: Any) -> tuple[str, str, str, str]:
    """Resource, gate, charge and the nodes that have the resource and are left."""
    limits = after["spec"]["containers"][0]["resources"]["limits"]
    (resource,) = limits.keys() - {QUOTA_RESOURCE}
    gated = "gated" if {"name": GATE} in after["spec"].get("schedulingGates", ()) else ""
    everything = cluster()
    left = [
        node
        for node in everything.nodes(everything.selected_by(after["spec"]))
        if resource in {each.resource for each in node.offers}
    ]
    return resource, gated, limits.get(QUOTA_RESOURCE, ""), " ".join(node.name for node in left)


@pytest.mark.parametrize(
    ("needs", "resource", "gated", "charge", "nodes"),
    [
        ({"gpu_memory": "5Gi"}, "mig-1g.5gb", "", "", "fixed"),
        ({"gpu_memory": "10Gi"}, "gpu.shared", "", "", "time"),
        ({"gpu_memory": "20Gi"}, "mig-3g.20gb", "gated", "20Gi", "half"),
        ({"gpu_memory": "24Gi"}, "gpu", "", "", "whole"),
        ({"gpu_memory": "2Gi"}, "mig-1g.5gb.shared", "", "", "half"),
        ({"product": "T4"}, "gpu", "", "", "small"),
        ({"nvlink": "true"}, "gpu", "", "", "whole"),
        ({"compute_capability": "<8.0", "ecc": "true"}, "gpu", "", "", "small"),
    ],
)
def test_requirements_become_the_smallest_offer(
    needs: dict[str, str], resource: str, gated: str, charge: str, nodes: str
) -> None:
    after = decided(needing(**needs), cluster())
    assert summary(after) == (f"nvidia.com/{resource}", gated, charge, nodes)
    annotations = after["metadata"]["annotations"]
    assert annotations["tessera.dev/chosen-resource"] == f"nvidia.com/{resource}"
    assert "is the smallest that fulfils" in annotations["tessera.dev/chosen-resource-reason"]


def test_a_slice_that_stands_goes_before_one_that_would_have_to_be_made_and_its_pod_stays_there() -> None:
    after = decided(needing(gpu_memory="10Gi"), cluster("fixed", "half", "whole"))
    assert summary(after) == ("nvidia.com/mig-2g.10gb", "", "", "fixed")


def test_without_a_fixed_one_the_same_slice_is_made_on_demand() -> None:
    after = decided(needing(gpu_memory="10Gi"), cluster("half", "whole"))
    assert summary(after)[:3] == ("nvidia.com/mig-2g.10gb", "gated", "10Gi")


def test_a_pod_that_names_the_resource_is_served_on_demand_first() -> None:
    after = decided(needing({"nvidia.com/mig-2g.10gb": "1"}), cluster())
    assert summary(after)[:3] == ("nvidia.com/mig-2g.10gb", "gated", "10Gi")


def test_a_share_goes_before_a_whole_card_where_no_slice_is_left() -> None:
    after = decided(needing(gpu_memory="10Gi"), cluster("time", "whole"))
    assert summary(after)[0] == "nvidia.com/gpu.shared"


def test_what_the_cluster_does_not_have_is_refused_with_what_it_has() -> None:
    with pytest.raises(PodRefused) as caught:
        decide_admission(needing(gpu_memory="80Gi"), cluster("whole", "small"))
    for fact in (
        "no GPU of the cluster fulfils memory 80Gi",
        "the most memory that one has is 40Gi",
        "The cluster has 8 nvidia.com/gpu",
        "(whole card of NVIDIA A100-SXM4-40GB: 40Gi, compute capability 8.0, ECC, NVLink)",
        ", 4 nvidia.com/gpu (whole card of Tesla T4: 15Gi, compute capability 7.5, ECC)",
    ):
        assert fact in str(caught.value)


# -- requests above one ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resource", ["nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb.shared"])
@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_more_than_one_share_is_refused(resource: str, field: str) -> None:
    pod = needing()
    limits = {resource: "2"}
    pod["spec"][field] = [{"name": "greedy", "resources": {"limits": limits, "requests": limits}}]
    with pytest.raises(PodRefused) as caught:
        decide_admission(pod, cluster())
    for fact in (
        'container "greedy": ',
        f"asks for 2 of {resource}",
        "every node that has it gives a container one share at most",
        "(failRequestsGreaterThanOne, or MPS)",
        "ask for one",
        "several shares give no larger part of a card",
    ):
        assert fact in str(caught.value)


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"nvidia.com/gpu.shared": "1"}, id="one"),
        pytest.param({"nvidia.com/gpu": "4"}, id="whole cards"),
        pytest.param({"nvidia.com/nothing": "4"}, id="nobody's resource"),
        pytest.param({"nvidia.com/gpu.shared": "two"}, id="no quantity"),
    ],
)
def test_what_a_node_may_serve_is_let_in(limits: dict[str, str]) -> None:
    pod = needing(limits)
    assert decided(pod, cluster()) == pod


def test_one_node_that_allows_it_is_enough() -> None:
    generous = offer(A100, "nvidia.com/gpu.shared", SHARE, 16, 10, replicas=4)
    node = Node(metadata=ObjectMeta(name="generous", labels={"rack": "b"}))
    other = read_gpu_node("generous", node, (generous,), None)
    silent = read_gpu_node("silent", Node(status=NodeStatus(allocatable={"nvidia.com/gpu.shared": "4"})), (), None)
    assert other is not None
    assert silent is not None
    pod = needing({"nvidia.com/gpu.shared": "2"})
    for more in (other, silent):
        known = Capabilities.of([*nodes(cluster()), more])
        assert decided(pod, known) == pod
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "time"}
    with pytest.raises(PodRefused, match="one share at most"):
        decide_admission(pod, Capabilities.of([*nodes(cluster()), other]))


# -- any pod, any cluster --------------------------------------------------------------------------------------------

RESOURCES = sorted({each.resource for _, offers in CLUSTER.values() for each in offers})
LIMITS = st.dictionaries(st.sampled_from([*RESOURCES, "cpu"]), st.sampled_from(["0", "1", "2"]), max_size=2)
NEEDS = st.fixed_dictionaries(
    {},
    optional={
        "tessera.dev/gpu-memory": st.sampled_from(["1Gi", "5Gi", "10Gi", "20Gi", "40Gi", "80Gi"]),
        "tessera.dev/nvlink": st.sampled_from(["true", "false"]),
        "tessera.dev/ecc": st.just("true"),
        "tessera.dev/product": st.sampled_from(["A100", "T4", "A100|T4"]),
    },
)
CONTAINER = st.builds(
    lambda limits: {"resources": {"limits": limits, "requests": dict(limits)}} if limits else {},
    LIMITS,
)
TESTS = st.builds(
    lambda key, sign, values: {"key": key, "operator": sign, **({"values": values} if sign.endswith("In") else {})},
    st.sampled_from(["nvidia.com/mig.config", "kubernetes.io/hostname"]),
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
    st.lists(st.sampled_from([*CLUSTER, "dynamic-half", "all-disabled"]), min_size=1, max_size=2),
)
TERMS = st.lists(
    st.builds(lambda tests: {"matchExpressions": tests}, st.lists(TESTS, max_size=2)), min_size=1, max_size=2
)
AFFINITY = st.builds(
    lambda terms: {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}},
    TERMS,
)


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    containers = draw(st.lists(CONTAINER, min_size=1, max_size=2))
    spec: dict[str, Any] = {"containers": [{"name": f"c{n}", **each} for n, each in enumerate(containers)]}
    if draw(st.booleans()):
        spec["affinity"] = draw(AFFINITY)
    if draw(st.booleans()):
        spec["initContainers"] = [{"name": "i", **draw(CONTAINER)}]
    return {"metadata": {"name": "p", "annotations": draw(NEEDS)}, "spec": spec}


@given(pod=pods(), names=st.sets(st.sampled_from(sorted(CLUSTER)), min_size=1))
def test_a_second_look_changes_nothing_and_nothing_that_was_written_is_lost(
    pod: dict[str, Any], names: set[str]
) -> None:
    known = cluster(*sorted(names))
    try:
        first = decide_admission(pod, known)
    except PodRefused:
        return
    after = apply_operations(pod, first)
    assert list(decide_admission(after, known)) == []
    assert after["metadata"]["annotations"].items() >= pod["metadata"]["annotations"].items()
    left = set(known.names(known.selected_by(after["spec"])))
    assert left <= set(known.names(known.selected_by(pod["spec"])))
    chosen = after["metadata"]["annotations"].get("tessera.dev/chosen-resource")
    if chosen is not None:
        assert_enough(after, chosen, known, left)


def assert_enough(after: dict[str, Any], chosen: str, known: Capabilities, left: set[str]) -> None:
    """On every node that is left and has the chosen resource it is of one kind, and the pod is gated accordingly."""
    kinds = {
        each.kind
        for node in nodes(known)
        if node.name in left
        for each in placement_offers(node.offers)
        if each.resource == chosen
    }
    assert len(kinds) == 1
    on_demand = kinds.pop().name == "DYNAMIC_SLICE"
    assert on_demand == ({"name": GATE} in after["spec"].get("schedulingGates", ()))
