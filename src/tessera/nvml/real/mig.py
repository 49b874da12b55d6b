"""Reads the possible and the present instances of a real card, and the driver's events on cards and instances.

The functions walk over NVML's handles with the array protocols of its C interface: the caller passes the size of the
array to be filled. They take handles from their caller, :mod:`tessera.nvml.real.real_nvml`, and pass them nowhere else.
Events are XIDs and ECC errors, as the driver reports them.
"""

import ctypes
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from ctypes import byref, c_uint
from typing import Any

from tessera.mig.names import profile_gb
from tessera.nvml.errors import (
    InvalidArgument,
    NotSupported,
    NvmlError,
    NvmlNotFound,
    UnknownNvmlError,
    translate_errors,
)
from tessera.nvml.interface import ComputeInstance, GiProfileInfo, GpuEvent, GpuEventKind, GpuUuid, MigUuid
from tessera.nvml.known_cards import UNREAD

#: NVML writes this where an event or process belongs to no GPU or compute instance.
NO_INSTANCE = 0xFFFFFFFF

#: Waits until a registration that was refused is tried again: first, doubled each time, and at most. A wait takes a
#: second at most.
_FIRST_RETRY, _LONGEST_RETRY = 4, 256

_log = logging.getLogger(__name__)


def _watched_kinds(binding: Any) -> dict[int, GpuEventKind]:
    """The kinds that are watched, by NVML's bit."""
    return {
        binding.nvmlEventTypeXidCriticalError: GpuEventKind.XID,
        binding.nvmlEventTypeDoubleBitEccError: GpuEventKind.DOUBLE_BIT_ECC,
        binding.nvmlEventTypeSingleBitEccError: GpuEventKind.SINGLE_BIT_ECC,
    }


def event_kinds(binding: Any, gpu: GpuUuid, handle: Any) -> list[GpuEventKind]:
    """See :meth:`.Nvml.event_kinds`."""
    kinds = _watched_kinds(binding)
    with translate_errors(binding.NVMLError, f"events of {gpu}"):
        supported = binding.nvmlDeviceGetSupportedEventTypes(handle) & sum(kinds)
        if not supported:
            raise NotSupported(f"events of {gpu}: the card reports none of those that are watched")
        events = binding.nvmlEventSetCreate()
        try:
            binding.nvmlDeviceRegisterEvents(handle, supported, events)
        finally:
            binding.nvmlEventSetFree(events)
    return [kind for bit, kind in kinds.items() if supported & bit]


