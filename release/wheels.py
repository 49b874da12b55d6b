"""The pinned libraries as wheels for a platform, and the wheel of Tessera itself."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from release.platforms import Platform
from release.programs import run

ROOT = Path(__file__).parents[1]
PINS = ROOT / "requirements" / "run.txt"
#: Pins that replace those of :data:`PINS` where a library's newer releases have no wheels.
_PINS_OF_PLATFORM = {"darwin/amd64": ROOT / "requirements" / "darwin-amd64.txt"}


def download(platform: Platform, python: str, folder: Path, *, without: Iterable[str] = ()) -> None:
    """Downloads the wheel of each pinned library that fits best; pip checks the hashes.

    Args:
        platform: where they will run.
        python: the version of CPython, such as ``3.11``.
        folder: where they go; wheels that are there already are not downloaded again.
        without: libraries that are not wanted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    own = _PINS_OF_PLATFORM.get(str(platform))
    replaced = {line.split("==")[0] for line in own.read_text(encoding="utf-8").splitlines()} if own else set()
    pins = folder / "pins.txt"
    pins.write_text("\n".join(_pins({*without, *replaced})), encoding="utf-8")
    for file in (pins, own):
        if file:
            options = ("--dest", str(folder), *_chosen(platform, python), "--requirement", str(file))
            if not _have("download", "--no-index", "--find-links", str(folder), *options):
                _pip("download", *options)
    pins.unlink()


def install(platform: Platform, python: str, folder: Path) -> None:
    """Unpacks the wheels of all pinned libraries into a folder, as pip does on the platform; compiles nothing."""
    _pip("install", "--target", str(folder), "--no-compile", *_chosen(platform, python), "--requirement", str(PINS))


def build(folder: Path) -> Path:
    """Builds the wheel of Tessera; the same tree makes the same file."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    run(*command, folder=ROOT)
    (wheel,) = folder.glob("tessera_gpu-*.whl")
    return wheel


def _chosen(platform: Platform, python: str) -> Iterator[str]:
    yield from (
        "--no-deps",
        "--require-hashes",
        "--only-binary",
        ":all:",
        "--implementation",
        "cp",
        "--python-version",
        python,
    )
    for tag in platform.wheel_tags:
        yield from ("--platform", tag)


def _pins(without: set[str]) -> Iterator[str]:
    """The lines of the pins, each with its hashes."""
    kept = True
    for line in PINS.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith((" ", "#")):
            kept = line.split("==")[0] not in without
        if kept:
            yield line


def _have(*arguments: str) -> bool:
    """Whether pip finds everything on this machine."""
    try:
        _pip(*arguments)
    except SystemExit:
        return False
    return True


def _pip(*arguments: str) -> None:
    run(sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)
