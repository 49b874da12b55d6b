"""``scripts/need-debian``: a tool that is there counts only once it has done a piece of its work."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "need-debian"
#: What the script itself uses, without apt: nothing can be unpacked.
USED = ("cat", "dirname", "env", "grep", "mkdir", "mktemp", "rm", "sed", "sh", "timeout")
#: A program of each tool's name that only tells its version, and one that works.
VERSION_ONLY = '#!/bin/sh\n[ "$1" = --version ]\n'
WORKS = "#!/bin/sh\nfor last; do :; done\necho drawn\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "path"
    folder.mkdir()
    for name in USED:
        found = shutil.which(name)
        assert found
        (folder / name).symlink_to(found)
    return folder


def put(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def run(path: Path, into: Path, *tools: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": str(path)}
    return subprocess.run(
        ["sh", str(SCRIPT), str(into), *tools], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("tool", ["promtool", "skopeo"])
@pytest.mark.parametrize(("program", "code"), [(VERSION_ONLY, 1), (WORKS, 0)], ids=["version", "works"])
def test_a_tool_that_only_tells_its_version_is_not_there(
    path: Path, tmp_path: Path, tool: str, program: str, code: int
) -> None:
    put(path, tool, program)
    done = run(path, tmp_path / "tools", tool)
    assert done.returncode == code
    assert (f"{tool} is needed" in done.stderr) is bool(code)


@pytest.mark.parametrize(("program", "stays"), [(VERSION_ONLY, False), (WORKS, True)], ids=["version", "draws"])
def test_a_browser_without_its_data_is_taken_away_so_that_its_tests_are_skipped(
    path: Path, tmp_path: Path, program: str, stays: bool
) -> None:
    put(tmp_path / "tools" / "bin", "chromium-headless-shell", program)
    assert run(path, tmp_path / "tools", "chromium-headless-shell").returncode == 0
    assert (tmp_path / "tools" / "bin" / "chromium-headless-shell").exists() is stays
