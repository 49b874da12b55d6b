"""Packing under churn: how much of the cards each placement rule keeps in use.

    python -m bench.churn                                    256 cards, load 1.0, exponential lives, 3 seeds
    python -m bench.churn --quick                            under a minute: 32 cards, one seed
    python -m bench.churn --full --json churn.json           every cell: hours
    python -m bench.churn --cards 32 256 --loads 0.85 1.15 --lives lognormal --seeds 10 --processes 4

Slices arrive (Poisson), live and leave; what finds no room is lost. All rules see the same arrivals and run in the
production planner, one ``plan`` per arrival; ``tessera`` is the rule of production. ``free repacking`` accepts whatever
would fit if all slices could be moved at any moment for nothing: a ceiling, no rule.

``alloc%`` is the time average of memory slots in use. ``accept%`` is weighted by slots, since a rule that refuses large
requests would shine by count. ``packable%`` is the share of refusals that a free repacking could have placed: those are
fragmentation, the others shortage. With ``+moves`` a slice without room may move up to three others, all of which are
opted in, within a budget of 4 for each 100 accepted slices. Loads are offered slots per slot. The first quarter of the
arrivals is not counted.
"""

import argparse
import heapq
import json
import os
import random
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
from bench.rivals import POLICIES, PRODUCTION, FragmentationGradient

from tessera.mig.models import model_by_short_name
from tessera.placement.cards import OwnedPlacement
from tessera.placement.demand import Demand
from tessera.placement.fleet import CardPlacement, Fleet
from tessera.placement.moves import MOST_MOVES, MoveRules, make_room, weigh
from tessera.placement.plan import plan
from tessera.placement.policies import LeastCost

MODEL = "A100-40GB"
PROFILES = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
SIZES = (1, 2, 2, 4, 4, 8)
MIXES = {
    "uniform": (1 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 6),
    "small": (0.50, 0.10, 0.25, 0.10, 0.03, 0.02),
    "mid": (0.20, 0.10, 0.30, 0.30, 0.10, 0.0),
    "big": (0.10, 0.05, 0.15, 0.25, 0.20, 0.25),
    "bimodal": (0.45, 0.0, 0.05, 0.05, 0.15, 0.30),
}
CARDS_PER_NODE, SLOTS = 8, 8
LOADS, CARDS, LIVES = (0.85, 1.0, 1.15), (32, 256, 2048), ("exponential", "lognormal")
#: Standard deviation of the logarithm of a lognormal life; its mean is 1 as the exponential one's.
SIGMA = 1.5
CEILING = "free repacking"
#: Ending of a rule's name with which slices move.
MOVES = "+moves"
#: The most moves for each 100 accepted slices.
MOST_MOVES_PERCENT = 4.0
#: Moves that each accepted slice adds to the budget, and the most that are saved.
MOVES_AN_ACCEPTED, MOVES_SAVED = 0.039, 50.0
#: Lost work and cold start of a moved slot, in mean lives.
PRICE = 0.1
#: Slots for a mean life that a move has to win when nothing is saved; the less the more is saved. So the budget is kept
#: for moves that win most.
PRICE_A_MOVE = 6.0
#: The least alloc% that production is to reach at 256 cards, load 1.0, exponential lives.
BARS = {
    PRODUCTION: {"uniform": 94.8, "small": 94.6, "mid": 96.4, "big": 94.1, "bimodal": 91.3},
    PRODUCTION + MOVES: {"uniform": 96.2, "small": 95.6, "mid": 96.9, "big": 95.8, "bimodal": 93.3},
}


class Cell(msgspec.Struct, frozen=True, order=True):
    """One run's parameters."""

    cards: int
    lives: str
    load: float
    mix: str
    rule: str
    seed: int
    arrivals: int


class Run(msgspec.Struct, frozen=True):
    """One run's figures."""

    alloc: float
    accept: float
    refusals: int
    packable: int
    moves_percent: float
    seconds: float


class Engine:
    """The production planner with one policy, and moves if they are asked for."""

    def __init__(self, cell: Cell) -> None:
        geometry = model_by_short_name(MODEL).geometry
        rule = cell.rule.removesuffix(MOVES)
        self._policy = POLICIES[rule]()
        self._moves = rule != cell.rule
        self._fleet = Fleet()
        self._places: dict[str, CardPlacement] = {}
        self._left = 0.0
        self.moves = self._number = 0
        for card in range(cell.cards):
            self._fleet.add_card(f"node-{card // CARDS_PER_NODE}", str(card), geometry)

    def place(self, profile: int) -> str | None:
        """Plans one slice and records it."""
        name = PROFILES[profile]
        placed = plan(self._fleet, (Demand("slice", (name,)),), policy=self._policy).assignments.get("slice")
        found = placed[0] if placed is not None else self._make_room(name) if self._moves else None
        if found is None:
            return None
        self._number += 1
        self._left = min(self._left + MOVES_AN_ACCEPTED, MOVES_SAVED)
        self._occupy(found, str(self._number))
        return str(self._number)

    def release(self, owner: str) -> None:
        """Frees the slots."""
        placed = self._places.pop(owner)
        self._fleet.release(placed.node, placed.gpu, placed.start)

    def _occupy(self, placed: CardPlacement, owner: str) -> None:
        self._fleet.occupy(placed, owner)
        self._places[owner] = placed

    def _make_room(self, profile: str) -> CardPlacement | None:
        """Moves slices as far as the budget allows; all of them are opted in."""
        if self._left < 1:
            return None
        costs = self._policy.costs if isinstance(self._policy, LeastCost) else FragmentationGradient().costs
        room = make_room(self._fleet, profile, costs, MoveRules(), int(min(self._left, MOST_MOVES)))
        scarce = PRICE_A_MOVE * (1 - self._left / MOVES_SAVED)
        if room is None or not weigh(room, gain_a_slot=1.0, price=price, price_a_move=scarce).is_positive:
            return None
        for move in room.moves:
            self.release(move.allocation.owner)
        for move in room.moves:
            self._occupy(move.to, move.allocation.owner)
        self.moves += len(room.moves)
        self._left -= len(room.moves)
        return room.placement


