"""The smallest offer that fulfils what a pod needs, or what the cluster has instead."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.offers.offered import Placed, chosen_among, shared_card, slices, whole_card

from tessera.mig.models import model_by_short_name
from tessera.offers import (
    GIB,
    CapabilityBound,
    CardProperties,
    NoOfferFits,
    Offer,
    OfferChoice,
    OfferedKind,
    OfferTable,
    Requirements,
    RestrictionKind,
)

A100 = CardProperties(
    product="NVIDIA A100-SXM4-40GB", memory_mib=40960, compute_capability=(8, 0), nvlink=True, ecc=True
)
H100 = CardProperties(
    product="NVIDIA H100 80GB HBM3", memory_mib=81559, compute_capability=(9, 0), nvlink=True, ecc=True
)
T4 = CardProperties(product="Tesla T4", memory_mib=15360, compute_capability=(7, 5), ecc=True)
RTX = CardProperties(product="NVIDIA GeForce RTX 3090", memory_mib=24576, compute_capability=(8, 6))
A100_TABLE = model_by_short_name("A100-40GB").geometry


def need(gib: float = 0, **more: Any) -> Requirements:
    return Requirements(memory=int(gib * GIB), **more)


def every_profile(node: str = "mig") -> list[Placed]:
    return slices(node, A100, A100_TABLE, {row.name: row.max_count for row in A100_TABLE.profiles}, dynamic=True)


def chosen(requirements: Requirements, *offers: Placed) -> OfferChoice:
    choice = chosen_among(requirements, offers)
    assert isinstance(choice, OfferChoice), choice
    return choice


def refused(requirements: Requirements, *offers: Placed) -> str:
    choice = chosen_among(requirements, offers)
    assert isinstance(choice, NoOfferFits), choice
    return choice.text


@pytest.mark.parametrize(
    ("gib", "resource"),
    [
        (1, "nvidia.com/mig-1g.5gb"),
        (5, "nvidia.com/mig-1g.5gb"),
        (5.1, "nvidia.com/mig-1g.10gb"),
        (10, "nvidia.com/mig-1g.10gb"),
        (11, "nvidia.com/mig-3g.20gb"),
        (20, "nvidia.com/mig-3g.20gb"),
        (21, "nvidia.com/mig-7g.40gb"),
    ],
)
def test_the_smallest_slice_with_the_memory(gib: float, resource: str) -> None:
    assert chosen(need(gib), *every_profile(), whole_card("full", H100, 8)).resource == resource


def test_a_profile_that_exists_once_per_card_is_left_to_who_names_it() -> None:
    assert chosen(need(5), *every_profile()).resource == "nvidia.com/mig-1g.5gb"
    only = [offer for offer in every_profile() if offer.offer.suffix]
    assert chosen(need(5), *only).resource == "nvidia.com/mig-1g.5gb.me"


def test_a_cut_slice_goes_before_one_on_demand_before_a_share_before_a_card() -> None:
    quarter = CardProperties(product="NVIDIA X", memory_mib=10240, compute_capability=(8, 0))
    offers = [
        Placed(
            str(kind),
            Offer(resource=f"r-{kind.value}", kind=kind, card=quarter, memory=10, portion=Fraction(1), count=1),
        )
        for kind in (OfferedKind.WHOLE, OfferedKind.SHARE, OfferedKind.DYNAMIC_SLICE, OfferedKind.FIXED_SLICE)
    ]
    order = []
    while offers:
        order.append(chosen(Requirements(memory=1), *offers).resource)
        offers = [offer for offer in offers if offer.offer.resource != order[-1]]
    assert order == ["r-0", "r-1", "r-2", "r-3"]


def test_a_share_counts_with_its_part_of_the_memory() -> None:
    shared = shared_card("shared", A100, 4, replicas=4, resource="nvidia.com/gpu.shared")
    whole = whole_card("full", A100, 8)
    assert shared.offer.count == 16
    assert chosen(need(10), shared, whole).resource == "nvidia.com/gpu.shared"
    assert chosen(need(10.5), shared, whole).resource == "nvidia.com/gpu"


def test_a_card_counts_with_the_memory_it_is_sold_with() -> None:
    assert chosen(need(80), whole_card("full", H100, 8)).resource == "nvidia.com/gpu"


def test_nvlink_needs_a_whole_card() -> None:
    shared = shared_card("shared", A100, 4, replicas=4, resource="nvidia.com/gpu.shared")
    choice = chosen(
        need(5, nvlink=True), *every_profile(), shared, whole_card("full", A100, 8), whole_card("t4", T4, 1)
    )
    assert (choice.resource, choice.nodes) == ("nvidia.com/gpu", ("full",))


def test_ecc() -> None:
    choice = chosen(need(15, ecc=True), whole_card("gaming", RTX, 2), whole_card("t4", T4, 4))
    assert choice.nodes == ("t4",)
    assert chosen(need(15.5, ecc=True), whole_card("gaming", RTX, 2), whole_card("big", A100, 1)).nodes == ("big",)


def test_compute_capability_and_product() -> None:
    offers = (whole_card("t4", T4, 4), whole_card("a100", A100, 8), whole_card("h100", H100, 8))
    at_least = (CapabilityBound(">=", (8, 0)),)
    assert chosen(need(capability=at_least), *offers).nodes == ("a100",)
    assert chosen(need(capability=(*at_least, CapabilityBound("!=", (8, 0)))), *offers).nodes == ("h100",)
    assert chosen(need(products=("H100", "H200")), *offers).nodes == ("h100",)
    assert chosen(need(products=("H100", "A100")), *offers).nodes == ("a100",)


def test_a_resource_that_means_one_card_everywhere_needs_no_restriction() -> None:
    choice = chosen(need(40), whole_card("one", A100, 8), whole_card("two", A100, 4))
    assert (choice.restriction, choice.nodes) == (RestrictionKind.NOTHING, ("one", "two"))


def test_other_cards_of_the_same_resource_are_kept_off_by_the_model() -> None:
    choice = chosen(need(40), whole_card("small", T4, 8), whole_card("one", A100, 8))
    assert (choice.restriction, choice.products) == (RestrictionKind.PRODUCT, ("NVIDIA A100-SXM4-40GB",))


def test_larger_cards_of_the_same_resource_are_kept_free() -> None:
    choice = chosen(need(10), whole_card("small", T4, 8), whole_card("large", H100, 8))
    assert (choice.restriction, choice.products) == (RestrictionKind.PRODUCT, ("Tesla T4",))


def test_the_model_does_not_tell_apart_nodes_that_have_several() -> None:
    mixed = [whole_card("mixed", T4, 2), *slices("mixed", A100, A100_TABLE, {"1g.5gb": 7}, dynamic=False)]
    choice = chosen(need(40), *mixed, whole_card("one", A100, 8))
    assert (choice.resource, choice.restriction, choice.nodes) == ("nvidia.com/gpu", RestrictionKind.NODES, ("one",))


def test_the_model_does_not_tell_apart_the_same_model_used_otherwise() -> None:
    unrenamed = shared_card("shared", A100, 8, replicas=4, resource="nvidia.com/gpu")
    choice = chosen(need(40), unrenamed, whole_card("one", A100, 8))
    assert (choice.restriction, choice.nodes) == (RestrictionKind.NODES, ("one",))


def test_a_node_that_gives_out_good_and_bad_under_one_name_is_not_meant() -> None:
    text = refused(need(40), whole_card("mixed", T4, 1), whole_card("mixed", A100, 1))
    assert "on node mixed would do, but that node gives out other cards under the same name" in text


def test_what_a_node_has_none_of_is_no_offer() -> None:
    assert "the cluster offers no GPUs" in refused(need(1), whole_card("empty", A100, 0))


def test_the_reason_names_the_choice_what_was_asked_and_the_next_larger() -> None:
    offers = slices("mig", A100, A100_TABLE, {"2g.10gb": 2, "3g.20gb": 1}, dynamic=False)
    assert chosen(need(10, ecc=True), *offers).reason == (
        "nvidia.com/mig-2g.10gb (MIG slice of NVIDIA A100-SXM4-40GB: 10Gi, compute capability 8.0, ECC) is the "
        "smallest that fulfils memory 10Gi, ECC; the next larger is nvidia.com/mig-3g.20gb (MIG slice of "
        "NVIDIA A100-SXM4-40GB: 20Gi, compute capability 8.0, ECC)"
    )


def test_a_refusal_says_what_the_cluster_has() -> None:
    text = refused(need(200), whole_card("one", A100, 8), whole_card("two", A100, 4), whole_card("t4", T4, 2))
    assert text == (
        "no GPU of the cluster fulfils memory 200Gi: the most memory that one has is 40Gi. The cluster has 12 "
        "nvidia.com/gpu (whole card of NVIDIA A100-SXM4-40GB: 40Gi, compute capability 8.0, ECC, NVLink), 2 "
        "nvidia.com/gpu (whole card of Tesla T4: 15Gi, compute capability 7.5, ECC)"
    )


@pytest.mark.parametrize(
    ("requirements", "text"),
    [
        (need(products=("B200",)), "none has the product asked for"),
        (need(capability=(CapabilityBound(">=", (9, 0)),)), "none has the compute capability asked for"),
        (
            need(20, capability=(CapabilityBound("<", (8, 0)),)),
            "each requirement alone can be met, all together cannot",
        ),
    ],
)
def test_a_refusal_says_what_is_missing(requirements: Requirements, text: str) -> None:
    assert text in refused(requirements, whole_card("one", A100, 8), whole_card("t4", T4, 2))


def test_a_long_list_is_cut() -> None:
    text = refused(need(200), *every_profile(), whole_card("one", H100, 1), whole_card("t4", T4, 1))
    assert text.endswith(", and 1 more kinds with less memory")


CARDS = st.sampled_from([A100, H100, T4, RTX])
NODES = st.sampled_from("abc")
COUNTS = st.integers(0, 4)
OFFERS = st.lists(
    st.one_of(
        st.builds(whole_card, NODES, CARDS, COUNTS),
        st.builds(
            shared_card,
            NODES,
            CARDS,
            COUNTS,
            replicas=st.integers(2, 8),
            resource=st.sampled_from(["nvidia.com/gpu", "nvidia.com/gpu.shared"]),
        ),
        st.sampled_from(every_profile("a")),
    ),
    max_size=8,
)
NEEDS = st.builds(
    Requirements,
    memory=st.integers(0, 100).map(lambda gib: gib * GIB),
    nvlink=st.booleans(),
    ecc=st.booleans(),
    products=st.sampled_from([(), ("A100",), ("T4", "H100")]),
)


@given(requirements=NEEDS, offers=OFFERS)
def test_on_every_node_that_is_meant_whatever_the_pod_gets_is_enough(
    requirements: Requirements, offers: list[Placed]
) -> None:
    def fulfils(alone: Placed) -> bool:
        return isinstance(chosen_among(requirements, [alone]), OfferChoice)

    choice = chosen_among(requirements, offers)
    existing = [each for each in offers if each.offer.count]
    if isinstance(choice, OfferChoice):
        given_out = [each for each in existing if each.offer.resource == choice.resource and each.node in choice.nodes]
        assert given_out
        assert all(fulfils(each) for each in given_out)
        assert chosen_among(requirements, offers[::-1]) == choice
    else:
        bad_company = {(each.node, each.offer.resource) for each in existing if not fulfils(each)}
        assert all((each.node, each.offer.resource) in bad_company for each in existing)


def test_many_nodes_with_the_same_offer_are_compared_once() -> None:
    table = OfferTable()
    for number in range(5000):
        table.add([whole_card("n", A100, 8).offer, whole_card("n", T4, 2, "example.com/t4").offer], 1 << number)
    assert len(table.among((1 << 5000) - 1)) == 2
    for number in range(5000):
        table.remove([whole_card("n", T4, 2, "example.com/t4").offer], 1 << number)
    assert table.resources() == {"nvidia.com/gpu"}
