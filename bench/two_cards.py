"""The best that any rule without moves could do on two cards, computed exactly, beside Tessera's values.

    python -m bench.two_cards                       every mix of bench/churn.py at load 1.0
    python -m bench.two_cards --mixes mid --loads 1.0 2.0

Requests come as in ``bench/churn.py`` with exponential lives: at random moments, and what finds no room is lost. Then
nothing but the state of both cards matters for the future, and value iteration finds the rule with the most slots in
use, among all rules that take every request that fits. The same iteration, held to a rule's choices, gives the slots in
use of that rule. Both are exact but for :data:`TOLERANCE`; no arrivals are drawn.

States of a card that are alike for every future are joined: the two left pairs of slots may change places, and so may
the two slots of a pair.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

from bench.churn import MIXES
from bench.state_values import PROFILES, Mix, State, places, slot_shares

from tessera.placement.policies import FEATURES, SLOTS, features, mix_features, shipped_values

CARDS = 2
#: Iteration ends when the slots in use are known to so many points of a per cent.
TOLERANCE = 0.002
#: Most instances of a card.
_MOST = 7
#: The pairs of slots, by their first slot; the first two may change places.
_PAIRS = (0, 2, 4, 6)

Pool = tuple[int, int]
#: Returns what a state of a card is worth.
Worth = Callable[[State], float]


class Step(NamedTuple):
    """What can come next in a state of the pool.

    Attributes:
        placed: by profile of the mix, the pools to which a request of it can lead; none if it does not fit.
        ended: the pool after each instance's end.
    """

    placed: tuple[tuple[int, ...], ...]
    ended: tuple[int, ...]


def windows(state: State) -> list[tuple[int, int]]:
    """Start and size of each instance on a card."""
    slots, starts = state
    found = []
    for start in (each for each in range(SLOTS) if starts >> each & 1):
        end = start + 1
        while end < SLOTS and slots >> end & 1 and not starts >> end & 1:
            end += 1
        found.append((start, end - start))
    return found


@cache
def canonical(state: State) -> State:
    """Returns the state that stands for all that are alike to it."""
    placed = windows(state)
    kept = [(start, size) for start, size in placed if size > 2]
    pairs = [
        tuple(sorted(size for start, size in placed if first <= start < first + 2 and size <= 2)) for first in _PAIRS
    ]
    found = kept
    for first, sizes in zip(_PAIRS, (*sorted(pairs[:2], reverse=True), *pairs[2:]), strict=True):
        found = [*found, *((first + number, size) for number, size in enumerate(sizes))]
    slots = sum(((1 << size) - 1) << start for start, size in found)
    return slots, sum(1 << start for start, _ in found)


def starts_of(state: State, profile: int) -> list[State]:
    """The states to which one more instance of a profile leads."""
    return [canonical(each) for each in places(state, profile)]


def ends(state: State) -> list[State]:
    """The state after each instance's end."""
    slots, starts = state
    return [
        canonical((slots & ~(((1 << size) - 1) << start), starts & ~(1 << start))) for start, size in windows(state)
    ]


def reachable(profiles: Iterable[int]) -> list[State]:
    """The states of a card that has taken nothing but these profiles."""
    found: dict[State, None] = {(0, 0): None}
    todo: list[State] = [(0, 0)]
    kinds = tuple(profiles)
    while todo:
        state = todo.pop()
        for after in (*ends(state), *(each for profile in kinds for each in starts_of(state, profile))):
            if after not in found:
                found[after] = None
                todo.append(after)
    return sorted(found)


