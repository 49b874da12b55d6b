"""Watches: where they start, what selectors make of changes, how they end."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.support.api_user import ApiUser

from tessera.clock import LoopClock
from tessera.kube.requests import Request
from tessera_lab.apiserver.interfaces import GroupResource, UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.apiserver.storage.store import Change
from tessera_lab.apiserver.storage.watch import Watcher
from tessera_lab.simulation.virtual_time import run_virtual

PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"


async def test_a_watch_without_version_begins_with_what_is_there(api: ApiUser, make_map: Any) -> None:
    await api("POST", MAPS, make_map("a"))
    async with api.watch(MAPS) as events:
        assert await events.names(1) == ["ADDED a"]
        await api("POST", MAPS, make_map("b"))
        await api.merge(f"{MAPS}/b", {"data": {"x": "1"}})
        await api("DELETE", f"{MAPS}/a")
        assert await events.names(3) == ["ADDED b", "MODIFIED b", "DELETED a"]


async def test_a_watcher_that_fails_is_ended_alone_and_finds_the_change_when_it_asks_again(
    api: ApiUser, make_map: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen before: the write was answered 500 although it was stored, and no other watcher heard of it."""
    first = await api("POST", MAPS, make_map("a"))
    offer = Watcher.offer

    def fails(self: Watcher, change: Change) -> None:
        if not broken:
            broken.append(self)
            raise RecursionError("an error that nobody foresaw")
        offer(self, change)

    broken: list[Watcher] = []
    async with api.watch(MAPS) as ended, api.watch(MAPS) as other:
        assert [await each.names(1) for each in (ended, other)] == [["ADDED a"]] * 2
        monkeypatch.setattr(Watcher, "offer", fails)
        await api("POST", MAPS, make_map("b"))
        assert await other.names(1) == ["ADDED b"]
        with pytest.raises(StopAsyncIteration):
            await ended.next()
    async with api.watch(f"{MAPS}?resourceVersion={first['metadata']['resourceVersion']}") as events:
        assert await events.names(1) == ["ADDED b"]


async def test_a_watch_from_before_the_history_gets_410_in_the_stream(api: ApiUser, make_map: Any) -> None:
    first = await api("POST", MAPS, make_map("a"))
    await api("POST", MAPS, make_map("b"))
    api.server.core.store.forget_before(GroupResource("", "configmaps"))
    async with api.watch(f"{MAPS}?resourceVersion={first['metadata']['resourceVersion']}") as events:
        kind, status = await events.next()
    assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
    assert status["message"].startswith("too old resource version: ")


async def test_a_node_sees_a_pod_once_it_is_bound_to_it(api: ApiUser, make_pod: Any) -> None:
    async with api.watch("/api/v1/pods?fieldSelector=spec.nodeName=n1") as events:
        await api("POST", PODS, make_pod("other", nodeName="n2"))
        await api("POST", PODS, make_pod("mine", nodeName="n1"))
        assert await events.names(1) == ["ADDED mine"]


async def test_readers_of_one_event_share_its_bytes(api: ApiUser, make_map: Any) -> None:
    async with api.watch(MAPS) as one, api.watch(MAPS) as other:
        made = await api("POST", MAPS, make_map("a"))
        assert await one.next() == await other.next() == ("ADDED", made)


def test_bookmarks_come_every_minute_and_a_watch_ends_on_time() -> None:
    async def story() -> list[tuple[float, str]]:
        loop = asyncio.get_running_loop()
        server = ApiServer(LoopClock(1_700_000_000.0))
        user = UserInfo(name="admin", groups=("system:masters",))
        query = [("watch", "1"), ("allowWatchBookmarks", "true"), ("timeoutSeconds", "150")]
        request = Request(method="GET", path=MAPS, query=query)
        start = loop.time()
        async with InProcessTransport(server, user).stream(request) as stream:
            seen = [(round(loop.time() - start), chunk.decode()[:18]) async for chunk in stream.chunks()]
        return [*seen, (round(loop.time() - start), "end")]

    assert run_virtual(story()) == [(60, '{"type":"BOOKMARK"'), (120, '{"type":"BOOKMARK"'), (150, "end")]


async def test_only_the_watchers_that_may_want_an_event_are_asked(
    server: ApiServer, api: ApiUser, make_pod: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = server.core.hubs.of(GroupResource("", "pods"))
    asked: list[str] = []
    async with AsyncExitStack() as stack:
        for number in range(20):
            await stack.enter_async_context(api.watch(f"/api/v1/pods?fieldSelector=spec.nodeName=n{number}"))
        for watchers in hub._by_key.values():
            for watcher in watchers:
                node = watcher.selection.only_value("spec.nodeName")
                monkeypatch.setattr(watcher, "offer", lambda change, node=node: asked.append(node))
        await api("POST", PODS, make_pod("a", nodeName="n7"))
    assert asked == ["n7"]
