"""Admission's view of nodes with GPUs, from their annotations, labels and allocatable resources."""

import logging
from typing import Any

import msgspec
import pytest

from tessera.api.instaslice import Instaslice
from tessera.api.nodes.offers import NodeOffer, OfferKind, encode_offers
from tessera.kube.cache import EventKind, WatchEvent
from tessera.kube.resources import Node, NodeStatus, ObjectMeta
from tessera.kube.resources.nodes import NodeSpec
from tessera.webhook.capabilities import Capabilities, GpuNode, read_gpu_node
from tessera.webhook.main import GpuNodeWatcher

TABLE = {
    name: {"placements": [{"size": 1, "start": 0}], "giProfileId": 20, "ciProfileId": 0}
    for name in ("1g.5gb+me", "2g.10gb")
}
GPU = {"gpuUuid": "GPU-1", "gpuName": "A100", "gpuMemory": "40Gi"}


def instaslice(name: str, *gpus: Any) -> Instaslice:
    status = {"nodeResources": {"nodeGpus": gpus, "migPlacement": TABLE}}
    return msgspec.convert({"metadata": {"name": name}, "status": status}, Instaslice)


def offer(resource: str, kind: OfferKind = OfferKind.WHOLE, **more: Any) -> NodeOffer:
    profile = resource.removeprefix("nvidia.com/mig-") if "mig-" in resource and kind is not OfferKind.SHARE else ""
    return NodeOffer(
        resource=resource,
        kind=kind,
        product="NVIDIA A100-SXM4-40GB",
        card_memory_mib=40960,
        memory_mib=40960,
        compute_capability="8.0",
        count=1,
        profile=profile,
        **more,
    )


def node(name: str, config: str = "", annotation: str = "", **allocatable: str) -> Node:
    labels = {"nvidia.com/mig.config": config} if config else {}
    annotations = {"tessera.dev/offers": annotation} if annotation else {}
    return Node(
        metadata=ObjectMeta(name=name, labels=labels, annotations=annotations),
        status=NodeStatus(
            allocatable={f"nvidia.com/{key.replace('_', '-')}": amount for key, amount in allocatable.items()}
        ),
    )


def seen(node: Node, *offers: NodeOffer, of: Instaslice | None = None) -> GpuNode:
    found = read_gpu_node(node.metadata.name, node, offers, of)
    assert found is not None
    return found


def test_a_card_that_does_not_answer_for_a_while_may_be_waited_for() -> None:
    assert seen(node("n"), of=instaslice("n", GPU)).on_demand == {"1g.5gb.me", "2g.10gb"}
    assert seen(node("n"), of=instaslice("n")).on_demand == {"1g.5gb.me", "2g.10gb"}


@pytest.mark.parametrize(
    ("found", "dynamic", "fixed"),
    [
        pytest.param(seen(node("n", "all-1g.5gb", mig_a="7", mig_b="0")), "", "a", id="a fixed layout"),
        pytest.param(seen(node("n", mig_c="1")), "", "c", id="no label"),
        pytest.param(seen(node("n", "dynamic", mig_d="7")), "", "", id="on demand, not yet reported"),
        pytest.param(
            seen(node("n", "dynamic", **{"mig_2g.10gb": "0"}), of=instaslice("n")),
            "1g.5gb.me 2g.10gb",
            "",
            id="reported",
        ),
        pytest.param(
            seen(node("n", "dynamic-half", mig_a="2", **{"mig_2g.10gb": "3"}), of=instaslice("n")),
            "1g.5gb.me 2g.10gb",
            "a",
            id="a layout of both kinds",
        ),
        pytest.param(
            seen(node("n", "dynamic-half"), offer("nvidia.com/mig-1g.5gb", OfferKind.DYNAMIC_SLICE)),
            "1g.5gb",
            "",
            id="said to be on demand",
        ),
        pytest.param(
            seen(
                node("n", "dynamic-half", **{"mig_1g.5gb": "2"}),
                offer("nvidia.com/mig-2g.10gb", OfferKind.SLICE),
                offer("nvidia.com/mig-1g.5gb", OfferKind.DYNAMIC_SLICE),
                of=instaslice("n"),
            ),
            "1g.5gb 1g.5gb.me",
            "2g.10gb",
            id="what is said goes before what is reported",
        ),
        pytest.param(
            seen(
                node("n"),
                offer("nvidia.com/mig-1g.5gb", OfferKind.DYNAMIC_SLICE),
                offer("nvidia.com/mig-1g.5gb", OfferKind.SLICE),
            ),
            "1g.5gb",
            "",
            id="never both",
        ),
        pytest.param(
            seen(node("n"), offer("nvidia.com/mig-1g.5gb.shared", OfferKind.SHARE, replicas=2)),
            "",
            "1g.5gb.shared",
            id="shares of slices",
        ),
    ],
)
def test_how_a_node_serves_a_profile(found: GpuNode, dynamic: str, fixed: str) -> None:
    assert found.on_demand == set(dynamic.split())
    assert found.fixed == set(fixed.split())


