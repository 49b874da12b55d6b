"""Speed of placement: decisions per second by number of cards, and the time of one batch.

    python -m bench.placement
    python -m bench.placement --cards 1000 100000 --decisions 100000 --json placement.json

One decision is a ``plan`` of one slice, its record in the fleet, and the end of a random other slice. A refusal with
its reason is a decision too. *random*: three quarters of the slots were taken at random, so that nearly every card has
a little room; *full*: the planner filled 93 % of the slots, and slices end only above that. With ``--reservations`` the
free slots of so many cards are kept for others while the decisions are made. The controller sets its holds once for
each batch; the line *holds* shows what that costs.

Times are CPU time of the thread, since others may use the machine. To read that clock is a system call, which may cost
a third of a decision. So *decisions/s* is of many decisions at once, with the benchmark's own steps; *wall/s* is the
same by the time that passed. *p50* and *p99* are of as many further decisions, one by one, each with one reading of the
clock. *turns* is a decision in turns of ``bench/calibration.py`` with as many cards, the mean of one before and one
after: that compares between machines, where decisions a second do not.

``bench/churn.py`` compares how well placement rules pack.
"""

import argparse
import gc
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.calibration import turn_us
from bench.rivals import POLICIES, PRODUCTION

from tessera.cli.base.process import reduce_garbage_collection
from tessera.mig.models import model_by_short_name
from tessera.placement.demand import Demand
from tessera.placement.fleet import CardPlacement, Fleet
from tessera.placement.plan import plan
from tessera.placement.reserved_slots import Hold, hold_slots

MODEL = "A100-40GB"
PROFILES = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
#: Shares of the profiles that fill the fleet at random.
FILL = (0.20, 0.10, 0.30, 0.30, 0.10, 0.0)
CARDS_PER_NODE = 8
SLOTS = 8
#: Share of the slots that are in use in the full state.
FULL = 0.93
GOAL = 100_000
#: Decisions before the clock runs: the tables of a geometry are computed when they are first needed.
WARM_UP = 5_000


def build_fleet(cards: int) -> Fleet:
    """Empty cards, eight to a node, named by number."""
    geometry = model_by_short_name(MODEL).geometry
    fleet = Fleet()
    for card in range(cards):
        fleet.add_card(f"node-{card // CARDS_PER_NODE}", f"GPU-{card}", geometry)
    return fleet


def fill_at_random(fleet: Fleet, rng: random.Random) -> list[CardPlacement]:
    """Puts slices at random legal places: any state that churn can reach, reached cheaply."""
    held = []
    for card in list(fleet.cards()):
        for profile in rng.choices(PROFILES, FILL, k=4):
            row = card.geometry.profile(profile)
            start = rng.choice(row.starts)
            if not row.mask(start) & card.occupancy:
                held.append(CardPlacement(card.node.name, card.gpu, row.name, start, row.size))
                fleet.occupy(held[-1], "slice")
    return held


def fill_by_plan(fleet: Fleet, rng: random.Random, level: float) -> list[CardPlacement]:
    """Places slices until that many slots are taken."""
    policy = POLICIES[PRODUCTION]()
    held: list[CardPlacement] = []
    used = 0
    while used < level:
        placed = plan(fleet, (Demand("slice", (rng.choice(PROFILES),)),), policy=policy).assignments.get("slice")
        for one in placed or ():
            fleet.occupy(one, "slice")
            held.append(one)
            used += one.size
    return held


def hold_some(fleet: Fleet, count: int, rng: random.Random) -> list[Hold]:
    """Keeps the free slots of some cards, as reservations do while a batch is planned."""
    holds: list[Hold] = []
    for card in rng.sample(list(fleet.cards()), min(20 * count, len(fleet))):
        free = card.geometry.full & ~card.occupancy
        if free and len(holds) < count:
            holds.append(Hold(card.node.name, card.gpu, free, "waiting"))
    return holds


class Churn:
    """A fleet on which slices come and go.

    Args:
        cards: their number.
        full: the state that slices leave behind; see the module.
        reservations: cards whose free slots are kept for others.

    Attributes:
        refused: the decisions that found no room.
    """

    def __init__(self, cards: int, *, full: bool, reservations: int) -> None:
        self._fleet, self._rng, self._policy = build_fleet(cards), random.Random(cards), POLICIES[PRODUCTION]()
        self._level = FULL * SLOTS * cards if full else 0
        fill = fill_by_plan(self._fleet, self._rng, self._level) if full else fill_at_random(self._fleet, self._rng)
        self._held = fill
        self._used = sum(one.size for one in fill)
        holds = hold_some(self._fleet, reservations, self._rng)
        self._kept = tuple(dict.fromkeys(hold.node for hold in holds))
        self._fleet.hold(holds)
        self.refused = 0

    def decide(self) -> None:
        """Places a slice, and ends a random other one."""
        rng, held, fleet = self._rng, self._held, self._fleet
        profile = rng.choice(PROFILES)
        last = rng.randrange(len(held))
        held[last], held[-1] = held[-1], held[last]
        ended = held[-1]
        decided = plan(fleet, (Demand("slice", (profile,)),), policy=self._policy, kept=self._kept)
        placed = decided.assignments.get("slice")
        if placed is not None:
            fleet.occupy(placed[0], "slice")
        if self._used >= self._level:
            fleet.release(ended.node, ended.gpu, ended.start)
            held.pop()
            self._used -= ended.size
        if placed is None:
            self.refused += 1
        else:
            held.append(placed[0])
            self._used += placed[0].size


