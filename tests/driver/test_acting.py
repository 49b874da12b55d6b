"""One write of an object at a time, the next when the last was seen, and none that must fail."""

import asyncio
import random
from collections.abc import Awaitable, Callable

from tessera.api.driver.status import (
    DRIVER_ANNOTATION,
    DRIVER_CONDITION,
    DRIVER_SET_LABEL,
    DriverStatus,
    Phase,
    Strategy,
)
from tessera.clock import LoopClock
from tessera.driver.acting import SEEN_SECONDS, Acting
from tessera.driver.instructions import Instruction, Label, Show, Tell
from tessera.kube.client import Client
from tessera.kube.resources import NODES, Node
from tessera.kube.transport import Request, Response
from tessera.lab.apiserver.inprocess import InProcessTransport
from tessera.lab.apiserver.seams import UserInfo
from tessera.lab.apiserver.server import ApiServer
from tessera.lab.virtualtime import run_virtual

ADMIN = UserInfo(name="admin", groups=("system:masters", "system:authenticated"))
#: Seconds that an answer takes to come.
FAR = 0.1


class Distant(InProcessTransport):
    """An API server that is far away."""

    async def request(self, request: Request) -> Response:
        answer = await super().request(request)
        await asyncio.sleep(FAR)
        return answer


class Desk:
    """A node, and the hands that write it."""

    def __init__(self) -> None:
        self.clock = LoopClock(1_800_000_000)
        self.server = ApiServer(self.clock)
        self.client = Client(Distant(self.server, ADMIN), field_manager="t", clock=self.clock)
        self.acting = Acting(
            self.client,
            self.clock,
            rng=random.Random(0),
            may_act=lambda: True,
            wake=lambda: None,
            image=lambda: "tessera:1",
            toolkit_spec=lambda: "",
        )

    async def node(self) -> Node:
        return await self.client.get(NODES, "a")

    async def do(self, *instructions: Instruction) -> None:
        """Begins what may be begun, and waits for the answers."""
        async with asyncio.TaskGroup() as group:
            for each in instructions:
                self.acting.start(each, group)

    @property
    def writes(self) -> int:
        return len(self.server.audit.writes(resource="nodes")) - 1  # its creation

    def tell(self, node: Node, phase: Phase) -> Tell:
        status = DriverStatus(strategy=Strategy.PRECOMPILED, phase=phase, since="2027-01-15T08:00:00Z")
        return Tell(node="a", uid=node.metadata.uid, status=status)

    def show(self, node: Node) -> Show:
        condition = {"type": DRIVER_CONDITION, "status": "False", "reason": "Waiting", "message": "it waits"}
        return Show(node="a", uid=node.metadata.uid, condition=condition)

    def label(self, node: Node, driver_set: str = "one") -> Label:
        return Label(node="a", uid=node.metadata.uid, version=node.metadata.resource_version, set=driver_set)


def play(story: Callable[[Desk], Awaitable[None]]) -> None:
    async def main() -> None:
        desk = Desk()
        await desk.client.create(NODES.untyped(), {"metadata": {"name": "a"}})
        await story(desk)

    run_virtual(main())


def test_what_was_told_is_not_told_again_before_it_is_seen() -> None:
    async def story(desk: Desk) -> None:
        node = await desk.node()
        await desk.do(desk.tell(node, Phase.PULLING))
        await desk.do(desk.tell(node, Phase.PULLING))
        await desk.do(desk.tell(node, Phase.STARTING))
        assert desk.writes == 1
        desk.acting.seen("condition/a")  # of another write
        await desk.do(desk.tell(node, Phase.STARTING))
        assert desk.writes == 1
        desk.acting.seen("told/a")
        await desk.do(desk.tell(node, Phase.STARTING))
        assert desk.writes == 2
        assert '"starting"' in (await desk.node()).metadata.annotations[DRIVER_ANNOTATION]

    play(story)


def test_what_is_never_seen_changed_nothing_and_is_not_waited_for_for_long() -> None:
    async def story(desk: Desk) -> None:
        node = await desk.node()
        await desk.do(desk.tell(node, Phase.PULLING))
        due = desk.acting.due()
        assert due is not None
        assert 0.0 < due <= SEEN_SECONDS
        await desk.clock.sleep(due)
        await desk.do(desk.tell(node, Phase.STARTING))
        assert desk.writes == 2

    play(story)


def test_a_write_that_is_seen_before_its_answer_comes_is_not_waited_for() -> None:
    async def story(desk: Desk) -> None:
        node = await desk.node()
        async with asyncio.TaskGroup() as group:
            desk.acting.start(desk.tell(node, Phase.PULLING), group)
            await desk.clock.sleep(FAR / 2)
            desk.acting.seen("told/a")
        assert desk.acting.due() is None
        await desk.do(desk.tell(node, Phase.STARTING))
        assert desk.writes == 2

    play(story)


def test_a_label_waits_until_what_was_told_is_seen_since_it_holds_for_the_node_as_it_was_seen_only() -> None:
    async def story(desk: Desk) -> None:
        node = await desk.node()
        await desk.do(desk.tell(node, Phase.PULLING), desk.show(node), desk.label(node))
        assert desk.writes == 2
        desk.acting.seen("told/a", "condition/a")
        await desk.do(desk.label(await desk.node()))
        assert desk.writes == 3
        assert desk.server.audit.codes[409] == 0

    play(story)


def test_nothing_is_told_of_a_node_while_its_label_is_written() -> None:
    async def story(desk: Desk) -> None:
        node = await desk.node()
        await desk.do(desk.label(node), desk.tell(node, Phase.PULLING), desk.show(node))
        assert desk.writes == 1
        assert (await desk.node()).metadata.labels[DRIVER_SET_LABEL] == "one"
        await desk.do(desk.tell(node, Phase.PULLING), desk.show(node))
        assert desk.writes == 3
        assert desk.server.audit.codes[409] == 0

    play(story)
