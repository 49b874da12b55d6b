"""A request keeps the kinds of cards whose nodes can hold it, and never loses one by rounding."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.placement.card_demand import CardRequest
from tessera.placement.node_ratings import NodeSize, NodeSizes

ANY = ("A100", "H100")
USUAL, LARGE = NodeSize(95_700, 380_000, 4), NodeSize(128_000, 786_432, 8)


def asks(cpu: int = 4000, memory: int = 8192, cards: int = 1) -> CardRequest:
    return CardRequest(cpu, memory, cards, 1000, ANY, pinned=False)


def two_kinds() -> NodeSizes:
    sizes = NodeSizes()
    sizes.put("usual", "A100", USUAL)
    sizes.put("large", "H100", LARGE)
    return sizes


@pytest.mark.parametrize("wanted", [asks(cpu=120_000), asks(memory=640_000), asks(cards=8)])
def test_a_request_that_only_one_kind_can_hold_is_bound_to_it(wanted: CardRequest) -> None:
    assert two_kinds().narrow(wanted) == wanted._replace(kinds=("H100",), pinned=True)


@pytest.mark.parametrize("wanted", [asks(), asks(*USUAL), asks(cpu=10**9)])
def test_a_request_that_all_kinds_can_hold_or_none_stays_as_it_is(wanted: CardRequest) -> None:
    assert two_kinds().narrow(wanted) == wanted


def test_a_kind_of_which_no_size_is_known_may_suit() -> None:
    sizes = NodeSizes()
    sizes.put("usual", "A100", USUAL)
    assert sizes.narrow(asks(cpu=120_000)).kinds == ("H100",)


def test_only_a_size_that_is_new_or_gone_is_a_change() -> None:
    sizes = two_kinds()
    before = sizes.changes
    sizes.put("alike", "A100", USUAL)
    sizes.put("usual", "A100", USUAL._replace(cpu=USUAL.cpu + 1))  # in the same step
    sizes.put("alike")
    sizes.put("unknown")
    assert sizes.changes == before
    sizes.put("large")
    assert sizes.changes == before + 1
    assert sizes.narrow(asks(cpu=120_000)).kinds == ("H100",)  # no size of the kind is known any more
    sizes.put("large", "A100", LARGE)
    assert sizes.narrow(asks(cpu=120_000)) == asks(cpu=120_000)


@given(st.builds(NodeSize, st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 16)))
def test_no_node_is_left_out_that_is_large_enough(size: NodeSize) -> None:
    sizes = two_kinds()
    sizes.put("exact", "A100", size)
    assert "A100" in sizes.narrow(asks(*size)).kinds
