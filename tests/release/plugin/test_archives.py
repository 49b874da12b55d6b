"""The archives as users get them: built with all their wheels, unpacked, and run by kubectl."""

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from zipfile import ZipFile

import pytest
from release.image.labels import of_checkout
from release.platforms import PLUGINS, Platform
from release.plugin.archives import PROGRAM, PYTHONS, write_archive
from release.wheels import ROOT
from tests.support.archives import unpack

pytestmark = pytest.mark.soak
CACHE = ROOT / ".venv" / "release"
LINUX = PLUGINS[0]
#: Machine fields: of ELF (e_machine) and of Mach-O (cputype).
MACHINES = {"linux/amd64": 62, "linux/arm64": 183, "darwin/amd64": 0x0100_0007, "darwin/arm64": 0x0100_000C}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This machine's archive, unpacked as krew does, with a home of its own for the cache."""
    folder = tmp_path_factory.mktemp("plugin")
    unpack(write_archive(folder, LINUX, of_checkout(), CACHE), folder / "bin")
    (folder / "home").mkdir()
    return folder


def environment(unpacked: Path) -> dict[str, str]:
    path = f"{unpacked / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(unpacked / "home")}


def kubectl(unpacked: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["kubectl", *arguments], capture_output=True, text=True, env=environment(unpacked), timeout=300
    )


def test_first_runs_at_the_same_time_all_work(unpacked: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda _: kubectl(unpacked, "tessera", "--version"), range(4)))
    assert [(each.stdout, each.stderr, each.returncode) for each in runs] == [
        (f"tessera {of_checkout().version}\n", "", 0)
    ] * 4


def test_nobody_else_may_write_the_cache(unpacked: Path) -> None:
    kubectl(unpacked, "tessera", "--version")
    cache = unpacked / "home" / ".cache" / "pex"
    files = [path for path in cache.rglob("*") if not path.is_symlink()]
    assert files
    assert [path for path in files if path.stat().st_mode & 0o022] == []


@pytest.mark.parametrize(
    "command",
    ["map", "why", "top", "dashboard", "idle", "health", "plan", "config", "install", "doctor", "driver", "completion"],
)
def test_a_users_command_shows_its_help_under_kubectls_name(unpacked: Path, command: str) -> None:
    done = kubectl(unpacked, "tessera", command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: kubectl tessera {command} ")


def test_a_command_that_needs_a_cluster_says_that_there_is_none(unpacked: Path) -> None:
    done = kubectl(unpacked, "tessera", "map")
    assert done.returncode == 1
    assert done.stderr.startswith("error: no cluster is configured")


def test_a_process_of_the_cluster_says_where_it_runs(unpacked: Path) -> None:
    agent = kubectl(
        unpacked, "tessera", "agent", "--node-name", "n", "--simulate", "1xA30", "--kubeconfig", "/dev/null"
    )
    assert agent.returncode == 1
    assert "Traceback" not in agent.stderr


def test_kubectl_completes_from_the_archives_program(unpacked: Path) -> None:
    assert kubectl(unpacked, "__complete", "tessera", "config", "ch").stdout.splitlines()[-1] == ":4"


@pytest.mark.parametrize("platform", PLUGINS, ids=str)
def test_an_archive_has_the_compiled_modules_of_its_platform_for_each_python(
    platform: Platform, tmp_path: Path
) -> None:
    unpack(write_archive(tmp_path, platform, of_checkout(), CACHE), tmp_path / "bin")
    compiled = dict(modules(tmp_path / "bin" / PROGRAM))
    assert {machine for machines in compiled.values() for machine in machines} >= {MACHINES[str(platform)]}
    assert [name for name, machines in compiled.items() if MACHINES[str(platform)] not in machines] == []
    pythons = {f"cp{python.replace('.', '')}" for python in PYTHONS}
    assert {
        tag for name in compiled if "msgspec-" in name for tag in name.split("-") if tag.startswith("cp")
    } >= pythons


def modules(program: Path) -> Iterator[tuple[str, set[int]]]:
    """Each compiled module, and the machines that it is for."""
    with ZipFile(program) as archive:
        for name in archive.namelist():
            if name.endswith(".so"):
                yield name, machines_of(archive.read(name))


def machines_of(content: bytes) -> set[int]:
    if content[:4] == b"\x7fELF":
        return {struct.unpack_from("<H", content, 18)[0]}
    if content[:4] == b"\xca\xfe\xba\xbe":
        count = struct.unpack_from(">I", content, 4)[0]
        return {struct.unpack_from(">I", content, 8 + 20 * number)[0] for number in range(count)}
    assert content[:4] == b"\xcf\xfa\xed\xfe"
    return {struct.unpack_from("<I", content, 4)[0]}
