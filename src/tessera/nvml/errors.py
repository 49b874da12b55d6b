# ruff: noqa: N818 - the kinds carry the names of NVML's own error codes
"""What goes wrong with a card: the errors of NVML's calls, and the driver's errors by number (XID).

NVML's errors have one class for each kind that a caller treats differently; the numbers are those of ``nvmlReturn_t``
in nvml.h. Texts name the call and its object first, the reason second and the remedy last.

An XID has a name, a meaning, and the remedy of NVIDIA's catalogue. Sources: names are the constants of ``nverror.h``
(NVIDIA open-gpu-kernel-modules); remedies are the column of immediate actions in NVIDIA's XID catalogue for Ampere and
newer cards (docs.nvidia.com, *Analyzing Xid Errors with the Xid Catalog*, read 2026-11). The texts are Tessera's.
Numbers that the catalogue calls unused are not listed. What Tessera does about each remedy is decided in
:mod:`tessera.agent.health.policy`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from types import MappingProxyType
from typing import ClassVar

import msgspec

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


class Remedy(Enum):
    """The immediate action that NVIDIA's catalogue asks for."""

    IGNORE = "nothing"
    RESTART_APP = "restart the program"
    RESET_GPU = "reset the card"
    RESTART_NODE = "reboot the node"
    RESTART_VM = "restart the virtual machine"
    CHECK_CABLES = "check power cables and the seat of the card"
    UPDATE_SOFTWARE = "update driver or firmware"
    WORKFLOW_45 = "follow the error before it; if there is none, restart the fabric manager"
    WORKFLOW_48 = "reset the card once its work has ended"
    WORKFLOW_NVLINK = "examine the NVLink; reset the card if the error returns"
    CONTACT_SUPPORT = "ask the vendor"
    DRIVER_DECIDES = "do what the driver's recovery action says"
    UNSTATED = "nothing that the catalogue states"


class Xid(msgspec.Struct, frozen=True):
    """One XID.

    Attributes:
        number: the XID.
        name: its constant in the driver's source.
        text: what happened.
        remedy: what the catalogue asks for.
    """

    number: int
    name: str
    text: str
    remedy: Remedy


_COPY = "a copy engine failed while it served a program"
_DECODER = "a video decoder failed while it served a program"
_JPEG = "a JPEG decoder failed while it served a program"
_STREAM = "the commands that a program sent to the card are broken or not allowed"
_LINK = "an NVLink of the fifth generation failed; the driver's log has the part and its status"
_TEST = "a test message of the server's management controller"

_APP, _RESET, _IGNORE = Remedy.RESTART_APP, Remedy.RESET_GPU, Remedy.IGNORE


def _each(name: str, text: str, remedy: Remedy, numbers: Mapping[int, int]) -> tuple[Xid, ...]:
    """XIDs of engines of one kind; ``numbers`` gives the number of the engine by XID."""
    return tuple(Xid(xid, name.format(engine), text, remedy) for xid, engine in numbers.items())


