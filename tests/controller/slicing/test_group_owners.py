"""The pods of each kind that makes groups, created as its controller creates them: all of them start at last.

A gang that waits for pods whose owner waits for the gang's first pod would wait for ever.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.pod_annotations import pod_group_key, read_gang
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.events import PodGroupObserved, PodGroupsListed
from tessera.reasons.reason import GangIncomplete

SLICE = "3g.20gb"
GROUP = "kueue.x-k8s.io/pod-group-name"
COSCHEDULING = {"scheduling.x-k8s.io/pod-group": "train"}
Texts = Mapping[str, str]


@dataclass(frozen=True)
class Member:
    """A pod of a group: what its owner writes into it, and the pods that must run before it is created."""

    name: str
    labels: Texts
    annotations: Texts
    after: tuple[str, ...] = ()
    profiles: tuple[str, ...] = (SLICE,)
    owner: tuple[str, str] = ("owner", "uid-owner")


def of_kueue(count: int, *, label: bool = False, **more: str) -> tuple[Texts, Texts]:
    """Labels and annotations of a group in Kueue: the name is a label until Kueue 0.17, an annotation since 0.18."""
    name = {GROUP: "g"}
    counted = {"kueue.x-k8s.io/pod-group-total-count": str(count), **more}
    return (name, counted) if label else ({}, {**name, **counted})


def pod_group(count: int, *, label: bool) -> list[Member]:
    """Pods that a person creates together."""
    return [Member(f"p{number}", *of_kueue(count, label=label)) for number in range(count)]


def stateful_set(*, label: bool) -> list[Member]:
    """Kueue's StatefulSet with ``podManagementPolicy: OrderedReady``."""
    texts = of_kueue(3, label=label, **{"kueue.x-k8s.io/pod-group-fast-admission": "true"})
    return [Member(f"s-{n}", *texts, after=(f"s-{n - 1}",) if n else ()) for n in range(3)]


def leader_worker_set(*, label: bool, leader_first: bool, leader: tuple[str, ...] = (SLICE,)) -> list[Member]:
    """Kueue's LeaderWorkerSet: ``LeaderCreated``, or ``LeaderReady`` and ``exclusive-topology``."""
    labels, annotations = of_kueue(4, label=label)
    after = ("l-0",) if leader_first else ()
    index = "leaderworkerset.sigs.k8s.io/worker-index"
    workers = [Member(f"l-0-{n}", {**labels, index: str(n)}, annotations, after) for n in range(1, 4)]
    return [Member("l-0", {**labels, index: "0"}, annotations, profiles=leader), *workers]


def job_set() -> list[Member]:
    """JobSet with ``dependsOn: Ready``, and a gang for each of its Jobs."""
    sized = {"tessera.dev/gang-size": "2"}
    first = [Member(f"a-{n}", {}, sized, owner=("a", "uid-a")) for n in range(2)]
    return [*first, *(Member(f"b-{n}", {}, sized, ("a-0", "a-1"), owner=("b", "uid-b")) for n in range(2))]


def ray_job() -> list[Member]:
    """KubeRay with the coscheduling plugin: head and workers at once; the submitter, which has no group, comes last."""
    pods = [Member(name, COSCHEDULING, {}) for name in ("head", "worker-1", "worker-2")]
    return [*pods, Member("submitter", {}, {}, ("head", "worker-1", "worker-2"), profiles=())]


def mpi_job() -> list[Member]:
    """MPIJob with the coscheduling plugin, and its launcher, which asks for no slice, ``AtStartup``."""
    return [*(Member(f"worker-{n}", COSCHEDULING, {}) for n in range(2)), Member("launcher", COSCHEDULING, {}, (), ())]


def predictor() -> list[Member]:
    """KServe's predictor, a Deployment in Kueue: its pods are queued one by one."""
    parent = {"kueue.x-k8s.io/pod-suspending-parent": "deployment"}
    return [Member("p-0", {}, parent), Member("p-1", {}, parent, ("p-0",))]


