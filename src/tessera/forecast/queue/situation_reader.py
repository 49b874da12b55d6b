"""Reads the state from which a simulation starts out of the slicer's state, some nodes at a time."""

from collections.abc import Iterator, Sequence

from tessera.api.names import NodeName, PodUid
from tessera.controller.slicing.reservations.place_search import ending_seconds
from tessera.controller.slicing.state.allocation import Allocation, will_never_run
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.forecast.lives import LifeEstimator
from tessera.forecast.queue.competition import Place
from tessera.forecast.queue.job_deadlines import JobDeadlines
from tessera.forecast.queue.lease_tracker import LeaseTracker, TrackedPod
from tessera.forecast.situation import Claims, Holder, LifeEstimate, Situation, Waiter
from tessera.placement.card_table import CardTable

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
        curve = self._estimator.curve(found.kind, age)
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
