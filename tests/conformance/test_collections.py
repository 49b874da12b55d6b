"""Lists: selectors, pages, tables, metadata only, deletion of many."""

from tests.support.conformance_api import Api, configmap, gated_pod

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


async def stored(api: Api, core: str, *names: str, **labels: str) -> None:
    for name in names:
        sent = configmap(name)
        sent["metadata"]["labels"] = {"mine": "yes", **labels}
        (await api("POST", f"{core}/configmaps", sent)).ok()


async def names(api: Api, path: str) -> list[str]:
    return [each["metadata"]["name"] for each in (await api("GET", path)).ok()["items"]]


async def test_a_list_names_its_kind_and_version(api: Api, core: str) -> None:
    found = (await api("GET", f"{core}/configmaps")).ok()
    assert (found["kind"], found["apiVersion"]) == ("ConfigMapList", "v1")
    assert found["metadata"]["resourceVersion"]


async def test_label_selectors(api: Api, core: str) -> None:
    await stored(api, core, "a", tier="gold")
    await stored(api, core, "b", tier="base")
    await stored(api, core, "c")
    path = f"{core}/configmaps?labelSelector=mine"
    assert await names(api, f"{path},tier=gold") == ["a"]
    assert await names(api, f"{path},tier!=gold") == ["b", "c"]
    assert await names(api, f"{path},tier in (gold,base)") == ["a", "b"]
    assert await names(api, f"{path},tier notin (gold)") == ["b", "c"]
    assert await names(api, f"{path},!tier") == ["c"]
    (await api("GET", f"{core}/configmaps?labelSelector=a b")).refused(400, "BadRequest")


async def test_pages_come_together_to_the_whole(api: Api, core: str) -> None:
    await stored(api, core, *"abcde")
    found: list[str] = []
    token, pages = "", 0
    while True:
        more = f"&continue={token}" if token else ""
        page = (await api("GET", f"{core}/configmaps?labelSelector=mine&limit=2{more}")).ok()
        found += [each["metadata"]["name"] for each in page["items"]]
        pages += 1
        token = page["metadata"].get("continue", "")
        if not token:
            break
    assert found == list("abcde")
    assert pages >= 3


async def test_a_page_keeps_showing_the_state_of_the_first(api: Api, core: str) -> None:
    await stored(api, core, "a", "c")
    first = (await api("GET", f"{core}/configmaps?labelSelector=mine&limit=1")).ok()
    await stored(api, core, "b")
    token = first["metadata"]["continue"]
    second = (await api("GET", f"{core}/configmaps?labelSelector=mine&limit=5&continue={token}")).ok()
    assert [each["metadata"]["name"] for each in second["items"]] == ["c"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_tables(api: Api, core: str) -> None:
    await stored(api, core, "a")
    path = f"{core}/configmaps?labelSelector=mine"
    table = (await api("GET", path, accept=TABLE)).ok()
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert [each["name"] for each in table["columnDefinitions"]] == ["Name", "Data", "Age"]
    (row,) = table["rows"]
    assert row["cells"][:2] == ["a", 0]
    assert (row["object"]["kind"], row["object"]["apiVersion"]) == ("PartialObjectMetadata", "meta.k8s.io/v1")
    assert "data" not in row["object"]
    whole = (await api("GET", f"{path}&includeObject=Object", accept=TABLE)).ok()
    assert whole["rows"][0]["object"]["kind"] == "ConfigMap"
    bare = (await api("GET", f"{path}&includeObject=None", accept=TABLE)).ok()
    assert not bare["rows"][0].get("object")


async def test_the_columns_of_pods(api: Api, core: str) -> None:
    (await api("POST", f"{core}/pods", gated_pod("a"))).ok()
    table = (await api("GET", f"{core}/pods", accept=TABLE)).ok()
    plain = [each["name"] for each in table["columnDefinitions"] if not each["priority"]]
    assert plain == ["Name", "Ready", "Status", "Restarts", "Age"]
    cells = dict(zip([each["name"] for each in table["columnDefinitions"]], table["rows"][0]["cells"], strict=True))
    assert (cells["Name"], cells["Ready"], cells["Status"], cells["Node"]) == ("a", "0/1", "SchedulingGated", "<none>")


async def test_metadata_only(api: Api, core: str) -> None:
    await stored(api, core, "a")
    accept = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
    found = (await api("GET", f"{core}/configmaps?labelSelector=mine", accept=accept)).ok()
    assert found["kind"] == "PartialObjectMetadataList"
    assert found["items"][0]["metadata"]["name"] == "a"
    one = await api("GET", f"{core}/configmaps/a", accept=accept.replace("List", ""))
    assert (one.ok()["kind"], "data" in one.body) == ("PartialObjectMetadata", False)


async def test_many_are_deleted_by_selector(api: Api, core: str) -> None:
    await stored(api, core, "a", "b", doomed="yes")
    await stored(api, core, "c")
    (await api("DELETE", f"{core}/configmaps?labelSelector=doomed=yes")).ok()
    assert await names(api, f"{core}/configmaps?labelSelector=mine") == ["c"]


async def test_what_the_server_cannot_write_is_not_acceptable(api: Api, core: str) -> None:
    answer = await api("GET", f"{core}/configmaps", accept="text/html")
    assert answer.status == 406


async def test_a_method_that_a_resource_does_not_have_is_not_allowed(api: Api, core: str) -> None:
    answer = await api("PUT", f"{core}/configmaps", configmap("a"))
    answer.refused(405, "MethodNotAllowed")
