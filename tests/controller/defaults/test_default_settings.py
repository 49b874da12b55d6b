"""The controller fills the ConfigMaps of an installation, and follows what people do to them."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.api_clients import in_process_client
from tests.support.tasks import cancel_tasks

from tessera.clock import LoopClock
from tessera.controller.defaults import DefaultSettings, default_entries
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import CONFIGMAPS, NAMESPACES, ConfigMap
from tessera_lab.apiserver.main.server import ApiServer

NAMESPACE = "tessera-system"
ENTRIES = {"sharing-profiles": {"slice-2": "two"}, "mig-layouts": {"config.yaml": "layouts"}}


class Installation:
    """An API server with the namespace, and a controller of one version or another."""

    def __init__(self) -> None:
        self.clock = LoopClock(1_700_000_000.0)
        self.server = ApiServer(self.clock)
        self.client = self._client("somebody")
        self.leads = True

    def _client(self, name: str) -> Any:
        return in_process_client(self.server, self.clock, name, "system:masters", "system:authenticated")

    async def make(self, name: str, data: Mapping[str, str] | None = None) -> None:
        body = {"metadata": {"name": name}, "data": dict(data or {})}
        await self.client.create(CONFIGMAPS.as_dicts(), body, NAMESPACE)

    async def read(self, name: str) -> ConfigMap:
        found: ConfigMap = await self.client.get(CONFIGMAPS, name, NAMESPACE)
        return found

    async def edit(self, name: str, data: Mapping[str, str | None]) -> None:
        await self.client.merge_patch(CONFIGMAPS, name, {"data": dict(data)}, NAMESPACE)

    @asynccontextmanager
    async def controller(self, entries: Mapping[str, Mapping[str, str]] = ENTRIES) -> AsyncIterator[None]:
        runtime = KubeRuntime(
            client=self._client("controller"),
            clock=self.clock,
            rng=random.Random(1),
            may_act=lambda: self.leads,
        )
        task = asyncio.create_task(DefaultSettings(runtime, namespace=NAMESPACE, entries=entries).run())
        try:
            await self.clock.sleep(5)
            yield
        finally:
            await cancel_tasks([task])


@pytest.fixture
async def installation(virtual_time: None) -> Installation:
    installation = Installation()
    await installation.client.create(NAMESPACES.as_dicts(), {"metadata": {"name": NAMESPACE}})
    return installation


async def test_it_fills_both_and_writes_each_once(installation: Installation) -> None:
    for name in ENTRIES:
        await installation.make(name)
    async with installation.controller():
        filled = {name: await installation.read(name) for name in ENTRIES}
        assert {name: each.data for name, each in filled.items()} == ENTRIES
        await installation.clock.sleep(600)
        for name, each in filled.items():
            assert (await installation.read(name)).metadata.resource_version == each.metadata.resource_version


async def test_one_that_comes_later_or_is_made_anew_is_filled_too(installation: Installation) -> None:
    async with installation.controller():
        for _ in range(2):
            await installation.make("mig-layouts")
            await installation.clock.sleep(5)
            assert (await installation.read("mig-layouts")).data == ENTRIES["mig-layouts"]
            await installation.client.delete(CONFIGMAPS, "mig-layouts", NAMESPACE)
            await installation.clock.sleep(5)
        assert list((await installation.client.list(CONFIGMAPS, NAMESPACE)).items) == []


async def test_an_upgrade_renews_the_one_and_keeps_the_edit_of_the_other(installation: Installation) -> None:
    for name in ENTRIES:
        await installation.make(name)
    async with installation.controller():
        await installation.edit("sharing-profiles", {"slice-2": "mine"})
    newer = {"sharing-profiles": {"slice-2": "better"}, "mig-layouts": {"config.yaml": "more layouts"}}
    async with installation.controller(newer):
        assert (await installation.read("sharing-profiles")).data == {"slice-2": "mine"}
        assert (await installation.read("mig-layouts")).data == newer["mig-layouts"]


async def test_somebody_s_own_is_left_alone(installation: Installation) -> None:
    await installation.make("sharing-profiles", {"only": "profile"})
    before = await installation.read("sharing-profiles")
    async with installation.controller():
        assert await installation.read("sharing-profiles") == before


async def test_a_replica_that_does_not_lead_writes_nothing(installation: Installation) -> None:
    installation.leads = False
    await installation.make("sharing-profiles")
    async with installation.controller():
        assert (await installation.read("sharing-profiles")).data == {}


async def test_it_goes_on_after_refused_writes(installation: Installation) -> None:
    # An immutable ConfigMap refuses each write; a new one with its name does not.
    body = {"metadata": {"name": "mig-layouts"}, "immutable": True}
    await installation.client.create(CONFIGMAPS.as_dicts(), body, NAMESPACE)
    async with installation.controller():
        assert (await installation.read("mig-layouts")).data == {}
        await installation.client.delete(CONFIGMAPS, "mig-layouts", NAMESPACE)
        await installation.make("mig-layouts")
        await installation.clock.sleep(60)
        assert (await installation.read("mig-layouts")).data == ENTRIES["mig-layouts"]


def test_what_it_brings_fits_into_one_object_each() -> None:
    for entries in default_entries().values():
        assert entries
        assert sum(len(key) + len(text.encode()) for key, text in entries.items()) < 256 * 1024
