"""The ResourceSlices of a node: what its cards are, written once, and again when somebody removes them."""

from collections.abc import Callable
from typing import Any

from tests.agent.conftest import NODE, Scene
from tests.agent.slices.test_claim_driver import DRIVER, begin

from tessera.api.dra.resource_slices import RESOURCE_SLICES, ResourceSlice
from tessera.dra.devices import Pool
from tessera.dra.node_devices import PLACED_BY
from tessera.dra.pool_reader import read_pools
from tessera.kube.resources import NODES
from tessera.mig.models import model_by_short_name


async def stored(scene: Scene) -> list[ResourceSlice]:
    return list((await scene.client.list(RESOURCE_SLICES)).items)


async def pool(scene: Scene) -> Pool | None:
    found = read_pools(await stored(scene))
    return found[0] if found and not found[0].problem else None


async def published(scene: Scene, holds: Callable[[Pool], bool] = lambda _: True) -> Pool:
    async def is_so() -> bool:
        found = await pool(scene)
        return found is not None and holds(found)

    await scene.until(is_so)
    found = await pool(scene)
    assert found is not None
    return found


def test_every_place_of_every_profile_is_a_device(play: Callable[..., None]) -> None:
    async def story(scene: Scene) -> None:
        await begin(scene)
        found = await published(scene)
        assert (found.driver, found.name, found.node) == (DRIVER, NODE, NODE)
        rows = {profile.name: len(profile.starts) for profile in model_by_short_name("A100-40GB").geometry.profiles}
        profiles = [device.attributes[f"{DRIVER}/profile"] for device in found.devices]
        assert {name: profiles.count(name) for name in rows} == {name: 2 * count for name, count in rows.items()}
        assert all(device.taints == (PLACED_BY,) for device in found.devices)
        node = await scene.client.get(NODES, NODE)
        for each in await stored(scene):
            (owner,) = each.metadata.owner_references
            assert (owner.kind, owner.uid) == ("Node", node.metadata.uid)

    play(story, cards="2xA100-40GB")


def test_a_quiet_node_writes_nothing(play: Callable[..., None]) -> None:
    async def story(scene: Scene) -> None:
        await begin(scene)
        await published(scene)
        before = await stored(scene)
        await scene.clock.sleep(3600)
        await scene.kill_agent()
        scene.start_agent()
        await scene.clock.sleep(600)
        assert await stored(scene) == before

    play(story)


def test_what_kubelet_removed_comes_again(play: Callable[..., None]) -> None:
    async def story(scene: Scene) -> None:
        await begin(scene)
        before = await published(scene)
        for each in await stored(scene):
            await scene.client.delete(RESOURCE_SLICES, each.metadata.name)
        assert (await published(scene)).devices == before.devices

    play(story)


def test_another_drivers_and_nodes_objects_stay(play: Callable[..., None]) -> None:
    async def story(scene: Scene) -> None:
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

    play(story)


def test_a_foreign_instance_takes_from_the_counters(play: Callable[..., None]) -> None:
    async def story(scene: Scene) -> None:
        scene.foreign(("3g.20gb", 0, 4))
        await begin(scene)
        found = await published(scene)
        left = {counter for (name, counter), amount in found.counters.items() if "memory" in name and amount}
        assert left == {f"memory-slice-{slot}" for slot in range(4)}

    play(story)


def test_a_card_that_may_not_be_used_is_tainted_until_it_may(play: Callable[..., None]) -> None:
    async def story(scene: Scene) -> None:
        await begin(scene)
        await published(scene)
        scene.machine.lose(scene.machine.uuids()[0])
        await published(scene, lambda found: all(len(each.taints) == 2 for each in found.devices))

    play(story)


def test_an_old_server_gets_what_it_keeps(play: Callable[..., None]) -> None:
    """Kubernetes 1.34 drops taints and counters: no partition can be published there, nor is one given twice."""

    async def story(scene: Scene) -> None:
        await begin(scene)
        await scene.clock.sleep(60)
        before = await stored(scene)
        assert not [device for each in before for device in each.spec.devices]
        await scene.clock.sleep(600)
        assert await stored(scene) == before

    play(story, dra="1.34")
