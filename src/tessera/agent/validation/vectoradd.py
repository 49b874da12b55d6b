"""A vector addition on one card: the smallest program that needs driver, card and memory to work together.

The program is PTX, which every driver compiles for its card. ISA 4.0 and ``sm_50`` are as old as the oldest driver and
card that are in use (NVIDIA, PTX ISA, release notes), so neither CUDA's toolkit nor a choice by model is needed.
"""

from ctypes import addressof, byref, c_float, c_int, c_size_t, c_uint32, c_uint64, c_void_p

from tessera.agent.validation.cuda import Cuda, CudaError

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