_LIST = (
    Xid(8, "ROBUST_CHANNEL_FIFO_ERROR_IDLE_TIMEOUT", "a program's work on the card stopped", _APP),
    Xid(11, "ROBUST_CHANNEL_GR_ERROR_MISSING_HW", _STREAM, _APP),
    Xid(13, "ROBUST_CHANNEL_GR_EXCEPTION", "a program made an illegal access or instruction on the card", _APP),
    Xid(14, "ROBUST_CHANNEL_FAKE_ERROR", "an error that a program injected for a test", _IGNORE),
    Xid(25, "ROBUST_CHANNEL_GR_ILLEGAL_NOTIFY", _STREAM, _APP),
    Xid(31, "ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT", "a program used an address that it does not have", _APP),
    Xid(32, "ROBUST_CHANNEL_PBDMA_ERROR", "commands arrived damaged at the card, often by PCIe", _APP),
    Xid(37, "ROBUST_CHANNEL_FECS_ERR_UNIMP_FIRMWARE_METHOD", "firmware got a command that it does not know", _IGNORE),
    Xid(38, "ROBUST_CHANNEL_FECS_ERR_WATCHDOG_TIMEOUT", "firmware did not finish a step in time", _IGNORE),
    *_each("ROBUST_CHANNEL_CE{}_ERROR", _COPY, _APP, {39: 0, 40: 1, 41: 2}),
    Xid(43, "ROBUST_CHANNEL_RESETCHANNEL_VERIF_ERROR", "a program's fault ended it; the card is well", _IGNORE),
    Xid(44, "ROBUST_CHANNEL_GR_FAULT_DURING_CTXSW", "a fault while the card switched between programs", _IGNORE),
    Xid(
        45,
        "ROBUST_CHANNEL_PREEMPTIVE_REMOVAL",
        "the driver ended a program's work, after another error or since the program ended",
        Remedy.WORKFLOW_45,
    ),
    Xid(46, "ROBUST_CHANNEL_GPU_TIMEOUT_ERROR", "the card stopped working", _RESET),
    Xid(48, "ROBUST_CHANNEL_GPU_ECC_DBE", "memory lost data: an ECC error of two bits", Remedy.WORKFLOW_48),
    Xid(54, "SILENT_RUNNING_PWR_REDUCED_CLOCKING", "the card's own power cable is not connected", Remedy.CHECK_CABLES),
    Xid(60, "ROBUST_CHANNEL_SEC2_ERROR", "a video processor failed while it served a program", _APP),
    Xid(62, "PMU_HALT_ERROR", "the power controller inside the card halted", _RESET),
    Xid(63, "INFOROM_DRAM_RETIREMENT_EVENT", "the card replaced a bad row of its memory by a spare one", _IGNORE),
    Xid(64, "INFOROM_DRAM_RETIREMENT_FAILURE", "the card could not replace a bad row of its memory", _RESET),
    Xid(66, "ROBUST_CHANNEL_FECS_ERR_REG_ACCESS_VIOLATION", "the driver made an access that is not allowed", _IGNORE),
    Xid(67, "ROBUST_CHANNEL_FECS_ERR_VERIF_VIOLATION", "the driver made an access that is not allowed", _IGNORE),
    Xid(68, "ROBUST_CHANNEL_NVDEC0_ERROR", _DECODER, _APP),
    Xid(69, "ROBUST_CHANNEL_GR_CLASS_ERROR", "a program used a function that the card does not have", _APP),
    *_each("ROBUST_CHANNEL_CE{}_ERROR", _COPY, _APP, {70: 3, 71: 4, 72: 5}),
    Xid(74, "NVLINK_ERROR", "an NVLink to another card or switch failed", Remedy.WORKFLOW_NVLINK),
    *_each("ROBUST_CHANNEL_CE{}_ERROR", _COPY, _APP, {75: 6, 76: 7, 77: 8}),
    Xid(78, "VGPU_START_ERROR", "a virtual GPU could not start", Remedy.UPDATE_SOFTWARE),
    Xid(
        79,
        "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS",
        "the driver cannot reach the card over PCIe any more",
        Remedy.RESTART_NODE,
    ),
    Xid(80, "PBDMA_PUSHBUFFER_CRC_MISMATCH", "commands arrived damaged at the card", _APP),
    Xid(82, "ROBUST_CHANNEL_NVJPG0_ERROR", _JPEG, _APP),
    *_each("ROBUST_CHANNEL_NVDEC{}_ERROR", _DECODER, _APP, {83: 1, 84: 2}),
    Xid(85, "ROBUST_CHANNEL_CE9_ERROR", _COPY, _APP),
    Xid(86, "ROBUST_CHANNEL_OFA0_ERROR", "the optical flow engine failed while it served a program", _APP),
    *_each("ROBUST_CHANNEL_NVDEC{}_ERROR", _DECODER, _APP, {88: 3, 89: 4}),
    Xid(92, "EXCESSIVE_SBE_INTERRUPTS", "memory corrects single bits unusually often", _IGNORE),
    Xid(93, "INFOROM_ERASE_LIMIT_EXCEEDED", "the card's own records cannot be written for their wear limit", _IGNORE),
    Xid(94, "ROBUST_CHANNEL_CONTAINED_ERROR", "memory lost data of one program, and of no other", _APP),
    Xid(95, "ROBUST_CHANNEL_UNCONTAINED_ERROR", "memory lost data of several programs", _RESET),
    *_each("ROBUST_CHANNEL_NVDEC{}_ERROR", _DECODER, _APP, {96: 5, 97: 6, 98: 7}),
    *_each("ROBUST_CHANNEL_NVJPG{}_ERROR", _JPEG, _APP, {99 + engine: 1 + engine for engine in range(7)}),
    Xid(106, "SMBPBI_TEST_MESSAGE", _TEST, _IGNORE),
    Xid(107, "SMBPBI_TEST_MESSAGE_SILENT", _TEST, _IGNORE),
    Xid(
        109,
        "ROBUST_CHANNEL_CTXSW_TIMEOUT_ERROR",
        "the card could not switch from one program to the next in time",
        _RESET,
    ),
    Xid(110, "SEC_FAULT_ERROR", "a security fault, which points at broken hardware", _RESET),
    Xid(119, "GSP_RPC_TIMEOUT", "the card's own processor (GSP) did not answer the driver in time", _RESET),
    Xid(120, "GSP_ERROR", "the card's own processor (GSP) failed", _RESET),
    Xid(121, "C2C_ERROR", "the link to the Grace processor corrected errors", _IGNORE),
    *_each("ROBUST_CHANNEL_CE{}_ERROR", _COPY, _APP, {126 + engine: 10 + engine for engine in range(10)}),
    Xid(136, "ALI_TRAINING_FAIL", "an NVLink could not be brought up", _RESET),
    Xid(137, "NVLINK_PRIV_ERR", "a program made an illegal access over NVLink", _IGNORE),
    Xid(139, "ROBUST_CHANNEL_OFA1_ERROR", "the optical flow engine failed while it served a program", _APP),
    Xid(140, "UNRECOVERABLE_ECC_ERROR_ESCAPE", "memory lost data, and the row could not be marked", _RESET),
    Xid(141, "ROBUST_CHANNEL_FAST_PATH_ERROR", "a fast path of CUDA failed", _IGNORE),
    Xid(142, "ROBUST_CHANNEL_NVENC3_ERROR", "a video encoder failed", Remedy.CONTACT_SUPPORT),
    Xid(143, "GPU_INIT_ERROR", "the card could not be started", _RESET),
    *(
        Xid(144 + at, f"NVLINK_{part}_ERROR", _LINK, Remedy.WORKFLOW_NVLINK)
        for at, part in enumerate(("SAW", "RLW", "TLW", "TREX", "NVLPW_CTRL", "NETIR", "MSE"))
    ),
    Xid(151, "ROBUST_CHANNEL_KEY_ROTATION_ERROR", "keys of confidential computing did not change", Remedy.RESTART_VM),
    Xid(152, "ROBUST_CHANNEL_DLA_SMMU_ERROR", "an access of the deep learning accelerator failed", _IGNORE),
    Xid(153, "ROBUST_CHANNEL_DLA_TIMEOUT", "the deep learning accelerator did not finish in time", _IGNORE),
    Xid(
        154,
        "GPU_RECOVERY_ACTION_CHANGED",
        "the driver asks for another recovery action than before",
        Remedy.DRIVER_DECIDES,
    ),
    Xid(155, "NVLINK_SW_DEFINED_ERROR", "an NVLink went down", _RESET),
    Xid(156, "RESOURCE_RETIREMENT_EVENT", "the card retired a bad part of itself", _RESET),
    Xid(157, "RESOURCE_RETIREMENT_FAILURE", "the card has no spare for a bad part of itself", _IGNORE),
    Xid(158, "GPU_FATAL_TIMEOUT", "the card did not answer in time, and does not recover", _RESET),
    Xid(160, "CHANNEL_RETIREMENT_EVENT", "the card retired a channel", _IGNORE),
    Xid(161, "CHANNEL_RETIREMENT_FAILURE", "the card could not retire a channel", _IGNORE),
    Xid(167, "PCIE_FATAL_TIMEOUT", "the card's PCIe connection timed out", Remedy.UNSTATED),
    Xid(169, "SEC2_HALT_ERROR", "a controller inside the card halted", Remedy.UNSTATED),
    Xid(171, "UNCORRECTABLE_DRAM_ERROR", "says of an XID 48 that the error is in DRAM", Remedy.UNSTATED),
    Xid(172, "UNCORRECTABLE_SRAM_ERROR", "says of an XID 48 that the error is in SRAM", Remedy.UNSTATED),
)

#: The XID of a card that fell off the bus.
XID_OFF_THE_BUS = 79
#: The XIDs that are known, by number.
XIDS: Mapping[int, Xid] = MappingProxyType({each.number: each for each in _LIST})
