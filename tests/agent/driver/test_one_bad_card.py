"""One card of eight that cannot be read: the other seven stay allocatable, through restarts of the agent."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.agent.conftest import NODE
from tests.agent.driver.conftest import DriverScene
from tests.support.searching import SEARCHING

from tessera.agent.base.runtime import AgentEnvironment
from tessera.agent.base.settings import ConfigMapName
from tessera.agent.run import run_components
from tessera.agent.simulated import SimulatedPrograms
from tessera.agent.wiring import Components
from tessera.api.nodes.card_faults import CARDS_ANNOTATION, decode_cards
from tessera.api.nodes.usage import NodeUsage
from tessera.kube.resources import CONFIGMAPS, NAMESPACES, NODES
from tessera.nvml.errors import NotSupported
from tessera.nvml.interface import ComputeMode, GpuEventKind, GpuUuid, Nvml
from tessera.nvml.simulated.machine_access import InlineNvml
from tessera.nvml.simulated.machine_state import ANY, SimEvent
from tessera.replay.recorder import Recorders

GPU = "nvidia.com/gpu"
CARDS = "8xA100-40GB"
#: nvml.h, ``nvmlReturn_t``, but 0 (success).
CODES = (*range(1, 29), 999)
#: Every call of the interface on a card, and the list of cards.
CALLS = sorted(
    name
    for name, member in vars(Nvml).items()
    if callable(member) and name[0] != "_" and name not in {"close", "latency", "set_known_cards"}
)


class Node:
    """A node of eight cards, of which the fourth is bad."""

    def __init__(self, scene: DriverScene) -> None:
        self.scene = scene
        self.bad = GpuUuid(scene.machine.uuids()[-5:][0])

    def counts(self) -> tuple[int, int]:
        """Capacity and allocatable cards."""
        capacity, allocatable = self.scene.kubelet.ledger.counts()
        return capacity.get(GPU, 0), allocatable.get(GPU, 0)

    async def begin(self) -> None:
        await self.scene.begin(label="", agent=False)
        self.scene.start_life()
        await self.offers(8)

    async def offers(self, count: int) -> None:
        """Returns once so many cards are allocatable."""

        async def offered() -> bool:
            return self.counts()[1] == count

        await self.scene.until(offered, 300.0)

    async def restart(self) -> None:
        """Kills the agent, and starts another one."""
        await self.scene.kill_agent()
        self.scene.start_life()

    async def keeps(self, count: int, seconds: float) -> None:
        """Samples the allocatable cards twice a second."""
        for _ in range(int(seconds * 2)):
            await self.scene.clock.sleep(0.5)
            assert self.counts()[1] == count

    async def status(self) -> Any:
        return await self.scene.client.get(NODES.as_dicts(), NODE)

    async def set_boot(self, boot: str) -> None:
        """Sets the node's boot id."""
        change = {"status": {"nodeInfo": {"bootID": boot}}}
        await self.scene.client.merge_patch(NODES, NODE, change, subresource="status")

    async def health(self) -> dict[str, Any]:
        """The condition ``GpuHealthy``."""
        found: list[dict[str, Any]] = (await self.status())["status"].get("conditions") or []
        return next((each for each in found if each["type"] == "GpuHealthy"), {})

    async def tells(self, text: str) -> None:
        async def told() -> bool:
            return text in (await self.health()).get("message", "")

        await self.scene.until(told, 300.0)

    async def annotation(self) -> tuple[int, list[tuple[int, str, bool]]]:
        """Number of cards, and index, rule and loss of each fault, in ``tessera.dev/cards``."""
        cards = decode_cards((await self.status())["metadata"]["annotations"][CARDS_ANNOTATION])
        return cards.count, [(each.index, each.rule, each.lost) for each in (*cards.faults, *cards.others)]


Story = Callable[[Node], Awaitable[None]]


def played(play: Callable[..., None], story: Story) -> None:
    async def whole(scene: DriverScene) -> None:
        node = Node(scene)
        await node.begin()
        await story(node)

    play(whole, CARDS, mig=False)


class Form(NamedTuple):
    """A form in which three cards are offered: layout, sharing, resource, devices of each card."""

    label: str
    sharing: str
    resource: str
    each: int


FORMS = {
    "whole": Form("", "", GPU, 1),
    "cut": Form("all-1g.5gb", "", "nvidia.com/mig-1g.5gb", 7),
    "on demand": Form("dynamic", "", "nvidia.com/mig-1g.5gb", 7),
    "time slices": Form("", "{timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}", GPU, 4),
    "MPS": Form("", "{mps: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}", GPU, 4),
}


