"""Inheritance: the slots of a deleted pod are kept for its owner's next pod."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import NodeName, PodUid
from tessera.api.pod_annotations import Gang
from tessera.clock import rfc3339
from tessera.controller.informers import unknown_owners
from tessera.controller.objects.node_info import AgentState
from tessera.controller.objects.pod_constraints import NodeConstraints
from tessera.controller.objects.pod_info import Owner, PodInfo, Workload
from tessera.controller.slicing.state.events import NodeObserved
from tessera.controller.slicing.state.node_records import RESERVATIONS_ANNOTATION
from tessera.controller.slicing.state.reservation_rules import reservations_before
from tessera.controller.slicing.state.waiting_pod import PodState
from tessera.handover.inheritance import KEPT_PODS, KEPT_SECONDS, LONGEST_SECONDS, TRIED_KINDS, Inheritance
from tessera.handover.owner_pods import GANG_KINDS, OwnedPod, OwnerPods, family_of, owner_of, place_within
from tessera.placement.demand import CardRule

OLD, NEW = "ReplicaSet/svc-1", "ReplicaSet/svc-2"


@pytest.fixture
def cluster() -> SlicerCluster:
    """One A100 card; a Deployment that wants one pod, with an old and a new ReplicaSet."""
    made = SlicerCluster()
    made.pass_time(0)
    made.node("n1")
    made.workloads = {"old": Workload("svc", 1, 1), "new": Workload("svc", 1, 2)}
    return made


def waiting(cluster: SlicerCluster, name: str, *profiles: str, **facts: Any) -> PodInfo:
    """A pod that is created now."""
    return cluster.pod(name, *profiles, created=rfc3339(cluster.date), **facts)


def running(cluster: SlicerCluster, name: str, *profiles: str, maker: str = OLD, owner: str = "old") -> PodInfo:
    """A pod of an owner, which has run for a minute."""
    pod = waiting(cluster, name, *profiles, maker=maker, owner=owner)
    cluster.settle()
    ((node, _, _), *_) = cluster.where(pod)
    pod = cluster.put(replace(cluster.pods[pod.uid], node=NodeName(node), started=cluster.date))
    cluster.pass_time(60)
    cluster.settle()
    return pod


def end(cluster: SlicerCluster, pod: PodInfo, **facts: Any) -> PodInfo:
    """Somebody deletes a pod, whose containers end in their grace period."""
    gone = cluster.put(replace(cluster.pods[pod.uid], terminating=True, gone_by=cluster.date + 30, **facts))
    cluster.settle()
    return gone


def gone(cluster: SlicerCluster, pod: PodInfo) -> None:
    """A deleted pod has ended."""
    cluster.remove(pod)
    cluster.settle()


def has_slices(cluster: SlicerCluster, pod: PodInfo) -> bool:
    return bool(cluster.where(pod))


def test_an_update_gets_the_slots_of_its_old_pod_though_another_pod_has_waited_longer(cluster: SlicerCluster) -> None:
    old = running(cluster, "svc-1-a", "7g.40gb")
    batch = waiting(cluster, "batch", "3g.20gb", namespace="team-b")
    cluster.settle()
    end(cluster, old)
    heir = waiting(cluster, "svc-2-a", "7g.40gb", maker=NEW, owner="new")
    cluster.settle()
    gone(cluster, old)
    assert has_slices(cluster, heir)
    assert not has_slices(cluster, batch)


def test_slots_wait_for_a_pod_that_comes_only_once_they_are_free(cluster: SlicerCluster) -> None:
    old = running(cluster, "svc-0", "7g.40gb", maker="StatefulSet/svc", owner="sts")
    cluster.workloads["sts"] = Workload("sts", 1)
    batch = waiting(cluster, "batch", "3g.20gb", namespace="team-b")
    cluster.settle()
    end(cluster, old)
    gone(cluster, old)
    assert not has_slices(cluster, batch)
    cluster.pass_time(KEPT_SECONDS - 1)
    cluster.settle()
    heir = waiting(cluster, "svc-0-again", "7g.40gb", maker="StatefulSet/svc", owner="sts")
    cluster.settle()
    assert has_slices(cluster, heir)
    assert not has_slices(cluster, batch)


def test_slots_for_which_no_pod_comes_go_to_others(cluster: SlicerCluster) -> None:
    old = running(cluster, "svc-1-a", "7g.40gb")
    batch = waiting(cluster, "batch", "3g.20gb", namespace="team-b")
    end(cluster, old)
    gone(cluster, old)
    assert not has_slices(cluster, batch)
    assert cluster.slicer.next_due == cluster.date + KEPT_SECONDS
    cluster.pass_time(KEPT_SECONDS)
    cluster.settle()
    assert has_slices(cluster, batch)
    assert not cluster.slicer.state.reservations


def scaled_down(cluster: SlicerCluster, old: PodInfo) -> None:
    cluster.workloads = {"old": Workload("svc", 0, 1)}
    end(cluster, old)


def made_up(cluster: SlicerCluster, old: PodInfo) -> None:
    cluster.made_up = {"old"}
    end(cluster, old)


def evicted(cluster: SlicerCluster, old: PodInfo) -> None:
    end(cluster, old, disrupted=True)


def ended(cluster: SlicerCluster, old: PodInfo) -> None:
    end(cluster, cluster.put(replace(old, finished=True)))


def never_ran(cluster: SlicerCluster, old: PodInfo) -> None:
    end(cluster, cluster.put(replace(old, started=0.0)))


@pytest.mark.parametrize("way", [scaled_down, made_up, evicted, ended, never_ran])
def test_nothing_is_kept(cluster: SlicerCluster, way: Callable[[SlicerCluster, PodInfo], None]) -> None:
    old = running(cluster, "svc-1-a", "7g.40gb")
    batch = waiting(cluster, "batch", "3g.20gb", namespace="team-b")
    cluster.settle()
    way(cluster, old)
    gone(cluster, cluster.pods[old.uid])
    assert has_slices(cluster, batch)


def test_a_job_leaves_nothing(cluster: SlicerCluster) -> None:
    old = running(cluster, "train-a", "7g.40gb", maker="Job/train", owner="job")
    batch = waiting(cluster, "batch", "3g.20gb", namespace="team-b")
    writes = len(cluster.writes)
    cluster.put(replace(cluster.pods[old.uid], terminating=True))
    cluster.slicer.decide()
    assert not list(unknown_owners(cluster.slicer))  # thousands of jobs may be deleted together
    cluster.settle()
    assert len(cluster.writes) == writes
    gone(cluster, old)
    assert has_slices(cluster, batch)


def test_a_pod_that_ran_briefly_leaves_its_slots_as_briefly(cluster: SlicerCluster) -> None:
    old = running(cluster, "svc-1-a", "7g.40gb")
    old = cluster.put(replace(cluster.pods[old.uid], started=cluster.date - 5))
    batch = waiting(cluster, "batch", "3g.20gb", namespace="team-b")
    end(cluster, old)
    gone(cluster, old)
    cluster.pass_time(5)
    cluster.settle()
    assert has_slices(cluster, batch)


def test_only_as_many_slots_are_kept_as_pods_are_wanted(cluster: SlicerCluster) -> None:
    olds = [running(cluster, f"svc-1-{i}", "3g.20gb") for i in range(2)]
    cluster.workloads = {"old": Workload("svc", 1, 1)}
    batch = [waiting(cluster, f"batch-{i}", "3g.20gb", namespace="team-b") for i in range(2)]
    for each in olds:
        end(cluster, each)
    for each in olds:
        gone(cluster, each)
    assert [has_slices(cluster, each) for each in batch] == [True, False]


GROUP = Gang("default/group", "group", 3)


def group(cluster: SlicerCluster, which: str, *, size: int = 3) -> list[PodInfo]:
    """The pods of a LeaderWorkerSet's group: a leader, and workers of a StatefulSet of their own for each leader."""
    cluster.workloads |= {"lws": Workload("lws", 1), f"workers-{which}": Workload("lws/0", size - 1)}
    owners = [("StatefulSet/lws", "lws"), *[("StatefulSet/lws-0", f"workers-{which}")] * (size - 1)]
    names = ["lws-0", *(f"lws-0-{number}" for number in range(1, size))]
    return [
        waiting(
            cluster,
            name,
            "1g.5gb" if number else "3g.20gb",
            uid=PodUid(f"{name}-{which}"),
            maker=maker,
            owner=owner,
            gang=GROUP,
        )
        for number, (name, (maker, owner)) in enumerate(zip(names, owners, strict=True))
    ]


