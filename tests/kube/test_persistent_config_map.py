"""A ConfigMap that outlives the process that keeps it."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tessera.clock import LoopClock
from tessera.kube.client import Client
from tessera.kube.persistent_config_map import RECORDS_FORMAT, REFUSED_FOR, SETTLE, PersistentConfigMap
from tessera.kube.resources import CONFIGMAPS, NAMESPACES
from tessera.kube.resources.meta import FORMAT_ANNOTATION, Resource
from tessera_lab.apiserver.authz.identity import service_account_user
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.simulation.virtual_time import run_virtual

ROLES, BINDINGS = (
    Resource("rbac.authorization.k8s.io", "v1", plural, kind, True, dict[str, Any])
    for plural, kind in (("roles", "Role"), ("rolebindings", "RoleBinding"))
)
ADMIN = UserInfo(name="admin", groups=("system:masters", "system:authenticated"))


class ServerWithConfigMap:
    def __init__(self) -> None:
        self.clock = LoopClock(0)
        self.server = ApiServer(self.clock, seed=0)
        self.leads = True
        self.data = {"a": "1"}
        self.admin = self.client(ADMIN)

    def client(self, user: UserInfo) -> Client:
        return Client(InProcessTransport(self.server, user), field_manager="test", clock=self.clock)

    def map(self, client: Client | None = None) -> PersistentConfigMap:
        return PersistentConfigMap(
            client or self.admin,
            self.clock,
            namespace="n",
            name="kept",
            data=lambda: self.data,
            rng=random.Random(0),
            may_act=lambda: self.leads,
        )

    async def stored(self) -> dict[str, str]:
        return (await self.admin.get(CONFIGMAPS, "kept", "n")).data

    @property
    def writes(self) -> int:
        return len(self.server.audit.writes(resource="configmaps"))


def told(story: Callable[[ServerWithConfigMap], Awaitable[None]]) -> None:
    async def play() -> None:
        lab = ServerWithConfigMap()
        await lab.admin.create(NAMESPACES.as_dicts(), {"metadata": {"name": "n"}})
        await story(lab)

    run_virtual(play())


@asynccontextmanager
async def writing(kept: PersistentConfigMap) -> AsyncIterator[None]:
    task = asyncio.create_task(kept.run())
    yield
    task.cancel()
    await asyncio.wait([task])


def test_changes_gather_and_the_next_process_reads_them() -> None:
    async def story(lab: ServerWithConfigMap) -> None:
        kept = lab.map()
        assert await kept.load() == {}
        async with writing(kept):
            for number in range(10):
                lab.data = {"a": str(number)}
                kept.mark_changed()
            await lab.clock.sleep(2 * SETTLE)
            assert lab.writes == 1
            lab.data = {"a": "more"}
            kept.mark_changed()
            await lab.clock.sleep(2 * SETTLE)
        assert await lab.map().load() == {"a": "more"}

    told(story)


def test_one_that_no_longer_leads_writes_nothing_until_it_may_again() -> None:
    async def story(lab: ServerWithConfigMap) -> None:
        kept = lab.map()
        lab.leads = False
        async with writing(kept):
            kept.mark_changed()
            await lab.clock.sleep(60)
            assert lab.writes == 0
            lab.leads = True
            await lab.clock.sleep(600)
        assert await lab.stored() == {"a": "1"}

    told(story)


def test_without_the_right_to_it_nothing_is_kept_and_nothing_fails() -> None:
    async def story(lab: ServerWithConfigMap) -> None:
        kept = lab.map(lab.client(service_account_user("n", "nobody")))
        assert await kept.load() == {}
        async with writing(kept):
            kept.mark_changed()
            await lab.clock.sleep(600)
        assert lab.writes == 0

    told(story)


def test_a_server_that_has_not_read_the_roles_yet_costs_no_entries() -> None:
    async def story(lab: ServerWithConfigMap) -> None:
        lab.data = {"a": "before"}
        await lab.map().flush()
        reading = asyncio.create_task(lab.map(lab.client(service_account_user("n", "one"))).load())
        await lab.clock.sleep(REFUSED_FOR / 2)
        rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]
        await lab.admin.create(ROLES, {"metadata": {"name": "r"}, "rules": rules}, "n")
        binding = {
            "metadata": {"name": "r"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
            "subjects": [{"kind": "ServiceAccount", "namespace": "n", "name": "one"}],
        }
        await lab.admin.create(BINDINGS, binding, "n")
        assert await reading == {"a": "before"}

    told(story)


def test_one_of_a_newer_version_is_neither_read_nor_written(caplog: pytest.LogCaptureFixture) -> None:
    async def story(lab: ServerWithConfigMap) -> None:
        first = lab.map()
        lab.data = {"a": "old"}
        await first.flush()
        stored = await lab.admin.get(CONFIGMAPS, "kept", "n")
        assert stored.metadata.annotations == {FORMAT_ANNOTATION: str(RECORDS_FORMAT)}
        newer = {"metadata": {"annotations": {FORMAT_ANNOTATION: "2"}}, "data": {"a": "newer"}}
        await lab.admin.merge_patch(CONFIGMAPS, "kept", newer, "n")

        kept = lab.map()
        assert await kept.load() == {}
        lab.data = {"a": "mine"}
        await kept.flush()
        assert await lab.stored() == {"a": "newer"}
        assert "ConfigMap n/kept: annotation tessera.dev/format is '2'" in caplog.text
        assert "Install the newer version again, or delete the ConfigMap" in caplog.text

    told(story)
