"""Two Deployments on full cards through random histories: rollouts, failures, deletions, drains, restarts.

No slot is given twice, no old pod ends by a hand-over while a new one of its Deployment has slots and is not ready, a
service that nobody disturbs keeps all but one of its pods ready, and each update ends once nothing disturbs it any
more. A second kind of history has moves, preemption, drains of nodes and agents that are away in the middle of it all.
"""

from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.support.searching import examples
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import NodeName
from tessera.clock import rfc3339
from tessera.controller.base import MoveMode, MoveSettings
from tessera.controller.objects.node_info import AgentState
from tessera.controller.objects.pod_info import PodInfo, Workload
from tessera.controller.slicing.state.events import NodeObserved
from tessera.controller.slicing.state.instructions import Evict, Write
from tessera.handover.updates import RESTARTS

WANTED = 2
#: The services and their ``maxSurge``.
SERVICES = {"a": 1, "b": 2}
_SERVICE = st.sampled_from(sorted(SERVICES))
_PICK = st.integers(0, 99)
#: The namespace of another team.
OTHERS = "team-b"
_NODE = st.sampled_from(["n1", "n2"])


class Service:
    """A Deployment that may have some pods more, and none less (``rolling.go``)."""

    def __init__(self, name: str, surge: int) -> None:
        self.name = name
        self.surge = surge
        #: By revision, the replicas that its ReplicaSet wants; the highest is the newest.
        self.wanted = {1: WANTED}
        #: Pods that it wants, which an autoscaler may change in the middle of an update.
        self.size = WANTED
        #: Revisions whose pods never become ready.
        self.broken: set[int] = set()
        #: True if somebody else has ended a pod, or one has failed, since all were ready.
        self.disturbed = False

    @property
    def newest(self) -> int:
        return max(self.wanted)

    def step(self, pods: list[PodInfo]) -> None:
        """Scales the newest ReplicaSet up and the older ones down, by the pods that live."""
        more = min(self.size - self.wanted[self.newest], self.size + self.surge - sum(self.wanted.values()))
        self.wanted[self.newest] += max(min(0, self.size - self.wanted[self.newest]), more)
        ready = sum(bool(pod.ready_since) for pod in pods)
        new_ready = sum(bool(pod.ready_since) for pod in pods if revision_of(pod) == self.newest)
        room = sum(self.wanted.values()) - self.size - (self.wanted[self.newest] - new_ready)
        for revision in sorted(self.wanted)[:-1]:
            own = [pod for pod in pods if revision_of(pod) == revision]
            unready = self.wanted[revision] - sum(bool(pod.ready_since) for pod in own)
            fewer = min(unready, max(0, room))
            room -= fewer
            spare = min(self.wanted[revision] - unready, max(0, room), max(0, ready - self.size))
            ready -= spare
            room -= spare
            self.wanted[revision] -= fewer + spare


def revision_of(pod: PodInfo) -> int:
    return int(pod.maker.rpartition("-")[2])


class _WatchedCluster(SlicerCluster):
    """Checks each eviction before it is carried out."""

    services: dict[str, Service]

    def living(self, service: str) -> list[PodInfo]:
        found = (pod for pod in self.pods.values() if pod.maker.startswith(f"ReplicaSet/{service}-"))
        return [pod for pod in found if not pod.terminating]

    def apply(self, write: Write) -> None:
        if isinstance(write, Evict) and self.pods[write.uid].namespace != OTHERS:
            self._check(self.pods[write.uid])
        super().apply(write)

    def agents(self) -> None:
        """Those catch up that are not away."""
        away = [name for name, node in self.nodes.items() if node.agent is AgentState.DOWN]
        hidden = {name: self.objects.pop(name) for name in away}
        super().agents()
        self.objects.update(hidden)

    def change_node(self, name: str, **facts: Any) -> None:
        self.nodes[NodeName(name)] = replace(self.nodes[NodeName(name)], **facts)
        self.slicer.handle(NodeObserved(self.nodes[NodeName(name)]))

    def _is_preempted(self, ended: PodInfo) -> bool:
        """True if slots of a pod are reserved for one of higher priority."""
        found = self.slicer.state.reservations.values()
        uids = [one.uid for one in found if not one.is_inherited and ended.uid in one.holders]
        return any(self.pods[uid].priority > ended.priority for uid in uids if uid in self.pods)

    def _check(self, ended: PodInfo) -> None:
        service = self.services[ended.maker.removeprefix("ReplicaSet/").partition("-")[0]]
        if self._is_preempted(ended):
            service.disturbed = True
            return
        others = [pod for pod in self.living(service.name) if pod.uid != ended.uid]
        if revision_of(ended) == service.newest:
            assert service.newest in service.broken, f"{ended.name} was evicted and did not fail"
            return
        new = [pod for pod in others if revision_of(pod) == service.newest and self.where(pod)]
        assert all(pod.ready_since for pod in new), f"{ended.name} was evicted while a new pod is not ready"
        if ended.ready_since and not service.disturbed:
            assert sum(bool(pod.ready_since) for pod in others) >= service.size - 1


