"""Cards that no new pod may get while pods hold them: kubelet's counts leave the free good ones to new pods."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.agent.sharing.conftest import GPU, SHARED, SLICE_4, WHOLE

from tessera_lab.kubelet.devices.device_ledger import DeviceAllocationError

if TYPE_CHECKING:
    from tests.agent.sharing.conftest import Scene


async def test_a_cordoned_card_stays_counted_while_its_pod_stays(scene: Scene) -> None:
    await scene.begin_offering(WHOLE, gpu=4)
    await scene.admit("service", {GPU: 1})
    await scene.start_container("service")
    scene.cordon(scene.index("service"))
    await scene.clock.sleep(20.0)
    assert scene.allocatable[GPU] == 4
    assert scene.advertiser.held_withheld == {}
    assert scene.advertiser.overcounted_resources == ()
    for name in ("second", "third", "fourth"):
        await scene.admit(name, {GPU: 1})
    assert scene.devices("service")[0] not in [scene.devices(each)[0] for each in ("second", "third", "fourth")]


async def test_the_count_falls_before_a_deleted_pod_leaves_its_cordoned_card(scene: Scene) -> None:
    await scene.begin_offering(WHOLE, gpu=4)
    await scene.admit("service", {GPU: 1})
    await scene.start_container("service")
    scene.cordon(scene.index("service"))
    await scene.clock.sleep(20.0)
    scene.delete("service")
    await scene.offers(gpu=3)
    assert scene.lowered == {GPU: 3}
    assert scene.advertiser.held_withheld == {GPU: 1}
    scene.finish("service")
    await scene.until(lambda: scene.advertiser.held_withheld == {})
    assert scene.allocatable[GPU] == 3
    for name in ("second", "third", "fourth"):
        await scene.admit(name, {GPU: 1})
    with pytest.raises(DeviceAllocationError):
        await scene.admit("fifth", {GPU: 1})


@pytest.mark.parametrize("restarts", ["Never", "OnFailure"])
async def test_a_pod_that_ends_by_itself_is_counted_against_the_other_cards(scene: Scene, restarts: str) -> None:
    await scene.begin_offering(WHOLE, gpu=4)
    await scene.admit("job", {GPU: 1}, restarts=restarts)
    await scene.start_container("job")
    scene.cordon(scene.index("job"))
    await scene.offers(gpu=3)
    assert scene.advertiser.held_withheld == {GPU: 1}
    assert scene.lowered == {}


async def test_a_bad_card_is_unhealthy_for_its_own_pod_too(scene: Scene) -> None:
    await scene.begin_offering(WHOLE, gpu=4)
    await scene.admit("service", {GPU: 1})
    await scene.start_container("service")
    bad = scene.index("service")
    scene.cordon(bad)
    await scene.clock.sleep(1.0)
    scene.xid(48, bad)
    await scene.offers(gpu=3)
    assert scene.advertiser.held_withheld == {GPU: 1}


async def test_of_a_cordoned_card_only_the_free_shares_go(scene: Scene) -> None:
    await scene.begin_offering(SLICE_4, gpu_shared=16)
    await scene.admit("service", {SHARED: 1})
    await scene.start_container("service")
    scene.cordon(0, 1, 2, 3)
    await scene.offers(gpu_shared=1)
    assert scene.advertiser.held_withheld == {}
    scene.fences["layout"] = frozenset(map(str, scene.machine.uuids()))
    scene.changes.notify()
    await scene.offers()
    assert scene.advertiser.held_withheld == {SHARED: 1}
