"""What the preferences of pods cost the packing, and how many are met, for each setting of ``--preferences``.

    python -m bench.preferences                          128 cards, load 1.0, three mixes, 8 paired seeds
    python -m bench.preferences --prices 0.02 0.1 --seeds 20

Slices arrive (Poisson), live and leave; what finds no room is lost. Half of them are of services whose data is on one
of the nodes, which their pods prefer with weight 100. All settings see the same arrivals as ``none``, where nobody
prefers anything. ``lost`` is the difference of the time average of memory slots in use, in points of all slots, with
1.96 standard errors over the seeds. ``met`` is the share of the placed pods with a preference that are on their node.
"""

import argparse
import heapq
import json
import random
import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from math import inf, sqrt
from pathlib import Path

from bench.churn import CARDS_PER_NODE, MIXES, MODEL, PROFILES, SIZES, SLOTS

from tessera.controller.base import PREFERENCE_PRICES
from tessera.mig.models import model_by_short_name
from tessera.placement.demand import Demand
from tessera.placement.fleet import CardPlacement, Fleet
from tessera.placement.plan import plan

SERVICES = 40
WEIGHT = 100
#: The setting in which nobody prefers anything.
NONE = "none"


class DataNodes:
    """One node for each service; :class:`~tessera.placement.demand.Preferences`."""

    def __init__(self, nodes: int, price: float, rng: random.Random) -> None:
        self.price = price
        self.nodes = [f"node-{rng.randrange(nodes)}" for _ in range(SERVICES)]

    def met(self, demand: Demand, node: str, gpu: str = "") -> tuple[int, int]:
        """All of the weight, or nothing."""
        del gpu
        return (WEIGHT if self.nodes[int(demand.key)] == node else 0), 0

    def preferred_nodes(self, demand: Demand) -> Iterator[str]:
        """The service's node."""
        yield self.nodes[int(demand.key)]


def simulate(run: tuple[str, str, int, int, int]) -> tuple[float, float]:
    """Runs a setting over one stream of arrivals; returns the slots in use and the preferences met, in per cent."""
    setting, mix, seed, cards, arrivals = run
    rng = random.Random(seed)
    fleet, geometry = Fleet(), model_by_short_name(MODEL).geometry
    for card in range(cards):
        fleet.add_card(f"node-{card // CARDS_PER_NODE}", str(card), geometry)
    wanted = DataNodes(fleet.node_count, 0.0 if setting == NONE else price_of(setting), rng)
    capacity, weights = cards * SLOTS, MIXES[mix]
    rate = capacity / sum(share * size for share, size in zip(weights, SIZES, strict=True))
    ends: list[tuple[float, int, int, CardPlacement]] = []
    now = began = area = 0.0
    used = asked = met = 0
    for number in range(arrivals):
        arrival = now + rng.expovariate(rate)
        profile = rng.choices(range(len(SIZES)), weights)[0]
        life, service, prefers = rng.expovariate(1.0), rng.randrange(SERVICES), rng.random() < 0.5
        while ends and ends[0][0] <= arrival:
            end, _, ended, place = heapq.heappop(ends)
            area, now = area + used * (end - now), end
            fleet.release(place.node, place.gpu, place.start)
            used -= SIZES[ended]
        area, now = area + used * (arrival - now), arrival
        if number == arrivals // 4:
            area, began, asked, met = 0.0, now, 0, 0
        most = (WEIGHT, 0) if prefers and setting != NONE else None
        found = plan(fleet, (Demand(str(service), (PROFILES[profile],), preferences=most),), wanted=wanted).assignments
        if not found:
            continue
        (place,) = found[str(service)]
        fleet.occupy(place, str(number))
        used += SIZES[profile]
        asked += prefers
        met += prefers and place.node == wanted.nodes[service]
        heapq.heappush(ends, (now + life, number, profile, place))
    return 100 * area / ((now - began) * capacity), 100 * met / max(1, asked)


def price_of(setting: str) -> float:
    """The price of a setting, or of a number."""
    found = PREFERENCE_PRICES.get(setting)
    return float(setting) if found is None else found


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cards", type=int, default=128)
    parser.add_argument("--arrivals", type=int, default=8_000)
    parser.add_argument("--mixes", nargs="*", choices=sorted(MIXES), default=["small", "mid", "big"])
    parser.add_argument("--prices", nargs="*", default=[], help="further prices")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    given = parser.parse_args()
    settings = [NONE, *sorted((*PREFERENCE_PRICES, *given.prices), key=price_of)]
    runs = [(*row, given.cards, given.arrivals) for row in product(settings, given.mixes, range(1, given.seeds + 1))]
    with ProcessPoolExecutor(given.processes) as pool:
        found = dict(zip([row[:3] for row in runs], pool.map(simulate, runs), strict=True))
    rows = []
    print(f"{'setting':>8} {'price':>6}" + "".join(f"{mix + ': lost, met':>30}" for mix in given.mixes))
    for setting in settings:
        cells = []
        for mix in given.mixes:
            pairs = [(found[NONE, mix, seed], found[setting, mix, seed]) for seed in range(1, given.seeds + 1)]
            lost = [before[0] - after[0] for before, after in pairs]
            error = 1.96 * statistics.stdev(lost) / sqrt(len(lost)) if len(lost) > 1 else inf
            share = statistics.fmean(after[1] for _, after in pairs)
            rows.append({"setting": setting, "mix": mix, "lost": statistics.fmean(lost), "error": error, "met": share})
            cells.append(f"{statistics.fmean(lost):+.3f} ± {error:.3f}, {share:4.1f} %")
        text = "" if setting == NONE else f"{price_of(setting):g}"
        print(f"{setting:>8} {text:>6}" + "".join(f"{each:>30}" for each in cells))
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