class TwoCards:
    """All states of two alike cards, and where they lead.

    Args:
        mix: each profile's share of the requests, by count; states that it cannot lead to are left out.
    """

    def __init__(self, mix: Mix) -> None:
        profiles = [number for number in range(len(PROFILES)) if mix[number]]
        self.cards = reachable(profiles)
        number = {state: each for each, state in enumerate(self.cards)}
        ended = [[number[each] for each in ends(state)] for state in self.cards]
        placed = [
            [sorted({number[each] for each in starts_of(state, profile)}) for profile in profiles]
            for state in self.cards
        ]
        self.pools: list[Pool] = [(one, other) for one in range(len(self.cards)) for other in range(one + 1)]
        index = {pool: each for each, pool in enumerate(self.pools)}

        def both(one: Iterable[int], other: Iterable[int], pool: Pool) -> tuple[int, ...]:
            first = [index[max(each, pool[1]), min(each, pool[1])] for each in one]
            return (*first, *(index[max(each, pool[0]), min(each, pool[0])] for each in other))

        self.steps = [
            Step(
                tuple(both(one, other, pool) for one, other in zip(placed[pool[0]], placed[pool[1]], strict=True)),
                both(ended[pool[0]], ended[pool[1]], pool),
            )
            for pool in self.pools
        ]

    def held_to(self, worth: Worth) -> list[Step]:
        """The steps of the rule that gives up least worth, ties to the fullest card."""
        value = [worth(state) for state in self.cards]
        free = [SLOTS - state[0].bit_count() for state in self.cards]

        def rank(pool: int) -> tuple[float, int]:
            one, other = self.pools[pool]
            return round(-value[one] - value[other], 9), -max(free[one], free[other])

        return [
            Step(tuple((min(each, key=rank),) if each else () for each in step.placed), step.ended)
            for step in self.steps
        ]


def slots_in_use(steps: list[Step], mix: Mix, load: float) -> float:
    """Mean slots in use in per cent where each step is the best of those that are left, by relative value iteration."""
    sizes = [size for _, size in PROFILES]
    capacity = CARDS * SLOTS
    rate = load * capacity / sum(share * size for share, size in zip(mix, sizes, strict=True))
    asked = [(rate * share, size) for share, size in zip(mix, sizes, strict=True) if share]
    fastest = rate + _MOST * CARDS
    values = [0.0] * len(steps)
    while True:
        after: list[float] = []
        value = values.__getitem__
        for own, (placed, ended) in zip(values, steps, strict=True):
            found = sum(map(value, ended)) + own * (_MOST * CARDS - len(ended))
            for to, (each_rate, size) in zip(placed, asked, strict=True):
                found += each_rate * (size + max(map(value, to)) if to else own)
            after.append(found / fastest)
        gains = [new - old for new, old in zip(after, values, strict=True)]
        low, high = min(gains) * fastest, max(gains) * fastest
        values = [each - after[0] for each in after]
        if 100 * (high - low) / capacity < TOLERANCE:
            return 50 * (low + high) / capacity


def worth_by(weights: Iterable[float]) -> Worth:
    """The weighted sum of a state's features."""
    known = tuple(weights)
    return lambda state: sum(weight * each for weight, each in zip(known, features(*state), strict=True))


def main() -> None:
    """Computes and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mixes", nargs="*", choices=sorted(MIXES), default=list(MIXES))
    parser.add_argument("--loads", type=float, nargs="*", default=[1.0], help="offered slots per slot")
    given = parser.parse_args()
    began = time.perf_counter()
    fragmentation = worth_by(float(name.startswith("usable")) for name in FEATURES)
    print(f"{CARDS} cards, exponential lives: slots in use in per cent, exact")
    print(f"{'load':>5} {'mix':<10}{'best rule':>10}{'tessera':>10}{'least fragmentation':>21}")
    for load in given.loads:
        for name in given.mixes:
            mix = MIXES[name]
            pool = TwoCards(mix)
            ours = worth_by(shipped_values().weights(mix_features(slot_shares(mix))))
            rows = (pool.steps, pool.held_to(ours), pool.held_to(fragmentation))
            best, tessera, gradient = (slots_in_use(steps, mix, load) for steps in rows)
            print(f"{load:>5} {name:<10}{best:>10.2f}{tessera:>10.2f}{gradient:>21.2f}", flush=True)
    load_average = f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    print(f"\n{time.perf_counter() - began:.0f} s; {load_average}")


if __name__ == "__main__":
    main()
