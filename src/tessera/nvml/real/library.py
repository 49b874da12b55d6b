"""Which library is called, and how: that of a driver container, and calls that older drivers know by other names.

The loader does not find the library below the root of a driver container.

A process that outlives a driver must load the next driver's library. The loader returns a library that is already
loaded under the same path, whatever file is there now, so the old one is unloaded first, as in NVIDIA's own Go binding.

``nvidia-ml-py`` keeps the library and the functions that it looked up in its module: a process has one at a time.

NVML has renamed and extended calls since R470, the lowest driver branch that Tessera supports. A library that lacks a
function answers "function not found"; then the older name is called, whose answer may say less. A driver of the first
releases of R535 has the newer function with another layout of its answer and the same name, so there the older one is
called first. docs/support-matrix.md has the table of what each branch lacks.

An :class:`NvmlSession` ends for the reset of a card, and begins again after it.

A card that any process has open cannot be reset, and a session has every card open. So a reset ends the session and
begins a new one afterwards; a wait for events in another thread releases the session for that. If the new session
could not begin, the next caller that needs it begins it.

``nvidia-smi`` does the reset, since NVML has no call for it. The tool refuses while another client (a metrics exporter,
a persistence daemon) has the card open; its refusal is the error.
"""

import _ctypes
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import CDLL, byref
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from tessera.nvml.errors import (
    DriverNotLoaded,
    GpuLost,
    InUse,
    NoPermission,
    NotSupported,
    NvmlError,
    UnknownNvmlError,
    translate_errors,
)
from tessera.nvml.interface import GpuEvent, GpuUuid
from tessera.nvml.real.mig import RealEvents

NAME = "libnvidia-ml.so.1"
#: Folders of libraries below a root, by distribution and architecture.
_FOLDERS = ("usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib", "lib64", "lib")
#: The driver's libraries that its programs load.
_LIBRARIES = ("libcuda.so*", "libnvidia-*.so*")


def find_library(root: Path) -> Path | None:
    """The driver's library below its root; ``None`` if it is not there."""
    return next((path for folder in _FOLDERS if (path := root / folder / NAME).is_file()), None)


def load(binding: Any, path: Path) -> None:
    """Has the binding use this library from now on. NVML must not be open.

    Args:
        binding: the module ``pynvml``.
        path: the library.

    Raises:
        DriverNotLoaded: it cannot be loaded.
    """
    try:
        library = CDLL(str(path))
    except OSError as error:
        raise DriverNotLoaded(f"{path} cannot be loaded ({error})") from error
    _use(binding, library)


def unload(binding: Any) -> None:
    """Has the binding forget its library, and the process too. NVML must not be open."""
    handle = getattr(binding.nvmlLib, "_handle", None)
    _use(binding, None)
    if handle is not None:
        _ctypes.dlclose(handle)  # ctypes has no other way to let go of a library


def program_environment(root: Path, links: Path) -> dict[str, str]:
    """Returns the environment for programs of a driver below a root: ``PATH`` and ``LD_LIBRARY_PATH``.

    The driver's libraries lie beside the C library of another system, which must not be loaded here. So only they are
    named, by links in a folder of their own.

    Args:
        root: the driver's root.
        links: the folder; its content is replaced.

    Raises:
        OSError: the folder cannot be written.
    """
    links.mkdir(parents=True, exist_ok=True)
    for old in links.iterdir():
        old.unlink()
    found = find_library(root)
    paths = [] if found is None else [path for pattern in _LIBRARIES for path in found.parent.glob(pattern)]
    for path in paths:
        (links / path.name).symlink_to(path)
    own = os.environ.get("PATH", os.defpath)
    return {"PATH": f"{own}:{root / 'usr/bin'}:{root / 'usr/sbin'}", "LD_LIBRARY_PATH": str(links)}


def _use(binding: Any, library: CDLL | None) -> None:
    binding.nvmlLib = library
    binding._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - functions of the former library