def running_group(cluster: SlicerCluster) -> list[PodInfo]:
    pods = group(cluster, "old")
    cluster.settle()
    nodes = [NodeName(cluster.where(pod)[0][0]) for pod in pods]
    pods = [
        cluster.put(replace(cluster.pods[pod.uid], node=node, started=cluster.date))
        for pod, node in zip(pods, nodes, strict=True)
    ]
    waiting(cluster, "rest", "2g.10gb", namespace="team-b")
    cluster.pass_time(60)
    cluster.settle()
    return pods


def test_a_group_that_is_made_anew_gets_the_slots_of_the_old_one(cluster: SlicerCluster) -> None:
    olds = running_group(cluster)
    batch = [waiting(cluster, f"batch-{number}", "1g.5gb", namespace="team-b") for number in range(5)]
    cluster.settle()
    held = [cluster.where(pod) for pod in olds]
    free = [pod for pod in batch if not has_slices(cluster, pod)]
    for old in olds:
        end(cluster, old)
    for old in olds:
        gone(cluster, old)
    leader, *workers = group(cluster, "new")
    cluster.settle()
    assert [cluster.where(pod)[0][1:] for pod in (leader, *workers)] == [each[0][1:] for each in held]
    assert [pod for pod in batch if not has_slices(cluster, pod)] == free
    assert not cluster.slicer.state.reservations


def test_a_group_that_stays_incomplete_keeps_its_slots_no_longer_than_others(cluster: SlicerCluster) -> None:
    olds = running_group(cluster)
    batch = waiting(cluster, "batch", "3g.20gb", namespace="team-b")
    cluster.settle()
    for old in olds:
        end(cluster, old)
    for old in olds:
        gone(cluster, old)
    cluster.remove(group(cluster, "new")[-1])
    cluster.pass_time(KEPT_SECONDS - 1)
    cluster.settle()
    assert not has_slices(cluster, batch)
    cluster.pass_time(1)
    cluster.settle()
    assert has_slices(cluster, batch)
    assert not [each for each in cluster.slicer.state.reservations.values() if each.is_inherited]


