"""The live page's reading of Kueue: each reader gets a part, and is told what is missing from it."""

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
from tests.dashboard.guarded import Guarded
from tests.support.api_user import ManualClock
from tests.support.kueue.answers import HTML, KueueAnswers

from tessera.access.reviewer import Person, Reviewer
from tessera.dashboard.documents import KueueDocument
from tessera.dashboard.feed import FeedGroup
from tessera.dashboard.kueue_source import KUEUE_SHOWN, KUEUE_WORKLOADS, KueueReader, KueueSource, share_out
from tessera.dashboard.visitors import KUEUE_NAMED, Rights
from tessera.kube.requests import Response
from tessera.kueue.waiting_workloads import KUEUE_NAMESPACES, KUEUE_READ
from tessera.visibility import FULL, Visibility

CROWD = {f"aaa-{number:02}": 2 for number in range(KUEUE_NAMESPACES)}
ACCOUNT = "the page's account"


class Page:
    """The page in front of a Kueue."""

    def __init__(self, namespaces: dict[str, int]) -> None:
        self.kueue, self.clock, self.feeds = KueueAnswers(namespaces), ManualClock(), FeedGroup()
        self.source = KueueSource(
            self.kueue.client(self.clock),
            watched=lambda: True,
            changed=self.publish,
            clock=self.clock,
            reader=KueueReader(ACCOUNT, lambda: self.feeds.workload_namespaces),
        )

    def publish(self) -> None:
        self.feeds.publish(self.source.documents)

    def seen(self, visibility: Visibility) -> Mapping[str, Any]:
        """What a reader gets who opens the page."""
        with self.feeds.join(visibility, "reader") as feed:
            update = feed.read(None)
            assert update is not None
            found: dict[str, Any] = msgspec.json.decode(update.texts[0])["set"]
            return found


def tenant(*namespaces: str) -> Visibility:
    return Visibility(workloads=frozenset(namespaces))


async def test_a_namespace_beyond_the_number_that_is_shown_comes_first_once_its_reader_is_there() -> None:
    page = Page({**CROWD, "zeta": 3})
    await page.source.read()
    assert page.feeds.about.workloads == {*CROWD, "zeta"}  # so rights are asked for it
    zeta = tenant("zeta")
    assert page.seen(zeta) == {"kueue": {}, "unshown/zeta": {"namespace": "zeta", "workloads": 3}}
    with page.feeds.join(zeta, "zeta"):
        await page.source.read()
    assert set(page.seen(zeta)) == {"kueue", "workload/zeta/w00000", "workload/zeta/w00001", "workload/zeta/w00002"}


async def test_a_reader_of_many_namespaces_does_not_hide_that_of_another() -> None:
    page = Page({**CROWD, "zeta": 3})
    zeta = tenant("zeta")
    with page.feeds.join(tenant(*CROWD), "crowd"), page.feeds.join(zeta, "zeta"):
        await page.source.read()
        assert len(page.seen(zeta)) == 4
        assert sum(key.startswith("workload/") for key in page.seen(tenant(*CROWD))) == 2 * (KUEUE_NAMESPACES - 1)


async def test_a_tenant_sees_a_namespace_at_the_end_of_the_alphabet_by_the_clusters_rights_alone() -> None:
    page, cluster = Page({**CROWD, "zeta": 1}), Guarded()
    await cluster.begin()
    await cluster.let("ann", "workloads", ["zeta"])
    rights = Rights(Reviewer(cluster.page), cluster.clock, lambda: page.feeds.about)
    await page.source.read()
    visibility = await rights.visibility(Person("ann"))
    with page.feeds.join(visibility, "reader"):
        await page.source.read()
        assert "workload/zeta/w00000" in page.seen(await rights.visibility(Person("ann")))
    assert "workload/zeta/w00000" not in page.seen(await rights.visibility(Person("eve")))


