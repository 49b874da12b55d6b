"""ResourceClaims on a node: prepared, given to containers, unprepared; and what a driver that goes away leaves.

Times and texts are those of kubelet 1.36.2.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.support.claim_driver import ClaimDriver
from tests.support.control_plane_lab import ControlPlaneLab
from tests.support.device_claims import (
    FINALIZER,
    allocation,
    claim,
    claim_template,
    claiming_pod,
    device_class,
    exactly,
    resource_slice,
)

from tessera.claims.agent.claim_server import serve_claims
from tessera.clock import SystemClock
from tessera.kube.client import Client
from tessera.kube.resources import NODES, PODS
from tessera.kubelet.grpc import GrpcKubelet
from tessera.kubelet.interfaces import ClaimDeviceHealth, ClaimRef
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.kubelet.context import GrpcPlugins, InProcessPlugins, NodeDirectories
from tessera_lab.kubelet.node.node import SHUTDOWN, SimulatedNode
from tessera_lab.scheduler.claim_binding import (
    DEVICE_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)

DRIVER = "gpu.tessera.dev"
OF_TEMPLATE = {"name": "gpu", "resourceClaimTemplateName": "one"}


def read_allocation(client: Client) -> Callable[[ClaimRef], Any]:
    async def read(reference: ClaimRef) -> Sequence[tuple[str, str, str]]:
        found = await client.get(RESOURCE_CLAIMS, reference.name, reference.namespace)
        results = found["status"]["allocation"]["devices"]["results"]
        return [(each["request"], each["pool"], each["device"]) for each in results]

    return read


class Story:
    """A node with claims, and a driver in this process."""

    def __init__(self, lab: ControlPlaneLab, folder: Path) -> None:
        self.lab = lab
        self.plugins = InProcessPlugins(cdi=folder)
        self.driver = ClaimDriver(DRIVER, folder, read_allocation(lab.api))
        self.node: SimulatedNode
        self.serving: asyncio.Task[None] | None = None

    async def start(self, *, driver: bool = True) -> None:
        self.lab.start_workloads()
        self.lab.start_scheduler()
        (self.node,) = await self.lab.start_nodes("n1", plugins=self.plugins)
        template = claim_template("one", exactly("gpu", "gpus"))
        await self.lab.api.create(RESOURCE_CLAIM_TEMPLATES, template, "default")
        if driver:
            await self.serve()

    async def serve(self) -> None:
        self.serving = self.lab.start(self.plugins.bus.serve_claims(self.driver))
        await self.lab.clock.sleep(0.1)

    async def end_driver(self) -> None:
        assert self.serving is not None
        self.serving.cancel()
        await asyncio.wait([self.serving])

    async def allocate(self, name: str, device: str = "gpu-0") -> None:
        protect = {"metadata": {"finalizers": [FINALIZER]}}
        await self.lab.api.merge_patch(RESOURCE_CLAIMS, name, protect, "default")
        status = {"status": {"allocation": allocation(DRIVER, "n1", device)}}
        await self.lab.api.merge_patch(RESOURCE_CLAIMS, name, status, "default", subresource="status")

    async def pod(self, name: str, **spec: Any) -> str:
        """A pod with a claim of the template, which is allocated; returns the claim's name."""
        await self.lab.api.create(PODS.as_dicts(), claiming_pod(name, OF_TEMPLATE, **spec), "default")
        await self.lab.clock.sleep(0.1)
        claimed: str = (await self.lab.get(PODS, name))["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
        await self.allocate(claimed)
        await self.lab.clock.sleep(0.5)
        return claimed

    async def container(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.lab.get(PODS, name))["status"]["containerStatuses"][0]
        return found

    async def waiting(self, name: str) -> str:
        return str((await self.container(name))["state"]["waiting"]["reason"])


@pytest.fixture
def a(lab: ControlPlaneLab) -> Iterator[Story]:
    """A node with a driver, which tests call as in "a pod"."""
    with TemporaryDirectory(prefix="k") as folder:
        yield Story(lab, Path(folder))


async def test_a_container_gets_the_devices_of_its_claim(a: Story) -> None:
    await a.start()
    name = await a.pod("p")
    assert a.driver.calls == [("prepare", name)]
    assert await a.lab.phase("p") == "Running"
    assert a.node.pods.container_env("default", "p", "main")["DEVICE_GPU"] == "gpu-0"
    await a.lab.api.delete(PODS, "p", "default")
    await a.lab.clock.sleep(3)
    assert a.driver.calls == [("prepare", name), ("unprepare", name)]
    assert not await a.lab.exists(PODS, "p")
    await a.lab.clock.sleep(1)
    assert not await a.lab.exists(RESOURCE_CLAIMS, name)


async def test_a_container_can_use_one_request_of_a_claim(a: Story) -> None:
    await a.start()
    await a.lab.api.create(RESOURCE_CLAIMS, claim("c", exactly("one", "gpus"), exactly("two", "gpus")), "default")
    given = allocation(DRIVER, "n1", "gpu-0", request="one")
    given["devices"]["results"].append({**given["devices"]["results"][0], "request": "two", "device": "gpu-1"})
    patch = {"status": {"allocation": given}}
    await a.lab.api.merge_patch(RESOURCE_CLAIMS, "c", patch, "default", subresource="status")
    body = claiming_pod("p", {"name": "gpu", "resourceClaimName": "c"})
    body["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu", "request": "two"}]
    await a.lab.api.create(PODS.as_dicts(), body, "default")
    await a.lab.clock.sleep(1)
    env = a.node.pods.container_env("default", "p", "main")
    assert env["DEVICE_TWO"] == "gpu-1"
    assert "DEVICE_ONE" not in env


