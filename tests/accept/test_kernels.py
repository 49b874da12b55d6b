"""What the kernels compute, run instruction by instruction."""

import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from tests.support.ptx_machine import Memory, PtxModule

from tessera.accept.kernels import BLOCK, PTX, TILE

MODULE = PtxModule(PTX.decode())


def floats(memory: Memory, place: int, count: int) -> list[float]:
    return list(struct.unpack(f"<{count}f", memory.slice(place, 4 * count)))


def test_vectors_are_added_and_nothing_is_written_beyond_the_count() -> None:
    memory = Memory()
    first, second, total = (memory.allocate(4 * 300) for _ in range(3))
    for place, values in ((first, range(300)), (second, range(300, 0, -1))):
        memory.slice(place, 1200)[:] = struct.pack("<300f", *values)
    MODULE.run("tessera_add", memory, (2, 1), BLOCK, (first, second, total, 290))
    assert floats(memory, total, 300) == [300.0] * 290 + [0.0] * 10


def test_a_pattern_is_different_for_each_word_and_each_wrong_word_is_counted() -> None:
    memory = Memory()
    place, wrong = memory.allocate(4 * 512), memory.allocate(4)
    MODULE.run("tessera_fill", memory, (2, 1), BLOCK, (place, 512, 0x55555555))
    assert len(set(struct.unpack("<512I", memory.slice(place, 2048)))) == 512
    MODULE.run("tessera_check", memory, (2, 1), BLOCK, (place, 512, 0x55555555, wrong))
    assert memory.load("<I", wrong) == 0
    for word in (0, 7, 511):
        memory.store("<I", place + 4 * word, memory.load("<I", place + 4 * word) ^ 1 << 17)
    MODULE.run("tessera_check", memory, (2, 1), BLOCK, (place, 512, 0x55555555, wrong))
    assert memory.load("<I", wrong) == 3
    MODULE.run("tessera_check", memory, (2, 1), BLOCK, (place, 512, 0xAAAAAAAA, wrong))
    assert memory.load("<I", wrong) == 3 + 512


def product(memory: Memory, left: list[float], right: list[float], rows: int) -> list[float]:
    count = rows * rows
    places = [memory.allocate(4 * count) for _ in range(3)]
    for place, values in zip(places, (left, right), strict=False):
        memory.slice(place, 4 * count)[:] = struct.pack(f"<{count}f", *values)
    MODULE.run("tessera_product", memory, (rows // TILE, rows // TILE), BLOCK, (*places, rows))
    return floats(memory, places[2], count)


@pytest.mark.parametrize("rows", [TILE, 2 * TILE])
def test_the_product_is_that_of_matrices(rows: int) -> None:
    left = [float((3 * each + each // rows) % 7) for each in range(rows * rows)]
    right = [float((5 * each + each // rows) % 5) for each in range(rows * rows)]
    found = product(Memory(), left, right, rows)
    columns = [right[column::rows] for column in range(rows)]
    for row in range(0, rows, 13):
        line = left[row * rows : (row + 1) * rows]
        for column in range(0, rows, 7):
            expected = sum(one * other for one, other in zip(line, columns[column], strict=True))
            assert found[row * rows + column] == expected


def test_the_product_of_the_factors_is_known_and_each_wrong_element_is_counted() -> None:
    memory, rows = Memory(), TILE
    count, shift = rows * rows, 6
    left, right, made, wrong = (memory.allocate(4 * count) for _ in range(4))
    MODULE.run("tessera_factor", memory, (count // BLOCK, 1), BLOCK, (left, count, shift))
    MODULE.run("tessera_factor", memory, (count // BLOCK, 1), BLOCK, (right, count, 0))
    MODULE.run("tessera_product", memory, (1, 1), BLOCK, (left, right, made, rows))
    check = made, count, shift, rows, wrong
    MODULE.run("tessera_check_product", memory, (count // BLOCK, 1), BLOCK, check)
    assert memory.load("<I", wrong) == 0
    memory.store("<f", made + 4 * 70, memory.load("<f", made + 4 * 70) + 1.0)
    MODULE.run("tessera_check_product", memory, (count // BLOCK, 1), BLOCK, check)
    assert memory.load("<I", wrong) == 1


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="there is no ptxas on this machine")
@pytest.mark.parametrize("card", ["sm_75", "sm_80", "sm_90", "sm_100"])
def test_nvidias_assembler_takes_the_module(tmp_path: Path, card: str) -> None:
    (tmp_path / "kernels.ptx").write_bytes(PTX)
    command = ["ptxas", "-arch", card, str(tmp_path / "kernels.ptx"), "-o", str(tmp_path / "kernels.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
