"""The mix follows the pods that exist, does not depend on their order, and changes only when the shares do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.placement.card_demand import TYPICAL_REQUESTS, CardDemand, CardRequest

FREE = {"A100": 4000, "H100": 4000}


def asks(cpu: int = 4000, cards: int = 1, *kinds: str) -> CardRequest:
    return CardRequest(cpu, 8192, cards, 1000, kinds or ("A100", "H100"), bool(kinds))


def test_shares_and_amounts_beside_a_card_are_those_of_the_pods() -> None:
    demand = CardDemand()
    demand.add(asks(4000), 3)
    demand.add(asks(16000, 2))
    assert demand.fold()
    assert {request.cards: share for request, share in demand.typical.shares} == {1: 0.75, 2: 0.25}
    assert demand.typical.cpu_a_part == pytest.approx(28000 / 5000)
    assert demand.typical.memory_a_part == pytest.approx(4 * 8192 / 5000)


def test_a_waiting_pod_counts_for_shares_and_prices_but_not_for_amounts_beside_a_card() -> None:
    demand, without = CardDemand(), CardDemand()
    for each in (demand, without):
        each.add(asks(4000), 3)
    demand.add(asks(10**9, 1, "H100"), hold=False)
    demand.fold()
    without.fold()
    assert {request.cpu: share for request, share in demand.typical.shares} == {4000: 0.75, 10**9: 0.25}
    assert demand.typical[1:] == without.typical[1:]
    assert demand.prices(FREE)["H100"] > 0
    demand.add(asks(10**9, 1, "H100"), -1, hold=False)
    demand.fold()
    assert demand.typical == without.typical


@pytest.mark.parametrize("large", [asks(10**9), asks()._replace(memory=10**9)])
def test_amounts_beside_a_card_are_never_further_behind_than_they_may_drift(large: CardRequest) -> None:
    """Shares do not look at memory, and one pod in a hundred does not change them."""
    demand, fresh = CardDemand(), CardDemand()
    for each in (demand, fresh):
        each.add(asks(4000), 100)
    demand.fold()
    for each in (demand, fresh):
        each.add(large)
        each.fold()
    assert demand.typical == fresh.typical


def test_a_pod_that_has_ended_counts_no_more() -> None:
    demand, without = CardDemand(), CardDemand()
    for each in (demand, without):
        each.add(asks(4000), 5)
    demand.add(asks(9000, 1, "H100"), 5)
    assert demand.prices(FREE)["H100"] > 0
    demand.add(asks(9000, 1, "H100"), -5)
    demand.fold()
    without.fold()
    assert demand.typical == without.typical
    assert demand.prices(FREE) == {}


def test_the_mix_stays_the_same_object_until_its_shares_change() -> None:
    demand = CardDemand()
    demand.add(asks(4000), 50)
    demand.add(asks(8000), 50)
    assert demand.fold()
    before = demand.typical
    for _ in range(10):
        demand.add(asks(4000), 5)
        demand.add(asks(8000), 5)
        demand.fold()
    assert demand.typical is before
    demand.add(asks(16000), 100)
    assert demand.fold()
    assert demand.typical is not before


def test_the_mix_is_bounded_whatever_pods_request() -> None:
    demand = CardDemand()
    for number in range(5000):
        demand.add(asks(1000 * number))
    demand.fold()
    assert len(demand.typical.shares) == TYPICAL_REQUESTS
    assert sum(share for _, share in demand.typical.shares) == pytest.approx(1)


REQUESTS = st.lists(
    st.builds(asks, st.integers(0, 9).map(lambda n: 1000 * n), st.integers(1, 4), st.sampled_from(["A100", "H100"])),
    max_size=30,
)


@given(REQUESTS, REQUESTS, st.randoms())
def test_a_process_that_starts_anew_learns_the_same_mix_from_the_same_pods(
    living: list[CardRequest], ended: list[CardRequest], rng: object
) -> None:
    old, new = CardDemand(), CardDemand()
    for request in (*living, *ended):
        old.add(request)
    for request in ended:
        old.add(request, -1)
    for request in reversed(living):
        new.add(request)
    old.fold()
    new.fold()
    assert old.typical == new.typical
    assert old.prices(FREE) == pytest.approx(new.prices(FREE))


def test_a_group_of_kinds_has_the_price_of_what_is_free_of_all_of_them_together() -> None:
    demand = CardDemand()
    demand.add(asks(4000, 1, "A100", "H100"))
    demand.add(asks(4000, 3))
    free = {"A100": 1000, "H100": 1000, "T4": 6000}
    assert demand.prices(free) == {"A100": 0.75, "H100": 0.75}  # a quarter of the requests, a quarter of what is free
    assert demand.prices({**free, "H100": 7000, "T4": 0}) == {}  # all that is free suits them
