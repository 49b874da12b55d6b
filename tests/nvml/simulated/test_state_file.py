"""Simulated cards in a file outlive who uses them, and are one machine for everybody."""

import os
import signal
import subprocess
import sys
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest

from tessera.nvml.errors import InsufficientResources
from tessera.nvml.interface import CardAttributes, ComputeMode, NvLink
from tessera.nvml.simulated.machine_access import StateFileError
from tessera.nvml.simulated.simulated_machine import SimulatedMachine


def load(state: Path, spec: str = "A100-40GB", seed: str = "node-1") -> SimulatedMachine:
    return SimulatedMachine(spec, seed=seed, mig=True, state=state)


def test_what_one_process_makes_another_finds(state: Path) -> None:
    one, two = load(state), load(state)
    (gpu,) = one.uuids()
    gi_id = one.create_gpu_instance(gpu, "3g.20gb", 4)
    made = two.create_compute_instance(gpu, gi_id, 2)
    pid = two.start_process(made.mig_uuid, 1 << 30)
    assert one.instances(gpu) == two.instances(gpu)
    assert [process.pid for process in one.processes(gpu)] == [pid]
    with pytest.raises(InsufficientResources):
        one.create_gpu_instance(gpu, "3g.20gb", 4)


def test_levers_pulled_in_one_process_are_felt_in_another(state: Path) -> None:
    one, two = load(state), load(state)
    (gpu,) = one.uuids()
    one.fail("create_gpu_instance", InsufficientResources)
    one.slow("destroy_gpu_instance", 0.5)
    with pytest.raises(InsufficientResources):
        two.create_gpu_instance(gpu, "1g.5gb", 0)
    two.create_gpu_instance(gpu, "1g.5gb", 0)
    assert two.latency("destroy_gpu_instance") == 0.5
    one.lose(gpu)
    event = two.wait_event(0)
    assert event is not None
    assert event.xid == 79
    assert one.wait_event(0) is None


def test_what_somebody_made_of_a_card_is_kept(state: Path) -> None:
    one, two = load(state, "2xA100-40GB"), load(state, "2xA100-40GB")
    gpu, other = one.uuids()
    one.set_mig_mode(other, False)
    one.set_compute_mode(other, ComputeMode.EXCLUSIVE_PROCESS)
    one.set_attributes(gpu, CardAttributes(fabric=("cluster", "3"), recovery_action=2))
    one.set_nvlinks(other, [NvLink("00000000:10:00.0")])
    assert two.compute_mode(other) is ComputeMode.EXCLUSIVE_PROCESS
    assert two.attributes(gpu) == CardAttributes(fabric=("cluster", "3"), recovery_action=2)
    assert two.nvlinks(other) == [NvLink("00000000:10:00.0")]


MAKER = """
import sys
from pathlib import Path
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
machine = SimulatedMachine("A100-40GB", seed="node-1", mig=True, state=Path(sys.argv[1]))
(gpu,) = machine.uuids()
print("ready", flush=True)
while True:
    gi_id = machine.create_gpu_instance(gpu, "2g.10gb", 2)
    machine.create_compute_instance(gpu, gi_id, 1)
    machine.destroy_compute_instance(gpu, gi_id, 0)
    machine.destroy_gpu_instance(gpu, gi_id)
"""


def test_a_process_killed_in_the_middle_leaves_whole_cards(state: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", MAKER, state], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        machine = load(state)
        (gpu,) = machine.uuids()
        while not machine.instances(gpu):  # until it is seen at work
            assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
    held = machine.instances(gpu)
    assert [(one.profile, one.start) for one in held] in ([], [("2g.10gb", 2)])
    for one in held:
        for compute in one.compute_instances:
            machine.destroy_compute_instance(gpu, one.gi_id, compute.ci_id)
        machine.destroy_gpu_instance(gpu, one.gi_id)
    machine.create_gpu_instance(gpu, "7g.40gb", 0)


def test_changes_at_the_same_time_do_not_cross(state: Path) -> None:
    (gpu,) = load(state).uuids()

    def fill(start: int) -> int:
        return load(state).create_gpu_instance(gpu, "1g.5gb", start)

    with ThreadPool(7) as pool:
        assert pool.map(fill, range(7)) == [7, 8, 9, 10, 11, 12, 13]
    assert [one.start for one in load(state).instances(gpu)] == list(range(7))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"seed": 1}', b"\xff", b'{"\xff": 1}', b'{"a":' * 100_000], ids=range(7)
)
def test_a_damaged_file_is_an_error_and_stays_as_it_is(state: Path, content: bytes) -> None:
    state.write_bytes(content)
    with pytest.raises(StateFileError, match="delete the file"):
        load(state)
    assert state.read_bytes() == content


def test_the_same_cards_may_be_written_in_another_way(state: Path) -> None:
    SimulatedMachine("2xA30", seed="node-1", state=state)
    assert len(SimulatedMachine("A30,A30", seed="node-1", state=state).devices()) == 2


def test_a_file_of_other_cards_is_not_taken_over(state: Path) -> None:
    load(state)
    with pytest.raises(StateFileError, match='holds "A100-40GB" of node-1, not "A30" of node-1'):
        load(state, "A30")
    with pytest.raises(StateFileError, match="of node-2"):
        load(state, seed="node-2")


def test_a_deleted_file_is_told(state: Path) -> None:
    machine = load(state)
    state.unlink()
    with pytest.raises(StateFileError, match="was deleted"):
        machine.devices()


def test_reading_does_not_write(state: Path) -> None:
    machine = load(state)
    before = state.stat()
    machine.devices()
    machine.instances(machine.uuids()[0])
    assert machine.wait_event(0) is None
    assert (state.stat().st_ino, state.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
