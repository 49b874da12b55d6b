"""Searches the function that gives the values of card states for a mix of requests, by simulation of random mixes.

    python bench/state_values.py                                    a minute: shows that it works, the result is poor
    python bench/state_values.py --full --json state_values.json    days: simulations are not compiled here

1. Random mixes are drawn. One simulation of each gives the mix of what is placed, which is all that placement knows.
2. The function gives the weights for that mix. For each mix, simulations with the weights plus and minus the same noise
   tell in which direction more slots are in use; both see the same arrivals.
3. That direction is carried back to the numbers of the function, which take a small step (Adam). Then again from 1. The
   result is the mean of the last functions, newer ones counting more.

A simulation: slices arrive (Poisson) at cards of one node, live (exponential) and leave; what finds no room is lost.
What is maximised is the share of slots in use. The mixes of ``bench/churn.py`` are not used.
"""

import argparse
import heapq
import json
import math
import os
import random
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tessera.placement.policies import (
    FEATURES,
    MIX_FEATURES,
    SLOTS,
    STARTS,
    WeightFunction,
    features,
    mix_features,
    shape,
)

PROFILES = tuple(STARTS)
CARDS, ARRIVALS, WARM = 256, 12_000, 4_000
#: Simulated pairs for each mix of a step; the noise on the weights, whose mean size is 1; the most that a pair counts.
PAIRS, NOISE, MOST = 3, 0.07, 1.2
#: Steps, the length of the first one, and Adam's rates.
STEPS, LENGTH, FIRST, SECOND = 2_000, 0.005, 0.9, 0.995
#: What the mean of the functions keeps of the former ones at each step.
AVERAGED = 0.985

State = tuple[int, int]
Mix = tuple[float, ...]
Weights = tuple[float, ...]
Facts = tuple[float, ...]


class Outcome(NamedTuple):
    """The share of slots in use in per cent, and the mix of what was placed, by count."""

    used: float
    placed: Mix


@cache
def places(state: State, profile: int) -> tuple[State, ...]:
    """The states to which one more instance can lead."""
    slots, starts = state
    size = PROFILES[profile][1]
    windows = ((start, ((1 << size) - 1) << start) for start in STARTS[PROFILES[profile]])
    return tuple((slots | window, starts | 1 << start) for start, window in windows if not slots & window)


@cache
def all_states() -> tuple[State, ...]:
    """Every state that instances can lead to."""
    found: dict[State, None] = {(0, 0): None}
    todo: list[State] = [(0, 0)]
    while todo:
        state = todo.pop()
        for profile in range(len(PROFILES)):
            for after in places(state, profile):
                if after not in found:
                    found[after] = None
                    todo.append(after)
    return tuple(found)


def rank(weights: Weights) -> list[list[tuple[State, State]]]:
    """For each profile the states with room and where they lead, best first."""
    value = {state: sum(map(_times, weights, features(*state))) for state in all_states()}
    ranked: list[list[tuple[State, State]]] = []
    for profile in range(len(PROFILES)):
        rows = []
        for state in all_states():
            after = max(places(state, profile), key=lambda each: (value[each], -each[0]), default=None)
            if after is not None:
                rows.append((value[state] - value[after], -state[0].bit_count(), state, after))
        ranked.append([(state, after) for _, _, state, after in sorted(rows)])
    return ranked


def _times(one: float, other: float) -> float:
    return one * other