class Histories(RuleBasedStateMachine):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.count = 0
        self.cluster = _WatchedCluster(**options)
        self.cluster.services = {name: Service(name, surge) for name, surge in SERVICES.items()}
        self.cluster.pass_time(0)
        for name in ("n1", "n2"):
            self.cluster.node(name)
        for _ in range(3):
            self.go_on()
        assert self.are_updated()

    # What controllers and kubelet do

    def act(self, service: Service) -> None:
        """One step of a Deployment's controller, and of those of its ReplicaSets."""
        service.step(self.cluster.living(service.name))
        top = f"top-{service.name}"
        for revision, wanted in service.wanted.items():
            owner, maker = f"{service.name}-{revision}", f"ReplicaSet/{service.name}-{revision}"
            self.cluster.workloads[owner] = Workload(top, service.size, revision, service.name, keeps_old=True)
            own = [pod for pod in self.cluster.living(service.name) if pod.maker == maker]
            for pod in sorted(own, key=lambda each: (bool(each.node), bool(each.ready_since)))[: len(own) - wanted]:
                self.delete(pod)
            for _ in range(wanted - len(own)):
                self.count += 1
                facts = {"maker": maker, "owner": owner, "hands_over": True, "created": rfc3339(self.cluster.date)}
                self.cluster.pod(f"{service.name}-{revision}-{self.count}", "3g.20gb", **facts)

    def delete(self, pod: PodInfo) -> None:
        if pod.node:
            self.cluster.put(replace(pod, terminating=True, gone_by=self.cluster.date + 30))
        else:
            self.cluster.remove(pod)

    def run_pods(self) -> None:
        """Kubelet ends what is deleted, starts what has slices, and finds ready what it has started before."""
        for pod in list(self.cluster.pods.values()):
            if pod.terminating:
                self.cluster.remove(pod)
            elif pod.node and not pod.ready_since and pod.namespace != OTHERS:
                service = self.cluster.services[pod.name[0]]
                if revision_of(pod) in service.broken:
                    service.disturbed = True
                    self.cluster.put(replace(pod, restarts=RESTARTS))
                else:
                    self.cluster.put(replace(pod, ready_since=self.cluster.date))
            elif not pod.gated and not pod.node and self.cluster.where(pod):
                node = NodeName(self.cluster.where(pod)[0][0])
                self.cluster.put(replace(pod, node=node, started=self.cluster.date))

    def go_on(self) -> None:
        """Some time in which nothing disturbs."""
        for service in self.cluster.services.values():
            self.act(service)
        self.cluster.settle()
        for _ in range(2):
            self.run_pods()
            self.cluster.settle()
        for service in self.cluster.services.values():
            ready = sum(bool(pod.ready_since) for pod in self.cluster.living(service.name))
            service.disturbed = service.disturbed and ready < service.size
        self.cluster.pass_time(20)
        self.cluster.settle()

    def are_updated(self) -> bool:
        return all(
            [revision_of(pod) for pod in self.cluster.living(name) if pod.ready_since] == [service.newest] * WANTED
            for name, service in self.cluster.services.items()
        )

    # What happens

    @rule(name=_SERVICE, works=st.booleans())
    def roll_out(self, name: str, works: bool) -> None:
        service = self.cluster.services[name]
        service.wanted[service.newest + 1] = 0
        if not works:
            service.broken.add(service.newest)
        self.act(service)
        self.cluster.settle()

    @rule(name=_SERVICE)
    def reconcile(self, name: str) -> None:
        self.act(self.cluster.services[name])
        self.cluster.settle()

    @rule()
    def pass_by(self) -> None:
        self.go_on()

    @rule(name=_SERVICE, size=st.integers(1, 3))
    def scale(self, name: str, size: int) -> None:
        """An autoscaler changes the number of pods; more than fit on the cards, too."""
        service = self.cluster.services[name]
        service.size, service.disturbed = size, True
        self.act(service)
        self.cluster.settle()

    @rule(name=_SERVICE, pick=_PICK, drained=st.booleans())
    def end(self, name: str, pick: int, drained: bool) -> None:
        """Somebody deletes a pod, or drains its node."""
        found = [pod for pod in self.cluster.living(name) if pod.node]
        if found:
            self.cluster.services[name].disturbed = True
            pod = found[pick % len(found)]
            self.delete(replace(pod, disrupted=drained))
            self.cluster.settle()

    @rule()
    def others_come(self) -> None:
        """Another team's pod waits for slots."""
        self.count += 1
        facts = {"namespace": OTHERS, "created": rfc3339(self.cluster.date)}
        self.cluster.pod(f"x-{self.count}", "3g.20gb", **facts)
        self.cluster.settle()

    @rule(pick=_PICK)
    def others_end(self, pick: int) -> None:
        found = [pod for pod in self.cluster.pods.values() if pod.namespace == OTHERS]
        if found:
            self.cluster.remove(found[pick % len(found)])
            self.cluster.settle()

    @rule(refusal=st.sampled_from(["", "manifest unknown"]))
    def change_registry(self, refusal: str) -> None:
        self.cluster.no_image = refusal
        self.cluster.settle()

    @rule()
    def restart(self) -> None:
        self.cluster.restart()
        self.cluster.settle()

    @invariant()
    def no_slot_is_given_twice(self) -> None:
        assert self.cluster.overlaps() == []

    def calm(self) -> None:
        """Nothing disturbs any more."""
        self.cluster.no_image = ""

    def teardown(self) -> None:
        """Others end, and what is broken is corrected: then both updates end."""
        self.calm()
        for pod in [pod for pod in self.cluster.pods.values() if pod.namespace == OTHERS]:
            self.cluster.remove(pod)
        for service in self.cluster.services.values():
            service.size = WANTED
            if service.newest in service.broken:
                service.wanted[service.newest + 1] = 0
        for _ in range(30):
            self.go_on()
        assert self.are_updated(), [(pod.name, bool(pod.node), pod.ready_since) for pod in self.cluster.pods.values()]
        assert not self.cluster.slicer.state.reservations


