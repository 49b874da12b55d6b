"""Scaling a service by its requests and by the room, against GPU load, Knative's formula and a fixed size.

    python bench/autoscale_services.py                       two days, 5 seeds: some 30 seconds
    python bench/autoscale_services.py --hours 3 --seeds 1 --json services.json --check

Simulated, by seconds. Requests arrive (Poisson) in a day from 5 to 50 a second and back; in the night, for half an
hour, 50 or 60 a second come at once. A replica computes 16 requests at a time, 1.6 s each in the mean (geometric): it
serves 10 a second. It is ready 60 s after it got its slice, one of ten `3g.20gb` on A100-40GB; from 10 to 12 o'clock
another team holds four of them. Requests wait in one queue, and leave it after 30 s. A request is in its SLO if it
waits 2 s at most. GPU-hours count the slice from the moment that the pod has it.

Compared, from 5 replicas, which serve 50 requests a second, to 12; all HPAs have the ``behavior`` of
``examples/services/hpa.yaml``:

- *load and room*: HPA on ``tessera_service_load`` with the target of that file, 16 a replica, which is what a replica
  computes at a time, and with the bound ``per-replica``; and the same from 3 replicas;
- *GPU load*: HPA on the mean share of time in which the cards compute, 0.8 or 0.9. A card computes while it has a
  request, as DCGM's GPU_UTIL counts; so the share is 1 - exp(-n) with n requests a replica in the last minute;
- *KPA*: Knative's formula (stable 60 s, panic 6 s at twice the capacity, 70 % of 16 requests);
- *fixed*: 6 replicas.

HPA's decisions are those of the lab's controller; a metric is 10 s old. Power is that of the simulated board: idle, and
up to its limit by the part of its requests, apportioned by memory slots.

With 50 a second no request is late by load and room, nor by GPU load: nothing can be better in SLO there, only in
GPU-hours. So "better in both" is asked of the day with 60.
"""

import argparse
import json
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml

from tessera_lab.workloads.autoscaling.replica_calculator import (
    Limits,
    MetricError,
    ScaleHistory,
    Target,
    Tolerances,
    by_average,
    by_pods,
)

LEAST, FEWER, MOST, SLICES, TAKEN = 5, 3, 12, 10, 4
AT_ONCE, SERVICE, START, PATIENCE, SLO = 16, 1.6, 60, 30, 2
LAG, HPA_PERIOD, KPA_PERIOD = 10, 15, 2
HOUR = 3600
HOURS, LATE = "GPU-hours", "late %"
#: Power limit of the board (NVIDIA A100 40GB SXM4 data sheet), and what the simulated one draws idle.
WATTS = 400.0
IDLE_WATTS = 0.15 * WATTS
#: Requests a second that come at once in the night of each day.
STEPS = (50, 60)
_HPA = yaml.safe_load((Path(__file__).parents[1] / "examples/services/hpa.yaml").read_text(encoding="utf-8"))["spec"]
PER_REPLICA = int(_HPA["metrics"][0]["external"]["target"]["averageValue"])
#: As the shipped file has it, and Kubernetes' defaults for what it leaves out.
BEHAVIOR: dict[str, Any] = {
    name: {"stabilizationWindowSeconds": 0, "selectPolicy": "Max", **rules} for name, rules in _HPA["behavior"].items()
}


@dataclass
class Service:
    """The service at one second.

    Attributes:
        wanted: replicas of its Deployment.
        starts: when each replica with a slice got it, the oldest first.
        running: requests that are computed.
        queue: waiting requests by second of arrival.
        load: requests of the last seconds, computed or waiting, and those that are computed.
    """

    wanted: int = LEAST
    starts: list[int] = field(default_factory=lambda: [-START] * LEAST)
    running: int = 0
    queue: deque[list[int]] = field(default_factory=deque)
    load: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=60))

    def ready(self, now: int) -> int:
        """Replicas that serve."""
        return sum(now - start >= START for start in self.starts)

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return sum(count for _, count in self.queue)

    def seen(self) -> tuple[int, int]:
        """Load and computed requests, as a scaler sees them."""
        return self.load[-LAG] if len(self.load) >= LAG else (0, 0)


class Scaler(Protocol):
    """Says how many replicas there should be."""

    def decide(self, service: Service, room: int, now: int) -> int:
        """Replicas from now on; ``room`` is the number of free slices."""
        ...