def simulate(weights: Weights, mix: Mix, seed: int, arrivals: int) -> Outcome:
    """Runs one mix with these weights."""
    order = rank(weights)
    arrive, live = random.Random(f"arrivals {seed}"), random.Random(f"lives {seed}")
    sizes = [size for _, size in PROFILES]
    rate = CARDS * SLOTS / sum(map(_times, mix, sizes))
    cards: dict[State, list[int]] = {(0, 0): list(range(CARDS))}
    state_of: list[State] = [(0, 0)] * CARDS
    ends: list[tuple[float, int, int, int, int]] = []
    now = area = measured = 0.0
    used, warm = 0, arrivals * WARM // ARRIVALS
    placed = [0] * len(PROFILES)

    def move(card: int, to: State) -> None:
        cards[state_of[card]].remove(card)
        if not cards[state_of[card]]:
            del cards[state_of[card]]
        cards.setdefault(to, []).append(card)
        state_of[card] = to

    for number in range(arrivals):
        coming = now + arrive.expovariate(rate)
        profile = arrive.choices(range(len(PROFILES)), mix)[0]
        life = live.expovariate(1.0)
        while True:
            until = min(coming, ends[0][0]) if ends else coming
            if number >= warm:
                area += used * (until - now)
                measured += until - now
            now = until
            if not ends or ends[0][0] > coming:
                break
            _, card, window, start, size = heapq.heappop(ends)
            move(card, (state_of[card][0] & ~window, state_of[card][1] & ~start))
            used -= size
        for state, after in order[profile]:
            if state in cards:
                card = cards[state][-1]
                move(card, after)
                end = (now + life, card, after[0] ^ state[0], after[1] ^ state[1], sizes[profile])
                heapq.heappush(ends, end)
                used += sizes[profile]
                placed[profile] += 1
                break
    return Outcome(100 * area / (measured * CARDS * SLOTS), tuple(each / sum(placed) for each in placed))


def random_mixes(count: int, seed: str) -> list[Mix]:
    """Mixes by count or by slots, even or uneven, a third of them without some profile."""
    rng = random.Random(seed)
    found: list[Mix] = []
    for _ in range(count):
        evenness = rng.choice((0.6, 1.0, 2.0))
        shares = [rng.gammavariate(evenness, 1.0) for _ in PROFILES]
        if rng.random() < 0.5:
            shares = [share / size for share, (_, size) in zip(shares, PROFILES, strict=True)]
        if rng.random() < 0.35:
            shares[rng.randrange(len(shares))] = 0.0
        found.append(tuple(share / sum(shares) for share in shares))
    return found


def seen(weights: Weights, mix: Mix, seed: int, arrivals: int) -> Facts:
    """The features of the mix of what is placed."""
    return mix_features(slot_shares(simulate(weights, mix, seed, arrivals).placed))


def slot_shares(mix: Mix) -> dict[str, float]:
    """Shares by slots of a mix by count."""
    slots = [share * size for share, (_, size) in zip(mix, PROFILES, strict=True)]
    return {shape(*key): each / sum(slots) for key, each in zip(PROFILES, slots, strict=True)}


class Searched:
    """The function being searched: numbers in rows, as :class:`~tessera.placement.policies.WeightFunction`.

    It starts with the weights by which least fragmentation decides, whatever the mix.
    """

    def __init__(self, units: int, rng: random.Random) -> None:
        inputs = MIX_FEATURES + 1
        self.units = [[rng.gauss(0, 1 / math.sqrt(inputs)) for _ in range(inputs)] for _ in range(units)]
        self.weights = [[0.0] * (inputs + units) for _ in FEATURES]
        for row, name in zip(self.weights, FEATURES, strict=True):
            row[-1] = float(name.startswith("usable"))

    @property
    def rows(self) -> list[list[float]]:
        """All rows, to be changed in place."""
        return [*self.units, *self.weights]

    def function(self) -> WeightFunction:
        """The same for placement."""
        return WeightFunction(tuple(map(tuple, self.units)), tuple(map(tuple, self.weights)))

    def carry_back(self, facts: Facts, wanted: Weights) -> list[list[float]]:
        """The change of each number that changes the weights in the wanted direction."""
        inputs = (*facts, 1.0)
        units = [math.tanh(math.fsum(map(_times, row, inputs))) for row in self.units]
        first = len(facts)
        found = []
        for number, unit in enumerate(units):
            slope = sum(row[first + number] * each for row, each in zip(self.weights, wanted, strict=True))
            found.append([slope * (1 - unit * unit) * each for each in inputs])
        return found + [[one * each for each in (*facts, *units, 1.0)] for one in wanted]


class Adam:
    """Steps of about one length for each number, after Kingma and Ba (2015)."""

    def __init__(self, rows: list[list[float]]) -> None:
        self._rows = rows
        self._means = [[0.0] * len(row) for row in rows]
        self._squares = [[0.0] * len(row) for row in rows]
        self._steps = 0

    def step(self, changes: list[list[float]], length: float) -> None:
        """Changes the numbers in this direction."""
        self._steps += 1
        scales = 1 - FIRST**self._steps, 1 - SECOND**self._steps
        for row, mean, square, change in zip(self._rows, self._means, self._squares, changes, strict=True):
            for at, each in enumerate(change):
                mean[at] = FIRST * mean[at] + (1 - FIRST) * each
                square[at] = SECOND * square[at] + (1 - SECOND) * each * each
                row[at] += length * mean[at] / scales[0] / (math.sqrt(square[at] / scales[1]) + 1e-9)


