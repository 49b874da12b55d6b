"""Programs of a validation in PTX, which every driver compiles for its card.

ISA 4.0 and ``sm_50`` are as old as the oldest driver and card in use (NVIDIA, PTX ISA, release notes), so neither the
toolkit of CUDA nor a choice by model is needed. Every kernel takes blocks of :data:`BLOCK` threads. Numbers are chosen
so that sums and products are exact in a float: one wrong bit is seen.
"""

from collections.abc import Iterator

#: Threads of a block; the product's are 16 by 16.
BLOCK = 256
#: Rows and columns of the part of a product that a block computes, and of the steps in between.
TILE, STEP = 64, 16

_HEAD = ".version 4.0\n.target sm_50\n.address_size 64\n"
#: The thread's number in ``%r0``, and a return for those beyond the count in ``%r1``.
_INDEX = """\
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r0, %r2, %r3, %r4;
    setp.ge.u32 %p0, %r0, %r1;
    @%p0 bra DONE;
"""


def _kernel(name: str, parameters: str, body: str, *, floats: int = 8) -> str:
    """A kernel of the parameters that are named with their types: ``u64 place, u32 count``."""
    lines = ",\n".join(f"    .param .{each.strip()}" for each in parameters.split(","))
    return f"""
.visible .entry {name}(
{lines}
)
{{
    .reg .pred %p<2>;
    .reg .b32 %r<24>;
    .reg .b64 %rd<16>;
    .reg .f32 %f<{floats}>;
{body}DONE:
    ret;
}}
"""


def _place(register: str, parameter: str) -> str:
    """The address of the thread's number in an array."""
    return f"""\
    ld.param.u64 {register}, [{parameter}];
    cvta.to.global.u64 {register}, {register};
    mul.wide.u32 %rd15, %r0, 4;
    add.s64 {register}, {register}, %rd15;
"""


_COUNT = "    ld.param.u32 %r1, [count];\n"

_ADD = _kernel(
    "tessera_add",
    "u64 first, u64 second, u64 total, u32 count",
    _COUNT
    + _INDEX
    + _place("%rd1", "first")
    + _place("%rd2", "second")
    + _place("%rd3", "total")
    + """\
    ld.global.f32 %f1, [%rd1];
    ld.global.f32 %f2, [%rd2];
    add.f32 %f3, %f1, %f2;
    st.global.f32 [%rd3], %f3;
""",
)
#: A pattern that is different for each word: the word's number times an odd number, with a seed. The number is Knuth's
#: (The Art of Computer Programming, volume 3, multiplicative hashing).
_PATTERN = """\
    ld.param.u32 %r5, [seed];
    mul.lo.u32 %r6, %r0, 2654435761;
    xor.b32 %r6, %r6, %r5;
"""
_FILL = _kernel(
    "tessera_fill",
    "u64 place, u32 count, u32 seed",
    _COUNT + _INDEX + _place("%rd1", "place") + _PATTERN + "    st.global.u32 [%rd1], %r6;\n",
)
_COUNT_WRONG = """\
    @%p1 bra DONE;
    ld.param.u64 %rd2, [wrong];
    cvta.to.global.u64 %rd2, %rd2;
    red.global.add.u32 [%rd2], 1;
"""
_CHECK = _kernel(
    "tessera_check",
    "u64 place, u32 count, u32 seed, u64 wrong",
    _COUNT
    + _INDEX
    + _place("%rd1", "place")
    + _PATTERN
    + "    ld.global.u32 %r7, [%rd1];\n    setp.eq.u32 %p1, %r7, %r6;\n"
    + _COUNT_WRONG,
)


def _digit(register: str, shift: str) -> str:
    """1 to 8 as a float: three bits of the thread's number above ``shift``, plus 1."""
    return f"""\
    shr.u32 %r8, %r0, {shift};
    and.b32 %r8, %r8, 7;
    add.u32 %r8, %r8, 1;
    cvt.rn.f32.u32 {register}, %r8;
"""


_SHIFT = "    ld.param.u32 %r5, [shift];\n"
_FACTOR = _kernel(
    "tessera_factor",
    "u64 place, u32 count, u32 shift",
    _COUNT + _INDEX + _place("%rd1", "place") + _SHIFT + _digit("%f1", "%r5") + "    st.global.f32 [%rd1], %f1;\n",
)
#: With rows of the first factor constant, and columns of the second, an element is rows * digit * digit.
_CHECK_PRODUCT = _kernel(
    "tessera_check_product",
    "u64 place, u32 count, u32 shift, u32 rows, u64 wrong",
    _COUNT
    + _INDEX
    + _place("%rd1", "place")
    + _SHIFT
    + _digit("%f1", "%r5")
    + _digit("%f2", "0")
    + """\
    ld.param.u32 %r9, [rows];
    cvt.rn.f32.u32 %f3, %r9;
    mul.f32 %f1, %f1, %f2;
    mul.f32 %f1, %f1, %f3;
    ld.global.f32 %f4, [%rd1];
    setp.eq.f32 %p1, %f4, %f1;
"""
    + _COUNT_WRONG,
)

_QUAD = 4
#: First registers of the sums of a thread (16), and of its four numbers of each factor.
_SUMS, _LEFT, _RIGHT = 16, 4, 8


def _quad(first: int) -> str:
    return "{" + ", ".join(f"%f{first + each}" for each in range(_QUAD)) + "}"


