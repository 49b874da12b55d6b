# ruff: noqa: N818 - the kinds carry the names of NVML's own error codes
"""Errors of NVML calls.

One class for each kind that a caller treats differently; the numbers are those of ``nvmlReturn_t`` in nvml.h. Texts
name the call and its object first, the reason second and the remedy last.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from tessera.nvml.measurements import Absence


class NvmlError(Exception):
    """A call that NVML refused. ``code`` is the number of NVML's ``nvmlReturn_t``.

    Args:
        text: the call and its object, and the remedy.
        code: NVML's number where the kind leaves it open.
    """

    code: int = 999
    advice: ClassVar[str] = ""

    def __init__(self, text: str, *, code: int | None = None) -> None:
        super().__init__(f"{text}: {self.advice}" if self.advice else text)
        if code is not None:
            self.code = code


class InvalidArgument(NvmlError):
    """No such profile, placement or mode on this card (2)."""

    code = 2


class NotSupported(NvmlError):
    """The card or the driver cannot do it, or MIG mode is off (3)."""

    code = 3


class NoPermission(NvmlError):
    """The process may not do it (4)."""

    code = 4
    advice = (
        "run as root, with the card's device files; changes of MIG need the MIG config capability"
        " (/proc/driver/nvidia/capabilities/mig/config)"
    )


class NvmlNotFound(NvmlError):
    """No such card or instance (6)."""

    code = 6


class DriverNotLoaded(NvmlError):
    """No driver, or no library, on this machine (9, 12)."""

    code = 9
    advice = "the NVIDIA driver is not installed or its kernel module is not loaded"


class GpuLost(NvmlError):
    """The card fell off the bus (15)."""

    code = 15
    advice = "the card no longer answers; drain the node and reboot it"


class ResetRequired(NvmlError):
    """The card must be reset before it works again (16)."""

    code = 16
    advice = "reset the card or reboot the node"


class DriverMismatch(NvmlError):
    """The library is of another version than the loaded kernel module (18)."""

    code = 18
    advice = "the library and the loaded kernel module differ in version; restart this process after the driver upgrade"


class InUse(NvmlError):
    """A process still uses the instance, or a compute instance its GPU instance (19)."""

    code = 19


class InsufficientResources(NvmlError):
    """The placement overlaps an existing instance, or the profile's count is used up (23)."""

    code = 23


class UnknownNvmlError(NvmlError):
    """Any other error; ``code`` is its number."""


_KINDS: dict[int, type[NvmlError]] = {
    kind.code: kind
    for kind in (
        InvalidArgument,
        NotSupported,
        NoPermission,
        NvmlNotFound,
        DriverNotLoaded,
        GpuLost,
        ResetRequired,
        DriverMismatch,
        InUse,
        InsufficientResources,
    )
}
#: Errors by which the driver itself is gone: not initialized (1), not loaded or without a library (9, 12), of another
#: version than its library (18). A call for one card may fail with them while the driver answers all others; then the
#: error is that card's, so a system call decides.
DRIVER_CODES = frozenset({1, 9, 12, 18})
#: Errors of a card that is no longer there: not found (6), lost (15), GPU not found (28).
LOST_CODES = frozenset({6, 15, 28})
#: No library was found; distinct from a driver that is not loaded.
LIBRARY_NOT_FOUND = 12
#: Numbers that mean the same to a caller: library not found, function not found, GPU not found.
_SAME_AS = {LIBRARY_NOT_FOUND: DriverNotLoaded, 13: NotSupported, 28: NvmlNotFound}


def make_error(code: int, text: str) -> NvmlError:
    """The error for one of NVML's numbers; :class:`UnknownNvmlError` if none is its own kind.

    Args:
        code: ``nvmlReturn_t``.
        text: the call and its object, and NVML's message.
    """
    kind = _KINDS.get(code) or _SAME_AS.get(code) or UnknownNvmlError
    return kind(text, code=code)


#: NVML's numbers for a quantity that a card or driver does not know: invalid argument, not supported, no function.
_UNKNOWN_QUANTITY = frozenset({2, 3, 13})


def absence_of(error: NvmlError) -> Absence:
    """The reason that an error stands for. A driver calls an unknown quantity not supported or an invalid argument."""
    if isinstance(error, NoPermission):
        return Absence.NO_PERMISSION
    return Absence.NOT_SUPPORTED if error.code in _UNKNOWN_QUANTITY else Absence.FAILED


@contextmanager
def translate_errors(binding_error: type[Exception], call: str) -> Iterator[None]:
    """Turns the binding's errors into ours.

    Args:
        binding_error: the binding's ``NVMLError``, whose ``value`` is NVML's number.
        call: the call and its object.
    """
    try:
        yield
    except binding_error as error:
        raise make_error(getattr(error, "value", UnknownNvmlError.code), f"{call}: {error}") from error