def test_a_group_whose_pod_goes_before_it_has_started_gives_its_slots_back(cluster: SlicerCluster) -> None:
    olds = running_group(cluster)
    batch = waiting(cluster, "batch", "3g.20gb", namespace="team-b")
    for old in olds:
        end(cluster, old)
    news = group(cluster, "new")
    cluster.settle()
    assert all(pod.uid in cluster.slicer.state.reservations for pod in news)
    cluster.remove(news[1])
    cluster.settle()
    for old in olds:
        gone(cluster, old)
    assert has_slices(cluster, batch)


def test_one_pod_of_a_group_gets_its_slots_beside_the_others(cluster: SlicerCluster) -> None:
    olds = running_group(cluster)
    batch = [waiting(cluster, f"batch-{number}", "1g.5gb", namespace="team-b") for number in range(5)]
    cluster.settle()
    left = sum(not has_slices(cluster, pod) for pod in batch)
    end(cluster, olds[2])
    gone(cluster, olds[2])
    again = waiting(cluster, "again", "1g.5gb", maker="StatefulSet/lws-0", owner="workers-old", gang=GROUP)
    cluster.settle()
    assert has_slices(cluster, again)
    assert sum(not has_slices(cluster, pod) for pod in batch) == left


def test_a_group_that_was_refused_before_its_owner_was_known_gets_its_slots_back(cluster: SlicerCluster) -> None:
    olds = running_group(cluster)
    batch = [waiting(cluster, f"batch-{number}", "1g.5gb", namespace="team-b") for number in range(5)]
    cluster.settle()
    late = [pod for pod in batch if not has_slices(cluster, pod)]
    for old in olds:
        end(cluster, old)
    for old in olds:
        gone(cluster, old)
    news = group(cluster, "new")
    cluster.slicer.decide()  # the API server has not answered yet
    assert {cluster.slicer.state.pods.state_of(pod.uid) for pod in news} == {PodState.REFUSED}
    cluster.settle()
    assert all(has_slices(cluster, pod) for pod in news)
    assert not any(has_slices(cluster, pod) for pod in late)


def test_groups_of_two_owners_of_one_name_get_their_slots_back(cluster: SlicerCluster) -> None:
    """Such as of a StatefulSet that was deleted without its pods and made again."""
    cluster.workloads |= {owner: Workload(owner, 2) for owner in "ab"}

    def pods(which: str) -> list[PodInfo]:
        return [
            waiting(
                cluster,
                f"set-{owner}-{number}-{which}",
                "1g.5gb",
                maker="StatefulSet/set",
                owner=owner,
                gang=Gang(f"default/{owner}", owner, 2),
            )
            for owner in "ab"
            for number in range(2)
        ]

    olds = pods("old")
    cluster.settle()
    olds = [
        cluster.put(replace(cluster.pods[pod.uid], node=NodeName(cluster.where(pod)[0][0]), started=cluster.date))
        for pod in olds
    ]
    cluster.pass_time(60)
    batch = [waiting(cluster, f"batch-{number}", "1g.5gb", namespace="team-b") for number in range(9)]
    cluster.settle()
    late = [pod for pod in batch if not has_slices(cluster, pod)]
    assert len(late) > 4
    for old in olds:
        end(cluster, old)
    for old in olds:
        gone(cluster, old)
    news = pods("new")
    cluster.settle()
    assert all(has_slices(cluster, pod) for pod in news)
    assert not any(has_slices(cluster, pod) for pod in late)


LEADERS, WORKERS = "StatefulSet/lws", "StatefulSet/lws-0"


def worker_of_a_late_leader(cluster: SlicerCluster, **facts: Any) -> tuple[PodInfo, PodInfo]:
    """A worker that has ended while the leader of its group starts anew, and a pod that waits for its slots."""
    cluster.workloads = {"leaders": Workload("leaders", 1), "old": Workload("lws/0", 1), "new": Workload("lws/0", 1)}
    worker = running(cluster, "lws-0-1", "4g.20gb", maker=WORKERS)
    cluster.pass_time(1_000)
    leader = running(cluster, "lws-0", "3g.20gb", maker=LEADERS, owner="leaders")
    cluster.put(replace(cluster.pods[leader.uid], **facts))
    batch = waiting(cluster, "batch", "4g.20gb", namespace="team-b")
    end(cluster, worker)
    gone(cluster, worker)
    return leader, batch


def pass_seconds(cluster: SlicerCluster, seconds: float) -> None:
    for _ in range(int(seconds)):
        cluster.pass_time(1)
        cluster.settle()


def test_workers_that_come_once_their_leader_is_ready_get_the_slots_of_the_old_ones(cluster: SlicerCluster) -> None:
    leader, batch = worker_of_a_late_leader(cluster)
    pass_seconds(cluster, LONGEST_SECONDS / 2)
    cluster.put(replace(cluster.pods[leader.uid], ready_since=cluster.date))
    pass_seconds(cluster, KEPT_SECONDS - 1)
    worker = waiting(cluster, "lws-0-1-again", "4g.20gb", maker=WORKERS, owner="new")
    cluster.settle()
    assert has_slices(cluster, worker)
    assert not has_slices(cluster, batch)


def test_slots_of_workers_that_do_not_come_go_to_others(cluster: SlicerCluster) -> None:
    leader, batch = worker_of_a_late_leader(cluster)
    pass_seconds(cluster, KEPT_SECONDS)
    cluster.put(replace(cluster.pods[leader.uid], ready_since=cluster.date))
    pass_seconds(cluster, KEPT_SECONDS - 1)
    assert not has_slices(cluster, batch)
    pass_seconds(cluster, KEPT_SECONDS)
    assert has_slices(cluster, batch)