#: Drivers whose lists of processes have 8 bytes more for each process, which newer and older ones do not have: from
#: 535.43.02 until the function was withdrawn in 535.98 (the headers in NVIDIA's nvidia-settings of these releases).
_OTHER_LAYOUT = (535, 43), (535, 98)
_BRANCH = re.compile(r"(\d+)\.(\d+)")


class MemorySizes(NamedTuple):
    """Memory of a card or MIG device in bytes; ``reserved`` is ``None`` where it counts as used."""

    total: int
    used: int
    free: int
    reserved: int | None


def throttle_reasons(binding: Any, handle: Any) -> int:
    """Bits of ``nvmlClocksEventReasons``, called "throttle reasons" before R535; the bits are the same."""
    names = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
    return int(_first_known(binding, [getattr(binding, name) for name in names], handle))


def memory_sizes(binding: Any, handle: Any) -> MemorySizes:
    """The memory of a card; before R510 the driver's own part counts as used."""

    def newer(handle: Any) -> MemorySizes:
        info = binding.nvmlDeviceGetMemoryInfo(handle, binding.nvmlMemory_v2)
        return MemorySizes(info.total, info.used, info.free, info.reserved)

    def older(handle: Any) -> MemorySizes:
        info = binding.nvmlDeviceGetMemoryInfo(handle)
        return MemorySizes(info.total, info.used, info.free, None)

    sizes: MemorySizes = _first_known(binding, [newer, older], handle)
    return sizes


def compute_processes(binding: Any, handle: Any) -> list[Any]:
    """The processes that compute on a card or MIG device, without clients of MPS."""
    return _list_processes(binding, "nvmlDeviceGetComputeRunningProcesses", handle)


def mps_clients(binding: Any, handle: Any) -> list[Any]:
    """The processes that compute through an MPS daemon."""
    return _list_processes(binding, "nvmlDeviceGetMPSComputeRunningProcesses", handle)


def fabric_info(binding: Any, handle: Any) -> Any:
    """``nvmlGpuFabricInfoV_t``; before R550 a struct of the same fields without ``healthMask``."""

    def newer(handle: Any) -> Any:
        info = binding.c_nvmlGpuFabricInfoV_t()
        binding.nvmlDeviceGetGpuFabricInfoV(handle, byref(info))
        return info

    def older(handle: Any) -> Any:
        info = binding.c_nvmlGpuFabricInfo_t()
        binding.nvmlDeviceGetGpuFabricInfo(handle, byref(info))
        return info

    return _first_known(binding, [newer, older], handle)


def _list_processes(binding: Any, name: str, handle: Any) -> list[Any]:
    suffixes = ["_v3", "_v2"]
    if _has_other_layout(binding):
        suffixes.reverse()
    return list(_first_known(binding, [getattr(binding, name + suffix) for suffix in suffixes], handle))


def _has_other_layout(binding: Any) -> bool:
    version = binding.nvmlSystemGetDriverVersion()
    found = _BRANCH.match(version.decode() if isinstance(version, bytes) else version)
    return found is not None and _OTHER_LAYOUT[0] <= (int(found[1]), int(found[2])) < _OTHER_LAYOUT[1]


def _first_known(binding: Any, calls: Sequence[Callable[[Any], Any]], handle: Any) -> Any:
    """The answer of the first function that the library has.

    Raises:
        NVMLError: the function that it has refused, or it has none of them.
    """
    *newer, oldest = calls
    for call in newer:
        try:
            return call(handle)
        except binding.NVMLError as error:
            if error.value != binding.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
    return oldest(handle)


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


def reset_card(pci_bus_id: str, *, tool: Sequence[str] = ("nvidia-smi",)) -> None:
    """Resets the card at that PCI address; returns when it works again.

    Args:
        pci_bus_id: ``00000000:07:00.0``.
        tool: how ``nvidia-smi`` is called, ``("chroot", "/host", "nvidia-smi")``.

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
