"""The ResourceSlices of a node: what its cards are, written once, and again when somebody removes them."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from tests.agent.conftest import NODE, Scene
from tests.agent.slices.test_claim_driver import DRIVER, begin

from tessera.api.nodes.node_marks import cordon_key
from tessera.clock import Clock
from tessera.dra.devices import NO_SCHEDULE, DeviceTaint, Pool
from tessera.dra.driver_objects import plan_slices
from tessera.dra.node_devices import CORDON_TAINT, NVIDIA_DRIVER, PLACED_BY, NodeCard, PublishOptions, node_pools
from tessera.dra.resource_slices import RESOURCE_SLICES, ResourceSlice, read_pools
from tessera.kube.client import Client
from tessera.kube.requests import Request, Stream
from tessera.kube.resources import EVENTS, NODES
from tessera.mig.models import model_by_short_name
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport


async def stored(scene: Scene) -> list[ResourceSlice]:
    return list((await scene.client.list(RESOURCE_SLICES)).items)


async def pool(scene: Scene) -> Pool | None:
    found = [each for each in read_pools(await stored(scene)) if each.node == NODE]
    return found[0] if found and not found[0].problem else None


async def published(scene: Scene, holds: Callable[[Pool], bool] = lambda _: True) -> Pool:
    async def is_so() -> bool:
        found = await pool(scene)
        return found is not None and holds(found)

    await scene.until(is_so)
    found = await pool(scene)
    assert found is not None
    return found


@pytest.mark.scene(cards="2xA100-40GB")
async def test_every_place_of_every_profile_is_a_device(scene: Scene) -> None:
    await begin(scene)
    found = await published(scene)
    assert (found.driver, found.name, found.node) == (DRIVER, NODE, NODE)
    rows = {profile.name: len(profile.starts) for profile in model_by_short_name("A100-40GB").geometry.profiles}
    assert {device.attributes[f"{DRIVER}/architecture"] for device in found.devices} == {"Ampere"}
    profiles = [device.attributes[f"{DRIVER}/profile"] for device in found.devices]
    assert {name: profiles.count(name) for name in rows} == {name: 2 * count for name, count in rows.items()}
    assert all(device.taints == (PLACED_BY,) for device in found.devices)
    node = await scene.client.get(NODES, NODE)
    for each in await stored(scene):
        (owner,) = each.metadata.owner_references
        assert (owner.kind, owner.uid) == ("Node", node.metadata.uid)


async def test_a_quiet_node_writes_nothing(scene: Scene) -> None:
    await begin(scene)
    await published(scene)
    before = await stored(scene)
    await scene.clock.sleep(3600)
    await scene.restart_agent()
    await scene.clock.sleep(600)
    assert await stored(scene) == before


async def test_what_kubelet_removed_comes_again(scene: Scene) -> None:
    await begin(scene)
    before = await published(scene)
    for each in await stored(scene):
        await scene.client.delete(RESOURCE_SLICES, each.metadata.name)
    assert (await published(scene)).devices == before.devices


async def test_another_drivers_and_nodes_objects_stay(scene: Scene) -> None:
    await begin(scene)
    await published(scene)
    spec: dict[str, Any] = {"pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "devices": []}
    for name, driver, node in (("a", "gpu.nvidia.com", NODE), ("b", DRIVER, "node-2")):
        body = {"metadata": {"name": name}, "spec": {**spec, "driver": driver, "nodeName": node}}
        await scene.client.create(RESOURCE_SLICES.as_dicts(), body)
    left = {"metadata": {"name": "old"}, "spec": {**spec, "driver": DRIVER, "nodeName": NODE}}
    await scene.client.create(RESOURCE_SLICES.as_dicts(), left)

    async def gone() -> bool:
        return {"a", "b"} <= (names := {each.metadata.name for each in await stored(scene)}) and "old" not in names

    await scene.until(gone)


async def test_a_foreign_instance_takes_from_the_counters(scene: Scene) -> None:
    scene.foreign(("3g.20gb", 0, 4))
    await begin(scene)
    found = await published(scene)
    left = {counter for (name, counter), amount in found.counters.items() if "memory" in name and amount}
    assert left == {f"memory-slice-{slot}" for slot in range(4)}


async def test_a_card_that_may_not_be_used_is_tainted_until_it_may(scene: Scene) -> None:
    await begin(scene)
    await published(scene)
    scene.machine.lose(scene.machine.uuids()[0])
    await published(scene, lambda found: all(len(each.taints) == 2 for each in found.devices))


async def test_a_cordoned_card_is_tainted_as_such(scene: Scene) -> None:
    await begin(scene)
    await published(scene)
    cordon = {cordon_key(scene.machine.uuids()[0]): "noise"}
    await scene.client.merge_patch(NODES, NODE, {"metadata": {"annotations": cordon}})
    cordoned = DeviceTaint(CORDON_TAINT, "", NO_SCHEDULE)
    await published(scene, lambda found: all(each.taints == (PLACED_BY, cordoned) for each in found.devices))
    await scene.client.merge_patch(NODES, NODE, {"metadata": {"annotations": dict.fromkeys(cordon)}})
    await published(scene, lambda found: all(each.taints == (PLACED_BY,) for each in found.devices))


async def test_nothing_is_published_beside_another_driver_of_the_name(scene: Scene) -> None:
    """NVIDIA's driver is on the node: both would give one card."""
    foreign = {
        "metadata": {"name": "theirs"},
        "spec": {
            "driver": NVIDIA_DRIVER,
            "nodeName": NODE,
            "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0"}],
        },
    }

    async def names(scene: Scene) -> set[str]:
        return {each.metadata.name for each in await stored(scene)}

    kubelet, _ = await begin(scene, driver=NVIDIA_DRIVER)
    await published(scene)
    await kubelet.client()
    await scene.client.create(RESOURCE_SLICES.as_dicts(), foreign)

    async def alone() -> bool:
        return await names(scene) == {"theirs"} and not kubelet.is_served()

    await scene.until(alone)
    await scene.clock.sleep(10)
    (event,) = [each for each in (await scene.client.list(EVENTS)).items if each.reason == "ClaimDriverConflict"]
    assert event.message == (
        f"node {NODE}: ResourceSlice theirs of driver {NVIDIA_DRIVER} is another program's; remove that driver from"
        f" the node, or choose --claim-driver {DRIVER}"
    )
    await scene.client.delete(RESOURCE_SLICES, "theirs")
    await published(scene)
    await kubelet.client()


