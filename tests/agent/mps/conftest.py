"""A node that shares simulated cards by MPS, on virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.support.agent_runtime import make_parts
from tests.support.scenes import marked_scene

from tessera.agent.base.settings import AgentOptions, ServicePlan
from tessera.agent.base.wake_ups import ChangeNotifier
from tessera.agent.mps.daemons import MpsDaemons
from tessera.agent.mps.state import DaemonLauncher
from tessera.agent.simulated import SimulatedDaemon, SimulatedLauncher
from tessera.api.sharing.profile import client_share
from tessera.clock import LoopClock
from tessera.nvml.interface import ComputeMode, GpuUuid
from tessera.nvml.simulated.machine_access import InlineNvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine

SHARED = "nvidia.com/gpu.shared"
OTHER = "nvidia.com/a100.shared"
#: Seconds within which anything that is waited for happens.
SOON = 120.0


class MpsNode:
    """A node of some A100; its agent can be stopped and started, its daemons and cards stay."""

    def __init__(self, folder: Path, *, cards: int = 2, start_seconds: float = 0.0) -> None:
        self.clock = LoopClock(epoch=0)
        self.machine = SimulatedMachine(f"{cards}xA100-40GB", seed="mps")
        self.launcher = SimulatedLauncher(self.clock, self.machine, start_seconds=start_seconds)
        self.changes = ChangeNotifier()
        self.state_file = folder / "mps.json"
        self.cards: list[str] = list(self.machine.uuids())
        self.occupied: dict[str, str] = {}
        self.daemons = self._agent(self.launcher)
        self._task: asyncio.Task[None] | None = None

    def _agent(self, launcher: DaemonLauncher) -> MpsDaemons:
        return MpsDaemons(
            make_parts(
                options=AgentOptions(node_name="node-1", state_dir=self.state_file.parent),
                hardware=InlineNvml(self.machine, self.clock),
                changes=self.changes,
                clock=self.clock,
            ),
            launcher,
            lambda card: self.occupied.get(card, ""),
        )

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self.daemons.run())

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    async def restart(self) -> None:
        """The agent dies and another one starts; it does not know yet what is wanted."""
        await self.stop()
        self.daemons = self._agent(self.launcher)
        self.start()

    def plan(self, *numbers: int, replicas: int = 4) -> ServicePlan:
        return ServicePlan({self.cards[number]: client_share(40960, replicas) for number in numbers}, replicas)

    async def until(self, holds: Callable[[], bool]) -> None:
        assert await self.changes.wait_until(holds, SOON), self.daemons.summary()

    async def until_ready(self, resource: str = SHARED) -> SimulatedDaemon:
        await self.until(lambda: self.daemons.ready(resource))
        daemon = self.launcher.daemon(resource)
        assert daemon is not None
        return daemon

    def mode(self, number: int) -> ComputeMode:
        return self.machine.compute_mode(GpuUuid(self.cards[number]))


@pytest.fixture
async def node(request: pytest.FixtureRequest, tmp_path: Path, virtual_time: None) -> AsyncIterator[MpsNode]:
    """A node on virtual time whose agent runs."""
    made = marked_scene(request, MpsNode, tmp_path)
    made.start()
    yield made
    await made.stop()
