"""Tells the slicer which operators exist whose gates go after Tessera's.

A gate's name alone says nothing: any author of a pod can write it. Where its owner's API group is not served, nobody
removes the gate, and Tessera promises nothing before it is gone, as with any gate of others. It costs one small request
a minute, later less.
"""

from collections.abc import Callable

from tessera.api.names import LAST_GATES
from tessera.clock import Clock
from tessera.controller.leadership.informers import SlicerInput
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.events import LastGatesObserved
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError
from tessera.kube.watch.optional_kind import LOOK_AGAIN, LOOK_SELDOM


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
