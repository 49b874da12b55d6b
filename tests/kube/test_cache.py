"""The cache as a state machine: whatever comes, it ends equal to the server, and what it tells is a history."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tessera.kube.cache import Cache, EventKind, WatchEvent
from tessera.kube.resources import ObjectMeta, Pod, PodSpec, Uid


def pod(name: str, version: int, uid: str = "u", node: str = "") -> Pod:
    meta = ObjectMeta(name=name, namespace="ns", uid=Uid(uid), resource_version=str(version))
    return Pod(metadata=meta, spec=PodSpec(node_name=node))


def by_node(item: Pod) -> list[str]:
    return [item.spec.node_name] if item.spec.node_name else []


def kinds(events: list[WatchEvent[Pod]]) -> list[tuple[str, str]]:
    return [(str(event.kind), event.object.metadata.resource_version) for event in events]


def test_an_unknown_object_is_added_a_known_one_modified() -> None:
    cache: Cache[Pod] = Cache()
    assert kinds(cache.upsert(pod("a", 1))) == [("ADDED", "1")]
    (event,) = cache.upsert(pod("a", 2))
    assert event == WatchEvent(EventKind.MODIFIED, pod("a", 2), pod("a", 1))


def test_the_same_version_again_changes_nothing() -> None:
    cache: Cache[Pod] = Cache()
    cache.upsert(pod("a", 1))
    assert cache.upsert(pod("a", 1)) == []


def test_another_uid_under_the_same_key_is_a_delete_and_an_add() -> None:
    cache: Cache[Pod] = Cache()
    cache.upsert(pod("a", 1, "first"))
    assert kinds(cache.upsert(pod("a", 5, "second"))) == [("DELETED", "1"), ("ADDED", "5")]


def test_a_delete_tells_the_final_state_and_the_one_before() -> None:
    cache: Cache[Pod] = Cache()
    cache.upsert(pod("a", 1))
    assert cache.remove("ns/a", pod("a", 9)) == [WatchEvent(EventKind.DELETED, pod("a", 9), pod("a", 1))]
    assert cache.remove("ns/a") == []


def test_replacing_tells_deletes_before_adds_so_that_what_is_freed_can_be_used() -> None:
    cache: Cache[Pod] = Cache()
    cache.upsert(pod("old", 1))
    assert [event.kind for event in cache.replace([pod("new", 2)])] == [EventKind.DELETED, EventKind.ADDED]


def test_an_index_follows_its_objects() -> None:
    cache = Cache({"node": by_node})
    cache.upsert(pod("a", 1))
    assert cache.by_index("node", "n1") == []
    cache.upsert(pod("a", 2, node="n1"))
    cache.upsert(pod("b", 3, node="n1"))
    assert [item.metadata.name for item in cache.by_index("node", "n1")] == ["a", "b"]
    cache.upsert(pod("a", 4, node="n2"))
    cache.remove("ns/b")
    assert cache.by_index("node", "n1") == []
    assert [item.metadata.name for item in cache.by_index("node", "n2")] == ["a"]


def test_untyped_objects_are_cached_too() -> None:
    cache: Cache[dict[str, Any]] = Cache({"app": lambda item: item["metadata"].get("labels", {}).values()})
    cache.upsert({"metadata": {"name": "a", "uid": "1", "resourceVersion": "1", "labels": {"app": "x"}}})
    assert cache.get("a") == cache.by_index("app", "x")[0]


# Convergence. The server has a true history; the watcher sees parts of it and relists in between.


class Step(msgspec.Struct, frozen=True):
    """One change on the server, and whether the watch brings it; ``relist`` comes after it."""

    name: str
    delete: bool
    node: str
    seen: bool
    relist: bool


steps = st.lists(
    st.builds(
        Step,
        name=st.sampled_from("abcd"),
        delete=st.booleans(),
        node=st.sampled_from(["", "n1", "n2"]),
        seen=st.booleans(),
        relist=st.booleans(),
    ),
    max_size=40,
)


@given(steps)
def test_any_mix_of_seen_and_unseen_changes_converges_at_the_next_list(history: list[Step]) -> None:
    """An unseen change stands for a watch that broke: nothing more is seen until the next list."""
    server: dict[str, Pod] = {}
    cache = Cache({"node": by_node})
    told: list[WatchEvent[Pod]] = []
    blind = False
    for version, step in enumerate(history, start=1):
        blind = blind or not step.seen
        told += _change(server, cache, step, version, blind=blind)
        if step.relist:
            told += list(cache.replace(server.values()))
            blind = False
        if not blind:
            _assert_equal(cache, server)
    told += list(cache.replace(server.values()))
    _assert_equal(cache, server)
    _assert_history(told, server)


def _change(
    server: dict[str, Pod], cache: Cache[Pod], step: Step, version: int, *, blind: bool
) -> list[WatchEvent[Pod]]:
    key = f"ns/{step.name}"
    old = server.get(key)
    if step.delete:
        if old is None:
            return []
        del server[key]
        return [] if blind else cache.remove(key, pod(step.name, version, old.metadata.uid, step.node))
    uid = old.metadata.uid if old else f"uid-{version}"
    server[key] = pod(step.name, version, uid, step.node)
    return [] if blind else cache.upsert(server[key])


def _assert_equal(cache: Cache[Pod], server: dict[str, Pod]) -> None:
    assert dict(zip(cache.keys(), cache.values(), strict=True)) == server
    for node in ("n1", "n2"):
        expected = {item.metadata.name for item in server.values() if item.spec.node_name == node}
        assert {item.metadata.name for item in cache.by_index("node", node)} == expected


def _assert_history(told: list[WatchEvent[Pod]], server: dict[str, Pod]) -> None:
    """Replaying the events gives the server's state, and each fits the state before it."""
    state: dict[str, Pod] = {}
    for event in told:
        name = event.object.metadata.name
        assert event.old == state.get(name)
        match event.kind:
            case EventKind.ADDED:
                assert name not in state
                state[name] = event.object
            case EventKind.MODIFIED:
                assert state[name].metadata.uid == event.object.metadata.uid
                state[name] = event.object
            case EventKind.DELETED:
                assert state.pop(name).metadata.uid == event.object.metadata.uid
    assert {f"ns/{name}": item for name, item in state.items()} == server
