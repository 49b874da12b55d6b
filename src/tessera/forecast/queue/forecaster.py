"""Makes the queue: position, reason and expected start of every waiting pod, from the slicer's state.

A round begins with the order of the waiting pods, reads when leases are expected to end, simulates, and joins the
results. It works piece by piece and yields often, so that decisions go on in between. What a pod waits for may change
meanwhile; the next round shows it. The state from which a simulation starts is read some nodes at a time.
"""

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from tessera.api.names import NodeName, PodUid
from tessera.clock import parse_time_or_zero
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.proposers.place_search import ending_seconds
from tessera.controller.slicing.state.allocation import Allocation, will_never_run
from tessera.controller.slicing.state.reservation_rules import count_spares, spare_fault
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.forecast.calibration import Calibration, FirstForecast, Outcomes, Range
from tessera.forecast.history_text import History
from tessera.forecast.lives import LIFE_NAME, LifeEstimator
from tessera.forecast.past_times import LEAST_LONGER_WAITS, RecentStarts, SurvivalCurve
from tessera.forecast.queue.competition import QUEUE_PODS, CurrentPage, Place, places, row_of, waiting_in_order
from tessera.forecast.queue.held_back import HeldBack
from tessera.forecast.queue.leases import JobDeadlines, LeaseTracker, TrackedPod
from tessera.forecast.queue.published_reasons import ChangedEnds, PublishedReasons
from tessera.forecast.queue_page import (
    DEADLINE,
    HISTORY,
    RATE,
    UNKNOWN,
    ExpectedStart,
    QueuedPod,
    QueuePage,
    SpareSlices,
)
from tessera.forecast.simulation import (
    HORIZON,
    Claims,
    Holder,
    LifeEstimate,
    Simulation,
    Situation,
    StartForecast,
    Waiter,
)
from tessera.placement.card_table import CardTable
from tessera.reasons.reason import OtherGate, Reason, SharedClaim

#: Seconds until the slices of a pod that has ended are free.
RELEASE_SECONDS = 10.0
#: Nodes that are read without a pause.
_NODES_A_PIECE = 50


