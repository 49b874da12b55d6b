"""Reasons to withhold entries, and the order in which they are reported. Pure."""

from collections.abc import Mapping

import msgspec

from tessera.agent.sharing.conflicts import EntryKey
from tessera.api.sharing.devices import AdvertisedDevice, AdvertisedResource
from tessera.api.sharing.profile import SharingKind

_LOST = "the card fell off the bus; drain the node and reboot it"
_FENCED = "it is kept free, since the layout of its card is about to change"


class WithholdingReasons(msgspec.Struct, frozen=True, kw_only=True):
    """All reasons to withhold entries now.

    Attributes:
        unhealthy: by entry: the health problem of its device.
        unreadable: by UUID: why a device's nodes are unknown.
        lost: cards that fell off the bus.
        fenced: cards and MIG devices that must not be allocated.
        blocked: by resource and entry: the pod that holds the device under another name.
        waiting: by resource and card: why the resource's MPS daemon does not serve clients there.
    """

    unhealthy: Mapping[str, str] = {}
    unreadable: Mapping[str, str] = {}
    lost: frozenset[str] = frozenset()
    fenced: frozenset[str] = frozenset()
    blocked: Mapping[EntryKey, str] = {}
    waiting: Mapping[tuple[str, str], str] = {}


def withheld_entries(offered: AdvertisedResource, grounds: WithholdingReasons) -> dict[str, str]:
    """The entries of a resource that must not be given out now, each with the first reason in the order above."""
    found = {device.id: _why(offered.name, device, grounds) for device in offered.devices}
    return {entry: why for entry, why in found.items() if why}


def fence_reason(device: AdvertisedDevice, fenced: frozenset[str]) -> str:
    """Why a fence keeps a device from being given out; empty if none does."""
    return "" if fenced.isdisjoint({device.uuid, device.gpu}) else _FENCED


def _why(resource: str, device: AdvertisedDevice, grounds: WithholdingReasons) -> str:
    return (
        grounds.unhealthy.get(device.id)
        or grounds.unreadable.get(device.uuid)
        or (_LOST if device.gpu in grounds.lost else "")
        or fence_reason(device, grounds.fenced)
        or grounds.blocked.get((resource, device.id))
        or (grounds.waiting.get((resource, device.gpu), "") if device.kind is SharingKind.MPS else "")
    )
