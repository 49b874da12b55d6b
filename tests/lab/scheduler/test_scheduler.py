"""The scheduler as a client of the API."""

from typing import Any

from tests.support.control_plane_lab import ControlPlaneLab

from tessera.kube.resources import NODES, PODS
from tessera.kube.resources.meta import Resource

PRIORITIES: Resource[dict[str, Any]] = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, dict
)


async def node(lab: ControlPlaneLab, name: str, **allocatable: str) -> None:
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "10"} | allocatable
    body = {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}}
    await lab.api.create(NODES.as_dicts(), body)
    await resize(lab, name, **amounts)


async def resize(lab: ControlPlaneLab, name: str, **amounts: str) -> None:
    status = {"status": {"capacity": amounts, "allocatable": amounts}}
    await lab.api.merge_patch(NODES.as_dicts(), name, status, subresource="status")


def scheduled(pod: dict[str, Any]) -> dict[str, Any]:
    return next(each for each in pod["status"]["conditions"] if each["type"] == "PodScheduled")


async def test_a_pod_is_bound_and_told_so(lab: ControlPlaneLab) -> None:
    lab.start_scheduler()
    await node(lab, "n1")
    await lab.pod("p")
    await lab.clock.sleep(1)
    pod = await lab.get(PODS, "p")
    assert pod["spec"]["nodeName"] == "n1"
    assert scheduled(pod)["status"] == "True"
    assert ("Scheduled", "Successfully assigned default/p to n1") in await lab.notes("p")


async def test_a_gated_pod_waits_and_says_so_and_goes_when_ungated(lab: ControlPlaneLab) -> None:
    lab.start_scheduler()
    await node(lab, "n1")
    await lab.pod("p", schedulingGates=[{"name": "g"}])
    await lab.clock.sleep(1)
    waiting = await lab.get(PODS, "p")
    assert "nodeName" not in waiting["spec"]
    assert scheduled(waiting)["reason"] == "SchedulingGated"
    await lab.api.merge_patch(PODS.as_dicts(), "p", {"spec": {"schedulingGates": []}}, "default")
    await lab.clock.sleep(1)
    assert (await lab.get(PODS, "p"))["spec"]["nodeName"] == "n1"


async def test_a_pod_that_fits_nowhere_says_why_and_runs_when_room_comes(lab: ControlPlaneLab) -> None:
    lab.start_scheduler()
    await node(lab, "n1")
    limits = {"limits": {"nvidia.com/mig-1g.5gb": "1"}}
    await lab.pod("p", containers=[{"name": "c", "image": "app", "resources": limits}])
    await lab.clock.sleep(1)
    message = (
        "0/1 nodes are available: 1 Insufficient nvidia.com/mig-1g.5gb. "
        "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
    )
    condition = scheduled(await lab.get(PODS, "p"))
    assert (condition["status"], condition["reason"], condition["message"]) == ("False", "Unschedulable", message)
    assert ("FailedScheduling", message) in await lab.notes("p")
    began = lab.clock.monotonic()
    await resize(lab, "n1", **{"cpu": "4", "pods": "10", "nvidia.com/mig-1g.5gb": "7"})
    await lab.clock.sleep(0.01)
    assert (await lab.get(PODS, "p"))["spec"]["nodeName"] == "n1"
    assert lab.clock.monotonic() - began < 0.1


async def test_a_deleted_pod_makes_room_at_once(lab: ControlPlaneLab) -> None:
    lab.start_scheduler()
    await node(lab, "n1", pods="1")
    await lab.pod("first")
    await lab.clock.sleep(0.1)
    await lab.pod("second")
    await lab.clock.sleep(0.1)
    assert "nodeName" not in (await lab.get(PODS, "second"))["spec"]
    await lab.api.delete(PODS, "first", "default", grace_seconds=0)
    await lab.clock.sleep(0.01)
    assert (await lab.get(PODS, "second"))["spec"]["nodeName"] == "n1"


