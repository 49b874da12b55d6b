"""Property: whatever pods come, end and are protected, and whenever the controller dies, moves keep their rules."""

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings
from tests.support.searching import examples
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import HOSTNAME_LABEL, NodeName
from tessera.clock import rfc3339
from tessera.controller.base import MoveMode, MoveSettings
from tessera.controller.objects.pod_constraints import NodeConstraints
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.instructions import Evict

PER_HOUR = 3
HOUR = 3600.0
PROFILES = ("1g.5gb", "2g.10gb", "7g.40gb", "7g.40gb")

#: A new pod: profile, with the annotation, with an owner, priority.
CREATE = st.tuples(st.just("create"), st.sampled_from(PROFILES), st.booleans(), st.booleans(), st.integers(0, 1))
PICK = st.integers(0, 99)
STEPS = st.lists(
    st.one_of(
        CREATE,
        CREATE,
        st.tuples(st.just("end"), PICK),
        st.tuples(st.just("protect"), PICK),
        st.tuples(st.just("wait"), st.sampled_from([61.0, 300.0, 1800.0])),
        st.just(("restart",)),
    ),
    max_size=60,
)


class Watched(SlicerCluster):
    """A cluster in which pods start, owners make their pods anew, and every eviction is kept with its time."""

    def __init__(self) -> None:
        super().__init__(0.0, moves=MoveSettings(mode=MoveMode.EVICT, per_hour=PER_HOUR))
        self.pass_time(0)
        self.evictions: list[tuple[float, PodInfo]] = []
        self.born = 0
        for number in range(5):
            self.node(f"n{number}")
            here = NodeConstraints(selector=((HOSTNAME_LABEL, f"n{number}"),))
            self.create("1g.5gb", movable=number < 4, owner=f"first-{number}", constraints=here)
        self.create("3g.20gb", constraints=here)
        self.play(("wait", 1000.0))

    def answer(self, instruction: Any) -> None:
        pod = self.pods.get(instruction.uid) if isinstance(instruction, Evict) else None
        if pod is not None:
            self.evictions.append((self.date, pod))
        super().answer(instruction)
        if pod is not None and pod.uid not in self.pods and pod.owner:
            self.create(pod.profiles[0], movable=pod.movable, owner=pod.owner, priority=pod.priority)

    def create(self, profile: str, **facts: Any) -> None:
        self.born += 1
        self.pod(f"p{self.born}", profile, created=rfc3339(self.date), **facts)

    def start_pods(self) -> None:
        for pod in list(self.pods.values()):
            if not pod.gated and not pod.node:
                self.put(replace(pod, node=NodeName(pod.hostname), started=self.date))

    def play(self, step: tuple[Any, ...]) -> None:
        living = sorted(self.pods.values(), key=lambda pod: pod.uid)
        match step:
            case ("create", profile, movable, owned, priority):
                owner = f"owner-{self.born}" if owned else ""
                self.create(profile, movable=movable, owner=owner, priority=priority)
            case ("end", pick) if living:
                self.remove(living[pick % len(living)])
            case ("protect", pick) if living:
                self.protected ^= {living[pick % len(living)].uid}
            case ("wait", seconds):
                self.pass_time(seconds)
            case ("restart",):
                self.restart()
            case _:
                pass
        self.settle()
        self.start_pods()
        self.settle()


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS)
def test_moves_keep_annotation_owner_budget_and_rest(steps: list[tuple[Any, ...]]) -> None:
    cluster = Watched()
    for step in steps:
        cluster.play(step)
        assert cluster.overlaps() == []
    for number, (date, pod) in enumerate(cluster.evictions):
        assert pod.movable
        assert pod.owner
        since = [each for when, each in cluster.evictions[: number + 1] if when > date - HOUR]
        assert len(since) <= PER_HOUR
        assert [each.owner for each in since].count(pod.owner) == 1, "no pod moves twice within an hour"


def test_pods_move_in_these_clusters() -> None:
    cluster = Watched()
    cluster.play(("create", "7g.40gb", False, True, 0))
    cluster.play(("wait", 61.0))
    assert [pod.name for _, pod in cluster.evictions] == ["p1"]
