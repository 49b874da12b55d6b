"""How often the fewest new nodes for waiting pods with whole cards are found and proven, and what the search costs.

Nodes have 8 cards, 96 CPUs and 768 GiB. Pods ask for 1, 2 or 4 cards, 1 to 48 CPUs and 10 to 390 GiB at random; or a
node has 128 shares, and pods ask for 1 to 4 shares, up to 8 CPUs and 40 GiB. The number is proven if the search ended
before its steps did. The last rows are of slices: a thousand pods with 1 to so many each, for 100 nodes of eight A100.

A block is the time in which the event loop does nothing else, in CPU time of the process, which depends less on other
work of the machine. Collections of garbage leave out what was there before the searches.
"""

import asyncio
import gc
import random
import time
from collections import Counter
from collections.abc import Sequence

import click

from tessera.api.names import PodUid
from tessera.api.nodes.node_groups import parse_node_groups
from tessera.controller.objects.pod_info import PodInfo
from tessera.placement.demand import StepBudget
from tessera.scale_up.new_nodes import PACKING_STEPS, plan_new_nodes
from tessera.scale_up.node_packing import pack
from tessera.scale_up.patterns import Vector

#: What a node has: cards, CPUs and GiB; or shares, millicores and MiB.
CARDS, SHARES = (8, 96, 768), (128, 96_000, 786_432)
#: The group of nodes with slices.
SLICES = """
groups:
  - name: a
    selector: {pool: a}
    cards: {model: A100-40GB, count: 8}
    allocatable: {cpu: 96, memory: 768Gi}
    max: 100
"""


def draw(rng: random.Random, kinds: int, alike: int, capacity: Vector) -> Counter[Vector]:
    """Requests of so many kinds, each of so many pods."""
    if capacity == SHARES:
        return Counter(
            {(rng.randrange(1, 5), rng.randrange(100, 8000), rng.randrange(512, 40_960)): alike for _ in range(kinds)}
        )
    found = {(rng.choice([1, 1, 2, 4]), rng.randrange(1, 49), rng.randrange(1, 40) * 10): alike for _ in range(kinds)}
    return Counter(found)


async def longest_block(run: "asyncio.Task[object]") -> float:
    """Returns the longest CPU time between two turns of the event loop while the task runs, in seconds."""
    longest, last = 0.0, time.process_time()
    while not run.done():
        await asyncio.sleep(0)
        now = time.process_time()
        longest, last = max(longest, now - last), now
    return longest


async def measure(sets: Sequence[Counter[Vector]], capacity: Vector, steps: int) -> tuple[int, int, float, float]:
    """Returns the number of sets that were proven, all nodes, CPU seconds a set, and the longest block in seconds."""
    proven, nodes, longest, begin = 0, 0, 0.0, time.process_time()
    for requests in sets:
        work = StepBudget(steps)
        task = asyncio.ensure_future(pack(capacity, requests, requests.total(), work))
        longest = max(longest, await longest_block(task))
        nodes += len(await task or ())
        proven += not work.is_spent
    return proven, nodes, (time.process_time() - begin) / len(sets), longest


async def plan_slices(most: int) -> tuple[int, float, float]:
    """Returns the nodes for pods with up to so many slices, CPU seconds, and the longest block in seconds."""
    rng = random.Random(most)
    profiles = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
    pods = [
        PodInfo(
            PodUid(f"{number}"),
            "team",
            f"p{number}",
            profiles=tuple(sorted(rng.choices(profiles, k=rng.randint(1, most)))),
            amounts={"cpu": rng.randrange(1000, 20_000), "memory": rng.randrange(1, 200) << 30},
        )
        for number in range(1000)
    ]
    begin = time.process_time()
    task = asyncio.ensure_future(plan_new_nodes(pods, parse_node_groups(SLICES), {}))
    longest = await longest_block(task)
    return sum(each.count for each in (await task).values()), time.process_time() - begin, longest


@click.command()
@click.option("--sets", default=40, help="Random sets of pods in each row.")
@click.option("--steps", default=int(PACKING_STEPS), help="Steps of a search.")
def main(sets: int, steps: int) -> None:
    """Prints a row for each size of a set."""
    print(f"{'of':>6} {'kinds':>5} {'alike':>5} {'proven':>8} {'nodes':>7} {'CPU ms':>7} {'block ms':>8}")
    cards = ((8, 1), (12, 1), (16, 1), (20, 1), (30, 1), (2, 200), (3, 200), (4, 200), (10, 100), (30, 33), (64, 15))
    gc.freeze()
    rows = [("cards", CARDS, *each) for each in cards]
    rows += [("shares", SHARES, *each) for each in ((4, 200), (10, 100), (30, 33))]
    for of, capacity, kinds, alike in rows:
        rng = random.Random(kinds)
        drawn = [draw(rng, kinds, alike, capacity) for _ in range(sets)]
        proven, nodes, cpu, block = asyncio.run(measure(drawn, capacity, steps))
        line = f"{of:>6} {kinds:5} {alike:5} {proven:5}/{sets} {nodes:7} {1000 * cpu:7.0f} {1000 * block:8.1f}"
        print(line, flush=True)
    for most in (1, 2, 8):
        count, cpu, block = asyncio.run(plan_slices(most))
        print(f"slices {most:5} {'':5} {'':8} {count:7} {1000 * cpu:7.0f} {1000 * block:8.1f}", flush=True)


if __name__ == "__main__":
    main()
