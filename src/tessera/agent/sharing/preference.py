"""Prefers entries for a container, out of those that kubelet has free. Pure.

Whole cards that are not shared are grouped by their links; shares and MIG devices are spread over the devices or packed
onto few, as the profile says. The preference is a hint and never fails: a refusal here would cost the pod, though
kubelet needs no preference to admit it.
"""

from collections.abc import Mapping, Sequence

from tessera.api.sharing.devices import AdvertisedDevice, AdvertisedResource
from tessera.api.sharing.profile import AllocationPolicy
from tessera.api.sharing.shares import NotEnoughShares, prefer_shares
from tessera.kubelet.interfaces import PreferredRequest
from tessera.placement.topology import Topology


def preferred_entries(
    offered: AdvertisedResource,
    request: PreferredRequest,
    *,
    refused: Mapping[str, str],
    topology: Topology,
    policy: AllocationPolicy,
) -> tuple[str, ...]:
    """Returns the entries that a container should get.

    Args:
        offered: the present entries of the resource. Kubelet may still know an older list.
        request: the entries that kubelet has free, and the number it needs.
        refused: entries that must not be given out now; chosen only if there are no others.
        topology: how the cards are joined.
        policy: spreads or packs shares and MIG devices.
    """
    known = {device.id for device in offered.devices if device.id not in refused}.union(request.must_include)
    free = [each for each in request.available if each in known]
    if len(free) < request.size:
        free = list(request.available)
    try:
        if all(map(_whole, offered.devices)):
            chosen = topology.preferred(free, request.must_include, request.size)
        else:
            chosen = prefer_shares(offered.devices, free, request.must_include, request.size, policy)
    except NotEnoughShares:
        chosen = ()
    return chosen or _any(request.must_include, free, request.size)


def _whole(device: AdvertisedDevice) -> bool:
    return device.id == device.gpu


def _any(must: Sequence[str], free: Sequence[str], size: int) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*must, *free)))[:size]
