"""What an update costs a service on full cards: hand-over beside the strategies of a Deployment, under open-loop load.

    python -m bench.handover                         all cases, five seeds: some minutes
    python -m bench.handover --json handover.json
    python -m bench.handover --check                 exit code 1 if a bar is missed

Each run is the whole system in the lab, on virtual time: a service runs, another team's pod waits for its slots (not
with a spare card), and the image changes. Cards, pulls and containers are simulated, so the figures are ratios.

The load is open: Poisson arrivals at a rate for each wanted replica, in steps of ten. A request takes an exponential
time, at most a second, of one of a pod's places; it goes to the ready endpoint of the Service's EndpointSlice that has
the earliest free place, and waits there. It is *failed* if no endpoint is ready when it arrives, or if its pod ends
before it does; *late* if it takes more than a second. A pod that ends is taken from the EndpointSlice at once and
serves on for its drain.

``unserved`` is the time without a ready endpoint, ``update`` the time until only new pods run; ``-`` where that has not
come in the watched time. The last rows are of an image that fails: ``back`` is the time from its eviction, and from the
old pod's for an image that works, until a pod is ready.

Bars: with several replicas and a drain no request fails; with one, hand-over leaves the service unserved for drain and
load and :data:`SWITCH` seconds at most, at least :data:`TIMES` times less than ``maxSurge 0`` where both are 0; the way
back takes no longer than the way there, and :data:`SWITCH` seconds.
"""

import argparse
import asyncio
import heapq
import json
import random
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from tests.support.booted_lab import play
from tests.support.virtual_lab import VirtualLab

from tessera.api.names import HAND_OVER, UPDATE_ANNOTATION
from tessera.kube.resources import DEPLOYMENTS, SERVICES
from tessera_lab.kubelet.images.catalogue import ImageCatalogue, ProgramContext, SimulatedImage
from tessera_lab.simulation.virtual_time import run_virtual
from tessera_lab.workloads.objects.endpoints import ENDPOINT_SLICES

#: Requests each second for a replica; mean seconds of a request, the most, and the requests that a pod serves together.
RATES, SERVICE, LONGEST, PLACES = (0.5, 5.0, 50.0), 0.1, 1.0, 8
#: Seconds after which an answer is late.
LATE = 1.0
#: Seconds of a pull, of making a slice and of removing one, and between two looks at the endpoints.
PULL, SLICE, LOOK = 6.0, 0.2, 0.02
#: Seconds for which an update is watched.
WATCHED = 120.0
#: Seconds beyond drain and load that a switch may take, and the factor to ``maxSurge 0``.
SWITCH, TIMES = 1.5, 10.0


class Case(NamedTuple):
    """A cluster and its service.

    Attributes:
        nodes: as for ``tessera lab up --nodes``.
        profile: the service's slices.
        replicas: its pods.
        others: profiles of pods that run beside it.
        waits: another team's pod waits.
    """

    nodes: str
    profile: str
    replicas: int
    others: tuple[str, ...] = ()
    waits: bool = True


class Times(NamedTuple):
    """Seconds of drain and of load."""

    drain: float
    load: float


CASES = {
    "full, 1 replica": Case("1xA100-40GB", "7g.40gb", 1),
    "full, 3 replicas": Case("2xA100-40GB", "3g.20gb", 3, others=("3g.20gb",)),
    "one spare": Case("2xA100-40GB", "7g.40gb", 1, waits=False),
    "small free slices": Case("2xA100-40GB", "7g.40gb", 1, others=("1g.5gb", "2g.10gb")),
}
STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "maxSurge 0": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
    "Recreate": {"type": "Recreate"},
    HAND_OVER: {},
}
ALL_TIMES = (Times(0.0, 0.0), Times(2.0, 5.0))

#: What was ready at which time, the first entry at 0: the addresses.
Timeline = list[tuple[float, frozenset[str]]]


