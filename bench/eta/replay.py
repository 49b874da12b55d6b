"""Replays a trace: forecasts each pod that waits once, and notes its outcome and the test of its reason."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from bench.eta.cluster import BEGIN, ReplayedCluster
from bench.eta.traces import Job

from tessera.api.names import PodUid
from tessera.controller.slicing.batch_placement import Placed
from tessera.controller.slicing.state.reservation_rules import reservations_before
from tessera.forecast.past_times import quantile
from tessera.forecast.queue_page import QueuedPod

#: Waits of one size from which the simple estimates are made.
LAST = 20
#: Least seconds between two forecasts, as in the controller, and forecasts of a trace at most, evenly over its time.
ROUND, ROUNDS = 15.0, 250
#: Waiting pods of one forecast whose reason is tested.
TESTED = 3


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
    """Result of the replay of one trace."""

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
        comes = job is not None and (not ends or BEGIN + job.arrival <= ends[0][0])
        due = BEGIN + job.arrival if job is not None and comes else ends[0][0]
        if not cluster.advance(due):
            pass  # pods started in between, whose ends may come first
        elif job is not None and comes:
            uid = cluster.submit(job)
            if cluster.waits(uid):
                found.waited += 1
                unforecast[uid] = cluster.now
            job = next(arrivals, None)
        else:
            cluster.end(heappop(ends)[1])
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
        for node in {each.node for each in row.blockers if each.node}
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


def sizes(profiles: Sequence[str]) -> str:
    """The size of a pod, by which a simple estimate would count."""
    return "+".join(sorted(profiles))
