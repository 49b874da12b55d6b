"""The devices that kubelet counts while cards, profiles and health change. On virtual time."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

import pytest
from tests.agent.sharing.conftest import GPU, SHARED, SLICE_4, SLICE_4_SAME_NAME, WHOLE

from tessera.agent.sharing.allocate_response import AllocateOptions
from tessera.kubelet.interfaces import PluginError
from tessera.nvml.errors import NotSupported
from tessera_lab.kubelet.device_plugins.plugin_client import RegistrationError
from tessera_lab.kubelet.devices.device_ledger import DeviceAllocationError
from tessera_lab.kubelet.devices.device_manager import STOP_GRACE

if TYPE_CHECKING:
    from tests.agent.sharing.conftest import Scene

    from tessera.kubelet.interfaces import PluginOptions
    from tessera_lab.kubelet.device_plugins.plugin_client import PluginClient


async def test_four_cards_of_four_slices_each_replace_the_whole_cards(scene: Scene) -> None:
    await scene.begin_offering(WHOLE, gpu=4)
    scene.follow(SLICE_4, "slice-4")
    await scene.offers(gpu_shared=16)
    assert scene.advertiser.problem is None
    assert scene.settled[-1] == "slice-4"


async def test_without_a_new_name_the_cards_are_counted_four_times(scene: Scene) -> None:
    await scene.begin_offering(WHOLE, gpu=4)
    scene.follow(SLICE_4_SAME_NAME)
    await scene.offers(gpu=16)
    assert [counts[GPU] for counts in scene.seen] == [4, 16]


async def test_old_and_new_resources_of_a_card_are_never_counted_together(scene: Scene) -> None:
    await scene.begin_offering(WHOLE, gpu=4)
    first = len(scene.seen)
    scene.follow(SLICE_4)
    await scene.offers(gpu_shared=16)
    assert not any(counts.get(GPU) and counts.get(SHARED) for counts in scene.seen[first:])


async def test_a_change_of_content_never_dips(scene: Scene) -> None:
    await scene.begin_offering(SLICE_4, gpu_shared=16)
    first = len(scene.seen) - 1
    for replicas in (5, 4, 6, 3, 8, 4):
        scene.follow(SLICE_4.replace("replicas: 4", f"replicas: {replicas}"))
        await scene.offers(gpu_shared=4 * replicas)
    assert [counts[SHARED] for counts in scene.seen[first:]] == [16, 20, 16, 24, 12, 32, 16]


async def test_fifty_flips_of_the_label_end_with_the_last_and_leave_nothing(scene: Scene) -> None:
    await scene.begin_offering(WHOLE, gpu=4)
    before = len(asyncio.all_tasks())
    for flip in range(50):
        scene.follow(WHOLE if flip % 2 else SLICE_4)
        await scene.clock.sleep(0.001 * (flip % 7))
    await scene.offers(gpu=4)
    await scene.clock.sleep(STOP_GRACE + 1.0)
    assert len(asyncio.all_tasks()) == before
    scene.follow(SLICE_4)
    await scene.offers(gpu_shared=16)


async def test_a_profile_that_the_cards_do_not_allow_keeps_what_is_offered_and_says_why(scene: Scene) -> None:
    await scene.begin_offering(SLICE_4, gpu_shared=16)
    scene.follow(SLICE_4.replace("replicas: 4", "replicas: 4, devices: [7]"), "bad")
    await scene.until(lambda: scene.advertiser.problem is not None)
    problem = scene.problem()
    assert problem.reason == "ProfileRefused"
    for fact in ('profile "bad"', "cannot be followed", "sharing.timeSlicing.resources[0].devices"):
        assert fact in problem.text
    assert "7 is no device of nvidia.com/gpu here" in problem.text
    assert scene.allocatable[SHARED] == 16
    assert scene.settled[-1] == "profile"


async def test_requests_for_two_shares(scene: Scene) -> None:
    await scene.begin(SLICE_4.replace("renameByDefault", "failRequestsGreaterThanOne: true\n    renameByDefault"))
    await scene.offers(gpu_shared=16)
    with pytest.raises(DeviceAllocationError, match="maximum request size for shared resources is 1; found 2"):
        await scene.admit("greedy", {SHARED: 2})
    scene.follow(SLICE_4)
    await scene.clock.sleep(0.1)
    await scene.admit("greedy", {SHARED: 2})
    assert len(scene.devices("greedy")) == 2


@pytest.mark.scene("A100-40GB")
async def test_two_shares_of_one_card_are_one_device_for_the_container(scene: Scene) -> None:
    await scene.begin_offering(SLICE_4, gpu_shared=4)
    await scene.admit("both", {SHARED: 2})
    assert scene.env("both") == {"NVIDIA_VISIBLE_DEVICES": scene.uuid(0)}


@pytest.mark.scene("2xA100-40GB")
async def test_a_container_with_two_cards_sees_both(scene: Scene) -> None:
    await scene.begin_offering(WHOLE, gpu=2)
    await scene.admit("pair", {GPU: 2})
    assert await scene.start_container("pair") == {"NVIDIA_VISIBLE_DEVICES": f"{scene.uuid(0)},{scene.uuid(1)}"}
    await scene.restart_advertiser()
    await scene.until(lambda: scene.advertiser.serves)
    assert await scene.start_container("pair") == {"NVIDIA_VISIBLE_DEVICES": f"{scene.uuid(0)},{scene.uuid(1)}"}


@pytest.mark.scene("A100-40GB")
async def test_a_container_with_two_kinds_of_slices_sees_both_whenever_it_starts(scene: Scene) -> None:
    await scene.begin(WHOLE)
    await scene.cut(0, ("2g.10gb", 0), ("1g.5gb", 4))
    await scene.offers(**{"mig-2g_10gb": 1, "mig-1g_5gb": 1})
    await scene.admit("both", {"nvidia.com/mig-1g.5gb": 1, "nvidia.com/mig-2g.10gb": 1})
    both = {"NVIDIA_VISIBLE_DEVICES": ",".join(scene.mig_uuids(0))}
    assert await scene.start_container("both") == both
    await scene.clock.sleep(60.0)
    assert await scene.start_container("both") == both
    (scene.folder / "cdi" / "k8s.device-plugin.nvidia.com-gpu.json").unlink()
    await scene.restart_advertiser()
    await scene.until(lambda: scene.advertiser.serves)
    assert await scene.start_container("both") == both


@pytest.mark.scene("A100-40GB")
async def test_containers_with_a_slice_each_see_their_own(scene: Scene) -> None:
    await scene.begin(WHOLE)
    await scene.cut(0, ("2g.10gb", 0), ("1g.5gb", 4))
    await scene.offers(**{"mig-2g_10gb": 1, "mig-1g_5gb": 1})
    await scene.admit("pod", {"nvidia.com/mig-2g.10gb": 1}, {"nvidia.com/mig-1g.5gb": 1})
    for container, uuid in zip(("c0", "c1"), scene.mig_uuids(0), strict=True):
        assert await scene.start_container("pod", container) == {"NVIDIA_VISIBLE_DEVICES": uuid}


@pytest.mark.scene("2xA100-40GB")
async def test_a_container_starts_again_though_its_resource_is_offered_no_more(scene: Scene) -> None:
    await scene.begin_offering(WHOLE, gpu=2)
    await scene.admit("train", {GPU: 2})
    before = await scene.start_container("train")
    scene.follow(SLICE_4)
    await scene.until(lambda: GPU in scene.allocatable and not scene.allocatable[GPU])
    for _ in range(3):
        await scene.clock.sleep(2 * STOP_GRACE)
        assert await scene.start_container("train") == before
        await scene.restart_advertiser()
    scene.finish("train")
    await scene.offers(gpu_shared=8)
    await scene.until(lambda: GPU not in scene.allocatable, seconds=2 * STOP_GRACE)


@pytest.mark.scene("A100-40GB")
async def test_fixed_slices_are_offered_by_profile_and_can_be_shared_too(scene: Scene) -> None:
    await scene.begin(WHOLE)
    await scene.cut(0, ("2g.10gb", 0), ("2g.10gb", 2), ("1g.5gb", 4), ("1g.5gb", 5), ("1g.5gb", 6))
    await scene.offers(**{"mig-2g_10gb": 2, "mig-1g_5gb": 3})
    shared = SLICE_4.replace("nvidia.com/gpu", "nvidia.com/mig-1g.5gb")
    scene.follow(shared)
    await scene.offers(**{"mig-2g_10gb": 2, "mig-1g_5gb_shared": 12})


@pytest.mark.scene("2xA100-40GB")
async def test_a_slice_that_is_offered_on_demand_is_not_offered_from_a_layout_too(scene: Scene) -> None:
    scene.taken.add("nvidia.com/mig-1g.5gb")
    await scene.begin(WHOLE)
    await scene.cut(0, ("1g.5gb", 0), ("2g.10gb", 2))
    await scene.offers(**{"gpu": 1, "mig-2g_10gb": 1})
    problem = scene.problem()
    assert problem.reason == "ResourceNameConflict"
    for fact in ("rename it", "resources.mig of the sharing profile", "{pattern: '1g.5gb'"):
        assert fact in problem.text
    scene.taken.clear()
    scene.changes.notify()
    await scene.offers(**{"gpu": 1, "mig-2g_10gb": 1, "mig-1g_5gb": 1})
    assert scene.advertiser.problem is None


@pytest.mark.scene("2xA100-40GB")
async def test_a_card_that_a_pod_holds_whole_is_not_offered_as_shares(scene: Scene) -> None:
    await scene.begin_offering(WHOLE, gpu=2)
    await scene.admit("train", {GPU: 1})
    scene.follow(SLICE_4)
    await scene.offers(gpu_shared=4)
    held = scene.devices("train")[0]
    assert {entry.partition("::")[0] for _, entry in scene.advertiser.withheld_entries} == {held}
    problem = scene.problem()
    assert problem.reason == "CardsInUse"
    assert f"pod default/train holds {held} as nvidia.com/gpu" in problem.text
    scene.finish("train")
    await scene.offers(gpu_shared=8)
    assert scene.advertiser.problem is None


@pytest.mark.scene("2xA100-40GB")
async def test_a_card_with_a_share_in_use_is_not_offered_whole_under_the_same_name_either(scene: Scene) -> None:
    await scene.begin_offering(SLICE_4_SAME_NAME, gpu=8)
    await scene.admit("web", {GPU: 1})
    scene.follow(WHOLE)
    await scene.offers(gpu=1)
    scene.finish("web")
    await scene.offers(gpu=2)


@pytest.mark.scene("A100-40GB")
async def test_what_a_pod_was_given_a_moment_ago_is_held_though_kubelet_does_not_list_it(scene: Scene) -> None:
    await scene.begin_offering(WHOLE, gpu=1)
    await scene.clock.sleep(0.1)
    await scene.admit("train", {GPU: 1})
    pod = scene.pods.pop("train")
    scene.follow(SLICE_4)
    await scene.clock.sleep(5.0)
    assert not scene.allocatable.get(SHARED)
    assert scene.advertiser.recent_allocations == {scene.uuid(0)}
    scene.pods["train"] = pod
    await scene.clock.sleep(60.0)
    assert not scene.allocatable.get(SHARED)
    scene.finish("train")
    await scene.offers(gpu_shared=4)


@pytest.mark.scene("A100-40GB")
async def test_what_a_pod_was_given_counts_as_given_lately_only_for_a_moment(scene: Scene) -> None:
    await scene.begin_offering(WHOLE, gpu=1)
    await scene.admit("train", {GPU: 1})
    assert scene.advertiser.recent_allocations == {scene.uuid(0)}
    woken = scene.changes.count
    await scene.clock.sleep(2.0)
    assert scene.advertiser.recent_allocations == frozenset()
    assert scene.changes.count > woken


@pytest.mark.scene("2xA100-40GB")
async def test_a_container_that_starts_has_its_devices_for_longer_than_a_moment(scene: Scene) -> None:
    await scene.begin_offering(WHOLE, gpu=2)
    await scene.cut(0, ("2g.10gb", 0), ("1g.5gb", 2))
    await scene.offers(**{"gpu": 1, "mig-2g_10gb": 1, "mig-1g_5gb": 1})
    await scene.admit("train", {"nvidia.com/mig-2g.10gb": 1})
    await scene.clock.sleep(2.0)
    await scene.start_container("train")
    await scene.clock.sleep(2.0)
    assert scene.advertiser.recent_allocations == frozenset()


@pytest.mark.scene("A100-40GB")
async def test_what_kubelet_still_has_on_its_list_is_not_given_after_a_change(scene: Scene) -> None:
    await scene.begin_offering(WHOLE, gpu=1)
    scene.fences["layout"] = frozenset({scene.uuid(0)})
    with pytest.raises(
        DeviceAllocationError, match=f"nvidia.com/gpu: {scene.uuid(0)} must not be allocated.*it is kept"
    ):
        await scene.admit("late", {GPU: 1}, seen=False)
    scene.changes.notify()
    await scene.offers()
    scene.fences.clear()
    scene.changes.notify()
    await scene.offers(gpu=1)


@pytest.mark.scene("2xA100-40GB")
async def test_what_is_offered_no_more_is_not_given_though_the_change_takes_a_while(scene: Scene) -> None:
    await scene.begin_offering(WHOLE, gpu=2)
    scene.machine.slow("card_files", 3.0)
    await scene.cut(0, ("1g.5gb", 0))
    await scene.clock.sleep(1.0)
    assert scene.allocatable == {GPU: 2}, "kubelet does not know yet"
    with pytest.raises(DeviceAllocationError, match=f"unknown device {scene.uuid(0)}; it may have been removed"):
        await scene.admit("late", {GPU: 2}, seen=False)
    await scene.offers(**{"gpu": 1, "mig-1g_5gb": 1})


@pytest.mark.scene("2xA100-40GB")
async def test_a_bad_card_takes_all_its_shares_and_a_bad_instance_only_its_own(scene: Scene) -> None:
    await scene.begin(SLICE_4_SAME_NAME.replace("replicas: 4}", "replicas: 4}, {name: mig-1g.5gb, replicas: 2}"))
    await scene.cut(0, ("1g.5gb", 0), ("1g.5gb", 1), ("1g.5gb", 2))
    await scene.offers(**{"gpu": 4, "mig-1g_5gb": 6})
    scene.xid(13, 1)
    await scene.clock.sleep(1.0)
    await scene.offers(**{"gpu": 4, "mig-1g_5gb": 6})
    scene.xid(48, 1)
    await scene.offers(**{"mig-1g_5gb": 6})
    assert len([entry for resource, entry in scene.advertiser.withheld_entries if resource == GPU]) == 4
    bad = scene.machine.instances(scene.machine.uuids()[0])[1]
    scene.xid(94, 0, (bad.gi_id, bad.compute_instances[0].ci_id))
    await scene.offers(**{"mig-1g_5gb": 4})
    assert {entry.partition("::")[0] for resource, entry in scene.advertiser.withheld_entries if resource != GPU} == {
        bad.compute_instances[0].mig_uuid
    }
    await scene.probe(0)
    await scene.offers(**{"mig-1g_5gb": 6})


@pytest.mark.scene("8xA100-40GB")
async def test_a_lost_card_leaves_the_others_to_be_given(scene: Scene) -> None:
    await scene.begin_offering(WHOLE, gpu=8)
    scene.machine.lose(scene.machine.uuids()[3])
    await scene.stocktaker.refresh()
    await scene.offers(gpu=7)
    await scene.admit("four", {GPU: 4})
    assert scene.uuid(3) not in scene.devices("four")


async def test_mps_gives_up_a_card_whose_layout_is_about_to_change(scene: Scene) -> None:
    await scene.begin(SLICE_4.replace("timeSlicing", "mps"))
    scene.start_daemons()
    await scene.offers(gpu_shared=16)
    scene.fences["layout"] = frozenset({scene.uuid(0)})
    scene.changes.notify()
    await scene.until(lambda: _served(scene) == set(scene.machine.uuids()[1:]))
    scene.fences.clear()
    scene.changes.notify()
    await scene.until(lambda: _served(scene) == set(scene.machine.uuids()))


def _served(scene: Scene) -> set[str]:
    daemon = scene.launcher.daemon(SHARED)
    return set() if daemon is None else set(daemon.spec.cards)


@pytest.mark.scene("2xA100-40GB")
async def test_shares_by_mps_are_counted_while_their_daemon_serves(scene: Scene) -> None:
    await scene.begin(SLICE_4.replace("timeSlicing", "mps"))
    await scene.until(lambda: SHARED in scene.allocatable)
    await scene.clock.sleep(1.0)
    assert scene.allocatable[SHARED] == 0
    assert all(why.startswith("its MPS daemon is not ready: ") for why in scene.advertiser.withheld_entries.values())
    scene.start_daemons()
    await scene.offers(gpu_shared=8)
    await scene.admit("client", {SHARED: 1})
    assert scene.env("client")["CUDA_MPS_PIPE_DIRECTORY"] == "/mps/nvidia.com/gpu.shared/pipe"
    first = len(scene.seen)
    daemon = scene.launcher.daemon(SHARED)
    assert daemon is not None
    daemon.die()
    await scene.until(lambda: any(counts[SHARED] == 0 for counts in scene.seen[first:]))
    await scene.offers(gpu_shared=8)
    assert [counts[SHARED] for counts in scene.seen[first:]] == [0, 8]


async def test_after_a_restart_of_kubelet_all_is_back_within_two_seconds(scene: Scene) -> None:
    await scene.begin_offering(SLICE_4, gpu_shared=16)
    for _ in range(5):
        scene.bus.stop()
        await scene.kubelet.restart()
        assert not any(scene.allocatable.values())
        scene.bus.start(scene.kubelet.add_plugin, scene.kubelet)
        began = scene.clock.monotonic()
        await scene.offers(gpu_shared=16)
        assert scene.clock.monotonic() - began < 2.0


async def test_a_hundred_agents_that_follow_one_another_never_take_anything_away(scene: Scene) -> None:
    await scene.begin_offering(SLICE_4, gpu_shared=16)
    first = len(scene.seen) - 1
    for _ in range(100):
        older = scene.tasks.pop()
        scene.advertiser = scene.make_advertiser()
        scene.start()
        await scene.until(lambda: scene.advertiser.serves)
        older.cancel()
        await scene.clock.sleep(0.01)
    assert {counts[SHARED] for counts in scene.seen[first:]} == {16}


async def test_nothing_is_offered_before_kubelet_says_who_holds_what(scene: Scene) -> None:
    scene.follow(SLICE_4)
    await scene.stocktaker.refresh()
    scene.start()
    await scene.clock.sleep(5.0)
    assert scene.advertiser.problem is None
    await scene.clock.sleep(10.0)
    problem = scene.problem()
    assert problem.reason == "KubeletNotResponding"
    scene.bus.start(scene.kubelet.add_plugin, scene.kubelet)
    await scene.offers(gpu_shared=16)
    assert scene.advertiser.problem is None


async def test_a_node_that_has_nothing_to_offer_and_never_had_asks_nobody(scene: Scene) -> None:
    scene.start()
    await scene.clock.sleep(10.0)
    assert scene.advertiser.in_force is not None
    assert scene.advertiser.problem is None
    assert not (scene.folder / "cdi").exists()


async def test_a_cdi_folder_that_cannot_be_written_holds_up_changes_and_is_told(scene: Scene) -> None:
    await scene.begin_offering(WHOLE, gpu=4)
    folder = scene.folder / "cdi"
    shutil.rmtree(folder)
    folder.write_text("no folder")
    scene.follow(SLICE_4)
    await scene.until(lambda: scene.advertiser.problem is not None)
    problem = scene.problem()
    assert problem.reason == "CdiFailed"
    assert scene.allocatable == {GPU: 4}
    folder.unlink()
    await scene.offers(gpu_shared=16)
    assert scene.advertiser.problem is None


@pytest.mark.scene("2xA100-40GB", options=AllocateOptions(list_strategies=("envvar",)))
async def test_where_containers_are_told_by_variables_the_cdi_folder_does_not_matter(scene: Scene) -> None:
    (scene.folder / "cdi").write_text("no folder")
    await scene.begin_offering(WHOLE, gpu=2)
    await scene.admit("pair", {GPU: 2})
    assert await scene.start_container("pair") == {"NVIDIA_VISIBLE_DEVICES": f"{scene.uuid(0)},{scene.uuid(1)}"}


async def test_a_resource_that_kubelet_refuses_is_told_and_offered_again(scene: Scene) -> None:
    refuses = True

    async def registered(resource_name: str, options: PluginOptions, client: PluginClient) -> None:
        if refuses and resource_name == SHARED:
            raise RegistrationError("no such luck")
        await scene.kubelet.add_plugin(resource_name, options, client)

    await scene.begin_offering(WHOLE, gpu=4)
    scene.bus.start(registered, scene.kubelet)
    scene.follow(SLICE_4)
    await scene.until(lambda: scene.advertiser.problem is not None)
    problem = scene.problem()
    assert problem.reason == "ResourceRefused"
    assert "nvidia.com/gpu.shared: no such luck" in problem.text
    assert scene.allocatable[GPU] == 0, "what the profile does not offer is not given"
    refuses = False
    await scene.offers(gpu_shared=16)
    assert scene.advertiser.problem is None


@pytest.mark.scene("2xA100-40GB")
async def test_a_card_whose_device_nodes_are_not_known_is_not_given_out(scene: Scene) -> None:
    scene.machine.fail("card_files", NotSupported, gpu=scene.machine.uuids()[1])
    await scene.begin_offering(WHOLE, gpu=1)
    problem = scene.problem()
    assert problem.reason == "NvmlFailed"
    assert f"device nodes of card {scene.uuid(1)} are not known" in problem.text
    scene.machine.heal()
    await scene.offers(gpu=2)
    assert scene.advertiser.problem is None


@pytest.mark.scene("2xA100-40GB")
async def test_a_card_that_is_cut_while_kubelet_is_waited_for_is_not_given_whole(scene: Scene) -> None:
    await scene.begin_offering(WHOLE, gpu=2)
    scene.seam.pod_resources = asyncio.Event().wait  # type: ignore[method-assign, assignment]
    for card in (0, 1):
        await scene.cut(card, ("1g.5gb", 0))
        await scene.clock.sleep(1)
    with pytest.raises(DeviceAllocationError, match=f"{scene.uuid(1)} must not be allocated now"):
        await scene.admit("p", {GPU: 1})


@pytest.mark.scene("2xA100-40GB")
async def test_what_others_may_ask(scene: Scene) -> None:
    await scene.begin_offering(WHOLE, gpu=2)
    await scene.admit("train", {GPU: 1})
    scene.follow(SLICE_4)
    await scene.offers(gpu_shared=4)
    held = scene.devices("train")[0]
    free = next(each for each in (scene.uuid(0), scene.uuid(1)) if each != held)
    assert scene.advertiser.describe_occupant(held) == f"pod default/train holds {held} as nvidia.com/gpu"
    assert scene.advertiser.describe_occupant(free) == ""


@pytest.mark.scene("2xA100-40GB")
async def test_a_pair_of_cards_is_not_given_where_its_set_cannot_be_written(scene: Scene) -> None:
    await scene.begin_offering(WHOLE, gpu=2)
    folder = scene.folder / "cdi"
    shutil.rmtree(folder)
    folder.write_text("no folder")
    with pytest.raises(DeviceAllocationError, match=r"nvidia.com/gpu: .*gpu.json cannot be written"):
        await scene.admit("pair", {GPU: 2})
    folder.unlink()
    await scene.admit("pair", {GPU: 2})
    shutil.rmtree(folder)
    folder.write_text("no folder")
    with pytest.raises(PluginError, match="the container's CDI set cannot be made"):
        await scene.start_container("pair")


async def test_names_that_are_offered_no_more_are_removed_from_the_node_in_the_end(scene: Scene) -> None:
    await scene.begin_offering(WHOLE, gpu=4)
    scene.follow(SLICE_4)
    await scene.offers(gpu_shared=16)
    await scene.clock.sleep(301.0)
    assert scene.removed == []
    await scene.restart_advertiser()
    await scene.until(lambda: scene.removed == [GPU], seconds=120)
    await scene.clock.sleep(3600.0)
    assert scene.removed == [GPU]


async def test_names_of_the_slicer_go_too_when_it_serves_them_no_more(scene: Scene) -> None:
    scene.taken.add("nvidia.com/mig-7g.40gb")
    await scene.begin_offering(WHOLE, gpu=4)
    scene.seen.append({"nvidia.com/mig-7g.40gb": 0})
    await scene.clock.sleep(3600.0)
    assert scene.removed == []
    scene.taken.clear()
    scene.changes.notify()
    await scene.clock.sleep(300.0)
    assert scene.removed == []
    await scene.until(lambda: scene.removed == ["nvidia.com/mig-7g.40gb"], seconds=120)