#: ``make test`` plays one of so many errors in each form, by turns, so that each call and each error is played;
#: ``make soak`` plays all of them.
TURN = 1 if SEARCHING else 3 * len(FORMS) - 1


def errors_in(form: Form, codes: Sequence[int] = CODES) -> Sequence[tuple[str, int]]:
    """The calls and their errors that are played in a form."""
    at = list(FORMS.values()).index(form)
    return [(call, code) for call in CALLS for code in codes][3 * at % TURN :: TURN]


async def begin_in_form(scene: DriverScene, form: Form) -> None:
    await scene.begin(label=form.label, agent=False)
    if form.sharing:
        await set_profile(scene, form.sharing)
    start(scene)
    await scene.until(lambda: scene.allocatable(form.resource, 3 * form.each))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_an_error_of_any_call_on_one_card_takes_no_other(play: Callable[..., None], form: Form) -> None:
    """An event has the card read and probed again, and the exporter samples it."""

    async def whole(scene: DriverScene) -> None:
        bad = scene.machine.uuids()[2]
        await begin_in_form(scene, form)
        for call, code in errors_in(form):
            scene.machine.fail(call, code, gpu=bad, times=None)
            scene.machine.report(SimEvent(GpuEventKind.SINGLE_BIT_ECC, bad))
            await scene.clock.sleep(11.0)
            assert scene.agent is not None
            assert not scene.agent.done(), (call, code)
            assert scene.kubelet.ledger.counts()[1][form.resource] >= 2 * form.each, (call, code)
            scene.machine.heal()

    play(whole, "3xA100-40GB", mig=bool(form.label))


def end_daemons(scene: DriverScene) -> None:
    """The MPS daemons have ended, and the cards are in the default mode, as after a driver was loaded again."""
    with scene.machine.change() as state:
        state.mps_daemons.clear()
        for card in state.cards:
            card.compute_mode = ComputeMode.DEFAULT


STARTS = [pytest.param(form, True, id=name) for name, form in FORMS.items()]


@pytest.mark.parametrize(("form", "daemons"), [*STARTS, pytest.param(FORMS["MPS"], False, id="MPS daemons end too")])
def test_an_agent_that_starts_beside_an_error_of_any_call_offers_the_other_cards(
    play: Callable[..., None], form: Form, daemons: bool
) -> None:
    async def whole(scene: DriverScene) -> None:
        bad = scene.machine.uuids()[2]
        await begin_in_form(scene, form)
        for call, code in errors_in(form, (3, 4, 9, 15, 999)):
            await scene.kill_agent()
            if not daemons:
                end_daemons(scene)
            scene.machine.fail(call, code, gpu=bad, times=None)
            start(scene)
            await scene.clock.sleep(15.0)
            for _ in range(20):
                await scene.clock.sleep(0.5)
                assert scene.kubelet.ledger.counts()[1][form.resource] >= 2 * form.each, (call, code)
            scene.machine.heal()

    play(whole, "3xA100-40GB", mig=bool(form.label))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_other_cards_are_offered_in_every_form_beside_a_card_that_cannot_be_read(
    play: Callable[..., None], form: Form
) -> None:
    async def whole(scene: DriverScene) -> None:
        await begin_in_form(scene, form)
        scene.machine.fail(ANY, 8, gpu=scene.machine.uuids()[2], times=None)
        for _ in range(2):
            await scene.until(lambda: scene.allocatable(form.resource, 2 * form.each), 300.0)
            for _ in range(120):
                await scene.clock.sleep(0.5)
                assert scene.kubelet.ledger.counts()[1][form.resource] == 2 * form.each
            await scene.kill_agent()
            end_daemons(scene)
            start(scene)
        scene.machine.heal()
        await scene.until(lambda: scene.allocatable(form.resource, 3 * form.each), 300.0)

    play(whole, "3xA100-40GB", mig=bool(form.label))


#: Those that stay until the node is rebooted.
LASTING = (6, 15, 28)


@pytest.mark.parametrize("code", CODES if SEARCHING else [1, 8, 999, *LASTING])
def test_seven_cards_stay_through_restarts_with_any_error_of_the_eighth(play: Callable[..., None], code: int) -> None:
    async def story(node: Node) -> None:
        node.scene.machine.fail(ANY, code, gpu=node.bad, times=None)
        await node.offers(7)
        await node.tells(f"GPU 3 ({node.bad})")
        for _ in range(2):
            await node.restart()
            await node.offers(7)
            await node.keeps(7, 45)
            await node.tells(f"GPU 3 ({node.bad})")
            assert node.counts() == (8, 7)
            count, faults = await node.annotation()
            assert count == 8
            assert {index for index, _, _ in faults} == {3}
        node.scene.machine.heal()
        if code not in LASTING:
            await node.offers(8)
            await node.tells("nothing is wrong with the node's 8 cards")

    played(play, story)