async def test_the_more_important_pod_gets_the_last_place(lab: ControlPlaneLab) -> None:
    lab.start_scheduler()
    await lab.pod("ordinary")
    await lab.api.create(PRIORITIES, {"metadata": {"name": "high"}, "value": 1000})
    await lab.pod("urgent", priorityClassName="high")
    await node(lab, "n1", pods="1")
    await lab.clock.sleep(0.1)
    assert (await lab.get(PODS, "urgent"))["spec"].get("nodeName") == "n1"
    assert "nodeName" not in (await lab.get(PODS, "ordinary"))["spec"]


def _hungry(cpu: str) -> dict[str, Any]:
    return {"containers": [{"name": "c", "image": "app", "resources": {"requests": {"cpu": cpu}}}]}


async def _priority(lab: ControlPlaneLab, name: str, value: int, **more: Any) -> None:
    await lab.api.create(PRIORITIES, {"metadata": {"name": name}, "value": value, **more})


async def test_a_more_important_pod_pushes_a_lesser_one_aside(lab: ControlPlaneLab) -> None:
    lab.start_scheduler()
    await node(lab, "n1")
    await _priority(lab, "low", -10)
    await lab.pod("placeholder", priorityClassName="low", terminationGracePeriodSeconds=0, **_hungry("3"))
    await lab.clock.sleep(1)
    await lab.pod("real", **_hungry("2"))
    await lab.clock.sleep(1)
    assert not await lab.exists(PODS, "placeholder")
    assert (await lab.get(PODS, "real"))["spec"]["nodeName"] == "n1"
    reasons = [reason for reason, _ in await lab.notes("placeholder")]
    assert "Preempted" in reasons


async def test_who_waits_for_victims_keeps_their_room(lab: ControlPlaneLab) -> None:
    lab.start_scheduler()
    await node(lab, "n1", pods="1")
    await _priority(lab, "low", -10)
    await lab.pod("victim", priorityClassName="low", terminationGracePeriodSeconds=20)
    await lab.clock.sleep(1)
    await lab.pod("real")
    await lab.clock.sleep(1)
    waiting = await lab.get(PODS, "real")
    assert waiting["status"]["nominatedNodeName"] == "n1"
    assert scheduled(waiting)["reason"] == "Unschedulable"
    victim = await lab.get(PODS, "victim")
    target = next(each for each in victim["status"]["conditions"] if each["type"] == "DisruptionTarget")
    assert target["reason"] == "PreemptionByScheduler"
    await lab.pod("late", priorityClassName="low")
    await lab.api.delete(PODS, "victim", "default", grace_seconds=0)
    await lab.clock.sleep(1)
    assert (await lab.get(PODS, "real"))["spec"]["nodeName"] == "n1"
    assert "nodeName" not in (await lab.get(PODS, "late"))["spec"]


async def test_a_pod_that_never_preempts_waits(lab: ControlPlaneLab) -> None:
    lab.start_scheduler()
    await node(lab, "n1")
    await _priority(lab, "low", -10)
    await _priority(lab, "polite", 10, preemptionPolicy="Never")
    await lab.pod("first", priorityClassName="low", **_hungry("3"))
    await lab.clock.sleep(1)
    await lab.pod("second", priorityClassName="polite", **_hungry("3"))
    await lab.clock.sleep(1)
    assert await lab.exists(PODS, "first")
    message = scheduled(await lab.get(PODS, "second"))["message"]
    assert message.endswith("preemption: not eligible due to preemptionPolicy=Never.")


async def test_pods_of_another_scheduler_are_left_alone(lab: ControlPlaneLab) -> None:
    lab.start_scheduler()
    await node(lab, "n1")
    await lab.pod("p", schedulerName="other")
    await lab.clock.sleep(60)
    assert "nodeName" not in (await lab.get(PODS, "p"))["spec"]
