"""Which starts of containers are tested, and what a tenant cannot do with tests; with a runner that counts."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.agent.health.conftest import Agent, Node, play
from tests.support.agent_runtime import make_parts

from tessera.agent.health.fault import FAILED_POD_PREFLIGHT
from tessera.agent.health.pod_preflights import PASS_LIFE, PodPreflights, has_started
from tessera.agent.health.policy import RecoveryAction
from tessera.agent.inventory.device_state import CheckedDevice, DeviceUsers
from tessera.agent.inventory.gpu_inventory import InventoryReader
from tessera.api.names import POD_PREFLIGHT, PodUid
from tessera.api.nodes.preflights import CardPreflight
from tessera.api.nodes.repairs import Repairs
from tessera.kube.resources import Pod
from tessera.kubelet.interfaces import ContainerDevices, ContainerResources, PluginError, PodResources
from tessera.nvml.interface import GpuInfo

GPU = "nvidia.com/gpu"


class Starts:
    """The check of one agent, the pods of its node, and what kubelet lists."""

    def __init__(self, node: Node, agent: Agent) -> None:
        self.node, self.agent = node, agent
        self.pods: dict[str, Pod] = {}
        self.held: dict[str, tuple[str, ...]] = {}
        self.error, self.skipped, self.seconds = "", "", 0.0
        self.tested: list[str] = []
        self.most = self.running = 0
        self.told: list[tuple[str, str]] = []
        self.inventory = InventoryReader(agent.hardware, agent.changes)
        self.check = PodPreflights(
            make_parts(mirror=self, object_events=self, clock=node.clock),
            self,
            health=agent.watch,
            inventory=self.inventory,
            users=DeviceUsers(self, self),  # type: ignore[arg-type]  # only its list is asked for
        )

    def pod(self, name: str, *cards: str, asks: str = "true", state: dict[str, Any] | None = None) -> None:
        limits = {"limits": {GPU: "1"}}
        status = [{"name": "main", "state": state}] if state is not None else []
        body = {
            "metadata": {"name": name, "namespace": "team", "uid": name, "annotations": {POD_PREFLIGHT: asks}},
            "spec": {"containers": [{"name": "main", "resources": limits}]},
            "status": {"containerStatuses": status},
        }
        self.pods[name] = msgspec.convert(body, Pod)
        self.held[name] = cards

    # The surroundings

    def live_pods(self) -> list[Pod]:
        return list(self.pods.values())

    async def pod_resources(self) -> list[PodResources]:
        return [
            PodResources(
                name=name,
                namespace="team",
                containers=(
                    ContainerResources(name="main", devices=(ContainerDevices(resource_name=GPU, device_ids=cards),)),
                ),
            )
            for name, cards in self.held.items()
        ]

    async def run(self, card: GpuInfo) -> CardPreflight:
        raise AssertionError(card)

    async def run_quick(self, card: GpuInfo, device: str, /) -> CardPreflight:
        self.tested.append(device)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.seconds)
        self.running -= 1
        return CardPreflight(
            uuid=card.uuid, index=card.index, product=card.name, error=self.error, skipped=self.skipped
        )

    def record_on_pod(self, pod: Pod, reason: str, text: str, _kind: str) -> None:
        self.told.append((pod.metadata.name, reason))

    async def check_device(self, device: CheckedDevice, pod: str) -> str:
        """The refusal of a start with a slice."""
        try:
            await self.check.check(GPU, [device], pod=PodUid(pod))
        except PluginError as error:
            return str(error)
        return ""

    async def start(self, *cards: str, pod: str | None = None) -> str:
        """The refusal of a start with these cards; empty if it may be."""
        devices = [CheckedDevice(card, card) for card in cards]
        try:
            await self.check.check(GPU, devices, pod=None if pod is None else PodUid(pod))
        except PluginError as error:
            return str(error)
        return ""


def story_of(node: Node, story: Callable[[Starts], Awaitable[None]]) -> None:
    async def played(node: Node, agent: Agent) -> None:
        starts = Starts(node, agent)
        await starts.inventory.refresh()
        await story(starts)

    node.repairs = node.repairs or Repairs()
    play(node, played)


@pytest.fixture
def allowed(node: Node) -> Node:
    node.repairs = Repairs(pod_preflight=True)
    return node


def test_a_crash_loop_is_tested_once(allowed: Node) -> None:
    async def story(starts: Starts) -> None:
        starts.pod("p", starts.node.one)
        assert await starts.start(starts.node.one) == ""
        await asyncio.sleep(2 * PASS_LIFE)
        starts.pod("p", starts.node.one, state={"terminated": {"exitCode": 1}})
        assert await starts.start(starts.node.one) == ""
        assert starts.tested == [starts.node.one]

    story_of(allowed, story)


def test_a_card_that_another_process_uses_is_not_tested_and_its_pod_starts(allowed: Node) -> None:
    async def story(starts: Starts) -> None:
        starts.skipped = "process 7 uses the card"
        starts.pod("a", starts.node.one)
        assert await starts.start(starts.node.one) == ""
        assert starts.told == [("a", "GpuPreflightSkipped")]
        await starts.start(starts.node.one)
        assert len(starts.tested) == 2, "what was not tested counts for nobody"

    story_of(allowed, story)


def test_a_pass_counts_for_the_next_pod_for_a_while(allowed: Node) -> None:
    async def story(starts: Starts) -> None:
        for name in ("a", "b"):
            starts.pod(name, starts.node.one)
            await starts.start(starts.node.one)
            del starts.pods[name], starts.held[name]
        assert len(starts.tested) == 1
        assert starts.told == [("a", "GpuPreflightPassed"), ("b", "GpuPreflightPassed")]
        await asyncio.sleep(PASS_LIFE + 1)
        starts.pod("c", starts.node.one)
        await starts.start(starts.node.one)
        assert len(starts.tested) == 2

    story_of(allowed, story)


def test_a_card_that_failed_is_not_tested_again_before_its_reset(allowed: Node) -> None:
    async def story(starts: Starts) -> None:
        starts.error = "memory: 3 words are wrong"
        starts.pod("p", starts.node.one)
        refusal = await starts.start(starts.node.one)
        assert "the preflight of a pod failed: memory: 3 words are wrong" in refusal
        assert await starts.start(starts.node.one) == refusal
        starts.pod("q", starts.node.one)
        assert "the preflight of a pod failed" in await starts.start(starts.node.one, pod="q")
        assert len(starts.tested) == 1
        assert starts.node.one in starts.agent.watch.state_machine.unhealthy_gpus
        assert starts.node.other not in starts.agent.watch.state_machine.unhealthy_gpus
        starts.error = ""
        starts.agent.watch.note_card_reset(starts.node.one)
        assert await starts.start(starts.node.one, pod="q") == ""

    story_of(allowed, story)


def test_a_failed_card_waits_for_its_reset_though_the_driver_asks_for_nothing(allowed: Node) -> None:
    allowed.asks_for(RecoveryAction.NONE)

    async def story(starts: Starts) -> None:
        starts.error = "wrong"
        starts.pod("p", starts.node.one)
        await starts.start(starts.node.one)
        await asyncio.sleep(3600)
        (evidence,) = starts.agent.watch.describe(starts.node.one).evidence
        assert (evidence.source, evidence.asks) == (FAILED_POD_PREFLIGHT, "reset")
        starts.agent.watch.note_card_reset(starts.node.one)
        await asyncio.sleep(300)
        assert starts.node.one not in starts.agent.watch.state_machine.unhealthy_gpus

    story_of(allowed, story)


def test_all_cards_of_a_pod_are_tested_before_its_first_container(allowed: Node) -> None:
    async def story(starts: Starts) -> None:
        starts.pod("p", starts.node.one, starts.node.other)
        await starts.start(starts.node.one)
        assert sorted(starts.tested) == sorted([starts.node.one, starts.node.other])
        await starts.start(starts.node.other)
        assert len(starts.tested) == 2

    story_of(allowed, story)


def test_a_pod_that_does_not_ask_or_that_kubelet_lists_for_nobody_is_not_tested(allowed: Node) -> None:
    async def story(starts: Starts) -> None:
        starts.pod("asks", starts.node.other)
        starts.pod("p", starts.node.one, asks="yes")
        assert await starts.start(starts.node.one) == ""
        assert await starts.start("GPU-unknown") == ""
        assert starts.tested == []

    story_of(allowed, story)


def test_without_the_administrators_word_nobody_is_asked(node: Node) -> None:
    async def story(starts: Starts) -> None:
        starts.pod("p", starts.node.one)
        assert await starts.start(starts.node.one) == ""
        assert starts.tested == []

    story_of(node, story)


def test_one_device_is_tested_at_a_time_and_a_start_without_a_turn_is_tried_again(allowed: Node) -> None:
    async def story(starts: Starts) -> None:
        starts.seconds = 5.0
        names = [f"p{number}" for number in range(5)]
        for name in names:
            starts.pod(name)
        devices = {name: CheckedDevice(f"MIG-{name}", starts.node.one, 1) for name in names}
        refused = await asyncio.gather(*(starts.check_device(devices[name], name) for name in names))
        assert starts.most == 1
        assert refused == ["", "", "", *["the cards of the node are being tested; the start is tried again"] * 2]
        assert [await starts.check_device(devices[name], name) for name in names] == [""] * 5
        assert len(starts.tested) == 5, "what has passed counts"

    story_of(allowed, story)


def test_a_pod_with_many_slow_cards_is_tested_in_several_starts(allowed: Node) -> None:
    async def story(starts: Starts) -> None:
        starts.seconds = 13.0
        starts.pod("p", starts.node.one, starts.node.other)
        assert "tried again" in await starts.start(starts.node.one)
        assert await starts.start(starts.node.one) == ""
        assert len(starts.tested) == 2

    story_of(allowed, story)


@pytest.mark.parametrize(
    ("state", "started"),
    [(None, False), ({}, False), ({"waiting": {}}, False), ({"running": {}}, True), ({"terminated": {}}, True)],
)
def test_a_pod_has_started_when_a_container_with_cards_has(state: dict[str, Any] | None, started: bool) -> None:
    starts = Starts.__new__(Starts)
    starts.pods, starts.held = {}, {}
    starts.pod("p", state=state)
    assert has_started(starts.pods["p"]) is started