class Hpa:
    """A HorizontalPodAutoscaler with one metric."""

    def __init__(self, proposal: Callable[[Service, int, int], int], least: int = LEAST) -> None:
        self._propose, self._least = proposal, least
        self._history = ScaleHistory()

    def decide(self, service: Service, room: int, now: int) -> int:
        """See :class:`Scaler`."""
        if now % HPA_PERIOD:
            return service.wanted
        proposal = self._propose(service, room, now)
        after = self._history.follow(service.wanted, proposal, Limits(self._least, MOST, BEHAVIOR), now).replicas
        self._history.note_scaled(service.wanted, after, now)
        return after


def by_load(service: Service, room: int, now: int) -> int:
    """AverageValue of the load, bounded by what the replicas that have or find a place carry."""
    del now
    load = min(service.seen()[0], PER_REPLICA * (len(service.starts) + room))
    return by_average(1000 * load, 1000 * PER_REPLICA, Target(service.wanted, service.wanted, ()), Tolerances())


def by_gpu(target: float) -> Callable[[Service, int, int], int]:
    """The mean share of time in which cards compute, by pod."""
    return lambda service, _room, now: _by_gpu(service, now, target)


def _by_gpu(service: Service, now: int, target: float) -> int:
    ready = service.ready(now)
    computed = [running for _, running in service.load]
    share = 1 - math.exp(-sum(computed) / len(computed) / ready) if ready and computed else 0.0
    pods = [_pod(number, serves=number < ready) for number in range(service.wanted)]
    values = {f"p{number}": round(1000 * share) for number in range(ready)}
    try:
        return by_pods(values, round(1000 * target), Target(service.wanted, service.wanted, pods), Tolerances())
    except MetricError:
        return service.wanted


def _pod(number: int, *, serves: bool) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True" if serves else "False"}]
    return {
        "metadata": {"name": f"p{number}"},
        "status": {"phase": "Running" if serves else "Pending", "conditions": conditions},
    }


