"""Asks the API server whether the owners exist that pods name: those of a pod, and those of its gates.

Whoever creates a pod writes its owner. Only a pod that would inherit an age is asked about
(:mod:`tessera.controller.cluster.waiting_ages`), with one small request for each owner. So no pod inherits by a made-up
one.

The gates of some operators go after Tessera's. A gate's name alone says nothing: any author of a pod can write it.
Where its owner's API group is not served, nobody removes the gate, and Tessera promises nothing before it is gone, as
with any gate of others. It costs one small request a minute, later less.
"""

import asyncio
from collections.abc import Callable
from itertools import islice

from tessera.api.names import LAST_GATES
from tessera.clock import Clock
from tessera.controller.cluster.waiting_ages import Owner
from tessera.controller.leadership.informers import SlicerInput
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.events import LastGatesObserved, OwnerLookedUp
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError
from tessera.kube.resources import JOBS, REPLICASETS, STATEFULSETS, PartialObject
from tessera.kube.watch.optional_kind import LOOK_AGAIN, LOOK_SELDOM

#: Owners that are asked about at the same time.
_AT_ONCE = 8
#: Seconds until an owner is asked about again of which the server could not say anything. The pod waits as a young one.
_AGAIN = 5.0


class PodOwners(SlicerInput):
    """Answers :attr:`WaitingAges.unknown_owners`.

    Args:
        client: the API server; needs ``get`` for Jobs, ReplicaSets and StatefulSets.
        slicer: takes the answers.
        changed: called after each answer.
        clock: times the pauses.
    """

    def __init__(self, client: Client, slicer: Slicer, changed: Callable[[], None], *, clock: Clock) -> None:
        super().__init__(slicer, changed)
        self._client = client
        self._clock = clock
        self._due = asyncio.Event()

    def look(self) -> None:
        """Begins to ask if there is something to ask about."""
        if self._slicer.state.ages.unknown_owners:
            self._due.set()

    async def run(self) -> None:
        """Asks until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            while owners := [*islice(self._slicer.state.ages.unknown_owners, _AT_ONCE)]:
                answers = await asyncio.gather(*map(self._exists, owners))
                for owner, exists in zip(owners, answers, strict=True):
                    if exists is not None:
                        self._pass_on(OwnerLookedUp(owner, exists))
                if None in answers:
                    await self._clock.sleep(_AGAIN)

    async def _exists(self, owner: Owner) -> bool | None:
        """True if an owner of this name and UID exists; None if that is not known."""
        try:
            found = await self._get(owner)
        except (ApiError, OSError) as error:
            is_final = isinstance(error, ApiError) and error.code < 500 and error.code not in {401, 408, 429}
            return False if is_final else None
        return str(found.metadata.uid) == owner.uid

    async def _get(self, owner: Owner) -> PartialObject:
        kind, _, name = owner.maker.partition("/")
        match kind:
            case "Job":
                return await self._client.get(JOBS.metadata_only(), name, owner.namespace)
            case "ReplicaSet":
                return await self._client.get(REPLICASETS.metadata_only(), name, owner.namespace)
            case _:  # the third kind of tessera.controller.objects.pod_info.MAKERS
                return await self._client.get(STATEFULSETS.metadata_only(), name, owner.namespace)


class GateOwners(SlicerInput):
    """Asks now and then which of these operators exist.

    Args:
        client: the API server; every account may ask which API groups it serves.
        slicer: takes the events.
        changed: called after each event.
        clock: times the pauses.
    """

    def __init__(self, client: Client, slicer: Slicer, changed: Callable[[], None], *, clock: Clock) -> None:
        super().__init__(slicer, changed)
        self._client = client
        self._clock = clock
        #: The last answers; None before the first.
        self._known: frozenset[str] | None = None

    async def run(self) -> None:
        """Looks until cancelled."""
        pause = LOOK_AGAIN
        while True:
            await self._clock.sleep(pause)
            pause = min(pause * 2, LOOK_SELDOM)
            await self.look()

    async def look(self) -> None:
        """Looks once; without an answer the former one counts, and at first none exists."""
        try:
            found = frozenset([gate for gate, group in LAST_GATES.items() if await self._client.serves(group)])
        except (ApiError, ConnectionError, TimeoutError):
            found = self._known or frozenset()
        if found != self._known:
            self._known = found
            self._pass_on(LastGatesObserved(found))
