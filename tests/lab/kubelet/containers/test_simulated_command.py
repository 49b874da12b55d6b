"""Simulated commands: their output, duration and exit code."""

import pytest

from tessera_lab.kubelet.containers.runtime import parse_command


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
        (["nvidia-smi", "-L"], 0, 0),
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
    does = parse_command("image", argv)
    assert (does.seconds, does.exit_code) == (seconds, exit_code)


def test_an_image_without_a_command_runs_until_it_is_stopped() -> None:
    assert parse_command("nginx", []).seconds is None


def test_an_image_that_is_known_to_end_ends() -> None:
    assert parse_command("nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0", []).seconds == 1


def test_what_is_not_really_done_is_called_simulated() -> None:
    assert parse_command("image", ["nvidia-smi", "-L"]).output == ("simulated: nvidia-smi -L",)
    assert parse_command("image", ["sh", "-c", "echo hello; false"]).output == ("hello",)
