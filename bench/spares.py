"""What spare slices bring to a service that grows on full cards, and what they cost.

    python -m bench.spares                        16 cards, 200 replicas, 0 to 3 spare slices, auto: a minute
    python -m bench.spares --replicas 100 --spares 0,1 --json spares.json --check

Simulated, by the production slicer; the API server and the agents answer at once. Batch pods of ``3g.20gb`` always wait
for room, and live an hour in the mean (exponential). Replicas of a service with such slices come, four an hour in the
mean (Poisson), and live two hours in the mean. Their queue has the weight of the batch pods'.

``wait`` is a replica's time until it has its slice, and ``waited`` the share that had to wait. ``idle`` is the mean of
the spare memory slots that are free. ``by rate`` is the share that would wait by the arrival rate and the mean wait of
a replica without spare slices, which is the time until the next slice ends (``tessera autoscaler warm`` reckons so).
``cost`` is in hours of an idle slice for each replica, an hour of waiting for 10 (``spec.waitingPrice``).

``auto`` is the number that the controller reckons (:mod:`tessera.handover.spare_sizes`), which it knows nothing for at
first; its mean over time is ``slices``. "Missed" is said if it costs more than a quarter more than the best number.
"""

import argparse
import heapq
import json
import math
import random
import statistics
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.reservations import BEGIN, Town

from tessera.api.names import GATE, PodUid
from tessera.api.queues import AUTO, WAITING_PRICE, Queue
from tessera.clock import rfc3339
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.events import QueueObserved
from tessera.handover.satellite import HandOverSatellite
from tessera.provisioning.warm_nodes import pool

PROFILE, SIZE, BACKLOG = "3g.20gb", 4, 8
PER_HOUR, BATCH_LIFE, SERVICE_LIFE = 4.0, 3600.0, 7200.0


class Story:
    """One run.

    Args:
        spare: spare slices, or ``auto``.
        given: the options.
    """

    def __init__(self, spare: str, given: argparse.Namespace) -> None:
        self._rng, self._rest = random.Random(given.seed), random.Random(given.seed + 1)
        self.town = Town(given.cards, 60.0, proposers=[HandOverSatellite().make])
        fixed = {} if spare in ("0", AUTO) else {PROFILE: int(spare)}
        auto = frozenset({PROFILE} if spare == AUTO else ())
        serving = Queue(name="serving", namespaces=frozenset({"serving"}), spare=fixed, auto=auto)
        for queue in (serving, Queue(name="batch", namespaces=frozenset({"batch"}))):
            self.town.slicer.handle(QueueObserved(queue))
        self._came: dict[PodUid, float] = {}
        self._ends: list[tuple[float, PodUid]] = []
        self._idle, self._kept, self._since, self._number = 0.0, 0.0, BEGIN, 0
        self.waits: list[float] = []

    def _put(self, namespace: str, now: float) -> None:
        self._number += 1
        uid = PodUid(f"{namespace}-{self._number:06}")
        pod = PodInfo(uid, namespace, uid, gates=(GATE,), profiles=(PROFILE,), amounts={"cpu": 1}, created=rfc3339(now))
        if namespace == "serving":
            pod = replace(pod, maker="ReplicaSet/svc-1", owner="svc")
        self._came[uid] = now
        self.town.put(pod)

    def step(self, now: float) -> None:
        """Time passes: pods end, others take their place, and batch pods wait again."""
        self._idle += self._free * (now - self._since)
        kept = self.town.slicer.state.ledger.spares.get("serving", {}).get(PROFILE, 0)
        self._kept += kept * (now - self._since)
        self._since = now
        while self._ends and self._ends[0][0] <= now:
            self.town.end(heapq.heappop(self._ends)[1])
        self.town.settle(now)
        waiting = sum(pod.gated and pod.namespace == "batch" for pod in self.town.pods.values())
        for _ in range(BACKLOG - waiting):
            self._put("batch", now)
        self.town.settle(now)
        for uid in self.town.started:
            is_batch = uid.startswith("batch")
            life = self._rest.expovariate(1 / (BATCH_LIFE if is_batch else SERVICE_LIFE))
            heapq.heappush(self._ends, (now + life, uid))
            if not is_batch:
                self.waits.append(now - self._came[uid])
        again, self.town.started = bool(self.town.started), []
        if again:
            self.step(now)

    @property
    def _free(self) -> int:
        """Spare memory slots that are free."""
        state = self.town.slicer.state
        kept = state.reservations.spare.values()
        return sum(each.slots for each in kept if each.until <= state.now and not each.holders & self.town.pods.keys())

    def play(self, replicas: int) -> dict[str, Any]:
        """Plays until so many replicas have come."""
        self.step(BEGIN)
        arrival = BEGIN + 2 * BATCH_LIFE
        for _ in range(replicas):
            while self._ends and self._ends[0][0] <= arrival:
                self.step(self._ends[0][0])
            self.step(arrival)
            self._put("serving", arrival)
            self.step(arrival)
            arrival += self._rng.expovariate(PER_HOUR / 3600)
        waits = self.waits
        passed = self._since - BEGIN
        idle_hours, waited_hours = self._idle / SIZE / 3600, sum(waits) / 3600
        return {
            "slices": self._kept / passed,
            "cost": (idle_hours + WAITING_PRICE * waited_hours) / replicas,
            "waited": sum(each > 0 for each in waits) / len(waits),
            "mean wait": statistics.fmean(waits),
            "p95 wait": statistics.quantiles(waits, n=20)[-1],
            "idle": self._idle / passed,
        }


def main() -> int:
    """Runs the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cards", type=int, default=16)
    parser.add_argument("--replicas", type=int, default=200)
    parser.add_argument("--spares", default="0,1,2,3,auto", help="numbers of spare slices, or auto")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true", help="fail unless each spare slice lowers the share that waits")
    given = parser.parse_args()
    found = {each: Story(each, given).play(given.replicas) for each in given.spares.split(",")}
    refill = next(iter(found.values()))["mean wait"]
    print(
        f"{'spare':>6}{'slices':>8}{'waited':>9}{'by rate':>9}{'mean wait':>12}{'p95 wait':>11}{'idle slots':>12}"
        f"{'cost':>8}"
    )
    for spare, row in found.items():
        if spare != AUTO:
            row["by rate"] = pool(int(spare), per_hour=PER_HOUR, seconds=refill, node_price=0).waits
        by_rate = f"{row['by rate']:.1%}" if "by rate" in row else ""
        print(
            f"{spare:>6}{row['slices']:>8.2f}{row['waited']:>9.1%}{by_rate:>9}{row['mean wait']:>10.0f} s"
            f"{row['p95 wait']:>9.0f} s{row['idle']:>12.2f}{row['cost']:>8.3f}"
        )
    if given.json:
        given.json.write_text(json.dumps(found, indent=2))
    fixed = [row for spare, row in found.items() if spare != AUTO]
    bad = any(later["waited"] >= earlier["waited"] > 0 for earlier, later in pairwise(fixed))
    if bad:
        print("missed: a further spare slice does not lower the share that waits")
    best = min((row["cost"] for row in fixed), default=math.inf)
    dear = AUTO in found and found[AUTO]["cost"] > 1.25 * best
    if dear:
        print("missed: auto costs over a quarter more than the best number")
    return int((bad or dear) and given.check)


if __name__ == "__main__":
    raise SystemExit(main())
