"""Events of real cards: XIDs and ECC errors, as the driver reports them."""

import ctypes
import logging
from collections.abc import Callable, Mapping
from typing import Any

from tessera.nvml.errors import NotSupported, NvmlError, UnknownNvmlError, translate_errors
from tessera.nvml.interface import GpuEvent, GpuEventKind, GpuUuid
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
