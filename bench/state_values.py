"""Searches the values of card states that placement uses, on simulated random mixes of requests.

    python bench/state_values.py                                    a minute: shows that it works, the result is poor
    python bench/state_values.py --full --json state_values.json    hours, on all cores

1. Random mixes are simulated with the values of tables that are at hand; at first least fragmentation, disturbed.
2. Each mix goes to the table that is best for it; each table is searched on for its own mixes (an evolution strategy
   with one step size for each weight). Both are repeated.
3. More random mixes are simulated with every table, and for each table a function of the mix is fitted to its gain over
   least fragmentation (ridge regression).

A simulation: slices arrive (Poisson) at cards of one node, live (exponential) and leave; what finds no room is lost.
What is maximised is the share of slots in use. The mixes of ``bench/churn.py`` are not used.
"""

import argparse
import heapq
import json
import math
import os
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

from tessera.placement.state_features import FEATURES, SLOTS, STARTS, features, shape
from tessera.placement.state_values import mix_features

PROFILES = tuple(STARTS)
CARDS, ARRIVALS, WARM = 256, 12_000, 4_000
#: Ridge of the fit, and candidates of one generation of the search.
RIDGE, POPULATION = 0.03, 16

State = tuple[int, int]
Mix = tuple[float, ...]
Weights = tuple[float, ...]


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


def simulate(weights: Weights, mix: Mix, seed: int, arrivals: int = ARRIVALS) -> float:
    """The share of slots in use, in per cent."""
    order = rank(weights)
    arrive, live = random.Random(f"arrivals {seed}"), random.Random(f"lives {seed}")
    sizes = [size for _, size in PROFILES]
    rate = CARDS * SLOTS / sum(map(_times, mix, sizes))
    cards: dict[State, list[int]] = {(0, 0): list(range(CARDS))}
    state_of: list[State] = [(0, 0)] * CARDS
    ends: list[tuple[float, int, int, int, int]] = []
    now = area = measured = 0.0
    used, warm = 0, arrivals * WARM // ARRIVALS

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
                break
    return 100 * area / (measured * CARDS * SLOTS)


def least_fragmentation() -> Weights:
    """Weights with which least fragmentation decides: the usable slots of each profile."""
    return tuple(float(name.startswith("usable")) for name in FEATURES)


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


def mean(weights: Weights, mix: Mix, seeds: Sequence[int], arrivals: int) -> float:
    """The mean of some simulations."""
    return sum(simulate(weights, mix, seed, arrivals) for seed in seeds) / len(seeds)


def search(weights: Weights, mixes: Sequence[Mix], generations: int, arrivals: int, seed: int) -> Weights:
    """Better weights for these mixes: an evolution strategy that adapts one step size for each weight."""
    rng = random.Random(seed)
    count = len(weights)
    middle, steps = list(weights), [0.25] * count
    best = POPULATION // 4
    for generation in range(generations):
        chosen = rng.sample(list(mixes), min(len(mixes), 8))
        seeds = [seed * 100_003 + generation * 101 + number for number in range(len(chosen))]
        tried = []
        for _ in range(POPULATION):
            noise = [rng.gauss(0, 1) for _ in range(count)]
            one = tuple(map(sum, zip(middle, map(_times, steps, noise), strict=True)))
            score = sum(simulate(one, mix, each, arrivals) for mix, each in zip(chosen, seeds, strict=True))
            tried.append((score, one, noise))
        tried.sort(reverse=True)
        middle = [sum(one[at] for _, one, _ in tried[:best]) / best for at in range(count)]
        for at in range(count):
            spread = sum(noise[at] ** 2 for _, _, noise in tried[:best]) / best
            steps[at] *= math.exp(0.1 * (math.sqrt(spread) - 1))
    scale = sum(map(abs, middle)) / count
    return tuple(round(each / scale, 4) for each in middle)


def fit(mixes: Sequence[Mix], gains: Sequence[float]) -> tuple[float, ...]:
    """Ridge regression of gains on the features of the mixes."""
    rows = [mix_features(slot_shares(mix)) for mix in mixes]
    count = len(rows[0])
    left = [[sum(row[i] * row[j] for row in rows) + RIDGE * (i == j) for j in range(count)] for i in range(count)]
    right = [sum(row[i] * gain for row, gain in zip(rows, gains, strict=True)) for i in range(count)]
    for i in range(count):  # elimination; the matrix is positive definite, so no pivoting is needed
        for k in range(i + 1, count):
            factor = left[k][i] / left[i][i]
            for j in range(i, count):
                left[k][j] -= factor * left[i][j]
            right[k] -= factor * right[i]
    solution = [0.0] * count
    for i in reversed(range(count)):
        known = sum(left[i][j] * solution[j] for j in range(i + 1, count))
        solution[i] = (right[i] - known) / left[i][i]
    return tuple(round(each, 3) for each in solution)


def slot_shares(mix: Mix) -> dict[str, float]:
    """Shares by slots of a mix by count."""
    slots = [share * size for share, (_, size) in zip(mix, PROFILES, strict=True)]
    return {shape(*key): each / sum(slots) for key, each in zip(PROFILES, slots, strict=True)}


def main() -> None:
    """Searches and writes the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", maxsplit=1)[0] if __doc__ else "", formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the tables here")
    parser.add_argument("--tables", type=int, default=6)
    parser.add_argument("--mixes", type=int, default=64, help="mixes of the search")
    parser.add_argument("--fitted", type=int, default=1150, help="mixes to which gains are fitted")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--generations", type=int, default=60, help="of each table in each round")
    parser.add_argument("--full", action="store_true", help="the options above; otherwise a minute's worth")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    asked = parser.parse_args()
    arrivals = ARRIVALS
    if not asked.full:
        asked.tables, asked.mixes, asked.fitted, asked.rounds, asked.generations, arrivals = 2, 4, 60, 1, 2, 1_500
    rng = random.Random(1)
    base = least_fragmentation()
    tables = [tuple(each + rng.gauss(0, 0.3) for each in base) for _ in range(asked.tables)]
    mixes = random_mixes(asked.mixes, "search")
    with ProcessPoolExecutor(asked.processes) as pool:

        def gains(of: Sequence[Mix]) -> list[list[float]]:
            jobs = [[pool.submit(mean, each, mix, (1, 2), arrivals) for mix in of] for each in (base, *tables)]
            found = [[job.result() for job in row] for row in jobs]
            return [[one - before for one, before in zip(row, found[0], strict=True)] for row in found[1:]]

        for number in range(asked.rounds):
            known = gains(mixes)
            own: list[list[Mix]] = [[] for _ in tables]
            for at, mix in enumerate(mixes):
                own[max(range(len(tables)), key=lambda table: known[table][at])].append(mix)
            best = sum(max(column) for column in zip(*known, strict=True)) / len(mixes)
            print(f"round {number}: {best:+.2f} points over least fragmentation, mixes {[len(each) for each in own]}")
            jobs = [
                pool.submit(search, table, own[at] or mixes, asked.generations, arrivals, number * 31 + at)
                for at, table in enumerate(tables)
            ]
            tables = [job.result() for job in jobs]
        fitted = random_mixes(asked.fitted, "fit")
        known = gains(fitted)
    result = [{"weights": table, "gains": fit(fitted, row)} for table, row in zip(tables, known, strict=True)]
    print(f"fitted to {len(fitted)} mixes: mean gain of each table {[round(sum(r) / len(r), 2) for r in known]}")
    if asked.json:
        asked.json.write_text("[\n" + ",\n".join(map(json.dumps, result)) + "\n]\n")


if __name__ == "__main__":
    main()