@pytest.mark.scene(kubernetes="1.34")
async def test_an_old_server_gets_what_it_keeps(scene: Scene) -> None:
    """Kubernetes 1.34 drops taints and counters; our guarded classes keep its allocator away from the devices."""
    await begin(scene)
    await scene.clock.sleep(60)
    before = await stored(scene)
    devices = [device for each in before for device in each.spec.devices]
    assert devices
    assert not any(device.taints or device.consumes_counters for device in devices)
    await scene.clock.sleep(600)
    assert await stored(scene) == before


@pytest.mark.parametrize("kubernetes", ["1.34", "1.36"])
def test_where_the_scheduler_places_it_may_take_what_excludes_one_another(
    play: Callable[..., None], kubernetes: str
) -> None:
    """Partitions are published with counters only, and nothing keeps the allocator away."""

    async def story(scene: Scene) -> None:
        scene.options = msgspec.structs.replace(scene.options, claim_placement="scheduler")
        await begin(scene)
        await scene.clock.sleep(60)
        devices = [device for each in await stored(scene) for device in each.spec.devices]
        assert not any(device.taints for device in devices)
        assert all(device.consumes_counters for device in devices)
        assert bool(devices) == (kubernetes == "1.36")

    play(story, kubernetes=kubernetes)


def a_card(index: int) -> NodeCard:
    model = model_by_short_name("A100-40GB")
    return NodeCard(
        uuid=f"GPU-{index}",
        minor=index,
        index=index,
        product=model.product_name,
        compute_capability=model.compute_capability,
        memory_mib=model.memory_mib,
        geometry=model.geometry,
    )