def test_what_a_node_gives_out_without_saying_of_which_cards() -> None:
    assert seen(node("n", gpu="8"), offer("nvidia.com/gpu")).undescribed == set()
    assert seen(node("n", gpu="8")).undescribed == {"nvidia.com/gpu"}
    assert seen(node("n"), of=instaslice("n")).undescribed == {"nvidia.com/mig-1g.5gb.me", "nvidia.com/mig-2g.10gb"}


def test_a_cordoned_node_counts_like_any_other() -> None:
    open_, cordoned = (
        Node(metadata=ObjectMeta(name="n"), spec=NodeSpec(unschedulable=closed)) for closed in (False, True)
    )
    assert seen(cordoned, offer("nvidia.com/gpu")) == seen(open_, offer("nvidia.com/gpu"))


def test_a_node_without_gpus_is_none() -> None:
    assert (
        read_gpu_node("n", Node(status=NodeStatus(allocatable={"cpu": "4", "nvidia.com/gpu": "0"})), (), None) is None
    )


# -- events ----------------------------------------------------------------------------------------------------------


class Changes(Capabilities):
    """Counts what is taken in."""

    count = 0

    def put(self, node: GpuNode) -> None:
        self.count += 1
        super().put(node)


def put(gpus: GpuNodeWatcher, item: Node, kind: EventKind = EventKind.MODIFIED) -> None:
    gpus.node_changed(WatchEvent(kind, item))


def test_a_heartbeat_changes_nothing() -> None:
    changes = Changes()
    gpus = GpuNodeWatcher(changes)
    said = encode_offers([offer("nvidia.com/gpu")])
    put(gpus, node("n", "", said, gpu="0"))
    (before,) = gpus.values()
    put(gpus, node("n", "", said, gpu="1"))
    (after,) = gpus.values()
    assert changes.count == 1
    assert after.offers is before.offers, "what is unchanged is not decoded again"


def test_a_malformed_annotation_is_told_once_and_means_no_offers(caplog: pytest.LogCaptureFixture) -> None:
    gpus = GpuNodeWatcher(Changes())
    with caplog.at_level(logging.WARNING):
        for gpu in "123":
            put(gpus, node("n", "", "[{]", gpu=gpu))
    (found,) = gpus.values()
    assert found.offers == ()
    assert found.undescribed == {"nvidia.com/gpu"}
    (told,) = caplog.messages
    assert told.startswith("node n: annotation tessera.dev/offers: ")


def test_a_node_and_its_object_come_and_go() -> None:
    known = Capabilities()
    gpus = GpuNodeWatcher(known)
    gpus.instaslice_changed(WatchEvent(EventKind.ADDED, instaslice("n")))
    put(gpus, node("m", "all-1g.5gb", **{"mig_1g.5gb": "7"}), EventKind.ADDED)
    assert known.on_demand.keys() == {"1g.5gb.me", "2g.10gb"}
    assert known.fixed.keys() == {"1g.5gb"}
    put(gpus, node("m"), EventKind.DELETED)
    gpus.instaslice_changed(WatchEvent(EventKind.DELETED, instaslice("n")))
    assert (known.on_demand, known.fixed, known.names(known.every)) == ({}, {}, [])
