"""The session with NVML, which ends for the reset of a card and begins again after it.

A card that any process has open cannot be reset, and a session has every card open. So a reset ends the session and
begins a new one afterwards; a wait for events in another thread releases the session for that. If the new session
could not begin, the next caller that needs it begins it.

``nvidia-smi`` does the reset, since NVML has no call for it. The tool refuses while another client (a metrics exporter,
a persistence daemon) has the card open; its refusal is the error.
"""

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

from tessera.nvml.errors import (
    GpuLost,
    InUse,
    NoPermission,
    NotSupported,
    NvmlError,
    UnknownNvmlError,
    translate_errors,
)
from tessera.nvml.interface import GpuEvent, GpuUuid
from tessera.nvml.real.events import RealEvents

#: A wait for events holds the session for so long at a time, seconds; a reset waits for the session.
_EVENT_WAIT = 1.0


class NvmlSession:
    """A session with NVML.

    Args:
        binding: the module ``pynvml``.
        name_of: gives the last known UUID of the card of an index.
    """

    def __init__(self, binding: Any, name_of: Callable[[int], GpuUuid]) -> None:
        self._nvml = binding
        self._name_of = name_of
        #: The cards that could be read, now and when the events were registered.
        self._readable: frozenset[str] = frozenset()
        self._registered: frozenset[str] = frozenset()
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
        """Ends the session for the ``with`` block, and begins a new one after it."""
        with self._turn, self._held:
            self._end()
            try:
                yield
            finally:
                self.begin()

    def watch_cards(self, readable: frozenset[str]) -> None:
        """Notes which cards can be read, by UUID; the next wait for events registers those that can be read again."""
        self._readable = readable

    def unheard_cards(self) -> Mapping[GpuUuid, str]:
        """The cards whose events the driver refused to report, each with its error; none before the first wait."""
        events = self._events
        return {} if events is None else dict(events.refused)

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
                event = self._register().wait(min(left, _EVENT_WAIT))
            left -= _EVENT_WAIT
            if event is not None or left <= 0:
                return event

    def _register(self) -> RealEvents:
        """The registered cards: all at the first wait, then those that came back, and refused ones now and then."""
        readable = self._readable
        if self._events is None:
            self._events = RealEvents(self._nvml, self._name_of)
        elif readable - self._registered:
            with translate_errors(self._nvml.NVMLError, "device count"):
                self._events.watch(self._nvml.nvmlDeviceGetCount())
        else:
            self._events.retry()
        self._registered = readable
        return self._events

    def _end(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            events.close()
        if self._open:
            self._open = False
            with translate_errors(self._nvml.NVMLError, "nvmlShutdown"):
                self._nvml.nvmlShutdown()


#: A reset takes a few seconds, on boards with NVSwitches up to a minute.
RESET_SECONDS = 120.0
#: Texts in the tool's refusals, and the error class for each.
_REFUSALS: Sequence[tuple[str, type[NvmlError]]] = (
    ("in use by", InUse),
    ("is currently being used by", InUse),
    ("insufficient permissions", NoPermission),
    ("not supported", NotSupported),
    ("gpu is lost", GpuLost),
    ("unable to determine the device handle", GpuLost),
)


def reset_card(
    pci_bus_id: str, *, tool: Sequence[str] = ("nvidia-smi",), environment: dict[str, str] | None = None
) -> None:
    """Resets the card at that PCI address; returns when it works again.

    Args:
        pci_bus_id: ``00000000:07:00.0``.
        tool: how ``nvidia-smi`` is called, ``("chroot", "/host", "nvidia-smi")``.
        environment: of the tool; this process's if ``None``.

    Raises:
        InUse: a process has the card open; the text is the tool's.
        NotSupported: the tool is not there, or the card cannot be reset.
        NoPermission: not allowed.
        UnknownNvmlError: any other refusal, or no answer within :data:`RESET_SECONDS`.
    """
    call = f"reset of the card at {pci_bus_id}"
    try:
        process = subprocess.run(  # noqa: S603 - a fixed command, no shell
            [*tool, "--gpu-reset", "-i", pci_bus_id],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=RESET_SECONDS,
            check=False,
            env=environment,
        )
    except FileNotFoundError as error:
        raise NotSupported(f"{call}: there is no {tool[0]}; mount the driver's, or reboot the node") from error
    except subprocess.TimeoutExpired as error:
        raise UnknownNvmlError(
            f"{call}: nvidia-smi has not answered for {RESET_SECONDS:.0f} s; reboot the node"
        ) from error
    if process.returncode:
        raise make_reset_error(call, process.returncode, process.stdout.decode(errors="replace"))


def make_reset_error(call: str, status: int, output: str) -> NvmlError:
    """The error for a refusal of the tool.

    Args:
        call: the reset, for the message.
        status: the tool's exit status.
        output: the tool's output.
    """
    words = " ".join(output.split())
    for part, kind in _REFUSALS:
        if part in words.casefold():
            return kind(f"{call}: {words}")
    return UnknownNvmlError(f"{call}: nvidia-smi ended with status {status}: {words or 'no output'}")