class Outcome(NamedTuple):
    """One update.

    Attributes:
        timeline: what was ready, from the update on.
        ended: when only new pods ran, or the old one again; None if that did not come.
        given_back: when a failed pod was evicted; None if none was.
    """

    timeline: Timeline
    ended: float | None
    given_back: float | None = None


def deployment(case: Case, strategy: str, image: str, times: Times) -> dict[str, Any]:
    """The service."""
    limits = {f"nvidia.com/mig-{case.profile}": 1}
    container: dict[str, Any] = {"name": "c", "image": image, "resources": {"limits": limits}}
    if times.load or image == "svc:bad":
        container["readinessProbe"] = {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 1}
    metadata: dict[str, Any] = {"labels": {"app": "svc"}}
    if strategy == HAND_OVER:
        metadata["annotations"] = {UPDATE_ANNOTATION: HAND_OVER}
    spec: dict[str, Any] = {
        "replicas": case.replicas,
        "selector": {"matchLabels": {"app": "svc"}},
        "template": {"metadata": metadata, "spec": {"containers": [container]}},
    }
    if STRATEGIES[strategy]:
        spec["strategy"] = STRATEGIES[strategy]
    return {"metadata": {"name": "svc"}, "spec": spec}


def catalogue(times: Times) -> ImageCatalogue:
    """The service's images: ``svc:1`` and ``svc:2`` serve after their load, ``svc:bad`` ends."""

    async def serve(context: ProgramContext) -> int:
        try:
            await context.clock.sleep(times.load)
            context.ready()
            await asyncio.Event().wait()
        finally:
            await context.clock.sleep(times.drain)
        return 0

    async def fail(context: ProgramContext) -> int:
        await context.clock.sleep(0.5)
        return 1

    size = 600.0
    images = {f"svc:{tag}": SimulatedImage(size_mib=size, program=serve) for tag in ("1", "2")}
    images["svc:bad"] = SimulatedImage(size_mib=size, program=fail)
    return ImageCatalogue(images, default_bandwidth=size / PULL)


def update(case: Case, strategy: str, times: Times, seed: int, image: str = "svc:2") -> Outcome:
    """Plays one update in a lab of its own."""

    async def scenario(lab: VirtualLab) -> Outcome:
        service = {"metadata": {"name": "svc"}, "spec": {"selector": {"app": "svc"}, "ports": [{"port": 8000}]}}
        await lab.client.create(SERVICES.as_dicts(), service, "default")
        for number, profile in enumerate(case.others):
            await lab.create(f"other-{number}", {f"nvidia.com/mig-{profile}": 1})
            await lab.running(f"other-{number}")
        await lab.client.create(DEPLOYMENTS.as_dicts(), deployment(case, strategy, "svc:1", times), "default")
        await lab.until(lambda: runs(lab, "svc:1", case.replicas), "the service runs")
        if case.waits:
            await lab.create("waits", {f"nvidia.com/mig-{case.profile}": 1})
        await lab.clock.sleep(60 + random.Random(seed).random())
        patch = {"spec": {"template": deployment(case, strategy, image, times)["spec"]["template"]}}
        await lab.client.merge_patch(DEPLOYMENTS.as_dicts(), "svc", patch, "default")
        return await watch(lab, case, image, times)

    options: dict[str, Any] = {
        "slice_seconds": SLICE,
        "catalogue": catalogue(times),
        "seed": seed,
        "mig_config": "dynamic",
    }
    with tempfile.TemporaryDirectory() as folder:
        found: Outcome = run_virtual(play(scenario, case.nodes, Path(folder), **options))
    return found