class SituationReader:
    """Reads one situation.

    Args:
        state: the slicer's state; only read.
        tracker: the leases.
        jobs: deadlines that Jobs give their pods.
        estimator: how long they last.
        now: seconds since 1970.
        waiting: the pods whose start is simulated, in order.
    """

    def __init__(
        self,
        state: SlicerState,
        tracker: LeaseTracker,
        jobs: JobDeadlines,
        estimator: LifeEstimator,
        *,
        now: float,
        waiting: Sequence[Place],
    ) -> None:
        self._state = state
        self._tracker = tracker
        self._jobs = jobs
        self._estimator = estimator
        self._now = now
        self._waiting = waiting
        self._nodes: list[list[int]] = []
        #: Numbers of cards by node and UUID.
        self._places: dict[tuple[str, str], int] = {}
        self._tables: list[CardTable] = []
        self._occupancies: list[int] = []
        self._holders: list[Holder] = []
        #: When half of the leases of its kind and age have ended, by pod that runs; only of known kinds.
        self.ends: dict[PodUid, float] = {}

    def run(self) -> Iterator[None]:
        """Reads; yields after each piece of work."""
        wanted = 0
        for each in self._waiting:
            wanted |= each.nodes
        self._nodes = [[] for _ in range(wanted.bit_length())]
        for number, name in enumerate(list(self._state.inventory.fleet.nodes), 1):
            node = self._state.cluster.index.mask_of(NodeName(name))
            if node & wanted and name in self._state.inventory.fleet:
                self._read_node(NodeName(name), node.bit_length() - 1)
            if number % _NODES_A_PIECE == 0:
                yield

    @property
    def situation(self) -> Situation:
        """What was read."""
        waiters = [
            Waiter(
                tuple(sorted(each.pod.profiles)),
                each.nodes,
                self._life_of_waiting(each.pod.uid),
                self._reserved(each.pod.uid),
            )
            for each in self._waiting
        ]
        return Situation(self._nodes, self._tables, self._occupancies, self._holders, waiters)

    def _read_node(self, name: NodeName, number: int) -> None:
        leases = {each.owner: each for each in self._state.allocations.on(name) if not each.freed}
        held: dict[str, list[tuple[int, int]]] = {}
        for card in self._state.inventory.fleet.cards(name):
            place = self._places[name, card.gpu] = len(self._tables)
            self._nodes[number].append(place)
            self._tables.append(card.table)
            self._occupancies.append(card.instances)
            for start, one in card.allocations.items():
                held.setdefault(one.owner, []).append((place, card.claims[start]))
        for owner, claims in held.items():
            self._holders.append(Holder(number, tuple(claims), self._life(leases.get(owner))))

    def _life(self, lease: Allocation | None) -> LifeEstimate:
        """The life of an allocation; a slice without one may never end."""
        if lease is None:
            return LifeEstimate()
        pod, found = self._state.cluster.pods.get(lease.uid), self._tracker.pods.get(lease.uid)
        if lease.given_up or will_never_run(pod) or pod is None:
            return LifeEstimate(deadline=RELEASE_SECONDS)
        if pod.terminating:
            return LifeEstimate(deadline=ending_seconds(pod, self._now, RELEASE_SECONDS))
        if found is None:
            return LifeEstimate()
        age = max(0.0, self._now - found.started) if found.started else 0.0
        left = self._seconds_left(found, age)
        curve = None if found.stays else self._estimator.curve(found.kind, age)
        if curve is not None and found.started:
            self.ends[lease.uid] = self._now + curve.residual(age, 0.5)
        return LifeEstimate(curve, age, left)

    def _seconds_left(self, found: TrackedPod, age: float) -> float | None:
        """Seconds until a deadline ends a pod, its own or its Job's, and its slices are free; None without one."""
        end = self._jobs.end_of(found.job, self._now)
        left = [] if end is None else [end - self._now]
        left += [] if found.deadline is None else [found.deadline - age]
        return max(0.0, min(left)) + RELEASE_SECONDS if left else None

    def _reserved(self, uid: PodUid) -> Claims:
        """The slots that are reserved for a pod."""
        found = self._state.reservations.get(uid)
        holds = () if found is None else found.holds
        return tuple(
            (self._places[each.node, each.gpu], each.bits) for each in holds if (each.node, each.gpu) in self._places
        )

    def _life_of_waiting(self, uid: PodUid) -> LifeEstimate:
        found = self._tracker.pods.get(uid)
        if found is None:
            return LifeEstimate()
        return LifeEstimate(self._estimator.curve(found.kind), 0.0, found.deadline)


#: Most pods: waiting pods, the first in their order that compete for room, whose start is simulated; the others have a
#: position alone. Those behind start when these have started.
FORECAST_PODS = 1_000

#: Pods of one namespace and size that still wait and count among past waits: fewer than a tenth of the waits of a size
#: that is well known, so that no namespace moves the late end alone.
_WAITING_SAMPLES = 5
#: Places that are made without a pause.
_ROWS_A_PIECE = 100


@dataclass(frozen=True, slots=True)
class Round:
    """The input of one round of forecasts.

    Attributes:
        state: the slicer's state; only read.
        now: seconds since 1970.
        waiting: the waiting pods in their order.
        places: by UID, the place of each.
        simulated: the places whose start is simulated.
        reader: reads the leases.
    """

    state: SlicerState
    now: float
    waiting: Sequence[PodInfo]
    places: Mapping[PodUid, Place]
    simulated: Sequence[Place]
    reader: SituationReader


@dataclass(frozen=True, slots=True)
class _Known:
    """What one forecast rests on."""

    now: float
    simulation: Simulation
    #: By pod, its number in the simulation.
    numbers: Mapping[PodUid, int]
    reasons: PublishedReasons
    #: By size, the curve of past waits.
    waits: Mapping[str, SurvivalCurve]