class RealEvents:
    """All events of all cards that can report any.

    Cards are watched as a whole; an event of a MIG device names its instances.

    An event has the handle of its card. A card that fell off the bus cannot be asked for its UUID, so the handles are
    noted when the cards are registered.

    Args:
        binding: the module ``pynvml``, with NVML open.
        name_of: gives the last known UUID of the card of an index.

    Attributes:
        refused: the cards that the driver refused to register, each with its error; replaced as a whole, since another
            thread reads it.

    Raises:
        NotSupported: no card reports events.
        NvmlError: no card can be registered now.
    """

    def __init__(self, binding: Any, name_of: Callable[[int], GpuUuid]) -> None:
        self._nvml = binding
        self._kinds = _watched_kinds(binding)
        self._name_of = name_of
        #: Each registered card by the address of its handle, which is the same for as long as NVML is open.
        self._cards: dict[int, GpuUuid] = {}
        self.refused: Mapping[GpuUuid, str] = {}
        #: Indexes that are registered, or have no events.
        self._watched: set[int] = set()
        #: Number of cards to register, the waits since the last attempt for the refused ones, and those to the next.
        self._count, self._waits, self._pause = 0, 0, _FIRST_RETRY
        with translate_errors(binding.NVMLError, "event set"):
            self._set = binding.nvmlEventSetCreate()
            count = binding.nvmlDeviceGetCount()
        self.watch(count)
        if not self._cards:
            self.close()
            if len(self._watched) < count:
                raise UnknownNvmlError(f"events: none of {count} cards can be registered")
            raise NotSupported(f"events: none of {count} cards reports any")

    def watch(self, count: int) -> None:
        """Registers those of the first ``count`` cards that are not registered yet."""
        self._count, self._waits = count, 0
        tried = {self._name_of(index): self._watch(index) for index in sorted(set(range(count)) - self._watched)}
        self.refused = {name: error for name, error in tried.items() if error}

    def retry(self) -> None:
        """Counts a wait, and after enough of them tries the cards again whose registration was refused."""
        if set(range(self._count)) <= self._watched:
            self._pause = _FIRST_RETRY
            return
        self._waits += 1
        if self._waits >= self._pause:
            self._pause = min(2 * self._pause, _LONGEST_RETRY)
            self.watch(self._count)

    def wait(self, seconds: float) -> GpuEvent | None:
        """The next event, ``None`` when the time is over."""
        try:
            with translate_errors(self._nvml.NVMLError, "wait for events"):
                data = self._nvml.nvmlEventSetWait_v2(self._set, round(seconds * 1000))
        except NvmlError as error:
            if error.code == self._nvml.NVML_ERROR_TIMEOUT:
                return None
            raise
        kind = self._kinds.get(data.eventType)
        if kind is None:  # a kind that was not registered
            return None
        return GpuEvent(
            kind=kind,
            gpu=self._card(data.device),
            xid=data.eventData if kind is GpuEventKind.XID else None,
            gi_id=instance_id(data.gpuInstanceId),
            ci_id=instance_id(data.computeInstanceId),
        )

    def close(self) -> None:
        """Frees the event set."""
        with translate_errors(self._nvml.NVMLError, "event set"):
            self._nvml.nvmlEventSetFree(self._set)

    def _watch(self, index: int) -> str:
        """Registers for those of our event kinds that the card supports; returns the error if that is refused."""
        nvml, wanted = self._nvml, sum(self._kinds)
        try:
            with translate_errors(nvml.NVMLError, f"events of card {index}"):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                supported = nvml.nvmlDeviceGetSupportedEventTypes(handle) & wanted
                if supported:
                    nvml.nvmlDeviceRegisterEvents(handle, supported, self._set)
                    self._cards[_address(handle)] = self._read_uuid(handle) or self._name_of(index)
        except NvmlError as error:  # one card without events must not hide those of the others
            _log.warning("card %d reports no events for now: %s", index, error)
            return str(error)
        self._watched.add(index)
        return ""

    def _card(self, handle: Any) -> GpuUuid | None:
        """The card of an event; ``None`` for one that was not registered and cannot be asked: it may be any card."""
        name = self._cards.get(_address(handle))
        if name is None or name.startswith(UNREAD):  # its own name may be readable now
            return self._read_uuid(handle) or name
        return name

    def _read_uuid(self, handle: Any) -> GpuUuid | None:
        try:
            with translate_errors(self._nvml.NVMLError, "UUID of a card with events"):
                return GpuUuid(decode_text(self._nvml.nvmlDeviceGetUUID(handle)))
        except NvmlError as error:
            _log.warning("%s", error)
            return None


def _address(handle: Any) -> int:
    """The address that a handle is: two handles of one card are different objects of the binding."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def instance_id(number: int | None) -> int | None:
    """A GPU or compute instance's id; ``None`` for "none"."""
    return None if number == NO_INSTANCE else number


def decode_text(value: str | bytes) -> str:
    """The binding gives text or bytes, by version."""
    return value.decode() if isinstance(value, bytes) else value


_PROFILE = re.compile(r"\d+g\.\d+gb\S*")
#: Suffixes of profiles with equal size, by NVML's index (nvml.h, ``NVML_GPU_INSTANCE_PROFILE_*``).
_SUFFIX = {
    7: "+me",
    8: "+me",
    10: "+gfx",
    11: "+gfx",
    12: "+gfx",
    13: "-me",
    14: "-me",
    15: "+me.all",
    16: "+me.all",
    17: "+gfx",
}
#: NVML's errors for a profile index that a card does not have.
_NO_SUCH_PROFILE = (NotSupported, InvalidArgument)


