"""Does on one card what its machine says, and tells the machine what it saw: the only place that touches the cards.

The journal is on disk before every call. Right before something is destroyed NVML is asked for the processes on it once
more: NVML refuses to destroy what is in use as well, but a process that has just begun would lose its device.
"""

import logging
from collections.abc import Callable

from tessera.agent.inventory.mig_cards import geometry_of
from tessera.agent.mig_config.events import (
    Call,
    CallFailed,
    CallFailure,
    CallSucceeded,
    CardRead,
    CardReadFailed,
    CreateCi,
    CreateGi,
    DestroyCi,
    DestroyGi,
    Reset,
    SetMigMode,
)
from tessera.clock import Clock
from tessera.mig.geometry import Geometry
from tessera.nvml.asynchronous.async_nvml import AsyncNvml
from tessera.nvml.errors import GpuLost, InUse, NotFound, NvmlError, ResetRequired
from tessera.nvml.interface import GpuInfo, GpuUuid, MigModeResult

_log = logging.getLogger(__name__)

#: First and longest delay in seconds before a card that does not answer is asked again.
UNREADABLE_FIRST, UNREADABLE_MOST = 1.0, 30.0


class CardExecutor:
    """Reads and changes one card.

    Args:
        uuid: the card's.
        hardware: the node's cards.
        save: writes the journal; raises OSError when it cannot, and then no call is made.
        was_reset: told after every reset of the card.
        instance_gone: told of every GPU instance that was destroyed.
        clock: for retries.
    """

    def __init__(
        self,
        uuid: GpuUuid,
        *,
        hardware: AsyncNvml,
        save: Callable[[], None],
        was_reset: Callable[[str], None],
        instance_gone: Callable[[str, int], None],
        clock: Clock,
    ) -> None:
        self._uuid = uuid
        self._was_reset = was_reset
        self._instance_gone = instance_gone
        self._hardware = hardware
        self._save = save
        self._clock = clock
        self._geometry: Geometry | None = None
        self._silent = 0

    async def look(self) -> CardRead | CardReadFailed:
        """Reads the card."""
        try:
            seen = await self._read()
        except (NvmlError, ValueError) as error:
            self._silent += 1
            delay = min(UNREADABLE_MOST, UNREADABLE_FIRST * 2.0 ** min(self._silent - 1, 16))
            _log.warning("card %s cannot be read, next try in %.0f s: %s", self._uuid, delay, error)
            return CardReadFailed(str(error), self._clock.monotonic() + delay)
        self._silent = 0
        return seen

    async def attempt(self, call: Call) -> CallSucceeded | CallFailed:
        """Makes a call; what it led to is seen at the next look."""
        try:
            self._save()
            await self._perform(call)
        except InUse as error:
            return self._failed(call, CallFailure.BUSY, error)
        except ResetRequired as error:
            return self._failed(call, CallFailure.NEEDS_RESET, error)
        except NotFound as error:
            if not isinstance(call, DestroyCi | DestroyGi):
                return self._failed(call, CallFailure.REFUSED, error)
        except (NvmlError, OSError) as error:
            return self._failed(call, CallFailure.REFUSED, error)
        return CallSucceeded(call)

    async def _read(self) -> CardRead:
        info = await self._info()
        if info.lost:
            raise GpuLost(f"card {self._uuid}")
        users: dict[int | None, list[int]] = {}
        for each in await self._hardware.processes(self._uuid):
            users.setdefault(each.gi_id, []).append(each.pid)
        if not info.mig_enabled:
            self._geometry = None
        elif self._geometry is None:
            self._geometry = geometry_of(info, await self._hardware.gi_profiles(self._uuid))
        return CardRead(
            mig_enabled=info.mig_enabled,
            mig_pending=info.mig_pending,
            geometry=self._geometry,
            instances=tuple(await self._hardware.instances(self._uuid)) if info.mig_enabled else (),
            processes={gi_id: tuple(pids) for gi_id, pids in users.items()},
        )

    async def _info(self) -> GpuInfo:
        for info in await self._hardware.devices():
            if info.uuid == self._uuid:
                return info
        raise NotFound(f"card {self._uuid}: the driver no longer lists it; drain the node and reboot it")

    async def _perform(self, call: Call) -> None:
        uuid, hardware = self._uuid, self._hardware
        match call:
            case SetMigMode(enabled=enabled):
                await self._nobody_computes("MIG mode cannot change")
                await self._set_mode(enabled=enabled)
            case Reset():
                await self._nobody_computes("it cannot be reset")
                await hardware.reset(uuid)
                self._was_reset(uuid)
            case CreateGi(place=place):
                await hardware.create_gpu_instance(uuid, place.profile, place.start)
            case CreateCi(gi_id=gi_id, profile_index=index):
                await hardware.create_compute_instance(uuid, gi_id, index)
            case DestroyCi(gi_id=gi_id, ci_id=ci_id):
                await self._nobody_computes(f"{call.mig_uuid} cannot be destroyed", gi_id)
                await hardware.destroy_compute_instance(uuid, gi_id, ci_id)
            case DestroyGi(gi_id=gi_id):
                await hardware.destroy_gpu_instance(uuid, gi_id)
                self._instance_gone(uuid, gi_id)

    async def _set_mode(self, *, enabled: bool) -> None:
        result = await self._hardware.set_mig_mode(self._uuid, enabled)
        if result is MigModeResult.IN_USE:
            raise InUse(f"MIG mode of {self._uuid} stays pending: a process that is not listed holds the card")
        if result is MigModeResult.RESET_REQUIRED:
            raise ResetRequired(f"MIG mode of {self._uuid} stays pending")

    async def _nobody_computes(self, what: str, gi_id: int | None = None) -> None:
        users = [each.pid for each in await self._hardware.processes(self._uuid) if gi_id in (None, each.gi_id)]
        if users:
            raise InUse(f"card {self._uuid}: {what} while process {', '.join(map(str, users))} computes on it")

    def _failed(self, call: Call, failure: CallFailure, error: Exception) -> CallFailed:
        level = logging.INFO if failure is CallFailure.BUSY else logging.WARNING
        _log.log(level, "%s on card %s failed: %s", type(call).__name__, self._uuid, error)
        return CallFailed(call, failure, str(error), self._clock.monotonic())
