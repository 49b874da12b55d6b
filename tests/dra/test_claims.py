"""Claims, classes and slices as the server stores them, and as hostile tenants and nodes may write them."""

from typing import Any

import msgspec
import pytest

from tessera.dra.claims import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, ResourceClaim
from tessera.dra.resource_slices import RESOURCE_SLICES
from tessera.kube.codec import ChangeLine, Codec, Undecodable

_REQUEST = {"name": "r", "exactly": {"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1}}
_LONG = [{"cel": {"expression": "a" * 10_241}}]


def decode(resource: Any, item: dict[str, Any]) -> Any:
    line = Codec(resource.type).decode_line(msgspec.json.encode({"type": "ADDED", "object": item}))
    return line.object if isinstance(line, ChangeLine) else line


def claim(devices: Any, status: Any = None) -> Any:
    return decode(RESOURCE_CLAIMS, {"metadata": {"name": "c"}, "spec": {"devices": devices}, "status": status or {}})


def test_a_claim_as_a_server_stores_it() -> None:
    stored = claim(
        {
            "requests": [
                {"name": "gpu", "exactly": {"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1}}
            ]
        },
        {
            "allocation": {
                "allocationTimestamp": "2026-11-29T11:00:00Z",
                "devices": {
                    "results": [{"request": "gpu", "driver": "d", "pool": "n1", "device": "x", "shareID": "s"}],
                    "config": [{"source": "FromClass", "opaque": {"driver": "d", "parameters": {"kind": "K"}}}],
                },
                "nodeSelector": {
                    "nodeSelectorTerms": [
                        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
                    ]
                },
            },
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
        },
    )
    assert isinstance(stored, ResourceClaim)
    allocation = stored.status.allocation
    assert allocation is not None
    assert (allocation.node, allocation.devices.results[0].share_id) == ("n1", "s")
    assert (allocation.devices.config[0].source, stored.status.reserved_for[0].uid) == ("FromClass", "u")


@pytest.mark.parametrize(
    "term",
    [
        {"matchExpressions": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1", "n2"]}]},
        {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]},
    ],
)
def test_a_node_selector_of_another_form_names_no_node(term: Any) -> None:
    stored = claim({}, {"allocation": {"nodeSelector": {"nodeSelectorTerms": [term]}}})
    assert stored.status.allocation.node == ""


def test_a_member_that_is_null_is_absent() -> None:
    stored = claim({"requests": [{"name": "r", "exactly": {"deviceClassName": "c", "selectors": None, "count": None}}]})
    assert stored.spec.devices.requests[0].exactly.selectors == ()
    assert claim(None).spec.devices.requests == ()


@pytest.mark.parametrize(
    ("resource", "spec"),
    [
        (RESOURCE_CLAIMS, {"devices": {"requests": [_REQUEST] * 33}}),
        (RESOURCE_CLAIMS, {"devices": {"requests": "all"}}),
        (
            RESOURCE_CLAIMS,
            {"devices": {"requests": [{"exactly": {"selectors": _LONG}}]}},
        ),
        (RESOURCE_CLAIMS, {"devices": {"requests": [{"exactly": {"count": 1.5}}]}}),
        (RESOURCE_CLAIMS, {"devices": {"requests": [{"firstAvailable": [{}] * 9}]}}),
        (RESOURCE_CLAIM_TEMPLATES, {"spec": {"devices": {"constraints": [{}] * 33}}}),
        (DEVICE_CLASSES, {"selectors": [{}] * 33}),
        (RESOURCE_SLICES, {"devices": [{"name": "d"}] * 129}),
        (RESOURCE_SLICES, {"sharedCounters": [{"name": "s"}] * 9}),
        (RESOURCE_SLICES, {"devices": [{"attributes": {f"a{each}": {"int": 1} for each in range(33)}}]}),
        (RESOURCE_SLICES, {"devices": [{"taints": [{"key": "k"}] * 17}]}),
    ],
)
def test_an_object_beyond_kubernetes_bounds_does_not_decode(resource: Any, spec: Any) -> None:
    assert isinstance(decode(resource, {"metadata": {"name": "x"}, "spec": spec}), Undecodable)
