"""Events for people: repeats are counted on one event, and nothing ever waits for them."""

import asyncio
import random

import pytest
from tests.kube.conftest import ImpatientClock, ScriptedServer, cancelled

from tessera.kube.client import Client
from tessera.kube.errors import Forbidden
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.resources import NODES, PODS

POD = make_reference(PODS, "a", "ns", "uid-a")
MADE = {"metadata": {"name": "made"}}


@pytest.fixture
def recorder(client: Client, clock: ImpatientClock) -> EventRecorder:
    return EventRecorder(
        client, component="tessera-controller", instance="pod-1", clock=clock, rng=random.Random(1), capacity=3
    )


async def test_an_event_lives_beside_its_object(server: ScriptedServer, recorder: EventRecorder) -> None:
    server.answers(MADE, 201)
    recorder.record(POD, "Waiting", "no card has room", type="Warning")
    await recorder.flush()
    (call,) = server.calls
    assert (call.method, call.path) == ("POST", "/api/v1/namespaces/ns/events")
    body = call.json
    assert body["metadata"]["name"].startswith("a.")
    assert body["metadata"]["namespace"] == "ns"
    assert body["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "ns",
        "name": "a",
        "uid": "uid-a",
    }
    assert (body["type"], body["reason"], body["message"]) == ("Warning", "Waiting", "no card has room")
    assert (body["count"], body["firstTimestamp"]) == (1, "1970-01-12T13:46:40Z")
    assert body["source"] == {"component": "tessera-controller"}


async def test_an_event_about_an_object_without_a_namespace_lives_in_default(
    server: ScriptedServer, recorder: EventRecorder
) -> None:
    server.answers(MADE, 201)
    recorder.record(make_reference(NODES, "n1"), "Joined", "4 cards")
    await recorder.flush()
    assert server.calls[0].path == "/api/v1/namespaces/default/events"
    assert "namespace" not in server.calls[0].json["involvedObject"]


async def test_repeats_raise_the_count_of_the_event_there_is(
    server: ScriptedServer, recorder: EventRecorder, clock: ImpatientClock
) -> None:
    server.answers(MADE, 201).answers(MADE)
    recorder.record(POD, "Waiting", "full")
    recorder.record(POD, "Waiting", "full")
    await recorder.flush()
    clock.time += 60
    recorder.record(POD, "Waiting", "full")
    await recorder.flush()
    made, patched = server.calls
    assert made.json["count"] == 2
    assert patched.method == "PATCH"
    assert patched.path.endswith(made.json["metadata"]["name"])
    assert patched.json == {"count": 3, "lastTimestamp": "1970-01-12T13:47:40Z"}


async def test_a_repeat_after_ten_minutes_or_of_an_event_that_is_gone_is_a_new_event(
    server: ScriptedServer, recorder: EventRecorder, clock: ImpatientClock
) -> None:
    server.answers(MADE, 201).refuses(404, "NotFound").answers(MADE, 201).answers(MADE, 201)
    for pause in (0, 1, 601):
        clock.time += pause
        recorder.record(POD, "Waiting", "full")
        await recorder.flush()
    assert [call.method for call in server.calls] == ["POST", "PATCH", "POST", "POST"]
    assert [call.json["count"] for call in server.calls] == [1, 2, 1, 1]


async def test_a_full_table_drops_and_counts_and_never_waits(recorder: EventRecorder) -> None:
    for number in range(5):
        recorder.record(POD, "Waiting", f"note {number}")
    recorder.record(POD, "Waiting", "note 0")
    assert (recorder.waiting, recorder.dropped) == (3, 2)


async def test_a_refused_event_is_dropped_and_a_broken_connection_tried_three_times(
    server: ScriptedServer, recorder: EventRecorder, clock: ImpatientClock
) -> None:
    server.refuses(403, "Forbidden").breaks().breaks().breaks().breaks().answers(MADE, 201)
    for note in ("refused", "broken", "lucky"):
        recorder.record(POD, "Waiting", note)
    await recorder.flush()
    assert (recorder.dropped, recorder.sent) == (2, 1)
    assert len(clock.pauses) == 3


async def test_a_note_is_cut_to_1024_bytes_between_characters(server: ScriptedServer, recorder: EventRecorder) -> None:
    server.answers(MADE, 201)
    recorder.record(POD, "Waiting", "ä" * 600)
    await recorder.flush()
    note = server.calls[0].json["message"]
    assert len(note.encode()) <= 1024
    assert note == "ä" * 510 + "..."


async def test_run_sends_what_is_recorded_later(server: ScriptedServer, recorder: EventRecorder) -> None:
    server.answers(MADE, 201)
    task = asyncio.create_task(recorder.run())
    await asyncio.sleep(0)
    recorder.record(POD, "Waiting", "full")
    recorder.record(POD, "Waiting", "fuller")
    async with asyncio.timeout(60):
        await server.exhausted.wait()
    assert recorder.sent == 1
    await cancelled(task)


async def test_an_event_with_a_key_is_sent_once_also_by_a_restarted_process(
    server: ScriptedServer, recorder: EventRecorder
) -> None:
    taken = {"kind": "Status", "reason": "AlreadyExists", "code": 409, "message": "it exists"}
    server.answers(MADE, 201).answers(taken, 409)
    for _ in range(2):
        await recorder.send_once(POD, "GpuUnhealthy", "XID 48", type="Warning", key="0123")
    assert [call.json["metadata"]["name"] for call in server.calls] == ["a.0123", "a.0123"]
    assert recorder.sent == 1


async def test_an_event_with_a_key_that_the_server_does_not_take_is_an_error(
    server: ScriptedServer, recorder: EventRecorder
) -> None:
    server.answers({"kind": "Status", "reason": "Forbidden", "code": 403, "message": "no"}, 403)
    with pytest.raises(Forbidden):
        await recorder.send_once(POD, "GpuUnhealthy", "XID 48", type="Warning", key="0123")