async def test_a_tenant_with_many_workloads_is_told_how_many_are_not_shown() -> None:
    page = Page({"a": KUEUE_WORKLOADS + 100, "b": 1})
    await page.source.read()
    seen = page.seen(tenant("a"))
    assert seen["unshown/a"] == {"namespace": "a", "workloads": 100}
    assert sum(key.startswith("workload/a/") for key in seen) == KUEUE_WORKLOADS
    assert seen["workload/a/w00199"]["position"] == 200
    assert set(page.seen(tenant("b"))) == {"kueue", "workload/b/w00000"}
    assert set(page.seen(tenant())) == {"kueue"}


async def test_after_a_failure_a_tenant_keeps_what_was_read_and_is_told_since_when() -> None:
    page = Page({"a": 1})
    await page.source.read()
    read = page.clock.now()
    page.clock.seconds += 60
    page.kueue.answers["workloads"] = HTML
    await page.source.read()
    seen = page.seen(tenant("a"))
    assert "workload/a/w00000" in seen
    assert seen["kueue"] == {"notes": ["Kueue's queues cannot be read now"], "read": read}
    assert "does not fit Workload" in page.seen(FULL)["kueue"]["detail"]
    del page.kueue.answers["workloads"]
    await page.source.read()
    assert page.seen(tenant("a"))["kueue"] == {}


