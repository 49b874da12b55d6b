"""An agent over drivers that come late, go, and are replaced by others."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.agent.conftest import NODE
from tests.agent.driver.conftest import VERSION

from tessera.agent.base.settings import ValidationMode
from tessera.agent.driver.gate import HOST_RECHECK
from tessera.api.nodes.node_marks import CUDA_READY, DRIVER_READY, PAUSE_LABEL, PLUGIN_READY, TOOLKIT_READY
from tessera.kube.resources import EVENTS, NODES
from tessera.nvml.errors import UnknownNvmlError

if TYPE_CHECKING:
    from tests.agent.driver.conftest import DriverScene

SLICE = ("3g.20gb", 0, 4)


async def hold_a_slice(scene: DriverScene) -> None:
    await scene.joined()
    await scene.pod("web", {"main": {"3g.20gb": 1}})
    await scene.promise("web", SLICE)
    await scene.bind("web")
    await scene.until(functools.partial(scene.admitted, "web"))
    await scene.start("web", "main")


async def told(scene: DriverScene) -> dict[str, str]:
    """Reasons of all events so far, by name. Names are random: their order is none of time."""
    found = (await scene.client.list(EVENTS.as_dicts())).items
    return {each["metadata"]["name"]: each["reason"] for each in found}


@pytest.mark.scene(driver=None)
async def test_a_container_s_driver_is_opened_validated_and_then_advertised(scene: DriverScene) -> None:
    await scene.begin_life()
    await scene.tells("WaitingForDriver")
    assert not scene.markers.present(DRIVER_READY)
    scene.load()
    await scene.tells("WaitingForToolkit")
    assert scene.markers.present(DRIVER_READY)
    scene.markers.write(TOOLKIT_READY)
    await scene.tells("WaitingForValidation")
    assert scene.capacity_now == 0
    scene.markers.write(CUDA_READY)
    await scene.tells("Advertised")
    assert scene.allocatable_now > 0
    assert await scene.condition() == ("True", "Advertised")
    assert scene.markers.present(PLUGIN_READY)
    assert all(validated for devices, validated in scene.published if devices)


@pytest.mark.scene(driver=None)
async def test_nothing_is_waited_for_by_the_clock(scene: DriverScene) -> None:
    await scene.begin_life()
    await scene.tells("WaitingForDriver")
    await scene.clock.sleep(1234.5)
    began = scene.clock.monotonic()
    scene.load()
    scene.validate()
    await scene.counts(True)
    assert scene.clock.monotonic() - began < 0.1


@pytest.mark.scene(driver=None)
async def test_a_node_is_ready_once_its_status_shows_the_cards(scene: DriverScene) -> None:
    scene.status_delay = 10.0
    await scene.begin_life()
    scene.load()
    scene.validate()
    await scene.counts(True)
    await scene.tells("WaitingForKubelet")
    assert not scene.markers.present(PLUGIN_READY)
    began = scene.clock.monotonic()
    await scene.clock.sleep(9.0)
    assert await scene.condition() == ("False", "WaitingForKubelet")
    await scene.tells("Advertised")
    assert 9.0 <= scene.clock.monotonic() - began < 10.1
    node = await scene.client.get(NODES, NODE)
    shown = {name: node.status.allocatable[name] for name in scene.kubelet.ledger.counts()[1]}
    assert shown == {name: str(count) for name, count in scene.kubelet.ledger.counts()[1].items()}
    assert scene.allocatable_now > 0
    assert scene.markers.present(PLUGIN_READY)


async def test_a_card_that_gets_unhealthy_later_leaves_the_node_ready(scene: DriverScene) -> None:
    await scene.begin_life()
    await scene.tells("Advertised")
    await scene.clock.sleep(5.0)
    capacity, allocatable = scene.kubelet.ledger.counts()
    before = scene.node_writes()
    for shown in (dict.fromkeys(allocatable, 0), allocatable):
        await scene.publish(capacity, shown)
        await scene.clock.sleep(60.0)
        assert await scene.condition() == ("True", "Advertised")
    assert scene.node_writes() == before


async def test_a_restarted_agent_leaves_the_node_ready_until_kubelet_counts_again(scene: DriverScene) -> None:
    await scene.begin_life()
    await scene.tells("Advertised")
    await scene.clock.sleep(1.0)
    before = await told(scene)
    assert "Advertised" in before.values()
    await scene.kill_agent()
    scene.status_delay = 10.0
    scene.start_life()
    await scene.clock.sleep(0.5)
    assert await scene.condition() == ("True", "Advertised")
    await scene.clock.sleep(60.0)
    assert await scene.condition() == ("True", "Advertised")
    since = [reason for name, reason in (await told(scene)).items() if name not in before]
    assert not {"WaitingForKubelet", "WaitingForDriver"} & set(since)


@pytest.mark.scene(folders=False)
async def test_the_host_s_driver_is_advertised_without_a_validation(scene: DriverScene) -> None:
    await scene.begin_life()
    await scene.tells("Advertised")
    assert scene.markers.folder is not None
    assert not scene.markers.folder.exists()
    scene.make_folder()
    await scene.clock.sleep(0.01)
    assert scene.markers.present(DRIVER_READY)
    assert "IS_HOST_DRIVER=true\nNVIDIA_DRIVER_ROOT=/\n" in (scene.markers.folder / DRIVER_READY).read_text()


@pytest.mark.scene(folders=False)
async def test_a_driver_that_the_host_loads_late_is_awaited_by_the_same_process(scene: DriverScene) -> None:
    async def story(scene: DriverScene) -> None:
        await scene.begin_life()
        await scene.tells("WaitingForDriver")
        await scene.clock.sleep(10 * HOST_RECHECK)
        scene.machine.reboot()
        await scene.counts(True)

    scene.machine.unload_driver()
    await story(scene)


async def test_without_a_folder_of_markers_no_driver_container_is_waited_for(scene: DriverScene) -> None:
    scene.options = msgspec.structs.replace(scene.options, markers_dir=None)
    await scene.begin(agent=False)
    await scene.label("tessera.dev/driver-set", "0123456789")
    scene.start_life()
    await scene.tells("Advertised")
    assert scene.allocatable_now > 0


async def test_a_node_that_is_to_get_a_container_s_driver_takes_no_other(scene: DriverScene) -> None:
    await scene.begin(agent=False)
    await scene.label("tessera.dev/driver-set", "0123456789")
    scene.start_life()
    await scene.tells("WaitingForDriver")
    await scene.clock.sleep(600)
    assert scene.capacity_now == 0


async def test_a_validation_can_be_demanded_of_the_host_s_driver(scene: DriverScene) -> None:
    await scene.begin_life(ValidationMode.ALWAYS)
    await scene.tells("WaitingForToolkit")
    scene.validate()
    await scene.tells("Advertised")


@pytest.mark.scene(driver=None)
async def test_a_validation_can_be_waived(scene: DriverScene) -> None:
    await scene.begin_life(ValidationMode.NEVER)
    scene.load()
    await scene.tells("Advertised")
    assert not scene.markers.present(CUDA_READY)


@pytest.mark.scene(driver=None)
async def test_a_pause_empties_the_node_at_once_and_closes_nvml(scene: DriverScene) -> None:
    await scene.begin_life()
    scene.load()
    scene.validate()
    await scene.tells("Advertised")
    await scene.pause()
    began = scene.clock.monotonic()
    await scene.tells("PausedForDriver")
    assert scene.clock.monotonic() - began < 1.0
    assert scene.capacity_now == 0
    assert not scene.markers.present(DRIVER_READY)
    assert not scene.markers.present(PLUGIN_READY)
    assert await scene.condition() == ("False", "PausedForDriver")
    scene.machine.unload_driver()  # refused while anybody has NVML open


@pytest.mark.scene(driver=None)
async def test_after_a_pause_the_new_driver_has_to_be_validated_too(scene: DriverScene) -> None:
    await scene.begin_life()
    scene.load()
    scene.validate()
    await scene.tells("Advertised")
    await scene.pause()
    await scene.tells("PausedForDriver")
    scene.stop_container()
    scene.machine.unload_driver()
    scene.load()
    await scene.unpause()
    await scene.tells("WaitingForValidation")
    await scene.clock.sleep(60)
    assert scene.capacity_now == 0
    scene.validate()
    await scene.tells("Advertised")


@pytest.mark.scene(driver=None)
async def test_an_agent_that_starts_during_a_pause_opens_nothing(scene: DriverScene) -> None:
    await scene.begin(agent=False)
    await scene.pause()
    scene.load()
    scene.validate()
    scene.start_life()
    await scene.tells("PausedForDriver")
    scene.machine.unload_driver()
    assert scene.published == []


@pytest.mark.scene(driver=None)
async def test_a_driver_that_goes_while_pods_hold_slices_is_released_and_found_again(scene: DriverScene) -> None:
    await scene.begin_life()
    scene.load()
    scene.validate()
    await hold_a_slice(scene)
    seen = await scene.start("web", "main")
    scene.stop_container()
    await scene.counts(False)
    await scene.tells("WaitingForDriver")
    assert scene.places() == [SLICE]
    assert scene.devices("web", "main")
    scene.load()
    scene.validate()
    await scene.tells("Advertised")
    assert scene.places() == [SLICE]
    assert await scene.start("web", "main") == seen
    await scene.finish_and_release("web")
    assert scene.places() == []


@pytest.mark.scene(driver=None)
async def test_slices_that_went_with_their_driver_are_made_again_for_pods_that_start_again(scene: DriverScene) -> None:
    await scene.begin_life()
    scene.load()
    scene.validate()
    await hold_a_slice(scene)
    await scene.pause()
    await scene.tells("PausedForDriver")
    scene.stop_container()
    scene.machine.unload_driver()
    scene.load()
    assert scene.places() == []
    scene.validate()
    await scene.unpause()
    await scene.tells("Advertised")
    await scene.start("web", "main")
    assert scene.places() == [SLICE]


@pytest.mark.scene(driver=None)
async def test_a_driver_that_vanishes_without_a_word_is_noticed_by_nvml(scene: DriverScene) -> None:
    await scene.begin_life()
    scene.load()
    scene.validate()
    await scene.tells("Advertised")
    scene.machine.reboot()  # the kernel module is gone, the marker is not
    await scene.tells("NvmlFailed")
    assert scene.capacity_now == 0
    assert not scene.markers.present(DRIVER_READY)
    scene.machine.load_driver(VERSION)
    await scene.tells("Advertised")


@pytest.mark.scene(driver=None)
async def test_nvml_that_fails_is_opened_again_and_reported(scene: DriverScene) -> None:
    await scene.begin(agent=False)
    scene.markers.write(".driver-ctr-ready")
    scene.machine.load_driver(VERSION)
    scene.machine.fail("devices", UnknownNvmlError, times=1)
    scene.validate()
    scene.start_life()
    await scene.tells("Advertised")


@pytest.mark.scene(driver=None)
async def test_changes_are_events_of_the_node(scene: DriverScene) -> None:
    await scene.begin_life()
    await scene.tells("WaitingForDriver")
    scene.load()
    scene.validate()
    await scene.tells("Advertised")
    await scene.clock.sleep(1.0)
    assert {"WaitingForDriver", "Advertised"} <= set((await told(scene)).values())


async def test_other_labels_do_not_pause(scene: DriverScene) -> None:
    await scene.begin_life()
    await scene.tells("Advertised")
    await scene.label(PAUSE_LABEL, "false")
    await scene.label("nvidia.com/gpu.deploy.dcgm", "paused-for-driver-upgrade")
    await scene.clock.sleep(60)
    assert await scene.condition() == ("True", "Advertised")