def decisions(cards: int, count: int, *, full: bool, reservations: int) -> dict[str, Any]:
    """Times decisions, first together, then one by one."""
    churn = Churn(cards, full=full, reservations=reservations)
    decide = churn.decide
    gc.collect()
    reduce_garbage_collection()  # as the controller's process does
    for _ in range(WARM_UP):
        decide()
    churn.refused = 0
    turn = turn_us(cards)
    began_wall, began = time.perf_counter(), time.thread_time()
    for _ in range(count):
        decide()
    cpu, wall = time.thread_time() - began, time.perf_counter() - began_wall
    turn = (turn + turn_us(cards)) / 2
    refused = churn.refused
    took = sorted(_time(decide) for _ in range(count))
    return {
        "cards": cards,
        "state": "full" if full else "random",
        "decisions_per_second": round(count / cpu),
        "wall_per_second": round(count / wall),
        "turn_us": round(turn, 2),
        "turns": round(1e6 * cpu / count / turn, 1),
        "p50_us": round(1e6 * took[count // 2], 1),
        "p99_us": round(1e6 * took[int(count * 0.99)], 1),
        "refused_percent": round(100 * refused / count, 1),
    }


def _time(step: Callable[[], None]) -> float:
    """Returns the seconds of CPU time that a step takes, with one reading of the clock."""
    began = time.thread_time()
    step()
    return time.thread_time() - began


def toggle(cards: int, reservations: int) -> float:
    """Returns the microseconds that it takes to set so many holds and to end them."""
    fleet, rng = build_fleet(cards), random.Random(cards)
    fill_at_random(fleet, rng)
    holds = hold_some(fleet, reservations, rng)
    took = []
    for _ in range(500):
        began = time.thread_time()
        with hold_slots(fleet, holds):
            pass
        took.append(time.thread_time() - began)
    return round(1e6 * sorted(took)[len(took) // 2], 1)


def batch(cards: int, demands: int) -> dict[str, Any]:
    """Plans one batch of mixed slices on an empty fleet."""
    fleet = build_fleet(cards)
    rng = random.Random(7)
    waiting = [Demand(str(number), (rng.choice(PROFILES),), arrival=number) for number in range(demands)]
    began = time.thread_time()
    decided = plan(fleet, waiting)
    seconds = time.thread_time() - began
    return {"cards": cards, "demands": demands, "placed": len(decided.assignments), "ms": round(1000 * seconds, 1)}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    parser.add_argument("--cards", type=int, nargs="*", default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--decisions", type=int, default=20_000, help="decisions timed per fleet")
    parser.add_argument("--reservations", type=int, default=0, help="cards whose free slots are kept for others")
    given = parser.parse_args()
    rows = []
    columns = f"{'decisions/s':>12} {'wall/s':>9} {'turns':>6} {'p50 us':>8} {'p99 us':>8} {'refused %':>10}"
    print(f"{'cards':>8} {'state':>7} {columns}")
    for cards in given.cards:
        for full in (False, True):
            row = decisions(cards, given.decisions, full=full, reservations=given.reservations)
            rows.append(row)
            print(
                f"{row['cards']:>8,} {row['state']:>7} {row['decisions_per_second']:>12,} {row['wall_per_second']:>9,}"
                f" {row['turns']:>6} {row['p50_us']:>8} {row['p99_us']:>8} {row['refused_percent']:>10}",
                flush=True,
            )
    holds = {count: toggle(10_000, count) for count in (1, 16)}
    print(f"\nholds on 10,000 cards, set and ended: {', '.join(f'{count}: {us} us' for count, us in holds.items())}")
    burst = batch(800, 1000)
    print(f"one batch of {burst['demands']:,} demands on {burst['cards']} cards: {burst['ms']} ms of CPU")
    print(f"goal: {GOAL:,} decisions/s; load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if given.json:
        result = {"model": MODEL, "load_average": os.getloadavg(), "decisions": rows, "holds_us": holds, "batch": burst}
        given.json.write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
