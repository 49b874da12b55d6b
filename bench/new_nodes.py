"""How often the fewest new nodes for waiting pods with whole cards are found and proven, and what the search costs.

Nodes have 8 cards, 96 CPUs and 768 GiB. Pods ask for 1, 2 or 4 cards, 1 to 48 CPUs and 10 to 390 GiB at random. The
number is proven if the search ended before its steps did. A block is the time in which the event loop does nothing
else, in CPU time of the process, so that it is the same on a busy machine.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence

import click

from tessera.controller.scale_up.node_packing import pack
from tessera.controller.scale_up.patterns import Vector
from tessera.limits.provisioning import PACKING_STEPS
from tessera.placement.step_budget import StepBudget

CAPACITY = (8, 96, 768)


def draw(rng: random.Random, kinds: int, alike: int) -> Counter[Vector]:
    """Requests of so many kinds, each of so many pods."""
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


async def measure(sets: Sequence[Counter[Vector]], steps: int) -> tuple[int, int, float, float]:
    """Returns the number of sets that were proven, all nodes, CPU seconds a set, and the longest block in seconds."""
    proven, nodes, longest, begin = 0, 0, 0.0, time.process_time()
    for requests in sets:
        work = StepBudget(steps)
        task = asyncio.ensure_future(pack(CAPACITY, requests, requests.total(), work))
        longest = max(longest, await longest_block(task))
        nodes += len(await task or ())
        proven += not work.is_spent
    return proven, nodes, (time.process_time() - begin) / len(sets), longest


@click.command()
@click.option("--sets", default=40, help="Random sets of pods in each row.")
@click.option("--steps", default=int(PACKING_STEPS), help="Steps of a search.")
def main(sets: int, steps: int) -> None:
    """Prints a row for each size of a set."""
    print(f"{'kinds':>5} {'alike':>5} {'proven':>8} {'nodes':>7} {'CPU ms':>7} {'block ms':>8}")
    for kinds, alike in ((8, 1), (12, 1), (16, 1), (20, 1), (30, 1), (2, 200), (3, 200), (4, 200), (10, 100), (30, 33)):
        rng = random.Random(kinds)
        drawn = [draw(rng, kinds, alike) for _ in range(sets)]
        proven, nodes, cpu, block = asyncio.run(measure(drawn, steps))
        print(f"{kinds:5} {alike:5} {proven:5}/{sets} {nodes:7} {1000 * cpu:7.0f} {1000 * block:8.1f}", flush=True)


if __name__ == "__main__":
    main()
