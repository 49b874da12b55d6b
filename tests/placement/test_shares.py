"""Spread and packed choice of replicas; the table re-expresses that of NVIDIA's device plugin."""

from collections import Counter
from collections.abc import Collection

import pytest

from tessera.placement.shares import NotEnoughReplicas, SharePolicy, preferred_replicas


def card_of(replica: str) -> str:
    return replica.partition("::")[0]


def replicas(cards: int, each: int) -> list[str]:
    return [f"GPU-{card}::{number}" for card in range(cards) for number in range(each)]


def counts(chosen: Collection[str]) -> list[int]:
    return sorted(Counter(map(card_of, chosen)).values())


@pytest.mark.parametrize(
    ("policy", "cards", "each", "size", "expected"),
    [
        (SharePolicy.SPREAD, 2, 4, 2, [1, 1]),
        (SharePolicy.SPREAD, 3, 2, 3, [1, 1, 1]),
        (SharePolicy.SPREAD, 2, 4, 4, [2, 2]),
        (SharePolicy.SPREAD, 1, 4, 1, [1]),
        (SharePolicy.SPREAD, 3, 4, 3, [1, 1, 1]),
        (SharePolicy.PACKED, 2, 4, 2, [2]),
        (SharePolicy.PACKED, 3, 2, 3, [1, 2]),
        (SharePolicy.PACKED, 2, 4, 4, [4]),
        (SharePolicy.PACKED, 2, 4, 5, [1, 4]),
        (SharePolicy.PACKED, 1, 4, 1, [1]),
    ],
)
def test_replicas_per_card(policy: SharePolicy, cards: int, each: int, size: int, expected: list[int]) -> None:
    every = replicas(cards, each)
    chosen = preferred_replicas(every, every, (), size, card_of=card_of, policy=policy)
    assert len(set(chosen)) == size
    assert counts(chosen) == expected


@pytest.mark.parametrize("policy", SharePolicy)
def test_five_of_two_are_refused(policy: SharePolicy) -> None:
    every = replicas(1, 2)
    with pytest.raises(NotEnoughReplicas, match="5 replicas asked for, 0 of them given: 2 others are free, 5"):
        preferred_replicas(every, every, (), 5, card_of=card_of, policy=policy)


def test_spread_goes_to_the_card_with_fewer_in_use_and_then_evens_out() -> None:
    every = replicas(2, 2)
    free = ["GPU-0::0", "GPU-0::1", "GPU-1::1"]
    assert counts(preferred_replicas(every, free, (), 2, card_of=card_of)) == [1, 1]


def test_packed_fills_the_card_that_others_use_already() -> None:
    every = replicas(2, 4)
    free = [replica for replica in every if replica != "GPU-1::0"]
    chosen = preferred_replicas(every, free, (), 3, card_of=card_of, policy=SharePolicy.PACKED)
    assert chosen == ("GPU-1::1", "GPU-1::2", "GPU-1::3")


def test_what_must_be_is_first_and_counts_as_in_use() -> None:
    every = replicas(2, 2)
    chosen = preferred_replicas(every, every, ["GPU-0::1"], 2, card_of=card_of)
    assert chosen == ("GPU-0::1", "GPU-1::0")


def test_replicas_that_are_no_longer_there_are_not_chosen() -> None:
    chosen = preferred_replicas(replicas(1, 2), ["GPU-9::0", "GPU-0::1"], (), 1, card_of=card_of)
    assert chosen == ("GPU-0::1",)


def test_the_answer_does_not_depend_on_the_order_of_the_question() -> None:
    every = replicas(3, 3)
    forwards = preferred_replicas(every, every, (), 4, card_of=card_of)
    assert preferred_replicas(every[::-1], every[::-1], (), 4, card_of=card_of) == forwards