async def watch(lab: VirtualLab, case: Case, image: str, times: Times) -> Outcome:
    """Follows the endpoints until the update has ended, or for :data:`WATCHED` seconds, and a while longer."""
    wanted = "svc:1" if image == "svc:bad" else image
    began = lab.clock.monotonic()
    timeline: Timeline = []
    ended = given_back = None
    while (now := lab.clock.monotonic() - began) < WATCHED:
        ready = await addresses(lab)
        if not timeline or timeline[-1][1] != ready:
            timeline.append((now, ready))
        if given_back is None and any(each.reason == "SliceGivenBack" for each in lab.events.cache.values()):
            given_back = now
        is_back = image != "svc:bad" or given_back is not None
        if ended is None and is_back and runs(lab, wanted, case.replicas):
            ended = now
        if ended is not None and now > ended + times.drain + 5:
            break
        await lab.clock.sleep(LOOK)
    return Outcome(timeline, ended, given_back)


async def addresses(lab: VirtualLab) -> frozenset[str]:
    """The ready endpoints."""
    found = (await lab.client.get(ENDPOINT_SLICES, "svc-lab", "default")).get("endpoints") or ()
    return frozenset(each["addresses"][0] for each in found if (each.get("conditions") or {}).get("ready"))


def runs(lab: VirtualLab, image: str, replicas: int) -> bool:
    """True if so many pods of an image are ready, and no ready one has another."""
    pods = [each for each in lab.pods.cache.values() if each.metadata.labels.get("app") == "svc"]
    ready = [each.spec.containers[0].image for each in pods if lab.ready(each.metadata.name)]
    return ready == [image] * replicas


# The load


def requests(rate: float, seconds: float, rng: random.Random) -> Iterator[tuple[float, float]]:
    """Arrivals and the times that the requests take."""
    now = rng.expovariate(rate)
    while now < seconds:
        yield now, min(LONGEST, rng.expovariate(1 / SERVICE))
        now += rng.expovariate(rate)


def serve(outcome: Outcome, rate: float, times: Times, rng: random.Random) -> tuple[int, int, int]:
    """Plays the load over an update; returns all, failed and late requests."""
    timeline = outcome.timeline
    starts = [when for when, _ in timeline]
    places: dict[str, list[float]] = {}
    total = failed = late = 0
    for now, takes in requests(rate, starts[-1] + 5, rng):
        total += 1
        index = bisect_right(starts, now) - 1
        ready = timeline[index][1]
        if not ready:
            failed += 1
            continue
        target = min(sorted(ready), key=lambda each: places.setdefault(each, [0.0] * PLACES)[0])
        end = max(now, heapq.heappop(places[target])) + takes
        heapq.heappush(places[target], end)
        gone = next((when for when, found in timeline[index + 1 :] if target not in found), None)
        if gone is not None and end > gone + times.drain:
            failed += 1
        else:
            late += end - now > LATE
    return total, failed, late


def unserved(timeline: Timeline) -> float:
    """Seconds without a ready endpoint."""
    ends = [when for when, _ in timeline[1:]]
    return sum(end - when for (when, ready), end in zip(timeline, ends, strict=False) if not ready)


# The tables


def measure(name: str, strategy: str, times: Times, seeds: int) -> list[dict[str, Any]]:
    """One row for each rate."""
    case = CASES[name]
    outcomes = [update(case, strategy, times, seed) for seed in range(seeds)]
    ended = [each.ended for each in outcomes if each.ended is not None]
    rows = []
    for rate in RATES:
        found = [
            serve(each, rate * case.replicas, times, random.Random(seed * 1000 + RATES.index(rate)))
            for seed, each in enumerate(outcomes)
        ]
        rows.append(
            {
                "case": name,
                "strategy": strategy,
                **times._asdict(),
                "rate": rate,
                "replicas": case.replicas,
                "seeds": seeds,
                **dict(zip(("requests", "failed", "late"), map(sum, zip(*found, strict=True)), strict=True)),
                "unserved": fmean(unserved(each.timeline) for each in outcomes),
                "unserved_most": max(unserved(each.timeline) for each in outcomes),
                "update": max(ended) if len(ended) == seeds else None,
            }
        )
    return rows


