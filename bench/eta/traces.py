"""Traces of pods: synthetic ones, and Alibaba's openb."""

import csv
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: Memory slots of the profiles.
SLOTS = {"1g.5gb": 1, "2g.10gb": 2, "3g.20gb": 4, "4g.20gb": 4, "7g.40gb": 8}
#: Pods of a synthetic trace, and their demand as a share of the cards.
PODS, LOAD = 3000, 0.95


@dataclass(frozen=True, slots=True)
class Job:
    """A pod of a trace.

    Attributes:
        name: its name.
        arrival: seconds since the beginning.
        life: seconds that it runs.
        profiles: its slices.
        namespace: its namespace.
        owner: kind of its owner.
        deadline: ``activeDeadlineSeconds``; None without.
    """

    name: str
    arrival: float
    life: float
    profiles: tuple[str, ...]
    namespace: str = "default"
    owner: str = "Job"
    deadline: int | None = None


def teams(seed: int) -> tuple[list[Job], int]:
    """Four teams with habits of their own on 32 cards at load 0.95: short jobs, training, notebooks, services."""
    kinds = [
        # share of arrivals, namespace, owner, median life, spread, profiles
        (0.55, "batch", "Job", 600.0, 0.6, ("1g.5gb", "2g.10gb")),
        (0.25, "train", "Job", 3600.0, 1.0, ("3g.20gb", "7g.40gb")),
        (0.15, "notebooks", "StatefulSet", 5400.0, 0.8, ("1g.5gb", "2g.10gb", "3g.20gb")),
        (0.05, "serve", "ReplicaSet", 20_000.0, 1.2, ("2g.10gb", "7g.40gb")),
    ]
    rng = random.Random(seed)
    drawn = []
    for _ in range(PODS):
        _, namespace, owner, median, spread, profiles = rng.choices(kinds, [kind[0] for kind in kinds])[0]
        drawn.append((namespace, owner, median * rng.lognormvariate(0, spread), rng.choice(profiles)))
    return _poisson(rng, drawn, cards=32, load=LOAD), 32


def exponential(seed: int) -> tuple[list[Job], int]:
    """Exponential lives of half an hour, all profiles alike, on 32 cards at load 0.95."""
    rng = random.Random(seed)
    profiles = ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
    drawn = [("team", "Job", rng.expovariate(1 / 1800), rng.choice(profiles)) for _ in range(PODS)]
    return _poisson(rng, drawn, cards=32, load=LOAD), 32


def sweeps(seed: int) -> tuple[list[Job], int]:
    """Pods that come in sweeps, 20 on average, on 32 cards at load 0.95: those of one sweep are alike and end alike."""
    rng = random.Random(seed)
    profiles = ("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb")
    drawn: list[tuple[str, str, float, str]] = []
    sweeps: list[int] = []
    while len(drawn) < PODS:
        team, profile, median = rng.randrange(4), rng.choice(profiles), 1200 * rng.lognormvariate(0, 1.5)
        pods = min(PODS - len(drawn), 1 + int(rng.expovariate(1 / 20)))
        sweeps.append(pods)
        drawn += [(f"team-{team}", "Job", median * rng.lognormvariate(0, 0.4), profile) for _ in range(pods)]
    rate, now = _rate(drawn, cards=32, load=LOAD), 0.0
    jobs: list[Job] = []
    for pods in sweeps:
        now += rng.expovariate(rate * len(sweeps) / len(drawn))
        for _ in range(pods):
            namespace, owner, life, profile = drawn[len(jobs)]
            jobs.append(Job(f"p{len(jobs)}", now + rng.uniform(0, 60), life, (profile,), namespace, owner))
    return sorted(jobs, key=lambda job: job.arrival), 32


def deadlines(seed: int) -> tuple[list[Job], int]:
    """As the teams, where nine of ten Jobs end at their deadline, which their pods state."""
    jobs, cards = teams(seed)
    rng = random.Random(seed)
    found = []
    for job in jobs:
        most = int(job.life) + 1 if job.owner == "Job" and rng.random() < 0.9 else None
        found.append(Job(job.name, job.arrival, job.life, job.profiles, job.namespace, job.owner, most))
    return found, cards


def _poisson(rng: random.Random, drawn: Sequence[tuple[str, str, float, str]], *, cards: int, load: float) -> list[Job]:
    rate, now, jobs = _rate(drawn, cards=cards, load=load), 0.0, []
    for number, (namespace, owner, life, profile) in enumerate(drawn):
        now += rng.expovariate(rate)
        jobs.append(Job(f"p{number}", now, life, (profile,), namespace, owner))
    return jobs


def _rate(drawn: Sequence[tuple[str, str, float, str]], *, cards: int, load: float) -> float:
    """Pods a second that fill a share of the cards."""
    return load * cards * 8 * len(drawn) / sum(life * SLOTS[profile] for _, _, life, profile in drawn)


def openb(folder: Path) -> tuple[list[Job], int]:
    """The GPU pods of openb's default trace; see :mod:`bench.eta.__main__`."""
    rows = []
    with (folder / "openb_pod_list_default.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            count, milli = int(row["num_gpu"]), int(row["gpu_milli"])
            begun = float(row["scheduled_time"] or row["creation_time"])
            if count and row["deletion_time"]:
                life = float(row["deletion_time"]) - begun
                rows.append((float(row["creation_time"]), life, count, milli, row["qos"]))
    rows.sort()
    rows = rows[len(rows) // 10 :]  # what came before ran when the trace began
    jobs = [
        Job(f"p{number}", arrival - rows[0][0], max(1.0, life), _profiles(count, milli), qos.lower(), "Job")
        for number, (arrival, life, count, milli, qos) in enumerate(rows)
    ]
    end = jobs[-1].arrival
    used = sum(min(job.life, end - job.arrival) * sum(SLOTS[each] for each in job.profiles) for job in jobs)
    return jobs, max(8, round(used / end / 8 / 0.95))


def _profiles(count: int, milli: int) -> tuple[str, ...]:
    if count > 1:
        return ("7g.40gb",) * min(count, 8)
    wanted = min(milli, 1000)
    return (next(name for name in ("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb") if SLOTS[name] * 125 >= wanted),)


#: By name, the traces that need no data.
SYNTHETIC = {"teams": teams, "exponential": exponential, "deadlines": deadlines, "sweeps": sweeps}
