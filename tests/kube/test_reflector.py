"""Every way a list+watch can fail, over real HTTP: the mirror ends equal to the server and tells every change."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.kube.conftest import ImpatientClock, ScriptedServer, cancelled, names, pod, status_line

from tessera.kube.client import Client
from tessera.kube.errors import Forbidden
from tessera.kube.reflector import EVERYTHING, Reflector, WatchEvent, WatchScope
from tessera.kube.requests import Request, Response, Stream
from tessera.kube.resources import PODS, Pod

Story = list[str]


class Mirror:
    """A reflector, and the events that it sent."""

    def __init__(self, client: Client, clock: ImpatientClock, scope: WatchScope = EVERYTHING) -> None:
        self.story: Story = []
        self.unreadable: Story = []
        self.reflector: Reflector[Pod] = Reflector(
            client, PODS, listener=self, clock=clock, rng=random.Random(7), scope=scope
        )

    def object_changed(self, event: WatchEvent[Pod]) -> None:
        meta = event.object.metadata
        self.story.append(f"{event.kind} {meta.name} {meta.resource_version}")

    def object_unreadable(self, key: str, error: str | None) -> None:
        self.unreadable.append(f"{key}: {error}")

    def versions_went_back(self) -> None:
        self.story.append("rewound")

    def kind_missing(self, *, missing: bool) -> None:
        self.story.append("missing" if missing else "served")

    @property
    def pods(self) -> list[str]:
        return names(list(self.reflector.cache.values()))


@asynccontextmanager
async def played(server: ScriptedServer, mirror: Mirror) -> AsyncIterator[None]:
    """Runs until the script is at its end."""
    task = asyncio.create_task(mirror.reflector.run())
    ended = asyncio.create_task(server.exhausted.wait())
    async with asyncio.timeout(60):
        await asyncio.wait({task, ended}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    yield
    await cancelled(task, ended)


@pytest.fixture
def mirror(client: Client, clock: ImpatientClock) -> Mirror:
    return Mirror(client, clock)


def changed(kind: str, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": item}


def bookmark(version: int) -> dict[str, Any]:
    return {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": str(version)}}}


def queries(server: ScriptedServer, name: str) -> list[str | None]:
    return [call.query.get(name) for call in server.calls]


async def test_lists_then_watches_with_bookmarks_from_the_version_of_the_list(
    server: ScriptedServer, mirror: Mirror
) -> None:
    server.lists(pod("a", 1), pod("b", 2)).streams(changed("MODIFIED", pod("a", 101)), changed("ADDED", pod("c", 102)))
    async with played(server, mirror):
        assert mirror.reflector.synced.is_set()
        assert mirror.story == ["ADDED a 1", "ADDED b 2", "MODIFIED a 101", "ADDED c 102"]
        watch, resumed = server.calls[1], server.calls[2]
        assert (watch.query["watch"], watch.query["allowWatchBookmarks"]) == ("true", "true")
        assert watch.query["resourceVersion"] == "100"
        assert 300 <= int(watch.query["timeoutSeconds"]) <= 600
        assert resumed.query["resourceVersion"] == "102"
        assert watch.headers["user-agent"].startswith("tessera/")


async def test_resumes_from_a_bookmark_after_a_clean_end_without_pause(
    server: ScriptedServer, mirror: Mirror, clock: ImpatientClock
) -> None:
    server.lists(pod("a", 1)).streams(bookmark(150)).streams(changed("DELETED", pod("a", 151)))
    async with played(server, mirror):
        assert queries(server, "resourceVersion") == [None, "100", "150", "151"]
        assert mirror.story == ["ADDED a 1", "DELETED a 151"]
        assert clock.pauses == []


def expired_in_the_stream(server: ScriptedServer) -> None:
    server.streams(status_line(410, "Expired"))


def expired_as_status(server: ScriptedServer) -> None:
    server.refuses(410, "Expired")


@pytest.mark.parametrize("expire", [expired_in_the_stream, expired_as_status])
async def test_an_expired_version_is_followed_by_a_list_that_finds_the_unseen_delete(
    server: ScriptedServer, mirror: Mirror, expire: Callable[[ScriptedServer], None]
) -> None:
    server.lists(pod("a", 1), pod("b", 2), pod("c", 3)).streams(changed("MODIFIED", pod("a", 101)), bookmark(150))
    expire(server)
    server.lists(pod("a", 101), pod("c", 3), pod("d", 160), version=200)
    async with played(server, mirror):
        assert mirror.story[3:] == ["MODIFIED a 101", "DELETED b 2", "ADDED d 160"]
        assert mirror.pods == ["a", "c", "d"]
        assert mirror.reflector.relists == 2
        assert mirror.reflector.version == "200"


async def test_a_kind_that_the_server_ceases_to_know_is_told_once_and_that_it_is_back_after_its_objects(
    server: ScriptedServer, mirror: Mirror
) -> None:
    server.lists(pod("a", 1)).streams(changed("MODIFIED", pod("a", 101)))
    server.refuses(404, "NotFound").refuses(404, "NotFound").lists(pod("b", 150), version=200)
    async with played(server, mirror):
        assert mirror.story == ["ADDED a 1", "MODIFIED a 101", "missing", "DELETED a 101", "ADDED b 150", "served"]
        assert queries(server, "watch")[2:5] == ["true", None, None]


@pytest.mark.parametrize(("code", "reason"), [(400, "BadRequest"), (422, "Invalid")])
async def test_a_version_that_the_server_does_not_understand_is_followed_by_a_list(
    server: ScriptedServer, mirror: Mirror, code: int, reason: str
) -> None:
    server.lists(pod("a", 1), version=900).refuses(code, reason).lists(pod("b", 2), version=7)
    async with played(server, mirror):
        assert mirror.pods == ["b"]
        assert mirror.reflector.version == "7"


async def test_an_object_deleted_and_made_again_unseen_is_a_delete_and_an_add(
    server: ScriptedServer, mirror: Mirror
) -> None:
    server.lists(pod("a", 1, uid="first")).refuses(410, "Expired").lists(pod("a", 150, uid="second"), version=200)
    async with played(server, mirror):
        assert mirror.story == ["ADDED a 1", "DELETED a 1", "ADDED a 150"]


async def test_a_reset_in_the_middle_of_a_chunk_resumes_from_the_last_version(
    server: ScriptedServer, mirror: Mirror, clock: ImpatientClock
) -> None:
    server.lists(pod("a", 1)).streams(changed("MODIFIED", pod("a", 101)), then="reset")
    server.streams(changed("MODIFIED", pod("a", 102)))
    async with played(server, mirror):
        assert mirror.story == ["ADDED a 1", "MODIFIED a 101", "MODIFIED a 102"]
        assert queries(server, "resourceVersion") == [None, "100", "101", "102"]
        assert len(clock.pauses) == 1


async def test_a_connection_that_breaks_before_the_answer_is_tried_again(
    server: ScriptedServer, mirror: Mirror, clock: ImpatientClock
) -> None:
    server.breaks().breaks().lists(pod("a", 1)).breaks().streams(changed("DELETED", pod("a", 101)))
    async with played(server, mirror):
        assert mirror.story == ["ADDED a 1", "DELETED a 101"]


async def test_failures_are_followed_by_growing_pauses_that_the_first_good_event_resets(
    server: ScriptedServer, mirror: Mirror, clock: ImpatientClock
) -> None:
    server.refuses(500, "InternalError").refuses(500, "InternalError").refuses(503, "ServiceUnavailable")
    server.lists(pod("a", 1)).refuses(500, "InternalError").streams(bookmark(101)).refuses(500, "InternalError")
    async with played(server, mirror):
        # A list that succeeds resets nothing: the fourth pause is longer than the third.
        assert all(0.2 * 2**n <= pause <= 0.4 * 2**n for n, pause in enumerate(clock.pauses[:4]))
        assert 0.2 <= clock.pauses[4] <= 0.4


async def test_a_server_that_asks_for_a_longer_pause_gets_it(
    server: ScriptedServer, mirror: Mirror, clock: ImpatientClock
) -> None:
    server.lists().refuses(429, "TooManyRequests", retry_after="7").refuses(503, "ServiceUnavailable", retry_after="99")
    async with played(server, mirror):
        assert clock.pauses == [7.0, 30.0]


async def test_a_server_that_answers_every_list_with_expired_is_not_asked_in_a_hot_loop(
    server: ScriptedServer, mirror: Mirror, clock: ImpatientClock
) -> None:
    for _ in range(8):
        server.refuses(410, "Expired")
    server.lists()
    async with played(server, mirror):
        assert len(clock.pauses) == 4  # each list is tried once more, in one page, before the pause
        assert sorted(clock.pauses) == clock.pauses


async def test_a_watch_that_ends_at_once_and_empty_counts_as_a_failure(
    server: ScriptedServer, mirror: Mirror, clock: ImpatientClock
) -> None:
    server.lists().streams().streams().streams()
    async with played(server, mirror):
        assert len(clock.pauses) == 3
        assert queries(server, "resourceVersion") == [None, "100", "100", "100", "100"]


async def test_after_five_failed_watches_in_a_row_the_version_is_doubted(
    server: ScriptedServer, mirror: Mirror
) -> None:
    server.lists(pod("a", 1))
    for _ in range(5):
        server.refuses(500, "InternalError")
    server.lists(pod("a", 1), version=300)
    async with played(server, mirror):
        assert mirror.reflector.version == "300"
        assert mirror.story == ["ADDED a 1"]


class LoadBalancer:
    """A transport that cuts every connection after 50 s of silence."""

    def __init__(self, clock: ImpatientClock, cuts: int) -> None:
        self.status = 200
        self.headers: Mapping[str, str] = {}
        self.clock = clock
        self.cuts = cuts
        self.lists = 0
        self.done = asyncio.Event()

    async def request(self, request: Request) -> Response:
        assert request.path == "/api/v1/pods"
        self.lists += 1
        return Response(status=200, body=b'{"metadata":{"resourceVersion":"100"},"items":[]}')

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        assert ("resourceVersion", "100") in request.query
        yield self

    async def read(self) -> bytes:
        return b""

    async def chunks(self) -> AsyncIterator[bytes]:
        self.cuts -= 1
        if self.cuts < 0:
            self.done.set()
            await asyncio.Event().wait()
        self.clock.time += 50.0
        raise ConnectionError("cut")
        yield  # makes it a generator

    async def close(self) -> None:
        self.done.set()


async def test_connections_cut_while_nothing_happens_make_pauses_no_longer_and_are_not_worth_a_word(
    clock: ImpatientClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    balancer = LoadBalancer(clock, cuts=10)
    mirror = Mirror(Client(balancer, field_manager="test", clock=clock), clock)
    task = asyncio.create_task(mirror.reflector.run())
    await balancer.done.wait()
    await cancelled(task)
    assert len(clock.pauses) == 10
    assert max(clock.pauses) < 0.5
    assert balancer.lists == 1
    assert not caplog.records


async def test_a_list_comes_in_pages_and_begins_again_when_it_expires(server: ScriptedServer, mirror: Mirror) -> None:
    server.lists(pod("a", 1), token="t1").lists(pod("b", 2), token="t2").refuses(410, "Expired")
    server.lists(pod("a", 5), pod("c", 6), version=120)
    async with played(server, mirror):
        assert queries(server, "continue")[:4] == [None, "t1", "t2", None]
        assert queries(server, "limit")[:4] == ["500", "500", "500", None]
        assert mirror.story == ["ADDED a 5", "ADDED c 6"]


POISON: dict[str, Any] = {
    "metadata": {"name": "bad", "namespace": "default", "uid": "uid-bad", "resourceVersion": "105"},
    "spec": 7,
}


async def test_a_poisonous_object_is_logged_counted_and_skipped_and_the_version_moves_on(
    server: ScriptedServer, mirror: Mirror, caplog: pytest.LogCaptureFixture
) -> None:
    server.lists(pod("a", 1)).streams(changed("ADDED", POISON)).streams(changed("MODIFIED", pod("a", 106)))
    with caplog.at_level(logging.WARNING):
        async with played(server, mirror):
            assert mirror.story == ["ADDED a 1", "MODIFIED a 106"]
            assert queries(server, "resourceVersion") == [None, "100", "105", "106"]
            assert mirror.reflector.skipped == 1
    assert "Pod default/bad is skipped" in caplog.text
    assert "spec is 7: Expected `object`" in caplog.text


async def test_a_poisonous_object_in_a_list_does_not_hide_the_others_nor_forget_its_last_good_state(
    server: ScriptedServer, mirror: Mirror
) -> None:
    server.lists(pod("bad", 1), pod("a", 2)).refuses(410, "Expired").lists(POISON, pod("c", 110), version=111)
    async with played(server, mirror):
        assert mirror.story == ["ADDED bad 1", "ADDED a 2", "DELETED a 2", "ADDED c 110"]
        assert mirror.pods == ["bad", "c"]
        assert mirror.reflector.skipped == 1


@pytest.mark.parametrize("seen", [True, False])
async def test_a_poisonous_object_made_again_under_a_known_name_ends_the_old_one(
    server: ScriptedServer, mirror: Mirror, seen: bool
) -> None:
    server.lists(pod("bad", 1, uid="an older one"))
    if seen:
        server.streams(changed("ADDED", POISON))
    else:
        server.refuses(410, "Expired").lists(POISON, version=111)
    async with played(server, mirror):
        assert mirror.story == ["ADDED bad 1", "DELETED bad 1"]


async def test_a_poisonous_object_that_goes_away_is_gone(server: ScriptedServer, mirror: Mirror) -> None:
    server.lists(pod("bad", 1)).streams(changed("MODIFIED", POISON), changed("DELETED", POISON))
    async with played(server, mirror):
        assert mirror.story == ["ADDED bad 1", "DELETED bad 1"]


@pytest.mark.parametrize("listed", [True, False])
async def test_that_an_object_cannot_be_read_is_told_once_and_that_it_can_again(
    server: ScriptedServer, mirror: Mirror, listed: bool
) -> None:
    worse = {**POISON, "metadata": {**POISON["metadata"], "resourceVersion": "107"}}
    good = pod("bad", 108)
    if listed:
        server.lists(POISON, version=105).refuses(410, "Expired").lists(worse, version=107)
        server.refuses(410, "Expired").lists(good, version=108)
    else:
        server.lists().streams(changed("ADDED", POISON), changed("MODIFIED", worse), changed("MODIFIED", good))
    async with played(server, mirror):
        assert mirror.unreadable == ["default/bad: spec is 7: Expected `object`, got `int`", "default/bad: None"]
        assert mirror.story == ["ADDED bad 108"]
        assert mirror.reflector.unreadable == {}


@pytest.mark.parametrize("listed", [True, False])
async def test_an_object_that_cannot_be_read_and_goes_away_is_told_as_over(
    server: ScriptedServer, mirror: Mirror, listed: bool
) -> None:
    server.lists(POISON)
    if listed:
        server.refuses(410, "Expired").lists(version=111)
    else:
        server.streams(changed("DELETED", POISON))
    async with played(server, mirror):
        assert mirror.unreadable[1:] == ["default/bad: None"]


async def test_versions_that_go_back_are_told_before_the_objects_of_before(
    server: ScriptedServer, mirror: Mirror
) -> None:
    server.lists(pod("a", 90), version=90).streams(changed("MODIFIED", pod("a", 120)))
    server.refuses(504, "Timeout", causes=[{"reason": "ResourceVersionTooLarge", "message": "Too large"}])
    server.lists(pod("a", 60), version=70).refuses(410, "Expired").lists(pod("a", 80), version=85)
    async with played(server, mirror):
        assert mirror.story == ["ADDED a 90", "MODIFIED a 120", "rewound", "MODIFIED a 60", "MODIFIED a 80"]


async def test_a_stream_that_stands_before_the_version_that_was_asked_for_is_followed_by_a_list(
    server: ScriptedServer, mirror: Mirror
) -> None:
    """A server on a restored etcd shows nothing to a watch that is ahead of it, but for bookmarks."""
    server.lists(pod("a", 90), version=120).streams(bookmark(50)).lists(pod("a", 40), version=50)
    async with played(server, mirror):
        assert mirror.story == ["ADDED a 90", "rewound", "MODIFIED a 40"]


async def test_an_object_of_more_than_a_megabyte_arrives_whole_however_it_is_cut(
    server: ScriptedServer, mirror: Mirror
) -> None:
    big = pod("big", 101)
    big["metadata"]["annotations"] = {"data": "x" * 1_300_000}
    server.lists().streams(changed("ADDED", big), changed("MODIFIED", pod("big", 102)), cut=8191)
    async with played(server, mirror):
        assert mirror.story == ["ADDED big 101", "MODIFIED big 102"]


async def test_lines_are_understood_in_any_order_of_fields(server: ScriptedServer, mirror: Mirror) -> None:
    server.lists().streams(
        {"object": pod("a", 101), "type": "ADDED"},
        {"object": bookmark(140)["object"], "type": "BOOKMARK"},
        {"object": status_line(410, "Expired")["object"], "type": "ERROR"},
    )
    server.lists(pod("a", 101), version=150)
    async with played(server, mirror):
        assert mirror.story == ["ADDED a 101"]
        assert mirror.reflector.relists == 2


async def test_garbage_in_the_stream_is_a_failure_and_not_the_end(
    server: ScriptedServer, mirror: Mirror, clock: ImpatientClock
) -> None:
    server.lists().streams(b"<html>busy</html>").streams(changed("ADDED", pod("a", 101)))
    async with played(server, mirror):
        assert mirror.story == ["ADDED a 101"]
        assert len(clock.pauses) == 1


async def test_selectors_and_the_namespace_are_passed_on(
    server: ScriptedServer, client: Client, clock: ImpatientClock
) -> None:
    mirror = Mirror(
        client, clock, WatchScope(namespace="team", label_selector="a=b,c", field_selector="spec.nodeName=n1")
    )
    server.lists()
    async with played(server, mirror):
        for call in server.calls:
            assert call.path == "/api/v1/namespaces/team/pods"
            assert call.query["labelSelector"] == "a=b,c"
            assert call.query["fieldSelector"] == "spec.nodeName=n1"


async def test_an_exception_of_the_handler_ends_the_run(
    server: ScriptedServer, client: Client, clock: ImpatientClock
) -> None:
    class Explosive(Mirror):
        def object_changed(self, event: WatchEvent[Pod]) -> None:
            raise LookupError(event.object.metadata.name)

    server.lists(pod("a", 1))
    with pytest.raises(LookupError, match="a"):
        await Explosive(client, clock).reflector.run()


async def test_who_waits_for_a_first_look_is_told_of_a_refusal(server: ScriptedServer, mirror: Mirror) -> None:
    server.refuses(403, "Forbidden")
    async with played(server, mirror):
        assert mirror.reflector.attempted.is_set()
        assert not mirror.reflector.synced.is_set()
        assert isinstance(mirror.reflector.error, Forbidden)


async def test_a_refusal_is_forgotten_once_a_list_is_allowed(server: ScriptedServer, mirror: Mirror) -> None:
    server.refuses(403, "Forbidden").lists(pod("a", 1)).refuses(500, "InternalError")
    async with played(server, mirror):
        assert mirror.reflector.synced.is_set()
        assert mirror.reflector.error is None
