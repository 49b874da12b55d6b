"""Finds entries that must wait for a pod to end, because it holds the same device under another name. Pure.

Kubelet knows entries, not devices: it counts a card that it gave out whole as free once the card is listed as shares,
or under another resource. So an entry is blocked while a container holds, under any entry but that very one,
* the same share under another resource;
* the card of a MIG device, or a MIG device of the card.

Shares of one device under one resource never block each other.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

import msgspec

from tessera.agent.inventory.device_users import DeviceUser
from tessera.api.sharing.devices import AdvertisedDevice, Advertisement, device_of

#: An entry by resource and id.
EntryKey = tuple[str, str]


class HeldEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that a container holds.

    Attributes:
        resource: the resource under which kubelet gave it.
        id: the entry.
        who: the pod, for people: ``pod default/train``.
    """

    resource: str
    id: str
    who: str

    @property
    def device(self) -> str:
        """UUID of the card or MIG device."""
        return device_of(self.id)

    @property
    def whole(self) -> bool:
        """True if it is not a share."""
        return self.id == self.device


def held_entries(holders: Mapping[str, tuple[DeviceUser, ...]]) -> Iterator[HeldEntry]:
    """Every entry that containers hold."""
    for holder in chain.from_iterable(holders.values()):
        for each in holder.ids:
            yield HeldEntry(resource=holder.resource, id=each, who=f"pod {holder.pod_name}")


def blocked_entries(offer: Advertisement, held: Iterable[HeldEntry], parents: Mapping[str, str]) -> dict[EntryKey, str]:
    """Returns the entries of an offer that must not be given out now, each with the reason.

    Args:
        offer: the advertised entries.
        held: the entries that containers hold.
        parents: the card of each MIG device, by UUID.
    """
    by_card: dict[str, list[HeldEntry]] = {}
    for each in held:
        by_card.setdefault(parents.get(each.device, each.device), []).append(each)
    found: dict[EntryKey, str] = {}
    for resource, offered in offer.resources.items():
        for device in offered.devices:
            for each in by_card.get(device.gpu, ()):
                if _excludes(each, resource, device):
                    found[resource, device.id] = f"{each.who} holds {each.id} as {each.resource}"
                    break
    return found


def _excludes(held: HeldEntry, resource: str, device: AdvertisedDevice) -> bool:
    if held.device != device.uuid:
        return device.gpu in {held.device, device.uuid}
    if held.id == device.id:
        return held.resource != resource
    return held.whole or device.id == device.uuid
