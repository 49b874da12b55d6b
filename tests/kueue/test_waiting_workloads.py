"""What waits in Kueue is read within bounds, and what is not read is said once."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.api_user import ManualClock
from tests.support.kueue.answers import HTML, KueueAnswers

from tessera.dashboard.kueue_source import KUEUE_WORKLOADS
from tessera.explain.kueue_rows import read_kueue_rows, rows_of
from tessera.explain.queue import explain_workload_in_queue
from tessera.kube.requests import Response
from tessera.kueue.positions import (
    KUEUE_ANSWERS,
    KUEUE_PLACES,
    PAGE,
    PositionReader,
    QueueReading,
    QueueSize,
    read_queues,
)
from tessera.kueue.waiting_workloads import (
    KUEUE_LISTED,
    KUEUE_NAMESPACES,
    KUEUE_READ,
    Turns,
    WaitingWorkloads,
    read_waiting_workloads,
)


async def read(kueue: KueueAnswers, **more: Any) -> WaitingWorkloads:
    return await read_waiting_workloads(kueue.client(ManualClock()), PAGE, **more)


@pytest.mark.parametrize(
    ("count", "size"),
    [(999, QueueSize(999)), (PAGE, QueueSize(PAGE)), (2_500, QueueSize(2_500)), (10_001, QueueSize(10_000, more=True))],
)
async def test_a_command_reads_the_places_of_a_queue_up_to_a_bound(count: int, size: QueueSize) -> None:
    reading = await read_queues(KueueAnswers({"a": count}).client(ManualClock()), "a")
    assert reading.sizes == {"q": size}
    assert len(reading.positions) == min(count, KUEUE_PLACES)


async def test_the_page_reads_a_thousand_places_and_knows_that_there_are_more() -> None:
    found = await read(KueueAnswers({"a": 2_500, "b": 3}))
    assert found.namespaces["a"].sizes == {"q": QueueSize(PAGE, more=True)}
    assert found.namespaces["b"].sizes == {"q": QueueSize(3)}


async def test_a_place_in_a_long_queue_has_at_least_so_many_beside_it() -> None:
    reading = (await read(KueueAnswers({"a": 2_500}))).namespaces["a"]
    found = explain_workload_in_queue(reading, reading.workloads[4], 0.0)
    assert "it is number 5 of at least 1,000 in that queue, and number 5 among all" in " ".join(found.facts)
    (row,) = rows_of(reading, 0.0, 1)
    assert (row.position, row.of, row.of_more) == (1, 1_000, True)


class NotLookedThrough(dict[str, Any]):
    """A mapping that may be asked for a key, and not be looked through."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("it was looked through")

    keys = values = items = __iter__  # type: ignore[assignment]


async def test_a_row_costs_the_same_however_many_workloads_wait() -> None:
    reading = (await read(KueueAnswers({"a": 900}))).namespaces["a"]
    places: dict[str, Any] = NotLookedThrough({name: reading.positions[name] for name in reading.positions})
    rows = rows_of(
        QueueReading(workloads=reading.workloads, queues=reading.queues, positions=places, sizes=reading.sizes),
        0.0,
        KUEUE_WORKLOADS,
    )
    assert [row.position for row in rows] == list(range(1, KUEUE_WORKLOADS + 1))
    assert {row.of for row in rows} == {900}


async def test_more_workloads_than_are_read_are_said_to_be_there() -> None:
    kueue = KueueAnswers({"a": KUEUE_READ - 10, "b": 400, "c": 1_000})
    found = await read(kueue)
    assert found.cut
    assert sum(len(each.workloads) for each in found.namespaces.values()) == KUEUE_READ
    assert "c" not in found.namespaces
    assert not (await read(KueueAnswers({"a": 700}))).cut


async def test_admitted_workloads_do_not_count_as_waiting_ones() -> None:
    kueue = KueueAnswers({"a": KUEUE_READ + 1_000, "b": 3})
    kueue.admitted = {"a"}
    found = await read(kueue)
    assert (len(found.namespaces["b"].workloads), found.cut) == (3, False)


async def test_a_list_of_admitted_workloads_ends_too_and_readers_still_get_theirs() -> None:
    kueue = KueueAnswers({"a": KUEUE_LISTED, "b": 3, "c": 2})
    kueue.admitted = {"a"}
    found = await read(kueue, first=["c"], turns=Turns())
    assert {name: len(each.workloads) for name, each in found.namespaces.items()} == {"b": 3, "c": 2}
    assert found.namespaces["c"].positions
    assert found.cut


async def test_what_is_listed_behind_the_end_is_bounded_and_takes_turns() -> None:
    kueue = KueueAnswers({"a": KUEUE_READ, **{f"n{number:03}": 1 for number in range(60)}})
    turns, seen, own = Turns(), set[str](), [f"n{number:03}" for number in range(45)]
    for _ in range(2):
        kueue.asked.clear()
        found = await read(kueue, first=own, turns=turns)
        alone = [path for path in kueue.asked if "/namespaces/" in path and path.endswith("/workloads")]
        assert len(alone) == KUEUE_NAMESPACES
        assert len(found.namespaces["a"].workloads) == KUEUE_READ  # also where it was listed alone, up to a bound
        seen |= {*found.namespaces, *found.others}
    assert seen == set(kueue.namespaces)


