"""Simulated commands: their output, duration and exit code."""

import pytest

from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.kubelet.containers.commands import Surroundings, parse_command, run_at_once

#: Thursday, 1 January 2026, 00:00.
NOW = 1_767_225_600.0
#: A container without cards.
BARE = Surroundings(env={"HOME": "/root"}, hostname="p", nvml=None, now=NOW)


@pytest.fixture
def machine() -> SimulatedMachine:
    return SimulatedMachine("2xA100-40GB", seed="node-1", mig=True)


def holder(machine: SimulatedMachine, *devices: str) -> Surroundings:
    """A container that sees these devices of the machine."""
    return Surroundings(env={"NVIDIA_VISIBLE_DEVICES": ",".join(devices)}, hostname="p", nvml=machine, now=NOW)


def slice_of(machine: SimulatedMachine, card: int = 1) -> str:
    """A new slice."""
    gpu = machine.uuids()[card]
    return machine.create_compute_instance(gpu, machine.create_gpu_instance(gpu, "3g.20gb", 0), 2).mig_uuid


@pytest.mark.parametrize(
    ("argv", "seconds", "exit_code"),
    [
        (["sleep", "30"], 30, 0),
        (["/bin/sleep", "0.5"], 0.5, 0),
        (["sleep", "1m", "30s"], 90, 0),
        (["sleep", "infinity"], None, 0),
        (["sleep", "soon"], 0, 1),
        (["true"], 0, 0),
        (["false"], 0, 1),
        (["nvidia-smi", "-L"], 0, 127),
        (["python", "serve.py"], None, 0),
        (["sh", "-c", "sleep 5; exit 3"], 5, 3),
        (["bash", "-ec", "sleep 1 && sleep 2 && false"], 3, 1),
        (["sh", "-c", "false && sleep 100"], 0, 1),
        (["sh", "-c", "false || sleep 2"], 2, 0),
        (["sh", "-c", "exit 7; sleep 100"], 0, 7),
        (["sh", "-c", "nvidia-smi -L; sleep infinity"], None, 0),
        (["sh", "-c", "while true; do sleep 1; done"], None, 0),
        (["sh", "-c", "train --epochs 3 && echo done"], 0, 0),
        (["sh", "-c", "echo start\nexec vllm serve"], None, 0),
        (["sh", "-c", "echo 'unbalanced"], 0, 2),
        (["sh", "-c", ""], 0, 0),
    ],
)
def test_commands(argv: list[str], seconds: float | None, exit_code: int) -> None:
    does = parse_command("image", argv, BARE)
    assert (does.seconds, does.exit_code) == (seconds, exit_code)


def test_an_image_without_a_command_runs_until_it_is_stopped() -> None:
    assert parse_command("nginx", [], BARE).seconds is None


def test_an_image_that_is_known_to_end_ends() -> None:
    assert parse_command("nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0", [], BARE).seconds == 1


def test_what_is_not_really_done_is_called_simulated() -> None:
    assert parse_command("image", ["date"], BARE).output == ("simulated: date",)
    assert parse_command("image", ["sh", "-c", "echo hello; false"], BARE).output == ("hello",)


def test_a_container_whose_command_is_nvidia_smi_logs_its_own_slice(machine: SimulatedMachine) -> None:
    slice_of(machine, 0)
    own = slice_of(machine)
    assert parse_command("cuda", ["nvidia-smi", "-L"], holder(machine, own)).output == (
        f"GPU 0: NVIDIA A100-SXM4-40GB (UUID: {machine.uuids()[1]})",
        f"  MIG 3g.20gb     Device  0: (UUID: {own})",
    )


@pytest.mark.parametrize(
    ("argv", "code", "printed"),
    [
        (["hostname"], 0, "p\n"),
        (["echo", "a", "$HOME"], 0, "a $HOME\n"),
        (["sh", "-c", "echo a $HOME '$HOME' \"${HOME}\""], 0, "a /root $HOME /root\n"),
        (["env"], 0, "HOME=/root\nHOSTNAME=p\n"),
        (["printenv", "HOME"], 0, "/root\n"),
        (["printenv", "NOTHING"], 1, ""),
        (["ls", "/dev"], 0, "full\nnull\nptmx\nrandom\ntty\nurandom\nzero\n"),
        (["ls", "/dev/nvidia*"], 2, ""),
        (["sh", "-c", "false || echo b; exit 3"], 3, "b\n"),
        (["nvidia-smi"], 127, ""),
        (["true"], 0, ""),
    ],
)
def test_exec_runs_what_it_knows_and_says_that_it_is_simulated(argv: list[str], code: int, printed: str) -> None:
    ran = run_at_once(argv, BARE)
    assert (ran.code, ran.stdout.decode()) == (code, printed)
    assert ran.stderr.startswith(b"simulated: ")


@pytest.mark.parametrize(
    ("argv", "code", "why"),
    [
        (["python", "train.py"], 127, "no program python with these arguments"),
        (["bash"], 127, "no program bash"),
        (["ls", "/etc"], 127, "no program ls"),
        (["cat", "/etc/passwd"], 127, "no program cat"),
        (["sleep", "5"], 126, "sleep 5 does not end at once"),
        (["sh", "-c", "while true; do echo; done"], 126, "a script with a loop"),
        (["sh", "-c", "env | grep NVIDIA"], 126, "no |"),
        (["sh", "-c", "echo a > /tmp/a"], 126, "no >"),
        (["sh", "-c", "echo $(date)"], 126, "no $("),
        (["sh", "-c", "date; true"], 126, "no program date"),
    ],
)
def test_exec_refuses_what_it_does_not_act_on(argv: list[str], code: int, why: str) -> None:
    ran = run_at_once(argv, BARE)
    assert (ran.code, ran.stdout) == (code, b"")
    assert why in ran.stderr.decode()
    assert "; exec in the lab knows: echo WORDS; env; " in ran.stderr.decode()


def test_the_devices_of_a_container(machine: SimulatedMachine) -> None:
    listed = run_at_once(["ls", "/dev"], holder(machine, slice_of(machine))).stdout.decode().split()
    assert [each for each in listed if "nvidia" in each] == [
        "nvidia-caps",
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidia1",
        "nvidiactl",
    ]
