"""Runs PTX on this machine, so that what a kernel computes is tested without a card.

Knows the instructions of :mod:`tessera.accept.kernels` and no others. A kernel is translated into a Python
generator that runs one thread and yields at a barrier; the threads of a block take turns between barriers. Floats are
Python's: numbers must be exact in 32 bits, as those of the kernels are.
"""

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

#: Allocations begin at multiples of these, so that an address names its allocation: of a device, and of a block's
#: shared memory, whose addresses have 32 bits.
ALLOCATION, SHARED = 1 << 36, 1 << 16
_KERNEL = re.compile(r"\.visible \.entry (\w+)\(\n(.*?)\n\)\n\{\n(.*?)\n\}", re.DOTALL)
_SHARED = re.compile(r"\.shared \.align \d+ \.b8 (\w+)\[(\d+)\]")
_ADDRESS = re.compile(r"\[(\S+?)(?:\+(\d+))?\]")
_BINARY = {"add": "+", "mul": "*", "and": "&", "shl": "<<", "shr": ">>", "xor": "^"}
_FORMATS = {"f32": "<f", "u32": "<I"}
_WIDTHS = {"u32": 0xFFFFFFFF, "s32": 0xFFFFFFFF, "b32": 0xFFFFFFFF, "u64": (1 << 64) - 1, "s64": (1 << 64) - 1}