def direction(weights: Weights, mix: Mix, seed: int, arrivals: int) -> Weights:
    """In which direction the weights keep more slots in use, from :data:`PAIRS` pairs of simulations."""
    rng = random.Random(seed)
    found = [0.0] * len(weights)
    for pair in range(PAIRS):
        noise = [NOISE * rng.gauss(0, 1) for _ in weights]
        more, less = (
            simulate(tuple(each + sign * one for each, one in zip(weights, noise, strict=True)), mix, at, arrivals).used
            for sign, at in ((1, seed + pair), (-1, seed + pair))
        )
        gain = max(-MOST, min(MOST, more - less))
        found = [each + gain * one / (2 * PAIRS * NOISE**2) for each, one in zip(found, noise, strict=True)]
    return tuple(found)


def gain(function: WeightFunction, mix: Mix, seed: int, arrivals: int) -> float:
    """Percentage points over least fragmentation."""
    base = tuple(float(name.startswith("usable")) for name in FEATURES)
    facts = seen(base, mix, seed, arrivals)
    return simulate(function.of(facts), mix, seed, arrivals).used - simulate(base, mix, seed, arrivals).used


def main() -> None:
    """Searches and writes the function."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", maxsplit=1)[0] if __doc__ else "", formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the function here")
    parser.add_argument("--units", type=int, default=24, help="hidden units")
    parser.add_argument("--mixes", type=int, default=40, help="mixes of one step")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--tested", type=int, default=64, help="other mixes, by which the result is told")
    parser.add_argument("--full", action="store_true", help="the options above; otherwise a minute's worth")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    asked = parser.parse_args()
    arrivals = ARRIVALS
    if not asked.full:
        asked.units, asked.mixes, asked.steps, asked.tested, arrivals = 4, 4, 6, 4, 1_500
    rng = random.Random(1)
    searched = Searched(asked.units, rng)
    adam = Adam(searched.rows)
    mean = [list(row) for row in searched.rows]
    with ProcessPoolExecutor(asked.processes) as pool:
        for number in range(asked.steps):
            mixes = random_mixes(asked.mixes, f"search {number}")
            seeds = [rng.randrange(10**9) for _ in mixes]
            function = searched.function()
            known = list(
                pool.map(
                    seen,
                    [function.of(mix_features(slot_shares(mix))) for mix in mixes],
                    mixes,
                    seeds,
                    [arrivals // 2] * len(mixes),
                )
            )
            weights = [function.of(facts) for facts in known]
            wanted = pool.map(direction, weights, mixes, seeds, [arrivals] * len(mixes))
            changes = [[0.0] * len(row) for row in searched.rows]
            for facts, one in zip(known, wanted, strict=True):
                for row, change in zip(changes, searched.carry_back(facts, one), strict=True):
                    row[:] = map(sum, zip(row, change, strict=True))
            adam.step(changes, LENGTH * (1 + math.cos(math.pi * number / asked.steps)) / 2)
            for row, now in zip(mean, searched.rows, strict=True):
                row[:] = [AVERAGED * old + (1 - AVERAGED) * new for old, new in zip(row, now, strict=True)]
        for row, last in zip(searched.rows, mean, strict=True):
            row[:] = [round(each, 4) for each in last]
        found = searched.function()
        tested = random_mixes(asked.tested, "test")
        gains = list(pool.map(gain, [found] * len(tested), tested, range(len(tested)), [arrivals] * len(tested)))
    print(
        f"{len(tested)} other mixes: {sum(gains) / len(gains):+.2f} points over least fragmentation on average, "
        f"{min(gains):+.2f} to {max(gains):+.2f}"
    )
    if asked.json:
        lines = [",\n".join(map(json.dumps, rows)) for rows in (found.units, found.weights)]
        asked.json.write_text(f'{{"units": [\n{lines[0]}\n],\n"weights": [\n{lines[1]}\n]}}\n')


if __name__ == "__main__":
    main()
