# ruff: noqa: N802 - exported functions carry CUDA's names
"""The functions of ``libcuda.so.1`` that are called, over stand-in devices that run the PTX that they are given."""

import ctypes
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.ptx_machine import Memory, PtxModule

from tessera.accept.kernels import PTX

MODULE = PtxModule(PTX.decode())


class Libcuda:
    """The driver's library.

    Args:
        devices: number of devices, or the UUIDs of their cards.
        fail: calls and the result that they answer with; a negative one is a missing function.
        off: added to every sum of a vector addition.
        free: bytes of free memory of each device.
        milliseconds: the device's time between two events, by device.
        peers: cards reach each other.
    """

    def __init__(
        self,
        devices: int | list[str] = 1,
        *,
        fail: Mapping[str, int] | None = None,
        off: float = 0.0,
        free: int = 8192,
        milliseconds: Callable[[int], float] = lambda _: 1.0,
        peers: bool = True,
    ) -> None:
        names = [f"GPU-{uuid.UUID(int=number)}" for number in range(devices)] if isinstance(devices, int) else devices
        self.uuids = names
        self.fail = dict(fail or {})
        self.off, self.free, self.milliseconds, self.peers = off, free, milliseconds, peers
        #: What was made and not ended, in order.
        self.alive: list[str] = []
        #: Kernels that ran, with their device.
        self.ran: list[tuple[int, str]] = []
        #: Called with a kernel, the memory and the kernel's first place before it runs.
        self.before: Callable[[str, Memory, int], None] = lambda _kernel, _memory, _place: None
        self.memory = Memory()
        self._kernels: list[str] = []
        self._current = -1
        self._host: dict[int, Any] = {}

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu") and name in (failures := object.__getattribute__(self, "fail")):
            if failures[name] < 0:
                raise AttributeError(name)
            return lambda *_: failures[name]
        return object.__getattribute__(self, name)

    def cuInit(self, flags: int) -> int:
        return 0 if flags == 0 else 1

    def cuDriverGetVersion(self, number: Any) -> int:
        number._obj.value = 12040
        return 0

    def cuDeviceGetCount(self, number: Any) -> int:
        number._obj.value = len(self.uuids)
        return 0

    def cuGetErrorString(self, code: int, text: Any) -> int:
        text._obj.value = b"as the driver words it"
        return 0

    def cuDeviceGet(self, handle: Any, device: int) -> int:
        handle._obj.value = device
        return 0

    def cuDeviceGetUuid(self, found: Any, handle: Any) -> int:
        ctypes.memmove(found._obj, uuid.UUID(self.uuids[handle.value].removeprefix("GPU-")).bytes, 16)
        return 0

    def cuDeviceCanAccessPeer(self, able: Any, one: Any, other: Any) -> int:
        able._obj.value = int(self.peers and one.value != other.value)
        return 0

    def cuCtxCreate_v2(self, context: Any, _flags: int, handle: Any) -> int:
        context._obj.value = 0x1000 + handle.value
        self._current = handle.value
        self.alive.append("context")
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:
        self._current = context.value - 0x1000
        return 0

    def cuCtxDestroy_v2(self, _context: Any) -> int:
        self.alive.remove("context")
        return 0

    def cuCtxEnablePeerAccess(self, context: Any, _flags: int) -> int:
        assert context.value - 0x1000 != self._current
        self.alive.append("access")
        return 0

    def cuCtxDisablePeerAccess(self, _context: Any) -> int:
        self.alive.remove("access")
        return 0

    def cuModuleLoadData(self, module: Any, image: bytes) -> int:
        assert image == PTX
        module._obj.value = 0x2000
        self.alive.append("module")
        return 0

    def cuModuleGetFunction(self, kernel: Any, _module: Any, name: bytes) -> int:
        self._kernels.append(name.decode())
        kernel._obj.value = 0x3000 + len(self._kernels)
        return 0

    def cuModuleUnload(self, _module: Any) -> int:
        self.alive.remove("module")
        return 0

    def cuMemGetInfo_v2(self, free: Any, total: Any) -> int:
        free._obj.value = total._obj.value = self.free
        return 0

    def cuMemAlloc_v2(self, place: Any, size: Any) -> int:
        place._obj.value = self.memory.allocate(size.value)
        self.alive.append("memory")
        return 0

    def cuMemFree_v2(self, place: Any) -> int:
        self.memory.free(place.value)
        self.alive.remove("memory")
        return 0

    def cuMemHostAlloc(self, place: Any, size: Any, _flags: int) -> int:
        memory = ctypes.create_string_buffer(size.value)
        place._obj.value = ctypes.addressof(memory)
        self._host[place._obj.value] = memory
        self.alive.append("host")
        return 0

    def cuMemFreeHost(self, place: Any) -> int:
        del self._host[place.value]
        self.alive.remove("host")
        return 0

    def cuMemcpyHtoD_v2(self, place: Any, source: Any, size: Any) -> int:
        self.memory.slice(place.value, size.value)[:] = ctypes.string_at(source, size.value)
        return 0

    def cuMemcpyDtoH_v2(self, target: Any, place: Any, size: Any) -> int:
        ctypes.memmove(target, bytes(self.memory.slice(place.value, size.value)), size.value)
        return 0

    def cuMemcpyHtoDAsync_v2(self, place: Any, source: Any, size: Any, stream: None) -> int:
        return self.cuMemcpyHtoD_v2(place, source, size)

    def cuMemcpyDtoHAsync_v2(self, target: Any, place: Any, size: Any, stream: None) -> int:
        return self.cuMemcpyDtoH_v2(target, place, size)

    def cuMemcpyDtoDAsync_v2(self, target: Any, source: Any, size: Any, stream: None) -> int:
        self.memory.slice(target.value, size.value)[:] = bytes(self.memory.slice(source.value, size.value))
        return 0

    def cuMemcpyPeerAsync(self, target: Any, to: Any, *rest: Any) -> int:
        source, of, size, stream = rest
        assert "access" in self.alive
        assert to.value != of.value
        return self.cuMemcpyDtoDAsync_v2(target, source, size, stream)

    def cuLaunchKernel(self, kernel: Any, *shape: Any) -> int:
        name, arguments = self._kernels[kernel.value - 0x3001], shape[8]
        assert (shape[2], shape[4], shape[5]) == (1, 1, 1)
        values = [
            (ctypes.c_uint64 if kind == "u64" else ctypes.c_uint32).from_address(arguments[number]).value
            for number, (kind, _) in enumerate(MODULE.parameters[name])
        ]
        self.before(name, self.memory, values[0])
        MODULE.run(name, self.memory, shape[:2], shape[3], values)
        if name == "tessera_add" and self.off:
            for word in range(values[3]):
                place = values[2] + 4 * word
                self.memory.store("<f", place, self.memory.load("<f", place) + self.off)
        self.ran.append((self._current, name))
        return 0

    def cuCtxSynchronize(self) -> int:
        return 0

    def cuEventCreate(self, event: Any, _flags: int) -> int:
        event._obj.value = 0x4000
        self.alive.append("event")
        return 0

    def cuEventRecord(self, _event: Any, stream: None) -> int:
        return 0

    def cuEventSynchronize(self, _event: Any) -> int:
        return 0

    def cuEventElapsedTime(self, milliseconds: Any, _start: Any, _end: Any) -> int:
        milliseconds._obj.value = self.milliseconds(self._current)
        return 0

    def cuEventDestroy_v2(self, _event: Any) -> int:
        self.alive.remove("event")
        return 0
