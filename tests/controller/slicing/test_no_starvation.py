"""Property: a pod that an empty cluster could hold starts in time, whatever comes after it.

The bound of the first pod in the order depends only on the pods that run when it comes. The bound of a pod behind
others grows with the number of pods before it, and with the longest life of a pod.
"""

from dataclasses import dataclass, replace
from itertools import cycle

import hypothesis.strategies as st
from hypothesis import example, given, settings
from tests.support.searching import examples
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import NodeName, PodUid
from tessera.api.pod_annotations import Gang
from tessera.clock import rfc3339
from tessera.controller.objects.pod_info import PodInfo

#: Seconds between two looks at the cluster.
TICK = 20.0
PROFILES = ["1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"]


@dataclass
class Job:
    """A pod that lives for some ticks once it has slices; it may announce its life as a deadline."""

    profiles: tuple[str, ...]
    life: int
    announced: bool


JOBS = st.builds(
    Job,
    profiles=st.lists(st.sampled_from(PROFILES), min_size=1, max_size=2).map(tuple),
    life=st.integers(1, 30),
    announced=st.booleans(),
)
#: Jobs that come after the target: two in each tick, from the first again when all have come.
LATER = st.lists(JOBS, min_size=2, max_size=20)
#: The case that starves without reservations: two halves of a card end at different times.
HALVES = [Job(("3g.20gb",), 4, announced=True), Job(("3g.20gb",), 7, announced=True)]
WHOLE = Job(("7g.40gb",), 3, announced=False)
SMALL = [Job(("3g.20gb",), 5, announced=False), Job(("3g.20gb",), 8, announced=False)]


class Town:
    """A cluster whose pods end when their lives are over."""

    def __init__(self, cards: list[int]) -> None:
        self.cluster = SlicerCluster(reserve_after=0.0)
        self.cluster.pass_time(0)
        for number, count in enumerate(cards):
            self.cluster.node(f"n{number}", count=count)
        self.lives: dict[PodUid, int] = {}
        self.ends: dict[PodUid, float] = {}
        self.count = 0

    def add(self, job: Job, gang: Gang | None = None) -> PodInfo:
        """A job comes; it may be one of a gang."""
        self.count += 1
        pod = self.cluster.pod(
            f"p{self.count:04}",
            *sorted(job.profiles),
            created=rfc3339(self.cluster.date),
            deadline=job.life * TICK if job.announced else None,
            gang=gang,
        )
        self.lives[pod.uid] = job.life
        return pod

    def begin_with(self, jobs: list[Job]) -> float:
        """Lets those of these jobs run that have room. Returns the time at which all of them have ended."""
        for job in jobs:
            self.add(replace(job, announced=True))
        self.settle()
        for pod in [pod for pod in self.cluster.pods.values() if pod.uid not in self.ends]:
            self.cluster.remove(pod)  # only what runs stands before the pods in question
        self.settle()
        return max(self.ends.values(), default=self.cluster.date)

    def settle(self) -> None:
        """Pods with slices start; controller and agents come to rest."""
        self.cluster.settle()
        for pod in list(self.cluster.pods.values()):
            if pod.uid not in self.ends and self.cluster.where(pod):
                ((node, *_), *_) = self.cluster.where(pod)
                self.ends[pod.uid] = self.cluster.date + self.lives[pod.uid] * TICK
                self.cluster.put(replace(pod, node=NodeName(node), started=self.cluster.date))
        self.cluster.settle()

    def tick(self) -> None:
        """Time passes, and pods whose life is over end."""
        self.cluster.pass_time(TICK)
        for uid, end in list(self.ends.items()):
            if end <= self.cluster.date and uid in self.cluster.pods:
                self.cluster.remove(self.cluster.pods[uid])
        self.settle()

    def add_gang(self, jobs: list[Job]) -> list[PodInfo]:
        """The jobs of a gang come, the oldest first."""
        gang = Gang("default/g", "g", len(jobs))
        return [self.add(job, gang) for job in jobs]

    def fits_empty(self, job: Job, cards: list[int]) -> bool:
        """True if an empty cluster of these cards holds the job."""
        other = Town(cards)
        pod = other.add(job)
        other.settle()
        return pod.uid in other.ends


