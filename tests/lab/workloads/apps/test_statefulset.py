"""Numbered pods, in order."""

from collections.abc import Callable
from typing import Any

from tests.support.control_plane_lab import ControlPlaneLab

from tessera.kube.resources import PODS, STATEFULSETS

Make = Callable[..., dict[str, Any]]


async def up(lab: ControlPlaneLab, body: dict[str, Any]) -> None:
    lab.start_controllers()
    await lab.start_nodes("n1", pull_seconds=5)
    await lab.api.create(STATEFULSETS.as_dicts(), body, "default")
    await lab.clock.sleep(1)


async def names(lab: ControlPlaneLab) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in await lab.all(PODS))


async def test_pods_come_one_after_the_other(lab: ControlPlaneLab, workload: Make) -> None:
    await up(lab, workload("s", replicas=2, serviceName="svc"))
    assert await names(lab) == ["s-0"]
    await lab.clock.sleep(5)
    assert await names(lab) == ["s-0", "s-1"]
    pod = await lab.get(PODS, "s-1")
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("s-1", "svc")
    assert pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] == "1"
    status = (await lab.get(STATEFULSETS, "s"))["status"]
    assert status["updateRevision"] == pod["metadata"]["labels"]["controller-revision-hash"]
    assert {status[name] for name in ("replicas", "readyReplicas", "availableReplicas", "currentReplicas")} == {2}


async def test_in_parallel_they_come_together(lab: ControlPlaneLab, workload: Make) -> None:
    await up(lab, workload("s", replicas=3, serviceName="svc", podManagementPolicy="Parallel"))
    assert await names(lab) == ["s-0", "s-1", "s-2"]


async def test_the_highest_number_goes_first(lab: ControlPlaneLab, workload: Make) -> None:
    await up(lab, workload("s", replicas=3, serviceName="svc"))
    await lab.clock.sleep(10)
    await lab.api.scale(STATEFULSETS, "s", "default", 1)
    await lab.clock.sleep(1)
    assert await names(lab) == ["s-0"]


async def test_a_lost_pod_gets_its_name_again(lab: ControlPlaneLab, workload: Make) -> None:
    await up(lab, workload("s", replicas=2, serviceName="svc"))
    await lab.clock.sleep(10)
    before = (await lab.get(PODS, "s-0"))["metadata"]["uid"]
    await lab.api.delete(PODS, "s-0", "default")
    await lab.clock.sleep(1)
    assert await names(lab) == ["s-0", "s-1"]
    assert (await lab.get(PODS, "s-0"))["metadata"]["uid"] != before


async def test_an_update_stops_at_the_partition(lab: ControlPlaneLab, workload: Make) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}
    await up(lab, workload("s", replicas=3, serviceName="svc", updateStrategy=strategy))
    await lab.clock.sleep(10)
    container = {"name": "c", "image": "new", "command": ["sleep", "infinity"]}
    patch = {"spec": {"template": {"spec": {"containers": [container]}}}}
    await lab.api.merge_patch(STATEFULSETS.as_dicts(), "s", patch, "default")
    await lab.clock.sleep(20)
    pods = {pod["metadata"]["name"]: pod["spec"]["containers"][0]["image"] for pod in await lab.all(PODS)}
    assert pods == {"s-0": "app", "s-1": "new", "s-2": "new"}