@pytest.mark.parametrize("ready", [True, False])
def test_slots_of_workers_are_kept_for_no_leader_that_is_ready_or_never_will_be(
    cluster: SlicerCluster, ready: bool
) -> None:
    _, batch = worker_of_a_late_leader(cluster, **({"ready_since": 1.0} if ready else {}))
    most = KEPT_SECONDS if ready else LONGEST_SECONDS
    pass_seconds(cluster, most - 1)
    assert not has_slices(cluster, batch)
    pass_seconds(cluster, 1)
    assert has_slices(cluster, batch)


@pytest.mark.parametrize("ready", [True, False])
def test_a_stateful_set_that_makes_its_pods_one_by_one_gets_all_slots_back(cluster: SlicerCluster, ready: bool) -> None:
    """All its pods were deleted; the second comes once the first is ready."""
    cluster.workloads["sts"] = Workload("sts", 2)
    facts: dict[str, Any] = {"maker": "StatefulSet/svc", "owner": "sts"}
    olds = [running(cluster, f"svc-{number}", "3g.20gb", **facts) for number in range(2)]
    cluster.pass_time(1_000)
    batch = waiting(cluster, "batch", "3g.20gb", namespace="team-b")
    for each in olds:
        end(cluster, each)
    for each in olds:
        gone(cluster, each)
    first = waiting(cluster, "svc-0", "3g.20gb", uid=PodUid("new"), **facts)
    cluster.settle()
    pass_seconds(cluster, LONGEST_SECONDS - 2 * KEPT_SECONDS)
    if ready:
        cluster.put(replace(cluster.pods[first.uid], ready_since=cluster.date))
        pass_seconds(cluster, KEPT_SECONDS - 1)
        second = waiting(cluster, "svc-1", "3g.20gb", uid=PodUid("next"), **facts)
        cluster.settle()
        assert has_slices(cluster, second)
    else:
        pass_seconds(cluster, 2 * KEPT_SECONDS - 1)
        assert not has_slices(cluster, batch)
        pass_seconds(cluster, 1)
    assert has_slices(cluster, batch) is not ready


def all_end(cluster: SlicerCluster, pods: Sequence[PodInfo], first: int) -> list[PodInfo]:
    """Somebody deletes pods, of which one ends at once and the others drain; two other pods wait for their slots."""
    batch = [waiting(cluster, f"batch-{number}", "3g.20gb", namespace="team-b") for number in range(2)]
    for each in pods:
        end(cluster, each)
    gone(cluster, pods[first])
    return batch


def drain(cluster: SlicerCluster, pods: Sequence[PodInfo], first: int, *, killed: bool) -> None:
    """The others end too, later than slots are kept that are free; meanwhile the controller dies, if ``killed``."""
    for _ in range(5):
        pass_seconds(cluster, KEPT_SECONDS)
        if killed:
            cluster.restart()
            cluster.settle()
    for each in (*pods[:first], *pods[first + 1 :]):
        gone(cluster, each)


def long_running(cluster: SlicerCluster, *facts: Mapping[str, Any]) -> list[PodInfo]:
    pods = [running(cluster, f"{each['name']}", "3g.20gb", maker=each["maker"], owner=each["owner"]) for each in facts]
    cluster.pass_time(1_000)
    return pods


@pytest.mark.parametrize("killed", [False, True])
def test_a_deployment_that_makes_new_pods_once_all_old_ones_have_ended_gets_all_slots_back(
    cluster: SlicerCluster, killed: bool
) -> None:
    """Its strategy is Recreate."""
    cluster.workloads = {"old": Workload("svc", 2, 1), "new": Workload("svc", 2, 2)}
    olds = long_running(cluster, *({"name": f"svc-1-{each}", "maker": OLD, "owner": "old"} for each in "ab"))
    batch = all_end(cluster, olds, 0)
    drain(cluster, olds, 0, killed=killed)
    pass_seconds(cluster, KEPT_SECONDS - 1)
    news = [waiting(cluster, f"svc-2-{each}", "3g.20gb", maker=NEW, owner="new") for each in "ab"]
    cluster.settle()
    assert all(has_slices(cluster, each) for each in news)
    assert not any(has_slices(cluster, each) for each in batch)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("first", [0, 1])
def test_a_group_gets_its_slots_back_though_one_of_its_old_pods_drains(
    cluster: SlicerCluster, first: int, killed: bool
) -> None:
    """Its new leader comes once the old one has gone, and its new workers once that is ready."""
    cluster.workloads = {"leaders": Workload("leaders", 1), "old": Workload("lws/0", 1), "new": Workload("lws/0", 1)}
    olds = long_running(
        cluster,
        {"name": "lws-0", "maker": LEADERS, "owner": "leaders"},
        {"name": "lws-0-1", "maker": WORKERS, "owner": "old"},
    )
    batch = all_end(cluster, olds, first)
    drain(cluster, olds, first, killed=killed)
    pass_seconds(cluster, KEPT_SECONDS - 1)
    leader = waiting(cluster, "lws-0", "3g.20gb", uid=PodUid("new"), maker=LEADERS, owner="leaders")
    cluster.settle()
    pass_seconds(cluster, 2 * KEPT_SECONDS)
    worker = waiting(cluster, "lws-0-1", "3g.20gb", uid=PodUid("next"), maker=WORKERS, owner="new")
    cluster.settle()
    assert has_slices(cluster, leader)
    assert has_slices(cluster, worker)
    assert not any(has_slices(cluster, each) for each in batch)


