"""Lists the wheels that the image's Python installs, from a pylock.toml on standard input: platform, hash, file name.

``make lock`` writes the list to ``requirements/wheels.txt``; a test compares it with the pins.
"""

import sys
import tomllib
from collections.abc import Iterator
from typing import Any

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

#: CPython and glibc of the image (python:3.11-slim, Debian 12 or newer).
PYTHON, GLIBC = (3, 11), (2, 36)
#: Docker's name of a platform -> the machine in the tag of a wheel.
PLATFORMS = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}


def tags(machine: str) -> frozenset[Tag]:
    """The tags of wheels that the image's Python installs on a machine."""
    manylinux = [f"manylinux_{GLIBC[0]}_{minor}_{machine}" for minor in range(5, GLIBC[1] + 1)]
    platforms = [*manylinux, f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}"]
    return frozenset([*cpython_tags(PYTHON, platforms=platforms), *compatible_tags(PYTHON, "cp311", platforms)])


def lines(lock: dict[str, Any]) -> Iterator[str]:
    """A line for each platform and each wheel that fits it."""
    fitting = {platform: tags(machine) for platform, machine in PLATFORMS.items()}
    for package in lock["packages"]:
        for wheel in package.get("wheels", ()):
            name = wheel.get("name") or wheel["url"].rpartition("/")[2]
            for platform, known in fitting.items():
                if known & parse_wheel_filename(name)[3]:
                    yield f"{platform} {wheel['hashes']['sha256']} {name}"


if __name__ == "__main__":
    print("# Written by make lock: wheels of requirements/run.txt that CPython 3.11 on Debian installs.")
    print(*sorted(lines(tomllib.loads(sys.stdin.read()))), sep="\n")
