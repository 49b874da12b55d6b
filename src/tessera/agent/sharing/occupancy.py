"""What pods hold, as far as kubelet has told: asked when it may be news, and completed by what was given since.

Kubelet is asked when the node's pods or the offer change, not at every change. Its answer may lack a container that was
given something a moment ago: kubelet notes that after Allocate, and the pod may not be among the live ones yet. So what
was given in the last :data:`ADMISSION` seconds counts as held, and then kubelet is asked once more.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from tessera.agent.sharing.exclusion import Entry, Held, blocked, held_by
from tessera.agent.sharing.holders import Holder, Holders
from tessera.api.names import PodUid
from tessera.api.sharing.devices import Offer, device_of
from tessera.clock import Clock

#: Seconds from Allocate until the container is certainly among those that kubelet lists, and its pod among the live.
ADMISSION = 15.0
#: Seconds before a kubelet that did not answer is asked again.
ASK_AGAIN = 0.5


class _Given(msgspec.Struct, frozen=True):
    """Entries of one resource that a container was given, and when by the monotonic clock."""

    resource: str
    ids: tuple[str, ...]
    since: float


class Occupancy:
    """Who holds what on the static side.

    Args:
        holders: asks kubelet.
        gave: called when something was given.
        clock: the time.
    """

    def __init__(self, holders: Holders, gave: Callable[[], None], clock: Clock) -> None:
        self._holders = holders
        self._gave = gave
        self._clock = clock
        self._asked_about: tuple[frozenset[PodUid], Offer] | None = None
        self._held: Mapping[str, tuple[Holder, ...]] | None = None
        self._silent: str | None = None
        self._given: list[_Given] = []

    @property
    def known(self) -> bool:
        """Whether kubelet has answered once."""
        return self._held is not None

    @property
    def silent(self) -> str | None:
        """Why kubelet did not answer when it was asked last; ``None`` if it did."""
        return self._silent

    @property
    def lately_given(self) -> frozenset[str]:
        """UUIDs of devices that kubelet's last answer may lack."""
        return frozenset(device_of(entry) for each in self._given for entry in each.ids)

    def given(self, resource: str, ids: Sequence[str]) -> None:
        """Notes that a container is given entries."""
        self._given.append(_Given(resource, tuple(ids), self._clock.monotonic()))
        self._gave()

    async def ask(self, offer: Offer) -> float | None:
        """Asks kubelet if its answer may be news; returns after how many seconds to call again, ``None`` for never."""
        about = (self._holders.live(), offer)
        now = self._clock.monotonic()
        settled = [each for each in self._given if now - each.since >= ADMISSION]
        if about != self._asked_about or settled:
            try:
                self._held = await self._holders.now()
            except ConnectionError as error:
                self._silent = f"kubelet does not say which pods hold devices: {error}"
                return ASK_AGAIN
            self._asked_about, self._silent = about, None
            self._given = [each for each in self._given if each not in settled]
        oldest = min((each.since for each in self._given), default=None)
        return None if oldest is None else max(0.0, oldest + ADMISSION - self._clock.monotonic())

    def blocked(self, offer: Offer, parents: Mapping[str, str]) -> dict[Entry, str]:
        """The entries of an offer that wait for a pod to end; see :func:`tessera.agent.sharing.exclusion.blocked`."""
        lately = [
            Held(resource=each.resource, id=entry, who="a pod that is being admitted")
            for each in self._given
            for entry in each.ids
        ]
        return blocked(offer, [*held_by(self._held or {}), *lately], parents)

    def sets(self) -> list[frozenset[str]]:
        """UUIDs of the devices that each container has together."""
        found: dict[tuple[str, ...], set[str]] = {}
        for device, holders in (self._held or {}).items():
            for each in holders:
                found.setdefault((each.pod, each.container, each.resource), set()).add(device)
        return [frozenset(each) for each in found.values()] + [
            frozenset(map(device_of, each.ids)) for each in self._given
        ]
