"""A simulated node reboots: what runs on it ends, and what kubelet and the API server know brings it back."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.control_plane_lab import ControlPlaneLab

from tessera.kube.resources import EVENTS, NODES, PODS
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.kubelet.context import InProcessPlugins
from tessera_lab.kubelet.node.node import SHUTDOWN, SimulatedNode
from tessera_lab.kubelet.pod_status import Running, Terminated, Waiting, container_records, mark_after_reboot

RESOURCE = "nvidia.com/mig-1g.5gb"
AWAY = SHUTDOWN + 30


async def bound(lab: ControlPlaneLab, name: str, *command: str, number: int = 0, **spec: Any) -> None:
    limits = {"limits": {RESOURCE: str(number)}} if number else {}
    container = {"name": "c", "image": "app", "command": [*command], "resources": limits}
    body = {"metadata": {"name": name}, "spec": {"containers": [container], "nodeName": "n1", **spec}}
    await lab.api.create(PODS.as_dicts(), body, "default")
    await lab.clock.sleep(0.1)


async def rebooted(lab: ControlPlaneLab, node: Any) -> None:
    node.reboot()
    await lab.clock.sleep(AWAY + 0.1)


async def container(lab: ControlPlaneLab, name: str) -> dict[str, Any]:
    found: dict[str, Any] = (await lab.get(PODS, name))["status"]["containerStatuses"][0]
    return found


async def test_a_pod_is_the_same_with_its_containers_started_again(lab: ControlPlaneLab) -> None:
    (node,) = await lab.start_nodes("n1")
    await bound(lab, "p", "sleep", "infinity")
    before = await lab.get(PODS, "p")
    await rebooted(lab, node)
    after = await lab.get(PODS, "p")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["startTime"] == before["status"]["startTime"]
    assert after["status"]["phase"] == "Running"
    status = await container(lab, "p")
    assert (status["restartCount"], status["ready"]) == (1, True)
    ended = status["lastState"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (255, "Unknown")
    events = [each["reason"] for each in (await lab.api.list(EVENTS.as_dicts(), "default")).items]
    assert "SandboxChanged" in events


async def test_a_machine_that_is_switched_off_while_it_goes_down_stays_off(lab: ControlPlaneLab) -> None:
    """A task group that ends by an error of its own loses a cancellation that comes meanwhile."""
    for turns in range(8):
        node = SimulatedNode(
            f"n{turns}",
            lab.client(f"system:node:n{turns}"),
            clock=lab.clock,
            rng=random.Random(turns),
            plugins=InProcessPlugins(),
        )
        running = asyncio.create_task(node.run())
        await lab.clock.sleep(0.1)
        node.reboot()
        await lab.clock.sleep(SHUTDOWN)
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        await lab.clock.sleep(AWAY)
        assert running.cancelled(), f"after {turns} turns of the loop"


async def test_nothing_is_said_while_the_machine_is_down(lab: ControlPlaneLab) -> None:
    (node,) = await lab.start_nodes("n1")
    await bound(lab, "p", "sleep", "infinity")
    before = await container(lab, "p")
    node.reboot()
    await lab.clock.sleep(SHUTDOWN + 1)
    assert await container(lab, "p") == before
    await bound(lab, "late", "sleep", "infinity")
    assert await lab.phase("late") == "Pending"
    assert await lab.phase_after(AWAY, "late") == "Running"
    assert (await container(lab, "late"))["restartCount"] == 0


async def test_a_pod_that_never_restarts_has_failed(lab: ControlPlaneLab) -> None:
    (node,) = await lab.start_nodes("n1")
    await bound(lab, "p", "sleep", "infinity", restartPolicy="Never")
    await bound(lab, "done", "true", restartPolicy="Never")
    await rebooted(lab, node)
    assert await lab.phase("p") == "Failed"
    assert (await container(lab, "p"))["state"]["terminated"]["exitCode"] == 255
    assert await lab.phase("done") == "Succeeded"


async def test_every_boot_has_an_id_of_its_own_and_is_told(lab: ControlPlaneLab) -> None:
    (node,) = await lab.start_nodes("n1")
    ids = []
    for _ in range(3):
        ids.append((await lab.get(NODES, "n1", None))["status"]["nodeInfo"]["bootID"])
        await rebooted(lab, node)
    assert len(set(ids)) == 3
    told = [each for each in (await lab.api.list(EVENTS.as_dicts())).items if each["reason"] == "Rebooted"]
    assert any(ids[1] in each["message"] for each in told)


async def test_conditions_labels_and_capacity_of_others_stay(lab: ControlPlaneLab) -> None:
    (node,) = await lab.start_nodes("n1", labels={"layout": "first"})
    await lab.api.merge_patch(NODES.as_dicts(), "n1", {"metadata": {"labels": {"layout": "second"}}})
    own = {"type": "GpuHealthy", "status": "True", "reason": "Healthy", "message": ""}
    kubelets = (await lab.get(NODES, "n1", None))["status"]["conditions"]
    status = {"conditions": [*kubelets, own], "capacity": {"example.com/quota": "7"}}
    await lab.api.merge_patch(NODES.as_dicts(), "n1", {"status": status}, subresource="status")
    await lab.clock.sleep(0.1)
    await rebooted(lab, node)
    after = await lab.get(NODES, "n1", None)
    assert after["metadata"]["labels"]["layout"] == "second"
    assert after["status"]["allocatable"]["example.com/quota"] == "7"
    assert [each["type"] for each in after["status"]["conditions"]] == [each["type"] for each in (*kubelets, own)]


async def test_a_pod_with_devices_is_refused_until_its_plugin_is_back_in_kubelets_words(
    lab: ControlPlaneLab, slices: Callable[..., Any]
) -> None:
    direct = InProcessPlugins()
    (node,) = await lab.start_nodes("n1", plugins=direct)
    serving = lab.start(direct.bus.serve(slices("a", "b")))
    await lab.clock.sleep(0.1)
    await bound(lab, "p", "sleep", "infinity", number=1)
    node.reboot()
    await lab.clock.sleep(SHUTDOWN + 1)
    serving.cancel()
    await lab.clock.sleep(AWAY)
    status = (await lab.get(PODS, "p"))["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "UnexpectedAdmissionError")
    assert status["message"] == (
        "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices "
        f"{RESOURCE}, which is unexpected"
    )
    # Nothing is left of a pod that ran: who asks whether it is ready is not told of its last life.
    assert "containerStatuses" not in status
    assert "Ready" not in {each["type"] for each in status["conditions"]}
    assert node.devices.ledger.pods() == ()
    assert (await lab.get(NODES, "n1", None))["status"]["allocatable"][RESOURCE] == "0"
    lab.start(direct.bus.serve(slices("a", "b")))
    await lab.clock.sleep(0.1)
    await bound(lab, "next", "sleep", "infinity", number=2)
    assert await lab.phase("next") == "Running"


async def test_a_pod_that_was_deleted_meanwhile_holds_nothing(lab: ControlPlaneLab, slices: Callable[..., Any]) -> None:
    direct = InProcessPlugins()
    (node,) = await lab.start_nodes("n1", plugins=direct)
    lab.start(direct.bus.serve(slices("a")))
    await lab.clock.sleep(0.1)
    await bound(lab, "p", "sleep", "infinity", number=1)
    await bound(lab, "ending", "sleep", "infinity")
    node.reboot()
    await lab.clock.sleep(SHUTDOWN + 1)
    await lab.api.delete(PODS, "p", "default", grace_seconds=0)
    await lab.api.delete(PODS, "ending", "default")
    assert [each.name for each in node.devices.ledger.pods()] == ["p"]
    await lab.clock.sleep(AWAY)
    assert node.devices.ledger.pods() == ()
    assert not await lab.exists(PODS, "ending")


async def test_the_power_may_go_while_kubelet_starts_again(lab: ControlPlaneLab, slices: Callable[..., Any]) -> None:
    direct = InProcessPlugins()
    (node,) = await lab.start_nodes("n1", plugins=direct)
    lab.start(direct.bus.serve(slices("a")))
    await bound(lab, "p", "sleep", "infinity")
    lab.start(node.restart_kubelet(down=SHUTDOWN + 5))
    node.reboot()
    await lab.clock.sleep(SHUTDOWN + 6)
    with pytest.raises(ConnectionError):
        await direct.bus.pod_resources()
    await lab.clock.sleep(AWAY + 6)
    assert (await lab.get(NODES, "n1", None))["status"]["allocatable"][RESOURCE] == "1"
    assert await lab.phase("p") == "Running"


async def test_cards_and_files_in_memory_are_as_after_a_boot(lab: ControlPlaneLab, tmp_path: Any) -> None:
    machine = SimulatedMachine("1xA100-40GB", seed="n1", mig=True)
    (gpu,) = machine.uuids()
    machine.create_gpu_instance(gpu, "1g.5gb", 0)
    (tmp_path / "cards.json").write_text("{}")
    (node,) = await lab.start_nodes("n1", plugins=InProcessPlugins(cdi=tmp_path), machine=machine)
    await rebooted(lab, node)
    assert machine.instances(gpu) == []
    assert machine.devices()[0].mig_enabled
    assert list(tmp_path.iterdir()) == []


def test_init_containers_run_again_where_the_pod_does() -> None:
    containers = [{"name": "app", "image": "app"}]
    for policy, state in (("Always", Waiting), ("OnFailure", Waiting), ("Never", Terminated)):
        spec = {"restartPolicy": policy, "initContainers": [{"name": "init", "image": "app"}], "containers": containers}
        init, app = made = container_records(spec)
        init.state, init.container_id = Terminated(exit_code=0, started=1, finished=2), "i"
        app.state, app.container_id = Running(3), "a"
        mark_after_reboot(spec, made, 4)
        assert isinstance(init.state, state)
        unknown = Terminated(exit_code=255, started=3, finished=4, container_id="a", reason="Unknown")
        assert made[1].state == unknown
