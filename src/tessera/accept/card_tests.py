"""Tests of a card with its own computations: memory, product of matrices, and the ways to host and other cards.

Each test returns a rate in base units, by the device's own clock. What is computed is compared with what it must be:
a wrong bit is an error, however fast it came.

NVIDIA's own tests, where the image of the process has them: DCGM's diagnostics and the NCCL tests.

``dcgmi diag`` needs DCGM's host engine, ``nv-hostengine``, in reach. Its JSON has no published form that is stable
(DCGM, diagnostic errors), so only its exit status decides, and the names of failed tests are looked for as text.
``all_reduce_perf`` of nccl-tests prints the mean rate as ``# Avg bus bandwidth``; it is a number beside Tessera's own.
"""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from ctypes import byref, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from typing import NamedTuple

import msgspec

from tessera.accept.cuda import CudaContext, CudaError
from tessera.accept.kernels import BLOCK, TILE
from tessera.api.nodes.preflights import OUTPUT_SIZE
from tessera.nvml.interface import GpuInfo
from tessera.text import list_names, one_line

_WORD = 4
#: Most bytes of pinned host memory: they count for the agent's container, and more make a copy no faster (55 GB/s with
#: 64 MiB and with 1 GiB on an H200).
_PINNED = 64 << 20
#: Seeds of the memory pattern: every bit is once 0 and once 1.
_SEEDS = 0x55555555, 0xAAAAAAAA


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How much the tests do.

    Attributes:
        memory_share: the share of the free memory that gets a pattern.
        chunk: bytes of a piece of memory; a multiple of 1 KiB.
        rows: rows of the matrices; a power of 2, at least 64.
        copy: bytes of a copy.
        repeats: copies and products that are timed together, after one that is not.
    """

    memory_share: float = 0.9
    chunk: int = 1 << 30
    rows: int = 4096
    copy: int = 256 << 20
    repeats: int = 10


def check_memory(card: CudaContext, effort: Effort) -> int:
    """Writes a pattern into the free memory and reads it again, twice; returns the bytes that were tested.

    Raises:
        CudaError: a step failed, or a word is not what was written.
    """
    chunks = int(card.free_bytes() * effort.memory_share) // effort.chunk
    if not chunks:
        raise CudaError(f"memory: less than {effort.chunk} bytes are free; end the programs on the card")
    places = [card.allocate(effort.chunk) for _ in range(chunks)]
    words = effort.chunk // _WORD
    for seed in _SEEDS:
        for number, place in enumerate(places):
            pattern = c_uint32(words), c_uint32(seed ^ number)
            card.launch("tessera_fill", (words // BLOCK, 1), place, *pattern)
        for number, place in enumerate(places):
            if wrong := _check_piece(card, place, words, seed ^ number):
                raise CudaError(f"memory: {wrong} of {words} words of piece {number} are not what was written")
    card.free(*places)
    return chunks * effort.chunk


def _check_piece(card: CudaContext, place: c_uint64, words: int, seed: int) -> int:
    """The number of words that do not have the pattern."""
    pattern = c_uint32(words), c_uint32(seed)
    return _count_wrong(card, lambda count: card.launch("tessera_check", (words // BLOCK, 1), place, *pattern, count))


def _count_wrong(card: CudaContext, check: Callable[[c_uint64], None]) -> int:
    """Runs a kernel that adds the number of wrong elements to a counter; returns it."""
    count, place = (c_uint32 * 1)(), card.allocate(_WORD)
    card.write(place, count)
    check(place)
    card.wait()
    card.read(count, place)
    card.free(place)
    return count[0]


def time_memory(card: CudaContext, effort: Effort) -> float:
    """Bytes per second that the card's memory moves in a copy within it, read and written."""
    source, target = card.allocate(effort.copy), card.allocate(effort.copy)

    def copy() -> None:
        card.cuda.call("cuMemcpyDtoDAsync_v2", target, source, c_size_t(effort.copy), None)

    rate = 2 * _rate(card, copy, effort)
    card.free(source, target)
    return rate