@pytest.mark.parametrize("with_xid", [True, False])
def test_a_lost_card_is_named_lost_until_the_reboot_and_seven_stay(play: Callable[..., None], with_xid: bool) -> None:
    async def story(node: Node) -> None:
        node.scene.machine.lose(node.bad)
        if not with_xid:
            with node.scene.machine.change() as state:
                state.events.clear()
        await node.offers(7)
        xid = " (XID 79)" if with_xid else ""
        await node.tells(f"the card is lost: it fell off the bus{xid}; not allocated until the node is rebooted")
        for _ in range(2):
            await node.restart()
            await node.offers(7)
            await node.keeps(7, 120)
            condition = await node.health()
            assert condition["status"] == "False"
            assert f"GPU 3 ({node.bad})" in condition["message"]
            count, faults = await node.annotation()
            assert count == 8
            assert (3, "probe", True) in faults

    played(play, story)


@pytest.mark.scene(CARDS, mig=False)
async def test_a_card_that_nobody_ever_read_is_counted_and_named_by_its_index(scene: DriverScene) -> None:
    node = Node(scene)
    scene.machine.fail(ANY, 999, gpu=node.bad, times=None)
    await scene.begin(label="", agent=False)
    scene.start_life()
    await node.offers(7)
    await node.tells("GPU 3 (GPU-unread-3): the card cannot be read")
    assert await node.annotation() == (8, [(3, "unreadable", False)])
    labels = (await node.status())["metadata"]["labels"]
    assert labels["nvidia.com/gpu.count"] == "7"
    assert not [name for name in labels if name.endswith("/")]
    scene.machine.heal()
    await node.offers(8)
    await node.tells("nothing is wrong with the node's 8 cards")
    assert await node.annotation() == (8, [])


def test_a_fault_that_an_earlier_version_kept_names_the_card_that_does_not_answer(play: Callable[..., None]) -> None:
    """That version kept no file of cards."""

    async def story(node: Node) -> None:
        node.scene.machine.lose(node.bad)
        await node.tells("the card is lost")
        await node.scene.kill_agent()
        (node.scene.options.state_dir / "known-cards.json").unlink()
        node.scene.start_life()
        await node.offers(7)
        await node.keeps(7, 60)
        assert f"GPU 3 ({node.bad})" in (await node.health())["message"]
        assert (await node.annotation())[0] == 8

    played(play, story)


def test_cards_of_an_earlier_boot_are_not_missed(play: Callable[..., None]) -> None:
    async def story(node: Node) -> None:
        await node.scene.kill_agent()
        with node.scene.machine.change() as state:
            del state.cards[7]
        await node.set_boot("boot-2")
        node.scene.start_life()
        await node.offers(7)
        await node.tells("nothing is wrong with the node's 7 cards")
        assert await node.annotation() == (7, [])

    played(play, story)


@pytest.mark.parametrize("boots", [True, False])
def test_cards_of_the_file_are_used_only_once_the_boot_is_known(play: Callable[..., None], boots: bool) -> None:
    """Removed during a boot a card is not missed; lost in the same boot it is told."""

    async def story(node: Node) -> None:
        boot = (await node.status())["status"]["nodeInfo"]["bootID"]
        await node.scene.kill_agent()
        with node.scene.machine.change() as state:
            del state.cards[7]
        await node.set_boot("")
        node.scene.start_life()
        await node.offers(7)
        await node.scene.clock.sleep(60)
        assert await node.annotation() == (7, [])
        await node.restart()
        await node.scene.clock.sleep(60)
        assert await node.annotation() == (7, [])
        await node.set_boot("boot-2" if boots else boot)
        await node.tells("nothing is wrong with the node's 7 cards" if boots else "the card is lost")
        assert (await node.annotation())[0] == (7 if boots else 8)

    played(play, story)


