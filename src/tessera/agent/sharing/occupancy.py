"""What pods hold, as far as kubelet has told: asked when it may be news, and completed by what was given since.

Kubelet is asked when the node's pods or the offer change, not at every change. Its answer may lack a container that was
given something a moment ago: kubelet notes that after Allocate, and the pod may not be among the live ones yet. So what
was given counts as held until kubelet has told who holds it, or for :data:`ADMISSION` seconds if it never tells. It is
asked once a second until then, and when the container starts. It never tells of init containers: what nobody has counts
as held as long as a pod of the node initializes with the resource, and is kept in a file: an agent that starts again
has no other way to know.
"""

import logging
from collections.abc import Mapping, Sequence
from itertools import chain
from math import inf
from pathlib import Path

import msgspec

from tessera.agent.base.change_notifier import ChangeNotifier
from tessera.agent.base.state_file import StateFile
from tessera.agent.inventory.device_users import DeviceUser, DeviceUsers
from tessera.agent.sharing.allocate_response import needs_set, set_name
from tessera.agent.sharing.conflicts import EntryKey, HeldEntry, blocked_entries, held_entries
from tessera.api.names import PodUid
from tessera.api.sharing.devices import Advertisement, device_of
from tessera.clock import Clock

_log = logging.getLogger(__name__)

#: Seconds from Allocate until the container is certainly among those that kubelet lists, and its pod among the live.
ADMISSION = 15.0
#: Seconds before a kubelet that did not answer is asked again.
ASK_AGAIN = 0.5
#: Seconds before kubelet is asked again who holds what was given, if it has not told.
LOOK_AGAIN = 1.0
#: Seconds of silence that are worth telling; a restart of kubelet takes less.
TELL_AFTER = 10.0
#: Seconds that the start of a container waits for kubelet to list it and for its pod to be seen.
PATIENCE = 1.0


class _Given(msgspec.Struct, frozen=True):
    """Entries of one resource that a container was given.

    Attributes:
        resource: the resource.
        ids: the entries.
        since: when, by the monotonic clock.
        before: who held any of them then, as far as kubelet had told: pods that have ended since.
        told: kubelet has told who holds them now.
    """

    resource: str
    ids: tuple[str, ...]
    since: float
    before: frozenset[PodUid]
    told: bool = False


