"""``tessera demo``: the whole story in one command, and nothing left of it."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from tests.support.running_lab import TIMEOUT


def demo(temporary: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tessera", "demo", *arguments]
    environment = {**os.environ, "TMPDIR": str(temporary), **env}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)


def processes_below(folder: Path) -> list[str]:
    """Command lines that name the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in line:
            found.append(line)
    return found


@pytest.fixture
def temporary(lab_folder: Path) -> Path:
    """A temporary folder with a short name."""
    folder = lab_folder.parent / "t"
    folder.mkdir(exist_ok=True)
    return folder


def test_the_demo_tells_the_story_and_leaves_nothing(temporary: Path) -> None:
    run = demo(temporary)
    assert (run.returncode, run.stderr) == (0, "")
    lines = run.stdout.splitlines()
    assert "simulated" in lines[0]
    assert "\x1b" not in run.stdout
    steps = [line for line in lines if line.startswith("  ✓")]
    assert len({len(line) for line in steps}) == 1, "the times stand in one column"
    assert run.stdout.count('"allocationStatusDaemonset": "created"') == 1
    assert len(re.findall(r"^  MIG 3g\.20gb +Device +0: \(UUID: MIG-", run.stdout, re.MULTILINE)) == 1
    story = run.stdout.index("[a 3g.20gb"), run.stdout.index("deployment/vllm deleted"), run.stdout.rindex("Measured")
    assert list(story) == sorted(story)
    assert (
        len(re.findall(r"^  (?:\S*/)?tessera .*#", run.stdout[run.stdout.index("Three things to try") :], re.MULTILINE))
        == 3
    )
    assert "0 of 32 memory slots used" in run.stdout
    assert list(temporary.iterdir()) == []
    assert processes_below(temporary) == []


@pytest.mark.parametrize("arguments", [(), ("--keep",)], ids=["", "keep"])
def test_an_interrupted_demo_leaves_nothing_either(temporary: Path, arguments: tuple[str, ...]) -> None:
    # A shell's background jobs, and all that they start, ignore SIGINT.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "tessera", "demo", *arguments]
    environment = {**os.environ, "TMPDIR": str(temporary), "TESSERA_LAB": str(temporary / "lab")}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    ) as run:
        assert run.stdout is not None
        deadline = time.monotonic() + TIMEOUT
        while len(processes_below(temporary)) < 1 and time.monotonic() < deadline:
            os.sched_yield()
        run.send_signal(signal.SIGINT)
        run.stdout.read()
        assert run.stderr is not None
        assert run.stderr.read() == "interrupted; nothing is left running\n"
    assert run.returncode == 130
    assert processes_below(temporary) == []
    assert list(temporary.iterdir()) == []


def test_the_demo_can_stay(temporary: Path, lab_folder: Path) -> None:
    run = demo(temporary, "--keep", TESSERA_LAB=str(lab_folder))
    assert (run.returncode, run.stderr) == (0, "")
    assert f"export KUBECONFIG={lab_folder / 'kubeconfig'}" in run.stdout
    env = {**os.environ, "KUBECONFIG": str(lab_folder / "kubeconfig"), "TESSERA_LAB": str(lab_folder)}
    page = re.search(r"^Look at it in a browser: (http://localhost:\d+/)$", run.stdout, re.MULTILINE)
    assert page is not None
    with urllib.request.urlopen(page[1], timeout=TIMEOUT) as answer:
        assert answer.status == 200
    moving = ["kubectl", "get", "pods", "-A", "-l", "lab.tessera.dev/scenario=busy-cluster", "-o", "name"]
    deadline = time.monotonic() + TIMEOUT
    while not (pods := subprocess.run(moving, env=env, capture_output=True, text=True, timeout=180).stdout):
        assert time.monotonic() < deadline
    assert "pod/train-1" in pods
    shown = run.stdout.splitlines()
    assert shown.index(page[0]) < shown.index("$ tessera map"), "the page's address comes before the story"
    assert "Three things to try" in run.stdout
    top = [sys.executable, "-m", "tessera", "top", "--once"]
    kinds = {"slice", "mig", "time-slicing", "whole"}
    while not kinds <= set(subprocess.run(top, env=env, capture_output=True, text=True, timeout=180).stdout.split()):
        assert time.monotonic() < deadline + TIMEOUT
    command = ["kubectl", "get", "deployment", "vllm", "-o", "jsonpath={.status.readyReplicas}"]
    assert subprocess.run(command, env=env, capture_output=True, text=True, timeout=180).stdout == "1"
    again = demo(temporary, "--keep", TESSERA_LAB=str(lab_folder))
    assert again.returncode == 1
    assert again.stderr.count("\n") == 1
    for fact in ("error: ", f"a lab is already running in {lab_folder}", "end it with: tessera lab down"):
        assert fact in again.stderr
    down = [sys.executable, "-m", "tessera", "lab", "down"]
    assert subprocess.run(down, env=env, capture_output=True, text=True, timeout=180).stdout == "lab is down\n"
    assert not lab_folder.exists()
    assert processes_below(lab_folder) == []