@pytest.mark.parametrize("mig", [True, False])
def test_slices_and_devices_of_other_cards_go_on_beside_a_card_that_cannot_be_read(
    play: Callable[..., None], mig: bool
) -> None:
    """On demand: the bad card gives no slice, the others all of theirs."""

    async def whole(scene: DriverScene) -> None:
        bad = scene.machine.uuids()[1]
        scene.machine.fail(ANY, 999, gpu=bad, times=None)
        await scene.begin(label="dynamic" if mig else "", agent=False)
        scene.start_life()
        resource, count = ("nvidia.com/mig-3g.20gb", 4) if mig else (GPU, 2)
        await scene.until(lambda: scene.allocatable(resource, count))
        scene.machine.heal()
        await scene.until(lambda: scene.allocatable(resource, count // 2 * 3), 300.0)

    play(whole, "3xA100-40GB", mig=mig)


@pytest.mark.parametrize("call", ["gi_profiles", "instances"])
@pytest.mark.scene("2xA100-40GB", mig=True)
async def test_a_card_with_mig_whose_profiles_or_instances_cannot_be_read_is_in_the_condition(
    scene: DriverScene, call: str
) -> None:
    node = Node(scene)
    bad = scene.machine.uuids()[1]
    await scene.begin(label="all-1g.5gb", agent=False)
    scene.start_life()
    resource = "nvidia.com/mig-1g.5gb"
    await scene.until(lambda: scene.allocatable(resource, 14))
    scene.machine.fail(call, NotSupported, gpu=bad, times=None)
    scene.machine.report(SimEvent(GpuEventKind.SINGLE_BIT_ECC, bad))
    await node.tells(f"GPU 1 ({bad}): the card cannot be read: MIG is on, and its profiles or instances cannot be")
    await scene.until(lambda: scene.allocatable(resource, 7))
    scene.machine.heal()
    await scene.until(lambda: scene.allocatable(resource, 14))


async def set_profile(scene: DriverScene, sharing: str) -> None:
    """Has the node's cards shared."""
    name = ConfigMapName("gpu", "profiles")
    scene.options = msgspec.structs.replace(scene.options, sharing_config=name)
    await scene.client.create(NAMESPACES, {"metadata": {"name": name.namespace}})
    data = {"default": f"{{version: v1, sharing: {sharing}}}"}
    await scene.client.create(CONFIGMAPS, {"metadata": {"name": name.name}, "data": data}, name.namespace)


def start(scene: DriverScene) -> Components:
    """Starts an agent whose exporter runs; nothing listens on the port."""
    environment = AgentEnvironment(
        options=msgspec.structs.replace(scene.options, http_port=1),
        client=scene.user("agent"),
        clock=scene.clock,
        rng=random.Random(1),
        host=None,
        recorders=Recorders(),
    )
    hardware = InlineNvml(scene.machine, scene.clock)
    programs = SimulatedPrograms(scene.machine, scene.clock)
    components = Components(environment, hardware, scene.seam, programs=programs)
    scene.agent = asyncio.create_task(run_components(components))
    return components


@pytest.mark.parametrize("lost", [True, False])
@pytest.mark.scene(CARDS, mig=False)
async def test_metrics_and_page_name_the_card_after_a_restart(scene: DriverScene, lost: bool) -> None:
    node = Node(scene)
    await scene.begin(label="", agent=False)
    start(scene)
    await node.offers(8)
    if lost:
        scene.machine.lose(node.bad)
    else:
        scene.machine.fail(ANY, 8, gpu=node.bad, times=None)
    await node.offers(7)
    for _ in range(2):
        await scene.kill_agent()
        components = start(scene)
        await node.offers(7)
        await scene.clock.sleep(60)
        state = "lost" if lost else "withheld"
        lines = components.metrics_text().decode().splitlines()
        shown = [each for each in lines if each.startswith("tessera_gpu_health_state") and node.bad in each]
        assert any(f'state="{state}"' in each and each.endswith(" 1") for each in shown), shown
        usage = msgspec.json.decode(components.exporter.usage_json(), type=NodeUsage)
        card = next(each for each in usage.cards if each.uuid == node.bad)
        assert card.index == 3
        assert card.health.state == state
        assert len(usage.cards) == 8


@pytest.mark.scene(CARDS, mig=False)
async def test_xid_79_of_a_lost_card_is_counted_in_its_own_series_and_takes_no_other_card(scene: DriverScene) -> None:
    node = Node(scene)
    await scene.begin(label="", agent=False)
    components = start(scene)
    await node.offers(8)
    scene.machine.lose(node.bad)
    await node.offers(7)
    await node.keeps(7, 60)
    text = components.metrics_text().decode()
    counted = [each for each in text.splitlines() if each.startswith("tessera_gpu_events_total")]
    assert len(counted) == 1
    assert node.bad in counted[0]
    assert counted[0].endswith(" 1.0")