def price(moved: OwnedPlacement) -> float:
    """Lost work and cold start of a moved slice."""
    return PRICE * moved.placement.size


class FreeRepacking:
    """Places whatever fits when all slices may move."""

    moves = 0

    def __init__(self, cards: int) -> None:
        self._cards = cards
        self._held = [0] * len(PROFILES)

    def place(self, profile: int) -> int | None:
        """Counts one more slice if all of them can be packed."""
        self._held[profile] += 1
        if packable(self._held, self._cards):
            return profile
        self._held[profile] -= 1
        return None

    def release(self, profile: int) -> None:
        """Counts one slice less."""
        self._held[profile] -= 1


def packable(held: list[int], cards: int) -> bool:
    """True if so many slices of each profile fit on that many seven-slice cards, wherever they are put.

    Left halves hold 4g or 3g, right halves 3g only: 3g go right first. What is left of a half holds pairs of slots for
    2g or 1g.10gb; the last pair of a right half holds one 1g or one 1g.10gb, never a 2g.
    """
    ones, doubles, twos, threes, fours, sevens = held
    halves = cards - sevens
    right = min(threes, halves)
    left_free, right_free = halves - fours - (threes - right), halves - right
    if left_free < 0:
        return False
    half_pairs = min(doubles, right_free)
    pairs = 2 * left_free + right_free - twos - (doubles - half_pairs)
    return pairs >= 0 and ones <= 2 * pairs + right_free - half_pairs


def simulate(cell: Cell) -> Run:
    """Runs one rule over one stream of arrivals."""
    rng = random.Random(cell.seed)
    began_run = time.process_time()
    engine: Any = FreeRepacking(cell.cards) if cell.rule == CEILING else Engine(cell)
    weights, capacity = MIXES[cell.mix], cell.cards * SLOTS
    rate = cell.load * capacity / sum(share * size for share, size in zip(weights, SIZES, strict=True))
    warm = cell.arrivals // 4
    ends: list[tuple[float, int, int, Any]] = []
    held = [0] * len(PROFILES)
    now = began = area = 0.0
    used = offered = accepted = refusals = in_vain = count = moves_before = 0
    for number in range(cell.arrivals):
        arrival = now + rng.expovariate(rate)
        profile = rng.choices(range(len(SIZES)), weights)[0]
        life = rng.expovariate(1.0) if cell.lives == "exponential" else rng.lognormvariate(-(SIGMA**2) / 2, SIGMA)
        while ends and ends[0][0] <= arrival:
            end, _, ended, placed = heapq.heappop(ends)
            area, now = area + used * (end - now), end
            engine.release(placed)
            used -= SIZES[ended]
            held[ended] -= 1
        area, now = area + used * (arrival - now), arrival
        counted = number >= warm
        if number == warm:
            area, began, moves_before = 0.0, now, engine.moves
        offered += SIZES[profile] * counted
        placed = engine.place(profile)
        held[profile] += 1
        if placed is None:
            refusals += counted
            in_vain += counted and packable(held, cell.cards)
            held[profile] -= 1
            continue
        accepted += SIZES[profile] * counted
        count += counted
        used += SIZES[profile]
        heapq.heappush(ends, (now + life, number, profile, placed))
    spent = time.process_time() - began_run
    moved = 100 * (engine.moves - moves_before) / count
    return Run(100 * area / ((now - began) * capacity), 100 * accepted / offered, refusals, in_vain, moved, spent)


def cells(given: argparse.Namespace) -> Iterator[Cell]:
    """Every run of the given table."""
    seeds = range(1, given.seeds + 1)
    for row in product(given.cards, given.lives, given.loads, given.mixes, given.rules, seeds):
        yield Cell(*row, given.arrivals or max(12_000, min(24_000, 94 * row[0]), 40 * row[0]))


