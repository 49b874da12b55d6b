"""Watches: events in order, selectors, bookmarks, and what is too old."""

from typing import Any

from tests.support.conformance_api import MERGE, Api, configmap, crd, custom, establish


async def labelled(api: Api, core: str, name: str, **labels: str) -> Any:
    sent = configmap(name)
    sent["metadata"]["labels"] = labels
    return (await api("POST", f"{core}/configmaps", sent)).ok()


async def version(api: Api, core: str) -> str:
    """The resource version from which a watch misses no later change."""
    found = (await api("GET", f"{core}/configmaps")).ok()
    return str(found["metadata"]["resourceVersion"])


async def test_a_list_and_a_watch_from_its_version_miss_nothing(api: Api, core: str) -> None:
    start = await version(api, core)
    await labelled(api, core, "a")
    (await api("PATCH", f"{core}/configmaps/a", {"data": {"k": "v"}}, content=MERGE)).ok()
    (await api("DELETE", f"{core}/configmaps/a")).ok()
    async with api.watch(f"{core}/configmaps?resourceVersion={start}") as watch:
        events = [await watch.next() for _ in range(3)]
    assert [kind for kind, _ in events] == ["ADDED", "MODIFIED", "DELETED"]
    assert {obj["metadata"]["name"] for _, obj in events} == {"a"}
    assert events[1][1]["data"] == {"k": "v"}
    versions = [int(obj["metadata"]["resourceVersion"]) for _, obj in events]
    assert versions == sorted(set(versions))


async def test_a_watch_from_any_version_begins_with_what_is_there(api: Api, core: str) -> None:
    await labelled(api, core, "a", mine="yes")
    async with api.watch(f"{core}/configmaps?resourceVersion=0&labelSelector=mine") as watch:
        assert await watch.names(1) == [("ADDED", "a")]
        await labelled(api, core, "b", mine="yes")
        assert await watch.names(1) == [("ADDED", "b")]


async def test_an_object_that_begins_and_ceases_to_match_is_added_and_deleted(api: Api, core: str) -> None:
    start = await version(api, core)
    path = f"{core}/configmaps/a"
    await labelled(api, core, "a", tier="base")
    (await api("PATCH", path, {"metadata": {"labels": {"tier": "gold"}}}, content=MERGE)).ok()
    (await api("PATCH", path, {"data": {"k": "v"}}, content=MERGE)).ok()
    (await api("PATCH", path, {"metadata": {"labels": {"tier": "base"}}}, content=MERGE)).ok()
    async with api.watch(f"{core}/configmaps?resourceVersion={start}&labelSelector=tier=gold") as watch:
        assert await watch.names(2) == [("ADDED", "a"), ("MODIFIED", "a")]
        kind, last = await watch.next()
    assert (kind, last["metadata"]["labels"]) == ("DELETED", {"tier": "gold"})


async def test_field_selectors_select_in_watches_and_lists(api: Api, core: str) -> None:
    start = await version(api, core)
    await labelled(api, core, "a")
    await labelled(api, core, "b")
    async with api.watch(f"{core}/configmaps?resourceVersion={start}&fieldSelector=metadata.name=b") as watch:
        assert await watch.names(1) == [("ADDED", "b")]
    found = (await api("GET", f"{core}/configmaps?fieldSelector=metadata.name!=a")).ok()
    assert "a" not in [each["metadata"]["name"] for each in found["items"]]
    refused = await api("GET", f"{core}/configmaps?fieldSelector=data.k=v")
    refused.refused(400, "BadRequest")


async def test_a_watch_ends_when_its_time_is_up(api: Api, core: str) -> None:
    start = await version(api, core)
    async with api.watch(f"{core}/configmaps?resourceVersion={start}&timeoutSeconds=1") as watch:
        try:
            while True:
                await watch.next()
        except StopAsyncIteration:
            return


async def test_initial_events_end_with_a_bookmark_that_says_so(api: Api, core: str) -> None:
    await labelled(api, core, "a", mine="yes")
    query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&labelSelector=mine"
    async with api.watch(f"{core}/configmaps?{query}") as watch:
        if watch.status == 422:  # a server without the WatchList feature (off by default before 1.34)
            return
        kind, obj = await watch.next()
        if kind == "ERROR":  # a server whose etcd cannot tell how far a watch has come (before 3.4.31 and 3.5.13)
            assert "RequestWatchProgress" in obj["message"]
            return
        assert (kind, obj["metadata"]["name"]) == ("ADDED", "a")
        kind, obj = await watch.next()
    assert kind == "BOOKMARK"
    assert obj["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert (obj["kind"], obj["apiVersion"]) == ("ConfigMap", "v1")


async def test_a_watch_from_the_distant_past_is_expired_or_complete(
    api: Api, core: str, namespace: str, unique: str, cleanup: Any
) -> None:
    await establish(api, crd(unique, {"type": "object", "x-kubernetes-preserve-unknown-fields": True}), cleanup)
    path = f"/apis/conformance.tessera.dev/v1/namespaces/{namespace}/{unique}s"
    (await api("POST", path, custom(unique, "a"))).ok()
    async with api.watch(f"{path}?resourceVersion=1") as watch:
        if watch.status == 410:
            return
        kind, obj = await watch.next()
    assert kind in ("ADDED", "ERROR")
    if kind == "ERROR":
        assert (obj["kind"], obj["code"], obj["reason"]) == ("Status", 410, "Expired")
    else:
        assert obj["metadata"]["name"] == "a"


async def test_a_version_that_is_no_number_is_refused(api: Api, core: str) -> None:
    why = 'resourceVersion: Invalid value: "yesterday": strconv.ParseUint: parsing "yesterday": invalid syntax'
    listed = await api("GET", f"{core}/configmaps?resourceVersion=yesterday")
    assert listed.refused(400, "BadRequest") == f"invalid resource version: {why}"
    watched = await api("GET", f"{core}/configmaps?watch=true&resourceVersion=yesterday")
    assert watched.refused(500) == why


async def test_a_deletion_s_event_shows_the_last_state_with_the_deletion_s_version(api: Api, core: str) -> None:
    made = await labelled(api, core, "a")
    async with api.watch(f"{core}/configmaps?resourceVersion={made['metadata']['resourceVersion']}") as watch:
        (await api("DELETE", f"{core}/configmaps/a")).ok()
        kind, obj = await watch.next()
    assert (kind, obj["metadata"]["uid"]) == ("DELETED", made["metadata"]["uid"])
    assert int(obj["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])


async def test_watch_events_can_be_rows_of_a_table(api: Api, core: str) -> None:
    await labelled(api, core, "a", mine="yes")
    table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    async with api.watch(f"{core}/configmaps?resourceVersion=0&labelSelector=mine", accept=table) as watch:
        kind, obj = await watch.next()
    assert (kind, obj["kind"]) == ("ADDED", "Table")
    assert obj["columnDefinitions"][0]["name"] == "Name"
    assert obj["rows"][0]["cells"][0] == "a"
    assert obj["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