class Memory:
    """Allocations of a device, by their number."""

    def __init__(self, stride: int = ALLOCATION) -> None:
        self._stride = stride
        self.blocks: dict[int, bytearray] = {}

    def allocate(self, size: int) -> int:
        address = self._stride * (max(self.blocks, default=0) + 1)
        self.blocks[address // self._stride] = bytearray(size)
        return address

    def free(self, address: int) -> None:
        del self.blocks[address // self._stride]

    def slice(self, address: int, size: int) -> memoryview:
        block = self.blocks[address // self._stride]
        offset = address % self._stride
        assert offset + size <= len(block), "beyond the allocation"
        return memoryview(block)[offset : offset + size]

    def load(self, form: str, address: int) -> Any:
        return struct.unpack(form, self.slice(address, 4))[0]

    def store(self, form: str, address: int, value: Any) -> None:
        self.slice(address, 4)[:] = struct.pack(form, value)


class PtxModule:
    """The kernels of a module.

    Attributes:
        parameters: names of each kernel's parameters, with their types.
    """

    def __init__(self, text: str) -> None:
        assert text.startswith(".version 4.0\n.target sm_50\n")
        self.parameters: dict[str, list[tuple[str, str]]] = {}
        self._threads: dict[str, Callable[..., Iterator[None]]] = {}
        self._shared: dict[str, dict[str, int]] = {}
        for name, parameters, body in _KERNEL.findall(text):
            self.parameters[name] = re.findall(r"\.param \.(u\d+) (\w+)", parameters)
            self._shared[name] = {shared: int(size) for shared, size in _SHARED.findall(body)}
            self._threads[name] = _translate(name, body)

    def run(self, name: str, memory: Memory, grid: Sequence[int], block: int, arguments: Sequence[int]) -> None:
        """Runs a kernel on a grid of two dimensions, with blocks of one."""
        given = dict(zip((each for _, each in self.parameters[name]), arguments, strict=True))
        for y in range(grid[1]):
            for x in range(grid[0]):
                shared = Memory(SHARED)
                places = {each: shared.allocate(size) for each, size in self._shared[name].items()}
                make = self._threads[name]
                threads = [make(memory, shared, places, given, tid, block, x, y) for tid in range(block)]
                while threads:
                    alive = [thread for thread in threads if next(thread, "ended") is None]
                    assert len(alive) in (0, len(threads)), "threads of a block meet at different barriers"
                    threads = alive


def _translate(name: str, body: str) -> Callable[..., Iterator[None]]:
    """One thread of a kernel as a generator: a loop over the parts between labels."""
    parts: list[tuple[str, list[str]]] = [("", [])]
    for line in map(str.strip, body.splitlines()):
        if line.endswith(":"):
            parts.append((line[:-1], []))
        elif line and not line.startswith((".reg", ".shared")):
            parts[-1][1].append(line.rstrip(";"))
    labels = {label: number for number, (label, _) in enumerate(parts)}
    source = [f"def {name}(memory, shared, places, given, tid, block, x, y):", "    part = 0", "    while True:"]
    for number, (_, lines) in enumerate(parts):
        source.append(f"        if part == {number}:")
        source += [f"            {each}" for line in lines for each in _statements(line, labels)]
        source.append(f"            part = {number + 1}")
    space: dict[str, Any] = {}
    exec("\n".join(source), space)
    thread: Callable[..., Iterator[None]] = space[name]
    return thread


def _statements(line: str, labels: Mapping[str, int]) -> list[str]:
    """Python for one instruction."""
    if line.startswith("@"):
        predicate, _, target = line[1:].partition(" bra ")
        return [f"if {_name(predicate)}:", f"    part = {labels[target]}", "    continue"]
    operation, _, rest = line.partition(" ")
    operands = [each.strip() for each in re.findall(r"\s*(\{[^}]*\}|[^,]+)", rest)]
    kind, *modifiers = operation.split(".")
    return _SPECIAL.get(kind, _arithmetic)(kind, modifiers, operands)


def _arithmetic(kind: str, modifiers: list[str], operands: list[str]) -> list[str]:
    target, *values = map(_name, operands)
    if kind == "mad":
        value = f"{values[0]} * {values[1]} + {values[2]}"
    elif kind == "fma":
        return [f"{target} = {values[0]} * {values[1]} + {values[2]}"]
    elif modifiers[-1] == "f32":
        return [f"{target} = {values[0]} {_BINARY[kind]} {values[1]}"]
    else:
        value = f"{values[0]} {_BINARY[kind]} {values[1]}"
    width = _WIDTHS["u64"] if "wide" in modifiers else _WIDTHS[modifiers[-1]]
    return [f"{target} = ({value}) & {width}"]


def _move(_kind: str, _modifiers: list[str], operands: list[str]) -> list[str]:
    return [f"{_name(operands[0])} = {_name(operands[1])}"]


def _convert(_kind: str, modifiers: list[str], operands: list[str]) -> list[str]:
    value = _name(operands[1])
    return [f"{_name(operands[0])} = {f'float({value})' if modifiers[-2] == 'f32' else value}"]


def _compare(_kind: str, modifiers: list[str], operands: list[str]) -> list[str]:
    sign = {"ge": ">=", "lt": "<", "eq": "=="}[modifiers[0]]
    return [f"{_name(operands[0])} = {_name(operands[1])} {sign} {_name(operands[2])}"]


def _load(_kind: str, modifiers: list[str], operands: list[str]) -> list[str]:
    if modifiers[0] == "param":
        return [f"{_name(operands[0])} = given[{operands[1][1:-1]!r}]"]
    place = _place(operands[1])
    return [
        f"{_name(each)} = {_space(modifiers)}.load({_FORMATS[modifiers[-1]]!r}, {place} + {number * 4})"
        for number, each in enumerate(_vector(operands[0]))
    ]


def _store(_kind: str, modifiers: list[str], operands: list[str]) -> list[str]:
    place = _place(operands[0])
    return [
        f"{_space(modifiers)}.store({_FORMATS[modifiers[-1]]!r}, {place} + {number * 4}, {_name(each)})"
        for number, each in enumerate(_vector(operands[1]))
    ]


def _reduce(_kind: str, modifiers: list[str], operands: list[str]) -> list[str]:
    assert modifiers == ["global", "add", "u32"]
    place = _place(operands[0])
    return [f"memory.store('<I', {place}, memory.load('<I', {place}) + {_name(operands[1])})"]


def _barrier(_kind: str, _modifiers: list[str], _operands: list[str]) -> list[str]:
    return ["yield None"]


def _return(_kind: str, _modifiers: list[str], _operands: list[str]) -> list[str]:
    return ["return", "yield None"]


_SPECIAL: Mapping[str, Callable[[str, list[str], list[str]], list[str]]] = {
    "mov": _move,
    "cvta": _move,
    "cvt": _convert,
    "setp": _compare,
    "ld": _load,
    "st": _store,
    "red": _reduce,
    "bar": _barrier,
    "ret": _return,
}
_SYSTEM = {"%tid.x": "tid", "%ntid.x": "block", "%ctaid.x": "x", "%ctaid.y": "y"}


def _name(operand: str) -> str:
    if operand in _SYSTEM:
        return _SYSTEM[operand]
    if operand.startswith("%"):
        return operand[1:]
    if operand == "0f00000000":
        return "0.0"
    return operand if operand.isdigit() else f"places[{operand!r}]"


def _vector(operand: str) -> list[str]:
    return [each.strip() for each in operand.strip("{}").split(",")]


def _space(modifiers: list[str]) -> str:
    return "shared" if modifiers[0] == "shared" else "memory"


def _place(operand: str) -> str:
    match = _ADDRESS.fullmatch(operand)
    assert match is not None, operand
    address = f"{_name(match[1])} + {match[2] or 0}"
    return f"({address})"