def rollback(times: Times, seeds: int) -> dict[str, Any]:
    """The way there, and the way back from an image that fails."""
    case = CASES["full, 1 replica"]
    there = [unserved(update(case, HAND_OVER, times, seed).timeline) for seed in range(seeds)]
    back, away = [], []
    for seed in range(seeds):
        outcome = update(case, HAND_OVER, times, seed, "svc:bad")
        assert outcome.ended is not None, "the old revision does not come back"
        assert outcome.given_back is not None
        back.append(outcome.ended - outcome.given_back)
        away.append(unserved(outcome.timeline))
    return {**times._asdict(), "there": max(there), "back": max(back), "unserved": max(away)}


def broken_bars(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What misses a bar."""
    for row in rows:
        if row["strategy"] != HAND_OVER:
            continue
        what = f"{row['case']}, drain {row['drain']:.0f} s, load {row['load']:.0f} s, rate {row['rate']}"
        if row["update"] is None:
            yield f"{what}: the update does not end"
        if row["drain"] and (row["replicas"] > 1 or row["case"] == "one spare") and row["failed"]:
            yield f"{what}: {row['failed']} requests fail"
        if row["replicas"] == 1 and row["unserved_most"] > row["drain"] + row["load"] + SWITCH:
            yield f"{what}: unserved for {row['unserved_most']:.2f} s"
        other = next(
            each
            for each in rows
            if each["strategy"] == "maxSurge 0"
            and all(each[key] == row[key] for key in ("case", "drain", "load", "rate"))
        )
        bare = not row["drain"] and not row["load"]
        if bare and row["replicas"] == 1 and row["unserved"] * TIMES > other["unserved"]:
            yield f"{what}: {row['unserved']:.2f} s unserved, {other['unserved']:.2f} with maxSurge 0"


def main() -> None:
    """Measures each case and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="runs of each row")
    parser.add_argument("--cases", default=",".join(map(str, range(len(CASES)))), help="numbers of cases, from 0")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    given = parser.parse_args()
    names = [list(CASES)[int(number)] for number in given.cases.split(",")]
    rows: list[dict[str, Any]] = []
    print(
        f"pull {PULL:.0f} s, {SLICE} s to make a slice and to remove one; {given.seeds} seeds together\n"
        f"a pod serves {PLACES} requests together, {SERVICE} s each on average; rate: requests/s for a replica"
    )
    head = f"{'case':<18}{'strategy':<11}{'drain':>6}{'load':>5}{'rate':>6}{'requests':>9}{'failed':>8}{'late':>7}"
    print(f"{head}{'unserved s':>11}{'update s':>9}")
    for times in ALL_TIMES:
        for name in names:
            for strategy in STRATEGIES:
                for row in measure(name, strategy, times, given.seeds):
                    rows.append(row)
                    print(line(row), flush=True)
    backs = [rollback(times, given.seeds) for times in ALL_TIMES]
    for row in backs:
        print(
            f"drain {row['drain']:.0f} s, load {row['load']:.0f} s: there {row['there']:.2f} s; an image that fails:"
            f" back {row['back']:.2f} s after its eviction, unserved {row['unserved']:.2f} s with three restarts"
        )
    missed = list(broken_bars(rows))
    missed += [
        f"the way back takes {row['back']:.2f} s" for row in backs if row["back"] > row["there"] + SWITCH - row["drain"]
    ]
    print("\n".join(f"MISSED: {each}" for each in missed) or "all bars are met")
    if given.json is not None:
        given.json.write_text(json.dumps({"rows": rows, "rollback": backs, "missed": missed}, indent=1))
    if missed and given.check:
        sys.exit(1)


def line(row: Mapping[str, Any]) -> str:
    """A row of the table."""
    ended = "-" if row["update"] is None else f"{row['update']:.1f}"
    head = f"{row['case']:<18}{row['strategy']:<11}{row['drain']:>6.0f}{row['load']:>5.0f}{row['rate']:>6}"
    return f"{head}{row['requests']:>9}{row['failed']:>8}{row['late']:>7}{row['unserved']:>11.2f}{ended:>9}"


if __name__ == "__main__":
    main()
