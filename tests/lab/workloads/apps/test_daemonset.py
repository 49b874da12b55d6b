"""One pod on every node that is meant."""

from collections.abc import Callable
from typing import Any

from tests.support.control_plane_lab import ControlPlaneLab

from tessera.kube.resources import DAEMONSETS, NODES, PODS

Make = Callable[..., dict[str, Any]]


async def up(lab: ControlPlaneLab, body: dict[str, Any], *nodes: str) -> None:
    lab.start_controllers()
    await lab.start_nodes(*nodes)
    await lab.api.create(DAEMONSETS.as_dicts(), body, "default")
    await lab.clock.sleep(1)


async def where(lab: ControlPlaneLab) -> list[str]:
    return sorted(pod["spec"].get("nodeName", "-") for pod in await lab.all(PODS))


async def label(lab: ControlPlaneLab, node: str, **labels: str | None) -> None:
    await lab.api.merge_patch(NODES.as_dicts(), node, {"metadata": {"labels": labels}})
    await lab.clock.sleep(1)


async def test_every_node_has_one_also_a_node_that_comes_later(lab: ControlPlaneLab, workload: Make) -> None:
    await up(lab, workload("d"), "n1", "n2")
    assert await where(lab) == ["n1", "n2"]
    await lab.start_nodes("n3")
    await lab.clock.sleep(1)
    assert await where(lab) == ["n1", "n2", "n3"]
    status = (await lab.get(DAEMONSETS, "d"))["status"]
    assert {status[name] for name in ("desiredNumberScheduled", "numberReady", "numberAvailable")} == {3}


async def test_labels_decide_and_a_label_that_goes_ends_the_pod(lab: ControlPlaneLab, workload: Make) -> None:
    body = workload("d")
    body["spec"]["template"]["spec"]["nodeSelector"] = {"gpu": "yes"}
    await up(lab, body, "n1", "n2")
    assert await where(lab) == []
    await label(lab, "n2", gpu="yes")
    assert await where(lab) == ["n2"]
    await label(lab, "n2", gpu=None)
    assert await where(lab) == []


async def test_a_cordoned_node_keeps_and_gets_its_pod(lab: ControlPlaneLab, workload: Make) -> None:
    lab.start_controllers()
    await lab.start_nodes("n1")
    await lab.api.merge_patch(NODES.as_dicts(), "n1", {"spec": {"unschedulable": True}})
    await lab.api.create(DAEMONSETS.as_dicts(), workload("d"), "default")
    await lab.clock.sleep(1)
    assert await where(lab) == ["n1"]


async def test_a_tainted_node_is_left_out(lab: ControlPlaneLab, workload: Make) -> None:
    lab.start_controllers()
    await lab.start_nodes("n1", taints=({"key": "k", "effect": "NoSchedule"},))
    await lab.start_nodes("n2")
    await lab.api.create(DAEMONSETS.as_dicts(), workload("d"), "default")
    await lab.clock.sleep(1)
    assert await where(lab) == ["n2"]


async def test_pods_are_pinned_by_the_nodes_name(lab: ControlPlaneLab, workload: Make) -> None:
    await up(lab, workload("d"), "n1")
    (pod,) = await lab.all(PODS)
    rule = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    field = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    assert rule == {"nodeSelectorTerms": [{"matchFields": [field]}]}
    keys = {each.get("key") for each in pod["spec"]["tolerations"]}
    assert {"node.kubernetes.io/not-ready", "node.kubernetes.io/unschedulable"} <= keys


async def test_an_update_goes_node_by_node(lab: ControlPlaneLab, workload: Make) -> None:
    await up(lab, workload("d"), "n1", "n2", "n3")
    container = {"name": "c", "image": "new", "command": ["sleep", "infinity"]}
    patch = {"spec": {"template": {"spec": {"containers": [container]}}}}
    await lab.api.merge_patch(DAEMONSETS.as_dicts(), "d", patch, "default")
    await lab.clock.sleep(5)
    assert [pod["spec"]["containers"][0]["image"] for pod in await lab.all(PODS)] == ["new"] * 3
    assert (await lab.get(DAEMONSETS, "d"))["status"]["updatedNumberScheduled"] == 3


async def test_with_max_surge_a_node_has_its_new_pod_before_its_old_one_goes(
    lab: ControlPlaneLab, workload: Make
) -> None:
    body = workload("d")
    body["spec"]["updateStrategy"] = {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    body["spec"]["minReadySeconds"] = 5
    await up(lab, body, "n1", "n2")
    await lab.clock.sleep(6)
    old = {pod["metadata"]["uid"] for pod in await lab.all(PODS)}
    gaps = []
    change = {"spec": {"template": {"metadata": {"labels": {"app": "d", "version": "2"}}}}}
    await lab.api.merge_patch(DAEMONSETS.as_dicts(), "d", change, "default")
    most = 0
    for _ in range(200):
        await lab.clock.sleep(0.1)
        pods = await lab.all(PODS)
        most = max(most, len(pods))
        alive = {pod["spec"].get("nodeName") for pod in pods if pod["status"].get("phase") == "Running"}
        gaps.append({"n1", "n2"} - alive)
    assert not any(gaps)
    assert most == 3
    assert old.isdisjoint(pod["metadata"]["uid"] for pod in await lab.all(PODS))
    assert await where(lab) == ["n1", "n2"]


async def test_a_failed_pod_is_replaced(lab: ControlPlaneLab, workload: Make) -> None:
    await up(lab, workload("d"), "n1")
    (pod,) = await lab.all(PODS)
    name = pod["metadata"]["name"]
    patch = {"status": {"phase": "Failed"}}
    await lab.api.merge_patch(PODS.as_dicts(), name, patch, "default", subresource="status")
    await lab.clock.sleep(1)
    assert not await lab.exists(PODS, name)
    assert await where(lab) == ["n1"]
