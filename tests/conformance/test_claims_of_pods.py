"""ResourceClaims from pod to release: claim controller, scheduler and device taints, with nodes that have no kubelet.

All seen on Kubernetes 1.36.2 with default gates. Allocations are written by the test, as by a placement that is not the
scheduler's.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.conformance_api import MERGE
from tests.support.device_claims import (
    API,
    FINALIZER,
    allocation,
    claim_template,
    claiming_pod,
    exactly,
    resource_slice,
)
from tests.support.pod_claims import DRIVER, OF_TEMPLATE, SETTLED, Claims

Obj = dict[str, Any]


def is_free(found: Obj) -> bool:
    return not found["status"] and not found["metadata"].get("finalizers")


def consumers(found: Obj) -> list[str]:
    return [each["name"] for each in found["status"].get("reservedFor") or ()]


# -- made -----------------------------------------------------------------------------------------------------------


async def test_a_gated_pod_gets_the_claims_of_its_templates(claims: Claims) -> None:
    name = await claims.templated("p", gated=True)
    found = (await claims.api("GET", f"{claims.claims}/{name}")).ok()
    assert name.startswith("p-gpu-")
    assert found["metadata"]["annotations"]["resource.kubernetes.io/pod-claim-name"] == "gpu"
    owner = found["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("Pod", "p", True)
    assert found["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] == "gpus"


async def test_a_claim_follows_its_template_when_that_comes_later(claims: Claims) -> None:
    await claims.pod("p", OF_TEMPLATE, gated=True)
    (await claims.api("POST", claims.templates, claim_template("one", exactly("gpu", "gpus")))).ok()
    assert await claims.name_of("p")


@pytest.mark.parametrize(
    ("entries", "used", "text"),
    [
        ([{"name": "gpu"}], None, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"),
        ([{**OF_TEMPLATE, "resourceClaimName": "a"}], None, "at most one of `resourceClaimName`"),
        ([OF_TEMPLATE, OF_TEMPLATE], None, "Duplicate value"),
        (
            [OF_TEMPLATE],
            [{"name": "other"}],
            'resources.claims[0]: Not found: "other": must be one of the names in pod.spec.resourceClaims: gpu',
        ),
    ],
)
async def test_a_wrong_use_of_claims_is_refused(
    claims: Claims, entries: list[Obj], used: list[Obj] | None, text: str
) -> None:
    body = claiming_pod("p", *entries)
    body["spec"]["containers"][0]["resources"] = {"claims": used or []}
    assert text in (await claims.api("POST", claims.pods, body)).refused(422, "Invalid")


# -- placed ---------------------------------------------------------------------------------------------------------


async def test_a_written_allocation_takes_the_pod_to_its_node(claims: Claims, make_node: Any) -> None:
    nodes = [await make_node(), await make_node()]
    name = await claims.templated("p", gated=True)
    await claims.allocate(name, nodes[1])
    await claims.ungate("p")
    assert await claims.bound("p") == nodes[1]
    assert consumers((await claims.api("GET", f"{claims.claims}/{name}")).ok()) == ["p"]


async def test_an_allocation_wakes_a_pod_that_was_unschedulable(claims: Claims, make_node: Any) -> None:
    node = await make_node()
    await claims.named("a")
    await claims.pod("p", {"name": "gpu", "resourceClaimName": "a"})
    assert "0/" in await claims.refused("p")
    await claims.allocate("a", node)
    assert await claims.bound("p") == node


async def test_an_allocation_without_a_time_never_binds(claims: Claims, make_node: Any) -> None:
    name = await claims.templated("p", gated=True)
    await claims.allocate(name, await make_node(), timed=False)
    await claims.ungate("p")
    text = await claims.refused("p", "SchedulerError")
    assert 'running PreBind plugin "DynamicResources"' in text
    assert "status.allocation: Invalid value" in text
    assert "field is immutable" in text


async def test_who_reserves_too_needs_no_time(claims: Claims, make_node: Any) -> None:
    node = await make_node()
    name = await claims.templated("p", gated=True)
    uid = (await claims.api("GET", f"{claims.pods}/p")).ok()["metadata"]["uid"]
    given = allocation(DRIVER, node, "gpu-0", timed=False)
    consumer = {"resource": "pods", "name": "p", "uid": uid}
    (await claims.status(name, {"allocation": given, "reservedFor": [consumer]})).ok()
    await claims.ungate("p")
    assert await claims.bound("p") == node


async def test_two_claims_with_one_device_both_bind(claims: Claims, make_node: Any) -> None:
    node = await make_node()
    for pod in ("a", "b"):
        await claims.allocate(await claims.templated(pod, gated=True), node)
        await claims.ungate(pod)
        assert await claims.bound(pod) == node


async def test_an_allocation_on_a_full_node_stays_where_no_other_node_would_do(claims: Claims, make_node: Any) -> None:
    node = await make_node(cpu="1")
    name = await claims.templated("p", gated=True, cpu="2")
    await claims.allocate(name, node)
    await claims.ungate("p")
    assert "Insufficient cpu" in await claims.refused("p")
    assert (await claims.get(name))["status"]["allocation"]


async def test_the_scheduler_clears_an_allocation_where_another_node_would_do(claims: Claims, make_node: Any) -> None:
    nodes = [await make_node(), await make_node()]
    name = await claims.templated("p", gated=True)
    await claims.allocate(name, nodes[0])
    cordon = {"spec": {"unschedulable": True}}
    (await claims.api("PATCH", f"/api/v1/nodes/{nodes[0]}", cordon, content=MERGE)).ok()
    await claims.ungate("p")
    found = await claims.until(name, lambda each: not each["status"].get("allocation"))
    assert found["metadata"]["finalizers"] == [FINALIZER]
    (await claims.status(name, {"allocation": allocation(DRIVER, nodes[1], "gpu-0")})).ok()
    assert await claims.bound("p") == nodes[1]


async def test_of_two_claims_on_two_nodes_the_scheduler_clears_one(claims: Claims, make_node: Any) -> None:
    nodes = [await make_node(), await make_node()]
    entries = []
    for name, node in zip(("a", "b"), nodes, strict=True):
        await claims.named(name)
        await claims.allocate(name, node)
        entries.append({"name": name, "resourceClaimName": name})
    await claims.pod("p", *entries)
    await claims.refused("p")
    await asyncio.sleep(SETTLED)
    found = [(await claims.api("GET", f"{claims.claims}/{name}")).ok()["status"].get("allocation") for name in "ab"]
    assert found.count(None) == 1


@pytest.mark.parametrize("others", [0, 1])
async def test_a_pinned_pod_preempts_on_its_node_and_loses_its_devices_where_another_node_would_do(
    claims: Claims, make_node: Any, others: int, unique: str, cleanup: Callable[[str], None]
) -> None:
    cleanup(f"/apis/scheduling.k8s.io/v1/priorityclasses/{unique}")
    high = {"metadata": {"name": unique}, "value": 1000}
    (await claims.api("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", high)).ok()
    node = await make_node(cpu="1")
    await claims.pod("victim", cpu="1")
    assert await claims.bound("victim") == node
    for _ in range(others):
        await make_node(cpu="1")
    name = await claims.templated("p", gated=True, cpu="1", priorityClassName=unique)
    await claims.allocate(name, node)
    await claims.ungate("p")
    await claims.api.until(
        f"{claims.pods}/victim",
        lambda answer: answer.status == 404 or bool(answer.body["metadata"].get("deletionTimestamp")),
    )
    if others:
        await claims.until(name, lambda each: not each["status"].get("allocation"))
        await claims.allocate(name, node)
    await claims.delete("victim")
    assert await claims.bound("p") == node


# -- released -------------------------------------------------------------------------------------------------------


async def test_a_deleted_pod_takes_the_claims_of_its_templates_with_it(claims: Claims, make_node: Any) -> None:
    name = await claims.templated("p", gated=True)
    await claims.allocate(name, await make_node())
    await claims.ungate("p")
    await claims.bound("p")
    await claims.delete("p")
    await claims.api.gone(f"{claims.claims}/{name}")


async def test_a_pod_deleted_while_gated_releases_its_claim(claims: Claims, make_node: Any) -> None:
    name = await claims.templated("p", gated=True)
    await claims.allocate(name, await make_node())
    await claims.delete("p")
    await claims.api.gone(f"{claims.claims}/{name}")


async def test_a_finished_pod_releases_its_claim(claims: Claims, make_node: Any) -> None:
    name = await claims.templated("p", gated=True)
    await claims.allocate(name, await make_node())
    await claims.ungate("p")
    await claims.bound("p")
    (await claims.api("PATCH", f"{claims.pods}/p/status", {"status": {"phase": "Succeeded"}}, content=MERGE)).ok()
    await claims.api.gone(f"{claims.claims}/{name}")


async def test_a_shared_claim_is_released_after_its_last_pod(claims: Claims, make_node: Any) -> None:
    node = await make_node()
    await claims.named("a")
    await claims.allocate("a", node)
    for pod in ("p", "q"):
        await claims.pod(pod, {"name": "gpu", "resourceClaimName": "a"})
        await claims.bound(pod)
    assert sorted(consumers((await claims.api("GET", f"{claims.claims}/a")).ok())) == ["p", "q"]
    await claims.delete("p")
    await claims.until("a", lambda each: consumers(each) == ["q"])
    await claims.delete("q")
    await claims.until("a", is_free)


async def test_a_claim_deleted_by_a_user_waits_for_its_pod(claims: Claims, make_node: Any) -> None:
    await claims.named("a")
    await claims.allocate("a", await make_node())
    await claims.pod("p", {"name": "gpu", "resourceClaimName": "a"})
    await claims.bound("p")
    (await claims.api("DELETE", f"{claims.claims}/a")).ok()
    assert (await claims.get("a"))["status"]["allocation"]
    await claims.delete("p")
    await claims.api.gone(f"{claims.claims}/a")


async def test_an_allocation_that_was_never_reserved_stays(claims: Claims, make_node: Any) -> None:
    await claims.named("a")
    await claims.allocate("a", await make_node())
    assert (await claims.get("a"))["status"]["allocation"]


async def test_without_the_finalizer_an_allocation_is_not_cleared(claims: Claims, make_node: Any) -> None:
    node = await make_node()
    await claims.named("a")
    (await claims.status("a", {"allocation": allocation(DRIVER, node, "gpu-0")})).ok()
    await claims.pod("p", {"name": "gpu", "resourceClaimName": "a"})
    await claims.bound("p")
    await claims.delete("p")
    await claims.until("a", lambda each: not consumers(each))
    assert (await claims.get("a"))["status"]["allocation"]


# -- evicted --------------------------------------------------------------------------------------------------------


async def test_a_taint_with_no_execute_evicts_the_pod_of_a_written_allocation(
    claims: Claims, make_node: Any, unique: str, cleanup: Callable[[str], None]
) -> None:
    node = await make_node()
    cleanup(f"{API}/resourceslices/{unique}")
    tainted = {"name": "gpu-0", "taints": [{"key": "example.com/broken", "effect": "NoExecute"}]}
    (await claims.api("POST", f"{API}/resourceslices", resource_slice(unique, DRIVER, node, {"name": "gpu-0"}))).ok()
    await claims.allocate(await claims.templated("p", gated=True), node)
    await claims.ungate("p")
    await claims.bound("p")
    change = {"spec": {"devices": [tainted]}}
    (await claims.api("PATCH", f"{API}/resourceslices/{unique}", change, content=MERGE)).ok()
    found = await claims.api.until(
        f"{claims.pods}/p",
        lambda answer: answer.status == 404 or bool(answer.body["metadata"].get("deletionTimestamp")),
    )
    assert found.status == 404 or any(
        each.get("reason") == "DeletionByDeviceTaintManager" for each in found.body["status"]["conditions"]
    )
    await claims.delete("p")