@pytest.mark.parametrize("earlier", [4, 9])
def test_an_object_of_counters_becomes_one_of_devices_and_back(play: Callable[..., None], earlier: int) -> None:
    """The counters of four cards fill an object; cards came or went since the objects were written."""

    async def story(scene: Scene) -> None:
        old = node_pools(NODE, [a_card(index) for index in range(earlier)], ("", 0), PublishOptions(driver=DRIVER))
        for each in plan_slices(old, ()).create:
            await scene.client.create(RESOURCE_SLICES.as_dicts(), each)
        await begin(scene)
        rows = model_by_short_name("A100-40GB").geometry.profiles
        devices = scene.machine.uuids()
        await published(scene, lambda found: len(found.devices) == len(devices) * sum(len(row.starts) for row in rows))

    play(story, cards="8xA100-40GB" if earlier == 4 else "2xA100-40GB")


async def test_somebody_who_changes_the_objects_all_the_time_gets_few_answers(scene: Scene) -> None:
    await begin(scene)
    await published(scene)
    answers = 0
    for _ in range(3000):
        for each in await stored(scene):
            if each.spec.devices and each.spec.devices[0].name != "mine":
                patch = {"spec": {"devices": [{"name": "mine"}]}}
                await scene.client.merge_patch(RESOURCE_SLICES, each.metadata.name, patch)
                answers += 1
        await scene.clock.sleep(0.2)
    assert 10 < answers < 60
    await published(scene, lambda found: found.devices[0].id.device != "mine")


class LateStream:
    """A watch whose every event comes later."""

    def __init__(self, inner: Stream, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock
        self.status, self.headers = inner.status, inner.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner.chunks():
            for event in chunk.splitlines(keepends=True):
                await self._clock.sleep(0.2)
                yield event

    async def read(self) -> bytes:
        return await self._inner.read()


class LateTransport(InProcessTransport):
    """A connection whose watches of ResourceSlices are late."""

    clock: Clock

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        async with super().stream(request) as inner:
            yield LateStream(inner, self.clock) if RESOURCE_SLICES.plural in request.path else inner


@pytest.mark.scene(cards="8xA100-40GB")
async def test_a_new_node_writes_each_object_once_though_its_watch_is_late(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    def user(name: str) -> Client:
        transport = LateTransport(scene.server, UserInfo(name=name, groups=("system:masters",)))
        transport.clock = scene.clock
        return Client(transport, field_manager=name, clock=scene.clock)

    scene.user = user  # type: ignore[method-assign]
    await begin(scene)
    await published(scene)
    await scene.clock.sleep(60)
    assert {each.spec.pool.generation for each in await stored(scene)} == {1}
    assert not [each for each in caplog.messages if "ResourceSlices" in each]


async def test_who_removes_taints_and_counters_gets_them_written_again(scene: Scene) -> None:
    """Only an answer to our own write says what the server keeps: without taints kube-scheduler would allocate."""
    await begin(scene)
    before = await published(scene)
    for each in await stored(scene):
        if each.spec.devices:
            devices = [{"name": device.name} for device in each.spec.devices]
            await scene.client.merge_patch(RESOURCE_SLICES, each.metadata.name, {"spec": {"devices": devices}})
    await published(scene, lambda found: found.devices == before.devices)


async def test_another_nodes_object_of_the_name_hinders_nobody(scene: Scene) -> None:
    """A hostile node may write objects of its own only, but under any name."""
    spec = {"pool": {"name": "x", "generation": 1, "resourceSliceCount": 1}, "devices": [], "nodeName": "evil"}
    body = {"metadata": {"name": f"01-{DRIVER}-{NODE}"}, "spec": {**spec, "driver": DRIVER}}
    await scene.client.create(RESOURCE_SLICES.as_dicts(), body)
    await begin(scene)
    await published(scene)
    names = {each.metadata.name for each in await stored(scene)}
    await scene.restart_agent()
    await scene.clock.sleep(600)
    assert {each.metadata.name for each in await stored(scene)} == names
