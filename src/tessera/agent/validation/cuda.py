"""Computes on a card with CUDA's driver API: ``libcuda.so.1`` through ctypes, and one vector addition.

The library comes with the driver, and into a container with the container runtime; a program that finds it there and
computes with it proves both. Names and result codes are those of cuda.h. An error names the call, and explains it with
``cuGetErrorString``. No package of CUDA is used: it would be a hundred times the size of this program.

The vector addition is the smallest program that needs driver, card and memory to work together. It is PTX, which every
driver compiles for its card. ISA 4.0 and ``sm_50`` are as old as the oldest driver and card in use (NVIDIA, PTX ISA,
release notes), so neither CUDA's toolkit nor a choice by model is needed.
"""

from ctypes import CDLL, addressof, byref, c_char_p, c_float, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

LIBRARY = "libcuda.so.1"
#: ``CUDA_ERROR_NO_DEVICE``: no card, or no card on which a program can compute as a whole.
NO_DEVICE = 100


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

    def _text(self, code: int) -> str:
        text = c_char_p()
        if self._library.cuGetErrorString(code, byref(text)) or text.value is None:
            return "an error that this driver has no words for"
        return text.value.decode(errors="replace")


#: Numbers in each vector, and threads of a block.
COUNT, BLOCK = 4096, 256
_SIZE = c_size_t(COUNT * 4)
_Vector = c_float * COUNT

KERNEL = b"tessera_add"
PTX = b"""\
.version 4.0
.target sm_50
.address_size 64

.visible .entry tessera_add(
    .param .u64 first,
    .param .u64 second,
    .param .u64 total,
    .param .u32 count
)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<11>;
    .reg .f32 %f<4>;

    ld.param.u64 %rd1, [first];
    ld.param.u64 %rd2, [second];
    ld.param.u64 %rd3, [total];
    ld.param.u32 %r1, [count];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra DONE;
    cvta.to.global.u64 %rd4, %rd1;
    cvta.to.global.u64 %rd5, %rd2;
    cvta.to.global.u64 %rd6, %rd3;
    mul.wide.u32 %rd7, %r5, 4;
    add.s64 %rd8, %rd4, %rd7;
    add.s64 %rd9, %rd5, %rd7;
    add.s64 %rd10, %rd6, %rd7;
    ld.global.f32 %f1, [%rd8];
    ld.global.f32 %f2, [%rd9];
    add.f32 %f3, %f1, %f2;
    st.global.f32 [%rd10], %f3;
DONE:
    ret;
}
"""


def add_vectors(cuda: Cuda, device: int) -> None:
    """Adds two vectors on a device and compares the sums.

    Args:
        cuda: initialised.
        device: CUDA's index.

    Raises:
        CudaError: a step failed, or a sum is wrong.
    """
    handle, context = c_int(), c_void_p()
    cuda.call("cuDeviceGet", byref(handle), device)
    cuda.call("cuCtxCreate_v2", byref(context), 0, handle)
    _in_context(cuda)  # after an error everything ends with the process: a second error would hide the first
    cuda.call("cuCtxDestroy_v2", context)


def _in_context(cuda: Cuda) -> None:
    module, kernel = c_void_p(), c_void_p()
    cuda.call("cuModuleLoadData", byref(module), PTX)
    cuda.call("cuModuleGetFunction", byref(kernel), module, KERNEL)
    first = _Vector(*(float(index) for index in range(COUNT)))
    second = _Vector(*(float(COUNT - 2 * index) for index in range(COUNT)))
    total = _Vector()
    places = [_memory(cuda) for _ in range(3)]
    cuda.call("cuMemcpyHtoD_v2", places[0], first, _SIZE)
    cuda.call("cuMemcpyHtoD_v2", places[1], second, _SIZE)
    _launch(cuda, kernel, places)
    cuda.call("cuCtxSynchronize")
    cuda.call("cuMemcpyDtoH_v2", total, places[2], _SIZE)
    for place in places:
        cuda.call("cuMemFree_v2", place)
    cuda.call("cuModuleUnload", module)
    wrong = [index for index in range(COUNT) if total[index] != COUNT - index]
    if wrong:
        raise CudaError(f"vector addition: {len(wrong)} of {COUNT} sums are wrong, the first at {wrong[0]}")


def _memory(cuda: Cuda) -> c_uint64:
    place = c_uint64()
    cuda.call("cuMemAlloc_v2", byref(place), _SIZE)
    return place


def _launch(cuda: Cuda, kernel: c_void_p, places: list[c_uint64]) -> None:
    values: list[c_uint64 | c_uint32] = [*places, c_uint32(COUNT)]
    # cuLaunchKernel takes an array of pointers to the arguments.
    arguments = (c_void_p * len(values))(*map(addressof, values))
    cuda.call("cuLaunchKernel", kernel, COUNT // BLOCK, 1, 1, BLOCK, 1, 1, 0, None, arguments, None)
