"""CUDA's driver API: ``libcuda.so.1`` through ctypes, and a context on one device.

The library comes with the driver, and into a container with the container runtime; a program that finds it there and
computes with it proves both. Names and result codes are those of cuda.h. An error names the call, and explains it with
``cuGetErrorString``. No package of CUDA is used: it would be a hundred times the size of this program.

After an error nothing is freed: the context ends with the process, and a second error would hide the first.
"""

import uuid
from collections.abc import Callable, Sequence
from ctypes import CDLL, addressof, byref, c_byte, c_char_p, c_float, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, Self

from tessera.accept.kernels import BLOCK, PTX
from tessera.nvml.interface import GpuUuid

LIBRARY = "libcuda.so.1"
#: ``CUDA_ERROR_NO_DEVICE``: no card, or no card on which a program can compute as a whole.
NO_DEVICE = 100
#: Bytes of a device's UUID (``CUuuid``).
_UUID_BYTES = 16


class CudaError(Exception):
    """A step of the validation failed; ``code`` is CUDA's ``CUresult``, 0 if CUDA itself succeeded."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


def load_cuda() -> Any:
    """Loads the driver's library.

    Raises:
        CudaError: the loader does not find the library.
    """
    try:
        return CDLL(LIBRARY)
    except OSError as error:
        raise CudaError(
            f"{LIBRARY} cannot be loaded ({error}): the container runtime has not put the driver's libraries into this"
            " container; run it with runtimeClassName nvidia, NVIDIA_VISIBLE_DEVICES=all and"
            " NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        ) from error


class Cuda:
    """CUDA, initialised.

    Args:
        library: ``libcuda``, loaded.

    Raises:
        CudaError: CUDA cannot be initialised; with :data:`NO_DEVICE` if there is no device to compute on.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self.call("cuInit", 0)

    def call(self, function: str, *arguments: Any) -> None:
        """Makes one call.

        Raises:
            CudaError: CUDA refuses the call, or the driver is too old for it.
        """
        try:
            found = getattr(self._library, function)
        except AttributeError:
            raise CudaError(f"{function}: this driver does not have it") from None
        if code := found(*arguments):
            raise CudaError(f"{function}: {self._text(code)} (CUresult {code})", code)

    def version(self) -> str:
        """The newest CUDA that the driver knows, such as ``12.4``."""
        number = c_int()
        self.call("cuDriverGetVersion", byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def count(self) -> int:
        """The number of devices: whole cards, and the first MIG device of each card with instances."""
        number = c_int()
        self.call("cuDeviceGetCount", byref(number))
        return number.value

    def handle(self, device: int) -> c_int:
        """The handle of a device by CUDA's index."""
        handle = c_int()
        self.call("cuDeviceGet", byref(handle), device)
        return handle

    def uuid(self, device: int) -> GpuUuid:
        """The UUID of the device's card."""
        found = (c_byte * _UUID_BYTES)()
        self.call("cuDeviceGetUuid", byref(found), self.handle(device))
        return GpuUuid(f"GPU-{uuid.UUID(bytes=bytes(found))}")

    def _text(self, code: int) -> str:
        text = c_char_p()
        if self._library.cuGetErrorString(code, byref(text)) or text.value is None:
            return "an error that this driver has no words for"
        return text.value.decode(errors="replace")


class CudaContext:
    """A context on one device, with all kernels loaded; ended by ``with``.

    Args:
        cuda: CUDA, initialised.
        device: CUDA's index.

    Attributes:
        device: CUDA's index.
        context: the context's handle.
    """

    def __init__(self, cuda: Cuda, device: int) -> None:
        self.cuda, self.device = cuda, device
        self.context, self._module = c_void_p(), c_void_p()
        cuda.call("cuCtxCreate_v2", byref(self.context), 0, cuda.handle(device))
        cuda.call("cuModuleLoadData", byref(self._module), PTX)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.use()
            self.cuda.call("cuModuleUnload", self._module)
            self.cuda.call("cuCtxDestroy_v2", self.context)

    def use(self) -> None:
        """Makes this the thread's context; the newest context is it from the start."""
        self.cuda.call("cuCtxSetCurrent", self.context)

    def allocate(self, size: int) -> c_uint64:
        """Memory of the device, ``size`` bytes."""
        place = c_uint64()
        self.cuda.call("cuMemAlloc_v2", byref(place), c_size_t(size))
        return place

    def free(self, *places: c_uint64) -> None:
        """Frees memory of the device."""
        for place in places:
            self.cuda.call("cuMemFree_v2", place)

    def free_bytes(self) -> int:
        """The device's memory that nothing uses, in bytes."""
        free, total = c_size_t(), c_size_t()
        self.cuda.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value

    def write(self, place: c_uint64, values: Any) -> None:
        """Copies an array of ctypes to the device."""
        self.cuda.call("cuMemcpyHtoD_v2", place, values, c_size_t(len(bytes(values))))

    def read(self, values: Any, place: c_uint64) -> None:
        """Copies from the device into an array of ctypes."""
        self.cuda.call("cuMemcpyDtoH_v2", values, place, c_size_t(len(bytes(values))))

    def launch(self, kernel: str, grid: tuple[int, int], *values: c_uint64 | c_uint32) -> None:
        """Starts a kernel on a grid of blocks of :data:`~tessera.accept.kernels.BLOCK` threads."""
        function = c_void_p()
        self.cuda.call("cuModuleGetFunction", byref(function), self._module, kernel.encode())
        # cuLaunchKernel takes an array of pointers to the arguments.
        arguments = (c_void_p * len(values))(*map(addressof, values))
        self.cuda.call("cuLaunchKernel", function, *grid, 1, BLOCK, 1, 1, 0, None, arguments, None)

    def wait(self) -> None:
        """Waits until the device has done everything; errors of kernels show here."""
        self.cuda.call("cuCtxSynchronize")

    def seconds(self, work: Callable[[], None]) -> float:
        """The device's own time for the work that a function starts."""
        events: Sequence[c_void_p] = c_void_p(), c_void_p()
        for event in events:
            self.cuda.call("cuEventCreate", byref(event), 0)
        self.cuda.call("cuEventRecord", events[0], None)
        work()
        self.cuda.call("cuEventRecord", events[1], None)
        self.cuda.call("cuEventSynchronize", events[1])
        milliseconds = c_float()
        self.cuda.call("cuEventElapsedTime", byref(milliseconds), *events)
        for event in events:
            self.cuda.call("cuEventDestroy_v2", event)
        return milliseconds.value / 1000


#: Numbers in each vector.
COUNT = 4096
_Vector = c_float * COUNT


def add_vectors(cuda: Cuda, device: int) -> None:
    """Adds two vectors on a device and compares the sums: the smallest program that needs driver, card and memory.

    Args:
        cuda: initialised.
        device: CUDA's index.

    Raises:
        CudaError: a step failed, or a sum is wrong.
    """
    first = _Vector(*(float(index) for index in range(COUNT)))
    second = _Vector(*(float(COUNT - 2 * index) for index in range(COUNT)))
    total = _Vector()
    with CudaContext(cuda, device) as card:
        places = [card.allocate(4 * COUNT) for _ in range(3)]
        card.write(places[0], first)
        card.write(places[1], second)
        card.launch("tessera_add", (COUNT // BLOCK, 1), *places, c_uint32(COUNT))
        card.wait()
        card.read(total, places[2])
        card.free(*places)
    wrong = [index for index in range(COUNT) if total[index] != COUNT - index]
    if wrong:
        raise CudaError(f"vector addition: {len(wrong)} of {COUNT} sums are wrong, the first at {wrong[0]}")
