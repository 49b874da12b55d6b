"""Calls that NVML has renamed or extended since R470, the lowest driver branch that Tessera supports.

A library that lacks a function answers "function not found"; then the older name is called, whose answer may say less.
A driver of the first releases of R535 has the newer function with another layout of its answer and the same name, so
there the older one is called first. docs/support-matrix.md has the table of what each branch lacks.
"""

import re
from collections.abc import Callable, Sequence
from ctypes import byref
from typing import Any, NamedTuple

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
