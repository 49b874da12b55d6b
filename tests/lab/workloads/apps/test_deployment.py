"""Rollouts of Deployments."""

from collections.abc import Callable
from typing import Any

from tests.support.control_plane_lab import ControlPlaneLab

from tessera.kube.resources import DEPLOYMENTS, PODS, REPLICASETS

Make = Callable[..., dict[str, Any]]


async def up(lab: ControlPlaneLab, body: dict[str, Any], **options: Any) -> None:
    lab.start_controllers()
    await lab.start_nodes("n1", "n2", **options)
    await lab.api.create(DEPLOYMENTS.as_dicts(), body, "default")
    await lab.clock.sleep(1)


async def change_image(lab: ControlPlaneLab, image: str) -> None:
    container = {"name": "c", "image": image, "command": ["sleep", "infinity"]}
    patch = {"spec": {"template": {"spec": {"containers": [container]}}}}
    await lab.api.merge_patch(DEPLOYMENTS.as_dicts(), "d", patch, "default")


async def conditions(lab: ControlPlaneLab) -> dict[str, tuple[str, str]]:
    deployment = await lab.get(DEPLOYMENTS, "d")
    return {each["type"]: (each["status"], each["reason"]) for each in deployment["status"]["conditions"]}


async def images(lab: ControlPlaneLab) -> list[str]:
    return sorted(pod["spec"]["containers"][0]["image"] for pod in await lab.all(PODS))


async def test_a_deployment_comes_up_and_says_so(lab: ControlPlaneLab, workload: Make) -> None:
    await up(lab, workload("d", replicas=3))
    deployment = await lab.get(DEPLOYMENTS, "d")
    status = deployment["status"]
    assert {status[name] for name in ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")} == {3}
    assert status["observedGeneration"] == deployment["metadata"]["generation"] == 1
    assert deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "1"
    assert await conditions(lab) == {
        "Available": ("True", "MinimumReplicasAvailable"),
        "Progressing": ("True", "NewReplicaSetAvailable"),
    }
    (replicaset,) = await lab.all(REPLICASETS)
    digest = replicaset["metadata"]["labels"]["pod-template-hash"]
    assert replicaset["metadata"]["name"] == f"d-{digest}"
    assert all(pod["metadata"]["labels"]["pod-template-hash"] == digest for pod in await lab.all(PODS))
    note = ("ScalingReplicaSet", f"Scaled up replica set d-{digest} from 0 to 3")
    assert note in await lab.notes("d")


async def test_a_new_template_is_rolled_out_and_an_old_one_rolled_back(lab: ControlPlaneLab, workload: Make) -> None:
    await up(lab, workload("d", replicas=4))
    await change_image(lab, "new")
    await lab.clock.sleep(5)
    assert await images(lab) == ["new"] * 4
    assert len(await lab.all(REPLICASETS)) == 2
    await change_image(lab, "app")
    await lab.clock.sleep(5)
    assert await images(lab) == ["app"] * 4
    assert len(await lab.all(REPLICASETS)) == 2
    deployment = await lab.get(DEPLOYMENTS, "d")
    assert deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "3"


async def test_a_rolling_update_keeps_enough_pods_available(lab: ControlPlaneLab, workload: Make) -> None:
    rolling = {"maxSurge": 1, "maxUnavailable": 0}
    body = workload("d", replicas=3, strategy={"type": "RollingUpdate", "rollingUpdate": rolling})
    await up(lab, body, pull_seconds=5)
    await lab.clock.sleep(5)
    await change_image(lab, "new")
    lowest, highest = 3, 3
    while await images(lab) != ["new"] * 3:
        await lab.clock.sleep(0.5)
        pods = await lab.all(PODS)
        lowest = min(lowest, (await lab.get(DEPLOYMENTS, "d"))["status"].get("availableReplicas", 0))
        highest = max(highest, sum(not pod["metadata"].get("deletionTimestamp") for pod in pods))
    assert (lowest, highest) == (3, 4)


async def test_recreate_ends_all_old_pods_first(lab: ControlPlaneLab, workload: Make) -> None:
    await up(lab, workload("d", replicas=2, strategy={"type": "Recreate"}), pull_seconds=5)
    await lab.clock.sleep(5)
    await change_image(lab, "new")
    seen: set[tuple[str, ...]] = set()
    for _ in range(10):
        await lab.clock.sleep(1)
        seen.add(tuple(sorted(set(await images(lab)))))
    assert ("app", "new") not in seen
    assert await images(lab) == ["new", "new"]


async def test_a_paused_deployment_rolls_nothing_out(lab: ControlPlaneLab, workload: Make) -> None:
    await up(lab, workload("d", replicas=1))
    await lab.api.merge_patch(DEPLOYMENTS.as_dicts(), "d", {"spec": {"paused": True}}, "default")
    await change_image(lab, "new")
    await lab.clock.sleep(5)
    assert await images(lab) == ["app"]
    await lab.api.merge_patch(DEPLOYMENTS.as_dicts(), "d", {"spec": {"paused": None}}, "default")
    await lab.clock.sleep(5)
    assert await images(lab) == ["new"]


async def test_a_deployment_that_cannot_come_up_passes_its_deadline(lab: ControlPlaneLab, workload: Make) -> None:
    body = workload("d", replicas=1, progressDeadlineSeconds=60)
    body["spec"]["template"]["spec"]["nodeSelector"] = {"zone": "nowhere"}
    await up(lab, body)
    assert (await conditions(lab))["Available"] == ("False", "MinimumReplicasUnavailable")
    await lab.clock.sleep(62)
    assert (await conditions(lab))["Progressing"] == ("False", "ProgressDeadlineExceeded")


async def test_deleting_a_deployment_takes_everything_with_it(lab: ControlPlaneLab, workload: Make) -> None:
    await up(lab, workload("d", replicas=2))
    await lab.api.delete(DEPLOYMENTS, "d", "default")
    await lab.clock.sleep(1)
    assert await lab.all(REPLICASETS) == []
    assert await lab.all(PODS) == []