def test_a_gang_gets_its_slots_back_though_one_of_its_old_pods_drains(cluster: SlicerCluster) -> None:
    olds = running_group(cluster)
    cluster.pass_time(1_000)
    batch = [waiting(cluster, f"batch-{number}", "1g.5gb", namespace="team-b") for number in range(7)]
    cluster.settle()
    late = [pod for pod in batch if not has_slices(cluster, pod)]
    for each in olds:
        end(cluster, each)
    gone(cluster, olds[0])
    gone(cluster, olds[1])
    leader, *workers = group(cluster, "new")
    cluster.remove(workers[-1])  # its like, of the same name, still drains
    pass_seconds(cluster, 5 * KEPT_SECONDS)
    gone(cluster, olds[2])
    last = waiting(cluster, "late", "1g.5gb", maker=WORKERS, owner="workers-new", gang=GROUP)
    cluster.settle()
    assert all(has_slices(cluster, pod) for pod in (leader, workers[0], last))
    assert not any(has_slices(cluster, pod) for pod in late)


def test_a_pod_that_never_ends_keeps_the_slots_of_others_for_ten_minutes(cluster: SlicerCluster) -> None:
    cluster.workloads = {"old": Workload("svc", 2, 1)}
    olds = long_running(cluster, *({"name": f"svc-1-{each}", "maker": OLD, "owner": "old"} for each in "ab"))
    batch = all_end(cluster, olds, 0)
    pass_seconds(cluster, LONGEST_SECONDS - 1)
    assert not any(has_slices(cluster, each) for each in batch)
    pass_seconds(cluster, 1)
    assert [has_slices(cluster, each) for each in batch] == [True, False]


@pytest.mark.parametrize("killed", [False, True])
def test_a_clone_set_leaves_its_slots_to_its_next_pod(cluster: SlicerCluster, killed: bool) -> None:
    old = running(cluster, "svc-a", "7g.40gb", maker="CloneSet/svc", owner="clones")
    cluster.workloads["clones"] = Workload("clones", 1)
    batch = waiting(cluster, "batch", "3g.20gb", namespace="team-b")
    end(cluster, old)
    gone(cluster, old)
    if killed:
        cluster.restart()
    heir = waiting(cluster, "svc-b", "7g.40gb", maker="CloneSet/svc", owner="clones")
    cluster.settle()
    assert [has_slices(cluster, each) for each in (heir, batch)] == [True, False]


def test_the_newest_revision_goes_first(cluster: SlicerCluster) -> None:
    old = running(cluster, "svc-1-a", "7g.40gb")
    end(cluster, old)
    same = waiting(cluster, "svc-1-b", "7g.40gb", maker=OLD, owner="old")
    cluster.pass_time(1)
    newer = waiting(cluster, "svc-2-a", "7g.40gb", maker=NEW, owner="new")
    cluster.settle()
    gone(cluster, old)
    assert [has_slices(cluster, each) for each in (newer, same)] == [True, False]


def test_a_pod_that_asks_for_less_gets_a_part_and_others_the_rest(cluster: SlicerCluster) -> None:
    old = running(cluster, "svc-1-a", "7g.40gb")
    batch = waiting(cluster, "batch", "3g.20gb", namespace="team-b")
    heir = waiting(cluster, "svc-2-a", "3g.20gb", maker=NEW, owner="new")
    end(cluster, old)
    gone(cluster, old)
    assert has_slices(cluster, heir)
    assert has_slices(cluster, batch)


def test_a_pod_that_asks_for_more_inherits_nothing(cluster: SlicerCluster) -> None:
    old = running(cluster, "svc-1-a", "3g.20gb")
    filler = running(cluster, "other", "3g.20gb", maker="StatefulSet/other", owner="other")
    heir = waiting(cluster, "svc-2-a", "7g.40gb", maker=NEW, owner="new")
    end(cluster, old)
    gone(cluster, old)
    cluster.pass_time(KEPT_SECONDS)
    cluster.settle()
    assert not has_slices(cluster, heir)
    assert has_slices(cluster, filler)


def test_a_pod_of_higher_priority_that_waits_takes_nothing(cluster: SlicerCluster) -> None:
    old = running(cluster, "svc-1-a", "7g.40gb")
    urgent = waiting(cluster, "urgent", "7g.40gb", priority=1000)
    cluster.settle()
    end(cluster, old)
    heir = waiting(cluster, "svc-2-a", "7g.40gb", maker=NEW, owner="new")
    gone(cluster, old)
    assert [has_slices(cluster, each) for each in (heir, urgent)] == [True, False]


def test_a_reservation_of_another_pod_ends(cluster: SlicerCluster) -> None:
    cluster = SlicerCluster(reserve_after=0.0)
    cluster.pass_time(0)
    cluster.node("n1")
    cluster.workloads = {"old": Workload("svc", 1, 1), "new": Workload("svc", 1, 2)}
    old = running(cluster, "svc-1-a", "7g.40gb")
    batch = waiting(cluster, "batch", "3g.20gb", namespace="team-b")
    cluster.settle()
    assert batch.uid in cluster.slicer.state.reservations
    end(cluster, old)
    heir = waiting(cluster, "svc-2-a", "7g.40gb", maker=NEW, owner="new")
    gone(cluster, old)
    assert [has_slices(cluster, each) for each in (heir, batch)] == [True, False]


