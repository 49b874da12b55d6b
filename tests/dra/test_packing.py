"""Costs of devices: claims are packed as slices are."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.searching import examples

from tessera.dra.devices import Device, Holdings, Pool
from tessera.dra.node_devices import DRIVER, NodeCard, PublishOptions, node_pools
from tessera.dra.packing import NodePacking
from tessera.mig.geometry import Placement
from tessera.mig.models import model_by_short_name
from tessera.placement.card_table import CardTable

A100 = model_by_short_name("A100-40GB")
PROFILES = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")


def pool(cards: int = 2, **more: Any) -> Pool:
    found = [
        NodeCard(
            uuid=f"GPU-{index}",
            minor=index,
            index=index,
            product=A100.product_name,
            compute_capability=(8, 0),
            memory_mib=A100.memory_mib,
            geometry=A100.geometry,
            **more,
        )
        for index in range(cards)
    ]
    return node_pools("n1", found, ("580.1.2", 13000), PublishOptions())[0]


def of_profile(pools: Pool, profile: str) -> list[Device]:
    return [each for each in pools.devices if each.attributes.get(f"{DRIVER}/profile") == profile]


def cheapest(pools: Pool, profile: str, holdings: Holdings, chosen: Sequence[Device] = ()) -> Device:
    cost = NodePacking([pools]).costs(holdings)
    free = [each for each in of_profile(pools, profile) if holdings.has_room(each, pools)]

    def value(device: Device) -> float:
        found = cost(device, chosen)
        assert found is not None
        return found

    return min(free, key=value)


def test_partitions_fill_one_card_before_the_next() -> None:
    node, holdings, cards = pool(), Holdings(), []
    for profile in ("3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb"):
        device = cheapest(node, profile, holdings)
        holdings.take(device, {})
        cards.append(device.attributes[f"{DRIVER}/parentUUID"])
    assert len(set(cards)) == 1


def test_devices_of_the_same_claim_count() -> None:
    node = pool()
    first = cheapest(node, "3g.20gb", Holdings())
    second = cheapest(node, "1g.5gb", Holdings(), [first])
    assert second.attributes[f"{DRIVER}/parentUUID"] == first.attributes[f"{DRIVER}/parentUUID"]


def test_a_foreign_instance_counts_as_in_use() -> None:
    node = pool(1, foreign=(Placement("1g.5gb", 6, 1),))
    assert cheapest(node, "1g.5gb", Holdings()).attributes[f"{DRIVER}/start"] in (4, 5)


def test_a_card_that_cannot_be_cut_is_given_whole_first() -> None:
    node = pool()
    plain = Device(id=node.devices[0].id._replace(device="gpu-9"), attributes={f"{DRIVER}/uuid": "GPU-9"})
    cost = NodePacking([node]).costs(Holdings())
    whole = next(each for each in node.devices if each.id.device == "gpu-0")
    found = [cost(each, ()) for each in (plain, whole)]
    assert found == [0.0, 1.0]


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PROFILES), st.booleans()), max_size=12), st.randoms(use_true_random=False))
def test_the_growth_of_the_loss_is_the_engines(rounds: list[tuple[str, bool]], random: Any) -> None:
    """The cheapest device loses no more than the engine's own arrangement of one more slice on any card."""
    node, holdings = pool(), Holdings()
    held: list[Device] = []
    table = CardTable(A100.geometry, 0)
    for profile, releases in rounds:
        if releases and held:
            holdings.release(held.pop(random.randrange(len(held))), None)
        occupancies = [_occupancy(held, uuid) for uuid in ("GPU-0", "GPU-1")]
        costs = [table.cost(each, (), profile) for each in occupancies]
        wanted = [each for each in costs if each is not None]
        free = [each for each in of_profile(node, profile) if holdings.has_room(each, node)]
        assert bool(wanted) == bool(free)
        if free:
            device = cheapest(node, profile, holdings)
            found = NodePacking([node]).costs(holdings)(device, ())
            assert found == pytest.approx(min(wanted), abs=1e-4)
            holdings.take(device, {})
            held.append(device)


def _occupancy(held: Sequence[Device], uuid: str) -> int:
    found = 0
    for each in held:
        if each.attributes[f"{DRIVER}/parentUUID"] == uuid:
            profile = A100.geometry.profile(str(each.attributes[f"{DRIVER}/profile"]))
            found |= A100.geometry.claim(profile, _start(each))
    return found


def _start(device: Device) -> int:
    start = device.attributes[f"{DRIVER}/start"]
    assert isinstance(start, int)
    return start
