"""The exporter within a whole agent: a slice is in the metrics with its pod as long as it exists."""

import asyncio
import random
from collections.abc import Callable

import msgspec
import pytest
from tests.agent.conftest import NODE, Scene
from tests.agent.monitoring.conftest import Rows

from tessera.agent.base.runtime import AgentEnvironment
from tessera.agent.inventory.device_state import DeviceScope
from tessera.agent.run import run_components
from tessera.agent.simulated import SimulatedPrograms
from tessera.agent.wiring import Components
from tessera.api.nodes.usage import NodeUsage
from tessera.cli.agent import node_satellites
from tessera.nvml.errors import NoPermission, NotSupported, NvmlError, UnknownNvmlError
from tessera.nvml.measurements import Quantity
from tessera.nvml.simulated.machine_access import InlineNvml
from tessera.observe.usage_rows import card_rows
from tessera.replay.recorder import Recorders
from tessera_lab.activity.card_faults import FAULTS, mend_card

Read = Callable[[bytes, str], Rows]


def start(scene: Scene) -> Components:
    """Starts an agent whose exporter runs; nothing listens on the port."""
    options = msgspec.structs.replace(scene.options, http_port=1)
    environment = AgentEnvironment(
        options=options,
        client=scene.user("agent"),
        clock=scene.clock,
        rng=random.Random(1),
        host=None,
        recorders=Recorders(),
    )
    hardware = InlineNvml(scene.machine, scene.clock)
    programs = SimulatedPrograms(scene.machine, scene.clock)
    components = Components(environment, hardware, scene.seam, programs=programs, satellites=node_satellites(options))
    scene.agent = asyncio.create_task(run_components(components))
    return components


async def run_web(scene: Scene) -> None:
    """Starts a pod with a slice of half a card, and lets the exporter read it."""
    await scene.pod("web", {"main": {"3g.20gb": 1}})
    await scene.promise("web", ("3g.20gb", 0, 4))
    await scene.reported("web", "created")
    await scene.bind("web")
    await scene.admit("web")
    await scene.start("web", "main")
    await scene.clock.sleep(2.0)


def holders(rows: Read, text: bytes) -> list[tuple[str, str, str, str, float]]:
    return [
        (labels["namespace"], labels["pod"], labels["container"], labels["kind"], value)
        for labels, value in rows(text, "tessera_pod_gpu_share_ratio")
    ]


async def test_a_slice_is_shown_with_its_pod_until_it_is_destroyed(scene: Scene, rows: Read) -> None:
    await scene.begin(agent=False)
    exporter = start(scene).exporter
    await scene.joined()
    await run_web(scene)
    assert holders(rows, exporter.text) == [("default", "web", "main", "slice", 0.5)]
    used = [labels for labels, _ in rows(exporter.text, "DCGM_FI_DEV_FB_USED") if "GPU_I_ID" in labels]
    assert [(each["pod"], each["GPU_I_PROFILE"], each["Hostname"]) for each in used] == [("web", "3g.20gb", NODE)]
    reasons = {labels["metric"]: labels["reason"] for labels, _ in rows(exporter.text, "tessera_metric_unavailable")}
    assert reasons["engine_active"] in {"no_gpm", "mig_mode"}
    await scene.finish_and_release("web")
    await scene.clock.sleep(2.0)
    assert holders(rows, exporter.text) == []
    assert not [labels for labels, _ in rows(exporter.text, "DCGM_FI_DEV_FB_USED") if "GPU_I_ID" in labels]


@pytest.mark.scene(cards="2xA100-40GB")
async def test_a_lost_card_is_missing_and_the_others_stay(scene: Scene, rows: Read) -> None:
    await scene.begin(agent=False)
    components = start(scene)
    exporter = components.exporter
    await scene.joined()
    await scene.clock.sleep(2.0)
    assert rows(components.metrics_text(), "tessera_slices")  # beside the metrics of the agent's own work
    assert rows(components.metrics_text(), "tessera_gpu_info")
    assert len(rows(exporter.text, "tessera_gpu_power_watts")) == 2
    scene.machine.lose(scene.machine.uuids()[0])
    await scene.clock.sleep(15.0)
    left = [labels["gpu"] for labels, _ in rows(exporter.text, "tessera_gpu_power_watts")]
    assert left == [scene.machine.uuids()[1]]
    states = [labels["state"] for labels, _ in rows(exporter.text, "tessera_gpu_health_state")]
    assert sorted(states) == ["healthy", "lost"]
    page = msgspec.json.decode(exporter.usage_json(), type=NodeUsage)
    assert [(card.health.state, bool(card.values)) for card in page.cards] == [("lost", False), ("healthy", True)]
    await scene.clock.sleep(3.0)
    later = msgspec.json.decode(exporter.usage_json(), type=NodeUsage)
    assert later.taken > page.taken or later.age == pytest.approx(page.age + 3.0, abs=0.2)