class MigReader:
    """Reads the MIG side of cards.

    Args:
        binding: the module ``pynvml``, with NVML open.
    """

    def __init__(self, binding: Any) -> None:
        self._nvml = binding

    def profiles(self, gpu: GpuUuid, handle: Any, card_mib: int) -> list[GiProfileInfo]:
        """The card's table, by NVML's index; empty when MIG mode is off."""
        rows = (
            self._profile(gpu, handle, index, card_mib) for index in range(self._nvml.NVML_GPU_INSTANCE_PROFILE_COUNT)
        )
        return [row for row in rows if row]

    def _profile(self, gpu: GpuUuid, handle: Any, index: int, card_mib: int) -> GiProfileInfo | None:
        """One row of the card's table; ``None`` if the card has no profile of that index."""
        try:
            with self._errors(f"GPU instance profile {index} of {gpu}"):
                info = self._profile_info(handle, index)
                starts, size = self._placements(handle, info.id)
        except _NO_SUCH_PROFILE:
            return None
        name = getattr(info, "name", "")
        return GiProfileInfo(
            name=profile_name(decode_text(name), index, info.sliceCount, info.memorySizeMB, card_mib),
            index=index,
            id=info.id,
            compute_slices=info.sliceCount,
            size=size,
            starts=starts,
            max_count=info.instanceCount,
            memory_mib=info.memorySizeMB,
            multiprocessors=info.multiprocessorCount,
            copy_engines=info.copyEngineCount,
            decoders=info.decoderCount,
            encoders=info.encoderCount,
            jpeg_engines=info.jpegCount,
            ofa_engines=info.ofaCount,
        )

    def _profile_info(self, handle: Any, index: int) -> Any:
        nvml = self._nvml
        try:
            return nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, index, version=2)
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
            return nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, index, version=1)  # drivers before R470

    def _placements(self, handle: Any, profile_id: int) -> tuple[tuple[int, ...], int]:
        """Legal starts, ascending, and the size."""
        nvml, count = self._nvml, c_uint(0)
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, byref(count))
        if not count.value:
            raise NotSupported(f"GPU instance profile {profile_id}: no placement")
        placements = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, placements, byref(count))
        used = placements[: count.value]
        return tuple(sorted(one.start for one in used)), used[0].size

    def gpu_instances(self, gpu: GpuUuid, handle: Any, row: GiProfileInfo) -> list[Any]:
        """Handles of the card's GPU instances of one profile."""
        count = c_uint(row.max_count)
        found = (self._nvml.c_nvmlGpuInstance_t * row.max_count)()
        with self._errors(f"GPU instances {row.name} of {gpu}"):
            self._nvml.nvmlDeviceGetGpuInstances(handle, row.id, found, byref(count))
        return list(found[: count.value])

    def ci_profile(self, instance: Any, index: int) -> Any:
        """NVML's description of a compute-instance profile within a GPU instance."""
        shared = self._nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        return self._nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, index, shared, version=1)

    def compute_instances(
        self, gpu: GpuUuid, instance: Any, gi_id: int, uuids: dict[tuple[int, int], MigUuid]
    ) -> Iterator[ComputeInstance]:
        """The compute instances of a GPU instance that are MIG devices by now."""
        for index in range(self._nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            with suppress(*_NO_SUCH_PROFILE), self._errors(f"compute instances of GPU instance {gi_id} of {gpu}"):
                profile = self.ci_profile(instance, index)
                count = c_uint(profile.instanceCount)
                found = (self._nvml.c_nvmlComputeInstance_t * max(profile.instanceCount, 1))()
                self._nvml.nvmlGpuInstanceGetComputeInstances(instance, profile.id, found, byref(count))
                ids = [self._nvml.nvmlComputeInstanceGetInfo(one).id for one in found[: count.value]]
                for ci_id in ids:
                    if (gi_id, ci_id) in uuids:
                        yield ComputeInstance(ci_id=ci_id, profile_index=index, mig_uuid=uuids[gi_id, ci_id])

    def mig_uuids(self, gpu: GpuUuid, handle: Any) -> dict[tuple[int, int], MigUuid]:
        """The card's MIG devices by GPU instance and compute instance."""
        nvml, found = self._nvml, {}
        with self._errors(f"MIG devices of {gpu}"):
            count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
        for index in range(count):
            with suppress(NvmlNotFound, InvalidArgument), self._errors(f"MIG device {index} of {gpu}"):
                device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
                ids = nvml.nvmlDeviceGetGpuInstanceId(device), nvml.nvmlDeviceGetComputeInstanceId(device)
                found[ids] = MigUuid(decode_text(nvml.nvmlDeviceGetUUID(device)))
        return found

    def find_device(self, handle: Any, uuid: str) -> Any:
        """The handle of a card's MIG device; ``None`` if the card has no such device."""
        nvml = self._nvml
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            with suppress(nvml.NVMLError):
                device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
                if decode_text(nvml.nvmlDeviceGetUUID(device)) == uuid:
                    return device
        return None

    def _errors(self, call: str) -> AbstractContextManager[None]:
        return translate_errors(self._nvml.NVMLError, call)


def profile_name(named: str, index: int, slices: int, memory_mib: int, card_mib: int) -> str:
    """A profile's name: NVML's own without its ``MIG``, or computed by NVIDIA's rule where NVML gives none.

    Args:
        named: NVML's name of it, if NVML has one.
        index: NVML's index of the profile.
        slices: compute slices.
        memory_mib: memory of an instance.
        card_mib: memory of the card.
    """
    match = _PROFILE.search(named)
    if match:
        return match[0]
    eighths = -(-8 * memory_mib // card_mib)
    return f"{slices}g.{profile_gb(card_mib, eighths)}gb{_SUFFIX.get(index, '')}"
