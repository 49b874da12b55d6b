"""Deletes: preconditions, propagation, dry run, collections, namespaces."""

from typing import Any

from tests.support.api_user import ApiUser

MAPS = "/api/v1/namespaces/default/configmaps"
NAMESPACES = "/api/v1/namespaces"


async def test_propagation_policies_become_finalizers(api: ApiUser, make_map: Any) -> None:
    for policy, finalizer in (("Foreground", "foregroundDeletion"), ("Orphan", "orphan")):
        await api("POST", MAPS, make_map(policy.lower()))
        dying = await api("DELETE", f"{MAPS}/{policy.lower()}", {"propagationPolicy": policy})
        assert dying["metadata"]["finalizers"] == [finalizer]
        assert dying["metadata"]["deletionTimestamp"]
    await api("POST", MAPS, make_map("plain"))
    assert (await api("DELETE", f"{MAPS}/plain", {"propagationPolicy": "Background"}))["status"] == "Success"


async def test_a_namespace_ends_through_finalize(api: ApiUser, make_map: Any) -> None:
    await api("POST", NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    dying = await api("DELETE", f"{NAMESPACES}/team")
    assert dying["status"]["phase"] == "Terminating"
    refused = await api("POST", f"{NAMESPACES}/team/configmaps", make_map("a"))
    assert refused["code"] == 403
    assert "because it is being terminated" in refused["message"]
    assert refused["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    dying["spec"]["finalizers"] = []
    assert (await api("PUT", f"{NAMESPACES}/team", dying))["spec"]["finalizers"] == ["kubernetes"]
    dying = await api("GET", f"{NAMESPACES}/team")
    dying["spec"]["finalizers"] = []
    await api("PUT", f"{NAMESPACES}/team/finalize", dying)
    assert (await api("GET", f"{NAMESPACES}/team"))["code"] == 404


async def test_a_shorter_grace_moves_the_end_forward(api: ApiUser, make_pod: Any) -> None:
    pods = "/api/v1/namespaces/default/pods"
    await api("POST", pods, make_pod("a", nodeName="n"))
    await api("DELETE", f"{pods}/a")
    sooner = await api("DELETE", f"{pods}/a", {"gracePeriodSeconds": 5})
    assert sooner["metadata"]["deletionGracePeriodSeconds"] == 5
    assert sooner["metadata"]["deletionTimestamp"] == "2023-11-14T22:13:25Z"
    later = await api("DELETE", f"{pods}/a", {"gracePeriodSeconds": 50})
    assert later["metadata"] == sooner["metadata"]
