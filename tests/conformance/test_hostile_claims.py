"""Claims that ask for too much: each is refused, or its own pod waits and all others go on.

Texts are those of Kubernetes 1.36 (``pkg/apis/resource/validation``, ``structured/internal/incubating``).
"""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.conformance_api import Api
from tests.support.device_claims import API, claim, claim_template, device_class, exactly
from tests.support.driver_devices import Devices

from tessera.dra.requests import GUARD

Obj = dict[str, Any]

TEN = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"
#: Ten lists of ten, one in the other; and the attributes of a device, compared with each other four times.
LISTS = "".join(f"{TEN}.all(x{depth}, " for depth in range(7)) + "x0 < 100" + ")" * 7
ATTRIBUTES = "".join(f'device.attributes["a.b"].all(k{depth}, ' for depth in range(5)) + "k0 != ''" + ")" * 5


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (LISTS, "too complex, exceeds cost limit"),
        (ATTRIBUTES, "too complex, exceeds cost limit"),
        ("device.driver ==", "compilation failed"),
        ("node.name == 'a'", "compilation failed"),
        ("device.name == 'a'", "compilation failed"),
        ("x" * 10_241, "Too long: may not be more than 10240 bytes"),
    ],
)
async def test_a_selector_that_costs_too_much_or_is_wrong_is_not_stored(
    api: Api, devices: Devices, expression: str, text: str
) -> None:
    space = devices.claims.claims.rpartition("/")[0]
    for path, body in (
        (devices.claims.claims, claim("a", exactly("gpu", devices.word, expression))),
        (f"{space}/resourceclaimtemplates", claim_template("a", exactly("gpu", devices.word, expression))),
        (f"{API}/deviceclasses", device_class(f"{devices.word}-wrong", expression)),
    ):
        refusal = (await api("POST", path, body)).refused(422, "Invalid")
        assert text in refusal
        assert "cel.expression" in refusal


async def test_a_claim_of_a_hundred_requests_is_not_stored(api: Api, devices: Devices) -> None:
    requests = [exactly(f"r{number}", devices.word, count=32) for number in range(100)]
    text = (await api("POST", devices.claims.claims, claim("a", *requests))).refused(422, "Invalid")
    assert "spec.devices.requests: Too many: 100: must have at most 32 items" in text


async def test_a_claim_of_more_devices_than_a_claim_can_have_keeps_only_its_own_pod_waiting(
    devices: Devices, make_node: Any
) -> None:
    await devices.publish(await make_node(), {"name": "a"})
    await devices.pod("p", *(exactly(f"r{number}", devices.word, count=32) for number in range(32)))
    text = await devices.claims.refused("p", "SchedulerError")
    assert "number of requested devices 1024 exceeds the claim limit of 32" in text
    await devices.pod("q", exactly("gpu", devices.word))
    assert await devices.names("q") == ["a"]


async def test_a_claim_at_every_limit_keeps_only_its_own_pod_waiting(devices: Devices, make_node: Any) -> None:
    """32 requests of one device with 32 selectors each, on a node with 31 devices: kube-scheduler gives up in time."""
    texts = [f'device.driver == "{devices.driver}" && {number} >= 0' for number in range(32)]
    await devices.publish(await make_node(), *({"name": f"d{number}"} for number in range(31)))
    await devices.pod("p", *(exactly(f"r{number}", devices.word, *texts) for number in range(32)))
    assert "timed out trying to allocate devices" in await devices.claims.refused("p", "SchedulerError")
    await devices.pod("q", exactly("gpu", devices.word))
    assert await devices.names("q") == ["d0"]


async def test_the_guard_of_a_class_keeps_the_scheduler_from_its_devices(
    devices: Devices, make_node: Any, unique: str, cleanup: Callable[[str], None]
) -> None:
    """Where a server drops taints; to kube-scheduler it is a selector that no device fulfils."""
    cleanup(f"{API}/deviceclasses/{unique}-guarded")
    guarded = device_class(f"{unique}-guarded", f'device.driver == "{devices.driver}"', GUARD)
    (await devices.api("POST", f"{API}/deviceclasses", guarded)).ok()
    await devices.publish(await make_node(), {"name": "a"})
    await devices.pod("p", exactly("gpu", f"{unique}-guarded"))
    assert "cannot allocate all claims" in await devices.claims.refused("p")
