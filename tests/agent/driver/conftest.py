"""One node whose driver comes, goes and is replaced, and the agent's life cycle on it."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.agent.conftest import NODE, MortalNvml, Scene
from tests.support.scenes import marked_scene, repeated_scene_player, scene_player

from tessera.agent.base.node_files import MarkerFiles
from tessera.agent.base.settings import ValidationMode
from tessera.agent.driver.hardware import DriverHome
from tessera.agent.lifecycle import run_lifecycle
from tessera.agent.simulated import SimulatedDriver, SimulatedPrograms
from tessera.api.nodes.node_marks import ADVERTISED_CONDITION as ADVERTISED
from tessera.api.nodes.node_marks import CUDA_READY, DRIVER_CONTAINER_READY, PAUSE_LABEL, PAUSED, TOOLKIT_READY
from tessera.cli.agent import node_satellites
from tessera.clock import Clock
from tessera.kube.resources import NODES
from tessera.nvml.asynchronous import AsyncNvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.kubelet.devices.checkpoint import MemoryCheckpoint
from tessera_lab.kubelet.devices.device_ledger import PodUid
from tessera_lab.kubelet.devices.device_manager import DeviceManager

VERSION = "595.58.03"


class _DriverOf(SimulatedDriver):
    """A driver that opens given cards."""

    def __init__(self, cards: MortalNvml, machine: SimulatedMachine, clock: Clock) -> None:
        super().__init__(machine, clock)
        self._cards = cards

    def nvml(self, _home: DriverHome) -> AsyncNvml:
        return self._cards


class DriverScene(Scene):
    """A scene whose agent begins with the search for a driver.

    Attributes:
        published: at each change of kubelet's device lists: devices that can be had, and whether a validation stood.
        lives: how many processes of the agent were started.
        status_delay: seconds after which kubelet writes changed device counts into the node's status.
    """

    def __init__(self, folder: Path, cards: str = "A100-40GB", *, folders: bool = True, **machine: Any) -> None:
        self.published: list[tuple[int, bool]] = []
        self.lives = 0
        self.status_delay = 0.0
        self._counts_changed = asyncio.Event()
        self._publisher: asyncio.Task[None] | None = None
        super().__init__(folder, cards, **machine)
        self.markers = MarkerFiles(folder / "run" / "nvidia" / "validations")
        self.options = msgspec.structs.replace(self.options, markers_dir=self.markers.folder)
        if folders:
            self.make_folder()

    def make_folder(self) -> None:
        assert self.markers.folder is not None
        self.markers.folder.mkdir(parents=True)

    def _kubelet(self) -> DeviceManager:
        def counted() -> None:
            self.published.append((self.allocatable_now, self.validated_now))
            self._counts_changed.set()

        return DeviceManager(
            clock=self.clock,
            checkpoint=MemoryCheckpoint(),
            on_change=counted,
            running_pods=lambda: [(pod, PodUid(pod["metadata"]["uid"])) for pod in self.pods.values()],
        )

    async def begin(self, *, label: str = "dynamic", agent: bool = True) -> None:
        """See :meth:`.Scene.begin`; kubelet publishes its counts from now on."""
        await super().begin(label=label, agent=agent)
        self._publisher = asyncio.create_task(self._publish())

    async def end(self) -> None:
        """Nothing is left running."""
        if self._publisher is not None:
            self._publisher.cancel()
            await asyncio.gather(self._publisher, return_exceptions=True)
        await super().end()

    async def _publish(self) -> None:
        while True:
            await self._counts_changed.wait()
            self._counts_changed.clear()
            await self.clock.sleep(self.status_delay)
            capacity, allocatable = self.kubelet.ledger.counts()
            await self.publish(capacity, allocatable)

    async def publish(self, capacity: Mapping[str, int], allocatable: Mapping[str, int]) -> None:
        """The node's status shows these counts."""
        status = {
            "capacity": {name: str(count) for name, count in capacity.items()},
            "allocatable": {name: str(count) for name, count in allocatable.items()},
        }
        await self.client.merge_patch(NODES, NODE, {"status": status}, subresource="status")

    @property
    def capacity_now(self) -> int:
        """Devices that kubelet counts, those of plugins that are away among them."""
        return sum(self.kubelet.ledger.counts()[0].values())

    @property
    def allocatable_now(self) -> int:
        """Devices that kubelet gives out."""
        return sum(self.kubelet.ledger.counts()[1].values())

    @property
    def validated_now(self) -> bool:
        """True if the present driver is validated."""
        driver, mark = self.markers.identity(DRIVER_CONTAINER_READY), self.markers.mark(CUDA_READY)
        return driver is not None and mark is not None and mark.is_about(driver)

    def start_mortal_life(self, last_call: int, *, after: bool) -> MortalNvml:
        """Starts the agent's process; it dies at its ``last_call``-th NVML call."""
        cards = MortalNvml(self.machine, self.clock, last=last_call, after=after)
        self.start_life(driver=_DriverOf(cards, self.machine, self.clock))
        assert self.agent is not None
        cards.kill = self.agent.cancel
        return cards

    async def begin_life(self, validation: ValidationMode = ValidationMode.AUTO) -> None:
        """A node that kubelet registered, and the agent's process on it."""
        await self.begin(agent=False)
        self.start_life(validation)

    def start_life(
        self, validation: ValidationMode = ValidationMode.AUTO, driver: SimulatedDriver | None = None
    ) -> None:
        """Starts the agent's process."""
        client = self.user("agent")
        options = msgspec.structs.replace(self.options, validation=validation)
        driver = driver or SimulatedDriver(self.machine, self.clock)
        self.lives += 1
        rng = random.Random(self.lives)

        async def process() -> None:
            try:
                programs = SimulatedPrograms(self.machine, self.clock)
                await run_lifecycle(
                    options,
                    client,
                    driver,
                    self.seam,
                    self.clock,
                    rng=rng,
                    programs=programs,
                    satellites=node_satellites(options),
                )
            finally:
                await client.close()

        self.agent = asyncio.create_task(process())

    # What happens on the node -----------------------------------------------------------------------------------

    def load(self) -> None:
        """A driver container loads its driver and is ready."""
        self.machine.load_driver(VERSION)
        self.markers.write(DRIVER_CONTAINER_READY)

    def stop_container(self) -> None:
        """The driver container is told to end."""
        self.markers.remove(DRIVER_CONTAINER_READY)

    def validate(self) -> None:
        """The validation ran a program on the cards."""
        for name in (TOOLKIT_READY, CUDA_READY):
            self.markers.write(name, self.markers.about_driver())

    def node_writes(self) -> int:
        """The number of writes to the Node that the server accepted from the agent."""
        return len(self.server.audit.writes(user="agent", resource="nodes"))

    async def label(self, name: str, value: str | None) -> None:
        await self.client.merge_patch(NODES, NODE, {"metadata": {"labels": {name: value}}})

    async def pause(self) -> None:
        await self.label(PAUSE_LABEL, PAUSED)

    async def unpause(self) -> None:
        await self.label(PAUSE_LABEL, "true")

    async def condition(self) -> tuple[str, str]:
        """Status and reason of the node's condition."""
        node = await self.client.get(NODES, NODE)
        return next(
            ((each.status, each.reason) for each in node.status.conditions if each.type == ADVERTISED), ("", "")
        )

    async def tells(self, reason: str) -> None:
        """Returns when the node's condition has a reason."""

        async def told() -> bool:
            return (await self.condition())[1] == reason

        await self.until(told)

    async def counts(self, devices: bool) -> None:
        """Returns when kubelet counts devices, or none."""

        async def counted() -> bool:
            return bool(self.allocatable_now) is devices

        await self.until(counted)


@pytest.fixture
async def scene(request: pytest.FixtureRequest, tmp_path: Path, virtual_time: None) -> AsyncIterator[DriverScene]:
    """A fresh node on virtual time."""
    made = marked_scene(request, DriverScene, tmp_path)
    yield made
    await made.end()


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    """Plays a story on a fresh node, on virtual time, and ends everything."""
    return scene_player(DriverScene, tmp_path)


@pytest.fixture
def play_anew(tmp_path: Path) -> Callable[..., None]:
    """Plays many stories one after the other, each on a node of its own."""
    return repeated_scene_player(DriverScene, tmp_path)
