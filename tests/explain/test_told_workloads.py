"""Workloads of a user who may read one namespace: what others tell of their pods, and CronJobs."""

import msgspec
import pytest
from tests.explain.test_pods import NOW, pod

from tessera.explain.explanation import Explanation
from tessera.explain.snapshot import ClusterView, Snapshot
from tessera.explain.workloads import WorkloadState, cron_job, explain_workload
from tessera.kube.resources import CronJob, Job, OwnerReference, Pod, Uid

FORBIDDEN = frozenset({"nodes", "pods", "instaslices", "leases"})


def made_by(uid: str, name: str) -> Pod:
    found = pod(name)
    owner = OwnerReference(kind="Job", name="j", uid=Uid(uid), controller=True)
    return msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, owner_references=(owner,)))


def test_what_is_told_of_a_pod_counts_before_what_the_user_may_read() -> None:
    view = ClusterView(Snapshot(now=NOW, pods=[made_by("u", "a"), made_by("u", "b")], forbidden=FORBIDDEN))
    workload = WorkloadState(kind="job", namespace="team", name="j", controller_uids=frozenset({"u"}), desired=2)
    told = [Explanation(case="full", verdict="waits for room", facts=("position 2 of 15",), pods=("a",))]
    found = explain_workload(view, workload, told)
    assert (found.answers[0].case, found.answers[0].pods) == ("full", ("a",))
    assert found.answers[1].pods == ("b",), "nobody told of it, so it is explained by what it was told itself"


JOBS = [
    msgspec.convert(
        {"metadata": {"name": "c-1", "uid": "old"}, "status": {"conditions": [{"type": "Complete", "status": "True"}]}},
        Job,
    ),
    msgspec.convert({"metadata": {"name": "c-2", "uid": "new"}, "spec": {"parallelism": 2}}, Job),
]


@pytest.mark.parametrize(
    ("jobs", "suspend", "desired", "suspended"), [(JOBS, False, 2, False), (JOBS, True, 2, False), ([], True, 0, True)]
)
def test_a_cron_job_has_the_pods_of_its_jobs_that_have_not_ended(
    jobs: list[Job], *, suspend: bool, desired: int, suspended: bool
) -> None:
    item = msgspec.convert(
        {"metadata": {"name": "c", "namespace": "team", "uid": "cron"}, "spec": {"suspend": suspend}}, CronJob
    )
    found = cron_job(item, jobs)
    assert (found.kind, found.name, found.desired, found.suspended) == ("cronjob", "c", desired, suspended)
    assert found.controller_uids == {"cron", *(each.metadata.uid for each in jobs)}