class DisturbedHistories(Histories):
    """The same where other pods preempt those of services, are moved for them, and nodes are drained or silent."""

    def __init__(self) -> None:
        super().__init__(reserve_after=60.0, preempts=True, moves=MoveSettings(mode=MoveMode.EVICT, per_hour=1000))

    @rule(profile=st.sampled_from(["7g.40gb", "3g.20gb", "1g.5gb"]), urgent=st.booleans())
    def others_may_move_or_preempt(self, profile: str, urgent: bool) -> None:
        self.count += 1
        facts: dict[str, Any] = {"namespace": OTHERS, "created": rfc3339(self.cluster.date)}
        if urgent:
            facts["priority"] = 10
        else:
            facts |= {"movable": True, "maker": f"ReplicaSet/batch-{self.count}", "owner": f"batch-{self.count}"}
        self.cluster.pod(f"y-{self.count}", profile, **facts)
        self.cluster.settle()

    @rule(node=_NODE)
    def drain(self, node: str) -> None:
        """Somebody cordons a node, and evicts its pods."""
        self.cluster.change_node(node, cordoned=True)
        for pod in [pod for pod in self.cluster.pods.values() if pod.node == node and not pod.terminating]:
            if pod.namespace != OTHERS:
                self.cluster.services[pod.name[0]].disturbed = True
            self.delete(replace(pod, disrupted=True))
        self.cluster.settle()

    @rule(node=_NODE)
    def uncordon(self, node: str) -> None:
        self.cluster.change_node(node, cordoned=False)
        self.cluster.settle()

    @rule(node=_NODE, state=st.sampled_from([AgentState.DOWN, AgentState.READY]))
    def agent_goes_or_comes(self, node: str, state: AgentState) -> None:
        self.cluster.change_node(node, agent=state)
        self.cluster.settle()

    def calm(self) -> None:
        super().calm()
        for node in self.cluster.nodes:
            self.cluster.change_node(node, cordoned=False, agent=AgentState.READY)


TestHistories, TestDisturbedHistories = Histories.TestCase, DisturbedHistories.TestCase
TestHistories.settings = TestDisturbedHistories.settings = settings(
    max_examples=examples(20), stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