def print_table(rows: list[dict[str, Any]], mixes: list[str]) -> None:
    """One table for each number of cards, kind of lives and load."""
    for cards, lives, load in dict.fromkeys((row["cards"], row["lives"], row["load"]) for row in rows):
        print(f"\n{cards} cards, load {load}, {lives} lives: alloc% / accept% / moves per 100 / packable%")
        print(f"{'rule':<24}" + "".join(f"{mix:>26}" for mix in mixes))
        shown = [row for row in rows if (row["cards"], row["lives"], row["load"]) == (cards, lives, load)]
        for rule in dict.fromkeys(row["rule"] for row in shown):
            found = {row["mix"]: row for row in shown if row["rule"] == rule}
            print(f"{label(rule):<24}" + "".join(f"{_cell_text(found[mix]):>26}" for mix in mixes))


def _cell_text(row: dict[str, Any]) -> str:
    figures = (f"{row[key]:.1f}" for key in ("alloc_percent", "accept_percent", "moves_percent"))
    return f"{' / '.join(figures)} / {row['packable_percent']:3.0f}"


def print_findings(rows: list[dict[str, Any]]) -> None:
    """Compares production with its bars and with first-fit, and the moves of every rule with the most allowed."""
    moved = [(*_cell_of(row), label(row["rule"])) for row in rows if row["most_moves_percent"] > MOST_MOVES_PERCENT]
    at = {(*_cell_of(row), row["rule"]): row["alloc_percent"] for row in rows}
    behind = [
        key[:4] for key, value in at.items() if key[4] == PRODUCTION and value < at.get((*key[:4], "first-fit"), 0)
    ]
    print(f"\ncells in which tessera is below first-fit: {', '.join(map(str, behind)) or 'none'}")
    above = ", ".join(map(str, moved)) or "none"
    print(f"cells with more than {MOST_MOVES_PERCENT:g} moves per 100 accepted for some seed: {above}")
    for (rule, bars), mix in product(BARS.items(), MIXES):
        found = at.get((256, "exponential", 1.0, mix, rule))
        if found is not None:
            short = "" if found >= bars[mix] else f", short by {bars[mix] - found:.2f}"
            print(f"bar for {label(rule)}, {mix}, 256 cards, load 1.0: {bars[mix]}, reached {found:.2f}{short}")


def _cell_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["cards"], row["lives"], row["load"], row["mix"]


def label(rule: str) -> str:
    """A rule's name in the tables."""
    return rule.replace(PRODUCTION, "tessera")


def _summarize(key: tuple[Any, ...], runs: list[Run]) -> dict[str, Any]:
    cards, lives, load, mix, rule = key
    refusals = sum(run.refusals for run in runs)
    return {
        "cards": cards,
        "lives": lives,
        "load": load,
        "mix": mix,
        "rule": rule,
        "alloc_percent": round(statistics.fmean(run.alloc for run in runs), 3),
        "alloc_by_seed": [round(run.alloc, 3) for run in runs],
        "accept_percent": round(statistics.fmean(run.accept for run in runs), 3),
        "refusals": refusals,
        "packable_percent": round(100 * sum(run.packable for run in runs) / refusals, 1) if refusals else 0.0,
        "moves_percent": round(statistics.fmean(run.moves_percent for run in runs), 2),
        "most_moves_percent": round(max(run.moves_percent for run in runs), 2),
        "cpu_seconds": round(sum(run.seconds for run in runs), 1),
    }


def main() -> None:
    """Runs the cells and prints the tables."""
    rules = [*reversed(list(POLICIES)), PRODUCTION + MOVES, CEILING]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    parser.add_argument("--quick", action="store_true", help="32 cards, one seed, 4,000 arrivals")
    parser.add_argument("--full", action="store_true", help="every number of cards, load and kind of lives, 10 seeds")
    parser.add_argument("--cards", type=int, nargs="*", default=[256])
    parser.add_argument("--loads", type=float, nargs="*", default=[1.0], help="offered slots per slot")
    parser.add_argument("--lives", nargs="*", choices=LIVES, default=["exponential"])
    parser.add_argument("--mixes", nargs="*", choices=sorted(MIXES), default=list(MIXES))
    parser.add_argument("--rules", nargs="*", choices=sorted(rules), default=rules)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--arrivals", type=int, help="per run; by default 94 a card at 256 cards, 40 a card at 2,048")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    given = parser.parse_args()
    if given.full:
        given.cards, given.loads, given.lives, given.seeds = list(CARDS), list(LOADS), list(LIVES), 10
    if given.quick:
        given.cards, given.seeds, given.arrivals = [32], 1, 4_000
    todo = list(cells(given))
    began = time.perf_counter()
    with ProcessPoolExecutor(given.processes) as pool:
        runs = dict(zip(todo, pool.map(simulate, todo, chunksize=1), strict=True))
    keys = dict.fromkeys((one.cards, one.lives, one.load, one.mix, one.rule) for one in todo)
    rows = [
        _summarize(
            key, [run for one, run in runs.items() if (one.cards, one.lives, one.load, one.mix, one.rule) == key]
        )
        for key in keys
    ]
    print_table(rows, given.mixes)
    print_findings(rows)
    load = f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    print(f"\n{len(todo)} runs, {given.seeds} seed(s), {time.perf_counter() - began:.0f} s; {load}")
    if given.json:
        given.json.write_text(json.dumps({"model": MODEL, "load_average": os.getloadavg(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
