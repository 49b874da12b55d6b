"""Whatever order things happen in: no slot is promised twice, and nothing is left when all pods are gone."""

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.support.searching import examples
from tests.support.slicer_world import SlicerWorld

from tessera.api.names import NodeName
from tessera.controller.slicing.events import NodeObserved, RetryDue, WriteOutcomeUnknown, WriteRefused
from tessera.controller.slicing.instructions import RecordEvent, Write

PROFILES = st.lists(
    st.sampled_from(["1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"]), min_size=1, max_size=2
)


def interleavings(new_world: Any) -> type[RuleBasedStateMachine]:
    """Writes are held back, answered late, lost, or applied without an answer; processes die at any moment."""

    class Interleavings(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.world: SlicerWorld = new_world()
            self.flying: list[Write] = []
            self.born = 0

        @initialize()
        def cluster(self) -> None:
            self.world.node("n1", count=1)
            self.world.node("n2", count=2)

        @rule(profiles=PROFILES)
        def create(self, profiles: list[str]) -> None:
            self.born += 1
            self.world.pod(f"p{self.born}", *sorted(profiles))

        @rule(pick=st.integers(0, 99))
        def delete(self, pick: int) -> None:
            if self.world.pods:
                self.world.remove(
                    sorted(self.world.pods.values(), key=lambda pod: pod.uid)[pick % len(self.world.pods)]
                )

        @rule(pick=st.integers(0, 99))
        def bind_or_finish(self, pick: int) -> None:
            pods = sorted((p for p in self.world.pods.values() if not p.gated), key=lambda pod: pod.uid)
            if pods:
                pod = pods[pick % len(pods)]
                self.world.put(replace(pod, finished=True) if pod.node else replace(pod, node=NodeName(pod.hostname)))

        @rule()
        def decide(self) -> None:
            self.world.slicer.decide()
            self.flying += [one for one in self.world.slicer.pop_writes() if not isinstance(one, RecordEvent)]

        @rule(pick=st.integers(0, 99))
        def answer(self, pick: int) -> None:
            if self.flying:
                self.world.answer(self.flying.pop(pick % len(self.flying)))

        @rule(pick=st.integers(0, 99))
        def lose_the_answer(self, pick: int) -> None:
            if self.flying:
                write = self.flying.pop(pick % len(self.flying))
                self.world.apply(write)
                self.world.slicer.handle(WriteOutcomeUnknown(write))
                self.world.slicer.handle(RetryDue(write))

        @rule(pick=st.integers(0, 99))
        def refuse(self, pick: int) -> None:
            if self.flying:
                write = self.flying.pop(pick % len(self.flying))
                self.world.slicer.handle(WriteRefused(write))
                self.world.slicer.handle(RetryDue(write))

        @rule()
        def agents(self) -> None:
            self.world.agents()

        @rule(name=st.sampled_from(["n1", "n2"]), cordoned=st.booleans())
        def cordon(self, name: str, cordoned: bool) -> None:
            self.world.nodes[name] = replace(self.world.nodes[name], cordoned=cordoned)
            self.world.slicer.handle(NodeObserved(self.world.nodes[name]))

        @rule()
        def crash(self) -> None:
            self.flying.clear()
            self.world.restart()

        @invariant()
        def no_slot_is_promised_twice(self) -> None:
            assert self.world.overlaps() == []

        def teardown(self) -> None:
            for write in self.flying:
                self.world.answer(write)
            for pod in list(self.world.pods.values()):
                self.world.remove(pod)
            self.world.settle()
            assert self.world.empty()
            assert len(self.world.slicer.state.allocations) == 0
            assert all(card.occupancy == 0 for card in self.world.slicer.state.inventory.fleet.cards())
            assert self.world.slicer.state.usage.used == {}
            assert self.world.slicer.state.cluster.pods == {}

    return Interleavings


def play(new_world: Any, number: int) -> None:
    machine = interleavings(new_world).TestCase
    machine.settings = settings(
        max_examples=number, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )
    machine().runTest()


def test_any_interleaving_of_writes_pods_agents_and_crashes(new_world: Any) -> None:
    play(new_world, examples(60))


@pytest.mark.soak
def test_many_thousand_interleavings(new_world: Any) -> None:
    play(new_world, 5_000)
