"""Placement: decisions per second by number of cards, and how much of the cards stays in use under churn.

    python bench/placement.py                                  both parts, small, under a minute
    python bench/placement.py --full                           the sizes of the published comparison
    python bench/placement.py --json placement.json

Churn: slices arrive (Poisson), live (exponential) and leave; what finds no room is lost. The rules see the same
arrivals. ``alloc%`` is the time average of memory slots in use; ``accept%`` is weighted by slots, since a rule that
refuses large requests would shine by count. All policies run in the production planner, one ``plan`` per arrival;
``tessera`` is the one that is used in production.
"""

import argparse
import heapq
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

from tessera.mig.geometry import Geometry
from tessera.mig.models import model_by_short_name
from tessera.placement.demand import Demand
from tessera.placement.fleet import CardPlacement, Fleet
from tessera.placement.plan import plan
from tessera.placement.policies import POLICIES, Policy

MODEL = "A100-40GB"
PROFILES = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
MIXES = {
    "uniform": (1 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 6),
    "small": (0.50, 0.10, 0.25, 0.10, 0.03, 0.02),
    "mid": (0.20, 0.10, 0.30, 0.30, 0.10, 0.0),
    "big": (0.10, 0.05, 0.15, 0.25, 0.20, 0.25),
    "bimodal": (0.45, 0.0, 0.05, 0.05, 0.15, 0.30),
}
CARDS_PER_NODE = 8

SLOTS = 8

Spot = tuple[int, int]  # card, start
Use = tuple[float, float]  # alloc%, accept%


class Engine:
    """Tessera's planner with one policy, one ``plan`` per arrival."""

    def __init__(self, policy: Policy, geometry: Geometry, cards: int) -> None:
        self.policy = policy
        self.fleet = build_fleet(geometry, cards)
        self.seconds: list[float] = []

    def place(self, profile: int) -> Spot | None:
        """Plans one demand and records it."""
        began = time.perf_counter()
        decided = plan(self.fleet, [Demand("slice", (PROFILES[profile],))], policy=self.policy)
        placements = decided.assignments.get("slice", ())
        self.fleet.occupy_all(placements, "slice")
        self.seconds.append(time.perf_counter() - began)
        for placed in placements:
            return int(placed.gpu), placed.start
        return None

    def release(self, spot: Spot) -> None:
        """Frees the slots."""
        self.fleet.release(f"node-{spot[0] // CARDS_PER_NODE}", str(spot[0]), spot[1])


#: Tessera's own policy under its label in the tables.
PRODUCTION = "fragmentation-gradient"


def build_fleet(geometry: Geometry, cards: int) -> Fleet:
    """Empty cards, eight to a node, named by number."""
    fleet = Fleet()
    for card in range(cards):
        fleet.add_card(f"node-{card // CARDS_PER_NODE}", str(card), geometry)
    return fleet


def churn(engine: Engine, mix: tuple[float, ...], sizes: list[int], *, args: argparse.Namespace, seed: int) -> Use:
    """Runs one policy over one stream of arrivals; returns (alloc%, accept%) after the warm-up."""
    rng = random.Random(seed)
    capacity = args.cards * SLOTS
    rate = args.load * capacity / sum(share * size for share, size in zip(mix, sizes, strict=True))
    warm = args.arrivals // 4
    ends: list[tuple[float, int, int, Spot]] = []
    now = began = area = 0.0
    used = offered = accepted = 0
    for number in range(args.arrivals):
        arrival = now_next = now + rng.expovariate(rate)
        profile = rng.choices(range(len(sizes)), mix)[0]
        life = rng.expovariate(1.0)
        if number == warm:
            area, began = 0.0, now
        while ends and ends[0][0] <= arrival:
            end, _, ended, spot = heapq.heappop(ends)
            area += used * (end - now)
            now = end
            engine.release(spot)
            used -= sizes[ended]
        area += used * (now_next - now)
        now = arrival
        counted = number >= warm
        offered += sizes[profile] * counted
        placed = engine.place(profile)
        if placed is not None:
            accepted += sizes[profile] * counted
            used += sizes[profile]
            heapq.heappush(ends, (now + life, number, profile, placed))
    return 100 * area / ((now - began) * capacity), 100 * accepted / offered


