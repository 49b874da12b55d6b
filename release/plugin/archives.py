"""``kubectl tessera`` as one file that needs Python 3.11 or newer and nothing else, in an archive for each platform.

pex makes the file: it holds the pinned wheels of each version of Python, and a start script for ``sh`` finds a fitting
Python. The first run unpacks into pex's cache, into a folder named by the content and moved to its place when it is
complete, so that runs at the same time and other versions do not disturb each other; later runs start from there.

An archive has the file, the licence, and the program by which kubectl completes the plugin's arguments.
"""

import gzip
import io
import json
import os
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.tags import compatible_tags, cpython_tags

from release import wheels
from release.image.labels import Origin
from release.platforms import Platform
from release.programs import run

#: Versions of CPython for which an archive has wheels; the full number is any release, for the wheels' conditions.
PYTHONS: Mapping[str, str] = {"3.11": "3.11.2", "3.12": "3.12.0", "3.13": "3.13.0", "3.14": "3.14.0"}
#: Libraries of the agent, which runs from the image, and the loop of long-running processes: 7 MB for each Python.
WITHOUT = ("grpcio", "protobuf", "uvloop")
#: Names in an archive.
PROGRAM, LICENSE, COMPLETION = "kubectl-tessera", "LICENSE", "kubectl_complete-tessera"
_COMPLETION = f"""#!/bin/sh
# kubectl runs this program when you press the Tab key after "kubectl tessera".
_TESSERA_COMPLETE=kubectl_complete exec {PROGRAM} "$@"
"""


def archive_name(platform: Platform, origin: Origin) -> str:
    """The name of a platform's archive."""
    return f"kubectl-tessera-{origin.version}-{platform.os}-{platform.architecture}.tar.gz"


def write_archive(folder: Path, platform: Platform, origin: Origin, cache: Path) -> Path:
    """Writes a platform's archive; the same tree and pins make the same file.

    Args:
        folder: where it goes.
        platform: where it will run.
        origin: its version and time.
        cache: where downloaded wheels stay.

    Returns:
        The archive.
    """
    program = folder / f"{PROGRAM}-{platform.os}-{platform.architecture}"
    _write_program(program, platform, origin, cache.resolve() / "wheels" / str(platform))
    content = {
        PROGRAM: program.read_bytes(),
        COMPLETION: _COMPLETION.encode(),
        LICENSE: (wheels.ROOT / "LICENSE").read_bytes(),
    }
    archive = folder / archive_name(platform, origin)
    with archive.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=origin.seconds) as packed:
        _write_members(packed, content, origin.seconds)
    program.unlink()
    return archive


def _write_program(program: Path, platform: Platform, origin: Origin, cache: Path) -> None:
    for python in PYTHONS:
        wheels.download(platform, python, cache, without=WITHOUT)
    for old in cache.glob("tessera*.whl"):
        old.unlink()
    wheels.build(cache)
    excluded = (part for name in WITHOUT for part in ("--exclude", name))
    targets = (part for python in PYTHONS for part in ("--complete-platform", json.dumps(_target(platform, python))))
    command = (
        sys.executable,
        "-m",
        "pex",
        "tessera-gpu",
        "--pre-resolved-dists",
        str(cache),
        "--output-file",
        str(program),
    )
    options = ("--console-script", PROGRAM, "--sh-boot", "--venv", "--disable-cache", "--no-strip-pex-env")
    commit = ("--inject-env", f"TESSERA_COMMIT={origin.revision}")
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(origin.seconds)}
    run(*command, *options, *commit, *excluded, *targets, environment=environment)


def _target(platform: Platform, python: str) -> dict[str, Any]:
    """A Python on a platform as pex's --complete-platform describes it: its tags and the values of markers."""
    version = tuple(map(int, python.split(".")))
    tags = [
        *cpython_tags(version, platforms=platform.wheel_tags),
        *compatible_tags(version, f"cp{python.replace('.', '')}", platforms=platform.wheel_tags),
    ]
    darwin = platform.os == "darwin"
    machine = platform.wheel_tags[0].split("_", 3)[-1]
    return {
        "compatible_tags": list(dict.fromkeys(map(str, tags))),
        "marker_environment": {
            "implementation_name": "cpython",
            "implementation_version": PYTHONS[python],
            "os_name": "posix",
            "platform_machine": machine,
            "platform_python_implementation": "CPython",
            "platform_system": "Darwin" if darwin else "Linux",
            "python_full_version": PYTHONS[python],
            "python_version": python,
            "sys_platform": platform.os,
        },
    }


def _write_members(file: gzip.GzipFile, content: Mapping[str, bytes], seconds: int) -> None:
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in sorted(content.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(data), seconds, 0o644 if name == LICENSE else 0o755
            archive.addfile(member, io.BytesIO(data))
