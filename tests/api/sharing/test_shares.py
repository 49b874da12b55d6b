"""Shares are spread over the cards or packed onto few, and always the same way for the same state."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.sharing.devices import AdvertisedDevice, device_of
from tessera.api.sharing.profile import AllocationPolicy, NotEnoughShares, prefer_shares

SPREAD, PACK = AllocationPolicy.DISTRIBUTED, AllocationPolicy.PACKED


def shares(gpus: int, replicas: int) -> list[AdvertisedDevice]:
    return [
        AdvertisedDevice(id=f"gpu{gpu}::{n}", uuid=f"gpu{gpu}", gpu=f"gpu{gpu}", index=str(gpu), replicas=replicas)
        for gpu in range(gpus)
        for n in range(replicas)
    ]


def slices(*on_card: int) -> list[AdvertisedDevice]:
    return [
        AdvertisedDevice(id=f"mig{card}-{n}", uuid=f"mig{card}-{n}", gpu=f"gpu{card}", index=f"{card}:{n}")
        for card, count in enumerate(on_card)
        for n in range(count)
    ]


def spread(chosen: tuple[str, ...]) -> list[int]:
    """The number of chosen devices of each card, largest first."""
    return sorted(Counter(map(device_of, chosen)).values(), reverse=True)


@pytest.mark.parametrize(
    ("gpus", "replicas", "size", "policy", "expected"),
    [
        (2, 4, 2, SPREAD, [1, 1]),
        (3, 2, 3, SPREAD, [1, 1, 1]),
        (2, 4, 4, SPREAD, [2, 2]),
        (1, 4, 1, SPREAD, [1]),
        (3, 4, 3, SPREAD, [1, 1, 1]),
        (2, 4, 2, PACK, [2]),
        (3, 2, 3, PACK, [2, 1]),
        (2, 4, 4, PACK, [4]),
        (2, 4, 5, PACK, [4, 1]),
        (1, 4, 1, PACK, [1]),
    ],
)
def test_shares_of_idle_cards(
    gpus: int, replicas: int, size: int, policy: AllocationPolicy, expected: list[int]
) -> None:
    devices = shares(gpus, replicas)
    assert spread(prefer_shares(devices, {each.id for each in devices}, (), size, policy)) == expected


@pytest.mark.parametrize("policy", AllocationPolicy)
def test_five_of_two_are_refused(policy: AllocationPolicy) -> None:
    devices = shares(1, 2)
    with pytest.raises(NotEnoughShares, match="not enough available devices: 5"):
        prefer_shares(devices, {each.id for each in devices}, (), 5, policy)


def test_a_tie_goes_to_the_card_that_this_request_has_not_touched() -> None:
    chosen = prefer_shares(shares(2, 2), {"gpu0::0", "gpu0::1", "gpu1::1"}, (), 2, SPREAD)
    assert spread(chosen) == [1, 1]


def test_what_is_in_use_counts() -> None:
    devices = shares(2, 4)
    free = {each.id for each in devices} - {"gpu0::0", "gpu0::1", "gpu1::0"}
    assert spread(prefer_shares(devices, free, (), 3, SPREAD)) == [2, 1]
    assert prefer_shares(devices, free, (), 1, SPREAD) == ("gpu1::1",)
    assert prefer_shares(devices, free, (), 2, PACK) == ("gpu0::2", "gpu0::3")


def test_a_full_card_gives_nothing() -> None:
    devices = shares(2, 4)
    free = {each.id for each in devices if each.uuid == "gpu1"}
    assert prefer_shares(devices, free, (), 2, SPREAD) == ("gpu1::0", "gpu1::1")


def test_what_must_be_included_comes_first_and_counts_as_used() -> None:
    devices = shares(2, 4)
    free = {each.id for each in devices}
    assert prefer_shares(devices, free, ("gpu0::3",), 2, SPREAD) == ("gpu0::3", "gpu1::0")
    assert prefer_shares(devices, free, ("gpu1::3",), 2, PACK) == ("gpu1::3", "gpu1::0")


def test_mig_devices_are_spread_over_cards_or_packed_onto_one() -> None:
    devices = slices(3, 3)
    free = {each.id for each in devices} - {"mig1-0"}
    assert prefer_shares(devices, free, (), 3, SPREAD) == ("mig0-0", "mig1-1", "mig0-1")  # card 1 has one in use
    assert prefer_shares(devices, free, (), 2, PACK) == ("mig1-1", "mig1-2")
    assert {one[:4] for one in prefer_shares(devices, {each.id for each in devices}, (), 2, SPREAD)} == {"mig0", "mig1"}


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_an_answer_is_free_distinct_and_as_even_as_can_be(gpus: int, replicas: int, data: st.DataObject) -> None:
    devices = shares(gpus, replicas)
    free = data.draw(st.sets(st.sampled_from([each.id for each in devices])))
    size = data.draw(st.integers(0, len(free)))
    for policy in AllocationPolicy:
        chosen = prefer_shares(devices, free, (), size, policy)
        assert len(set(chosen)) == len(chosen) == size
        assert set(chosen) <= free
    chosen = prefer_shares(devices, free, (), size, SPREAD)
    used = Counter(device_of(each.id) for each in devices if each.id not in free or each.id in chosen)
    open_cards = {device_of(one) for one in free - set(chosen)}
    for mine in {device_of(one) for one in chosen}:
        assert all(used[mine] <= used[other] + 1 for other in open_cards)
