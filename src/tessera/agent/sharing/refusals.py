"""Decides which entries of kubelet's list must not be allocated now, and why. Pure.

1. An entry is withheld for the first of these reasons: its device is unhealthy, its device nodes are unknown, its card
   cannot be read, its device is fenced, a pod holds the device under another name, its sharing strategy is not ready,
   or a person has cordoned its card.
2. A pod can hold a device under another name because kubelet knows entries, not devices: a card that it allocated whole
   counts as free again once the card is listed as shares, or under another resource. So an entry is blocked while a
   container holds, under any other entry, the same share under another resource, the card of a MIG device, or a MIG
   device of the card. Shares of one device under one resource never block each other.
3. Kubelet reports a changed list to the scheduler with its next node status, up to 10 s later. A pod that its owner
   replaces in the meantime is scheduled to the node and refused there, and so is every further one: a ReplicaSet made
   21 such pods in 3 s. So a part that wants to end pods first waits until :func:`overcounted_resources` is empty.
4. Kubelet takes an entry that is listed as unhealthy from the Node's allocatable amount, and kube-scheduler goes on to
   count the pod that holds it. So each such pod costs a good card. A cordoned card is well: its entries stay listed as
   healthy while a pod holds them that ends only when somebody deletes it (:func:`find_counted_entries`;
   ``docs/decisions/withheld-and-held.md``).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain

import msgspec

from tessera.agent.inventory.device_state import DeviceUser
from tessera.api.sharing.devices import AdvertisedDevice, AdvertisedResource, Advertisement, device_of
from tessera.kube.quantity import parse_quantity

_FENCED = "it is kept free, since the layout of its card is about to change"

#: An entry by resource and id.
EntryKey = tuple[str, str]


class HeldEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that a container holds.

    Attributes:
        resource: the resource under which kubelet allocated it.
        id: the entry.
        pod: the pod, for people: ``pod default/train``.
    """

    resource: str
    id: str
    pod: str

    @property
    def device(self) -> str:
        """UUID of the card or MIG device."""
        return device_of(self.id)

    @property
    def whole(self) -> bool:
        """True if it is not a share."""
        return self.id == self.device


class WithholdingReasons(msgspec.Struct, frozen=True, kw_only=True):
    """All reasons to withhold entries now.

    Attributes:
        unhealthy: health problem of the device, by entry.
        nodes_unknown: reason that a device's nodes are unknown, by UUID.
        unreadable: why a card cannot be read, by UUID.
        fenced: cards and MIG devices that must not be allocated.
        blocked: the pod that holds the device under another name, by resource and entry.
        not_ready: reason that a card's sharing strategy does not serve containers yet, by resource and card.
        cordoned: the cordon of a device with which nothing is wrong, by entry.
    """

    unhealthy: Mapping[str, str] = {}
    nodes_unknown: Mapping[str, str] = {}
    unreadable: Mapping[str, str] = {}
    fenced: frozenset[str] = frozenset()
    blocked: Mapping[EntryKey, str] = {}
    not_ready: Mapping[EntryKey, str] = {}
    cordoned: Mapping[str, str] = {}


def list_held_entries(users: Mapping[str, tuple[DeviceUser, ...]]) -> Iterator[HeldEntry]:
    """Returns every entry that containers hold, from the users of each device."""
    for user in chain.from_iterable(users.values()):
        for each in user.ids:
            yield HeldEntry(resource=user.resource, id=each, pod=f"pod {user.pod_name}")