def test_whole_cards_are_inherited_too() -> None:
    cluster = SlicerCluster()
    cluster.pass_time(0)
    cluster.device_node("n1", count=1)
    cluster.workloads = {"sts": Workload("sts", 1)}
    old = cluster.whole("svc-0", maker="StatefulSet/svc", owner="sts", created=rfc3339(cluster.date))
    cluster.settle()
    old = cluster.put(replace(cluster.pods[old.uid], node=NodeName("n1"), started=cluster.date))
    cluster.pass_time(60)
    batch = cluster.whole("batch", created=rfc3339(cluster.date), namespace="team-b")
    cluster.settle()
    end(cluster, old)
    gone(cluster, old)
    cluster.pass_time(1)
    heir = cluster.whole("svc-0-again", maker="StatefulSet/svc", owner="sts", created=rfc3339(cluster.date))
    cluster.settle()
    assert [cluster.pods[each.uid].gated for each in (heir, batch)] == [False, True]


@pytest.mark.parametrize("moment", ["being deleted", "gone"])
def test_a_new_controller_keeps_the_slots(cluster: SlicerCluster, moment: str) -> None:
    old = running(cluster, "svc-1-a", "7g.40gb")
    batch = waiting(cluster, "batch", "3g.20gb", namespace="team-b")
    cluster.settle()
    end(cluster, old)
    if moment == "being deleted":
        cluster.objects["n1"]["metadata"]["annotations"].pop(RESERVATIONS_ANNOTATION)  # it was not written yet
        cluster.restart()
        cluster.settle()
        gone(cluster, old)
    else:
        gone(cluster, old)
        cluster.restart()
    cluster.settle()
    assert not has_slices(cluster, batch)
    heir = waiting(cluster, "svc-2-a", "7g.40gb", maker=NEW, owner="new")
    cluster.settle()
    assert has_slices(cluster, heir)
    assert RESERVATIONS_ANNOTATION not in cluster.objects["n1"]["metadata"].get("annotations", {})


def test_kept_slots_count_for_the_queue(cluster: SlicerCluster) -> None:
    cluster.queue("default", weight=1)
    old = running(cluster, "svc-1-a", "7g.40gb")
    ledger = cluster.slicer.state.ledger
    before = ledger.account("default").held.total()
    assert before
    end(cluster, old)
    gone(cluster, old)
    assert cluster.slicer.state.ledger.account("default").held.total() == before
    cluster.pass_time(KEPT_SECONDS)
    cluster.settle()
    assert cluster.slicer.state.ledger.account("default").held.total() == 0


@pytest.fixture
def full_queue(cluster: SlicerCluster) -> SlicerCluster:
    """The same with room on a second node, which a queue may not use once it holds a card."""
    cluster.node("n2")
    cluster.queue("default", maximum=8)
    return cluster


@pytest.mark.parametrize("priority", [0, 100])
@pytest.mark.parametrize("first", ["the next pod", "the end of the last one"])
def test_at_its_queues_maximum_the_next_pod_goes_before_pods_that_have_waited_longer(
    full_queue: SlicerCluster, first: str, priority: int
) -> None:
    old = running(full_queue, "svc-1-a", "7g.40gb")
    batch = waiting(full_queue, "batch", "7g.40gb", priority=priority)
    full_queue.settle()
    end(full_queue, old)
    if first == "the next pod":
        heir = waiting(full_queue, "svc-2-a", "7g.40gb", maker=NEW, owner="new")
        full_queue.settle()
        assert not has_slices(full_queue, heir)  # both would be more than the maximum
        full_queue.remove(old)
        full_queue.run()  # the agent has not destroyed the slices yet
        assert not has_slices(full_queue, batch)
    else:
        gone(full_queue, old)
        full_queue.pass_time(1)
        heir = waiting(full_queue, "svc-2-a", "7g.40gb", maker=NEW, owner="new")
    full_queue.settle()
    assert [has_slices(full_queue, each) for each in (heir, batch)] == [True, False]
    assert full_queue.slicer.state.ledger.account("default").held.total() == 8


def test_a_new_controller_counts_kept_slots_for_the_maximum(full_queue: SlicerCluster) -> None:
    old = running(full_queue, "svc-1-a", "7g.40gb")
    end(full_queue, old)
    batch = waiting(full_queue, "batch", "1g.5gb")
    full_queue.settle()
    full_queue.restart()
    gone(full_queue, old)
    assert not has_slices(full_queue, batch)
    assert full_queue.slicer.state.ledger.account("default").held.total() == 8


@pytest.mark.parametrize("priority", [0, 100])
def test_the_next_pod_beside_its_last_one_counts_for_the_maximum(full_queue: SlicerCluster, priority: int) -> None:
    """A pod of 8 slots and the next pod of 1 would both fit beside the last pod of 4, but not together."""
    full_queue.queue("default", maximum=12)
    old = running(full_queue, "svc-1-a", "4g.20gb")
    end(full_queue, old)
    waiting(full_queue, "svc-2-a", "1g.5gb", maker=NEW, owner="new")
    waiting(full_queue, "batch", "7g.40gb", priority=priority)
    full_queue.settle()
    assert full_queue.slicer.state.ledger.account("default").held.total() <= 12


