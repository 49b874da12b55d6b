"""A value on disk that outlives the process, for state that the agent cannot read anew after a restart.

Rules:

- Written by atomic rename, so the file has the old value or the new one. It is flushed to the disk only on request: the
  page cache survives a killed process, and little has to survive a crashed machine.
- The value is followed by its SHA-256 on a line of its own, so one wrong byte is noticed even if the text can still be
  parsed. A file without that line was written by an older agent, or by hand, and is accepted.
- A file that cannot be read, whatever the reason, never stops the agent. It is renamed to ``<name>.bad`` and counts as
  empty; the agent then starts from the hardware and the API server. At most
  :data:`~tessera.limits.processes.BAD_FILES` are preserved: the first ones, which show how the damage began, and the
  newest.
"""

import hashlib
import logging
import os
import stat
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from tessera.limits.processes import BAD_FILES, STATE_FILE

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Beginning of the line with the SHA-256: a JSON text, so that tools for JSON lines read the whole file.
_SEAL = b'"sha256:'


class StateFile(Generic[T]):
    """One value in one file; makes its folder when needed.

    Args:
        path: the file. One process at a time writes it.
        kind: type of the value; msgspec must be able to decode it.
    """

    def __init__(self, path: Path, kind: type[T]) -> None:
        self._path = path
        self._decoder = msgspec.json.Decoder(kind)
        self._saved: bytes | None = None

    def load(self) -> T | None:
        """The value last saved; ``None`` without a file. A damaged file is renamed and counts as none."""
        try:
            value = self._decoder.decode(_verify(_read(self._path)))
            self.check(value)
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError, OSError) as error:  # no UTF-8, no JSON, another type; nested; no file
            aside = set_aside(self._path)
            where = f"set aside as {aside}" if aside else "cannot be set aside"
            _log.warning("%s cannot be read and counts as empty, %s: %s", self._path, where, error)
            return None
        return value

    def check(self, value: T) -> None:
        """Checks rules that the type cannot express.

        Raises:
            ValueError: the value breaks a rule; the file then counts as damaged.
        """

    def save(self, value: T, *, flush: bool = False) -> None:
        """Puts the value in place of the last one; does nothing if they are equal.

        Args:
            value: the value to save.
            flush: true if it must survive a crash of the machine too; then it is written even if it is equal.

        Raises:
            OSError: the file cannot be written.
        """
        data = msgspec.json.encode(value)
        if data == self._saved and not flush:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_name(self._path.name + ".new")
        with fresh.open("wb") as file:
            file.write(data + _seal(data))
            if flush:
                file.flush()
                os.fsync(file.fileno())
        fresh.replace(self._path)
        self._saved = data


def set_aside(path: Path) -> Path | None:
    """Renames a file, or any other entry at its path, to ``<name>.bad``, ``.bad.2`` and so on.

    Returns:
        The new name; ``None`` if it cannot be renamed.
    """
    names = [path.with_name(f"{path.name}.bad" + (f".{n}" if n > 1 else "")) for n in range(1, BAD_FILES + 1)]
    aside = next((name for name in names if not os.path.lexists(name)), names[-1])
    if os.path.lexists(aside):
        _log.warning("%s is replaced by a newer one: %s of this name are preserved", aside, BAD_FILES)
    try:
        path.replace(aside)
    except OSError as error:
        _log.warning("%s cannot be renamed to %s: %s", path, aside, error)
        return None
    return aside


def _read(path: Path) -> bytes:
    """The whole file, up to the size limit; never waits for a pipe or a device in its place."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123 - a descriptor
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is not a regular file")
        content = file.read(STATE_FILE + 1)
    if len(content) > STATE_FILE:
        raise ValueError(f"the file is too long; a state file has {STATE_FILE}")
    return content


def _seal(data: bytes) -> bytes:
    return b'\n%s%s"\n' % (_SEAL, hashlib.sha256(data).hexdigest().encode("ascii"))


def _verify(content: bytes) -> bytes:
    """The value's text, without the line of its SHA-256.

    Raises:
        ValueError: the SHA-256 is that of another text.
    """
    data, _, rest = content.partition(b"\n")
    if not rest.startswith(_SEAL):
        return content
    if content != data + _seal(data):
        raise ValueError("the SHA-256 at its end is of another text: the file was changed or damaged")
    return data
