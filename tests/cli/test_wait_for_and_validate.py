"""The two commands that run in containers of the driver stack."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tessera.cli.main import main


def process(*args: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tessera", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def waits(child: "subprocess.Popen[str]") -> None:
    """Returns once the child watches a folder: it holds an inotify descriptor then."""
    while child.poll() is None:
        links = [link for each in Path(f"/proc/{child.pid}/fd").iterdir() if (link := target(each))]
        if any("inotify" in link for link in links):
            return
        os.sched_yield()
    raise AssertionError(child.communicate())


def target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def test_markers_that_are_there_are_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "driver-ready").touch()
    assert main(["wait-for", "driver-ready", "--markers-dir", str(tmp_path)]) == 0


def test_it_ends_when_the_last_of_its_markers_comes_into_a_folder_that_came_late(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "validations"
    child = process("wait-for", "driver-ready", "toolkit-ready", "--markers-dir", str(folder))
    waits(child)
    folder.mkdir(parents=True)
    (folder / "toolkit-ready").touch()
    assert child.poll() is None
    (folder / "driver-ready").touch()
    assert child.communicate(timeout=30) == ("", "")
    assert child.returncode == 0


def test_a_container_that_is_told_to_stop_has_not_succeeded(tmp_path: Path) -> None:
    child = process("wait-for", "driver-ready", "--markers-dir", str(tmp_path))
    waits(child)
    child.send_signal(signal.SIGTERM)
    assert child.communicate(timeout=30) == ("", "")
    assert child.returncode == 143


def test_a_wait_that_is_over_names_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "driver-ready").touch()
    code = main(["wait-for", "driver-ready", "cuda-ready", "--markers-dir", str(tmp_path), "--timeout", "0.01"])
    assert code == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for fact in ("error: cuda-ready: ", f"not in {tmp_path}", "after 0.01 seconds", "see the log of the pod"):
        assert fact in error


def test_a_path_is_no_marker(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wait-for", "../driver-ready"]) == 1
    assert '"../driver-ready" is not the name of a marker' in capsys.readouterr().err


def test_a_simulated_validation_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--markers-dir", str(tmp_path), "--simulated"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cuda-ready", "toolkit-ready"]
    assert capsys.readouterr().out.startswith("simulated, no card was used: toolkit-ready written to")
    assert (tmp_path / "cuda-ready").read_text().startswith("simulated\n")


def test_a_machine_without_a_driver_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import pynvml

    def missing(name: str) -> object:
        raise OSError(name)

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", missing)
    (tmp_path / "cuda-ready").touch()
    assert main(["validate", "--markers-dir", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: NVML: nvmlInit")
    assert told.endswith("(nvmlReturn_t 12)\n")
    assert list(tmp_path.iterdir()) == []


def test_a_card_is_for_a_preflight_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--card", "GPU-1"]) == 1
    assert "--card is for --preflight" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--preflight"]])
def test_a_machine_without_a_driver_fails_by_name(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", *options]) == 1
    assert "NVML: nvmlInit" in capsys.readouterr().err
