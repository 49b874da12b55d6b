"""The administrator's annotation is on a Node as long as its agent asks for a reboot."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from tests.support.api_clients import in_process_client
from tests.support.tasks import cancel_tasks

from tessera.api.names import REBOOT_REQUESTED, REPAIRS_KEY, REPAIRS_MAP
from tessera.clock import LoopClock
from tessera.controller.fault_evictions import RebootAnnotations, RepairSettings
from tessera.kube.informer import Informer
from tessera.kube.resources import CONFIGMAPS, NAMESPACES, NODES, Node
from tessera_lab.apiserver.main.server import ApiServer

KEY = "example.com/reboot"


class Cluster:
    def __init__(self) -> None:
        self.clock = LoopClock(1_700_000_000.0)
        self.server = ApiServer(self.clock)
        self.client = in_process_client(self.server, self.clock, "admin", "system:masters", "system:authenticated")

    async def say(self, text: str) -> None:
        await self.client.apply(CONFIGMAPS, REPAIRS_MAP, {"data": {REPAIRS_KEY: text}}, "tessera-system")
        await asyncio.sleep(5)

    async def boot(self, boot: str) -> None:
        status = {"status": {"nodeInfo": {"bootID": boot}}}
        await self.client.merge_patch(NODES, "n1", status, subresource="status")
        await asyncio.sleep(5)

    async def annotate(self, **annotations: str | None) -> None:
        body = {"metadata": {"annotations": {_KEYS[name]: value for name, value in annotations.items()}}}
        await self.client.merge_patch(NODES, "n1", body)
        await asyncio.sleep(5)

    async def found(self) -> str | None:
        node = await self.client.get(NODES, "n1")
        return node.metadata.annotations.get(KEY)

    async def version(self) -> str:
        return (await self.client.get(NODES, "n1")).metadata.resource_version


_KEYS = {"asked": REBOOT_REQUESTED, "theirs": KEY}


@pytest.fixture
async def cluster(virtual_time: None) -> AsyncIterator[Cluster]:
    cluster = Cluster()
    await cluster.client.create(NAMESPACES.as_dicts(), {"metadata": {"name": "tessera-system"}})
    await cluster.client.create(NODES.as_dicts(), {"metadata": {"name": "n1"}})
    rng = random.Random(1)
    nodes: Informer[Node] = Informer(cluster.client, NODES, clock=cluster.clock, rng=rng)
    settings = RepairSettings(cluster.client, namespace="tessera-system", clock=cluster.clock, rng=rng)
    annotations = RebootAnnotations(cluster.client, settings, cluster.clock, nodes=nodes)
    tasks = [asyncio.create_task(each.run()) for each in (nodes, settings, annotations)]
    yield cluster
    await cancel_tasks(tasks)


async def test_it_comes_with_the_request_and_goes_with_the_boot(cluster: Cluster) -> None:
    await cluster.boot("boot-1")
    await cluster.say(f"{{reboot: annotation, rebootAnnotation: {KEY}=now}}")
    assert await cluster.found() is None
    await cluster.annotate(asked="boot-1")
    assert await cluster.found() == "now"
    await cluster.annotate(theirs=None)
    assert await cluster.found() == "now", "the request still holds"
    await cluster.boot("boot-2")
    assert await cluster.found() is None
    before = await cluster.version()
    await asyncio.sleep(3600)
    assert await cluster.version() == before, "nothing more is written"
    await cluster.annotate(theirs="now")
    assert await cluster.found() == "now", "a person asks for another reboot"


async def test_a_request_from_before_the_settings_is_told_once_they_say_so(cluster: Cluster) -> None:
    await cluster.boot("boot-1")
    await cluster.annotate(asked="boot-1")
    await cluster.say("reboot: systemctl")
    assert await cluster.found() is None
    await cluster.say(f"{{reboot: annotation, rebootAnnotation: {KEY}}}")
    assert await cluster.found() == "true"


async def test_an_annotation_of_others_stays(cluster: Cluster) -> None:
    await cluster.boot("boot-1")
    await cluster.say(f"{{reboot: annotation, rebootAnnotation: {KEY}=now}}")
    await cluster.annotate(theirs="maintenance")
    await cluster.annotate(asked="boot-0")
    assert await cluster.found() == "maintenance"
