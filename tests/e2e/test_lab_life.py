"""Labs come, stay, go, and get over a violent end."""

import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.cluster_user import ROOT, TIMEOUT
from tests.support.command_line import run_tessera

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def lab(lab_folder: Path) -> Iterator[Command]:
    """Runs ``tessera lab`` with the folder given by the environment; no lab is left there afterwards."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "TESSERA_LAB": str(lab_folder)}
        return run_tessera("lab", *arguments, env=env, cwd=ROOT, timeout=TIMEOUT)

    yield run
    run("down")


def kill(lab: Command, folder: Path) -> None:
    """Kills the lab, and waits until it has ended: then the kernel frees its lock."""
    os.kill(json.loads(lab("status", "-o", "json").stdout)["pid"], signal.SIGKILL)
    with (folder / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def kubectl(folder: Path, *arguments: str) -> str:
    command = ["kubectl", f"--kubeconfig={folder / 'kubeconfig'}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_a_labs_life(lab: Command, lab_folder: Path) -> None:
    nothing = lab("status")
    assert (nothing.returncode, nothing.stderr) == (
        1,
        f"no lab runs in {lab_folder}; start one with: tessera lab up\n",
    )
    up = lab("up", "--no-tessera", "--nodes", "0,0")
    assert (up.returncode, up.stderr) == (0, "")
    assert up.stdout.endswith(f"export KUBECONFIG={lab_folder / 'kubeconfig'}\n")

    assert lab("status", "-o", "kubeconfig").stdout == f"{lab_folder / 'kubeconfig'}\n"
    state = json.loads(lab("status", "-o", "json").stdout)
    assert (state["nodes"], state["virtualTime"]) == ("0,0", False)
    assert kubectl(lab_folder, "get", "nodes", "-o", "name") == "node/node-1\nnode/node-2\n"
    assert kubectl(lab_folder, "get", "pods", "-A") == ""
    assert (lab_folder / "kubeconfig").stat().st_mode & 0o077 == 0

    again = lab("up")
    assert (again.returncode, again.stderr.count("\n")) == (1, 1)
    for fact in ("error: ", f"a lab is already running in {lab_folder}", "end it with: tessera lab down"):
        assert fact in again.stderr
    down = lab("down")
    assert (down.returncode, down.stdout) == (0, "lab is down\n")
    assert not lab_folder.exists()
    assert not Path(f"/proc/{state['pid']}/cmdline").exists() or not Path(f"/proc/{state['pid']}/cmdline").read_text()
    assert lab("down").stdout == f"no lab runs in {lab_folder}\n"


def test_a_killed_lab_is_replaced(lab: Command, lab_folder: Path) -> None:
    assert lab("up", "--no-tessera", "--nodes", "1xA30").returncode == 0
    kill(lab, lab_folder)
    assert lab("status").returncode == 1
    assert (lab_folder / "n" / "node-1").is_dir()

    assert lab("up", "--no-tessera", "--nodes", "0").returncode == 0
    assert kubectl(lab_folder, "get", "nodes", "-o", "name") == "node/node-1\n"
    assert not (lab_folder / "n" / "node-1" / "cards.json").exists()
    assert lab("down").stdout == "lab is down\n"


def test_what_a_killed_lab_left_is_removed(lab: Command, lab_folder: Path) -> None:
    assert lab("up", "--no-tessera", "--nodes", "0").returncode == 0
    kill(lab, lab_folder)
    assert lab("down").returncode == 0
    assert not lab_folder.exists()


def test_a_folder_of_something_else_is_left_alone(lab: Command, tmp_path: Path) -> None:
    treasure = tmp_path / "treasure"
    treasure.write_text("gold")
    refused = lab("up", "--dir", str(tmp_path))
    assert refused.returncode == 1
    assert "choose" in refused.stderr
    assert lab("down", "--dir", str(tmp_path)).returncode == 0
    assert treasure.read_text() == "gold"


def test_nodes_run_the_system_that_is_asked_for(lab: Command, lab_folder: Path) -> None:
    unknown = lab("up", "--os", "ubunto22.04")
    assert unknown.returncode == 1
    assert "the lab has ubuntu22.04, ubuntu24.04, rhcos4.13" in unknown.stderr
    system = ("--os", "ubuntu22.04", "--kernel", "5.15.0-119-generic", "--kubernetes", "1.37")
    up = lab("up", "--no-tessera", "--nodes", "0,0@rhcos4.13", *system)
    assert (up.returncode, up.stderr) == (0, "")
    first, second = kubectl(lab_folder, "get", "nodes", "-o", "wide", "--no-headers").splitlines()
    assert "Ubuntu 22.04.4 LTS" in first
    assert "5.15.0-119-generic" in first
    assert "Red Hat Enterprise Linux CoreOS 413.92" in second
    assert "5.14.0-284.25.1.el9_2.x86_64" in second
    assert "v1.37.0" in first
    assert "devicetaintrules" in kubectl(lab_folder, "api-resources", "--api-group", "resource.k8s.io")
