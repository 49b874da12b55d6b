"""A support archive: files in a ``tar.gz``, bounded in size, with a manifest of what is in it and what is not.

The archive is made in memory and written at once, readable for its owner only. Times and owners in it say nothing about
the machine that made it.
"""

import gzip
import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tessera.limits import Limit
from tessera.text import one_line

ARCHIVE_SIZE = Limit(
    64 * 1024 * 1024,
    "bytes",
    "all files of a support archive together, before they are compressed",
    "text compresses to about a tenth, which still goes by mail",
)

#: Most bytes: one file of a support archive. The objects of 500 nodes have about as much; of a log the last part
#: counts.
ARCHIVE_FILE = 4 * 1024 * 1024

FOLDER = "tessera-support"
MANIFEST = "manifest.json"


class ArchivedFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A file in the archive.

    Attributes:
        path: below the archive's folder.
        what: its content.
        size: bytes.
        sha256: digest of the content.
        cut: bytes that were cut off; 0 if it is whole.
    """

    path: str
    what: str
    size: int
    sha256: str
    cut: int = 0


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is not in the archive, and why."""

    what: str
    why: str


class Archive:
    """Gathers files.

    Attributes:
        files: what is in it, in order.
        left_out: what is not.
    """

    def __init__(self) -> None:
        self.files: list[ArchivedFile] = []
        self.left_out: list[LeftOut] = []
        self._contents: list[bytes] = []
        self._size = 0

    def add_json(self, path: str, what: str, value: Any) -> None:
        """Adds a value as indented JSON."""
        self.add(path, what, msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")

    def add(self, path: str, what: str, content: bytes, *, from_end: bool = False) -> None:
        """Adds a file, cut at its bound; nothing of it if the archive is full.

        Args:
            path: below the archive's folder; other characters than those of names are replaced.
            what: its content, for the manifest.
            content: the bytes.
            from_end: keep the last part if the file is too long, as of a log.
        """
        room = min(ARCHIVE_FILE, ARCHIVE_SIZE - self._size)
        if content and room <= 0:
            self.omit(f"{what} ({path})", f"the archive is full: it holds {ARCHIVE_SIZE:,} bytes")
            return
        kept = content if len(content) <= room else content[-room:] if from_end else content[:room]
        self._size += len(kept)
        self._contents.append(kept)
        self.files.append(
            ArchivedFile(
                path=_safe(path),
                what=one_line(what, 300),
                size=len(kept),
                sha256=hashlib.sha256(kept).hexdigest(),
                cut=len(content) - len(kept),
            )
        )

    def omit(self, what: str, why: str) -> None:
        """Notes that something is not in the archive."""
        self.left_out.append(LeftOut(what=one_line(what, 300), why=one_line(why, 500)))

    def write(self, path: Path, **about: Any) -> int:
        """Writes the archive, readable for its owner only; returns its size.

        Args:
            path: an existing file is replaced.
            about: further entries of the manifest.

        Raises:
            OSError: the file cannot be written.
        """
        manifest = {**about, "files": self.files, "leftOut": self.left_out}
        packed = self._pack(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as stream:
            os.fchmod(stream.fileno(), 0o600)
            stream.write(packed)
        return len(packed)

    def _pack(self, manifest: bytes) -> bytes:
        packed = io.BytesIO()
        with (
            gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as compressed,
            tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for name, content in self._members(manifest):
                entry = tarfile.TarInfo(f"{FOLDER}/{name}")
                entry.size, entry.mode = len(content), 0o600
                tar.addfile(entry, io.BytesIO(content))
        return packed.getvalue()

    def _members(self, manifest: bytes) -> Iterator[tuple[str, bytes]]:
        yield MANIFEST, manifest
        for each, content in zip(self.files, self._contents, strict=True):
            yield each.path, content


def _safe(path: str) -> str:
    """A path that stays below its folder: names of objects have only these characters, others may have any."""
    clean = re.sub(r"[^A-Za-z0-9._/-]", "_", path)
    return "/".join(part for part in clean.split("/") if part.strip("."))