def time_product(card: CudaContext, effort: Effort) -> float:
    """Floating-point operations per second of a product of two matrices of 32-bit floats, without tensor cores.

    Raises:
        CudaError: a step failed, or an element is wrong.
    """
    rows, count = effort.rows, effort.rows**2
    shift = rows.bit_length() - 1
    left, right, product = (card.allocate(count * _WORD) for _ in range(3))
    grid = count // BLOCK, 1
    card.launch("tessera_factor", grid, left, c_uint32(count), c_uint32(shift))
    card.launch("tessera_factor", grid, right, c_uint32(count), c_uint32(0))

    def multiply() -> None:
        card.launch("tessera_product", (rows // TILE, rows // TILE), left, right, product, c_uint32(rows))

    multiply()
    card.wait()
    seconds = card.seconds(lambda: _repeat(multiply, effort.repeats))
    wrong = _count_wrong(
        card,
        lambda place: card.launch(
            "tessera_check_product", grid, product, c_uint32(count), c_uint32(shift), c_uint32(rows), place
        ),
    )
    card.free(left, right, product)
    if wrong:
        raise CudaError(f"product of matrices: {wrong} of {count} elements are wrong")
    return 2 * rows**3 * effort.repeats / seconds


def time_host_copies(card: CudaContext, effort: Effort) -> tuple[float, float]:
    """Bytes per second from the host's pinned memory to the card, and back."""
    effort = msgspec.structs.replace(effort, copy=min(effort.copy, _PINNED))
    host, place = c_void_p(), card.allocate(effort.copy)
    card.cuda.call("cuMemHostAlloc", byref(host), c_size_t(effort.copy), 0)
    size = c_size_t(effort.copy)
    there = _rate(card, lambda: card.cuda.call("cuMemcpyHtoDAsync_v2", place, host, size, None), effort)
    back = _rate(card, lambda: card.cuda.call("cuMemcpyDtoHAsync_v2", host, place, size, None), effort)
    card.cuda.call("cuMemFreeHost", host)
    card.free(place)
    return there, back


def time_peer_copy(card: CudaContext, other: CudaContext, effort: Effort) -> float | None:
    """Bytes per second from one card to another; ``None`` if they do not reach each other without the host."""
    able = c_int()
    handles = card.cuda.handle(card.device), card.cuda.handle(other.device)
    card.cuda.call("cuDeviceCanAccessPeer", byref(able), *handles)
    if not able.value:
        return None
    other.use()
    target = other.allocate(effort.copy)
    card.use()
    source = card.allocate(effort.copy)
    card.cuda.call("cuCtxEnablePeerAccess", other.context, 0)
    size = c_size_t(effort.copy)

    def copy() -> None:
        card.cuda.call("cuMemcpyPeerAsync", target, other.context, source, card.context, size, None)

    rate = _rate(card, copy, effort)
    card.cuda.call("cuCtxDisablePeerAccess", other.context)
    card.free(source)
    other.use()
    other.free(target)
    return rate


def _rate(card: CudaContext, copy: Callable[[], None], effort: Effort) -> float:
    copy()
    card.wait()
    return effort.copy * effort.repeats / card.seconds(lambda: _repeat(copy, effort.repeats))


def _repeat(work: Callable[[], None], times: int) -> None:
    for _ in range(times):
        work()


def neighbours(count: int) -> Iterator[tuple[int, int]]:
    """The pairs of cards whose way is timed: each with the next, around; so every card sends once and receives once."""
    if count > 1:
        yield from ((number, (number + 1) % count) for number in range(count))


#: DCGM's level: 2 is "medium", some two minutes (DCGM, dcgmi diag).
DCGM_LEVEL = 2
#: Seconds that a tool may take.
_SECONDS = 600.0
#: Bytes of the buffers that NCCL reduces, as its option has them.
_NCCL_SIZE = "256M"
_TEST = re.compile(r'"name"\s*:\s*"([^"]{1,60})"|"status"\s*:\s*"(\w{1,20})"')
_BANDWIDTH = re.compile(rb"Avg bus bandwidth\s*:\s*(\d+(?:\.\d+)?)")


class Output(NamedTuple):
    """The exit status of a tool, and all the text that it wrote."""

    status: int
    text: bytes


#: Runs a command; the texts of both streams together.
Run = Callable[[Sequence[str]], Output]


def run_tool(command: Sequence[str]) -> Output:
    """Runs a tool; a status of 124 is one that took too long, as of ``timeout``."""
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command, no shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Output(124, f"no answer within {_SECONDS:g} s".encode())
    except OSError as error:
        return Output(127, str(error.strerror).encode())
    return Output(done.returncode, done.stdout[:OUTPUT_SIZE])


def has_tool(name: str) -> bool:
    """Whether the image has a program."""
    return shutil.which(name) is not None


def diagnose_card(card: GpuInfo, run: Run = run_tool) -> str:
    """DCGM's diagnostics of a card: the error, empty if all tests passed."""
    output = run(["dcgmi", "diag", "-r", str(DCGM_LEVEL), "-i", str(card.index), "-j"])
    if not output.status:
        return ""
    text = output.text.decode(errors="replace")
    failed = list(_failed_tests(text))
    why = f"failed {list_names(failed)}" if failed else one_line(text.strip()[-200:])
    return f"dcgmi diag -r {DCGM_LEVEL} ended with status {output.status}: {why}"


def _failed_tests(text: str) -> list[str]:
    """Names before a status ``Fail``."""
    found, name = [], ""
    for match in _TEST.finditer(text):
        if match[1] is not None:
            name = match[1]
        elif match[2].casefold() == "fail" and name not in found:
            found.append(name)
    return found


def time_all_reduce(cards: int, run: Run = run_tool) -> float | str:
    """Bytes per second of each card while all reduce together (NCCL's bus bandwidth), or why it is not known."""
    output = run(["all_reduce_perf", "-b", _NCCL_SIZE, "-e", _NCCL_SIZE, "-g", str(cards)])
    match = _BANDWIDTH.search(output.text)
    if output.status or match is None:
        words = one_line(output.text.decode(errors="replace").strip()[-200:])
        return f"all_reduce_perf ended with status {output.status}: {words}"
    return float(match[1]) * 1e9
