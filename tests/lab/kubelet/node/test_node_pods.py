"""The life of pods on a simulated node."""

from typing import Any

from tests.support.control_plane_lab import ControlPlaneLab

from tessera.kube.resources import CONFIGMAPS, NODES, PODS, SERVICE_ACCOUNTS
from tessera_lab.kubelet.context import ContainerContext, InProcessPlugins


def container(name: str, *command: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "app", "command": list(command), **more}


async def bound(lab: ControlPlaneLab, name: str, *containers: dict[str, Any], **spec: Any) -> None:
    spec = {"containers": list(containers), "nodeName": "n1", **spec}
    await lab.api.create(PODS.as_dicts(), {"metadata": {"name": name}, "spec": spec}, "default")


async def state(lab: ControlPlaneLab, name: str) -> dict[str, Any]:
    statuses: list[dict[str, Any]] = (await lab.get(PODS, name))["status"]["containerStatuses"]
    return statuses[0]


async def test_a_node_registers_as_kubelet_does(lab: ControlPlaneLab) -> None:
    await lab.start_nodes("n1", labels={"nvidia.com/mig.config": "dynamic"}, cpu="8")
    node = await lab.get(NODES, "n1", None)
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == "n1"
    assert node["metadata"]["labels"]["nvidia.com/mig.config"] == "dynamic"
    assert node["status"]["allocatable"]["cpu"] == "8"
    assert [each["status"] for each in node["status"]["conditions"] if each["type"] == "Ready"] == ["True"]


async def test_a_container_that_sleeps_ends_in_its_time(lab: ControlPlaneLab) -> None:
    (node,) = await lab.start_nodes("n1", pull_seconds=5)
    await bound(lab, "p", container("c", "sleep", "20"), restartPolicy="Never")
    assert await lab.phase_after(1, "p") == "Pending"
    assert node.pending_waits == 1
    assert await lab.phase_after(10, "p") == "Running"
    assert await lab.phase_after(14.5, "p") == "Succeeded"
    assert (await state(lab, "p"))["state"]["terminated"]["exitCode"] == 0
    reasons = [reason for reason, _ in await lab.notes("p")]
    assert reasons == ["Pulling", "Pulled", "Created", "Started"]
    assert node.pending_waits == 0


async def test_a_crashing_container_backs_off_and_doubles(lab: ControlPlaneLab) -> None:
    await lab.start_nodes("n1")
    await bound(lab, "p", container("c", "sh", "-c", "sleep 1; exit 3"))
    restarts = []
    for seconds in (1.5, 2, 10, 19):  # it ends at 1, 2 and 13 s, back-offs of 10 and 20 s follow the latter two
        await lab.clock.sleep(seconds)
        restarts.append((await state(lab, "p"))["restartCount"])
    assert restarts == [1, 1, 2, 2]
    waiting = (await state(lab, "p"))["state"]["waiting"]
    assert waiting["reason"] == "CrashLoopBackOff"
    assert waiting["message"].startswith("back-off 20s restarting failed container=c pod=p_default(")
    assert (await state(lab, "p"))["lastState"]["terminated"]["exitCode"] == 3


async def test_init_containers_come_first_and_sidecars_stay(lab: ControlPlaneLab) -> None:
    await lab.start_nodes("n1")
    inits = [
        container("side", "sleep", "infinity", restartPolicy="Always"),
        container("prepare", "sleep", "10"),
    ]
    await bound(lab, "p", container("c", "sleep", "5"), initContainers=inits, restartPolicy="Never")
    await lab.clock.sleep(5)
    pod = await lab.get(PODS, "p")
    assert pod["status"]["phase"] == "Pending"
    assert [("running" in each["state"]) for each in pod["status"]["initContainerStatuses"]] == [True, True]
    assert await lab.phase_after(7, "p") == "Running"
    assert await lab.phase_after(5, "p") == "Succeeded"


