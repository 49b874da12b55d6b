"""``make demo`` and the set-up in a fresh copy of the tree, on machines unlike the developers': run by ``make soak``.

A copy has the files that git would have. Each case sets up from nothing, so together they take some minutes.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]
#: Seconds for one command; a set-up with a cold cache downloads 21 MB.
TIMEOUT = 500
DONE = "the slice is gone, the card is whole again"
#: An account without rights, and a pip that may have its settings in variables.
NOBODY = 65534
KEPT_VARIABLES = ("PIP_", "SSL_", "LANG", "TERM")


@pytest.fixture
def top(tmp_path: Path) -> Iterator[Path]:
    """A folder that every account can read, with a short name; pytest's own are of one account."""
    folder = Path(f"/tmp/odd-{os.getpid()}-{time.monotonic_ns() % 10**6}")
    folder.mkdir(mode=0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def copy(folder: Path) -> Path:
    """A fresh copy of the tree, as a clone has it."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    (folder / "tests").mkdir(parents=True)  # the Makefile looks for tests there
    for name in filter(None, names.decode().split("\0")):
        if (ROOT / name).exists() and not name.startswith(("tests/", "docs/", "web/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def environment(home: Path, **more: str) -> dict[str, str]:
    home.mkdir(parents=True, exist_ok=True)
    kept = {key: value for key, value in os.environ.items() if key.startswith(KEPT_VARIABLES)}
    return {"PATH": os.environ["PATH"], **kept, "HOME": str(home), **more}


def run(folder: Path, *command: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT
    )


def succeeds(folder: Path, *command: str, env: Mapping[str, str], says: str = DONE) -> str:
    done = run(folder, *command, env=env)
    assert done.returncode == 0, done.stdout
    assert says in done.stdout
    return done.stdout


@pytest.mark.parametrize(
    "name",
    ["my work/tessera", 'it\'s $HOME, a "b"/größer', "/".join(["x" * 60] * 4)],
    ids=["a blank", "quotes, a dollar, not ASCII", "longer than a first line"],
)
def test_a_folder_of_any_name(top: Path, name: str) -> None:
    folder = copy(top / name)
    said = succeeds(folder, "make", "demo", env=environment(top / "home"))
    assert said.startswith("Tessera: setting up .venv with Python 3.")


def test_a_long_home_and_a_long_temporary_folder(top: Path) -> None:
    folder, long = copy(top / "tessera"), top / "home" / ("corp.example.com-" * 6)
    (long / "tmp").mkdir(parents=True)
    env = environment(long, TMPDIR=str(long / "tmp"))
    succeeds(folder, "make", "demo", env=env)
    succeeds(folder, "make", "demo", "ARGS=--keep", env=env, says="tessera lab down")
    succeeds(folder, ".venv/bin/tessera", "lab", "down", env=env, says="lab is down")


def test_two_at_once(top: Path) -> None:
    folder, env = copy(top / "tessera"), environment(top / "home")
    both = [
        subprocess.Popen(
            ["make", "demo"], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(2)
    ]
    said = [each.communicate(timeout=TIMEOUT)[0] for each in both]
    assert [each.returncode for each in both] == [0, 0], said
    assert sum("another process sets up .venv" in each for each in said) == 1


def interrupt(folder: Path, until: Callable[[], bool], env: Mapping[str, str]) -> tuple[int, str]:
    """Starts ``make demo``, and presses Ctrl-C, which all processes of a terminal get, once ``until`` is true."""
    command = ["env", "--default-signal=INT", "make", "demo"]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + TIMEOUT
    while not until() and process.poll() is None and time.monotonic() < deadline:
        os.sched_yield()
    os.killpg(process.pid, signal.SIGINT)
    return process.wait(timeout=TIMEOUT), process.communicate()[0]


@pytest.mark.parametrize(
    "moment",
    ["bin/python", "lib/python*/site-packages/pip/py.typed", "lib/python*/site-packages/grpc", ".run"],
    ids=["the environment", "pip", "a library", "the demo"],
)
def test_interrupted_it_says_so_and_goes_on_when_run_again(top: Path, moment: str) -> None:
    folder, env = copy(top / "tessera"), environment(top / "home")
    code, said = interrupt(folder, lambda: any((folder / ".venv").glob(moment)), env)
    assert code != 0
    assert "nterrupt" in said or said.endswith("Stop.\n")  # so make says it between two programs
    assert "Traceback" not in said
    succeeds(folder, "make", "demo", env=env)


def test_moved_to_another_folder_and_without_a_network(top: Path) -> None:
    before, env = copy(top / "before"), environment(top / "home")
    succeeds(before, "scripts/set-up", env=env, says="compiling")
    before.rename(top / "after")
    said = succeeds(top / "after", "make", "demo", env=env)
    assert said.startswith("Tessera: setting up .venv")
    alone = ["unshare", "-rn", "sh", "-c", "ip link set lo up && make demo"]
    if subprocess.run(["unshare", "-rn", "true"], check=False).returncode:
        alone = ["make", "demo"]  # this machine gives no network of its own; the set-up is still not entered
    assert "setting up" not in succeeds(top / "after", *alone, env=env)


def python(minor: int) -> str:
    """A Python 3 of this machine that runs, by its minor version."""
    folders = [Path(each) for each in os.environ["PATH"].split(":")] + list(Path.home().glob(".pyenv/versions/*/bin"))
    for path in (folder / f"python3.{minor}" for folder in folders):
        if path.exists() and subprocess.run([path, "--version"], capture_output=True).returncode == 0:
            return str(path.resolve())
    pytest.skip(f"this machine has no Python 3.{minor}")


@pytest.mark.parametrize("minor", range(9, 16))
def test_each_python_of_this_machine_works_or_is_refused_with_a_word(top: Path, minor: int) -> None:
    found = python(minor)
    folder, env = copy(top / "tessera"), environment(top / "home")
    if minor >= 11:
        assert "setting up .venv with Python 3." in succeeds(folder, "make", "demo", f"PYTHON={found}", env=env)
    else:
        done = run(folder, "make", "demo", f"PYTHON={found}", env=env)
        assert done.returncode != 0
        assert "set-up: Python 3.11 or newer is needed, this is 3." in done.stdout


def test_an_old_python3_in_path_is_passed_over(top: Path) -> None:
    (top / "bin").mkdir()
    (top / "bin" / "python3").write_text("#!/bin/sh\necho Python 3.9.1; exit 1\n")
    (top / "bin" / "python3").chmod(0o755)
    folder = copy(top / "tessera")
    succeeds(folder, "make", "demo", env=environment(top / "home", PATH=f"{top / 'bin'}:{os.environ['PATH']}"))


def test_a_machine_without_python_says_what_to_install(top: Path) -> None:
    (top / "bin").mkdir()
    for name in ("sh", "dirname", "head"):
        (top / "bin" / name).symlink_to(str(shutil.which(name)))
    scripts = top / "scripts"
    scripts.mkdir()
    text = (ROOT / "scripts" / "set-up").read_text()
    (scripts / "set-up").write_text(text.replace("/usr/bin/python3.11", "python3.none"))
    done = run(top, "sh", "scripts/set-up", env={"PATH": str(top / "bin")})
    assert done.returncode == 1
    assert "set-up: no Python 3.11 or newer is in PATH" in done.stdout
    assert "PYTHON=/usr/bin/python3.12" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_without_rights(top: Path) -> None:
    folder, env = copy(top / "tessera"), environment(top / "home", PATH="/usr/bin:/bin")
    for path in (top, *top.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    succeeds(folder, *become, "make", "demo", env=env)


@pytest.mark.parametrize("variables", [{"LC_ALL": "C", "TERM": "dumb"}, {"HOME": "none"}], ids=["ASCII", "no home"])
def test_a_bare_environment(top: Path, variables: dict[str, str]) -> None:
    folder = copy(top / "tessera")
    env = {**environment(top / "home"), "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", **variables}
    env["HOME"] = str(top / env["HOME"])  # an absolute path stays
    succeeds(folder, "make", "demo", env=env)


def test_no_make_and_no_checkout_in_use(top: Path) -> None:
    folder, env = copy(top / "my work"), environment(top / "home")
    subprocess.run([sys.executable, "-m", "venv", str(top / "own venv")], check=True)
    python: Sequence[str] = (str(top / "own venv" / "bin" / "python"), "-m")
    run(folder, *python, "pip", "install", "-q", "./", "./packaging/tessera-lab", env=env)
    succeeds(top, *python, "tessera", "demo", env=env)
    succeeds(folder, "sh", "-c", "scripts/set-up && .venv/bin/tessera demo", env=env)
