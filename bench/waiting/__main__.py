"""What a released slot costs while many pods wait.

    python -m bench.waiting                                   20,000 pods, 100 nodes of 8 cards
    python -m bench.waiting --pods 2000 20000 --json waiting.json

The cards are full, and pods of few or many kinds wait for them. *kind*: pods that planning cannot tell apart, see
docs/decisions/pod-kinds.md. *first* is the CPU of all decisions until each waiting pod is refused for the first time,
*release* the median of all decisions after one pod has ended. The alternative is the last row of each size: there every
pod has a deadline, so that it is of no kind and is asked by itself each time. The API server and the agents answer at
once; their part is counted too.
"""

import argparse
import gc
import json
import os
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.reservations import BEGIN, Town

from tessera.api.names import GATE, PodUid
from tessera.cli.base.process import reduce_garbage_collection
from tessera.clock import rfc3339
from tessera.controller.objects.pod_info import PodInfo

PROFILES = ("1g.5gb", "2g.10gb", "3g.20gb")
RELEASES = 5


def measure(pods: int, kinds: int, *, alike: bool, nodes: int) -> dict[str, Any]:
    """One row of the table."""
    town = Town(8 * nodes, None)
    held = 16 * nodes
    for number in range(held + pods):
        waits = number >= held
        kind = number % kinds if waits else 0
        pod = PodInfo(
            uid=PodUid(f"u{number}"),
            namespace=f"team-{kind}",
            name=f"p{number:06}",
            gates=(GATE,),
            profiles=(PROFILES[kind % 3],) if waits else ("3g.20gb",),
            amounts={"cpu": 1_000 + kind, "pods": 1},
            created=rfc3339(BEGIN + number),
        )
        town.put(pod if alike or not waits else replace(pod, deadline=10**9 + float(number)))
        if number == held - 1:
            town.settle(BEGIN)
    gc.collect()
    reduce_garbage_collection()  # as the controller's process does
    first = settle(town)
    took = []
    for number in range(RELEASES):
        town.end(PodUid(f"u{number}"))
        took.append(settle(town))
    return {
        "pods": pods,
        "kinds": kinds,
        "alike": alike,
        "first_s": first,
        "release_ms": 1000 * statistics.median(took),
    }


def settle(town: Town) -> float:
    """CPU seconds until nothing is left to do."""
    began = time.process_time()
    town.settle(BEGIN + 1)
    return time.process_time() - began


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pods", type=int, nargs="*", default=[1_000, 20_000])
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    given = parser.parse_args()
    rows = []
    print(f"{'pods':>8} {'kinds':>6} {'asked':>13} {'first s':>9} {'release ms':>11}")
    for pods in given.pods:
        for kinds, alike in ((3, True), (120, True), (3, False)):
            row = measure(pods, kinds, alike=alike, nodes=given.nodes)
            rows.append(row)
            asked = "by kind" if alike else "one by one"
            print(
                f"{pods:>8,} {kinds:>6} {asked:>13} {row['first_s']:>9.2f} {row['release_ms']:>11.1f}",
                flush=True,
            )
    print(f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if given.json:
        given.json.write_text(json.dumps({"load_average": os.getloadavg(), "rows": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
