"""The scheduler's own allocation of devices: classes, selectors, counters, taints, constraints, shares, admin access.

All nodes of a test are without a kubelet, and all its devices are of a driver that no other test has.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from tests.support.conformance_api import MERGE, Api
from tests.support.device_claims import API, FINALIZER, exactly
from tests.support.driver_devices import Devices
from tests.support.pod_claims import SETTLED

Obj = dict[str, Any]


def device(name: str, **fields: Any) -> Obj:
    return {"name": name, **fields}


async def test_a_claim_gets_the_first_device_and_the_pod_its_node(devices: Devices, make_node: Any) -> None:
    node = await make_node()
    await devices.publish(node, device("b"), device("a"))
    await devices.pod("p", exactly("gpu", devices.word))
    assert await devices.claims.bound("p") == node
    found = (await devices.api("GET", f"{devices.claims.claims}/p")).ok()
    allocation = found["status"]["allocation"]
    assert allocation["devices"]["results"][0].items() >= {
        ("request", "gpu"),
        ("driver", devices.driver),
        ("pool", node),
        ("device", "b"),
    }
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    assert allocation["nodeSelector"] == {"nodeSelectorTerms": [{"matchFields": [field]}]}
    assert allocation["allocationTimestamp"]
    assert found["metadata"]["finalizers"] == [FINALIZER]
    assert [each["name"] for each in found["status"]["reservedFor"]] == ["p"]


async def test_a_device_is_given_once_until_it_is_free_again(devices: Devices, make_node: Any) -> None:
    await devices.publish(await make_node(), device("only"))
    for pod in ("p", "q"):
        await devices.pod(pod, exactly("gpu", devices.word))
        if pod == "p":
            await devices.claims.bound("p")
    assert "cannot allocate all claims" in await devices.claims.refused("q")
    await devices.claims.delete("p")
    await devices.claims.bound("q")


async def test_a_missing_class_is_a_reason(devices: Devices, make_node: Any) -> None:
    await devices.publish(await make_node(), device("a"))
    await devices.pod("p", exactly("gpu", f"{devices.word}-none"))
    assert f"request gpu: device class {devices.word}-none does not exist" in await devices.claims.refused("p")
    await devices.device_class(name=f"{devices.word}-none")
    await devices.claims.bound("p")


async def test_selectors_of_class_and_request_choose_by_attributes_and_capacity(
    devices: Devices, make_node: Any
) -> None:
    at = f'device.attributes["{devices.driver}"]'
    small = device("small", attributes={"profile": {"string": "1g"}}, capacity={"memory": {"value": "5Gi"}})
    large = device("large", attributes={"profile": {"string": "3g"}}, capacity={"memory": {"value": "20Gi"}})
    await devices.publish(await make_node(), small, large)
    memory = f'device.capacity["{devices.driver}"].memory.compareTo(quantity("10Gi")) >= 0'
    await devices.pod("p", exactly("gpu", devices.word, memory))
    await devices.pod("q", exactly("gpu", devices.word, f'{at}.profile == "1g"'))
    assert await devices.names("p") == ["large"]
    assert await devices.names("q") == ["small"]


async def test_a_selector_with_an_error_stops_the_pod(devices: Devices, make_node: Any) -> None:
    await devices.publish(await make_node(), device("a"))
    await devices.pod("p", exactly("gpu", devices.word, f'device.attributes["{devices.driver}"].none == "x"'))
    assert "no such key: none" in await devices.claims.refused("p", "SchedulerError")


async def test_partitions_share_the_counters_of_their_card(devices: Devices, make_node: Any) -> None:
    def partition(name: str, *slices: int) -> Obj:
        counters = {f"memory-slice-{each}": {"value": "1"} for each in slices}
        return device(name, consumesCounters=[{"counterSet": "gpu-0", "counters": counters}])

    node = await make_node()
    counters = {f"memory-slice-{each}": {"value": "1"} for each in range(4)}
    await devices.publish(node, slices=2, sharedCounters=[{"name": "gpu-0", "counters": counters}])
    await devices.publish(
        node, partition("whole", 0, 1, 2, 3), partition("left", 0, 1), partition("right", 2, 3), slices=2
    )
    await devices.pod("p", exactly("gpu", devices.word, count=2))
    assert await devices.names("p") == ["left", "right"]
    await devices.pod("q", exactly("gpu", devices.word))
    assert "cannot allocate all claims" in await devices.claims.refused("q")


async def test_nothing_of_an_incomplete_pool_is_given(devices: Devices, make_node: Any) -> None:
    node = await make_node()
    await devices.publish(node, device("a"), slices=2)
    await devices.pod("p", exactly("gpu", devices.word))
    assert "cannot allocate all claims" in await devices.claims.refused("p")
    await devices.publish(node, device("b"), slices=2)
    assert await devices.names("p") == ["a"]


async def test_a_taint_keeps_the_scheduler_from_a_device_unless_it_is_tolerated(
    devices: Devices, make_node: Any
) -> None:
    taint = {"key": "tessera.dev/placed-by", "value": "tessera", "effect": "NoSchedule"}
    await devices.publish(await make_node(), device("a", taints=[taint]))
    await devices.pod("p", exactly("gpu", devices.word))
    assert "cannot allocate all claims" in await devices.claims.refused("p")
    toleration = {"key": "tessera.dev/placed-by", "operator": "Exists"}
    await devices.pod("q", exactly("gpu", devices.word, tolerations=[toleration]))
    (result,) = await devices.results("q")
    assert result["tolerations"] == [toleration]


async def test_the_first_available_alternative_is_taken(devices: Devices, make_node: Any) -> None:
    at = f'device.attributes["{devices.driver}"]'
    await devices.publish(await make_node(), device("small", attributes={"size": {"int": 1}}))
    alternatives = [
        {"name": name, "deviceClassName": devices.word, "selectors": [{"cel": {"expression": f"{at}.size == {size}"}}]}
        for name, size in (("large", 3), ("small", 1))
    ]
    await devices.pod("p", {"name": "gpu", "firstAvailable": alternatives})
    (result,) = await devices.results("p")
    assert (result["request"], result["device"]) == ("gpu/small", "small")


async def test_a_node_with_a_preferred_alternative_comes_first(devices: Devices, make_node: Any) -> None:
    at = f'device.attributes["{devices.driver}"]'
    nodes = [await make_node(), await make_node(), await make_node()]
    for node, size in zip(nodes, (1, 3, 1), strict=True):
        await devices.publish(node, device("a", attributes={"size": {"int": size}}))
    alternatives = [
        {"name": name, "deviceClassName": devices.word, "selectors": [{"cel": {"expression": f"{at}.size == {size}"}}]}
        for name, size in (("large", 3), ("small", 1))
    ]
    await devices.pod("p", {"name": "gpu", "firstAvailable": alternatives})
    assert await devices.claims.bound("p") == nodes[1]


async def test_constraints_bind_the_devices_of_a_claim_together_or_apart(devices: Devices, make_node: Any) -> None:
    def on(name: str, card: str) -> Obj:
        return device(name, attributes={"card": {"string": card}})

    attribute = f"{devices.driver}/card"
    await devices.publish(await make_node(), on("a", "0"), on("b", "1"), on("c", "1"), on("d", "0"))
    same = [{"matchAttribute": attribute}]
    await devices.pod("p", exactly("one", devices.word), exactly("two", devices.word), constraints=same)
    assert await devices.names("p") == ["a", "d"]
    apart = [{"distinctAttribute": attribute}]
    await devices.pod("q", exactly("gpu", devices.word, count=2), constraints=apart)
    assert "cannot allocate all claims" in await devices.claims.refused("q")


async def test_all_devices_of_a_node_can_be_asked_for(devices: Devices, make_node: Any) -> None:
    await devices.publish(await make_node(), device("a"), device("b"))
    await devices.pod("p", exactly("gpu", devices.word, allocationMode="All"))
    assert await devices.names("p") == ["a", "b"]


async def test_shares_of_a_device_consume_its_capacity(devices: Devices, make_node: Any) -> None:
    policy = {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}
    shared = device("a", allowMultipleAllocations=True, capacity={"memory": {"value": "10Gi", "requestPolicy": policy}})
    await devices.publish(await make_node(), shared)
    for pod, wanted in (("p", "5500Mi"), ("q", "4Gi")):
        await devices.pod(pod, exactly("gpu", devices.word, capacity={"requests": {"memory": wanted}}))
        await devices.claims.bound(pod)
    (first,), (second,) = await devices.results("p"), await devices.results("q")
    assert first["consumedCapacity"] == {"memory": "6Gi"}
    assert first["shareID"] != second["shareID"]
    await devices.pod("r", exactly("gpu", devices.word))
    assert "cannot allocate all claims" in await devices.claims.refused("r")


async def test_admin_access_takes_no_device_from_others(devices: Devices, make_node: Any, namespace: str) -> None:
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    (await devices.api("PATCH", f"/api/v1/namespaces/{namespace}", label, content=MERGE)).ok()
    await devices.publish(await make_node(), device("a"))
    await devices.pod("p", exactly("gpu", devices.word))
    await devices.claims.bound("p")
    await devices.pod("q", exactly("gpu", devices.word, adminAccess=True))
    (result,) = await devices.results("q")
    assert (result["device"], result["adminAccess"]) == ("a", True)


async def test_configuration_of_class_and_claim_is_in_the_allocation(devices: Devices, make_node: Any) -> None:
    def config(word: str) -> Obj:
        return {"opaque": {"driver": devices.driver, "parameters": {"from": word}}}

    name = await devices.device_class(name=f"{devices.word}-configured", config=[config("class")])
    await devices.publish(await make_node(), device("a"))
    await devices.pod("p", exactly("gpu", name), config=[{**config("claim"), "requests": ["gpu"]}])
    found = await devices.claims.until("p", lambda each: bool(each["status"].get("allocation")))
    sources = [
        (each["source"], each.get("requests"), each["opaque"]["parameters"]["from"])
        for each in found["status"]["allocation"]["devices"]["config"]
    ]
    assert sources == [("FromClass", ["gpu"], "class"), ("FromClaim", ["gpu"], "claim")]


# -- extended resources ---------------------------------------------------------------------------------------------


async def _extended(devices: Devices) -> str:
    """A class that stands for an extended resource; returns the resource."""
    resource = f"example.com/{devices.word}"
    await devices.device_class(name=f"{devices.word}-extended", extendedResourceName=resource)
    return resource


async def _ask(devices: Devices, pod: str, resource: str, **options: Any) -> None:
    """Creates a pod that asks for one of an extended resource."""
    await devices.claims.pod(pod, limits={resource: "1"}, **options)


async def test_the_scheduler_makes_the_claim_of_an_extended_resource(devices: Devices, make_node: Any) -> None:
    node = await make_node()
    await devices.publish(node, device("a"))
    resource = await _extended(devices)
    await _ask(devices, "p", resource)
    assert await devices.claims.bound("p") == node
    status = (await devices.api("GET", f"{devices.claims.pods}/p")).ok()["status"]["extendedResourceClaimStatus"]
    name = status["resourceClaimName"]
    assert name.startswith("p-extended-resources-")
    request = "container-0-request-0"
    assert status["requestMappings"] == [
        {"containerName": "main", "resourceName": resource, "requestName": request},
    ]
    found = (await devices.api("GET", f"{devices.claims.claims}/{name}")).ok()
    assert found["metadata"]["annotations"]["resource.kubernetes.io/extended-resource-claim"] == "true"
    assert [(each["request"], each["device"]) for each in await devices.results(name)] == [(request, "a")]
    await devices.claims.delete("p")
    await devices.api.gone(f"{devices.claims.claims}/{name}")


async def test_a_gated_pod_has_no_claim_for_its_extended_resource(devices: Devices, make_node: Any) -> None:
    await devices.publish(await make_node(), device("a"))
    await _ask(devices, "p", await _extended(devices), gated=True)
    await asyncio.sleep(SETTLED)
    assert not (await devices.api("GET", devices.claims.claims)).ok()["items"]


async def test_a_device_plugin_comes_before_a_class(devices: Devices, make_node: Any) -> None:
    node, resource = await make_node(), await _extended(devices)
    await devices.publish(node, device("a"))
    amounts = {"capacity": {resource: "1"}, "allocatable": {resource: "1"}}
    (await devices.api("PATCH", f"/api/v1/nodes/{node}/status", {"status": amounts}, content=MERGE)).ok()
    await _ask(devices, "p", resource)
    assert await devices.claims.bound("p") == node
    assert not (await devices.api("GET", devices.claims.claims)).ok()["items"]


async def test_tainted_devices_serve_no_extended_resource(devices: Devices, make_node: Any) -> None:
    taint = {"key": "tessera.dev/placed-by", "value": "tessera", "effect": "NoSchedule"}
    await devices.publish(await make_node(), device("a", taints=[taint]))
    await _ask(devices, "p", await _extended(devices))
    assert "cannot allocate all claims" in await devices.claims.refused("p")


async def test_devices_that_every_node_reaches_bind_to_none(
    devices: Devices, make_node: Any, api: Api, cleanup: Callable[[str], None]
) -> None:
    await make_node()
    name = f"{devices.word}-network"
    cleanup(f"{API}/resourceslices/{name}")
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": devices.driver, "allNodes": True, "pool": pool, "devices": [device("a")]}
    made = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}
    (await api("POST", f"{API}/resourceslices", made)).ok()
    await devices.pod("p", exactly("gpu", devices.word))
    await devices.claims.bound("p")
    found = (await api("GET", f"{devices.claims.claims}/p")).ok()
    assert "nodeSelector" not in found["status"]["allocation"]
