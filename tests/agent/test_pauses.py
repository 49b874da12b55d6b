"""A pause after a failure ends by its time, or by what others change: never by what the agent itself writes."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.agent.conftest import NODE
from tests.agent.driver.conftest import DriverScene
from tests.agent.mig_config.node import Node, played
from tests.agent.sharing.conftest import WHOLE
from tests.agent.sharing.conftest import Scene as SharingScene
from tests.support.api_clients import ADMINISTRATORS
from tests.support.mortal_transport import ForwardingTransport
from tests.support.scenes import play_scene

from tessera.agent.base.wake_ups import ChangeNotifier
from tessera.agent.driver.gate import FIRST_PAUSE
from tessera.agent.mig_config.card_reconciler import RETRY_PAUSE
from tessera.agent.sharing.occupancy import RETRY
from tessera.api.nodes.node_marks import DRIVER_READY
from tessera.kube.client import Client
from tessera.kube.requests import Request, Response
from tessera.kube.resources import NODES
from tessera.kube.retries import LONGEST
from tessera.kubelet.interfaces import PodResources
from tessera.nvml.errors import UnknownNvmlError
from tessera.nvml.interface import GpuInfo
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.simulation.virtual_time import run_virtual


class RefusingTransport(ForwardingTransport):
    """The way to an API server that refuses all writes to one path.

    Attributes:
        refused: end of the path.
        times: the number of refused writes.
    """

    refused = "nothing"
    times = 0

    async def request(self, request: Request) -> Response:
        if request.method != "GET" and request.path.endswith(self.refused):
            self.times += 1
            return Response(status=500, body=b'{"kind": "Status", "message": "no room in the store"}')
        return await super().request(request)


class PausingScene(DriverScene):
    """A node whose agent's writes can be refused.

    Attributes:
        transport: the agent's way to the API server.
        opened: times at which the cards were listed.
    """

    def __init__(self, folder: Path, **machine: Any) -> None:
        self.transport: RefusingTransport | None = None
        super().__init__(folder, driver=None, **machine)
        self.opened: list[float] = []
        listed = self.machine.devices

        def devices() -> list[GpuInfo]:
            self.opened.append(self.clock.monotonic())
            return listed()

        self.machine.devices = devices  # type: ignore[method-assign]

    def user(self, name: str) -> Client:
        user = UserInfo(name=name, groups=(ADMINISTRATORS,))
        transport = RefusingTransport(InProcessTransport(self.server, user))
        if name == "agent":
            self.transport = transport
        return Client(transport, field_manager=name, clock=self.clock)

    async def advertise(self, *, label: str = "dynamic") -> None:
        """The agent starts on a node with a driver that was validated, and advertises its cards."""
        await self.begin(label=label, agent=False)
        self.load()
        self.validate()
        self.start_life()
        await self.tells("Advertised")


@pytest.fixture
async def scene(tmp_path: Path, virtual_time: None) -> AsyncIterator[PausingScene]:
    made = PausingScene(tmp_path)
    yield made
    await made.end()


async def notify_often(changes: ChangeNotifier, clock: Any, seconds: float) -> None:
    """Something else on the node changes ten times a second."""
    for _ in range(round(seconds * 10)):
        await clock.sleep(0.1)
        changes.notify()


async def test_nvml_that_fails_is_opened_with_doubling_pauses(scene: PausingScene) -> None:
    scene.machine.fail("devices", UnknownNvmlError, times=40)
    await scene.begin(agent=False)
    scene.load()
    scene.validate()
    began = scene.clock.monotonic()
    scene.start_life()
    await scene.until(functools.partial(_is_opened, scene, 40), 3600)
    pauses = [after - before for before, after in zip(scene.opened[:39], scene.opened[1:40], strict=True)]
    for number, pause in enumerate(pauses):
        assert min(LONGEST, FIRST_PAUSE * 2**number) <= pause < LONGEST + 1, (number, pauses)
    assert scene.clock.monotonic() - began > 15 * 60
    await scene.tells("Advertised")


async def _is_opened(scene: PausingScene, times: int) -> bool:
    return len(scene.opened) >= times


async def test_a_change_from_outside_ends_the_pause_at_once(scene: PausingScene) -> None:
    scene.machine.fail("devices", UnknownNvmlError, times=6)
    await scene.begin(agent=False)
    scene.load()
    scene.validate()
    scene.start_life()
    await scene.until(functools.partial(_is_opened, scene, 6))
    await scene.clock.sleep(0.1)
    scene.markers.write(DRIVER_READY, "somebody else writes what the agent has removed")
    await scene.clock.sleep(5.0)
    assert len(scene.opened) == 6
    scene.stop_container()
    await scene.clock.sleep(0.1)
    scene.load()
    scene.validate()
    await scene.clock.sleep(0.1)
    assert len(scene.opened) > 6


async def test_a_condition_that_the_server_refuses_is_not_written_again_because_the_node_changes(
    scene: PausingScene,
) -> None:
    await scene.advertise()
    assert scene.transport is not None
    scene.transport.refused = f"/nodes/{NODE}/status"
    scene.stop_container()
    for number in range(600):
        await scene.clock.sleep(0.1)
        await scene.client.merge_patch(NODES, NODE, {"metadata": {"annotations": {"other": str(number)}}})
    # The agent's other conditions go to the same path, with pauses of their own.
    assert 3 <= scene.transport.times < 40


async def test_a_status_that_the_server_refuses_is_not_written_again_because_something_else_changes(
    scene: PausingScene,
) -> None:
    await scene.advertise()
    await scene.joined()
    assert scene.transport is not None
    scene.transport.refused = f"/instaslices/{NODE}/status"
    await scene.pod("web", {"main": {"3g.20gb": 1}})
    await scene.promise("web", ("3g.20gb", 0, 4))
    await scene.bind("web")
    for number in range(600):
        await scene.clock.sleep(0.1)
        await scene.client.merge_patch(NODES, NODE, {"metadata": {"annotations": {"other": str(number)}}})
    assert 3 <= scene.transport.times < 20
    scene.transport.refused = "nothing"
    await scene.until(functools.partial(scene.admitted, "web"))


def test_kubelet_that_fails_in_ever_new_words_is_not_asked_again_at_once(tmp_path: Path) -> None:
    async def story(scene: SharingScene) -> None:
        asked = 0

        async def pod_resources() -> Sequence[PodResources]:
            nonlocal asked
            asked += 1
            await scene.clock.sleep(0.001)
            raise ConnectionError(f"attempt {asked} failed")

        scene.seam.pod_resources = pod_resources  # type: ignore[method-assign]
        await scene.begin(WHOLE)
        await notify_often(scene.changes, scene.clock, 60.0)
        assert 60.0 / RETRY / 2 < asked <= 60.0 / RETRY + 1

    play_scene(SharingScene, tmp_path, story)


def test_a_layout_that_cannot_be_noted_is_not_tried_again_because_something_else_changes(tmp_path: Path) -> None:
    async def laid(node: Node) -> None:
        node.start()
        await node.clock.sleep(1.0)
        (node.folder / "layouts.json.new").mkdir()
        assert node.layouts is not None
        journal, times = node.layouts._executor.journal, 0
        begin = journal.begin

        def counted(*args: Any, **named: Any) -> None:
            nonlocal times
            times += 1
            begin(*args, **named)

        journal.begin = counted  # type: ignore[method-assign]
        node.label("2x2g.10gb-3x1g.5gb")
        await notify_often(node.changes, node.clock, 60.0)
        assert 60.0 / RETRY_PAUSE / 2 < times <= 60.0 / RETRY_PAUSE + 2

    run_virtual(played(Node(tmp_path), laid))