async def test_a_container_gets_the_devices_of_an_extended_resource(a: Story) -> None:
    await a.start()
    await a.lab.api.create(DEVICE_CLASSES, device_class("gpus", extendedResourceName="nvidia.com/gpu"))
    await a.lab.api.create(RESOURCE_SLICES, resource_slice("own", DRIVER, "n1", {"name": "gpu-7"}))
    body = claiming_pod("p")
    body["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    await a.lab.api.create(PODS.as_dicts(), body, "default")
    await a.lab.clock.sleep(1)
    env = a.node.pods.container_env("default", "p", "main")
    assert env["DEVICE_CONTAINER-0-REQUEST-0"] == "gpu-7"


async def test_a_pod_waits_for_a_driver_that_is_not_there_and_is_tried_again_after_a_minute(a: Story) -> None:
    await a.start(driver=False)
    await a.pod("p")
    assert await a.waiting("p") == "ContainerCreating"
    text = f"Failed to prepare dynamic resources: prepare dynamic resources: DRA driver {DRIVER} is not registered"
    assert ("FailedPrepareDynamicResources", text) in await a.lab.notes("p")
    await a.serve()
    await a.lab.clock.sleep(60)
    assert a.driver.calls == []
    await a.lab.clock.sleep(30)
    assert await a.lab.phase("p") == "Running"


async def test_kubelet_waits_forty_five_seconds_for_a_driver(a: Story) -> None:
    await a.start()
    a.driver.gate.clear()
    await a.pod("p")
    await a.lab.clock.sleep(44)
    assert not [each for each in await a.lab.notes("p") if each[0] == "FailedPrepareDynamicResources"]
    await a.lab.clock.sleep(2)
    (note,) = [each for each in await a.lab.notes("p") if each[0] == "FailedPrepareDynamicResources"]
    assert note[1].endswith("NodePrepareResources: rpc error: code = DeadlineExceeded desc = context deadline exceeded")
    a.driver.gate.set()
    await a.lab.clock.sleep(90)
    assert await a.lab.phase("p") == "Running"


async def test_a_refused_claim_is_an_event_of_its_pod(a: Story) -> None:
    await a.start()
    a.driver.refusal = "the card is lost"
    name = await a.pod("p")
    text = f"NodePrepareResources failed for ResourceClaim {name}: the card is lost"
    assert any(text in note for _, note in await a.lab.notes("p"))


async def test_a_deleted_pod_stays_until_its_claim_is_unprepared(a: Story) -> None:
    await a.start()
    await a.pod("p")
    await a.end_driver()
    await a.lab.api.delete(PODS, "p", "default")
    await a.lab.clock.sleep(60)
    assert await a.lab.exists(PODS, "p")
    assert (await a.container("p"))["state"]["terminated"]
    await a.serve()
    await a.lab.clock.sleep(9)
    assert not await a.lab.exists(PODS, "p")


async def test_a_pod_deleted_by_force_is_unprepared_after_its_claim_is_gone(a: Story) -> None:
    await a.start()
    name = await a.pod("p")
    a.driver.gate.clear()
    await a.lab.api.delete(PODS, "p", "default", grace_seconds=0)
    await a.lab.clock.sleep(1)
    assert not await a.lab.exists(RESOURCE_CLAIMS, name)
    a.driver.gate.set()
    await a.lab.clock.sleep(3)
    assert a.driver.calls[-1] == ("unprepare", name)


async def test_nothing_is_prepared_again_and_a_lost_cdi_file_is_an_error_of_the_container(a: Story) -> None:
    await a.start()
    name = await a.pod("p", restartPolicy="Always")
    await a.end_driver()
    await a.serve()
    await a.node.restart_kubelet(5)
    await a.lab.clock.sleep(70)
    assert a.driver.calls == [("prepare", name)]
    a.node.reboot()
    await a.lab.clock.sleep(SHUTDOWN + 30 + 100)
    assert a.driver.calls == [("prepare", name)]
    assert await a.waiting("p") == "CreateContainerError"
    assert "unresolvable CDI devices" in (await a.container("p"))["state"]["waiting"]["message"]


async def test_the_slices_of_a_driver_go_thirty_seconds_after_it(a: Story) -> None:
    await a.start()
    for name, node in (("own", "n1"), ("other", "n2")):
        await a.lab.api.create(RESOURCE_SLICES, resource_slice(name, DRIVER, node, {"name": "gpu-0"}))
    await a.end_driver()
    await a.lab.clock.sleep(20)
    await a.serve()
    await a.lab.clock.sleep(20)
    assert await a.lab.exists(RESOURCE_SLICES, "own", None)
    await a.end_driver()
    await a.lab.clock.sleep(29)
    assert await a.lab.exists(RESOURCE_SLICES, "own", None)
    await a.lab.clock.sleep(2)
    assert not await a.lab.exists(RESOURCE_SLICES, "own", None)
    assert await a.lab.exists(RESOURCE_SLICES, "other", None)


async def test_the_slices_go_thirty_seconds_after_kubelets_start_if_no_driver_registers(a: Story) -> None:
    await a.start()
    await a.lab.api.create(RESOURCE_SLICES, resource_slice("own", DRIVER, "n1", {"name": "gpu-0"}))
    await a.end_driver()
    await a.lab.clock.sleep(10)
    await a.node.restart_kubelet()
    await a.lab.clock.sleep(29)
    assert await a.lab.exists(RESOURCE_SLICES, "own", None)
    await a.lab.clock.sleep(2)
    assert not await a.lab.exists(RESOURCE_SLICES, "own", None)


async def test_during_an_update_the_newer_instance_is_called_and_nothing_is_wiped(a: Story) -> None:
    await a.start()
    await a.lab.api.create(RESOURCE_SLICES, resource_slice("own", DRIVER, "n1", {"name": "gpu-0"}))
    newer = ClaimDriver(DRIVER, a.plugins.cdi or Path(), read_allocation(a.lab.api))
    a.lab.start(a.plugins.bus.serve_claims(newer))
    await a.lab.clock.sleep(0.1)
    name = await a.pod("p")
    assert (a.driver.calls, newer.calls) == ([], [("prepare", name)])
    await a.end_driver()
    await a.lab.clock.sleep(60)
    assert await a.lab.exists(RESOURCE_SLICES, "own", None)


async def test_the_health_of_devices_is_in_the_status_of_their_container(a: Story) -> None:
    await a.start()

    async def health() -> list[tuple[str, str]]:
        await a.lab.clock.sleep(0.1)
        (found,) = (await a.container("p"))["allocatedResourcesStatus"]
        return [(found["name"], each["health"]) for each in found["resources"]]

    await a.pod("p")
    assert await health() == [("claim:gpu", "Unknown")]
    for healthy, text in ((True, "Healthy"), (False, "Unhealthy")):
        await a.driver.health.put([ClaimDeviceHealth(pool="n1", device="gpu-0", healthy=healthy)])
        assert await health() == [("claim:gpu", text)]


# -- sockets --------------------------------------------------------------------------------------------------------


async def until(happens: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not await happens():  # noqa: ASYNC110 - real sockets and real time: nothing tells when
            await asyncio.sleep(0.01)


@asynccontextmanager
async def socket_node(folder: Path) -> AsyncIterator[tuple[SimulatedNode, Client, NodeDirectories]]:
    clock = SystemClock()
    user = UserInfo(name="n1", groups=("system:masters",))
    client = Client(InProcessTransport(ApiServer(clock), user), field_manager="n1", clock=clock)
    directories = NodeDirectories.under(folder)
    node = SimulatedNode("n1", client, plugins=GrpcPlugins(directories=directories), clock=clock, rng=random.Random(1))
    task = asyncio.create_task(node.run())
    try:
        yield node, client, directories
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_driver_registers_over_sockets_and_pod_resources_names_its_devices() -> None:
    with TemporaryDirectory(prefix="k") as folder:
        async with socket_node(Path(folder)) as (_, client, directories):
            driver = ClaimDriver(DRIVER, directories.cdi, read_allocation(client))
            kubelet = GrpcKubelet(
                directories.plugins,
                directories.pod_resources / "kubelet.sock",
                registry=directories.registry,
                claim_plugins=directories.claim_plugins,
                serve_claims=serve_claims,
                clock=SystemClock(),
            )
            serving = asyncio.create_task(kubelet.serve_claims(driver))
            await until(lambda: _is(kubelet.registrations.get(DRIVER) == "registered"))
            await until(lambda: _exists(client, NODES, "n1"))
            await client.create(RESOURCE_CLAIMS, claim("c", exactly("gpu", "gpus")), "default")
            body = claiming_pod("p", {"name": "gpu", "resourceClaimName": "c"})
            pod = await client.create(PODS.as_dicts(), body, "default")
            consumer = {"resource": "pods", "name": "p", "uid": pod["metadata"]["uid"]}
            status = {"allocation": allocation(DRIVER, "n1", "gpu-0"), "reservedFor": [consumer]}
            await client.merge_patch(RESOURCE_CLAIMS, "c", {"status": status}, "default", subresource="status")
            await client.bind("p", "default", "n1")
            await until(lambda: _is(("prepare", "c") in driver.calls))
            await until(lambda: _running(client, "p"))
            assert (directories.root / "dra_manager_state").exists()
            (listed,) = await kubelet.pod_resources()
            (held,) = listed.containers[0].claims
            assert (held.namespace, held.name) == ("default", "c")
            assert [(name, each.pool, each.device) for name, each in held.devices] == [(DRIVER, "n1", "gpu-0")]
            await client.delete(PODS, "p", "default", grace_seconds=0)
            await until(lambda: _is(("unprepare", "c") in driver.calls))
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            assert not list(directories.registry.iterdir())


async def _is(value: bool) -> bool:
    return value


async def _exists(client: Client, resource: Any, name: str) -> bool:
    return bool([each for each in (await client.list(resource.as_dicts())).items if each["metadata"]["name"] == name])


async def _running(client: Client, name: str) -> bool:
    return bool((await client.get(PODS.as_dicts(), name, "default"))["status"].get("phase") == "Running")
