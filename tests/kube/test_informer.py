"""One mirror for many readers."""

import asyncio
import random
from collections.abc import Callable
from operator import attrgetter

from tests.kube.conftest import ImpatientClock, ScriptedServer, cancelled, names, pod

from tessera.kube.client import Client
from tessera.kube.informer import Informer, ObjectInformer, WatchEvent, read_nothing, read_parts
from tessera.kube.resources import PODS, Pod


async def test_handlers_hear_what_is_there_and_what_changes_and_see_it_in_the_index(
    server: ScriptedServer, client: Client, clock: ImpatientClock
) -> None:
    server.lists(pod("a", 1, node="n1")).streams({"type": "ADDED", "object": pod("b", 101, node="n1")})
    informer = Informer(
        client, PODS, clock=clock, rng=random.Random(1), indexes={"node": lambda item: (item.spec.node_name,)}
    )
    heard: list[str] = []

    def hear(event: WatchEvent[Pod]) -> None:
        assert event.object in informer.cache.by_index("node", "n1")
        heard.append(f"{event.kind} {event.object.metadata.name}")

    informer.add_handler(hear)
    assert not informer.synced
    task = asyncio.create_task(informer.run())
    async with asyncio.timeout(60):
        await informer.wait_synced()
        assert names(list(informer.cache.values())) == ["a"]
        await server.exhausted.wait()
    late: list[str] = []
    informer.add_handler(lambda event: late.append(f"{event.kind} {event.object.metadata.name}"))
    assert heard == late == ["ADDED a", "ADDED b"]
    await cancelled(task)


async def test_a_handler_hears_of_a_change_only_if_it_reads_what_changed(
    server: ScriptedServer, client: Client, clock: ImpatientClock
) -> None:
    quiet = {"type": "MODIFIED", "object": pod("a", 101, node="n1", status={"phase": "Running"})}
    moved = {"type": "MODIFIED", "object": pod("a", 102, node="n2")}
    again = {"type": "ADDED", "object": pod("a", 103, uid="another", node="n2")}
    gone = {"type": "DELETED", "object": pod("a", 104, uid="another", node="n2")}
    server.lists(pod("a", 1, node="n1")).streams(quiet, moved, again, gone)
    informer = Informer(client, PODS, clock=clock, rng=random.Random(1))
    heard: dict[str, list[str]] = {"node": [], "nothing": [], "annotated": []}

    def hear(name: str, reads: Callable[[Pod], object]) -> None:
        def note(event: WatchEvent[Pod]) -> None:
            heard[name].append(f"{event.kind} {event.object.metadata.resource_version}")

        informer.add_handler(note, reads=reads)

    hear("node", attrgetter("spec.node_name"))
    hear("nothing", read_nothing)
    hear("annotated", read_parts(annotations=("x",)))
    task = asyncio.create_task(informer.run())
    async with asyncio.timeout(60):
        await server.exhausted.wait()
    came_and_went = ["ADDED 1", "DELETED 102", "ADDED 103", "DELETED 104"]
    assert heard["node"] == ["ADDED 1", "MODIFIED 102", *came_and_went[1:]]
    assert heard["nothing"] == heard["annotated"] == came_and_went
    await cancelled(task)


async def test_untyped_resources_are_mirrored_too(
    server: ScriptedServer, client: Client, clock: ImpatientClock
) -> None:
    server.lists(pod("a", 1)).streams({"type": "MODIFIED", "object": pod("a", 101, other=[1, 2])})
    informer = Informer(client, PODS.as_dicts(), clock=clock, rng=random.Random(1))
    task = asyncio.create_task(informer.run())
    async with asyncio.timeout(60):
        await server.exhausted.wait()
    found = informer.cache.get("default/a")
    assert found
    assert found["other"] == [1, 2]
    await cancelled(task)


async def test_one_object_is_mirrored_by_its_name_until_it_is_deleted(
    server: ScriptedServer, client: Client, clock: ImpatientClock
) -> None:
    gone = {"type": "DELETED", "object": pod("a", 102)}
    server.lists().streams({"type": "ADDED", "object": pod("a", 101)}, gone)
    informer = ObjectInformer(client, PODS, "a", namespace="default", clock=clock, rng=random.Random(1))
    seen: list[str] = []

    def note(_event: WatchEvent[Pod]) -> None:
        found = informer.object
        seen.append(found.metadata.resource_version if found is not None else "none")

    informer.add_handler(note)
    task = asyncio.create_task(informer.run())
    async with asyncio.timeout(60):
        await server.exhausted.wait()
    assert seen == ["101", "none"]
    assert all(call.query["fieldSelector"] == "metadata.name=a" for call in server.calls)
    await cancelled(task)
