"""Reads what claims hold of a node's devices from their allocations.

A device may vanish while a claim holds it: the driver gave its profile another number, or the card has another role
now. It is held all the same, and with it everything of its card: nobody knows here which part it was.
"""

import re
from collections.abc import Iterable, Sequence
from decimal import Decimal

from tessera.dra.claims import AllocatedDevice
from tessera.dra.devices import Device, DeviceId, Holdings, Pool, qualify
from tessera.dra.node_devices import DRIVER, NVIDIA_DRIVER
from tessera.kube.quantity import parse_quantity, quantity_text

_CARD = re.compile(r"(gpu-[0-9]+)(?:-.*)?")


def read_holdings(pools: Sequence[Pool], allocated: Iterable[AllocatedDevice]) -> Holdings:
    """Returns what allocations hold. Those with admin access hold nothing.

    Args:
        pools: the pools of a node.
        allocated: the devices of all claims, also those of other nodes.
    """
    known = {device.id: device for pool in pools for device in pool.devices}
    found = Holdings()
    for each in allocated:
        if each.admin_access:
            continue
        identity = DeviceId(each.driver, each.pool, each.device)
        amounts = {qualify(name, each.driver): _amount(value) for name, value in each.consumed_capacity.items()}
        if identity in known:
            found.take(known[identity], amounts)
        else:
            _take_vanished(found, identity, pools, Device(id=identity, shared=bool(each.share_id)), amounts)
    return found


def _take_vanished(
    found: Holdings, identity: DeviceId, pools: Sequence[Pool], device: Device, amounts: dict[str, Decimal]
) -> None:
    found.take(device, amounts)
    card = _CARD.fullmatch(identity.device) if identity.driver in (DRIVER, NVIDIA_DRIVER) else None
    if card is None:
        return
    for pool in pools:
        if pool.driver == identity.driver and identity.pool.partition("/")[0] == pool.node:
            counters = {key: value for key, value in pool.counters.items() if key[0].startswith(f"{card[1]}-")}
            found.take(Device(id=DeviceId(pool.driver, pool.name, f"card of {identity.device}"), counters=counters), {})


def _amount(value: object) -> Decimal:
    """An amount in a status; one that is no quantity counts as nothing, which the API server does not store."""
    try:
        return parse_quantity(quantity_text(value))
    except ValueError:
        return Decimal(0)
