"""The whole cards and shares of a node, from its agent's annotation or from labels."""

from typing import Any

import msgspec
import pytest

from tessera.api.nodes.offers import NodeOffer, OfferKind
from tessera.controller.objects.node_info import NodeDevices, read_devices
from tessera.kube.resources import Node
from tessera.limits import NODE_DEVICES

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"


def node(labels: dict[str, str] | None = None) -> Node:
    metadata: dict[str, Any] = {"name": "n1", "labels": labels or {}}
    return msgspec.convert({"metadata": metadata}, Node)


def offer(resource: str, kind: OfferKind, memory: int, replicas: int = 1) -> NodeOffer:
    return NodeOffer(
        resource=resource,
        kind=kind,
        product="NVIDIA A100-SXM4-40GB",
        card_memory_mib=40960,
        memory_mib=memory,
        compute_capability="8.0",
        count=8,
        replicas=replicas,
    )


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ({}, NodeDevices(GPU, "GPU", 4, 8, 0)),
        (
            {"nvidia.com/gpu.product": "NVIDIA-H100", "nvidia.com/gpu.memory": "81559"},
            NodeDevices(GPU, "NVIDIA-H100", 4, 8, 80),
        ),
        (
            {
                "nvidia.com/gpu.product": "NVIDIA-T4-SHARED",
                "nvidia.com/gpu.memory": "15360",
                "nvidia.com/gpu.replicas": "4",
            },
            NodeDevices(GPU, "NVIDIA-T4-SHARED", 4, 1, 4),
        ),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-MIG-1g.5gb"}, NodeDevices(GPU, "NVIDIA-A100-MIG-1g.5gb", 4, 1, 0)),
        ({"nvidia.com/gpu.memory": "9" * 40, "nvidia.com/gpu.replicas": "-1"}, NodeDevices(GPU, "GPU", 4, 8, 0)),
    ],
)
def test_labels_say_what_a_device_is(labels: dict[str, str], found: NodeDevices) -> None:
    assert read_devices(node(labels), {GPU: 4, "cpu": 64000}, ()) == (found,)


def test_the_annotation_of_the_agent_goes_before_labels() -> None:
    offers = [offer(GPU, OfferKind.WHOLE, 40960), offer(SHARED, OfferKind.SHARE, 10240, 4)]
    found = read_devices(node({"nvidia.com/gpu.product": "x"}), {GPU: 2, SHARED: 8}, offers)
    assert found == (
        NodeDevices(GPU, "NVIDIA A100-SXM4-40GB", 2, 8, 40),
        NodeDevices(SHARED, "NVIDIA A100-SXM4-40GB", 8, 1, 10),
    )


@pytest.mark.parametrize("allocatable", [{}, {"cpu": 1}, {GPU: 0}, {GPU: -3}])
def test_a_node_without_devices_has_none(allocatable: dict[str, int]) -> None:
    assert read_devices(node(), allocatable, ()) == ()


def test_a_node_that_claims_a_billion_cards_counts_up_to_the_limit() -> None:
    (found,) = read_devices(node(), {GPU: 10**9}, ())
    assert found.count == NODE_DEVICES