def test_kept_slots_count_once_for_the_maximum(full_queue: SlicerCluster) -> None:
    full_queue.queue("default", maximum=16)
    old = running(full_queue, "svc-1-a", "7g.40gb")
    end(full_queue, old)
    batch = waiting(full_queue, "batch", "7g.40gb")
    full_queue.settle()
    assert has_slices(full_queue, batch)
    heir = waiting(full_queue, "svc-2-a", "7g.40gb", maker=NEW, owner="new")
    full_queue.settle()
    gone(full_queue, full_queue.pods[batch.uid])
    assert has_slices(full_queue, heir)  # on the other node, beside its last pod


def test_a_maximum_that_is_lowered_holds_the_next_pod_back_too(full_queue: SlicerCluster) -> None:
    old, other = (running(full_queue, name, "3g.20gb") for name in ("svc-1-a", "svc-1-b"))
    full_queue.workloads = {"old": Workload("svc", 2, 1), "new": Workload("svc", 2, 2)}
    end(full_queue, old)
    heir = waiting(full_queue, "svc-2-a", "3g.20gb", maker=NEW, owner="new")
    full_queue.settle()
    full_queue.queue("default", maximum=4)
    gone(full_queue, old)
    assert [has_slices(full_queue, each) for each in (heir, other)] == [False, True]
    assert not full_queue.slicer.state.reservations


def test_slots_on_two_cards_go_to_no_pod_that_needs_one_card() -> None:
    cluster = SlicerCluster()
    cluster.pass_time(0)
    cluster.node("n1", count=2)
    cluster.workloads = {"old": Workload("svc", 1, 1), "new": Workload("svc", 1, 2)}
    old = running(cluster, "svc-1-a", "4g.20gb", "4g.20gb")
    assert len(cluster.slicer.state.allocations.current_of(old.uid).slices) == 2
    end(cluster, old)
    heir = waiting(cluster, "svc-2-a", "3g.20gb", "3g.20gb", maker=NEW, owner="new", spread=(CardRule((0, 1)),))
    cluster.settle()
    assert heir.uid not in cluster.slicer.state.reservations


@pytest.mark.parametrize("kinds", [1, 60])
def test_many_waiting_pods_of_an_owner_are_tried_in_kept_slots_by_kinds(
    monkeypatch: pytest.MonkeyPatch, kinds: int
) -> None:
    """A tenant's pods that ask for more than was kept, each with constraints of its own or none."""
    cluster = SlicerCluster()
    cluster.pass_time(0)
    for number in range(6):
        cluster.node(f"n{number}")
    cluster.workloads = {"old": Workload("svc", 1000, 1)}
    olds = [running(cluster, f"svc-1-{number}", "1g.5gb") for number in range(40)]
    for number in range(120):
        rules = NodeConstraints(selector=(("disk", str(number)),)) if number < kinds > 1 else NodeConstraints()
        waiting(cluster, f"svc-1-more-{number}", "7g.40gb", maker=OLD, owner="old", constraints=rules)
    cluster.settle()
    for each in olds:
        cluster.put(replace(cluster.pods[each.uid], terminating=True))
    cluster.run()
    tried = []

    def count(*args: Any) -> Any:
        tried.append(args)
        return place_within(*args)

    monkeypatch.setattr(f"{Inheritance.__module__}.place_within", count)
    list(cluster.inheritance.propose())
    assert len(olds) <= len(tried) <= len(olds) * min(kinds + 1, TRIED_KINDS)


@pytest.mark.parametrize("kinds", [1, 60])
def test_many_gangs_of_an_owner_that_fit_nowhere_are_tried_by_kinds(
    monkeypatch: pytest.MonkeyPatch, kinds: int
) -> None:
    """The first pod of each gang fits, the second one asks for more than was kept."""
    cluster = SlicerCluster()
    cluster.pass_time(0)
    for number in range(6):
        cluster.node(f"n{number}")
    cluster.workloads = {"old": Workload("svc", 1000, 1)}
    olds = [running(cluster, f"svc-1-{number}", "1g.5gb") for number in range(40)]
    for number in range(60):
        rules = NodeConstraints(selector=(("disk", str(number)),)) if kinds > 1 else NodeConstraints()
        facts: dict[str, Any] = {"maker": OLD, "owner": "old", "gang": Gang(f"default/g{number}", f"g{number}", 2)}
        waiting(cluster, f"small-{number}", "1g.5gb", **facts)
        waiting(cluster, f"large-{number}", "7g.40gb", constraints=rules, **facts)
    cluster.settle()
    for each in olds:
        cluster.put(replace(cluster.pods[each.uid], terminating=True))
    cluster.run()
    tried = []

    def count(*args: Any) -> Any:
        tried.append(args)
        return place_within(*args)

    monkeypatch.setattr("tessera.handover.owner_pods.place_within", count)
    list(cluster.inheritance.propose())
    assert len(olds) <= len(tried) <= 60 + len(olds) * min(kinds + 1, GANG_KINDS)


