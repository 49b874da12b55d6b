"""The devices that pods hold, from kubelet's last answer and the allocations since.

Kubelet is asked when the node's pods or the offer change, not at every change. Its answer may lack a container that got
devices a moment ago: kubelet notes an allocation after Allocate, and the pod may not be among the live ones yet. So
allocated entries count as held until kubelet lists their holder, or for :data:`ADMISSION` seconds if it never does.
Until then kubelet is asked once a second, and when the container starts. Kubelet never lists init containers. Entries
without a listed holder therefore count as held as long as a pod of the node initializes with the resource. They are
kept in a file: an agent that starts again has no other source for them.

Functions without I/O decide which entries of kubelet's list must not be allocated now, and why:

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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import inf
from pathlib import Path

import msgspec

from tessera.agent.base.node_files import StateFile
from tessera.agent.base.wake_ups import ChangeNotifier, Fact
from tessera.agent.inventory.device_state import DeviceUser, DeviceUsers
from tessera.agent.sharing.allocate_response import needs_set, set_name
from tessera.api.names import PodUid
from tessera.api.sharing.devices import AdvertisedDevice, AdvertisedResource, Advertisement, device_of
from tessera.clock import Clock
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


#: Seconds from Allocate until kubelet certainly lists the container, and its pod is certainly among the live ones.
ADMISSION = 15.0
#: Seconds before a kubelet that did not answer is asked again.
RETRY = 0.5
#: Seconds before kubelet is asked again for the holder of allocated entries, if it does not list one.
UNLISTED_INTERVAL = 1.0
#: Seconds without an answer until the silence is reported; a restart of kubelet takes less.
SILENCE_REPORTED = 10.0
#: Seconds that the start of a container waits until kubelet lists it and its pod is seen.
LISTING_TIMEOUT = 1.0


class _Allocation(msgspec.Struct, frozen=True):
    """Entries of one resource that a container got.

    Attributes:
        resource: the resource.
        ids: the entries.
        since: time of the allocation, by the monotonic clock.
        before: the holders of any of them at that time, from kubelet's last answer: pods that have ended since.
        listed: true once kubelet lists the present holder.
    """

    resource: str
    ids: tuple[str, ...]
    since: float
    before: frozenset[PodUid]
    listed: bool = False


class DeviceOccupancy:
    """The holders of devices on the static side.

    Args:
        device_users: asks kubelet.
        changes: notified when entries were allocated.
        allocations_file: keeps the allocated entries whose holder kubelet does not list.
        clock: the time.
    """

    def __init__(
        self, device_users: DeviceUsers, changes: ChangeNotifier, allocations_file: Path, clock: Clock
    ) -> None:
        self._device_users = device_users
        self._changes = changes
        self._clock = clock
        #: Live pods and offer of the last answer; ``None`` if kubelet must be asked again.
        self._read_for: tuple[frozenset[PodUid], Advertisement] | None = None
        #: Kubelet's last answer, by device; ``None`` before the first.
        self._users: Mapping[str, tuple[DeviceUser, ...]] | None = None
        #: Time and text of the first call without an answer; ``None`` once kubelet answers.
        self._silence: tuple[float, str] | None = None
        self._file = StateFile(allocations_file, list[tuple[str, tuple[str, ...]]])
        now = clock.monotonic()
        #: Allocations since the last answer that counts, and those whose holder kubelet may never list, oldest first.
        self._allocations = [_Allocation(resource, ids, now, frozenset()) for resource, ids in self._file.load() or ()]
        #: Time of the last answer, monotonic seconds.
        self._read_at = 0.0
        #: Monotonic time before which kubelet is not asked again, since it has just failed to answer.
        self._ask_again_at = 0.0

    @property
    def has_answer(self) -> bool:
        """True if kubelet has answered once."""
        return self._users is not None

    @property
    def silence_text(self) -> str | None:
        """Text that kubelet has not answered for a while; ``None`` if it has, or was not asked."""
        if self._silence is None or self._clock.monotonic() - self._silence[0] < SILENCE_REPORTED:
            return None
        return self._silence[1]

    @property
    def recent_allocations(self) -> frozenset[str]:
        """UUIDs of devices that kubelet's last answer may lack."""
        return frozenset(device_of(entry) for each in self._allocations if not each.listed for entry in each.ids)

    def note_allocated(self, resource: str, ids: Sequence[str], *, starts: bool = False) -> None:
        """Notes that a container gets entries, or ``starts`` with them; kubelet has noted the allocation by then."""
        before = frozenset() if starts else frozenset(each.pod for each in self._holders_of(resource, ids))
        self._allocations.append(_Allocation(resource, tuple(ids), self._clock.monotonic(), before))
        self._save()
        self._changes.notify(Fact.ALLOCATIONS)

    def _save(self) -> None:
        """Saves the entries whose holder kubelet does not list. A failed save denies no container its devices."""
        unlisted = [(each.resource, each.ids) for each in self._allocations if not each.listed]
        self._file.save_if_possible(unlisted, "allocations are not kept")

    def note_starting(self) -> None:
        """Notes that a container starts: kubelet has noted its allocation, and is asked at the next opportunity."""
        if not all(each.listed for each in self._allocations):
            self._read_for = None
            self._changes.notify(Fact.ALLOCATIONS)

    async def ask(self, offer: Advertisement) -> float | None:
        """Asks kubelet if its answer may differ; returns the seconds until the next call, ``None`` for never."""
        about = (self._device_users.live_pods(), offer)
        now = self._clock.monotonic()
        if now < self._ask_again_at:  # kubelet has just failed, and nothing that changes here makes it answer
            return self._ask_again_at - now
        settled = [each for each in self._allocations if self._is_settled(each, now)]
        if about != self._read_for or settled or self._next_read_at() <= now:
            try:
                self._users = await self._device_users.read()
            except ConnectionError as error:
                since = now if self._silence is None else self._silence[0]
                self._silence = since, f"kubelet does not say which pods hold devices: {error}"
                self._ask_again_at = self._clock.monotonic() + RETRY
                return RETRY
            self._read_for, self._silence, self._read_at = about, None, now
            self._allocations = [self._look_up_holder(each) for each in self._allocations if each not in settled]
            self._save()
        admitting = [each.since + ADMISSION for each in self._allocations if each.since + ADMISSION > now]
        until = min([self._next_read_at(), *admitting])
        return None if until == inf else max(0.0, until - self._clock.monotonic())

    def _is_settled(self, allocation: _Allocation, now: float) -> bool:
        """True if kubelet's next answer counts more than this note of an allocation."""
        return allocation.since + ADMISSION <= now and (
            allocation.listed or not self._device_users.may_initialize(allocation.resource)
        )

    def _next_read_at(self) -> float:
        """Time at which kubelet is asked again for the holders of allocated entries, even without any other change."""
        late = self._clock.monotonic() - ADMISSION
        return (
            inf
            if all(each.listed or each.since <= late for each in self._allocations)
            else self._read_at + UNLISTED_INTERVAL
        )

    def _look_up_holder(self, allocation: _Allocation) -> _Allocation:
        """The allocation, with ``listed`` set from kubelet's last answer."""
        if allocation.listed:
            return allocation
        holders = {each.pod for each in self._holders_of(allocation.resource, allocation.ids)}
        return msgspec.structs.replace(allocation, listed=not holders <= allocation.before)

    def _holders_of(self, resource: str, ids: Sequence[str]) -> list[DeviceUser]:
        return [each for each in chain.from_iterable((self._users or {}).values()) if _has(each, resource, ids)]

    def blocked_entries(self, offer: Advertisement, parents: Mapping[str, str]) -> dict[EntryKey, str]:
        """The entries that wait for a pod to end; see :func:`find_blocked_entries`."""
        return find_blocked_entries(offer, self._held_entries(), parents)

    def holder(self, card: str, parents: Mapping[str, str]) -> str:
        """The pod that holds a card or a part of it, and the resource; empty if none does."""
        held = (each for each in self._held_entries() if parents.get(each.device, each.device) == card)
        return next((f"{each.pod} holds {each.id} as {each.resource}" for each in held), "")

    def _held_entries(self) -> list[HeldEntry]:
        recent = [
            HeldEntry(resource=each.resource, id=entry, pod="a pod that is being admitted")
            for each in self._allocations
            if not each.listed
            for entry in each.ids
        ]
        return [*list_held_entries(self._users or {}), *recent]

    def held_devices(self, resource: str) -> frozenset[str]:
        """UUIDs of the devices of which containers hold entries of a resource."""
        return frozenset(each.device for each in self._held_entries() if each.resource == resource)

    def lasting_entries(self) -> frozenset[EntryKey]:
        """The entries of pods that end only when somebody deletes them."""
        pods = self._device_users.lasting_pods()
        users = [each for each in chain.from_iterable((self._users or {}).values()) if each.pod in pods]
        return frozenset((each.resource, entry) for each in users for entry in each.ids)

    def count_held(self, entries: Collection[EntryKey]) -> dict[str, int]:
        """How many of these entries containers hold, by resource; a resource without one is missing."""
        held = {(each.resource, each.id) for each in self._held_entries()}
        return dict(Counter(resource for resource, _ in held.intersection(entries)))

    @property
    def resources(self) -> frozenset[str]:
        """The resources of which containers hold entries, offered or not."""
        resources = {each.resource for holders in (self._users or {}).values() for each in holders}
        return frozenset(resources | {each.resource for each in self._allocations})

    async def wait_listed(self, resource: str, ids: Sequence[str], changes: ChangeNotifier) -> None:
        """Waits until kubelet lists the container that holds these entries, or for :data:`LISTING_TIMEOUT` seconds.

        Kubelet never lists an init container.

        Raises:
            ConnectionError: kubelet did not answer.
        """
        deadline = self._clock.monotonic() + LISTING_TIMEOUT
        while True:
            count = changes.count
            self._users = await self._device_users.read()
            left = deadline - self._clock.monotonic()
            if left <= 0 or any(_has(each, resource, ids) for each in chain.from_iterable(self._users.values())):
                return
            await changes.wait(count, min(left, RETRY))

    def sets(self, *, joint: bool) -> dict[str, frozenset[str]]:
        """UUIDs of all devices of each container that has a CDI set, by the set's name.

        Args:
            joint: if true, also of containers that got one device recently and may have more of other resources.
        """
        recent = ((each.ids, frozenset(map(device_of, each.ids))) for each in self._allocations)
        found = {set_name(ids): uuids for ids, uuids in recent if needs_set(tuple(uuids), joint=joint)}
        for parts in self._containers().values():
            uuids = frozenset(device_of(entry) for ids in parts.values() for entry in ids)
            if len(uuids) > 1 or len(parts) > 1:
                found |= {set_name(ids): uuids for ids in parts.values()}
        return found

    def _containers(self) -> dict[tuple[str, str], dict[str, set[str]]]:
        """The entries of each container, by pod and name, by resource."""
        found: dict[tuple[str, str], dict[str, set[str]]] = {}
        for each in chain.from_iterable((self._users or {}).values()):
            found.setdefault((each.pod, each.container), {}).setdefault(each.resource, set()).update(each.ids)
        return found


def _has(holder: DeviceUser, resource: str, ids: Sequence[str]) -> bool:
    return holder.resource == resource and not set(ids).isdisjoint(holder.ids)