def churn_table(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Every rule on every mix, the mean over the seeds."""
    geometry = model_by_short_name(MODEL).geometry
    sizes = [geometry.profile(name).size for name in PROFILES]
    rows = []
    for name, make_policy in reversed(list(POLICIES.items())):
        row: dict[str, Any] = {"rule": "tessera" if name == PRODUCTION else name}
        for mix, weights in MIXES.items():
            runs = [
                churn(Engine(make_policy(), geometry, args.cards), weights, sizes, args=args, seed=seed)
                for seed in range(1, args.seeds + 1)
            ]
            row[mix] = {
                "alloc_percent": round(statistics.fmean(run[0] for run in runs), 1),
                "accept_percent": round(statistics.fmean(run[1] for run in runs), 1),
            }
        rows.append(row)
    return rows


def decisions(cards: int, count: int) -> dict[str, Any]:
    """Decides and records slices one by one on a fleet that is about three quarters full, each followed by an end."""
    geometry = model_by_short_name(MODEL).geometry
    rule = Engine(POLICIES[PRODUCTION](), geometry, cards)
    rng = random.Random(cards)
    held = _fill(rule, geometry, rng)
    rule.seconds.clear()
    for _ in range(count):
        profile = rng.randrange(len(PROFILES))
        spot = rule.place(profile)
        if spot is not None:
            held.append((profile, spot))
        last = rng.randrange(len(held))
        held[last], held[-1] = held[-1], held[last]
        rule.release(held.pop()[1])
    spent = sorted(rule.seconds)
    return {
        "cards": cards,
        "decisions_per_second": round(count / sum(spent)),
        "p50_us": round(1e6 * spent[len(spent) // 2], 1),
        "p99_us": round(1e6 * spent[int(len(spent) * 0.99)], 1),
    }


def _fill(rule: Engine, geometry: Geometry, rng: random.Random) -> list[tuple[int, Spot]]:
    """Puts slices at random legal places: any state that churn can reach, reached cheaply."""
    held = []
    for card in list(rule.fleet.cards()):
        number = int(card.gpu)
        for profile in rng.choices(range(len(PROFILES)), MIXES["mid"], k=4):
            row = geometry.profile(PROFILES[profile])
            start = rng.choice(row.starts)
            if not row.mask(start) & card.occupancy:
                held.append((profile, (number, start)))
                _occupy(rule.fleet, number, row.name, start, row.size)
    return held


def _occupy(fleet: Fleet, number: int, profile: str, start: int, size: int) -> None:
    fleet.occupy(CardPlacement(f"node-{number // CARDS_PER_NODE}", str(number), profile, start, size), "slice")


def batch(cards: int, demands: int) -> dict[str, Any]:
    """Plans one batch of mixed slices on an empty fleet."""
    fleet = build_fleet(model_by_short_name(MODEL).geometry, cards)
    rng = random.Random(7)
    waiting = [Demand(str(number), (rng.choice(PROFILES),), arrival=number) for number in range(demands)]
    began = time.perf_counter()
    decided = plan(fleet, waiting)
    seconds = time.perf_counter() - began
    return {"cards": cards, "demands": demands, "placed": len(decided.assignments), "ms": round(1000 * seconds, 1)}


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description="Placement: speed by number of cards, and use of cards under churn.")
    parser.add_argument("--json", metavar="FILE", help="write the figures here as well")
    parser.add_argument("--full", action="store_true", help="256 cards, 24,000 arrivals, 3 seeds")
    parser.add_argument("--cards", type=int, default=64, help="cards in the churn simulation")
    parser.add_argument("--arrivals", type=int, default=6000, help="arrivals per run, the first quarter not counted")
    parser.add_argument("--seeds", type=int, default=1, help="runs per figure")
    parser.add_argument("--load", type=float, default=1.0, help="offered load in memory slots per slot")
    parser.add_argument("--decisions", type=int, default=2000, help="decisions timed per fleet size")
    args = parser.parse_args()
    if args.full:
        args.cards, args.arrivals, args.seeds = 256, 24_000, 3

    speed = [decisions(cards, args.decisions) for cards in (100, 1_000, 10_000, 100_000)]
    print(f"{'cards':>8} {'decisions/s':>12} {'p50 us':>8} {'p99 us':>8}")
    for row in speed:
        print(f"{row['cards']:>8,} {row['decisions_per_second']:>12,} {row['p50_us']:>8} {row['p99_us']:>8}")
    burst = batch(800, 1000)
    print(f"\none batch of {burst['demands']:,} demands on {burst['cards']} cards: {burst['ms']} ms\n")

    print(f"churn: {args.cards} cards, {args.arrivals:,} arrivals, load {args.load}, {args.seeds} seed(s);", end=" ")
    print("alloc% / accept%")
    table = churn_table(args)
    print(f"{'rule':>10} " + " ".join(f"{mix:>12}" for mix in MIXES))
    for row in table:
        cells = (f"{row[mix]['alloc_percent']} / {row[mix]['accept_percent']}" for mix in MIXES)
        print(f"{row['rule']:>10} " + " ".join(f"{cell:>12}" for cell in cells))
    if args.json:
        result = {"model": MODEL, "decisions": speed, "batch": burst, "churn": table, "options": vars(args)}
        Path(args.json).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
