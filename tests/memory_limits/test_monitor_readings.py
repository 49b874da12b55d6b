"""Memory on a simulated card, held by real processes that the given /proc shows in pods."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tessera.agent.base.host import ProcessTable
from tessera.api.names import PodUid
from tessera.clock import SystemClock
from tessera.memory_limits.enforcement import ProcessMemoryReader
from tessera.nvml.errors import GpuLost
from tessera.nvml.simulated.machine_access import InlineNvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine

GIB = 2**30
HOG, NEIGHBOUR = PodUid("1c5e1e1f-0f3e-4a0b-9a2e-5d1b6c7d8e9f"), PodUid("2c5e1e1f-0f3e-4a0b-9a2e-5d1b6c7d8e9f")


@pytest.fixture
def machine() -> SimulatedMachine:
    return SimulatedMachine("A100-40GB", seed="n")


Starter = Callable[[PodUid | None, int], subprocess.Popen[bytes]]


@pytest.fixture
def start(machine: SimulatedMachine, tmp_path: Path) -> Iterator[Starter]:
    """Starts a real process in a pod that holds so many GiB of the card."""
    with ExitStack() as stack:

        def started(pod: PodUid | None, gib: int) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
            child = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE))
            stack.callback(child.kill)
            folder = tmp_path / str(child.pid)
            folder.mkdir()
            (folder / "stat").symlink_to(f"/proc/{child.pid}/stat")
            (folder / "cgroup").write_text(f"0::/kubepods/pod{pod}/{'c' * 64}\n" if pod else "0::/user.slice\n")
            machine.start_process(machine.uuids()[0], gib * GIB, pid=child.pid)
            return child

        yield started


async def test_processes_are_read_with_their_pods(machine: SimulatedMachine, start: Starter, tmp_path: Path) -> None:
    children = [start(HOG, 3), start(HOG, 2), start(None, 1)]
    reader = ProcessMemoryReader(InlineNvml(machine, SystemClock()), ProcessTable(tmp_path))
    card = await reader.read(machine.uuids()[0])
    assert card is not None
    assert (card.total, card.used) == (40 * GIB, 6 * GIB)
    told = [(use.process.pid, use.bytes // GIB, use.pod) for use in card.uses]
    assert told == [(children[0].pid, 3, HOG), (children[1].pid, 2, HOG), (children[2].pid, 1, None)]


async def test_a_process_that_has_ended_is_left_out(machine: SimulatedMachine, start: Starter, tmp_path: Path) -> None:
    child = start(HOG, 3)
    child.kill()
    child.wait()
    card = await ProcessMemoryReader(InlineNvml(machine, SystemClock()), ProcessTable(tmp_path)).read(
        machine.uuids()[0]
    )
    assert card is not None
    assert card.uses == ()


async def test_a_card_that_does_not_answer_has_no_reading(machine: SimulatedMachine, tmp_path: Path) -> None:
    machine.fail("memory", GpuLost)
    reader = ProcessMemoryReader(InlineNvml(machine, SystemClock()), ProcessTable(tmp_path))
    assert await reader.read(machine.uuids()[0]) is None
    assert await reader.read(machine.uuids()[0]) is not None
    assert await reader.read("GPU-unknown") is None
