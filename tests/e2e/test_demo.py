"""``tessera demo``: the whole story in one command, and nothing left of it."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from tests.support.cluster_user import PAUSES, ClusterUser
from tests.support.command_line import run_tessera
from tests.support.running_lab import ROOT, TIMEOUT


def demo(temporary: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run_tessera(
        "demo", *arguments, env={**os.environ, "TMPDIR": str(temporary), **env}, cwd=ROOT, timeout=TIMEOUT
    )


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
            time.sleep(PAUSES[0] / 5)  # a look at all processes takes a core
        run.send_signal(signal.SIGINT)
        run.stdout.read()
        assert run.stderr is not None
        assert run.stderr.read() == "interrupted; nothing is left running\n"
    assert run.returncode == 130
    assert processes_below(temporary) == []
    assert list(temporary.iterdir()) == []


def test_the_demo_can_stay_and_every_line_that_it_suggests_works(temporary: Path, lab_folder: Path) -> None:
    run = demo(temporary, "--keep", TESSERA_LAB=str(lab_folder))
    assert (run.returncode, run.stderr) == (0, "")
    assert f"export KUBECONFIG={lab_folder / 'kubeconfig'}" in run.stdout
    page = re.search(r"^Look at it in a browser: (http://localhost:\d+/)$", run.stdout, re.MULTILINE)
    assert page is not None
    with urllib.request.urlopen(page[1], timeout=TIMEOUT) as answer:
        assert answer.status == 200
    cluster = ClusterUser(lab_folder / "kubeconfig")
    cluster.env["TESSERA_LAB"] = str(lab_folder)
    moving = ("pods", "-A", "-l", "lab.tessera.dev/scenario=busy-cluster")
    cluster.eventually(
        lambda: any(each["metadata"]["name"].startswith("train-1") for each in cluster.get(*moving)["items"])
    )
    shown = run.stdout.splitlines()
    assert shown.index(page[0]) < shown.index("$ tessera map"), "the page's address comes before the story"
    assert "Three things to try" in run.stdout
    kinds = {"slice", "mig", "time", "whole"}
    cluster.eventually(lambda: kinds <= set(cluster.tessera("top", "--once").split()))
    assert cluster.get("deployment", "vllm")["status"]["readyReplicas"] == 1
    again = demo(temporary, "--keep", TESSERA_LAB=str(lab_folder))
    assert again.returncode == 1
    assert again.stderr.count("\n") == 1
    for fact in ("error: ", f"a lab is already running in {lab_folder}", "end it with: tessera lab down"):
        assert fact in again.stderr

    # A newcomer types the commands that the output suggests; the last of them ends the lab.
    asked = {**cluster.env, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONUTF8": "1"}
    suggested = re.findall(r"^  ((?:kubectl|tessera) .*)$", run.stdout, re.MULTILINE)
    assert len(suggested) >= 6
    for line in suggested:
        command = line.partition("#")[0].partition("| jq")[0]
        program, *words = shlex.split(command)
        if program == "tessera":
            ran = run_tessera(*words, env=asked, cwd=ROOT, timeout=TIMEOUT)
        else:
            ran = subprocess.run(command, shell=True, env=asked, capture_output=True, text=True, timeout=TIMEOUT)
        assert (ran.returncode, ran.stderr) == (0, ""), line
    assert not lab_folder.exists()
    assert processes_below(lab_folder) == []


def test_when_its_reader_goes_away_it_ends_quietly_and_leaves_nothing(temporary: Path) -> None:
    env = {**os.environ, "TMPDIR": str(temporary), "PYTHONUTF8": "1"}
    command = [sys.executable, "-m", "tessera", "demo"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        while "cluster is up" not in run.stdout.readline():
            pass
        run.stdout.close()
        assert run.stderr.read() == ""
        assert run.wait(timeout=180) == 0
    assert list(temporary.iterdir()) == []