class DeviceOccupancy:
    """Who holds what on the static side.

    Args:
        holders: asks kubelet.
        changes: notified when entries were given.
        given_file: keeps what was given and kubelet has not told of.
        clock: the time.
    """

    def __init__(self, holders: DeviceUsers, changes: ChangeNotifier, given_file: Path, clock: Clock) -> None:
        self._holders = holders
        self._changes = changes
        self._clock = clock
        self._asked_about: tuple[frozenset[PodUid], Advertisement] | None = None
        self._held: Mapping[str, tuple[DeviceUser, ...]] | None = None
        self._silent: tuple[float, str] | None = None
        self._file = StateFile(given_file, list[tuple[str, tuple[str, ...]]])
        now = clock.monotonic()
        self._given = [_Given(resource, ids, now, frozenset()) for resource, ids in self._file.load() or ()]
        self._told_at = 0.0

    @property
    def known(self) -> bool:
        """Whether kubelet has answered once."""
        return self._held is not None

    @property
    def silent(self) -> str | None:
        """Why kubelet has not answered for a while; ``None`` if it has, or was not asked."""
        if self._silent is None or self._clock.monotonic() - self._silent[0] < TELL_AFTER:
            return None
        return self._silent[1]

    @property
    def lately_given(self) -> frozenset[str]:
        """UUIDs of devices that kubelet's last answer may lack."""
        return frozenset(device_of(entry) for each in self._given if not each.told for entry in each.ids)

    def given(self, resource: str, ids: Sequence[str], *, starts: bool = False) -> None:
        """Notes that a container is given entries, or that it ``starts`` with them: kubelet has noted that before."""
        before = frozenset() if starts else frozenset(each.pod for each in self._holders_of(resource, ids))
        self._given.append(_Given(resource, tuple(ids), self._clock.monotonic(), before))
        self._keep()
        self._changes.notify()

    def _keep(self) -> None:
        """Keeps what kubelet has not told of. A container is not refused its devices because that failed."""
        try:
            self._file.save([(each.resource, each.ids) for each in self._given if not each.told])
        except OSError as error:
            _log.warning("what was given to containers is not kept over a restart of the agent: %s", error)

    def started(self) -> None:
        """A container starts, so kubelet has noted what it was given and is asked at the next opportunity."""
        if not all(each.told for each in self._given):
            self._asked_about = None
            self._changes.notify()

    async def ask(self, offer: Advertisement) -> float | None:
        """Asks kubelet if its answer may be news; returns after how many seconds to call again, ``None`` for never."""
        about = (self._holders.live_pods(), offer)
        now = self._clock.monotonic()
        settled = [each for each in self._given if self._is_settled(each, now)]
        if about != self._asked_about or settled or self._look_at() <= now:
            try:
                self._held = await self._holders.read()
            except ConnectionError as error:
                since = now if self._silent is None else self._silent[0]
                self._silent = since, f"kubelet does not say which pods hold devices: {error}"
                return ASK_AGAIN
            self._asked_about, self._silent, self._told_at = about, None, now
            self._given = [self._looked_up(each) for each in self._given if each not in settled]
            self._keep()
        young = [each.since + ADMISSION for each in self._given if each.since + ADMISSION > now]
        until = min([self._look_at(), *young])
        return None if until == inf else max(0.0, until - self._clock.monotonic())

    def _is_settled(self, given: _Given, now: float) -> bool:
        """Whether kubelet's next answer goes before what was noted here."""
        return given.since + ADMISSION <= now and (given.told or not self._holders.may_initialize(given.resource))

    def _look_at(self) -> float:
        """When kubelet is asked again, though nothing else may have changed, who holds what was given."""
        late = self._clock.monotonic() - ADMISSION
        return inf if all(each.told or each.since <= late for each in self._given) else self._told_at + LOOK_AGAIN

    def _looked_up(self, given: _Given) -> _Given:
        """What was given, with whether kubelet has told who holds it."""
        holders = {each.pod for each in self._holders_of(given.resource, given.ids)}
        return msgspec.structs.replace(given, told=given.told or not holders <= given.before)

    def _holders_of(self, resource: str, ids: Sequence[str]) -> list[DeviceUser]:
        return [each for each in chain.from_iterable((self._held or {}).values()) if _has(each, resource, ids)]

    def blocked(self, offer: Advertisement, parents: Mapping[str, str]) -> dict[EntryKey, str]:
        """The entries of an offer that wait for a pod to end; see :func:`tessera.agent.sharing.conflicts.blocked`."""
        return blocked_entries(offer, self._all_held(), parents)

    def holder(self, card: str, parents: Mapping[str, str]) -> str:
        """Which pod holds a card or a part of it, as what; empty if none does."""
        held = (each for each in self._all_held() if parents.get(each.device, each.device) == card)
        return next((f"{each.who} holds {each.id} as {each.resource}" for each in held), "")

    def _all_held(self) -> list[HeldEntry]:
        lately = [
            HeldEntry(resource=each.resource, id=entry, who="a pod that is being admitted")
            for each in self._given
            if not each.told
            for entry in each.ids
        ]
        return [*held_entries(self._held or {}), *lately]

    @property
    def resources(self) -> frozenset[str]:
        """The resources that containers hold entries of, whether they are still offered or not."""
        told = {each.resource for holders in (self._held or {}).values() for each in holders}
        return frozenset(told | {each.resource for each in self._given})

    async def learn(self, resource: str, ids: Sequence[str], changes: ChangeNotifier) -> None:
        """Returns when kubelet has told which container holds these entries, or after :data:`PATIENCE`.

        It never tells it of an init container.

        Raises:
            ConnectionError: kubelet did not answer.
        """
        deadline = self._clock.monotonic() + PATIENCE
        while True:
            seen = changes.count
            self._held = await self._holders.read()
            left = deadline - self._clock.monotonic()
            if left <= 0 or any(_has(each, resource, ids) for each in chain.from_iterable(self._held.values())):
                return
            await changes.wait(seen, min(left, ASK_AGAIN))

    def sets(self, *, joint: bool) -> dict[str, frozenset[str]]:
        """UUIDs of all devices of each container that has a CDI set, by the set's name.

        Args:
            joint: also of those that were given one device lately and may have more of other resources.
        """
        lately = {set_name(each.ids): frozenset(map(device_of, each.ids)) for each in self._given}
        found = {name: uuids for name, uuids in lately.items() if needs_set(tuple(uuids), joint=joint)}
        for parts in self._containers().values():
            uuids = frozenset(device_of(entry) for ids in parts.values() for entry in ids)
            if len(uuids) > 1 or len(parts) > 1:
                found |= {set_name(ids): uuids for ids in parts.values()}
        return found

    def _containers(self) -> dict[tuple[str, str], dict[str, set[str]]]:
        """The entries of each container, by pod and name, by resource."""
        found: dict[tuple[str, str], dict[str, set[str]]] = {}
        for each in chain.from_iterable((self._held or {}).values()):
            found.setdefault((each.pod, each.container), {}).setdefault(each.resource, set()).update(each.ids)
        return found


def _has(holder: DeviceUser, resource: str, ids: Sequence[str]) -> bool:
    return holder.resource == resource and not set(ids).isdisjoint(holder.ids)
