"""A whole agent on one node: from a promise to a container that sees its slice, and back."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING

import pytest

from tessera.api.instaslice import INSTASLICES
from tessera.kube.errors import NotFound
from tessera.kube.resources import EVENTS, NODES
from tessera.kubelet.interfaces import PluginError, PodResources
from tessera.nvml.errors import InUse, UnknownNvmlError
from tessera.nvml.interface import GpuEventKind
from tessera.nvml.simulated.machine_state import SimEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.agent.conftest import Scene

A = ("3g.20gb", 0, 0)
B = ("3g.20gb", 0, 4)
ONES = [("1g.5gb", 0, start) for start in range(7)]
QUOTA = "instaslice.redhat.com/accelerator-memory-quota"


async def events(scene: Scene, reason: str) -> list[str]:
    found = await scene.client.list(EVENTS.as_dicts())
    return [each["message"] for each in found.items if each["reason"] == reason]


async def test_a_promised_slice_is_made_claimed_and_released(scene: Scene) -> None:
    await scene.begin_slicing()
    await scene.pod("web", {"main": {"3g.20gb": 1}})
    await scene.promise("web", B)
    await scene.reported("web", "created")
    assert scene.places() == [B]
    await scene.bind("web")
    await scene.admit("web")
    env = await scene.start("web", "main")
    assert env == {"NVIDIA_VISIBLE_DEVICES": scene.mig_uuid(B)}
    await scene.finish_and_release("web")
    assert scene.places() == []
    assert scene.cdi_files() == []
    await scene.until(scene.journal_is_empty)


@pytest.mark.scene(latencies={"create_gpu_instance": 4.0, "create_compute_instance": 2.0})
async def test_the_container_waits_for_a_slow_card_and_not_for_the_pod_beside_it(scene: Scene) -> None:
    await scene.begin_slicing()
    await scene.admit_promised("web", {"main": {"3g.20gb": 1}}, B)
    assert scene.places() == []
    await scene.start("web", "main", tries=1)
    assert scene.clock.monotonic() >= 6.0


async def test_the_preferred_device_is_the_promised_one(scene: Scene) -> None:
    await scene.begin_slicing()
    for name, place in (("one", ONES[6]), ("two", ONES[3])):
        await scene.pod(name, {"main": {"1g.5gb": 1}})
        await scene.promise(name, place)
        await scene.bind(name)
    for name, start in (("one", 6), ("two", 3)):
        await scene.admit(name)
        assert [device.rpartition(":")[2] for device in scene.devices(name, "main")] == [str(start)]


async def test_when_kubelet_picks_other_devices_each_pod_still_gets_its_own_slice(scene: Scene) -> None:
    await scene.begin_slicing()
    for name, place in (("one", ONES[6]), ("two", ONES[3])):
        await scene.pod(name, {"main": {"1g.5gb": 1}})
        await scene.promise(name, place)
        await scene.bind(name)
    await scene.admit("two")  # kubelet admits the younger promise first and so swaps the two
    await scene.admit("one")
    assert scene.devices("two", "main")[0].endswith(":6")
    assert (await scene.start("two", "main"))["NVIDIA_VISIBLE_DEVICES"] == scene.mig_uuid(ONES[3])
    assert (await scene.start("one", "main"))["NVIDIA_VISIBLE_DEVICES"] == scene.mig_uuid(ONES[6])
    await scene.finish_and_release("two")
    assert scene.places() == [ONES[6]]


@pytest.mark.parametrize(
    ("containers", "places", "expected"),
    [
        ({"main": {"1g.5gb": 1, "3g.20gb": 1}}, (ONES[0], B), {"main": {ONES[0], B}}),
        ({"main": {"1g.5gb": 3}}, ONES[:3], {"main": set(ONES[:3])}),
        ({"a": {"1g.5gb": 1}, "b": {"3g.20gb": 1}}, (ONES[2], B), {"a": {ONES[2]}, "b": {B}}),
    ],
    ids=["two profiles in one container", "three slices in one container", "two containers with one each"],
)
async def test_each_container_sees_exactly_its_slices(
    scene: Scene,
    containers: dict[str, dict[str, int]],
    places: tuple[tuple[str, int, int], ...],
    expected: dict[str, set[tuple[str, int, int]]],
) -> None:
    await scene.begin_slicing()
    await scene.pod("web", containers)
    await scene.promise("web", *places)
    await scene.bind("web")
    await scene.admit("web")
    for container, slices in expected.items():
        seen = (await scene.start("web", container))["NVIDIA_VISIBLE_DEVICES"].split(",")
        assert sorted(seen) == sorted(scene.mig_uuid(place) for place in slices)


@pytest.mark.parametrize("places", [(ONES[0], B), (B, ONES[0])], ids=["small first", "large first"])
async def test_devices_are_named_in_the_order_of_the_promise(
    scene: Scene, places: tuple[tuple[str, int, int], ...]
) -> None:
    await scene.begin_slicing()
    await scene.admit_promised("web", {"main": {"1g.5gb": 1, "3g.20gb": 1}}, *places)
    env = await scene.start("web", "main")
    assert env["NVIDIA_VISIBLE_DEVICES"].split(",") == list(map(scene.mig_uuid, places))


@pytest.mark.scene(latencies={"create_gpu_instance": 10.0})
async def test_a_container_whose_pod_ends_while_it_waits_for_its_slice_is_not_started(scene: Scene) -> None:
    await scene.begin_slicing()
    await scene.admit_promised("web", {"main": {"3g.20gb": 1}}, B)
    start = asyncio.create_task(scene.start("web", "main", tries=1))
    await scene.clock.sleep(2.0)
    await scene.finish("web", phase="Failed")
    with pytest.raises(PluginError, match="has ended; its slices are released"):
        await start
    assert scene.cdi_files() == []


async def test_an_app_container_gets_its_init_containers_slice(scene: Scene) -> None:
    await scene.begin_slicing()
    await scene.pod("web", {"main": {"1g.5gb": 1}}, init={"load": {"1g.5gb": 2}})
    await scene.promise("web", *ONES[:2])
    await scene.bind("web")
    await scene.admit("web")
    both = (await scene.start("web", "load"))["NVIDIA_VISIBLE_DEVICES"].split(",")
    assert sorted(both) == sorted(map(scene.mig_uuid, ONES[:2]))
    assert (await scene.start("web", "main"))["NVIDIA_VISIBLE_DEVICES"] in both


async def test_an_init_container_alone_with_slices_of_two_profiles_sees_both(scene: Scene) -> None:
    await scene.begin_slicing()
    await scene.pod("web", {"main": {}}, init={"load": {"1g.5gb": 1, "3g.20gb": 1}})
    await scene.promise("web", ONES[0], B)
    await scene.bind("web")
    await scene.admit("web")
    env = await scene.start("web", "load")
    assert sorted(env["NVIDIA_VISIBLE_DEVICES"].split(",")) == sorted(map(scene.mig_uuid, (ONES[0], B)))


async def test_a_restarted_container_finds_its_slice_also_after_the_agent_was_killed(scene: Scene) -> None:
    await scene.begin_slicing()
    await scene.admit_promised("web", {"main": {"1g.5gb": 2}}, *ONES[4:6])
    before = await scene.start("web", "main")
    assert await scene.start("web", "main") == before
    await scene.restart_agent()
    assert await scene.start("web", "main") == before


async def test_a_pod_that_came_around_the_webhook_is_refused_with_the_reason(scene: Scene) -> None:
    await scene.begin_slicing()
    await scene.pod("sneaky", {"main": {"1g.5gb": 1}})
    await scene.bind("sneaky")
    await scene.admit("sneaky")
    with pytest.raises(PluginError, match="pod default/sneaky has no promise of a slice"):
        await scene.start("sneaky", "main", tries=1)
    assert scene.places() == []


async def test_a_slice_is_not_destroyed_under_a_running_process(scene: Scene) -> None:
    await scene.begin_slicing()
    await scene.admit_promised("web", {"main": {"3g.20gb": 1}}, B)
    await scene.start("web", "main")
    pid = scene.machine.start_process(scene.mig_uuid(B))  # type: ignore[arg-type] # a MIG UUID
    await scene.remove("web")
    await scene.clock.sleep(60.0)
    assert scene.places() == [B]
    ended = scene.clock.monotonic()
    scene.machine.end_process(pid)
    await scene.release("web")
    assert scene.places() == []
    assert scene.clock.monotonic() - ended < 0.1


async def test_foreign_slices_are_reported_and_survive_everything(scene: Scene) -> None:
    scene.foreign(A)
    await scene.begin_slicing()
    resources = (await scene.object()).status.node_resources
    told = [(each.profile, each.start, each.size, each.pod_uid) for each in resources.foreign]
    assert told == [("3g.20gb", 0, 4, "")]
    await scene.pod("web", {"main": {"1g.5gb": 1}})
    await scene.promise("web", ONES[1])
    await scene.clock.sleep(30.0)
    assert scene.places() == [A]
    assert await events(scene, "SliceBlocked")
    await scene.release("web")
    assert scene.places() == [A]


async def test_a_call_that_fails_for_a_while_is_made_good(scene: Scene) -> None:
    await scene.begin_slicing()
    scene.machine.fail("create_gpu_instance", UnknownNvmlError, times=2)
    scene.machine.fail("create_compute_instance", UnknownNvmlError, times=2)
    scene.machine.fail("destroy_compute_instance", InUse, times=3)
    await scene.pod("web", {"main": {"3g.20gb": 1}})
    await scene.promise("web", A)
    await scene.reported("web", "created")
    assert scene.places() == [A]
    assert await events(scene, "SliceFailed")
    await scene.release("web")
    assert scene.places() == []


async def test_a_program_that_fails_again_and_again_does_not_have_the_cards_read_anew(scene: Scene) -> None:
    await scene.begin(agent=False)
    hardware = scene.start_agent()
    await scene.joined()
    await scene.clock.sleep(5.0)
    before = hardware.calls
    for _ in range(50):
        scene.machine.report(SimEvent(GpuEventKind.XID, scene.machine.uuids()[0], xid=31))
    await scene.clock.sleep(0.5)
    asked_of_health = 5
    assert hardware.calls - before <= asked_of_health
    scene.machine.report(SimEvent(GpuEventKind.XID, scene.machine.uuids()[0], xid=74))
    await scene.clock.sleep(0.5)
    assert hardware.calls - before > asked_of_health


async def test_a_slice_in_use_by_an_unlisted_process_is_tried_again_from_time_to_time(scene: Scene) -> None:
    await scene.begin(agent=False)
    calls = scene.start_agent()
    await scene.joined()
    await scene.pod("web", {"main": {"3g.20gb": 1}})
    await scene.promise("web", A)
    await scene.reported("web", "created")
    scene.machine.fail("destroy_compute_instance", InUse, times=None)
    release = asyncio.create_task(scene.release("web"))
    await scene.clock.sleep(1)
    before = calls.calls
    await scene.clock.sleep(60)
    assert calls.calls - before < 100
    assert await events(scene, "SliceInUse")
    scene.machine.heal()
    await release
    assert scene.places() == []


@pytest.mark.scene(cards="2xA100-40GB")
async def test_hardware_events_are_watched_again_after_that_failed(scene: Scene) -> None:
    scene.machine.fail("wait_event", UnknownNvmlError, times=1)
    await scene.begin_slicing()
    await scene.clock.sleep(120)
    scene.machine.lose(scene.machine.uuids()[1])
    await scene.until(lambda: scene.allocatable("nvidia.com/mig-7g.40gb", 1))


def test_a_lost_card_is_not_shown_to_the_controller_until_it_answers_again(play: Callable[..., None]) -> None:
    async def story(scene: Scene) -> None:
        first, second = scene.machine.uuids()

        async def shown(*cards: str) -> bool:
            return [gpu.gpu_uuid for gpu in (await scene.object()).status.node_resources.node_gpus] == list(cards)

        await scene.begin_slicing()
        await scene.pod("web", {"main": {"3g.20gb": 1}})
        await scene.promise("web", A)
        await scene.reported("web", "created")
        scene.machine.lose(first)
        await scene.until(functools.partial(shown, second))
        assert "3g.20gb" in (await scene.object()).status.node_resources.mig_placement
        scene.machine.reboot()
        await scene.until(functools.partial(shown, first, second))
        await scene.until(functools.partial(stands, scene, A))

    async def stands(scene: Scene, place: tuple[str, int, int]) -> bool:
        return scene.places() == [place]

    play(story, cards="2xA100-40GB")


async def test_a_full_disk_delays_new_slices_and_ends_nothing(scene: Scene) -> None:
    await scene.begin_slicing()
    state = scene.options.state_dir
    await scene.admit_promised("old", {"main": {"3g.20gb": 1}}, A)
    env = await scene.start("old", "main")
    state.rename(state.with_name("aside"))
    state.write_text("no folder can be made here")
    await scene.admit_promised("new", {"main": {"3g.20gb": 1}}, B)
    with pytest.raises(PluginError, match="slices not ready"):
        await scene.start("new", "main", tries=1)
    assert scene.agent is not None
    assert not scene.agent.done()
    assert scene.places() == [A]
    state.unlink()
    state.with_name("aside").rename(state)
    await scene.start("new", "main")
    assert await scene.start("old", "main") == env


@pytest.mark.scene(cards="2xA100-40GB")
async def test_a_refused_start_names_the_lost_card(scene: Scene) -> None:
    await scene.begin_slicing()
    scene.machine.lose(scene.machine.uuids()[0])
    await scene.admit_promised("web", {"main": {"3g.20gb": 1}}, A)
    with pytest.raises(PluginError, match="the card does not answer; the start is tried again"):
        await scene.start("web", "main", tries=1)


@pytest.mark.scene(mig=False)
async def test_joining_turns_mig_on_and_sets_the_quota_once(scene: Scene) -> None:
    await scene.begin_slicing()
    await scene.clock.sleep(5.0)
    node = await scene.client.get(NODES, "node-1")
    assert node.status.capacity[QUOTA] == node.status.allocatable[QUOTA] == "40Gi"
    # The quota, what the cards are, and what is in force.
    writes = scene.server.audit.writes(user="agent", resource="nodes")
    assert sorted(each.subresource for each in writes) == ["", "status", "status"]
    made = [each for each in scene.server.audit if (each.user, each.verb) == ("agent", "create")]
    assert [each.code for each in made if each.resource != "events"] == [201]


@pytest.mark.scene(mig=False, passthrough=True)
async def test_a_card_that_waits_for_a_reset_is_reported_and_used_after_it(scene: Scene) -> None:
    await scene.begin()
    await scene.clock.sleep(10.0)
    assert any("waits for a reset" in text for text in await events(scene, "CardSkipped"))
    scene.machine.reset(scene.machine.uuids()[0])
    await scene.joined()


@pytest.mark.scene(mig=False)
async def test_cards_of_a_node_without_the_label_are_offered_as_they_are(scene: Scene) -> None:
    await scene.begin(label="")
    await scene.clock.sleep(30.0)
    with pytest.raises(NotFound):
        await scene.object()
    assert not scene.machine.devices()[0].mig_enabled
    assert await scene.allocatable("nvidia.com/gpu", 1)


async def test_a_node_that_leaves_keeps_its_slices_until_their_pods_end(scene: Scene) -> None:
    await scene.begin_slicing()
    await scene.admit_promised("web", {"main": {"3g.20gb": 1}}, B)
    env = await scene.start("web", "main")
    await scene.client.merge_patch(NODES, "node-1", {"metadata": {"labels": {"nvidia.com/mig.config": None}}})
    await scene.until(lambda: scene.allocatable("nvidia.com/mig-3g.20gb", 0))
    assert scene.places() == [B]
    assert await scene.start("web", "main") == env
    await scene.finish_and_release("web")
    await scene.until(scene.object_is_gone)
    assert QUOTA not in (await scene.client.get(NODES, "node-1")).status.capacity


async def test_after_a_reboot_a_pods_slice_is_made_again_with_the_same_uuid(scene: Scene) -> None:
    await scene.begin_slicing()
    await scene.admit_promised("web", {"main": {"3g.20gb": 1}}, B)
    before = await scene.start("web", "main")
    await scene.kill_agent()
    scene.machine.reboot()
    assert scene.places() == []
    scene.start_agent()
    assert await scene.start("web", "main") == before
    assert scene.places() == [B]


@pytest.mark.scene(latencies={"create_gpu_instance": 0.2})
async def test_a_burst_of_pods_costs_few_writes(scene: Scene) -> None:
    await scene.begin_slicing()
    for number, place in enumerate(ONES):
        await scene.pod(f"pod-{number}", {"main": {"1g.5gb": 1}})
        await scene.promise(f"pod-{number}", place)
    for number in range(7):
        await scene.reported(f"pod-{number}", "created")
    writes = scene.server.audit.writes(user="agent", resource="instaslices.inference.redhat.com")
    assert len([each for each in writes if each.subresource == "status"]) <= 1 + 7


async def test_kubelet_may_be_ahead_of_the_watches(scene: Scene) -> None:
    await scene.begin_slicing()
    await scene.pod("web", {"main": {"3g.20gb": 1}})
    scene.pods["web"] = scene.made["web"]  # kubelet knows the pod, the API server shows it unbound still
    await scene.admit("web")
    start = asyncio.create_task(scene.start("web", "main", tries=1))
    await scene.clock.sleep(2.0)
    await scene.promise("web", B)
    await scene.bind("web")
    assert (await start)["NVIDIA_VISIBLE_DEVICES"] == scene.mig_uuid(B)


async def test_a_wait_for_a_slice_ends_before_kubelets_own(scene: Scene) -> None:
    scene.foreign(B)
    await scene.begin_slicing()
    await scene.admit_promised("web", {"main": {"3g.20gb": 1}}, B)
    began = scene.clock.monotonic()
    with pytest.raises(PluginError, match=r"are taken by a 3g.20gb that no record of Tessera explains"):
        await scene.start("web", "main", tries=1)
    assert scene.clock.monotonic() - began < 26.0


def test_without_pod_resources_no_pod_gets_a_slice_that_may_be_anothers(play: Callable[..., None]) -> None:
    async def story(scene: Scene) -> None:
        await scene.begin_slicing()
        await scene.admit_promised("web", {"main": {"3g.20gb": 1}}, B)
        scene.bus.pod_resources = nobody  # type: ignore[method-assign] # kubelet answers calls but not this one
        with pytest.raises(PluginError, match="did not answer, so the pod is unknown"):
            await scene.start("web", "main", tries=1)

    async def nobody() -> list[PodResources]:
        raise ConnectionRefusedError("connection refused")

    play(story)


async def test_two_pods_of_one_profile_may_end_in_either_order(scene: Scene) -> None:
    await scene.begin_slicing()
    for name, place in (("one", A), ("two", B)):
        await scene.admit_promised(name, {"main": {"3g.20gb": 1}}, place)
        await scene.start(name, "main")
    await scene.finish_and_release("one")
    assert scene.places() == [B]
    await scene.admit_promised("three", {"main": {"3g.20gb": 1}}, A)
    assert (await scene.start("three", "main"))["NVIDIA_VISIBLE_DEVICES"] == scene.mig_uuid(A)
    await scene.finish_and_release("three")
    assert scene.places() == [B]


async def test_a_deleted_object_is_made_again_and_living_pods_keep_their_slices(scene: Scene) -> None:
    await scene.begin_slicing()
    await scene.admit_promised("web", {"main": {"3g.20gb": 1}}, B)
    env = await scene.start("web", "main")
    await scene.client.delete(INSTASLICES, "node-1", "instaslice-system")
    await scene.joined()
    await scene.until(scene.foreign_is_told)
    (kept,) = (await scene.object()).status.node_resources.foreign
    assert (kept.profile, kept.start, kept.pod_uid) == ("3g.20gb", 4, scene.uid("web"))
    assert await scene.start("web", "main") == env
    await scene.promise("web", B)
    await scene.reported("web", "created")
    assert (await scene.object()).status.node_resources.foreign == ()
    assert await scene.start("web", "main") == env
    await scene.finish("web")
    await scene.until(scene.is_empty)


@pytest.mark.scene(cards="2xA100-40GB")
async def test_a_pod_that_is_promised_other_slices_after_its_record_was_lost_keeps_its_claimed_ones(
    scene: Scene,
) -> None:
    """A controller that did not see the deletion finds a pod without a record, and foreign slices beside it."""
    await scene.begin_slicing()
    await scene.admit_promised("web", {"main": {"3g.20gb": 1}, "side": {"1g.5gb": 1}}, B, ONES[0])
    env = {name: await scene.start("web", name) for name in ("main", "side")}
    await scene.client.delete(INSTASLICES, "node-1", "instaslice-system")
    await scene.joined()
    await scene.until(scene.foreign_is_told)
    await scene.promise("web", ("3g.20gb", 1, 0), ("1g.5gb", 1, 4))
    await scene.reported("web", "created")
    await scene.clock.sleep(60)
    assert {B, ONES[0]} <= set(scene.places())
    foreign = (await scene.object()).status.node_resources.foreign
    assert [(each.profile, each.start) for each in foreign] == [("1g.5gb", 0), ("3g.20gb", 4)]
    assert {name: await scene.start("web", name) for name in ("main", "side")} == env
    await scene.finish_and_release("web")
    await scene.until(scene.is_empty)


async def test_the_agent_needs_these_rights_and_no_others(scene: Scene) -> None:
    scene.foreign(A)
    await scene.begin_slicing()
    for name in ("web", "sneaky"):
        await scene.pod(name, {"main": {"1g.5gb": 1}})
        await scene.bind(name)
        await scene.admit(name)
    await scene.promise("web", ONES[1])
    with pytest.raises(PluginError):
        await scene.start("sneaky", "main", tries=1)
    await scene.clock.sleep(30.0)
    await scene.release("web")
    await scene.client.merge_patch(NODES, "node-1", {"metadata": {"labels": {"nvidia.com/mig.config": None}}})
    await scene.until(scene.object_is_gone)
    asked = {(each.verb, each.resource, each.subresource) for each in scene.server.audit if each.user == "agent"}
    slices = "instaslices.inference.redhat.com"
    assert asked == {
        ("list", "nodes", ""),
        ("watch", "nodes", ""),
        ("patch", "nodes", ""),
        ("patch", "nodes", "status"),
        ("list", "pods", ""),
        ("watch", "pods", ""),
        ("create", "events", ""),
        ("list", slices, ""),
        ("watch", slices, ""),
        ("create", slices, ""),
        ("delete", slices, ""),
        ("patch", slices, "status"),
    }


async def test_two_pods_that_need_slices_only_to_initialize_do_not_mix(scene: Scene) -> None:
    await scene.begin_slicing()
    for name, place in (("one", ONES[5]), ("two", ONES[2])):
        await scene.pod(name, {"main": {}}, init={"load": {"1g.5gb": 1}})
        await scene.promise(name, place)
        await scene.bind(name)
        await scene.admit(name)
    for name, place in (("two", ONES[2]), ("one", ONES[5]), ("two", ONES[2])):
        assert (await scene.start(name, "load"))["NVIDIA_VISIBLE_DEVICES"] == scene.mig_uuid(place)


@pytest.mark.parametrize("shape", ["app", "init"])
async def test_an_init_container_without_a_promise_gets_no_foreign_slice(scene: Scene, shape: str) -> None:
    """Pod-resources lists no ordinary init container: one whose pod has no promise must not pass for another pod's."""
    await scene.begin_slicing()
    asks = {"load": {"1g.5gb": 1}}
    await scene.pod("victim", asks if shape == "app" else {"main": {}}, init=None if shape == "app" else asks)
    await scene.promise("victim", ONES[5])
    await scene.bind("victim")
    await scene.admit("victim")
    await scene.pod("thief", {"main": {}}, init={"steal": {"1g.5gb": 1}})
    await scene.bind("thief")
    await scene.admit("thief")
    with pytest.raises(PluginError, match="default/thief, which has no promise of a slice"):
        await scene.start("thief", "steal", tries=1)
    if shape == "init":  # nobody can tell the two apart
        with pytest.raises(PluginError, match="default/thief, which has no promise of a slice: delete it"):
            await scene.start("victim", "load", tries=1)
        await scene.remove("thief")
    assert (await scene.start("victim", "load"))["NVIDIA_VISIBLE_DEVICES"] == scene.mig_uuid(ONES[5])


async def test_the_agents_own_watch_may_be_behind_when_an_init_container_starts(scene: Scene) -> None:
    await scene.begin_slicing()
    await scene.pod("thief", {"main": {}}, init={"steal": {"1g.5gb": 1}})
    await scene.pod("victim", {"main": {}}, init={"load": {"1g.5gb": 1}})
    await scene.promise("victim", ONES[5])
    await scene.bind("victim")
    await scene.admit("victim")
    await scene.bind("thief")  # and the agent decides at once, before any watch event
    await scene.admit("thief")
    with pytest.raises(PluginError, match="default/thief, which has no promise of a slice"):
        await scene.start("thief", "steal", tries=1)