async def test_a_failed_init_container_fails_a_pod_that_is_never_restarted(lab: ControlPlaneLab) -> None:
    await lab.start_nodes("n1")
    inits = [container("prepare", "false")]
    await bound(lab, "p", container("c", "sleep", "5"), initContainers=inits, restartPolicy="Never")
    assert await lab.phase_after(1, "p") == "Failed"


async def test_a_deleted_pod_is_stopped_and_then_gone(lab: ControlPlaneLab) -> None:
    await lab.start_nodes("n1")
    await bound(lab, "p", container("c", "sleep", "infinity"))
    await lab.clock.sleep(1)
    await lab.api.delete(PODS, "p", "default")
    await lab.clock.sleep(0.1)
    assert not await lab.exists(PODS, "p")
    assert ("Killing", "Stopping container c") in await lab.notes("p")


async def test_a_deleted_pod_with_a_finalizer_has_ended_and_stays(lab: ControlPlaneLab) -> None:
    await lab.start_nodes("n1")
    await bound(lab, "p", container("c", "sleep", "inf"), restartPolicy="Always")
    await lab.api.merge_patch(PODS, "p", {"metadata": {"finalizers": ["example.com/wait"]}}, "default")
    await lab.clock.sleep(5)
    await lab.api.delete(PODS, "p", "default")
    assert await lab.phase_after(60, "p") == "Failed"
    assert "terminated" in (await state(lab, "p"))["state"]
    await lab.api.merge_patch(PODS, "p", {"metadata": {"finalizers": None}}, "default")
    await lab.clock.sleep(1)
    assert not (await lab.api.list(PODS, "default")).items


async def test_a_pod_that_ignores_sigterm_uses_its_grace(lab: ControlPlaneLab) -> None:
    await lab.start_nodes("n1")
    body = {
        "metadata": {"name": "p", "annotations": {"lab.tessera.dev/ignores-sigterm": ""}},
        "spec": {
            "nodeName": "n1",
            "terminationGracePeriodSeconds": 20,
            "containers": [container("c", "sleep", "infinity")],
        },
    }
    await lab.api.create(PODS.as_dicts(), body, "default")
    await lab.clock.sleep(1)
    await lab.api.delete(PODS, "p", "default")
    await lab.clock.sleep(19)
    assert await lab.exists(PODS, "p")
    await lab.clock.sleep(2)
    assert not await lab.exists(PODS, "p")


async def stubborn(lab: ControlPlaneLab, **spec: Any) -> None:
    """A bound pod whose container ignores SIGTERM and runs for ever."""
    body = {
        "metadata": {"name": "p", "annotations": {"lab.tessera.dev/ignores-sigterm": ""}},
        "spec": {"nodeName": "n1", "containers": [container("c", "sleep", "infinity")], **spec},
    }
    await lab.api.create(PODS.as_dicts(), body, "default")
    await lab.clock.sleep(1)


async def test_a_pod_ends_at_its_deadline_within_its_grace_whatever_its_restart_policy(lab: ControlPlaneLab) -> None:
    await lab.start_nodes("n1")
    await stubborn(lab, restartPolicy="Always", activeDeadlineSeconds=60, terminationGracePeriodSeconds=20)
    assert await lab.phase_after(70, "p") == "Running"
    await lab.clock.sleep(15)
    status = (await lab.get(PODS, "p"))["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")


async def test_a_deadline_may_be_lowered_while_the_pod_runs(lab: ControlPlaneLab) -> None:
    await lab.start_nodes("n1")
    await bound(lab, "p", container("c", "sleep", "infinity"), activeDeadlineSeconds=600)
    await lab.clock.sleep(1)
    await lab.api.merge_patch(PODS, "p", {"spec": {"activeDeadlineSeconds": 10}}, "default")
    assert await lab.phase_after(15, "p") == "Failed"


