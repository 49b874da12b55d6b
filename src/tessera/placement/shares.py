"""Which replicas of shared cards go together: spread over the cards, or packed onto few.

Replicas of a card are alike, so only how many each card gives is decided. One replica is chosen at a time: ``SPREAD``
takes the card that has the fewest replicas in use, ``PACKED`` the one that has the most; of equals the card that gave
the fewest in this request, then the first in order of its id (NVIDIA's device plugin, ``distributed`` and ``packed``).

This module does not know what a replica may use of its card, nor how replicas are named: the caller says which card an
id belongs to.
"""

from collections import Counter
from collections.abc import Callable, Collection
from enum import Enum


class SharePolicy(Enum):
    """How replicas are chosen; the values are those of ``sharedDevicesAllocationPolicy``."""

    SPREAD = "distributed"
    PACKED = "packed"


class NotEnoughReplicas(Exception):  # noqa: N818 - the name says what is wrong
    """Fewer replicas are free than were asked for."""


def preferred_replicas(
    replicas: Collection[str],
    available: Collection[str],
    must: Collection[str],
    size: int,
    *,
    card_of: Callable[[str], str],
    policy: SharePolicy = SharePolicy.SPREAD,
) -> tuple[str, ...]:
    """The replicas to hand out.

    Args:
        replicas: every replica there is, free or in use.
        available: the free ones, ``must`` included.
        must: those that have to be among the answer.
        size: how many in all.
        card_of: the card of a replica.
        policy: spread or packed.

    Raises:
        NotEnoughReplicas: there are fewer.
    """
    known = set(replicas)
    free = sorted((known & set(available)) - set(must))
    missing = size - len(must)
    if missing > len(free):
        raise NotEnoughReplicas(
            f"{size} replicas asked for, {len(must)} of them given: {len(free)} others are free, {missing} are needed"
        )
    by_card: dict[str, list[str]] = {}
    for replica in free:
        by_card.setdefault(card_of(replica), []).append(replica)
    in_use = Counter(map(card_of, known))
    in_use.subtract(Counter(map(card_of, free)))
    chosen = list(must)
    given: Counter[str] = Counter()
    for _ in range(missing):
        card = min(by_card, key=lambda card: (_rank(policy, in_use[card]), given[card], card))
        chosen.append(by_card[card].pop(0))
        in_use[card] += 1
        given[card] += 1
        if not by_card[card]:
            del by_card[card]
    return tuple(chosen)


def _rank(policy: SharePolicy, in_use: int) -> int:
    return in_use if policy is SharePolicy.SPREAD else -in_use