class Forecaster:
    """Makes one queue after another.

    Args:
        history: leases that ended, starts by image, and the corrections.

    Attributes:
        page: the last forecast as it was made.
        current: the same, brought up to date whenever it is read.
    """

    def __init__(self, history: History) -> None:
        self.recent = RecentStarts()
        self.outcomes = Outcomes(history.calibration, history.blend)
        self.tracker = LeaseTracker(history.lives, history.starts, self.recent, self.outcomes, history.waits)
        self.jobs = JobDeadlines()
        self.page = QueuePage()
        self.current = CurrentPage(self.page)
        self.ends = ChangedEnds()
        self._history = history
        self._estimator: LifeEstimator | None = None

    @property
    def calibration(self) -> Calibration:
        """The corrections."""
        return self._history.calibration

    def begin(self, state: SlicerState, now: float) -> Round:
        """Begins a round; ``now`` in seconds since 1970."""
        waiting = waiting_in_order(state)
        found = places(state, waiting)
        competing = [place for pod in waiting if (place := found[pod.uid]).position]
        simulated = [place for place in competing[:FORECAST_PODS] if place.nodes]
        if self._estimator is None or not self._estimator.serves(now):
            self._estimator = LifeEstimator(self._history.lives, self.tracker.running(), now)
        reader = SituationReader(state, self.tracker, self.jobs, self._estimator, now=now, waiting=simulated)
        return Round(state, now, waiting, found, simulated, reader)

    def expect_ends(self, begun: Round) -> Iterator[None]:
        """Makes :attr:`ends`; yields after each piece of work."""
        yield from begun.reader.run()
        self.ends.update(begun.reader.ends, begun.now)

    def forecast(
        self, begun: Round, held_back: HeldBack, followers: Sequence[tuple[PodInfo, PodInfo]] = ()
    ) -> Iterator[None]:
        """Makes :attr:`page` once the ends are made; yields after each piece of work.

        Args:
            begun: the round.
            held_back: the cards that are not allocated for a fault.
            followers: pods that wait for what another asks for first, each with that pod.
        """
        state, now = begun.state, begun.now
        self.recent.begin(now)
        self._count_outcomes(state, now)
        simulation = Simulation(begun.reader.situation)
        yield from simulation.run()
        numbers = {place.pod.uid: number for number, place in enumerate(begun.simulated)}
        waits = yield from self._wait_curves(begun)
        known = _Known(now, simulation, numbers, PublishedReasons(state, held_back), waits)
        rows: list[QueuedPod] = []
        told: dict[PodUid, Reason | None] = {}
        same: dict[tuple[str, ...], int] = {}
        searched = 0
        for number, pod in enumerate(begun.waiting, 1):
            profiles = tuple(sorted(pod.profiles))
            same[profiles] = same.get(profiles, 0) + (begun.places[pod.uid].position > 0)
            if len(rows) < QUEUE_PODS and pod.uid in state.waiting:
                told[pod.uid] = state.pods.reason_of(pod.uid)
                rows.append(self._row(begun.places[pod.uid], known, max(1, same[profiles])))
            if number % _ROWS_A_PIECE == 0 or known.reasons.searches > searched:
                searched = known.reasons.searches
                yield
        starts = {row.uid: row.start for row in rows}
        rows += [
            row_of(pod, SharedClaim(first.key), start=starts.get(first.uid))
            for pod, first in followers[: QUEUE_PODS - len(rows)]
        ]
        gated = _held_by_others(state)
        rows += [row_of(pod, OtherGate(pod.earlier_gates)) for pod in gated[: QUEUE_PODS - len(rows)]]
        omitted = len(begun.waiting) + len(followers) + len(gated) - len(rows)
        spare = tuple(
            SpareSlices(
                queue=queue,
                profile=profile,
                free=free,
                wanted=wanted,
                fault=spare_fault(state, profile),
                why=state.ledger.reckoned.get((queue, profile), (0, ""))[1],
            )
            for queue, found in count_spares(state).items()
            for profile, (free, wanted) in found.items()
        )
        self.page = QueuePage(leads=True, taken=now, pods=tuple(rows), omitted=max(0, omitted), spare=spare)
        self.current = CurrentPage(self.page, [begun.places[pod.uid] for pod in begun.waiting], told)

    def _count_outcomes(self, state: SlicerState, now: float) -> None:
        started = {each.uid: self._started(each.uid, now) for each in state.allocations if not each.given_up}
        self.outcomes.note_waiting(state.waiting.keys(), started, now)

    def _started(self, uid: PodUid, now: float) -> float:
        """When a pod with slices started; now for one that is about to."""
        found = self.tracker.pods.get(uid)
        return found.started if found is not None and found.started else now

    def _row(self, place: Place, known: _Known, among_same: int) -> QueuedPod:
        reason = known.reasons.find(place.pod, place.nodes)
        return row_of(place.pod, reason, place, self._start(place.pod, reason, known, among_same))

    def _start(self, pod: PodInfo, reason: Reason, known: _Known, among_same: int) -> ExpectedStart:
        profiles, now = tuple(sorted(pod.profiles)), known.now
        starts = self.recent.count(profiles, now)
        if not reason.waits_for_room:  # no end of another pod's lease removes it
            return ExpectedStart(starts=starts)
        self.tracker.note_wait(pod.uid)
        number = known.numbers.get(pod.uid)
        found = known.simulation.forecast(number) if number is not None else None
        if found is not None and isfinite(found.p50):
            return self._simulated_start(pod, found, known, starts)
        rate = self.recent.wait(profiles, among_same, now)
        if rate is None:
            return ExpectedStart(basis=UNKNOWN, starts=starts)
        return ExpectedStart(p50=now + rate[0], p90=now + rate[1], basis=RATE, starts=starts)

    def _simulated_start(self, pod: PodInfo, found: StartForecast, known: _Known, starts: int) -> ExpectedStart:
        late, now, size = isfinite(found.p90), known.now, _size(pod)
        simulated = self.calibration.correct(size, found.p50, found.p90 if late else found.p50)
        past = self._past_waits(pod, known) if late and not found.by_deadline else None
        p50, p90 = simulated if past is None else self._history.blend.mix(simulated, past)
        if late:
            blended = None if past is None else (simulated, past)
            first = FirstForecast(pod.namespace, size, now, (found.p50, found.p90), now + p90, blended)
            self.outcomes.note_forecast(pod.uid, first)
        tracked = self.tracker.pods.get(pod.uid)
        image = tracked.image if tracked is not None else ""
        pull = [self._history.starts.seconds(image, share) for share in (0.5, 0.9)]
        return ExpectedStart(
            p50=now + p50 + pull[0],
            p90=now + p90 + pull[1] if late else None,
            basis=DEADLINE if found.by_deadline else HISTORY,
            starts=starts,
            waits=past is not None,
        )

    def _past_waits(self, pod: PodInfo, known: _Known) -> Range | None:
        """The range by what pods of this size waited that waited longer than this one has; None of too few."""
        curve, age = known.waits[_size(pod)], _waited(pod, known.now)
        if curve.ends_after(age) < LEAST_LONGER_WAITS:
            return None
        return min(curve.residual(age, 0.5), HORIZON), min(curve.residual(age, 0.9), HORIZON)

    def _wait_curves(self, begun: Round) -> Generator[None, None, Mapping[str, SurvivalCurve]]:
        """Returns by size the curve of past waits; yields after each piece of work.

        Of the pods that still wait, those count that an earlier round saw wait for room: others may never start.
        """
        waited: dict[str, list[float]] = {}
        counts: Counter[tuple[str, str]] = Counter()
        for number, pod in enumerate(begun.waiting, 1):
            size = _size(pod)
            of_size, key = waited.setdefault(size, []), (pod.namespace, size)
            if self.tracker.waits_for_room(pod.uid) and counts[key] < _WAITING_SAMPLES:
                counts[key] += 1
                of_size.append(_waited(pod, begun.now))
            if number % _ROWS_A_PIECE == 0:
                yield
        found: dict[str, SurvivalCurve] = {}
        for size, each in waited.items():
            found[size] = self._history.waits.curve(size, each)
            yield
        return found


def _size(pod: PodInfo) -> str:
    """The size of a pod, by which forecasts are corrected and waits are kept."""
    return "+".join(sorted(pod.profiles))[:LIFE_NAME]


def _waited(pod: PodInfo, now: float) -> float:
    return max(0.0, now - parse_time_or_zero(pod.created))


def _held_by_others(state: SlicerState) -> Sequence[PodInfo]:
    """Pods for us that another operator's gate holds, the oldest first."""
    found = (
        pod
        for pod in state.cluster.pods.values()
        if pod.earlier_gates
        and pod.profiles
        and (pod.gated or not (pod.kind.needs_gate or pod.node))
        and not (pod.finished or pod.terminating)
    )
    return sorted(found, key=lambda pod: (pod.created, pod.key))