class Kpa:
    """Knative's pod autoscaler for concurrency."""

    def __init__(self) -> None:
        self._panic_until = -1
        self._highest = 0

    def decide(self, service: Service, room: int, now: int) -> int:
        """See :class:`Scaler`."""
        del room
        if now % KPA_PERIOD or not service.load:
            return service.wanted
        loads = [load for load, _ in service.load]
        target, ready = 0.7 * AT_ONCE, max(1, service.ready(now))
        stable, panic = (math.ceil(sum(part) / len(part) / target) for part in (loads, loads[-6:]))
        stable, panic = (min(max(each, ready // 2), 1000 * ready) for each in (stable, panic))
        if panic / ready >= 2:
            self._panic_until = now + 60
        if now < self._panic_until:
            self._highest = max(self._highest, panic, service.wanted)
            return min(max(self._highest, LEAST), MOST)
        self._highest = 0
        return min(max(stable, LEAST), MOST)


class Fixed:
    """A fixed size."""

    def decide(self, service: Service, room: int, now: int) -> int:
        """See :class:`Scaler`."""
        del service, room, now
        return 6


OWN, FROM_3, GPU_80, GPU_90 = "load and room", "the same, from 3", "GPU load, 0.8", "GPU load, 0.9"
SCALERS: dict[str, Callable[[], Scaler]] = {
    OWN: lambda: Hpa(by_load),
    FROM_3: lambda: Hpa(by_load, FEWER),
    GPU_80: lambda: Hpa(by_gpu(0.8)),
    GPU_90: lambda: Hpa(by_gpu(0.9)),
    "KPA": Kpa,
    "fixed, 6": Fixed,
}


def rate(now: int, hours: int, step: int, most: int) -> float:
    """Requests a second: a wave over the day, and half an hour of ``most`` in the night."""
    if step <= now < step + HOUR // 2:
        return float(most)
    day = 2 * math.pi * now / (hours * HOUR)
    return 5 + 45 * max(0.0, -math.cos(day))


def play(make: Callable[[], Scaler], seed: int, hours: int, most: int) -> dict[str, float]:
    """One day with a step to ``most`` requests a second; returns what it came to."""
    rng, scaler, service = random.Random(seed), make(), Service()
    step = round(hours * HOUR * rng.uniform(0.04, 0.15))
    sums = dict.fromkeys(("requests", "in time", "lost", "slice seconds", "joules", "gated"), 0.0)
    part = 4 / 8
    for now in range(hours * HOUR):
        taken = TAKEN if 10 <= now / HOUR * 24 / hours < 12 else 0
        room = max(0, SLICES - taken - len(service.starts))
        service.wanted = scaler.decide(service, room, now)
        while len(service.starts) > service.wanted:
            service.starts.pop()
        service.starts += [now] * min(room, service.wanted - len(service.starts))
        sums["gated"] = max(sums["gated"], service.wanted - len(service.starts))
        ready = service.ready(now)
        service.running = max(0, service.running - int(service.running / SERVICE + rng.random()))
        arrived = _poisson(rng, rate(now, hours, step, most))
        sums["requests"] += arrived
        if arrived:
            service.queue.append([now, arrived])
        while service.queue and now - service.queue[0][0] > PATIENCE:
            sums["lost"] += service.queue.popleft()[1]
        free = ready * AT_ONCE - service.running
        while free > 0 and service.queue:
            since, count = service.queue[0]
            taken_up = min(free, count)
            sums["in time"] += taken_up if now - since <= SLO else 0
            service.running, free = service.running + taken_up, free - taken_up
            service.queue[0][1] -= taken_up
            if not service.queue[0][1]:
                service.queue.popleft()
        service.load.append((service.running + service.waiting, service.running))
        sums["slice seconds"] += len(service.starts)
        active = service.running / AT_ONCE
        sums["joules"] += part * (len(service.starts) * IDLE_WATTS + active * (WATTS - IDLE_WATTS))
    served = sums["requests"] - sums["lost"] - service.waiting
    return {
        LATE: 100 - 100 * sums["in time"] / sums["requests"],
        "lost %": 100 * sums["lost"] / sums["requests"],
        HOURS: part * sums["slice seconds"] / HOUR,
        "GPU-hours per 1,000": part * sums["slice seconds"] / HOUR / served * 1000,
        "joules per 1,000": sums["joules"] / served * 1000,
        "gated": sums["gated"],
    }


def _poisson(rng: random.Random, mean: float) -> int:
    """A Poisson number, by multiplying uniform ones (Knuth)."""
    bound, count, product = math.exp(-mean), 0, rng.random()
    while product > bound:
        count, product = count + 1, product * rng.random()
    return count


def missed(found: dict[str, list[dict[str, float]]], most: int) -> list[str]:
    """The bars that one day misses, each in every seed: better than GPU load, and no pod beyond the room."""
    wrong: list[str] = []
    for seed, (own, low, high) in enumerate(zip(found[OWN], found[GPU_80], found[GPU_90], strict=True), 1):
        bars = {
            "GPU-hours better than GPU load": own[HOURS] < min(low[HOURS], high[HOURS]),
            "SLO better than GPU load, or none late": own[LATE] < min(low[LATE], high[LATE]) or own[LATE] == 0,
            "no pod beyond the room": not own["gated"],
        }
        wrong += [f"{bar}, {most} a second, seed {seed}" for bar, met in bars.items() if not met]
    return wrong


def show(found: dict[str, list[dict[str, float]]], most: int) -> None:
    """Prints one day."""
    columns = list(found[OWN][0])
    print(f"a step to {most} requests a second, least to most of the seeds (simulated)")
    print("  ".join([f"{'scaled by':18}", *(f"{each:>21}" for each in columns)]))
    for name, rows in found.items():
        cells = (f"{min(each[key] for each in rows):9.3f} to {max(each[key] for each in rows):8.3f}" for key in columns)
        print("  ".join([f"{name:18}", *(f"{cell:>21}" for cell in cells)]))


def main() -> int:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    options = parser.parse_args()
    days: dict[int, dict[str, list[dict[str, float]]]] = {}
    wrong: list[str] = []
    for most in STEPS:
        days[most] = {
            name: [play(make, seed, options.hours, most) for seed in range(1, options.seeds + 1)]
            for name, make in SCALERS.items()
        }
        show(days[most], most)
        wrong += missed(days[most], most)
    for bar in wrong:
        print(f"missed: {bar}")
    if options.json:
        options.json.write_text(json.dumps({"simulated": True, "hours": options.hours, "found": days}, indent=1))
    return int(bool(wrong) and options.check)


if __name__ == "__main__":
    raise SystemExit(main())