@pytest.mark.scene(cards="2xA100-40GB")
async def test_metric_page_and_condition_say_the_same_of_a_hot_card(scene: Scene, rows: Read) -> None:
    await scene.begin(agent=False)
    components = start(scene)
    await scene.joined()
    card = scene.machine.uuids()[0]

    def told() -> tuple[str, str, bool]:
        (state,) = [
            labels["state"]
            for labels, _ in rows(components.exporter.text, "tessera_gpu_health_state")
            if labels["gpu"] == card
        ]
        page = msgspec.json.decode(components.exporter.usage_json(), type=NodeUsage)
        condition = components.health.condition()
        return state, page.cards[0].health.state, "too hot" in condition.message and condition.status == "True"

    scene.machine.set_measured(card, Quantity.THROTTLE_REASONS, 0x48)
    await scene.clock.sleep(12.0)
    assert told() == ("degraded", "degraded", True)
    assert components.health.state_machine.health_of(DeviceScope(card)).healthy, "the card stays allocated"
    # A card at its limit is not told anew each time.
    for bits in (0, 0x48, 0, 0x48):
        scene.machine.set_measured(card, Quantity.THROTTLE_REASONS, bits)
        await scene.clock.sleep(12.0)
        assert told() == ("degraded", "degraded", True)
    scene.machine.set_measured(card, Quantity.THROTTLE_REASONS, 0)
    await scene.clock.sleep(60.0)
    assert told() == ("healthy", "healthy", False)


@pytest.mark.parametrize(
    ("fault", "state", "words"),
    [
        ("sram", "replace", "exceed NVIDIA's threshold"),
        ("fabric", "degraded", "its bandwidth is degraded, a route is unhealthy"),
        ("nvlink-errors", "degraded", "packets are sent again, links are trained again"),
    ],
)
@pytest.mark.scene(cards="2xH100-80GB", mig=False)
async def test_what_a_card_measures_to_be_wrong_is_told_until_it_is_mended(
    scene: Scene, rows: Read, fault: str, state: str, words: str
) -> None:
    await scene.begin(label="all-disabled", agent=False)
    components = start(scene)
    await scene.clock.sleep(5.0)
    card = scene.machine.uuids()[0]
    with scene.machine.change() as machine:
        FAULTS[fault].apply(machine, machine.cards[0])
    await scene.clock.sleep(120.0)
    page = msgspec.json.decode(components.exporter.usage_json(), type=NodeUsage)
    assert [each.health.state for each in page.cards] == [state, "healthy"]
    assert ("replace the card" in page.cards[0].health.next) is (state == "replace")
    assert words in page.cards[0].health.evidence[0].text
    assert words in components.health.condition().message
    assert ({"gpu": card, "state": state}, 1) in rows(components.exporter.text, "tessera_gpu_health_state")
    with scene.machine.change() as machine:
        mend_card(machine, machine.cards[0])
    await scene.clock.sleep(120.0)
    assert components.health.condition().reason == "CardsHealthy"


@pytest.mark.scene(cards="2xA100-40GB")
async def test_pods_on_a_lost_card_stay_its_holders(scene: Scene, rows: Read) -> None:
    await scene.begin(agent=False)
    exporter = start(scene).exporter
    await scene.joined()
    await run_web(scene)
    card = scene.machine.uuids()[0]
    scene.machine.lose(card)
    await scene.clock.sleep(15.0)
    page = msgspec.json.decode(exporter.usage_json(), type=NodeUsage)
    lost = page.cards[0]
    assert (lost.health.state, [each.pod for each in lost.health.holders]) == ("lost", ["web"])
    assert "nobody" not in lost.health.next
    assert [(each.start, each.size, each.values) for each in lost.devices] == [(4, 4, {})]
    (lease,) = page.leases
    assert (lease.device, lease.share, lease.memory) == (lost.devices[0].uuid, 0.5, None)
    assert (lease.state, lease.evidence) == ("unknown", "its card does not answer")
    (row,) = card_rows([page])[:1]
    assert (row.held, row.pods) == (0.5, 1)
    assert ({"gpu": card}, 79) in rows(exporter.text, "tessera_gpu_last_xid")
    await scene.finish("web")
    await scene.clock.sleep(15.0)
    page = msgspec.json.decode(exporter.usage_json(), type=NodeUsage)
    assert page.cards[0].health.next.endswith("; nobody holds it")
    assert [(each.pod, each.gpu, each.share) for each in page.ended] == [("web", card, 0.5)]


@pytest.mark.parametrize("operation", ["instances", "measure_instance", "memory", "processes", "process_activity"])
@pytest.mark.parametrize("error", [UnknownNvmlError, NotSupported, NoPermission])
@pytest.mark.scene(cards="2xA100-40GB")
async def test_a_refused_call_drops_neither_card_nor_holder(
    scene: Scene, rows: Read, operation: str, error: type[NvmlError]
) -> None:
    await scene.begin(agent=False)
    components = start(scene)
    await scene.joined()
    await run_web(scene)
    await components.inventory_reader.refresh()
    scene.machine.fail(operation, error, times=None, gpu=scene.machine.uuids()[0])
    await scene.clock.sleep(30.0)
    text = components.exporter.text
    assert holders(rows, text) == [("default", "web", "main", "slice", 0.5)]
    assert len(rows(text, "tessera_gpu_power_watts")) == 2
    page = msgspec.json.decode(components.exporter.usage_json(), type=NodeUsage)
    assert [bool(card.values) for card in page.cards] == [True, True]
    absent = {labels["metric"] for labels, _ in rows(text, "tessera_metric_unavailable")}
    if operation == "memory":
        assert "memory_used" in absent
    if operation == "processes":
        assert "processes" in absent
        assert page.leases[0].state == "unknown"
        assert "its processes cannot be read" in page.leases[0].evidence