BROKEN = {
    "a proxy answers for the list": ("/workloads", HTML),
    "a proxy answers for the group": ("/apis/kueue.x-k8s.io", HTML),
    "a proxy answers for the queues": ("v1beta1/localqueues", HTML),
    "no list": ("/workloads", Response(status=200, headers={}, body=b"5")),
    "an object that breaks its type": (
        "/workloads",
        Response(status=200, headers={}, body=b'{"items":[{"metadata":{"name":"w"},"spec":{"podSets":null}}]}'),
    ),
    "no text": ("/apis/kueue.x-k8s.io", Response(status=200, headers={}, body=b'{"preferredVersion":"\xff"}')),
    "an error": ("/workloads", Response(status=500, headers={}, body=b"oops")),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_a_bad_answer_does_not_stop_the_page(case: str) -> None:
    page = Page({"a": 1})
    part, answer = BROKEN[case]
    page.kueue.answers[part] = answer
    running = asyncio.create_task(page.source.run())
    while len(page.kueue.asked) < 20:
        await asyncio.sleep(0)
        assert not running.done()
    page.kueue.answers.clear()
    while "workload/a/w00000" not in page.source.documents:
        await asyncio.sleep(0)
        assert not running.done()
    running.cancel()


async def test_a_missing_right_of_the_account_is_said_once_and_of_the_account() -> None:
    page = Page(CROWD)
    page.kueue.answers["localqueues"] = None
    await page.source.read()
    note = (
        "places in queues are not known: the page's account may not list localqueues.kueue.x-k8s.io of all namespaces"
    )
    assert page.source.documents["kueue"] == KueueDocument(notes=(note,))
    page.kueue.answers = {"/workloads": None}
    await page.source.read()
    assert page.seen(tenant())["kueue"]["notes"] == [
        "the page's account may not list workloads.kueue.x-k8s.io of all namespaces"
    ]


async def test_a_refusal_of_one_queue_is_said_of_some_queues_and_the_others_have_places() -> None:
    page = Page({"a": 1, "b": 1})
    page.kueue.answers["namespaces/a/localqueues"] = Response(status=422, headers={}, body=b"odd")
    await page.source.read()
    seen = page.seen(tenant("a", "b"))
    assert seen["kueue"] == {
        "notes": ["places in some queues are not known: Kueue's visibility API refuses places of a queue"]
    }
    assert (seen["workload/a/w00000"].get("position"), seen["workload/b/w00000"]["position"]) == (None, 1)


async def test_all_are_told_that_more_workloads_exist_than_are_read() -> None:
    page = Page({"a": KUEUE_READ, "b": 1})
    await page.source.read()
    (note,) = page.seen(tenant("b"))["kueue"]["notes"]
    assert note.startswith("Kueue has more Workloads than this page reads at once")


async def test_a_tenant_behind_a_list_that_is_cut_sees_its_workloads_by_the_clusters_rights_alone() -> None:
    page, cluster = Page({"aaa": KUEUE_READ, **CROWD, "zeta": 3}), Guarded()
    await cluster.begin()
    await cluster.let("ann", "workloads", ["zeta"])
    rights = Rights(Reviewer(cluster.page), cluster.clock, lambda: page.feeds.about)
    for _ in range(2):  # more namespaces are behind the end of the list than are listed by themselves at a time
        await page.source.read()
    visibility = await rights.visibility(Person("ann"))
    for _ in range(3):
        with page.feeds.join(visibility, "reader"):
            await page.source.read()
            visibility = await rights.visibility(Person("ann"))
        assert {key for key in page.seen(visibility) if "zeta" in key} == {
            f"workload/zeta/w0000{at}" for at in range(3)
        }


async def test_namespaces_that_cannot_be_named_at_a_time_take_turns() -> None:
    page = Page({f"n{number:03}": 1 for number in range(KUEUE_NAMED + 40)})
    named: set[str] = set()
    for _ in range(2):
        await page.source.read()
        assert len(page.feeds.about.workloads) == KUEUE_NAMED
        named |= page.feeds.about.workloads
    assert named == set(page.kueue.namespaces)
    (note,) = page.seen(tenant())["kueue"]["notes"]
    assert note.endswith("they take turns")


@pytest.mark.parametrize("many", [100, 180])
async def test_a_reader_of_many_namespaces_leaves_turns_to_a_reader_of_one_who_comes_later(many: int) -> None:
    names = [f"n{number:03}" for number in range(200)]
    page, cluster = Page(dict.fromkeys(names, 1)), Guarded()
    await cluster.begin()
    await cluster.let("ann", "workloads", names[:many])
    await cluster.let("bob", "workloads", names[-1:])
    rights = Rights(Reviewer(cluster.page), cluster.clock, lambda: page.feeds.about)
    await page.source.read()
    seen: list[bool] = []
    for number in range(40):
        people = [Person("ann"), Person("bob")] if number >= 10 else [Person("ann")]
        with ExitStack() as present:
            for person in people:
                present.enter_context(page.feeds.join(await rights.visibility(person), person.share))
            await page.source.read()
        if number >= 10:
            seen.append(any(names[-1] in key for key in page.seen(await rights.visibility(Person("bob")))))
        cluster.clock.seconds += 15
    turns = -(-len(names) // (KUEUE_NAMED // 4))
    assert all(any(seen[at : at + turns]) for at in range(len(seen) - turns))


async def test_others_have_the_event_loop_between_two_namespaces() -> None:
    page = Page(CROWD)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await page.source.read()
    task.cancel()
    assert turns >= KUEUE_NAMESPACES


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ({}, {}),
        ({"a": 3, "b": KUEUE_WORKLOADS + 1}, {"a": 3, "b": KUEUE_WORKLOADS}),
        (dict.fromkeys("abcdefghijklmnopqrst", 1_000), dict.fromkeys("abcdefghijklmnopqrst", KUEUE_SHOWN // 20)),
        (
            {"small": 10, **dict.fromkeys("abcdefghijklmnopqrs", 1_000)},
            {"small": 10, **dict.fromkeys("abcdefghijklmnopqrs", (KUEUE_SHOWN - 10) // 19)},
        ),
    ],
)
def test_large_namespaces_have_equal_parts(sizes: dict[str, int], parts: dict[str, int]) -> None:
    found = share_out(sizes)
    assert sum(found.values()) <= KUEUE_SHOWN
    assert all(parts[name] <= found[name] <= parts[name] + 1 for name in parts)
    assert found.keys() == parts.keys()