async def test_the_namespaces_of_readers_come_before_others() -> None:
    kueue = KueueAnswers({**{f"aaa-{number:02}": 2 for number in range(KUEUE_NAMESPACES)}, "zeta": 3})
    found = await read(kueue)
    assert found.others == {"zeta": 3}
    found = await read(kueue, first=["zeta"])
    assert len(found.namespaces["zeta"].workloads) == 3
    assert found.others == {f"aaa-{KUEUE_NAMESPACES - 1:02}": 2}


async def test_the_number_of_answers_about_places_is_bounded() -> None:
    kueue = KueueAnswers({"a": 1})
    found = await PositionReader(kueue.client(ManualClock()), PAGE).read({"a": ["q"] * (KUEUE_ANSWERS + 1)})
    assert sum("pendingworkloads" in path for path in kueue.asked) == KUEUE_ANSWERS
    assert found["a"].silent == "Kueue gave 200 answers, and no more are asked for"


async def test_many_queues_of_a_namespace_take_no_answers_of_others() -> None:
    kueue = KueueAnswers({"a": 1, "b": 1, "c": 1})
    queues = {"a": ["q"] * KUEUE_ANSWERS, "b": ["q"] * 2, "c": ["q"]}
    found = await PositionReader(kueue.client(ManualClock()), PAGE).read(queues)
    assert [bool(each.silent) for each in found.values()] == [True, False, False]
    assert sum("/b/" in path for path in kueue.asked) == 2
    assert found["c"].places


async def test_long_queues_share_the_answers_and_the_note_says_that_some_places_are_not_known() -> None:
    kueue = KueueAnswers({f"n{number:02}": 1 for number in range(24)})
    kueue.places = KUEUE_PLACES
    found = await read_kueue_rows(kueue.client(ManualClock()), None, 0.0)
    assert found.notes == (
        "positions in some of Kueue's queues are not known: Kueue gave 200 answers, and no more are asked for",
    )
    assert {row.namespace for row in found.rows if row.position} == set(kueue.namespaces)
    assert {row.of for row in found.rows} == {8_000, 9_000}, "as many answers for each, but for the last ones"


async def test_the_namespaces_of_readers_are_asked_about_before_others() -> None:
    kueue = KueueAnswers({f"n{number:02}": 1 for number in range(24)})
    kueue.places = KUEUE_PLACES
    client = kueue.client(ManualClock())
    found = await read_waiting_workloads(client, KUEUE_PLACES, first=["n23"])
    sizes = {name: each.sizes["q"] for name, each in found.namespaces.items()}
    assert (sizes["n23"], sizes["n22"]) == (QueueSize(9_000, more=True), QueueSize(8_000, more=True))


@pytest.mark.parametrize(
    ("code", "known", "silent"),
    [
        (400, {"a", "c"}, "Kueue's visibility API refuses places of a queue"),
        (422, {"a", "c"}, "Kueue's visibility API refuses places of a queue"),
        (401, {"a"}, "Kueue's visibility API does not answer"),
        (429, {"a"}, "Kueue's visibility API does not answer"),
        (500, {"a"}, "Kueue's visibility API does not answer"),
        (503, {"a"}, "Kueue's visibility API does not answer"),
    ],
)
async def test_a_refusal_of_one_queue_does_not_hide_the_places_of_others(
    code: int, known: set[str], silent: str
) -> None:
    kueue = KueueAnswers({"a": 1, "b": 1, "c": 1})
    kueue.answers["namespaces/b/localqueues/q/pendingworkloads"] = Response(status=code, headers={}, body=b"odd")
    found = await read(kueue)
    assert {name for name, each in found.namespaces.items() if each.positions} == known
    assert (found.silent, found.some_places) == (silent, True)
    assert found.namespaces["b"].silent.startswith(silent)
    assert "odd" in found.error


async def test_a_silent_visibility_api_is_asked_once() -> None:
    kueue = KueueAnswers({"a": 1, "b": 1, "c": 1})
    kueue.answers["pendingworkloads"] = HTML
    found = await read(kueue)
    assert found.silent == "Kueue's visibility API does not answer"
    assert found.error.startswith("JSON is malformed")
    assert sum("pendingworkloads" in path for path in kueue.asked) == 1
    assert len(found.namespaces) == 3


async def test_what_the_user_may_not_list_is_said_once_for_all_namespaces() -> None:
    kueue = KueueAnswers({f"n{number}": 1 for number in range(60)})
    kueue.answers["localqueues"] = None
    found = await read_kueue_rows(kueue.client(ManualClock()), None, 0.0)
    assert len(found.rows) == KUEUE_NAMESPACES
    assert found.notes == (
        "Kueue's queues of 10 further namespaces, with 10 Workloads, are not shown: name one with -n",
        "you may not list localqueues.kueue.x-k8s.io of all namespaces: positions in Kueue are not known",
    )


async def test_places_that_the_user_may_not_get_are_said_once() -> None:
    kueue = KueueAnswers({"a": 1, "b": 1})
    kueue.answers["pendingworkloads"] = None
    found = await read_kueue_rows(kueue.client(ManualClock()), None, 0.0)
    assert found.notes == (
        "positions in Kueue are not known: you may not get localqueues/pendingworkloads.visibility.kueue.x-k8s.io",
    )
