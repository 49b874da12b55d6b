"""Preferred allocation: the time to choose whole cards, over every request there is on machines of up to 16 cards.

    python bench/preferred.py                        every machine, every size, with and without a card that must be in
    python bench/preferred.py --json preferred.json

Times are of this process's CPU, so that a busy machine does not count. "random" is no machine: links and ways drawn at
random, where nothing is alike and the search has the least to hold on to.

*joined* is what the choice of single cards is for: pods of one, two and four cards come and go on the machine, and it
is the points that those of several cards got, in per cent of what they would get on the empty machine. *first* is the
same with the first free card for a single one, as NVIDIA's plugin chooses.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Collection, Iterator
from itertools import combinations
from pathlib import Path as File
from typing import Any

from tessera.placement.topology import CardLink, PciPath, Topology

COUNT = 16
#: Pods that come or go, and how often this is repeated.
CHURN, SEEDS = 400, 12
#: Chooses so many of the free cards.
Choice = Callable[[Collection[str], Collection[str], int], tuple[str, ...]]
CARDS = [f"GPU-{number:02}" for number in range(COUNT)]


def tree(one: int, other: int) -> PciPath:
    """PCIe of a usual machine: two cards to a switch, two switches to a bridge, two bridges to a CPU."""
    for width, path in ((2, PciPath.PIX), (4, PciPath.PXB), (8, PciPath.NODE)):
        if one // width == other // width:
            return path
    return PciPath.SYS


def build(links: Callable[[int, int], int], switch_links: int = 0) -> Topology:
    """A machine of 16 cards whose NVLinks are told by pair."""
    pairs = {
        (CARDS[one], CARDS[other]): CardLink(tree(one, other), links(one, other))
        for one, other in combinations(range(COUNT), 2)
    }
    return Topology(CARDS, pairs, switch_links=dict.fromkeys(CARDS, switch_links))


def machines() -> dict[str, Topology]:
    """Machines as they are built, and some that nobody builds."""
    rng = random.Random(5)
    return {
        "PCIe only": build(lambda *_: 0),
        "NVLink bridges, pairs": build(lambda one, other: 4 if one // 2 == other // 2 else 0),
        "NVLink bridges, fours": build(lambda one, other: 6 if one // 4 == other // 4 else 0),
        "8 with NVLink, 8 without": build(lambda one, other: 12 if max(one, other) < 8 else 0),
        "NVSwitch, all 16": build(lambda *_: 0, switch_links=6),
        "random": Topology(
            CARDS, {pair: CardLink(rng.choice(list(PciPath)), rng.randrange(7)) for pair in combinations(CARDS, 2)}
        ),
    }


def requests() -> Iterator[tuple[list[str], tuple[str, ...], int]]:
    """All 16 cards free, one lost, and half-full machines; every size, free and with a card that must be in."""
    rng = random.Random(11)
    pools = [CARDS, CARDS[:5] + CARDS[6:], *(sorted(rng.sample(CARDS, count)) for count in (14, 12, 10, 8))]
    for pool in pools:
        for size in range(1, len(pool) + 1):
            yield pool, (), size
            yield pool, (pool[len(pool) // 2],), size


def measure(topology: Topology) -> dict[str, Any]:
    """CPU milliseconds over all requests."""
    times = []
    for pool, must, size in requests():
        began = time.process_time()
        topology.preferred_cards(pool, must, size)
        times.append((1000 * (time.process_time() - began), len(pool), size))
    times.sort()
    worst, pool_size, size = times[-1]
    return {
        "requests": len(times),
        "p50_ms": round(times[len(times) // 2][0], 1),
        "p99_ms": round(times[int(len(times) * 0.99)][0], 1),
        "max_ms": round(worst, 1),
        "slowest": f"{size} of {pool_size}",
        "joined": joined(topology, topology.preferred_cards),
        "first": joined(topology, lambda free, _, size: _first_or_preferred(topology, free, size)),
    }


def joined(topology: Topology, choose: Choice) -> float:
    """Points that pods of several cards got while pods came and went, in per cent of those on the empty machine."""
    best = {size: topology.total(topology.preferred_cards(CARDS, (), size)) for size in (2, 4)}
    known: dict[tuple[frozenset[str], int], tuple[str, ...]] = {}
    got = wanted = 0
    for seed in range(SEEDS):
        rng = random.Random(seed)
        free, held = set(CARDS), list[tuple[str, ...]]()
        for _ in range(CHURN):
            if held and rng.random() < 0.5:
                free.update(held.pop(rng.randrange(len(held))))
                continue
            key = frozenset(free), rng.choice((1, 1, 1, 2, 4))
            chosen = known[key] = known[key] if key in known else choose(free, (), key[1])
            if chosen:
                held.append(chosen)
                free.difference_update(chosen)
                got += topology.total(chosen)
                wanted += best.get(len(chosen), 0)
    return round(100 * got / wanted, 1)


def _first_or_preferred(topology: Topology, free: Collection[str], size: int) -> tuple[str, ...]:
    return tuple(sorted(free)[:1]) if size == 1 else topology.preferred_cards(free, (), size)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description="Time to choose whole cards on machines of 16 cards.")
    parser.add_argument("--json", metavar="FILE", help="write the figures here as well")
    args = parser.parse_args()
    rows = [{"machine": name, **measure(topology)} for name, topology in machines().items()]
    times = f"{'p50 ms':>7} {'p99 ms':>7} {'max ms':>7}  {'slowest':<9}"
    print(f"{'machine':>26} {'requests':>8} {times} {'joined':>6} {'first':>6}")
    for row in rows:
        print(
            f"{row['machine']:>26} {row['requests']:>8} {row['p50_ms']:>7} {row['p99_ms']:>7} {row['max_ms']:>7}"
            f"  {row['slowest']:<9} {row['joined']:>6} {row['first']:>6}"
        )
    if args.json:
        File(args.json).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
