"""What ``allocationMode: All`` gives: the scheduler's own allocator on published devices. Seen on Kubernetes 1.36.2."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.device_claims import API, device_class, exactly, resource_slice
from tests.support.pod_claims import Claims

Obj = dict[str, Any]
COUNTERS = {"name": "card", "counters": {"n": {"value": "2"}}}
POLICY = {"default": "1", "validRange": {"min": "1", "max": "2", "step": "1"}}


def part(name: str, takes: str) -> Obj:
    """A device that takes from the card's two slots."""
    return {"name": name, "consumesCounters": [{"counterSet": "card", "counters": {"n": {"value": takes}}}]}


def shared(name: str) -> Obj:
    """A device of two shares."""
    capacity = {"shares": {"value": "2", "requestPolicy": POLICY}}
    return {"name": name, "allowMultipleAllocations": True, "capacity": capacity}


@pytest.mark.parametrize(
    ("devices", "first", "given"),
    [
        ([{"name": "a"}, {"name": "b"}], None, ["a", "b"]),
        ([{"name": "a"}, {"name": "b"}], exactly("gpu", "CLASS"), []),
        ([part("a", "1"), part("b", "1")], None, ["a", "b"]),
        ([part("a", "2"), part("b", "1")], None, []),
        ([shared("a"), shared("b")], None, ["a", "b"]),
        ([shared("a"), shared("b")], exactly("gpu", "CLASS"), ["a", "b"]),
        ([shared("a"), shared("b")], exactly("gpu", "CLASS", capacity={"requests": {"shares": "2"}}), ["b"]),
    ],
    ids=["free", "one held", "parts that fit", "parts that exclude", "shares", "a share held", "no share left"],
)
async def test_all_gives_every_device_or_none_but_no_share_of_a_full_one(  # noqa: PLR0917 - fixtures
    claims: Claims,
    make_node: Any,
    unique: str,
    cleanup: Callable[[str], None],
    devices: list[Obj],
    first: Obj | None,
    given: list[str],
) -> None:
    node, driver = await make_node(), f"{unique}.example.com"
    cleanup(f"{API}/deviceclasses/{unique}")
    made = device_class(unique, f"device.driver == '{driver}'")
    (await claims.api("POST", f"{API}/deviceclasses", made)).ok()
    counted = "consumesCounters" in devices[0]
    objects = [resource_slice(unique, driver, node, *devices, slices=1 + counted)]
    if counted:
        objects.append(resource_slice(f"{unique}-counters", driver, node, slices=2, sharedCounters=[COUNTERS]))
    for each in objects:
        cleanup(f"{API}/resourceslices/{each['metadata']['name']}")
        (await claims.api("POST", f"{API}/resourceslices", each)).ok()
    if first is not None:
        first["exactly"]["deviceClassName"] = unique
        await claims.named("first", first)
        await claims.pod("holder", {"name": "gpu", "resourceClaimName": "first"})
        await claims.bound("holder")
    await claims.named("all", exactly("gpu", unique, allocationMode="All"))
    await claims.pod("p", {"name": "gpu", "resourceClaimName": "all"})
    if given:
        await claims.bound("p")
        found = await claims.until("all", lambda each: bool(each["status"].get("allocation")))
        assert [each["device"] for each in found["status"]["allocation"]["devices"]["results"]] == given
    else:
        assert "cannot allocate all claims" in await claims.refused("p")