OWNERS: dict[str, Callable[[], list[Member]]] = {
    "pod group": lambda: pod_group(4, label=False),
    "pod group, label": lambda: pod_group(4, label=True),
    "StatefulSet": lambda: stateful_set(label=False),
    "StatefulSet, label": lambda: stateful_set(label=True),
    "LeaderWorkerSet": lambda: leader_worker_set(label=False, leader_first=False),
    "LeaderWorkerSet, leader first": lambda: leader_worker_set(label=False, leader_first=True),
    "LeaderWorkerSet, leader first, label": lambda: leader_worker_set(label=True, leader_first=True),
    "LeaderWorkerSet, leader without slices": lambda: leader_worker_set(label=True, leader_first=True, leader=()),
    "JobSet": job_set,
    "RayJob": ray_job,
    "MPIJob": mpi_job,
    "InferenceService": predictor,
}


@pytest.fixture
def nodes() -> SlicerCluster:
    cluster = SlicerCluster(reserve_after=0.0)
    cluster.node("n1")
    cluster.node("n2")
    cluster.slicer.handle(PodGroupObserved(pod_group_key("default", "train"), 3))
    cluster.slicer.handle(PodGroupsListed(served=True))
    return cluster


def create(cluster: SlicerCluster, member: Member) -> PodInfo:
    gang = read_gang("default", member.labels, member.annotations, member.owner)
    gated = {} if member.profiles else {"gates": ()}
    return cluster.pod(member.name, *member.profiles, gang=gang, **gated)


def runs(cluster: SlicerCluster, pod: PodInfo) -> bool:
    return not cluster.pods[pod.uid].gated


@pytest.mark.parametrize("members", OWNERS.values(), ids=OWNERS)
def test_all_pods_of_a_group_start(nodes: SlicerCluster, members: Callable[[], list[Member]]) -> None:
    made: dict[str, PodInfo] = {}
    waiting = members()
    while waiting:
        due = [each for each in waiting if all(name in made and runs(nodes, made[name]) for name in each.after)]
        assert due, f"none of {[each.name for each in waiting]} will ever be created"
        made |= {each.name: create(nodes, each) for each in due}
        waiting = [each for each in waiting if each not in due]
        nodes.settle()
    assert all(runs(nodes, pod) for pod in made.values())


def test_a_leader_whose_workers_exist_waits_for_room_for_all(nodes: SlicerCluster) -> None:
    held = nodes.pod("held", SLICE)
    nodes.settle()
    pods = [create(nodes, each) for each in leader_worker_set(label=False, leader_first=False)]
    nodes.settle()
    assert not any(nodes.where(pod) for pod in pods)
    nodes.remove(held)
    nodes.settle()
    assert all(runs(nodes, pod) for pod in pods)


@pytest.mark.parametrize("leader_waits", [True, False])
def test_a_leader_gives_back_when_its_first_workers_come_before_it_started(
    nodes: SlicerCluster, *, leader_waits: bool
) -> None:
    """Its owner does not wait for it: the group starts with all of its pods or not at all."""
    full = [nodes.pod(f"full-{n}", "7g.40gb") for n in range(2)] if leader_waits else []
    nodes.settle()
    leader, *workers = leader_worker_set(label=False, leader_first=False)
    pods = [create(nodes, leader)]
    nodes.slicer.decide()
    pods.append(create(nodes, workers[0]))
    nodes.settle()
    assert not any(nodes.where(pod) for pod in pods)
    assert isinstance(nodes.slicer.state.waiting[pods[0].uid].reason, GangIncomplete)
    for pod in full:
        nodes.remove(pod)
    pods += [create(nodes, each) for each in workers[1:]]
    nodes.settle()
    assert all(runs(nodes, pod) for pod in pods)


def test_slots_reserved_for_a_leader_alone_are_reserved_for_its_group_once_that_is_complete(
    nodes: SlicerCluster,
) -> None:
    """A queue has one reservation: while the leader has it, its group gets none, and younger pods take the slots."""
    nodes.pass_time(0)
    full = [nodes.pod(f"full-{n}", "7g.40gb", deadline=100.0 + n) for n in range(2)]
    nodes.settle()
    leader, *workers = leader_worker_set(label=False, leader_first=False)
    pods = [create(nodes, leader)]
    nodes.settle()
    assert [each.gang for each in nodes.slicer.state.reservations.values()] == [""]
    pods += [create(nodes, each) for each in workers]
    nodes.settle()
    reserved = nodes.slicer.state.reservations
    assert {uid: each.gang for uid, each in reserved.items()} == dict.fromkeys(
        (pod.uid for pod in pods), f"default/{GROUP}=g"
    )
    for pod in full:
        nodes.remove(pod)
    nodes.settle()
    assert all(runs(nodes, pod) for pod in pods)
