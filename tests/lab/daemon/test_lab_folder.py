"""A lab's folder: who holds it, what may be in it, and what is left alone."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tessera_lab.daemon import lab_folder
from tessera_lab.daemon.lab_folder import LabError, LabState

STATE = LabState(
    pid=os.getpid(),
    server="https://127.0.0.1:1",
    kubeconfig="/lab/kubeconfig",
    nodes="1xA30",
    virtual_time=False,
    started="2026-01-02T03:04:05Z",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a short name, as sockets need it."""
    monkeypatch.chdir(tmp_path)
    return Path("lab")


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """One whose absolute path is short as well."""
    with tempfile.TemporaryDirectory(prefix="tl-", dir="/tmp") as top:
        yield Path(top, "lab")


def test_the_folder_is_said_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_LAB", "/tmp/mine")
    assert lab_folder.default_folder() == Path("/tmp/mine")
    monkeypatch.delenv("TESSERA_LAB")
    assert lab_folder.default_folder() == Path.home() / ".tessera" / "lab"


@pytest.mark.parametrize("by_flag", [True, False])
def test_a_folder_that_is_named_is_the_one_whatever_else_runs(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch, by_flag: bool
) -> None:
    other = short_folder / "other"
    other.mkdir(parents=True)
    (other / "control.sock").touch()
    monkeypatch.setenv("KUBECONFIG", str(other / "kubeconfig"))
    none = short_folder / "none"
    if not by_flag:
        monkeypatch.setenv("TESSERA_LAB", str(none))
    source = "--dir" if by_flag else "\\$TESSERA_LAB"
    with pytest.raises(LabError, match=f"{source} is {none}: no lab runs there"):
        lab_folder.resolve_folder(none if by_flag else None)
    assert not none.exists()


def test_without_a_name_the_lab_of_the_kubeconfig_in_use_is_meant(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_folder.mkdir()
    (short_folder / "control.sock").touch()
    monkeypatch.delenv("TESSERA_LAB", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(short_folder / "kubeconfig"))
    assert lab_folder.resolve_folder(None) == short_folder


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The runtime folder of a user."""
    with tempfile.TemporaryDirectory(prefix="tl-", dir="/tmp") as top:
        monkeypatch.setenv("XDG_RUNTIME_DIR", top)
        yield Path(top)


def test_a_folder_too_long_for_sockets_leads_to_one_in_the_runtime_folder(tmp_path: Path, runtime: Path) -> None:
    long = tmp_path / ("x" * 60)
    with lab_folder.lock_folder(long):
        lab_folder.publish_state(long, STATE)
        files = long.readlink()
        assert files.parent == runtime
        assert lab_folder.find_running_lab(long) == STATE
        assert lab_folder.resolve_folder(long) == lab_folder.files_of(long) == files
        assert files.stat().st_mode & 0o777 == 0o700
    assert lab_folder.stop(long) is False
    assert not long.is_symlink()
    assert not files.exists()


def test_a_long_folder_whose_files_are_gone_is_made_anew(
    tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a reboot, which empties the runtime folder."""
    long = tmp_path / ("x" * 60)
    before = lab_folder.make_folder(long)
    before.rmdir()
    (runtime / "other").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime / "other"))
    assert lab_folder.make_folder(long).parent == runtime / "other"
    assert long.readlink() != before


def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path, runtime: Path) -> None:
    long = tmp_path / ("x" * 60)
    lab_folder.files_of(long).mkdir(mode=0o700)
    lab_folder.files_of(long).chmod(0o777)
    with pytest.raises(LabError, match="is not a folder that only you can write; remove it, or set TESSERA_LAB"):
        lab_folder.make_folder(long)


def test_where_sockets_fit_nowhere_the_error_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(lab_folder, "_SOCKET_LIMIT", 60)
    with pytest.raises(LabError, match="set TESSERA_LAB to a folder whose path has at most 5 bytes"):
        lab_folder.files_of(tmp_path / ("x" * 60))


def test_a_folder_that_is_not_a_labs_is_refused_and_kept(folder: Path) -> None:
    folder.mkdir()
    (folder / "treasure").write_text("gold")
    with pytest.raises(LabError, match="holds something that is not a lab"), lab_folder.lock_folder(folder):
        pass
    assert lab_folder.stop(folder) is False
    assert (folder / "treasure").read_text() == "gold"


def test_one_lab_holds_a_folder(folder: Path) -> None:
    with (
        lab_folder.lock_folder(folder),
        pytest.raises(LabError, match="already running"),
        lab_folder.lock_folder(folder),
    ):
        pass


def test_a_lab_is_running_once_it_has_announced_itself(folder: Path) -> None:
    assert lab_folder.find_running_lab(folder) is None
    with lab_folder.lock_folder(folder):
        assert lab_folder.find_running_lab(folder) is None
        lab_folder.publish_state(folder, STATE)
        assert lab_folder.find_running_lab(folder) == STATE
    assert lab_folder.find_running_lab(folder) is None, "what was announced outlives its lab, the lock does not"


def test_what_a_killed_lab_said_is_forgotten_by_the_next(folder: Path) -> None:
    folder.mkdir()
    for name in ("lock", "lab.json", "kubeconfig", "control.sock"):
        (folder / name).write_bytes(msgspec.json.encode(STATE))
    (folder / "n" / "node-1").mkdir(parents=True)
    with lab_folder.lock_folder(folder):
        assert lab_folder.find_running_lab(folder) is None
        assert sorted(each.name for each in folder.iterdir()) == ["lock"]


def test_a_lab_that_still_starts_is_ended_too(folder: Path) -> None:
    code = (
        "import pathlib, sys, time; from tessera_lab.daemon import lab_folder\n"
        "with lab_folder.lock_folder(pathlib.Path('lab')): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        assert lab_folder.find_running_lab(folder) is None
        with pytest.raises(LabError, match="already running"):
            lab_folder.start(folder, [])
        assert lab_folder.stop(folder) is True
    assert not folder.exists()


def test_a_lab_that_does_not_come_up_says_why(short_folder: Path) -> None:
    folder = short_folder
    with pytest.raises(LabError, match=r'the lab did not start: no GPU model "nonsense"'):
        lab_folder.start(folder, ["--nodes", "nonsense"])
    assert lab_folder.find_running_lab(folder) is None
