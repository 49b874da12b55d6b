"""Events of real cards: XIDs and ECC errors, as the driver reports them."""

import logging
from typing import Any

from tessera.nvml.errors import NotSupported, NvmlError, translate_errors
from tessera.nvml.interface import GpuEvent, GpuEventKind, GpuUuid

#: NVML writes this where an event or process belongs to no GPU or compute instance.
NO_INSTANCE = 0xFFFFFFFF

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

    Args:
        binding: the module ``pynvml``, with NVML open.

    Raises:
        NotSupported: no card reports events.
    """

    def __init__(self, binding: Any) -> None:
        self._nvml = binding
        self._kinds = _watched_kinds(binding)
        with translate_errors(binding.NVMLError, "event set"):
            self._set = binding.nvmlEventSetCreate()
            count = binding.nvmlDeviceGetCount()
        if not sum(self._watch(index) for index in range(count)):
            self.close()
            raise NotSupported(f"events: none of {count} cards reports any")

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

    def _watch(self, index: int) -> bool:
        """Registers for those of our event kinds that the card supports; False if it supports none."""
        wanted = sum(self._kinds)
        try:
            with translate_errors(self._nvml.NVMLError, f"events of card {index}"):
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                supported = self._nvml.nvmlDeviceGetSupportedEventTypes(handle) & wanted
                if supported:
                    self._nvml.nvmlDeviceRegisterEvents(handle, supported, self._set)
        except NvmlError as error:  # one card without events must not hide those of the others
            _log.warning("card %d will report no events: %s", index, error)
            return False
        return bool(supported)

    def _card(self, handle: Any) -> GpuUuid | None:
        try:
            with translate_errors(self._nvml.NVMLError, "card of an event"):
                return GpuUuid(decode_text(self._nvml.nvmlDeviceGetUUID(handle)))
        except NvmlError as error:  # a lost card: the event may concern any card
            _log.warning("an event's card cannot be read: %s", error)
            return None


def instance_id(number: int) -> int | None:
    """A GPU or compute instance's id; ``None`` for "none"."""
    return None if number == NO_INSTANCE else number


def decode_text(value: str | bytes) -> str:
    """The binding gives text or bytes, by version."""
    return value.decode() if isinstance(value, bytes) else value