CARDS = st.lists(st.integers(1, 2), min_size=1, max_size=2)


@settings(max_examples=examples(60), deadline=None)
@example(cards=[1], before=HALVES, target=WHOLE, later=SMALL)
@given(cards=CARDS, before=st.lists(JOBS, max_size=8), target=JOBS, later=LATER)
def test_the_first_in_the_order_starts_when_what_runs_has_ended(
    cards: list[int], before: list[Job], target: Job, later: list[Job]
) -> None:
    town = Town(cards)
    if not town.fits_empty(target, cards):
        return
    bound = town.begin_with(before)
    pod = town.add(target)
    town.settle()
    jobs = cycle(later)
    while pod.uid not in town.ends:
        assert town.cluster.date <= bound, f"{pod.profiles} still waits though all that ran before it has ended"
        town.add(next(jobs))
        town.add(next(jobs))
        town.tick()


@settings(max_examples=examples(40), deadline=None)
@example(cards=[1], before=HALVES, target=WHOLE, later=SMALL)
@given(cards=CARDS, before=st.lists(JOBS, max_size=6), target=JOBS, later=LATER)
def test_a_pod_behind_others_starts_within_their_number_times_the_longest_life(
    cards: list[int], before: list[Job], target: Job, later: list[Job]
) -> None:
    town = Town(cards)
    if not town.fits_empty(target, cards):
        return
    for job in before:
        town.add(job)
    town.settle()
    ahead = [pod for pod in town.cluster.pods.values() if pod.uid not in town.ends]
    pod = town.add(target)
    longest = max(job.life for job in [*before, target, *later])
    ticks = (len(ahead) + 1) * (2 * longest + 6)
    jobs = cycle(later)
    for _ in range(ticks):
        if pod.uid in town.ends:
            return
        while len(town.cluster.pods) < 40:
            town.add(next(jobs))
        town.tick()
    assert pod.uid in town.ends, f"{pod.profiles} still waits after {ticks} ticks behind {len(ahead)} pods"


#: Gangs of equal pods, as training jobs are.
GANGS = st.tuples(st.lists(st.sampled_from(PROFILES), min_size=1, max_size=2).map(tuple), st.integers(2, 4))


@settings(max_examples=examples(60), deadline=None)
@example(cards=[2, 1], before=HALVES, gang=(("7g.40gb",), 3), later=SMALL)
@example(cards=[1, 1], before=HALVES, gang=(("4g.20gb",), 2), later=SMALL)
@given(cards=CARDS, before=st.lists(JOBS, max_size=8), gang=GANGS, later=LATER)
def test_the_first_gang_in_the_order_starts_when_what_runs_has_ended(
    cards: list[int], before: list[Job], gang: tuple[tuple[str, ...], int], later: list[Job]
) -> None:
    jobs = [Job(gang[0], 3, announced=False)] * gang[1]
    empty = Town(cards)
    pods = empty.add_gang(jobs)
    empty.settle()
    if not all(pod.uid in empty.ends for pod in pods):
        return
    town = Town(cards)
    bound = town.begin_with(before)
    pods = town.add_gang(jobs)
    town.settle()
    following = cycle(later)
    while not all(pod.uid in town.ends for pod in pods):
        assert not any(pod.uid in town.ends for pod in pods), "a part of the gang has started"
        reserved = [each.uid for each in town.cluster.slicer.state.reservations.values() if each.gang]
        assert sorted(reserved) in ([], sorted(pod.uid for pod in pods)), "a part of the gang has reservations"
        assert town.cluster.date <= bound, f"{gang} still waits though all that ran before it has ended"
        town.add(next(following))
        town.add(next(following))
        town.tick()