def _product_lines() -> Iterator[str]:
    """Square matrices: each block 64 x 64 elements, each thread 4 x 4 of them, 16 steps between two barriers."""
    yield from (
        "ld.param.u64 %rd1, [left];",
        "cvta.to.global.u64 %rd1, %rd1;",
        "ld.param.u64 %rd2, [right];",
        "cvta.to.global.u64 %rd2, %rd2;",
        "ld.param.u64 %rd3, [product];",
        "cvta.to.global.u64 %rd3, %rd3;",
        "ld.param.u32 %r1, [rows];",
        "mov.u32 %r2, %tid.x;",
        "shr.u32 %r3, %r2, 4;",  # the thread's row and column of 4 x 4
        "and.b32 %r4, %r2, 15;",
        "mov.u32 %r5, %ctaid.y;",
        f"mul.lo.u32 %r5, %r5, {TILE};",  # the block's first row and column
        "mov.u32 %r6, %ctaid.x;",
        f"mul.lo.u32 %r6, %r6, {TILE};",
        # Where the thread loads 4 numbers of the left factor: row tid / 4, steps (tid % 4) * 4 ...
        "shr.u32 %r7, %r2, 2;",
        "and.b32 %r8, %r2, 3;",
        "shl.b32 %r8, %r8, 2;",
        "add.u32 %r9, %r5, %r7;",
        "mad.lo.u32 %r9, %r9, %r1, %r8;",
        "mul.wide.u32 %rd4, %r9, 4;",
        "add.s64 %rd1, %rd1, %rd4;",
        "mov.u32 %r10, lefts;",
        f"mad.lo.u32 %r11, %r8, {TILE}, %r7;",
        "shl.b32 %r11, %r11, 2;",
        "add.u32 %r11, %r10, %r11;",
        # ... and of the right one: step tid / 16, columns (tid % 16) * 4.
        "shl.b32 %r12, %r4, 2;",
        "add.u32 %r13, %r6, %r12;",
        "mad.lo.u32 %r13, %r3, %r1, %r13;",
        "mul.wide.u32 %rd5, %r13, 4;",
        "add.s64 %rd2, %rd2, %rd5;",
        "mov.u32 %r14, rights;",
        f"mad.lo.u32 %r15, %r3, {TILE}, %r12;",
        "shl.b32 %r15, %r15, 2;",
        "add.u32 %r15, %r14, %r15;",
        # Where the thread reads both: its rows and its columns of a step.
        "shl.b32 %r16, %r3, 4;",
        "add.u32 %r10, %r10, %r16;",
        "shl.b32 %r17, %r4, 4;",
        "add.u32 %r14, %r14, %r17;",
        f"mul.lo.u32 %r18, %r1, {STEP * 4};",  # bytes to the right factor's next steps
        "cvt.u64.u32 %rd6, %r18;",
        "mov.u32 %r19, 0;",
    )
    yield from (f"mov.f32 %f{_SUMS + each}, 0f00000000;" for each in range(_QUAD * _QUAD))
    yield "STEPS:"
    yield f"ld.global.v4.f32 {_quad(_LEFT)}, [%rd1];"
    yield f"ld.global.v4.f32 {_quad(_RIGHT)}, [%rd2];"
    yield from (f"st.shared.f32 [%r11+{each * TILE * 4}], %f{_LEFT + each};" for each in range(_QUAD))
    yield f"st.shared.v4.f32 [%r15], {_quad(_RIGHT)};"
    yield "bar.sync 0;"
    for step in range(STEP):
        yield f"ld.shared.v4.f32 {_quad(_LEFT)}, [%r10+{step * TILE * 4}];"
        yield f"ld.shared.v4.f32 {_quad(_RIGHT)}, [%r14+{step * TILE * 4}];"
        for row in range(_QUAD):
            for column in range(_QUAD):
                total = f"%f{_SUMS + row * _QUAD + column}"
                yield f"fma.rn.f32 {total}, %f{_LEFT + row}, %f{_RIGHT + column}, {total};"
    yield from (
        "bar.sync 0;",
        f"add.s64 %rd1, %rd1, {STEP * 4};",
        "add.s64 %rd2, %rd2, %rd6;",
        f"add.u32 %r19, %r19, {STEP};",
        "setp.lt.u32 %p0, %r19, %r1;",
        "@%p0 bra STEPS;",
        "shl.b32 %r20, %r3, 2;",
        "add.u32 %r20, %r5, %r20;",
        "add.u32 %r21, %r6, %r12;",
        "mad.lo.u32 %r20, %r20, %r1, %r21;",
        "mul.wide.u32 %rd7, %r20, 4;",
        "add.s64 %rd3, %rd3, %rd7;",
        "mul.wide.u32 %rd8, %r1, 4;",
    )
    for row in range(_QUAD):
        yield f"st.global.v4.f32 [%rd3], {_quad(_SUMS + row * _QUAD)};"
        yield "add.s64 %rd3, %rd3, %rd8;"


_SHARED = "".join(f"    .shared .align 16 .b8 {name}[{TILE * STEP * 4}];\n" for name in ("lefts", "rights"))
_PRODUCT = _kernel(
    "tessera_product",
    "u64 left, u64 right, u64 product, u32 rows",
    _SHARED + "".join(f"{'' if line.endswith(':') else '    '}{line}\n" for line in _product_lines()),
    floats=_SUMS + _QUAD * _QUAD,
)

#: All kernels as one module.
PTX = (_HEAD + _ADD + _FILL + _CHECK + _FACTOR + _CHECK_PRODUCT + _PRODUCT).encode()
