"""Sets up ``.venv``: a virtual environment with the pinned libraries, and with this checkout's packages and commands.

The Makefile's targets run it (``make demo``, ``make check``); without make, run ``scripts/set-up`` and then
``.venv/bin/tessera demo``. It keeps these rules:

- It says at once what it does, how long it takes and how much it downloads, and shows each step.
- One process at a time sets up; others wait for it and then have nothing to do.
- What was interrupted, or moved to another folder, is begun anew: a half-installed library looks installed to pip.
- It is done when the marks ``.run`` and ``.dev`` have the checkout's path and are newer than what they are made from.
"""

import argparse
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
#: What pip makes; tools and downloads beside it stay when a set-up begins anew.
_MADE = ("bin", "include", "lib", "lib64", "share", "pyvenv.cfg")
#: Stage -> its pins, and what users are told of it; the sizes are those of the wheels for CPython 3.11 on linux/amd64.
STAGES = {
    "run": ("requirements/run.txt", "the libraries of Tessera (21 MB)"),
    "dev": ("requirements/dev.txt", "the tools of developers (190 MB)"),
}
#: What a stage is made from, beside its pins.
_SOURCES = ("pyproject.toml", "packaging/tessera-lab/pyproject.toml", "scripts/link.py", "scripts/set_up.py")

#: Clears the line on a terminal.
_CLEAR = "\r\x1b[K"


def main() -> int:
    """Sets up the stages that are named, ``run`` if none is.

    Returns:
        The exit code: 0, 1 if a step failed, 130 if it was interrupted.
    """
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("stage", nargs="?", choices=STAGES, default="run", help="default: run")
    chosen = parser.parse_args().stage
    if sys.version_info < (3, 11):
        print(f"set-up: Python 3.11 or newer is needed, this is {sys.version.split()[0]}", file=sys.stderr)
        return 1
    try:
        with _lock():
            for stage in list(STAGES)[: list(STAGES).index(chosen) + 1]:
                if not _is_done(stage):
                    _set_up(stage)
                os.utime(VENV / f".{stage}")  # for make, which compares times
    except KeyboardInterrupt:
        print("\nset-up: interrupted; run the same command again, it begins anew", file=sys.stderr)
        return 130
    except subprocess.CalledProcessError as error:
        print(f"set-up: failed in: {' '.join(map(str, error.cmd))}", *_advice(error), sep="\n", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"set-up: {error}", file=sys.stderr)
        return 1
    return 0


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    VENV.mkdir(exist_ok=True)
    with (VENV / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another process sets up .venv just now; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_done(stage: str) -> bool:
    mark = VENV / f".{stage}"
    if not mark.is_file() or (VENV / ".begun").exists() or not _is_here() or not _runs():
        return False
    return all((ROOT / name).stat().st_mtime <= mark.stat().st_mtime for name in (STAGES[stage][0], *_SOURCES))


def _set_up(stage: str) -> None:
    begun = VENV / ".begun"
    pins, what = STAGES[stage]
    if begun.exists() or not _runs() or not _is_here():
        _remove()
    if (VENV / f".{stage}").exists():
        _say(f"bringing .venv up to date: {what}")
    else:
        _say(f"setting up .venv with Python {sys.version.split()[0]}, once; it downloads {what}, which takes minutes")
    begun.touch()
    if not _runs():
        with _step("virtual environment"):
            _make_environment()
    with _step(what):
        _install(pins)
    with _step("commands tessera and kubectl-tessera"):
        subprocess.run([VENV / "bin/python", ROOT / "scripts/link.py"], check=True)
    if stage == "run":
        with _step("compiling, so that the first start is quick"):
            subprocess.run([VENV / "bin/python", "-m", "compileall", "-q", "-j", "0", ROOT / "src"], check=False)
    (VENV / f".{stage}").write_text(f"{ROOT}\n")
    begun.unlink()


def _remove() -> None:
    for name in _MADE:
        path = VENV / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for stage in STAGES:
        (VENV / f".{stage}").unlink(missing_ok=True)


def _runs() -> bool:
    """Whether the environment has a Python that runs, and pip."""
    python = VENV / "bin/python"
    if not python.exists():
        return False
    return subprocess.run([python, "-c", "import pip"], check=False, capture_output=True).returncode == 0


def _is_here() -> bool:
    """Whether the environment was made for this checkout's place; its scripts have whole paths."""
    marks = [VENV / f".{stage}" for stage in STAGES]
    return {mark.read_text().strip() for mark in marks if mark.is_file()} <= {"", str(ROOT)}


def _make_environment() -> None:
    package = f"python3.{sys.version_info[1]}-venv"
    try:
        venv.create(VENV, with_pip=True)
    except (subprocess.CalledProcessError, SystemExit):
        apt = shutil.which("apt-get")
        if apt is None or os.geteuid() != 0:
            raise OSError(
                f"{sys.executable} cannot make an environment: install Debian's {package}, or name another Python, "
                "such as PYTHON=/usr/bin/python3.12"
            ) from None
        subprocess.run([apt, "update", "-q"], check=True)
        subprocess.run([apt, "install", "-y", "-q", package], check=True)
        venv.create(VENV, with_pip=True)


def _install(pins: str) -> None:
    """Installs pinned libraries; on a terminal a line shows which one."""
    command = [VENV / "bin/python", "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    command += ["--require-hashes", "-r", ROOT / pins]
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        for line in pip.stdout or ():
            lines.append(line)
            words = line.split()
            if words and words[0] in ("Collecting", "Downloading", "Installing") and sys.stdout.isatty():
                print(f"{_CLEAR}  … {' '.join(words[:2])[:70]}", end="", flush=True)
    if pip.returncode:
        raise subprocess.CalledProcessError(pip.returncode, command, output="".join(lines[-8:]))


def _advice(error: subprocess.CalledProcessError) -> list[str]:
    said = str(error.output or "").strip()
    if "hash" in said.lower():
        return [said]
    return [said, "set-up: without a network the libraries cannot be downloaded; run the same command again with one"]


@contextlib.contextmanager
def _step(text: str) -> Iterator[None]:
    started = time.monotonic()
    print(f"  … {text}", end="" if sys.stdout.isatty() else "\n", flush=True)
    yield
    print(f"{_CLEAR if sys.stdout.isatty() else ''}  ✓ {text}: {time.monotonic() - started:.0f} s", flush=True)


def _say(text: str) -> None:
    print(f"Tessera: {text}", flush=True)


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # a terminal of ASCII alone
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
