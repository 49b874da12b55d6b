"""Device plugins on a simulated node: capacity, allocation, PreStartContainer, restart."""

from collections.abc import Callable
from typing import Any

from tests.support.control_plane_lab import ControlPlaneLab

from tessera.kube.resources import NODES, PODS
from tessera_lab.kubelet.context import InProcessPlugins

Plugin = Callable[..., Any]
RESOURCE = "nvidia.com/mig-1g.5gb"


def asks(number: int, name: str = "c", *command: str) -> dict[str, Any]:
    limits = {"limits": {RESOURCE: str(number)}}
    return {"name": name, "image": "app", "command": list(command or ("sleep", "infinity")), "resources": limits}


async def bound(lab: ControlPlaneLab, name: str, *containers: dict[str, Any], **spec: Any) -> None:
    spec = {"containers": list(containers), "nodeName": "n1", **spec}
    await lab.api.create(PODS.as_dicts(), {"metadata": {"name": name}, "spec": spec}, "default")
    await lab.clock.sleep(0.1)


async def joined(lab: ControlPlaneLab, plugin: Any, **options: Any) -> Any:
    direct = InProcessPlugins()
    (node,) = await lab.start_nodes("n1", plugins=direct, **options)
    lab.start(direct.bus.serve(plugin))
    await lab.clock.sleep(0.1)
    return node


async def counts(lab: ControlPlaneLab) -> tuple[str | None, str | None]:
    status = (await lab.get(NODES, "n1", None))["status"]
    return status["capacity"].get(RESOURCE), status["allocatable"].get(RESOURCE)


async def waiting(lab: ControlPlaneLab, name: str) -> dict[str, Any]:
    found: dict[str, Any] = (await lab.get(PODS, name))["status"]["containerStatuses"][0]["state"]["waiting"]
    return found


async def test_devices_are_published_at_once(lab: ControlPlaneLab, slices: Plugin) -> None:
    plugin = slices("a", "b")
    await joined(lab, plugin)
    assert await counts(lab) == ("2", "2")
    plugin.set("a", "b", "c")
    await lab.clock.sleep(0.1)
    assert await counts(lab) == ("3", "3")


async def test_devices_are_published_on_kubelets_period_if_asked(lab: ControlPlaneLab, slices: Plugin) -> None:
    await joined(lab, slices("a"), publish_every=10.0)
    assert await counts(lab) == (None, None)
    await lab.clock.sleep(10)
    assert await counts(lab) == ("1", "1")


async def test_the_preferred_device_is_given_and_reaches_the_container(lab: ControlPlaneLab, slices: Plugin) -> None:
    plugin = slices("a", "b", "c")
    plugin.prefers = ("c",)
    node = await joined(lab, plugin)
    await bound(lab, "p", asks(1))
    assert node.pods.container_env("default", "p", "c")["SLICES"] == "c"
    (listed,) = await node.plugins.bus.pod_resources()
    assert [each.device_ids for each in listed.containers[0].devices] == [("c",)]


async def test_init_containers_share_with_app_containers(lab: ControlPlaneLab, slices: Plugin) -> None:
    plugin = slices("a", "b")
    await joined(lab, plugin)
    await bound(lab, "p", asks(1, "main"), initContainers=[asks(2, "prepare", "true")])
    assert await lab.phase("p") == "Running"
    assert plugin.allocated == [("a", "b"), ("a",)]


async def test_too_few_devices_reject_the_pod_in_kubelets_words(lab: ControlPlaneLab, slices: Plugin) -> None:
    await joined(lab, slices("a"))
    await bound(lab, "first", asks(1))
    await bound(lab, "second", asks(1))
    status = (await lab.get(PODS, "second"))["status"]
    assert status["phase"] == "Failed"
    assert status["reason"] == f"OutOf{RESOURCE}"
    await lab.api.delete(PODS, "first", "default")
    await lab.clock.sleep(0.1)
    await bound(lab, "third", asks(1))
    assert await lab.phase("third") == "Running"


async def test_a_pod_that_is_deleted_by_force_holds_nothing_while_its_containers_stop(
    lab: ControlPlaneLab, slices: Plugin
) -> None:
    """Kubelet admits beside the pods that the API server has; containers of others are still being stopped."""
    await joined(lab, slices("a"))
    port = {"ports": [{"containerPort": 80, "hostPort": 8080}]}
    await bound(lab, "first", {**asks(1), **port})
    await lab.api.delete(PODS, "first", "default", grace_seconds=0)
    await bound(lab, "second", {**asks(1), **port})
    assert await lab.phase_after(5, "second") == "Running"


