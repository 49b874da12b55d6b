"""A card that ResourceClaims get whole, as a card with one place, or in shares, as one with a place for each.

Nothing is made on such a card, so the slice state machine gets a stand-in for the GPU instance: it exists from the
machine's call to create it until the call to destroy it. Both fail as long as a process uses the card, of whomever: a
container that was started by hand, or one that another driver gave the card. Nobody can tell whose process uses a card
that is shared, so its shares come and go whatever computes there. Promise, owner, journal, retries and the order of
users are those of slices.
"""

from tessera.agent.base.change_notifier import Fact
from tessera.agent.inventory.sliceable_gpus import SlicePosition
from tessera.agent.slices.events import (
    CreateGpuInstance,
    DestroyComputeInstance,
    GpuCall,
    GpuRead,
    GpuUnreachable,
    ObservedInstance,
)
from tessera.agent.slices.executor import LOST_RECHECK, GpuSliceExecutor
from tessera.nvml.errors import InUse, NvmlError

#: Stands for the ids of GPU instance and compute instance; NVML's are 0 or more.
WHOLE = -1


class WholeCardExecutor(GpuSliceExecutor):
    """Executes the instructions for a card that is given whole, or in shares. See :class:`.GpuSliceExecutor`."""

    #: The places that pods have; ``None`` before the first reading.
    _given: set[SlicePosition] | None = None

    async def read(self) -> None:
        """Passes to the machine which places are given, if the card answers."""
        self._stale = False
        uuid = self._card.uuid
        if self._given is None:  # the journal has the owner since before it was known that nobody used the card
            owned = (each for each in self._machine.table.owners if each.gpu == uuid)
            self._given = {each for each in owned if self._card.shares is not None or self._is_bound(each)}
        try:
            await self._hardware.processes(self._card.info.uuid)
        except NvmlError:
            self._machine.handle(GpuUnreachable(uuid, self._clock.monotonic() + LOST_RECHECK))
        else:
            size = self._card.geometry.profiles[0].size
            made = tuple(
                ObservedInstance(gi_id=WHOLE - each.start, position=each, size=size, computes=((WHOLE, uuid),))
                for each in sorted(self._given)
            )
            self._machine.handle(GpuRead(uuid, self._card.starts(), made))
        self._changes.notify(Fact.SLICES)

    async def _do(self, call: GpuCall) -> None:
        given = self._given if self._given is not None else set()
        match call:
            case CreateGpuInstance():
                alone = self._card.shares is None and not self._is_bound(call.position)
                if alone:
                    self._check_served()
                if alone and (users := await self._users(call)):
                    named = ", ".join(map(str, users))
                    raise InUse(f"card {self._card.uuid} cannot be given to a claim, it is used by process {named}")
                given.add(call.position)
            case DestroyComputeInstance():
                if self._card.shares is None:
                    await self._check_idle(call)
                    self._check_served()
                given.discard(call.position)
            case _:
                raise AssertionError(f"{call!r} is no instruction for a card that is given whole")

    def _check_served(self) -> None:
        """Has a call wait until no MPS daemon has the card; one of its shares may have left it in the daemon's mode."""
        if self._is_exclusive(self._card.uuid):
            raise InUse(f"card {self._card.uuid} is still served by the MPS daemon of its last claim")

    def _is_bound(self, position: SlicePosition) -> bool:
        """True if a claim has the card, so that its containers may use it."""
        return any(position in devices.values() for devices in self._machine.table.bindings.values())

    def _instance_of(self, call: GpuCall) -> int | None:  # noqa: ARG002 - the card has no instances
        return None

    def _is_of_users(self, call: GpuCall) -> bool:
        return isinstance(call, CreateGpuInstance | DestroyComputeInstance)
