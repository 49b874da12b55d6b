"""What the image says of itself: labels of OCI, of Red Hat's check of images, and of OpenShift's console."""

import os
from dataclasses import dataclass
from datetime import UTC, datetime

from release.programs import run
from release.wheels import ROOT

#: The Containerfile has the same, with its arguments in place of what changes; ``tests/release`` compares them.
SUMMARY = "GPU service for Kubernetes: whole NVIDIA cards, shares, and MIG slices on demand"
DESCRIPTION = "Tessera's controller, webhook and node agent. Which of them runs is the first argument."
_OLDEST, _NEWEST = 315_532_800, 2**32


@dataclass(frozen=True)
class Origin:
    """Where an image comes from.

    Attributes:
        version: Tessera's.
        revision: the commit.
        seconds: Unix time of every file and of the image: the commit's, or SOURCE_DATE_EPOCH. So each build of it is
            the same.
        source: address of the repository; empty while there is no public one.
    """

    version: str
    revision: str
    seconds: int
    source: str = ""

    @property
    def created(self) -> str:
        """The time as RFC 3339."""
        return datetime.fromtimestamp(self.seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def labels(self) -> dict[str, str]:
        """All labels of the image, by name."""
        oci = {
            "created": self.created,
            "description": DESCRIPTION,
            "licenses": "Apache-2.0",
            "revision": self.revision,
            "source": self.source,
            "title": "tessera",
            "vendor": "Tessera",
            "version": self.version,
        }
        red_hat = {
            "name": "tessera",
            "vendor": "Tessera",
            "maintainer": "Tessera",
            "version": self.version,
            "release": "1",
            "summary": SUMMARY,
            "description": DESCRIPTION,
            "io.k8s.display-name": "Tessera",
            "io.k8s.description": DESCRIPTION,
        }
        return {f"org.opencontainers.image.{key}": value for key, value in oci.items() if value} | red_hat


def of_checkout(*, source: str = "") -> Origin:
    """The origin of what is built from this checkout now.

    The time is the variable SOURCE_DATE_EPOCH if it is set (reproducible-builds.org), else the commit's.

    Raises:
        SystemExit: the variable is no Unix time, or this is no checkout.
    """
    version = (ROOT / "src/tessera/__init__.py").read_text(encoding="utf-8").split('__version__ = "')[1].split('"')[0]
    stated = os.environ.get("SOURCE_DATE_EPOCH")
    seconds = int(_git("log", "-1", "--format=%ct")) if stated is None else _seconds(stated)
    return Origin(version, _git("rev-parse", "HEAD"), seconds, source)


def _seconds(stated: str) -> int:
    """A time that archives can have: those of zip begin with 1980, those of gzip end in 2106."""
    if not (stated.isascii() and stated.isdigit()) or not _OLDEST <= int(stated) < _NEWEST:
        raise SystemExit(
            f"error: SOURCE_DATE_EPOCH is {stated!r}; it must be whole seconds since 1970, from {_OLDEST} (1980) to "
            f"{_NEWEST - 1} (2106). Unset it, and the commit's time is used"
        )
    return int(stated)


def _git(*arguments: str) -> str:
    return run("git", *arguments, folder=ROOT).strip()
