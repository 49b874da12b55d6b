"""One way a node: its slices are given by ResourceClaims or by the device plugin, and the label changes it in place."""

import msgspec
import pytest
from tests.agent.conftest import Scene
from tests.agent.slices.test_claim_driver import ONE, Kubelet, allocate, begin, choose, environment, joined, prepared

from tessera.api.names import DEVICE_API_DRA
from tessera.dra.resource_slices import RESOURCE_SLICES

MIG = "nvidia.com/mig-3g.20gb"


async def has_slices(scene: Scene) -> bool:
    return bool((await scene.client.list(RESOURCE_SLICES)).items)


async def has_none(scene: Scene) -> bool:
    return not await has_slices(scene)


async def offered(scene: Scene) -> set[str]:
    """The resources of which kubelet can allocate a device."""
    return {each.resource_name for each in await scene.kubelet.allocatable() if each.device_ids}


async def by_plugin(scene: Scene) -> bool:
    return MIG in await offered(scene)


@pytest.mark.parametrize("way", ["", "deviceplugin", "DRA"])
async def test_a_node_without_the_label_offers_devices_to_the_device_plugin_alone(scene: Scene, way: str) -> None:
    kubelet, _ = await begin(scene, way=way)
    await scene.joined()
    await scene.until(lambda: by_plugin(scene))
    await scene.clock.sleep(60)
    assert await has_none(scene)
    assert not kubelet.is_served()


async def test_a_node_with_the_label_offers_its_slices_to_claims_alone(scene: Scene) -> None:
    kubelet, _ = await begin(scene)
    await scene.until(lambda: has_slices(scene))
    await kubelet.client()
    await scene.clock.sleep(60)
    assert not await offered(scene)


async def test_the_label_does_nothing_where_the_installation_serves_no_claims(scene: Scene) -> None:
    scene.options = msgspec.structs.replace(scene.options, claim_driver="")
    await scene.begin(agent=False)
    await choose(scene, DEVICE_API_DRA)
    scene.start_agent()
    await scene.until(lambda: by_plugin(scene))
    assert await has_none(scene)


@pytest.mark.parametrize("restart", [False, True])
async def test_a_pod_of_the_device_plugin_runs_on_when_the_node_turns_to_claims(scene: Scene, restart: bool) -> None:
    await begin(scene, way="")
    await scene.joined()
    await scene.until(lambda: by_plugin(scene))
    await scene.admit_promised("old", {"main": {"3g.20gb": 1}}, ONE)
    before = await scene.start("old", "main")
    await choose(scene, DEVICE_API_DRA)
    await scene.until(lambda: has_slices(scene))
    if restart:
        await scene.restart_agent()
    await scene.clock.sleep(30)
    assert not await offered(scene)
    assert await scene.start("old", "main") == before  # its container starts again
    await scene.finish_and_release("old")
    await scene.until(scene.is_empty)


@pytest.mark.parametrize("restart", [False, True])
async def test_a_pod_with_a_claim_runs_on_when_the_node_turns_to_the_device_plugin(scene: Scene, restart: bool) -> None:
    kubelet = await joined(scene)
    claim, devices = await prepared(scene, kubelet, "old", ONE)
    await choose(scene, "deviceplugin")
    await scene.until(lambda: has_none(scene))
    if restart:
        await scene.restart_agent()
    await scene.until(lambda: by_plugin(scene))
    assert environment(scene, devices) == {scene.mig_uuid(ONE)}
    assert await kubelet.prepare(claim) == devices
    await kubelet.unprepare(claim)
    await scene.remove("old")
    await scene.release("old")
    await scene.until(lambda: is_unknown(kubelet))
    await scene.until(scene.is_empty)


async def is_unknown(kubelet: Kubelet) -> bool:
    return not kubelet.is_served()


async def test_a_claim_that_was_placed_before_the_change_is_still_prepared(scene: Scene) -> None:
    """Its pod is bound; kubelet asks when it comes to it."""
    kubelet = await joined(scene)
    claim = await allocate(scene, "late", ONE)
    await scene.promise("late", ONE)
    await scene.clock.sleep(1)
    await choose(scene, "deviceplugin")
    await scene.until(lambda: has_none(scene))
    assert environment(scene, await kubelet.prepare(claim)) == {scene.mig_uuid(ONE)}


async def test_a_pod_that_asks_by_limits_gets_nothing_on_a_node_of_claims(scene: Scene) -> None:
    """It was bound without regard to the label; the slice of a claim is not for it."""
    kubelet = await joined(scene)
    _, devices = await prepared(scene, kubelet, "owner", ONE)
    await scene.pod("other", {"main": {"3g.20gb": 1}})
    await scene.bind("other")
    await scene.admit("other")  # kubelet does not look at a resource that no plugin has
    assert not scene.devices("other", "main")
    assert environment(scene, devices) == {scene.mig_uuid(ONE)}