def test_an_owner_that_deletes_for_ever_holds_no_more_than_its_pods_run(cluster: SlicerCluster) -> None:
    """Each of its pods runs a second: then its slots are kept for a second, and the pod that waits gets them."""
    old = running(cluster, "svc-0", "7g.40gb", maker="StatefulSet/svc", owner="sts")
    cluster.workloads["sts"] = Workload("sts", 1)
    batch = waiting(cluster, "batch", "3g.20gb", namespace="team-b")
    for number in range(1, 4):
        end(cluster, old)
        gone(cluster, old)
        cluster.pass_time(0.5)
        old = waiting(cluster, f"svc-0-{number}", "7g.40gb", maker="StatefulSet/svc", owner="sts")
        cluster.settle()
        old = cluster.put(replace(cluster.pods[old.uid], node=NodeName("n1"), started=cluster.date))
        cluster.pass_time(1)
        cluster.settle()
    end(cluster, old)
    gone(cluster, old)
    cluster.pass_time(1)
    cluster.settle()
    assert has_slices(cluster, batch)


def test_a_namespace_keeps_its_share_of_the_bound() -> None:
    cluster = SlicerCluster()
    cluster.pass_time(0)
    for number in range(80):
        cluster.node(f"n{number}")
    cluster.workloads = {"old": Workload("svc", KEPT_PODS + 48, 1)}
    pods = [waiting(cluster, f"svc-1-{i}", "1g.5gb", maker=OLD, owner="old") for i in range(KEPT_PODS + 48)]
    cluster.settle()
    for pod in pods:
        ((node, _, _),) = cluster.where(pod)
        cluster.put(replace(cluster.pods[pod.uid], node=NodeName(node), started=cluster.date))
    cluster.pass_time(60)
    cluster.settle()
    for pod in pods:
        cluster.put(replace(cluster.pods[pod.uid], terminating=True))
    cluster.settle()
    assert len(cluster.slicer.state.reservations) == KEPT_PODS


@pytest.mark.parametrize("last", [0, 1, 2])
def test_each_of_several_next_pods_gets_slots_whichever_are_free_last(last: int) -> None:
    """An update with ``Recreate`` ends all pods at the same time, and their slices are gone one after the other."""
    cluster = SlicerCluster()
    cluster.pass_time(0)
    for name in ("n1", "n2"):
        cluster.node(name)
    cluster.workloads = {"old": Workload("svc", 3, 1), "new": Workload("svc", 3, 2)}
    olds = [running(cluster, f"svc-1-{each}", "3g.20gb") for each in "abc"]
    running(cluster, "other", "3g.20gb", maker="StatefulSet/other", owner="other")
    batch = waiting(cluster, "batch", "3g.20gb", namespace="team-b")
    cluster.settle()
    for each in olds:
        cluster.put(replace(cluster.pods[each.uid], terminating=True, gone_by=cluster.date + 30))
    cluster.settle()
    heirs = [waiting(cluster, f"svc-2-{each}", "3g.20gb", maker=NEW, owner="new") for each in "abc"]
    cluster.settle()
    before = reservations_before(cluster.slicer.state, heirs[0])
    assert {each.uid for each in before} == {each.uid for each in heirs[1:]}
    for each in olds:
        if each is not olds[last]:
            cluster.remove(each)
    cluster.settle()
    gone(cluster, olds[last])
    assert [has_slices(cluster, each) for each in (*heirs, batch)] == [True, True, True, False]


@pytest.mark.parametrize("away", [{"agent": AgentState.DOWN}, {"allocatable": {"cpu": 64000, "pods": 110}}])
def test_slots_are_kept_while_the_agent_of_their_node_is_away(cluster: SlicerCluster, away: dict[str, Any]) -> None:
    old = running(cluster, "svc-1-a", "7g.40gb")
    batch = waiting(cluster, "batch", "3g.20gb", namespace="team-b")
    cluster.settle()
    end(cluster, old)
    heir = waiting(cluster, "svc-2-a", "7g.40gb", maker=NEW, owner="new")
    cluster.settle()
    before = cluster.nodes[NodeName("n1")]
    gone_away = replace(before, **away)
    cluster.nodes[before.name] = gone_away
    cluster.slicer.handle(NodeObserved(gone_away))
    gone(cluster, old)
    cluster.pass_time(20)
    cluster.settle()
    cluster.nodes[before.name] = before
    cluster.slicer.handle(NodeObserved(before))
    cluster.settle()
    assert [has_slices(cluster, each) for each in (heir, batch)] == [True, False]


def test_owners_whose_names_differ_in_a_number_are_no_update_and_are_not_looked_through(cluster: SlicerCluster) -> None:
    """The groups of a LeaderWorkerSet, of which there may be thousands. ReplicaSets differ in a hash."""
    pods = OwnerPods()

    def owner(maker: str, uid: str) -> Owner:
        pod = waiting(cluster, f"pod-{uid}", "1g.5gb", maker=maker, owner=uid)
        pods.put(OwnedPod(pod, None))
        return owner_of(pod)

    groups = [owner(f"StatefulSet/lws-{number}", f"g{number}") for number in range(3)]
    assert not pods.updating
    assert [len(list(pods.owners(family_of(each)))) for each in groups] == [1, 1, 1]
    anew = owner("StatefulSet/lws-1", "anew")
    assert list(pods.siblings(anew)) == [anew, groups[1]]
    sets = [owner(f"ReplicaSet/svc-{name}", name) for name in ("old", "new")]
    assert list(pods.siblings(sets[0])) == sets
    assert set(pods.updating) == {("default", "StatefulSet/lws-1"), ("default", "ReplicaSet/svc")}
