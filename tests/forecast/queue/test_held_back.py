"""A card counts as one that might serve a pod only if its model and its node could serve the pod."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from tests.support.forecast_cluster import ForecastCluster

from tessera.api.nodes.card_faults import (
    CARDS_ANNOTATION,
    SPARED_ANNOTATION,
    CardFault,
    CardRule,
    ListedCard,
    encode_cards,
    encode_spared,
)
from tessera.api.nodes.offers import OFFERS_ANNOTATION, NodeOffer, OfferKind, encode_offers
from tessera.controller.objects.pod_constraints import NodeConstraints
from tessera.controller.objects.pod_info import PodInfo
from tessera.forecast.queue.held_back import HeldBack, read_held_back
from tessera.kube.resources import Node
from tessera.mig.models import model_by_short_name

A100, H100 = "A100-40GB", "H100-80GB"
WHOLE_GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"


def sliced(card: str, count: int) -> list[NodeOffer]:
    """What cards of a model offer that are cut on demand."""
    model = model_by_short_name(card)
    return [_offer(row.resource, card, OfferKind.DYNAMIC_SLICE, count, row.name) for row in model.geometry.profiles]


def _offer(resource: str, card: str, kind: OfferKind, count: int, profile: str = "") -> NodeOffer:
    return NodeOffer(
        resource=resource,
        kind=kind,
        product=model_by_short_name(card).product_name,
        card_memory_mib=40960,
        memory_mib=40960,
        compute_capability="8.0",
        count=count,
        profile=profile,
    )


def node(
    name: str, cards: Sequence[str], offers: Sequence[NodeOffer], withheld: Mapping[str, int] | None = None, **more: str
) -> Node:
    """A node as its agent describes it; the last card has XID 79, and kubelet withholds so many devices."""
    mixed = len(set(cards)) > 1
    listed = [
        ListedCard(at, f"GPU-{name}-{at}", model_by_short_name(card).product_name if mixed else "")
        for at, card in enumerate(cards)
    ]
    fault = CardFault(listed[-1].gpu, "XID 79", index=listed[-1].index)
    notes = {CARDS_ANNOTATION: encode_cards(listed, [fault]), OFFERS_ANNOTATION: encode_offers(offers)} | more
    short = withheld or {}
    capacity = {each.resource: str(each.count) for each in offers if each.kind is not OfferKind.DYNAMIC_SLICE}
    left = {each: str(int(count) - short.get(each, 0)) for each, count in capacity.items()}
    body = {"metadata": {"name": name, "annotations": notes}, "status": {"capacity": capacity, "allocatable": left}}
    return msgspec.convert(body, Node)


def two_models() -> ForecastCluster:
    """Full cards of one model, and another node whose cards cannot make what is asked for."""
    found = ForecastCluster()
    found.node("a100", A100)
    found.node("h100", H100)
    for number, profile in enumerate(("7g.40gb", "7g.80gb")):
        found.submit(f"holder-{number}", profile)
    return found


def told(cluster: ForecastCluster, pod: PodInfo, held: HeldBack) -> str:
    (row,) = [each for each in cluster.forecast(held).pods if each.uid == pod.uid]
    return row.detail.partition("; ")[0] if row.reason == "card-held-back" else ""


MIGHT = "1 card that might serve it is held back for a fault (XID 79)"


@pytest.mark.parametrize(
    ("profile", "faulty", "expected"),
    [("3g.20gb", "h100", ""), ("3g.40gb", "h100", MIGHT), ("3g.20gb", "a100", MIGHT), ("3g.40gb", "a100", "")],
)
def test_a_card_of_another_model_would_not_serve_a_slice(profile: str, faulty: str, expected: str) -> None:
    cluster, card = two_models(), {"a100": A100, "h100": H100}[faulty]
    held = read_held_back([node(faulty, [card], sliced(card, 2))])
    assert told(cluster, cluster.submit("waits", profile), held) == expected


@pytest.mark.parametrize(
    ("cards", "expected"), [((A100, H100), ""), ((H100, A100), MIGHT)], ids=["an H100 is faulty", "an A100 is faulty"]
)
def test_on_a_node_with_two_models_the_faulty_card_itself_counts(cards: Sequence[str], expected: str) -> None:
    cluster = two_models()
    held = read_held_back([node("a100", cards, [*sliced(A100, 2), *sliced(H100, 2)])])
    assert told(cluster, cluster.submit("waits", "3g.20gb"), held) == expected


def test_a_node_whose_cards_are_all_withheld_counts_by_its_agents_word() -> None:
    cluster = two_models()
    cluster.node("lost", A100, count=0)
    held = read_held_back([node("lost", [A100], sliced(A100, 2))])
    assert told(cluster, cluster.submit("waits", "3g.20gb"), held) == MIGHT


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, MIGHT),
        ({"constraints": NodeConstraints(selector=(("zone", "b"),))}, ""),
        ({"amounts": {"cpu": 65_000, "pods": 1}}, ""),
    ],
    ids=["no rule", "a selector", "too much CPU"],
)
def test_a_card_of_a_node_that_cannot_take_the_pod_does_not_count(facts: dict[str, Any], expected: str) -> None:
    cluster = ForecastCluster()
    labels = {"nvidia.com/mig.config": "dynamic", "kubernetes.io/hostname": "large", "zone": "b"}
    cluster.node("large", A100, labels=labels, allocatable={"cpu": 128_000, "memory": 2**40, "pods": 110})
    cluster.node("small", A100)
    for each in ("one", "two"):
        cluster.submit(each, "7g.40gb")
    held = read_held_back([node("small", [A100], sliced(A100, 2))])
    assert told(cluster, cluster.submit("waits", "3g.20gb", **facts), held) == expected


def test_a_card_does_not_count_where_the_node_has_too_few_for_the_pod_even_with_it() -> None:
    cluster = ForecastCluster()
    cluster.device_node("four", count=4)
    cluster.device_node("two", count=1)
    cluster.whole("holder", 3)
    cluster.settle()
    held = read_held_back([node("two", [A100] * 2, [_offer(WHOLE_GPU, A100, OfferKind.WHOLE, 2)], {WHOLE_GPU: 1})])
    for count, expected in ((2, MIGHT), (3, "")):
        pod = cluster.whole(f"waits-{count}", count, created="9")
        cluster.settle()
        assert told(cluster, pod, held) == expected


@pytest.mark.parametrize(("withheld", "expected"), [(WHOLE_GPU, MIGHT), (SHARED, "")])
def test_of_whole_and_shared_cards_only_what_kubelet_withholds_counts(withheld: str, expected: str) -> None:
    cluster = ForecastCluster()
    cluster.device_node("both", count=1)
    cluster.whole("holder")
    pod = cluster.whole("waits")
    cluster.settle()
    offers = [_offer(WHOLE_GPU, A100, OfferKind.WHOLE, 2), _offer(SHARED, A100, OfferKind.SHARE, 4)]
    held = read_held_back([node("both", [A100] * 2, offers, {withheld: 1})])
    assert told(cluster, pod, held) == expected


def test_a_fault_that_is_spared_and_an_annotation_that_cannot_be_read_hold_no_card_back() -> None:
    spared = encode_spared([CardRule("GPU-a100-0", "XID 79")])
    cluster, offers = two_models(), sliced(A100, 2)
    pod = cluster.submit("waits", "3g.20gb")
    for notes in ({SPARED_ANNOTATION: spared}, {OFFERS_ANNOTATION: "["}, {CARDS_ANNOTATION: "["}):
        assert told(cluster, pod, read_held_back([node("a100", [A100], offers, None, **notes)])) == ""
