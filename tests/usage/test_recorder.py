"""The recorder against an API server: owners of leases, few writes, a new leader, and records it cannot read."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.observe.conftest import AgentCluster
from tests.support.api_user import pod
from tests.usage.conftest import EPOCH, AgentNode

from tessera.clock import LoopClock
from tessera.kube.client import Client
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.informer import Informer
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import CONFIGMAPS, EVENTS, NAMESPACES, NODES, PODS
from tessera.usage.record import BROKEN_KEY, RECORD_KEY, RECORD_NAME, UNKNOWN, UsageRecord, decode_record, of_namespaces
from tessera.usage.satellite import PERIOD, WRITE_PERIOD, UsageOptions, UsageRecorder
from tessera_lab.simulation.virtual_time import run_virtual

SYSTEM = "tessera-system"


class RecordedCluster:
    """A cluster of one node, whose agent and recorder run on virtual time."""

    def __init__(self) -> None:
        self.cluster = AgentCluster()
        self.node = AgentNode()
        self.clock = LoopClock(EPOCH)
        self.client = Client(self.cluster.api.transport, field_manager="test", clock=self.clock)
        self.options = UsageOptions()
        self._uids: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        await self.cluster.begin()
        await self.client.create(NODES.as_dicts(), {"metadata": {"name": "n1"}})
        await self.cluster.add_agent("n1", self.node.page())
        await self.lead()

    async def lead(self) -> None:
        """A replica of the controller begins to lead."""
        self._task = asyncio.create_task(self._lead())
        await asyncio.sleep(0)

    async def kill(self) -> None:
        """The leading replica ends, without a last write."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _lead(self) -> None:
        rng = random.Random(1)
        runtime = KubeRuntime(client=self.client, clock=self.clock, rng=rng)
        nodes = Informer(self.client, NODES, clock=self.clock, rng=rng)
        pods = Informer(self.client, PODS, clock=self.clock, rng=rng)
        events = EventRecorder(self.client, component="test", instance="t", clock=self.clock, rng=rng)
        recorder = UsageRecorder(runtime, nodes=nodes, pods=pods, events=events, options=self.options)
        async with asyncio.TaskGroup() as group:
            for part in (nodes.run(), pods.run(), events.run(), recorder.run(), recorder.write()):
                group.create_task(part)

    async def passes(self, seconds: float) -> None:
        """Time passes; the agent takes a sample every ten seconds."""
        for _ in range(int(seconds / 10)):
            await asyncio.sleep(10)
            self.node.passes(10)
            self.show()

    def show(self) -> None:
        """The proxy shows the agent's page, on the clock of the cluster, with the UIDs of the server's pods."""
        page = self.node.page()
        page = msgspec.structs.replace(
            page,
            taken=self.clock.now(),
            leases=tuple(msgspec.structs.replace(each, uid=self._uids.get(each.pod, each.uid)) for each in page.leases),
            ended=tuple(msgspec.structs.replace(each, uid=self._uids.get(each.pod, each.uid)) for each in page.ended),
        )
        (address,) = self.cluster.pages
        self.cluster.pages[address] = msgspec.json.encode(page)

    async def run_pod(self, name: str, **metadata: Any) -> None:
        """A pod of the namespace ``default`` that holds half a card of the node."""
        made = pod(name, nodeName="n1")
        made["metadata"] |= metadata
        made["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
        answer = await self.cluster.api("POST", "/api/v1/namespaces/default/pods", made)
        self._uids[name] = answer["metadata"]["uid"]
        self.node.hold(name, share=0.5)

    async def end_pod(self, name: str) -> None:
        """The pod is deleted, and its lease ends."""
        await self.client.delete(PODS, name, "default", grace_seconds=0)
        self.node.end(name)

    async def record(self) -> UsageRecord:
        return decode_record((await self.client.get(CONFIGMAPS, RECORD_NAME, SYSTEM)).data[RECORD_KEY])


def play(scenario: Callable[[RecordedCluster], Awaitable[None]]) -> None:
    async def main() -> None:
        there = RecordedCluster()
        await there.begin()
        await scenario(there)
        await there.kill()

    run_virtual(main())


def by_namespace(record: UsageRecord) -> dict[str, float]:
    found: dict[str, float] = {}
    for period in record.periods:
        for key, amount in period.rows.items():
            found[key.namespace] = found.get(key.namespace, 0.0) + amount.held
    return found


def test_the_record_is_written_few_times_however_many_pods_there_are() -> None:
    async def scenario(there: RecordedCluster) -> None:
        versions = set()
        for number in range(60):
            there.node.held.clear()
            there.node.hold(f"team-{number}")
            await there.passes(60)
            if number > 2:
                versions.add((await there.client.get(CONFIGMAPS, RECORD_NAME, SYSTEM)).metadata.resource_version)
        assert len(versions) <= 2 * WRITE_PERIOD / PERIOD + 60 * PERIOD / WRITE_PERIOD

    play(scenario)


def test_users_are_what_pods_state_also_of_pods_that_are_gone_when_they_are_counted() -> None:
    async def scenario(there: RecordedCluster) -> None:
        await there.passes(60)
        label = {"tessera.dev/user": "anna", "app.kubernetes.io/part-of": "search"}
        await there.run_pod("default-a", labels=label)
        await there.run_pod("default-b", annotations={"tessera.dev/user": "bert@example.com"})
        await there.passes(600)
        await there.run_pod("default-c", labels=label)
        await there.passes(10)
        await there.end_pod("default-b")
        await there.end_pod("default-c")
        await there.passes(600)
        rows: dict[tuple[str, str, str], float] = {}
        for period in (await there.record()).periods:
            for key, amount in period.rows.items():
                owner = (key.namespace, key.user, key.label)
                rows[owner] = rows.get(owner, 0.0) + amount.held
        assert rows.keys() == {("default", "anna", "search"), ("default", "bert@example.com", "")}
        assert rows["default", "bert@example.com", ""] == pytest.approx(305, abs=15)

    play(scenario)


def test_teams_are_what_the_label_of_namespaces_says_also_after_it_changes() -> None:
    async def scenario(there: RecordedCluster) -> None:
        there.options = UsageOptions(team_label="example.com/team")
        await there.kill()
        for name, team in (("red-dev", "red"), ("red-prod", "red"), ("plain", None), ("empty", "")):
            labels = {} if team is None else {"example.com/team": team}
            await there.client.create(NAMESPACES.as_dicts(), {"metadata": {"name": name, "labels": labels}})
        await there.lead()
        await there.passes(WRITE_PERIOD)
        record = await there.record()
        assert (record.team_label, record.teams) == ("example.com/team", {"red-dev": "red", "red-prod": "red"})
        assert of_namespaces(record, lambda name: name == "red-prod").teams == {"red-prod": "red"}
        changed = {"metadata": {"labels": {"example.com/team": "blue"}}}
        await there.client.merge_patch(NAMESPACES.as_dicts(), "red-dev", changed)
        await there.passes(WRITE_PERIOD + 60)
        assert (await there.record()).teams == {"red-dev": "blue", "red-prod": "red"}
        there.options = UsageOptions()
        await there.kill()
        await there.lead()
        await there.passes(WRITE_PERIOD)
        assert (await there.record()).teams == {}

    play(scenario)


def test_a_lease_of_a_pod_that_the_server_does_not_have_is_nobodys() -> None:
    async def scenario(there: RecordedCluster) -> None:
        there.node.hold("forged-1", share=0.5)
        await there.passes(600)
        assert by_namespace(await there.record()).keys() == {UNKNOWN}

    play(scenario)


def test_the_next_leader_goes_on_where_the_record_ends() -> None:
    async def scenario(there: RecordedCluster) -> None:
        there.node.hold("team-1", share=0.5)
        await there.passes(420)
        await there.kill()
        await there.passes(300)
        await there.lead()
        await there.passes(600)
        record = await there.record()
        seconds = record.until - record.began
        assert by_namespace(record)[UNKNOWN] == pytest.approx(seconds / 2, abs=40)
        assert sum(cards.unknown for period in record.periods for cards in period.cards.values()) < 60

    play(scenario)


def test_a_record_that_cannot_be_read_is_set_aside_with_an_event() -> None:
    async def scenario(there: RecordedCluster) -> None:
        await there.passes(180)
        await there.kill()
        await there.client.merge_patch(CONFIGMAPS, RECORD_NAME, {"data": {RECORD_KEY: "{broken"}}, SYSTEM)
        await there.lead()
        await there.passes(300)
        data = (await there.client.get(CONFIGMAPS, RECORD_NAME, SYSTEM)).data
        assert data[BROKEN_KEY] == "{broken"
        assert decode_record(data[RECORD_KEY]).periods
        (event,) = (await there.client.list(EVENTS, SYSTEM)).items
        assert event.reason == "RecordsUnreadable"
        assert BROKEN_KEY in event.message

    play(scenario)


def test_a_node_whose_agent_is_silent_is_unknown_and_one_that_is_gone_is_dropped() -> None:
    async def scenario(there: RecordedCluster) -> None:
        await there.passes(120)
        (address,) = there.cluster.pages
        there.cluster.pages[address] = ConnectionRefusedError(111, "refused")
        await asyncio.sleep(3000)
        record = await there.record()
        assert sum(cards.unknown for period in record.periods for cards in period.cards.values()) > 2 * 1500
        await there.client.delete(NODES, "n1")
        await asyncio.sleep(600)
        assert (await there.record()).nodes == {}

    play(scenario)