async def test_a_refused_allocation_rejects_the_pod(lab: ControlPlaneLab, slices: Plugin) -> None:
    plugin = slices("a")
    plugin.refuses = "unknown device"
    node = await joined(lab, plugin)
    await bound(lab, "p", asks(1))
    status = (await lab.get(PODS, "p"))["status"]
    assert status["reason"] == "UnexpectedAdmissionError"
    assert status["message"] == (
        "Pod was rejected: Allocate failed due to rpc error: code = Unknown desc = unknown device, which is unexpected"
    )
    assert node.devices.ledger.pods() == ()


async def test_pods_wait_side_by_side_in_pre_start(lab: ControlPlaneLab, slices: Plugin) -> None:
    plugin = slices("a", "b")
    plugin.start_seconds = 8
    await joined(lab, plugin)
    await bound(lab, "p", asks(1))
    await bound(lab, "q", asks(1))
    await bound(lab, "plain", {"name": "c", "image": "app", "command": ["sleep", "infinity"]})
    assert await lab.phase("plain") == "Running"
    await lab.clock.sleep(8)
    assert [await lab.phase(name) for name in ("p", "q")] == ["Running", "Running"]


async def test_a_failed_pre_start_is_tried_again(lab: ControlPlaneLab, slices: Plugin) -> None:
    plugin = slices("a")
    plugin.start_refuses = "the slice cannot be made"
    await joined(lab, plugin)
    await bound(lab, "p", asks(1))
    assert await waiting(lab, "p") == {
        "reason": "CreateContainerConfigError",
        "message": "the slice cannot be made",
    }
    plugin.start_refuses = ""
    assert await lab.phase_after(10, "p") == "Running"
    assert plugin.started == [("a",), ("a",)]


async def test_pre_start_has_thirty_seconds(lab: ControlPlaneLab, slices: Plugin) -> None:
    plugin = slices("a")
    plugin.start_seconds = 60
    await joined(lab, plugin)
    await bound(lab, "p", asks(1))
    await lab.clock.sleep(31)
    assert "30 s" in (await waiting(lab, "p"))["message"]


async def test_pre_start_is_called_at_every_start_of_a_container(lab: ControlPlaneLab, slices: Plugin) -> None:
    plugin = slices("a")
    await joined(lab, plugin)
    await bound(lab, "p", asks(1, "c", "sleep", "5"))
    await lab.clock.sleep(6)
    assert plugin.started == [("a",), ("a",)]
    assert plugin.allocated == [("a",)]


async def test_a_plugin_that_ends_takes_its_devices_after_five_minutes(lab: ControlPlaneLab, slices: Plugin) -> None:
    direct = InProcessPlugins()
    await lab.start_nodes("n1", plugins=direct)
    serving = lab.start(direct.bus.serve(slices("a", "b")))
    await lab.clock.sleep(0.1)
    serving.cancel()
    await lab.clock.sleep(0.1)
    assert await counts(lab) == ("2", "0")
    await lab.clock.sleep(301)
    assert await counts(lab) == ("0", "0")


async def test_a_resource_that_somebody_removes_after_that_stays_removed(lab: ControlPlaneLab, slices: Plugin) -> None:
    direct = InProcessPlugins()
    await lab.start_nodes("n1", plugins=direct)
    serving = lab.start(direct.bus.serve(slices("a", "b")))
    await lab.clock.sleep(0.1)
    serving.cancel()
    await lab.clock.sleep(302)
    gone = {"status": {"capacity": {RESOURCE: None}, "allocatable": {RESOURCE: None}}}
    await lab.api.merge_patch(NODES, "n1", gone, subresource="status")
    await lab.clock.sleep(60)
    assert await counts(lab) == (None, None)


async def test_a_plugin_that_comes_back_in_time_keeps_its_devices(lab: ControlPlaneLab, slices: Plugin) -> None:
    direct = InProcessPlugins()
    await lab.start_nodes("n1", plugins=direct)
    first = lab.start(direct.bus.serve(slices("a", "b")))
    await lab.clock.sleep(0.1)
    lab.start(direct.bus.serve(slices("a", "b", "c")))
    await lab.clock.sleep(0.1)
    first.cancel()
    await lab.clock.sleep(400)
    assert await counts(lab) == ("3", "3")


async def test_a_restarted_kubelet_keeps_pods_and_asks_plugins_to_register(
    lab: ControlPlaneLab, slices: Plugin
) -> None:
    plugin = slices("a", "b")
    node = await joined(lab, plugin)
    await bound(lab, "p", asks(1))
    restart = lab.start(node.restart_kubelet(down=5))
    assert await lab.phase_after(1, "p") == "Running"
    await bound(lab, "unlucky", asks(1))
    assert (await lab.get(PODS, "unlucky"))["status"]["phase"] == "Failed"
    await restart
    await lab.clock.sleep(0.1)
    assert await counts(lab) == ("2", "2")
    await bound(lab, "q", asks(1))
    assert await lab.phase("q") == "Running"
    assert plugin.allocated == [("a",), ("b",)]
