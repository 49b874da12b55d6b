"""The annotation of offers: one device of each resource of a node."""

from collections.abc import Sequence
from typing import Any

from tessera.agent.node_status.node_facts import node_offers
from tessera.api.nodes.offers import NodeOffer, OfferKind, decode_offers, encode_offers
from tessera.api.sharing.devices import Advertisement
from tessera.api.sharing.profile import MigStrategy

A100: dict[str, Any] = {
    "product": "NVIDIA A100-SXM4-40GB",
    "card_memory_mib": 40960,
    "compute_capability": "8.0",
    "ecc": True,
}
T4: dict[str, Any] = {"product": "Tesla T4", "card_memory_mib": 15360, "compute_capability": "7.5", "ecc": True}


def told(offers: Sequence[NodeOffer]) -> list[NodeOffer]:
    """As a reader of the annotation has them."""
    return list(decode_offers(encode_offers(offers)))


def shares(replicas: int, **block: str) -> str:
    settings = "".join(f"{key}: {value}, " for key, value in block.items())
    return f"sharing: {{timeSlicing: {{{settings}resources: [{{name: nvidia.com/gpu, replicas: {replicas}}}]}}}}"


def test_whole_cards(make_machine: Any, make_sharing: Any) -> None:
    stock = make_machine("2xA100-40GB,2xT4").read()
    assert told(node_offers(stock, make_sharing(stock).offer)) == [
        NodeOffer(resource="nvidia.com/gpu", kind=OfferKind.WHOLE, memory_mib=40960, nvlink=True, count=2, **A100),
        NodeOffer(resource="nvidia.com/gpu", kind=OfferKind.WHOLE, memory_mib=15360, count=2, **T4),
    ]


def test_shares_have_their_part_of_the_memory(make_machine: Any, make_sharing: Any) -> None:
    stock = make_machine("4xA100-40GB").read()
    profile = shares(4, renameByDefault="true", failRequestsGreaterThanOne="true")
    assert told(node_offers(stock, make_sharing(stock, profile).offer)) == [
        NodeOffer(
            resource="nvidia.com/gpu.shared",
            kind=OfferKind.SHARE,
            memory_mib=10240,
            nvlink=True,
            count=16,
            replicas=4,
            one_per_request=True,
            **A100,
        )
    ]


def test_slices_of_a_layout_and_their_shares(make_machine: Any, make_sharing: Any) -> None:
    machine = make_machine("A100-40GB")
    machine.cut(0, ("2g.10gb", 0), ("2g.10gb", 2), ("1g.5gb", 4))
    stock = machine.read()
    profile = shares(2).replace("nvidia.com/gpu", "nvidia.com/mig-2g.10gb")
    assert told(node_offers(stock, make_sharing(stock, profile).offer)) == [
        NodeOffer(
            resource="nvidia.com/mig-1g.5gb", kind=OfferKind.SLICE, memory_mib=4864, count=1, profile="1g.5gb", **A100
        ),
        NodeOffer(
            resource="nvidia.com/mig-2g.10gb",
            kind=OfferKind.SHARE,
            memory_mib=4928,
            count=4,
            replicas=2,
            profile="2g.10gb",
            **A100,
        ),
    ]


def test_slices_that_pass_for_cards(make_machine: Any, make_sharing: Any) -> None:
    machine = make_machine("A100-40GB")
    machine.cut(0, ("3g.20gb", 0), ("3g.20gb", 4))
    stock = machine.read()
    (offer,) = node_offers(stock, make_sharing(stock, "", MigStrategy.SINGLE).offer)
    assert (offer.resource, offer.kind, offer.profile, offer.count) == (
        "nvidia.com/gpu",
        OfferKind.SLICE,
        "3g.20gb",
        2,
    )


def test_cards_that_are_cut_on_demand_offer_every_profile_as_often_as_it_fits(make_machine: Any) -> None:
    machine = make_machine("2xA100-40GB,T4")
    empty = node_offers(machine.read(), Advertisement(resources={}), on_demand=machine.uuids[:2])
    assert {offer.resource: offer.count for offer in empty} == {
        "nvidia.com/mig-1g.5gb": 14,
        "nvidia.com/mig-1g.5gb.me": 2,
        "nvidia.com/mig-1g.10gb": 8,
        "nvidia.com/mig-2g.10gb": 6,
        "nvidia.com/mig-3g.20gb": 4,
        "nvidia.com/mig-4g.20gb": 2,
        "nvidia.com/mig-7g.40gb": 2,
    }
    assert {offer.kind for offer in empty} == {OfferKind.DYNAMIC_SLICE}
    machine.cut(0, ("3g.20gb", 4))
    busy = node_offers(machine.read(), Advertisement(resources={}), on_demand=machine.uuids[:2])
    assert encode_offers(busy) == encode_offers(empty)


def test_on_demand_beside_the_rest(make_machine: Any, make_sharing: Any) -> None:
    machine = make_machine("A100-40GB,T4")
    stock = machine.read()
    static = [card for card in stock.gpus if card.uuid == machine.uuids[1]]
    offer = make_sharing(type(stock)(gpus=tuple(static))).offer
    found = told(node_offers(stock, offer, on_demand=machine.uuids[:1]))
    assert [each.product for each in found if each.resource == "nvidia.com/gpu"] == ["Tesla T4"]
    assert sum(each.kind is OfferKind.DYNAMIC_SLICE for each in found) == 7


def test_a_lost_card_is_still_one_of_its_kind(make_machine: Any, make_sharing: Any) -> None:
    machine = make_machine("4xA100-40GB")
    before = machine.read()
    offer = make_sharing(before).offer
    machine.cards.lose(machine.cards.uuids()[1])
    assert encode_offers(node_offers(machine.read(), offer)) == encode_offers(node_offers(before, offer))
