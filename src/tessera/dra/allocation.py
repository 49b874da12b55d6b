"""``status.allocation`` of a claim, as kube-scheduler's allocator writes it.

The configuration of the classes comes first, each entry once with the requests whose devices are of the class; then
that of the claim, as far as it is for a chosen request, with the requests that it names.

``allocationTimestamp`` must be set by whoever writes an allocation before the pod is scheduled: kube-scheduler 1.36
adds a missing one when it reserves, and the server refuses that write, as an allocation is immutable.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import msgspec

from tessera.dra.claims import ClaimSpec, DeviceClass, DeviceConfig, Toleration
from tessera.dra.matching import ChosenDevice
from tessera.dra.requests import DeviceDemand
from tessera.kube.quantity import format_quantity

Json = dict[str, Any]


def write_allocation(
    uid: str,
    spec: ClaimSpec,
    classes: Mapping[str, DeviceClass],
    chosen: Sequence[ChosenDevice],
    *,
    node_selector: Mapping[str, Any] | None,
    time: str = "",
) -> Json:
    """Returns the allocation of one claim.

    Args:
        uid: of the claim; the ids of shares are made from it, so that a second writing has the same.
        spec: the claim.
        classes: the cluster's classes, by name.
        chosen: its devices.
        node_selector: the nodes on which all devices can be used; None for all.
        time: now, as RFC 3339; empty to leave it to kube-scheduler.
    """
    devices: Json = {"results": [_result(uid, number, each) for number, each in enumerate(chosen)]}
    if config := _config(spec, classes, chosen):
        devices["config"] = config
    found: Json = {"devices": devices}
    if node_selector:
        found["nodeSelector"] = node_selector
    return found | ({"allocationTimestamp": time} if time else {})


def select_node(name: str) -> Json:
    """Returns the selector of one node, in the only form that the rights of its driver's status know."""
    field = {"key": "metadata.name", "operator": "In", "values": [name]}
    return {"nodeSelectorTerms": [{"matchFields": [field]}]}


def _result(uid: str, number: int, chosen: ChosenDevice) -> Json:
    device, demand = chosen.device, chosen.demand
    found: Json = {
        "request": demand.name,
        "driver": device.id.driver,
        "pool": device.id.pool,
        "device": device.id.device,
    }
    if demand.admin:
        found["adminAccess"] = True
    if demand.tolerations:
        found["tolerations"] = [_toleration(each) for each in demand.tolerations]
    if device.shared and not demand.admin:
        found["shareID"] = chosen.share or str(uuid5(NAMESPACE_OID, f"{uid}/{number}/{device.id}"))
        found["consumedCapacity"] = {
            name.removeprefix(f"{device.id.driver}/"): format_quantity(amount, binary=True)
            for name, amount in chosen.amounts.items()
        }
    return found


def _toleration(toleration: Toleration) -> Json:
    found: Json = msgspec.to_builtins(toleration)
    return {"operator": toleration.operator, **{key: value for key, value in found.items() if value not in ("", None)}}


def _config(spec: ClaimSpec, classes: Mapping[str, DeviceClass], chosen: Sequence[ChosenDevice]) -> list[Json]:
    found: list[tuple[str, Sequence[str], DeviceConfig]] = []
    for class_name in dict.fromkeys(each.demand.class_name for each in chosen):
        names = list(dict.fromkeys(each.demand.name for each in chosen if each.demand.class_name == class_name))
        found += [("FromClass", names, each) for each in classes[class_name].spec.config]
    for config in spec.devices.config:
        if not config.requests or any(_concerns(config.requests, each.demand) for each in chosen):
            found.append(("FromClaim", config.requests, config))
    return [
        {
            "source": source,
            **({"requests": list(requests)} if requests else {}),
            **({} if config.opaque is None else {"opaque": msgspec.to_builtins(config.opaque)}),
        }
        for source, requests, config in found
    ]


def _concerns(requests: Sequence[str], demand: DeviceDemand) -> bool:
    return not requests or demand.request in requests or demand.name in requests
