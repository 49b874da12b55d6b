"""Answers of registries outlive the controller's process."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.driver.registry.image_repository import ImageRepository, ManualClock, resolving
from tests.driver.registry.servers import serving

from tessera.driver.driver_sets import PoolKey
from tessera.driver.images import Outcome
from tessera.driver.registry.resolver import CONFIG_MAP, KEY, PersistentResolver
from tessera.kube.client import Client
from tessera.kube.resources import CONFIGMAPS, NAMESPACES
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer

NAMESPACE = "tessera-system"
POOL = PoolKey(os_id="ubuntu", os_version="22.04", kernel="5.15.0-69-generic", architecture="amd64")
TAG = f"580.65.06-{POOL.kernel}-ubuntu22.04"


class Prompt(ManualClock):
    """A clock on which pauses are over at once."""

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
        await asyncio.sleep(0)


async def at_rest() -> None:
    """Lets everything go on that can."""
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.fixture
async def repository() -> AsyncIterator[ImageRepository]:
    made = ImageRepository()
    async with serving(made.answer) as host:
        made.host = host
        made.images = {TAG: ("amd64",)}
        yield made


@pytest.fixture
async def client() -> Client:
    clock = Prompt()
    server = ApiServer(clock, seed=0)
    admin = UserInfo(name="admin", groups=("system:masters", "system:authenticated"))
    made = Client(InProcessTransport(server, admin), field_manager="test", clock=clock)
    await made.create(NAMESPACES.as_dicts(), {"metadata": {"name": NAMESPACE}})
    return made


@asynccontextmanager
async def memory(client: Client, clock: ManualClock) -> AsyncIterator[PersistentResolver]:
    """One life of a controller's resolver."""
    async with resolving(clock) as resolver:
        made = PersistentResolver(resolver, client, clock, namespace=NAMESPACE, rng=random.Random(0))
        writing = asyncio.create_task(made.run())
        yield made
        writing.cancel()
        await asyncio.wait([writing])


async def test_an_outage_that_meets_a_fresh_controller_takes_nothing_away(
    repository: ImageRepository, client: Client
) -> None:
    clock = Prompt()
    async with memory(client, clock) as first:
        found = await first.resolve(repository.query(POOL))
        assert found.outcome is Outcome.FOUND
        await at_rest()
    repository.status = 503
    async with memory(client, clock) as second:
        again = await second.resolve(repository.query(POOL))
    assert (again.outcome, again.digest, again.stale) == (Outcome.FOUND, found.digest, True)


async def test_content_that_cannot_be_read_is_passed_over_and_replaced(
    repository: ImageRepository, client: Client
) -> None:
    await client.create(CONFIGMAPS.as_dicts(), {"metadata": {"name": CONFIG_MAP}, "data": {KEY: "[{"}}, NAMESPACE)
    clock = Prompt()
    async with memory(client, clock) as made:
        assert (await made.resolve(repository.query(POOL))).outcome is Outcome.FOUND
        await at_rest()
    kept = await client.get(CONFIGMAPS, CONFIG_MAP, NAMESPACE)
    assert TAG in kept.data[KEY]


async def test_what_is_known_already_is_not_written_again(repository: ImageRepository, client: Client) -> None:
    clock = Prompt()
    async with memory(client, clock) as made:
        await made.resolve(repository.query(POOL))
        await at_rest()
        before = (await client.get(CONFIGMAPS, CONFIG_MAP, NAMESPACE)).metadata.resource_version
        await made.resolve(repository.query(POOL), fresh=True)
        await at_rest()
    assert (await client.get(CONFIGMAPS, CONFIG_MAP, NAMESPACE)).metadata.resource_version == before
