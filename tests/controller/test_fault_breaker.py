"""The breaker at work: annotations on Nodes, Events and metrics, with the lab's API server in this process."""

import asyncio
import random
from collections.abc import AsyncIterator

import msgspec
import pytest
from tests.support.api_clients import in_process_client
from tests.support.tasks import cancel_tasks

from tessera.api.nodes.card_faults import (
    CARDS_ANNOTATION,
    SPARED_ANNOTATION,
    CardFault,
    CardRule,
    ListedCard,
    decode_spared,
    encode_cards,
)
from tessera.clock import LoopClock
from tessera.controller.base import BreakerLimits, ControllerMetrics
from tessera.controller.fault_breaker import FaultBreaker
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.informer import Informer
from tessera.kube.resources import EVENTS, NODES, Node
from tessera.observe.record_player import DECIDERS, replay
from tessera.replay.recorder import Recorders, read_records
from tessera_lab.apiserver.main.server import ApiServer


class Fleet:
    """Nodes with one card each, and a controller's breaker."""

    def __init__(self) -> None:
        self.clock = LoopClock(1_700_000_000.0)
        self.server = ApiServer(self.clock)
        self.client = in_process_client(self.server, self.clock, "admin", "system:masters", "system:authenticated")
        self.metrics = ControllerMetrics()
        self.recorders = Recorders(3)
        self._tasks: list[asyncio.Task[None]] = []

    async def report(self, name: str, *faults: CardFault) -> None:
        """The agent of a node reports its card."""
        body = {"metadata": {"annotations": {CARDS_ANNOTATION: encode_cards([ListedCard(0, "GPU-1")], faults)}}}
        if not any(node.metadata.name == name for node in (await self.client.list(NODES)).items):
            await self.client.create(NODES.as_dicts(), {"metadata": {"name": name}})
        await self.client.merge_patch(NODES, name, body)

    async def start(self) -> None:
        """A controller begins to lead."""
        await cancel_tasks(self._tasks)
        rng = random.Random(1)
        nodes: Informer[Node] = Informer(self.client, NODES, clock=self.clock, rng=rng)
        events = EventRecorder(self.client, component="tessera-controller", clock=self.clock, rng=rng)
        breaker = FaultBreaker(
            self.client,
            nodes=nodes,
            events=events,
            metrics=self.metrics,
            limits=BreakerLimits(share=0.1, cards=2),
            namespace="tessera-system",
            clock=self.clock,
            rng=rng,
            recorders=self.recorders,
        )
        self._tasks = [asyncio.create_task(nodes.run()), asyncio.create_task(events.run())]
        await nodes.wait_synced()
        self._tasks.append(asyncio.create_task(breaker.run()))
        await self.clock.sleep(2)

    async def stop(self) -> None:
        await cancel_tasks(self._tasks)

    async def spared(self) -> dict[str, frozenset[CardRule]]:
        nodes = (await self.client.list(NODES)).items
        texts = {node.metadata.name: node.metadata.annotations.get(SPARED_ANNOTATION, "") for node in nodes}
        return {name: decode_spared(text) for name, text in texts.items() if text}

    async def versions(self) -> dict[str, str]:
        return {node.metadata.name: node.metadata.resource_version for node in (await self.client.list(NODES)).items}

    async def events(self) -> list[str]:
        return sorted(each.reason for each in (await self.client.list(EVENTS)).items)

    def gauge(self, rule: str, state: str) -> float | None:
        return self.metrics.registry.get_sample_value("tessera_breaker_cards", {"rule": rule, "state": state})


@pytest.fixture
async def fleet(virtual_time: None) -> AsyncIterator[Fleet]:
    fleet = Fleet()
    yield fleet
    await fleet.stop()


def bad(number: int) -> CardFault:
    return CardFault(f"GPU-{number}", "XID 48", 1_700_000_000 + number)


async def report_five(fleet: Fleet) -> None:
    for number in range(5):
        await fleet.report(f"n{number}", bad(number))


async def test_cards_beyond_the_bound_are_spared_and_told_once(fleet: Fleet) -> None:
    await report_five(fleet)
    await fleet.start()
    assert await fleet.spared() == {f"n{n}": frozenset({bad(n).key}) for n in (2, 3, 4)}
    assert (fleet.gauge("XID 48", "taken"), fleet.gauge("XID 48", "spared")) == (2, 3)
    assert await fleet.events() == ["HealthBreakerOpened"]
    await fleet.report("n0")  # an old fault has ended: the next card is taken away
    await fleet.clock.sleep(2)
    assert set(await fleet.spared()) == {"n3", "n4"}
    for number in (1, 2, 3):
        await fleet.report(f"n{number}")
    await fleet.clock.sleep(2)
    assert await fleet.spared() == {}
    assert await fleet.events() == ["HealthBreakerClosed", "HealthBreakerOpened"]


async def test_a_new_leader_decides_the_same_and_tells_nothing_again(fleet: Fleet) -> None:
    await report_five(fleet)
    await fleet.start()
    before = await fleet.spared()
    await fleet.start()
    assert await fleet.spared() == before
    assert await fleet.events() == ["HealthBreakerOpened"]
    await fleet.stop()
    assert fleet.gauge("XID 48", "spared") is None


async def test_recorded_decisions_are_the_same_again(fleet: Fleet) -> None:
    await report_five(fleet)
    await fleet.start()
    (record,) = read_records(b"\n".join(msgspec.json.encode(each) for each in fleet.recorders.records()))
    assert record.decisions
    assert not [*replay(record, DECIDERS["breaker"])]


async def test_heartbeats_cost_no_write(fleet: Fleet) -> None:
    await report_five(fleet)
    await fleet.start()
    before = await fleet.versions()
    await fleet.client.merge_patch(NODES, "n0", {"metadata": {"labels": {"heartbeat": "1"}}})
    await fleet.clock.sleep(60)
    after = await fleet.versions()
    assert {name for name in after if after[name] != before[name]} == {"n0"}


async def test_an_annotation_that_cannot_be_read_spares_nothing(fleet: Fleet) -> None:
    await report_five(fleet)
    await fleet.client.merge_patch(NODES, "n4", {"metadata": {"annotations": {CARDS_ANNOTATION: "{"}}})
    await fleet.client.merge_patch(NODES, "n0", {"metadata": {"annotations": {SPARED_ANNOTATION: "junk"}}})
    await fleet.start()
    assert set(await fleet.spared()) == {"n2", "n3"}
