"""The allocation that is written for a claim, and how it is read again."""

from decimal import Decimal
from typing import Any

import msgspec

from tessera.dra.allocation import select_node, write_allocation
from tessera.dra.claims import Allocation, ClaimSpec, DeviceClass, ResourceClaim
from tessera.dra.devices import Capacity, Device, DeviceId, Holdings, Pool
from tessera.dra.matching import NoMatch, match_claims
from tessera.dra.requests import read_demand
from tessera.dra.selectors import DeviceSelectors
from tessera_lab.scheduler.state.claim_cache import read_holdings

DRIVER = "gpu.tessera.dev"


def opaque(kind: str) -> dict[str, Any]:
    return {"opaque": {"driver": DRIVER, "parameters": {"kind": kind}}}


def device_class(name: str, *configs: Any) -> DeviceClass:
    return msgspec.convert({"metadata": {"name": name}, "spec": {"config": configs}}, DeviceClass)


CLASSES = {
    "one": device_class("one", opaque("of one")),
    "two": device_class("two"),
    "three": device_class("three", opaque("of three")),
}
MEMORY = Capacity(value=Decimal(8), default=Decimal(0), least=Decimal(0), most=Decimal(8))


def device(name: str, **more: Any) -> Device:
    return Device(id=DeviceId(DRIVER, "n1", name), **more)


POOL = Pool(
    driver=DRIVER,
    name="n1",
    node="n1",
    devices=(
        device("a"),
        device("b"),
        device("s", shared=True, capacity={f"{DRIVER}/memory": MEMORY}),
    ),
)


def exactly(name: str, class_name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": class_name, **more}}


def allocate(devices: dict[str, Any], **more: Any) -> dict[str, Any]:
    spec = msgspec.convert({"devices": devices}, ClaimSpec)
    chosen = match_claims([read_demand("claim ns/c", spec, CLASSES)], [POOL], Holdings(), DeviceSelectors())
    assert not isinstance(chosen, NoMatch)
    return write_allocation("uid", spec, CLASSES, chosen, node_selector=select_node("n1"), **more)


def test_an_allocation_names_devices_node_and_time() -> None:
    found = allocate({"requests": [exactly("r", "two")]}, time="2026-11-29T11:00:00Z")
    assert found == {
        "devices": {"results": [{"request": "r", "driver": DRIVER, "pool": "n1", "device": "a"}]},
        "nodeSelector": {
            "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
        },
        "allocationTimestamp": "2026-11-29T11:00:00Z",
    }
    assert msgspec.convert(found, Allocation).node == "n1"


def test_an_alternative_is_named_with_its_request_and_admin_access_and_tolerations_are_kept() -> None:
    alternative = {"name": "x", "deviceClassName": "two", "tolerations": [{"key": "k", "operator": "Exists"}]}
    devices = {
        "requests": [{"name": "r", "firstAvailable": [alternative]}, exactly("s", "two", adminAccess=True)],
    }
    first, second = allocate(devices)["devices"]["results"]
    assert (first["request"], first["tolerations"]) == ("r/x", [{"operator": "Exists", "key": "k"}])
    assert (second["request"], second["adminAccess"]) == ("s", True)


def test_configuration_of_classes_comes_first_and_says_for_which_requests_it_is() -> None:
    devices = {
        "requests": [exactly("r", "one"), exactly("s", "three"), exactly("t", "one")],
        "config": [
            opaque("of all"),
            opaque("of s") | {"requests": ["s"]},
            opaque("of nobody") | {"requests": ["r/other"]},
        ],
    }
    found = allocate(devices)["devices"]["config"]
    assert [(each["source"], each.get("requests"), each["opaque"]["parameters"]["kind"]) for each in found] == [
        ("FromClass", ["r", "t"], "of one"),
        ("FromClass", ["s"], "of three"),
        ("FromClaim", None, "of all"),
        ("FromClaim", ["s"], "of s"),
    ]
    only = allocate({"requests": [exactly("r", "one"), exactly("t", "one")]})["devices"]["config"]
    assert only[0]["requests"] == ["r", "t"]


def test_a_share_has_an_id_that_stays_and_its_amounts_are_read_again() -> None:
    wants = exactly("r", "two", capacity={"requests": {"memory": "3"}})
    pool = msgspec.structs.replace(POOL, devices=POOL.devices[2:])
    spec = msgspec.convert({"devices": {"requests": [wants]}}, ClaimSpec)
    holdings = Holdings()
    written = []
    for uid in ("u1", "u2"):
        chosen = match_claims([read_demand("claim ns/c", spec, CLASSES)], [pool], holdings, DeviceSelectors())
        assert not isinstance(chosen, NoMatch)
        written.append(write_allocation(uid, spec, CLASSES, chosen, node_selector=None))
        claims = [msgspec.convert({"status": {"allocation": each}}, ResourceClaim) for each in written]
        results = [each for claim in claims for each in (claim.status.allocation or Allocation()).devices.results]
        holdings = read_holdings([pool], results)
    one, other = (each["devices"]["results"][0] for each in written)
    assert one["consumedCapacity"] == {"memory": "3"}
    assert one["shareID"] != other["shareID"]
    assert holdings.consumed == {pool.devices[0].id: {f"{DRIVER}/memory": Decimal(6)}}
    assert isinstance(match_claims([read_demand("c", spec, CLASSES)], [pool], holdings, DeviceSelectors()), NoMatch)
    assert written[0] == write_allocation("u1", spec, CLASSES, _again(spec, pool), node_selector=None)


def _again(spec: ClaimSpec, pool: Pool) -> Any:
    return match_claims([read_demand("claim ns/c", spec, CLASSES)], [pool], Holdings(), DeviceSelectors())
