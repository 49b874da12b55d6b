"""Two simulated cards, an agent's health monitor on virtual time, and the state that outlives the agent."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

import pytest
from tests.support.agent_runtime import make_parts
from tests.support.scenes import marked_scene
from tests.support.tasks import cancel_tasks

from tessera.agent.base.node_objects import EventType
from tessera.agent.base.runtime import Metrics
from tessera.agent.base.settings import AgentOptions
from tessera.agent.base.wake_ups import ChangeNotifier
from tessera.agent.health.executor import CardResetter
from tessera.agent.health.monitor import HealthMonitor
from tessera.agent.health.policy import RecoveryAction
from tessera.agent.health.repairs import CardPreflights, RepairReboots
from tessera.agent.simulated import SimulatedPreflight
from tessera.api.nodes.card_faults import CardRule
from tessera.api.nodes.node_marks import Cordon
from tessera.api.nodes.repairs import Repairs
from tessera.clock import Clock
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import CardAttributes, GpuEventKind, Nvml
from tessera.nvml.simulated.machine_access import InlineNvml
from tessera.nvml.simulated.machine_state import SimEvent
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.simulation.virtual_time import run_virtual

T = TypeVar("T")
EPOCH = 1_700_000_000.0


class Settable:
    """A clock whose date somebody may set."""

    def __init__(self) -> None:
        self.ahead = EPOCH

    def now(self) -> float:
        return self.ahead + self.monotonic()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Noting(InlineNvml):
    """Simulated cards; notes when they were asked for their memory, which a probe does."""

    def __init__(self, machine: SimulatedMachine, clock: Clock) -> None:
        super().__init__(machine, clock)
        self.probes: list[float] = []
        self._time = clock

    async def call(self, operation: str, call: Callable[[Nvml], T], *, card: str = "") -> T:
        if operation == "memory":
            self.probes.append(self._time.monotonic())
        return await super().call(operation, call, card=card)


class Node:
    """Two simulated cards and what outlives the agent."""

    def __init__(self, folder: Path, *, mig: bool = False, environment: Mapping[str, str] | None = None) -> None:
        self.machine = SimulatedMachine("2xA100-40GB", seed="n", mig=mig)
        self.one, self.other = self.machine.uuids()
        self.clock = Settable()
        self.options = AgentOptions(node_name="node-1", state_dir=folder / "state", environment=environment or {})
        self.file = self.options.state_dir / "health.json"
        self.boot = "boot-1"
        self.spared: frozenset[CardRule] = frozenset()
        self.cordoned: tuple[Cordon, ...] | None = ()
        self.told: list[tuple[str, str]] = []
        #: Whether the agent resets cards that ask for it, and which cards somebody holds.
        self.resets = False
        #: What the administrator lets the agent do; None while the file cannot be read.
        self.repairs: Repairs | None = Repairs()
        #: The times at which a reboot was asked for, and its refusal.
        self.asked: list[float] = []
        self.refusal = ""
        self.held: set[str] = set()
        self.kubelet_is_away = False

    def xid(self, number: int, gi: int | None = None, ci: int | None = None) -> None:
        self.machine.report(SimEvent(GpuEventKind.XID, self.one, number, gi, ci))

    def asks_for(self, action: RecoveryAction) -> None:
        self.machine.set_attributes(self.one, CardAttributes(recovery_action=action))

    async def reboot(self) -> None:
        if self.refusal:
            raise OSError(self.refusal)
        self.asked.append(self.clock.now())

    def boot_id(self) -> str:
        return self.boot

    def spared_faults(self) -> frozenset[CardRule]:
        return self.spared

    def cordons(self) -> tuple[Cordon, ...] | None:
        return self.cordoned

    def record_on_node(self, reason: str, text: str, kind: EventType) -> None:
        assert kind in {"Normal", "Warning"}
        self.told.append((reason, text))

    async def agent(self) -> "Agent":
        """An agent that has just started."""
        agent = Agent(self)
        agent.watch.set_cards(await agent.hardware.devices())
        await asyncio.sleep(0.1)
        return agent


class Agent:
    """A process of the agent: the health watch, and who hands events to it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.hardware = Noting(node.machine, node.clock)
        self.metrics = Metrics()
        self.was_reset: list[str] = []
        self.changes = ChangeNotifier()
        self.runtime = make_parts(
            options=node.options,
            hardware=self.hardware,
            object_events=node,
            metrics=self.metrics,
            changes=self.changes,
            clock=node.clock,
        )
        self.watch = HealthMonitor(
            self.runtime,
            resetter=CardResetter(self.hardware, host=self, clock=node.clock) if node.resets else None,
            reboots=RepairReboots(node.reboot, file=node.file.parent / "reboots.json", host=self),
            preflights=CardPreflights(SimulatedPreflight(node.machine, node.clock), host=self, clock=node.clock),
            repairs=lambda: node.repairs,
        )
        self._tasks = [asyncio.create_task(self.watch.run()), asyncio.create_task(self._listen())]

    async def is_unused(self, gpu: str) -> bool:
        if self.node.kubelet_is_away:
            raise ConnectionError("kubelet is being restarted")
        return gpu not in self.node.held

    async def is_node_empty(self) -> bool:
        if self.node.kubelet_is_away:
            raise ConnectionError("kubelet is being restarted")
        return not self.node.held

    async def reread_card(self, gpu: str | None) -> None:
        assert gpu is not None
        self.was_reset.append(gpu)

    async def _listen(self) -> None:
        while True:
            try:
                event = await self.hardware.wait_event(60)
                if event is not None:
                    self.watch.note_hardware_event(event)
                self.watch.note_unheard(await self.hardware.unheard_cards())
            except NvmlError as error:
                self.watch.note_event_watch_failure(str(error))
                await asyncio.sleep(60)

    async def stop(self) -> None:
        await cancel_tasks(self._tasks)

    def gauge(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


Story = Callable[[Node, Agent], Awaitable[None]]


def play(node: Node, story: Story) -> None:
    """Plays a story on virtual time."""

    async def played() -> None:
        agent = await node.agent()
        try:
            await story(node, agent)
        finally:
            await agent.stop()

    run_virtual(played())


@pytest.fixture
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    return marked_scene(request, Node, tmp_path)


@pytest.fixture
async def agent(node: Node, virtual_time: None) -> AsyncIterator[Agent]:
    """An agent on the node, on virtual time."""
    made = await node.agent()
    yield made
    await made.stop()