def find_blocked_entries(
    offer: Advertisement, held: Iterable[HeldEntry], parents: Mapping[str, str]
) -> dict[EntryKey, str]:
    """Returns the entries that wait for a pod that holds the device under another name, each with the reason.

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
                    found[resource, device.id] = f"{each.pod} holds {each.id} as {each.resource}"
                    break
    return found


def find_withheld_entries(offered: AdvertisedResource, reasons: WithholdingReasons) -> dict[str, str]:
    """Returns the entries of a resource that must not be allocated now, each with its first reason; see rule 1."""
    found = {device.id: _first_reason(offered.name, device, reasons) for device in offered.devices}
    return {entry: reason for entry, reason in found.items() if reason}


def find_counted_entries(
    offered: AdvertisedResource, reasons: WithholdingReasons, lasting: Collection[EntryKey]
) -> frozenset[str]:
    """Returns the withheld entries that kubelet still has to count; see rule 4.

    Args:
        offered: the resource.
        reasons: the reasons to withhold entries now.
        lasting: the entries of pods that end only when somebody deletes them.
    """
    bad = find_withheld_entries(offered, msgspec.structs.replace(reasons, cordoned={}))
    cordoned = (each.id for each in offered.devices if each.id in reasons.cordoned and each.id not in bad)
    return frozenset(entry for entry in cordoned if (offered.name, entry) in lasting)


def fence_reason(device: AdvertisedDevice, fenced: frozenset[str]) -> str:
    """Returns the reason by which a fence withholds a device; empty if no fence does."""
    return "" if fenced.isdisjoint({device.uuid, device.gpu}) else _FENCED


class EntryStates(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of an offer, and which of them must not be allocated.

    Attributes:
        refused: the entries that must not be allocated, by resource, each with the reason.
        withheld: those of them that the lists show as unhealthy.
        counted: those that the lists show as healthy, since their pods stay (rule 4).
        healthy: the number of entries that the lists show as healthy, by resource.
    """

    refused: Mapping[str, Mapping[str, str]] = {}
    withheld: Mapping[EntryKey, str] = {}
    counted: frozenset[EntryKey] = frozenset()
    healthy: Mapping[str, int] = {}

    def lowered_since(self, before: "EntryStates") -> dict[str, int]:
        """By resource, the healthy entries, where the pod of a counted entry is about to end: the Node counts less."""
        ended = {name for name, _ in (before.counted - self.counted) & self.withheld.keys()}
        return {name: self.healthy[name] for name in ended}


def judge_entries(offer: Advertisement, reasons: WithholdingReasons, lasting: Collection[EntryKey]) -> EntryStates:
    """Returns the state of each entry of an offer; for the arguments see :func:`count_entries`."""
    refused = {name: find_withheld_entries(each, reasons) for name, each in offer.resources.items()}
    counted = {
        (name, entry)
        for name, each in offer.resources.items()
        for entry in find_counted_entries(each, reasons, lasting)
    }
    every = {(name, entry): why for name, found in refused.items() for entry, why in found.items()}
    withheld = {key: why for key, why in every.items() if key not in counted}
    lost = Counter(name for name, _ in withheld)
    healthy = {name: len(each.devices) - lost[name] for name, each in offer.resources.items()}
    return EntryStates(refused=refused, withheld=withheld, counted=frozenset(counted), healthy=healthy)


def count_entries(
    offer: Advertisement,
    reasons: WithholdingReasons,
    former: Collection[str] = (),
    lasting: Collection[EntryKey] = (),
) -> dict[str, int]:
    """Returns the number of entries of each resource that kubelet counts once it has read the lists.

    Args:
        offer: the advertised entries.
        reasons: the reasons to withhold entries now.
        former: resources that were offered once; a resource that is no longer offered has no device to allocate.
        lasting: the entries of pods that end only when somebody deletes them.
    """
    return dict.fromkeys(former, 0) | dict(judge_entries(offer, reasons, lasting).healthy)


def overcounted_resources(allocatable: Mapping[str, str], counts: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the resources of which the Node counts more than can be allocated, sorted by name.

    Args:
        allocatable: allocatable resources from the Node's status.
        counts: see :func:`count_entries`.
    """
    return tuple(sorted(name for name, count in counts.items() if parse_quantity(allocatable.get(name, "0")) > count))


def _first_reason(resource: str, device: AdvertisedDevice, reasons: WithholdingReasons) -> str:
    return (
        reasons.unhealthy.get(device.id)
        or reasons.nodes_unknown.get(device.uuid)
        or reasons.unreadable.get(device.gpu)
        or fence_reason(device, reasons.fenced)
        or reasons.blocked.get((resource, device.id))
        or reasons.not_ready.get((resource, device.id))
        or reasons.cordoned.get(device.id, "")
    )


def _excludes(held: HeldEntry, resource: str, device: AdvertisedDevice) -> bool:
    if held.device != device.uuid:
        return device.gpu in {held.device, device.uuid}
    if held.id == device.id:
        return held.resource != resource
    return held.whole or device.id == device.uuid
