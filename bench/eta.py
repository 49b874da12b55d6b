"""Back-tests the expected starts of waiting pods: on Alibaba's openb trace and on synthetic ones.

    python bench/eta.py ../shared/data/openb           four traces, with and without reservations
    python bench/eta.py --traces teams --json eta.json

The real slicer runs the trace. Each pod that has to wait is forecast once, with what was known then, and compared with
its start. *before p90* is the share of the forecast pods that started before the end of their range; the bar is 80 %.
*loss* is the pinball loss of the two ends of the range (0.5 and 0.9), in seconds a pod; *mean 20* is that of the mean
wait of the last 20 pods of the same size, *quantiles 20* that of the quantiles of those 20 waits; less is better.
*reason* is the share of waiting pods for which the removal of the named blockers makes the pod fit; the bar is 95 %.
*known* is the share of the waiting pods with a forecast that does not say "unknown".

openb has GPU shares, which are rounded up to MIG profiles, arrivals and lives; its cluster was so large that hardly
anything waited. So the trace runs on as many cards as its demand fills to 95 %, its idle first two thirds left out.
"""

import argparse
import csv
import json
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import msgspec

from tessera.agent.inventory.sliceable_gpus import placements
from tessera.api.instaslice import Instaslice, InstasliceSpec, InstasliceStatus, NodeResources
from tessera.api.names import GATE, HOSTNAME_LABEL, MIG_CONFIG_LABEL, NodeName, PodUid, resource_of
from tessera.clock import rfc3339
from tessera.controller.forecasting.forecaster import Forecaster
from tessera.controller.objects.node_info import NodeInfo
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.batch_placement import Placed
from tessera.controller.slicing.events import (
    InstasliceObserved,
    NodeObserved,
    PodDeleted,
    PodObserved,
    TimePassed,
    WriteDone,
)
from tessera.controller.slicing.instructions import PatchRequests, RecordEvent, Ungate, Write
from tessera.controller.slicing.reservation_rules import reservations_before
from tessera.controller.slicing.slicer import Slicer
from tessera.forecast.calibration import Calibration
from tessera.forecast.history_text import History
from tessera.forecast.lives import LifeHistory
from tessera.forecast.queue_page import QueuedPod
from tessera.forecast.start_times import StartTimes
from tessera.forecast.survival import quantile
from tessera.kube.resources import Pod
from tessera.kube.resources.meta import ObjectMeta, Uid
from tessera.mig.models import model_by_short_name

#: When a trace begins, seconds since 1970.
BEGIN = 1_700_000_000.0
_MODEL = "A100-40GB"


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


