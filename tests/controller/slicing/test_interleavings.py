"""Property: no slot is promised twice, and nothing is left when all pods are gone, in any order of events."""

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.support.searching import examples
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import GATE, NodeName
from tessera.controller.cluster.filters import AVOIDANCE_SECONDS
from tessera.controller.objects.pod_info import Workload
from tessera.controller.slicing.cycle import take_in
from tessera.controller.slicing.state.events import (
    LastGatesObserved,
    NodeObserved,
    RefusalTimedOut,
    RetryDue,
    WriteOutcomeUnknown,
    WriteRefused,
)
from tessera.controller.slicing.state.instructions import Evict, RecordEvent, Write
from tessera.controller.slicing.state.queue_ledger import Holding
from tessera.controller.slicing.state.reservation_rules import holding_of
from tessera.controller.slicing.state.waiting_pods import rank
from tessera.handover.inheritance import KEPT_SECONDS
from tessera.reasons.reason import QueueFull

#: Gates of others: of the pod's author, and of KAI, whose gate goes after Tessera's.
OWN, KAI = "tenant.example/mine", "kai.scheduler/queue-admission"
PROFILES = st.lists(
    st.sampled_from(["1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"]), min_size=1, max_size=2
)


def interleavings(new_cluster: Any) -> type[RuleBasedStateMachine]:
    """Writes are held back, answered late, lost, or applied without an answer; processes die at any moment."""

    class Interleavings(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.cluster: SlicerCluster = new_cluster()
            self.with_queues = self.cluster.reserve_after is not None
            self.flying: list[Write] = []
            self.born = 0

        @initialize()
        def set_up(self) -> None:
            self.cluster.workloads = {"s": Workload("s", 2)}
            self.cluster.node("n1", count=1)
            self.cluster.node("n2", count=2)

        @rule(
            profiles=PROFILES,
            priority=st.integers(0, 1),
            deadline=st.sampled_from([None, 100.0]),
            gates=st.sampled_from([(GATE,), (GATE,), (OWN, GATE), (KAI, GATE)]),
            owner=st.sampled_from(["Job/j", "StatefulSet/s"]),
        )
        def create(
            self, profiles: list[str], priority: int, deadline: float | None, gates: tuple[str, ...], owner: str
        ) -> None:
            self.born += 1
            owned = {"owner": owner.partition("/")[2], "maker": owner}
            facts = {"priority": priority, "deadline": deadline, "gates": gates, **owned}
            self.cluster.pod(f"p{self.born}", *sorted(profiles), **facts)

        @rule(seconds=st.sampled_from([1.0, 60.0, 1000.0]))
        def pass_time(self, seconds: float) -> None:
            self.cluster.pass_time(seconds)

        @rule(maximum=st.sampled_from([None, 4, "20Gi"]))
        def limit(self, maximum: int | str | None) -> None:
            if self.with_queues:
                self.cluster.queue("default", maximum=maximum)

        @rule(pick=st.integers(0, 99))
        def delete(self, pick: int) -> None:
            if self.cluster.pods:
                self.cluster.remove(
                    sorted(self.cluster.pods.values(), key=lambda pod: pod.uid)[pick % len(self.cluster.pods)]
                )

        @rule(pick=st.integers(0, 99))
        def bind_or_finish(self, pick: int) -> None:
            pods = sorted((p for p in self.cluster.pods.values() if not p.gated), key=lambda pod: pod.uid)
            if pods:
                pod = pods[pick % len(pods)]
                bound = replace(pod, node=NodeName(pod.hostname), started=pod.started or self.cluster.date)
                self.cluster.put(replace(pod, finished=True) if pod.node else bound)

        @rule(pick=st.integers(0, 99))
        def remove_other_gates(self, pick: int) -> None:
            held = sorted((p for p in self.cluster.pods.values() if {OWN, KAI} & {*p.gates}), key=lambda pod: pod.uid)
            if held:
                pod = held[pick % len(held)]
                self.cluster.put(replace(pod, gates=tuple(gate for gate in pod.gates if gate == GATE)))

        @rule(served=st.booleans())
        def find_owners_of_gates(self, served: bool) -> None:
            self.cluster.slicer.handle(LastGatesObserved(frozenset({KAI} if served else ())))

        @rule()
        def take_back_what_does_not_start(self) -> None:
            state = self.cluster.slicer.state
            for uid in sorted(state.pods.cannot_start):
                self.cluster.slicer.handle(RefusalTimedOut(uid, self.cluster.date + AVOIDANCE_SECONDS))

        @rule(pick=st.integers(0, 99), seconds=st.sampled_from([1.0, 86_400.0]))
        def delete_slowly(self, pick: int, seconds: float) -> None:
            pods = sorted((p for p in self.cluster.pods.values() if p.node), key=lambda pod: pod.uid)
            if pods:
                pod, began = pods[pick % len(pods)], self.cluster.date or 1_000_000.0
                gone_by = began + seconds
                self.cluster.put(replace(pod, started=pod.started or began, terminating=True, gone_by=gone_by))

        @rule()
        def decide(self) -> None:
            self.cluster.slicer.decide()
            self.flying += [one for one in self.cluster.slicer.pop_writes() if not isinstance(one, RecordEvent)]

        @rule(pick=st.integers(0, 99))
        def answer(self, pick: int) -> None:
            if self.flying:
                write = self.flying.pop(pick % len(self.flying))
                if not isinstance(write, Evict) or write.uid in self.cluster.pods:
                    self.cluster.answer(write)

        @rule(pick=st.integers(0, 99))
        def lose_the_answer(self, pick: int) -> None:
            if self.flying:
                write = self.flying.pop(pick % len(self.flying))
                if not isinstance(write, Evict) or write.uid in self.cluster.pods:
                    self.cluster.apply(write)
                self.cluster.slicer.handle(WriteOutcomeUnknown(write))
                self.cluster.slicer.handle(RetryDue(write))

        @rule(pick=st.integers(0, 99))
        def refuse(self, pick: int) -> None:
            if self.flying:
                write = self.flying.pop(pick % len(self.flying))
                self.cluster.slicer.handle(WriteRefused(write))
                self.cluster.slicer.handle(RetryDue(write))

        @rule()
        def agents(self) -> None:
            self.cluster.agents()

        @rule(name=st.sampled_from(["n1", "n2"]), cordoned=st.booleans())
        def cordon(self, name: str, cordoned: bool) -> None:
            self.cluster.nodes[name] = replace(self.cluster.nodes[name], cordoned=cordoned)
            self.cluster.slicer.handle(NodeObserved(self.cluster.nodes[name]))

        @rule()
        def crash(self) -> None:
            self.flying.clear()
            self.cluster.restart()

        @invariant()
        def no_slot_is_promised_twice(self) -> None:
            assert self.cluster.overlaps() == []

        def no_pod_waits_for_a_maximum_that_lets_it_in(self) -> None:
            state = self.cluster.slicer.state
            waiting = (
                (uid, why)
                for uid, one in state.waiting.items()
                if isinstance(why := one.reason, QueueFull) and not why.never
            )
            first = min((uid for uid, _ in waiting), key=lambda uid: rank(state.cluster.pods[uid], {}), default=None)
            if first is not None:
                waits = [uid for uid, one in state.reservations.items() if one.kept_for is None]
                reserved = [state.cluster.pods[uid] for uid in waits if uid != first]
                pods = [state.cluster.pods[first], *reserved]
                slots, gib = (sum(getattr(holding_of(state, pod), each) for pod in pods) for each in ("total", "gib"))
                assert state.ledger.is_above_maximum("default", Holding({"A100": slots}, gib))

        def teardown(self) -> None:
            for write in self.flying:
                if not isinstance(write, Evict) or write.uid in self.cluster.pods:
                    self.cluster.answer(write)
            self.cluster.settle()
            self.no_pod_waits_for_a_maximum_that_lets_it_in()
            for pod in list(self.cluster.pods.values()):
                self.cluster.remove(pod)
            self.cluster.settle()
            self.cluster.pass_time(KEPT_SECONDS)
            self.cluster.settle()
            assert self.cluster.empty()
            assert len(self.cluster.slicer.state.allocations) == 0
            assert all(card.occupancy == 0 for card in self.cluster.slicer.state.inventory.fleet.cards())
            assert self.cluster.slicer.state.usage.used == {}
            assert self.cluster.slicer.state.cluster.pods == {}
            assert self.cluster.slicer.state.reservations == {}
            assert all(not item["metadata"].get("annotations") for item in self.cluster.objects.values())
            assert self.cluster.slicer.state.ledger.account("default").held.total() == 0

    return Interleavings


def play(new_cluster: Any, number: int) -> None:
    machine = interleavings(new_cluster).TestCase
    machine.settings = settings(
        max_examples=number, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )
    machine().runTest()


def test_any_interleaving_of_writes_pods_agents_and_crashes(new_cluster: Any) -> None:
    play(new_cluster, examples(60))


def with_everything() -> SlicerCluster:
    """A cluster with reservations at once, and preemption."""
    return SlicerCluster(reserve_after=0.0, preempts=True)


def test_any_interleaving_where_more_changes_than_one_step_takes_in(
    new_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(take_in, "ABSORBED_CHANGES", 1)
    monkeypatch.setattr(take_in, "BATCH_PODS", 1)
    play(new_cluster, examples(30))


def test_any_interleaving_with_reservations_queues_and_preemption() -> None:
    play(with_everything, examples(60))


@pytest.mark.soak
def test_many_thousand_interleavings(new_cluster: Any) -> None:
    play(new_cluster, 5_000)
