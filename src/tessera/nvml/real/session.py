"""The session with NVML: begun, watched for events, put aside while a card is reset.

A card that any process has open cannot be reset, and a session has every card open. So a reset ends the session and
begins a new one afterwards; a wait for events in another thread lets go of the session for that. If the session could
not begin again, the next caller that needs it begins it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from tessera.nvml.errors import translate_errors
from tessera.nvml.interface import GpuEvent
from tessera.nvml.real.events import RealEvents

#: A wait for events holds the session for so long at a time, seconds; a reset waits for the session.
_EVENT_WAIT = 1.0


class NvmlSession:
    """A session with NVML.

    Args:
        binding: the module ``pynvml``.
    """

    def __init__(self, binding: Any) -> None:
        self._nvml = binding
        self._open = False
        self._events: RealEvents | None = None
        self._turn, self._held = Lock(), Lock()

    def begin(self) -> None:
        """Begins the session if there is none.

        Raises:
            NvmlError: NVML cannot be opened.
        """
        if not self._open:
            with translate_errors(self._nvml.NVMLError, "nvmlInit"):
                self._nvml.nvmlInit()
            self._open = True

    def end(self) -> None:
        """Ends the session if there is one."""
        with self._turn, self._held:
            self._end()

    @contextmanager
    def suspend(self) -> Iterator[None]:
        """There is no session inside of the ``with``, and one again after it."""
        with self._turn, self._held:
            self._end()
            try:
                yield
            finally:
                self.begin()

    def wait(self, seconds: float) -> GpuEvent | None:
        """The next event, ``None`` when the time is over.

        Raises:
            NotSupported: no card reports events.
        """
        left = seconds
        while True:
            with self._turn:  # a reset that closes the session goes first
                pass
            with self._held:
                if self._events is None:
                    self._events = RealEvents(self._nvml)
                event = self._events.wait(min(left, _EVENT_WAIT))
            left -= _EVENT_WAIT
            if event is not None or left <= 0:
                return event

    def _end(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            events.close()
        if self._open:
            self._open = False
            with translate_errors(self._nvml.NVMLError, "nvmlShutdown"):
                self._nvml.nvmlShutdown()