async def test_a_pod_that_is_being_deleted_has_no_deadline_and_a_shorter_grace_counts_at_once(
    lab: ControlPlaneLab,
) -> None:
    """As in kubelet: the deletion's own grace replaces the deadline; a later delete can only shorten it."""
    await lab.start_nodes("n1")
    await stubborn(lab, activeDeadlineSeconds=60, terminationGracePeriodSeconds=5)
    await lab.api.delete(PODS, "p", "default", grace_seconds=86_400)
    assert await lab.phase_after(600, "p") == "Running"
    await lab.api.delete(PODS, "p", "default", grace_seconds=5)
    await lab.clock.sleep(10)
    assert not await lab.exists(PODS, "p")


async def test_a_pod_for_which_there_is_no_room_fails_for_good(lab: ControlPlaneLab) -> None:
    await lab.start_nodes("n1", cpu="2")
    await bound(lab, "p", container("c", "sleep", "1", resources={"requests": {"cpu": "3"}}))
    await lab.clock.sleep(1)
    status = (await lab.get(PODS, "p"))["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "OutOfcpu")
    assert status["message"] == (
        "Pod was rejected: Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000"
    )


async def test_a_pod_pinned_elsewhere_is_refused(lab: ControlPlaneLab) -> None:
    await lab.start_nodes("n1")
    await bound(lab, "p", container("c", "true"), nodeSelector={"zone": "b"})
    await lab.clock.sleep(1)
    assert (await lab.get(PODS, "p"))["status"]["reason"] == "NodeAffinity"


async def test_a_missing_config_map_holds_the_container_until_it_is_there(lab: ControlPlaneLab) -> None:
    (node,) = await lab.start_nodes("n1")
    env = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "a"}}}]
    await bound(lab, "p", container("c", "sleep", "infinity", env=env))
    await lab.clock.sleep(1)
    waiting = (await state(lab, "p"))["state"]["waiting"]
    assert waiting == {"reason": "CreateContainerConfigError", "message": 'configmap "settings" not found'}
    await lab.api.create(CONFIGMAPS, {"metadata": {"name": "settings"}, "data": {"a": "1"}}, "default")
    await lab.clock.sleep(10)
    assert node.pods.container_env("default", "p", "c")["A"] == "1"
    assert "A=1" in node.pods.log("default", "p", "c").texts()


async def test_capacity_that_others_patch_in_is_kept_and_made_allocatable(lab: ControlPlaneLab) -> None:
    await lab.start_nodes("n1")
    patch = {"status": {"capacity": {"example.com/memory": "160Gi"}}}
    await lab.api.merge_patch(NODES.as_dicts(), "n1", patch, subresource="status")
    await lab.clock.sleep(0.1)
    status = (await lab.get(NODES, "n1", None))["status"]
    assert status["capacity"]["example.com/memory"] == "160Gi"
    assert status["allocatable"]["example.com/memory"] == "160Gi"


async def test_tesseras_own_containers_run_for_real(lab: ControlPlaneLab) -> None:
    seen: list[ContainerContext] = []

    async def entrypoint(context: ContainerContext) -> int:
        seen.append(context)
        if len(seen) == 1:
            raise RuntimeError("lost the API server")
        await context.clock.sleep(10)
        return 0

    (node,) = await lab.start_nodes("n1", entrypoint=entrypoint, plugins=InProcessPlugins())
    await lab.api.create(SERVICE_ACCOUNTS.as_dicts(), {"metadata": {"name": "agent"}}, "default")
    env = [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]
    command = ("tessera", "agent", "--node=$(NODE)")
    await bound(lab, "p", container("c", *command, env=env), serviceAccountName="agent", restartPolicy="OnFailure")
    await lab.clock.sleep(1)
    assert [context.argv for context in seen] == [("tessera", "agent", "--node=n1")] * 2
    assert seen[0].pod.service_account == "agent"
    assert (await state(lab, "p"))["restartCount"] == 1
    last = node.pods.log("default", "p", "c", previous=True).texts()[-1]
    assert last == "RuntimeError: lost the API server"
    assert await lab.phase_after(10, "p") == "Succeeded"