class ReplayedCluster:
    """Nodes of eight cards.

    Args:
        cards: number of cards.
        reserve_after: seconds after which slots are reserved for a waiting pod; None for never.

    Attributes:
        now: the time, seconds since 1970.
        running: by UID, the jobs that have slices.
        started: jobs that got their slices since this was last emptied.
    """

    def __init__(self, cards: int, reserve_after: float | None) -> None:
        self.now = BEGIN
        self.slicer = Slicer(reserve_after)
        self.forecaster = Forecaster(History(LifeHistory(BEGIN), StartTimes(), Calibration()))
        self.running: dict[PodUid, Job] = {}
        self.started: list[tuple[PodUid, Job]] = []
        self._jobs: dict[PodUid, Job] = {}
        self._pods: dict[PodUid, PodInfo] = {}
        self._objects: dict[str, Instaslice] = {}
        self._version = 0
        for number in range((cards + 7) // 8):
            self._add_node(f"n{number}", min(8, cards - 8 * number))

    def _add_node(self, name: str, cards: int) -> None:
        model = model_by_short_name(_MODEL)
        gpus = [
            {"gpuUuid": f"GPU-{name}-{each}", "gpuName": model.product_name, "gpuMemory": "40960Mi"}
            for each in range(cards)
        ]
        table = msgspec.to_builtins(placements(model.geometry))
        resources = msgspec.convert({"nodeGpus": gpus, "migPlacement": table, "bootId": "b"}, NodeResources)
        amounts = {resource_of(row.name): row.max_count * cards for row in model.geometry.profiles}
        self._objects[name] = Instaslice(
            metadata=ObjectMeta(name=name, namespace="instaslice-system", uid=Uid(f"o-{name}")),
            status=InstasliceStatus(node_resources=resources),
        )
        node = NodeInfo(
            name=NodeName(name),
            hostname=name,
            labels={MIG_CONFIG_LABEL: "dynamic", HOSTNAME_LABEL: name},
            allocatable={"cpu": 10**9, "memory": 2**50, "pods": 10**6, **amounts},
        )
        self.slicer.handle(NodeObserved(node))
        self._observe(name)

    def _observe(self, name: str) -> None:
        self._version += 1
        item = self._objects[name]
        metadata = msgspec.structs.replace(item.metadata, resource_version=str(self._version))
        self._objects[name] = msgspec.structs.replace(item, metadata=metadata)
        self.slicer.handle(InstasliceObserved(self._objects[name]))

    # The trace

    def submit(self, job: Job) -> PodUid:
        """A job's pod is created."""
        uid = PodUid(f"u-{job.name}")
        pod = PodInfo(
            uid=uid,
            namespace=job.namespace,
            name=job.name,
            gates=(GATE,),
            profiles=job.profiles,
            amounts={"pods": 1},
            created=rfc3339(self.now),
            deadline=None if job.deadline is None else float(job.deadline),
        )
        self._jobs[uid] = job
        self._put(pod)
        self._track(uid)
        self.settle()
        return uid

    def end(self, uid: PodUid) -> None:
        """A pod ends and is deleted."""
        self.running.pop(uid, None)
        self.forecaster.tracker.drop(uid, self.now)
        del self._pods[uid]
        self.slicer.handle(PodDeleted(uid))
        self.settle()

    def settle(self) -> None:
        """Decides and writes until nothing is left to do."""
        self.slicer.handle(TimePassed(self.now, self.now))
        while True:
            self.slicer.decide()
            writes = [each for each in self.slicer.pop_writes() if not isinstance(each, RecordEvent)]
            for write in writes:
                self._answer(write)
            if not writes and not self.slicer.has_work:
                return

    def forecast(self) -> None:
        """The forecaster makes a new page."""
        for _ in self.forecaster.run(self.slicer.state, self.now, {}):
            pass

    def waits(self, uid: PodUid) -> bool:
        """True if a pod has no slices yet."""
        return uid in self._pods and uid not in self.running

    def pod(self, uid: PodUid) -> PodInfo:
        """A pod as it is now."""
        return self._pods[uid]

    # The API server

    def _put(self, pod: PodInfo) -> None:
        self._pods[pod.uid] = pod
        self.slicer.handle(PodObserved(pod))

    def _answer(self, write: Write) -> None:
        match write:
            case PatchRequests():
                item = self._objects[write.node]
                known = item.spec.pod_allocation_requests
                requests = {uid: each for uid, each in known.items() if uid not in write.drop}
                requests |= {str(uid): each for uid, each in write.put.items()}
                spec = InstasliceSpec(pod_allocation_requests=requests)
                notes = {**item.metadata.annotations, **(write.annotations or {})}
                annotations = {name: text for name, text in notes.items() if text is not None}
                metadata = msgspec.structs.replace(item.metadata, annotations=annotations)
                self._objects[write.node] = msgspec.structs.replace(item, spec=spec, metadata=metadata)
                self._observe(write.node)
            case Ungate():
                pod = self._pods.get(write.uid)
                if pod is not None:
                    node = NodeName(write.hostname)
                    self._put(replace(pod, gates=(), hostname=node, node=node, started=self.now))
                    self.running[write.uid] = self._jobs[write.uid]
                    self.started.append((write.uid, self._jobs[write.uid]))
                    self._track(write.uid)
        self.slicer.handle(WriteDone(write))

    def _track(self, uid: PodUid) -> None:
        job, pod = self._jobs[uid], self._pods[uid]
        started = rfc3339(self.now) if uid in self.running else None
        self.forecaster.tracker.observe(_object(job, pod, started), job.profiles, self.now)


def _object(job: Job, pod: PodInfo, started: str | None) -> Pod:
    owners = [{"kind": job.owner, "uid": "o", "name": "o", "apiVersion": "v1", "controller": True}]
    body: dict[str, Any] = {
        "metadata": {"name": job.name, "namespace": job.namespace, "uid": pod.uid, "ownerReferences": owners},
        "spec": {"containers": [{"name": "c"}], "activeDeadlineSeconds": job.deadline},
        "status": {"startTime": started},
    }
    return msgspec.convert(body, Pod)


def sizes(profiles: Sequence[str]) -> str:
    """The size of a pod, by which a simple estimate would count."""
    return "+".join(sorted(profiles))


# The back-test

#: Waits of one size from which the simple estimates are made.
LAST = 20
#: Least seconds between two forecasts, as in the controller, and forecasts of a trace at most, evenly over its time.
ROUND, ROUNDS = 15.0, 250
#: Waiting pods of one forecast whose reason is tested.
TESTED = 3
#: Memory slots of the profiles.
SLOTS = {"1g.5gb": 1, "2g.10gb": 2, "3g.20gb": 4, "4g.20gb": 4, "7g.40gb": 8}


@dataclass(slots=True)
class Forecast:
    """One forecast and its outcome, in seconds from when it was made."""

    p50: float
    p90: float
    basis: str
    size: str
    made: float
    waited: float
    mean: float | None
    quantiles: tuple[float, float] | None
    outcome: float | None = None


@dataclass(slots=True)
class Replay:
    """What one trace showed."""

    forecasts: list[Forecast] = field(default_factory=list)
    waited: int = 0
    unknown: int = 0
    tested: int = 0
    right: int = 0


def replay(jobs: Sequence[Job], cards: int, reserve_after: float | None) -> Replay:
    """Runs a trace."""
    cluster, found = ReplayedCluster(cards, reserve_after), Replay()
    ends: list[tuple[float, PodUid]] = []
    unforecast: dict[PodUid, float] = {}
    open_: dict[PodUid, Forecast] = {}
    waits: dict[str, deque[float]] = {}
    arrivals, last = iter(jobs), float("-inf")
    pause = max(ROUND, jobs[-1].arrival / ROUNDS)
    job = next(arrivals, None)
    while job is not None or ends:
        if job is not None and (not ends or BEGIN + job.arrival <= ends[0][0]):
            cluster.now = BEGIN + job.arrival
            uid = cluster.submit(job)
            if cluster.waits(uid):
                found.waited += 1
                unforecast[uid] = cluster.now
            job = next(arrivals, None)
        else:
            cluster.now, uid = heappop(ends)
            cluster.end(uid)
        for uid, one in cluster.started:
            seconds = min(one.life, one.deadline) if one.deadline else one.life
            heappush(ends, (cluster.now + seconds, uid))
            unforecast.pop(uid, None)
            waits.setdefault(sizes(one.profiles), deque(maxlen=LAST)).append(cluster.now - BEGIN - one.arrival)
            if uid in open_:
                forecast = open_.pop(uid)
                forecast.outcome = cluster.now - forecast.made
                found.forecasts.append(forecast)
        cluster.started.clear()
        if unforecast and cluster.now - last >= pause and job is not None:
            last = cluster.now
            cluster.forecast()
            _note(cluster, found, unforecast, open_, waits)
    return found


def _note(
    cluster: ReplayedCluster,
    found: Replay,
    unforecast: dict[PodUid, float],
    open_: dict[PodUid, Forecast],
    waits: dict[str, deque[float]],
) -> None:
    rows = [row for row in cluster.forecaster.page.pods if row.uid in unforecast]
    for row in rows[:TESTED]:
        found.tested += 1
        found.right += _is_right(cluster, row)
    for row in rows:
        uid = PodUid(row.uid)
        since = unforecast.pop(uid)
        if row.start.p50 is None or row.start.p90 is None:
            found.unknown += 1
            continue
        size, waited = sizes(row.profiles), cluster.now - since
        past = [max(0.0, each - waited) for each in waits.get(size, ())]
        open_[uid] = Forecast(
            p50=row.start.p50 - cluster.now,
            p90=row.start.p90 - cluster.now,
            basis=row.start.basis,
            size=size,
            made=cluster.now,
            waited=waited,
            mean=sum(past) / len(past) if past else None,
            quantiles=(quantile(past, 0.5), quantile(past, 0.9)) if past else None,
        )


def _is_right(cluster: ReplayedCluster, row: QueuedPod) -> bool:
    """True if the pod fits once what its row names is away."""
    state, pod = cluster.slicer.state, cluster.pod(PodUid(row.uid))
    fleet = state.inventory.fleet
    named = {each.pod for each in row.blockers}
    gone = [
        one
        for node in {each.node for each in row.blockers if not each.reserved}
        for card in fleet.cards(node)
        for one in card.allocations.values()
        if one.owner in named
    ]
    kept = dict(state.reservations)
    if row.reason == "reserved":
        for uid in [uid for uid, each in kept.items() if each.key in named]:
            del state.reservations[uid]
    else:  # that nobody stands before it in the order is its position, not its reason
        for each in reservations_before(state, pod):
            del state.reservations[each.uid]
    for one in gone:
        fleet.release(one.placement.node, one.placement.gpu, one.placement.start)
    try:
        (planned,) = cluster.slicer.planner.plan_alone([pod])
        return isinstance(planned, Placed)
    finally:
        for one in gone:
            fleet.occupy(one.placement, one.owner)
        state.reservations.clear()
        state.reservations.update(kept)


# Traces

#: Pods of a synthetic trace, and their demand as a share of the cards.
PODS, LOAD = 3000, 0.95


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
    demand = sum(life * SLOTS[profile] for _, _, life, profile in drawn) / len(drawn)
    rate, now, jobs = load * cards * 8 / demand, 0.0, []
    for number, (namespace, owner, life, profile) in enumerate(drawn):
        now += rng.expovariate(rate)
        jobs.append(Job(f"p{number}", now, life, (profile,), namespace, owner))
    return jobs


def openb(folder: Path) -> tuple[list[Job], int]:
    """The GPU pods of openb's default trace; see the head of this file."""
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


# Figures


def pinball(outcome: float, forecast: float, share: float) -> float:
    """The loss of one end of a range."""
    return (share if outcome >= forecast else share - 1) * (outcome - forecast)


def _loss(rows: Sequence[Forecast], ends: Callable[[Forecast], tuple[float, float]]) -> float:
    total = 0.0
    for row in rows:
        assert row.outcome is not None
        p50, p90 = ends(row)
        total += pinball(row.outcome, p50, 0.5) + pinball(row.outcome, p90, 0.9)
    return total / (2 * len(rows)) if rows else 0.0


@dataclass(frozen=True, slots=True)
class Figures:
    """A line of the table."""

    trace: str
    reservations: bool
    cards: int
    pods: int
    waited: int
    known: float
    before_p50: float
    before_p90: float
    loss: float
    loss_mean: float
    loss_quantiles: float
    reason: float
    bases: dict[str, int]


def measure(trace: str, seed: int, folder: Path | None, reserve_after: float | None) -> Figures:
    """Replays one trace and sums up."""
    jobs, cards = openb(folder) if folder is not None else SYNTHETIC[trace](seed)
    found = replay(jobs, cards, reserve_after)
    rows = found.forecasts
    compared = [row for row in rows if row.mean is not None and row.quantiles is not None]
    bases: dict[str, int] = {}
    for row in rows:
        bases[row.basis] = bases.get(row.basis, 0) + 1
    return Figures(
        trace=trace,
        reservations=reserve_after is not None,
        cards=cards,
        pods=len(jobs),
        waited=found.waited,
        known=len(rows) / (len(rows) + found.unknown) if rows else 0.0,
        before_p50=sum((row.outcome or 0.0) <= row.p50 for row in rows) / max(1, len(rows)),
        before_p90=sum((row.outcome or 0.0) <= row.p90 for row in rows) / max(1, len(rows)),
        loss=_loss(compared, lambda row: (row.p50, row.p90)),
        loss_mean=_loss(compared, lambda row: (row.mean or 0.0, row.mean or 0.0)),
        loss_quantiles=_loss(compared, lambda row: row.quantiles or (0.0, 0.0)),
        reason=found.right / found.tested if found.tested else 0.0,
        bases=bases,
    )


SYNTHETIC = {"teams": teams, "exponential": exponential, "deadlines": deadlines}


def main() -> None:
    """Runs the traces and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("openb", nargs="?", type=Path, help="folder with openb_pod_list_default.csv")
    parser.add_argument("--traces", nargs="*", choices=["openb", *SYNTHETIC], default=["openb", *SYNTHETIC])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    print(
        f"{'trace':<13}{'reserves':>9}{'cards':>6}{'pods':>6}{'waited':>7}{'known':>7}{'<=p50':>7}{'<=p90':>7}"
        f"{'loss s':>9}{'mean 20':>9}{'quant. 20':>10}{'reason':>8}  bases"
    )
    lines = []
    with ProcessPoolExecutor(given.processes) as pool:
        for line in pool.map(measure, *zip(*_runs(given), strict=True)):
            lines.append(line)
            print(_text(line), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(line) for line in lines], indent=2) + "\n", encoding="utf-8")


def _runs(given: argparse.Namespace) -> Iterator[tuple[str, int, Path | None, float | None]]:
    for trace in given.traces:
        if trace != "openb" or given.openb is not None:
            for after in (60.0, None):
                yield trace, given.seed, given.openb if trace == "openb" else None, after


def _text(line: Figures) -> str:
    bases = ", ".join(f"{name} {count}" for name, count in sorted(line.bases.items()))
    return (
        f"{line.trace:<13}{'yes' if line.reservations else 'no':>9}{line.cards:>6}{line.pods:>6}{line.waited:>7}"
        f"{line.known:>7.1%}{line.before_p50:>7.1%}{line.before_p90:>7.1%}{line.loss:>9,.0f}{line.loss_mean:>9,.0f}"
        f"{line.loss_quantiles:>10,.0f}{line.reason:>8.1%}  {bases}"
    )


if __name__ == "__main__":
    main()
