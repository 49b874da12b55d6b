"""A value on disk that outlives the process: what is lost with a restart of the agent and cannot be read anew.

Written by atomic rename, so there is the old value or the new one. It is flushed to the platter only on request: the
page cache survives a killed process, and little has to survive a crashed machine.
"""

import logging
import os
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

_log = logging.getLogger(__name__)

T = TypeVar("T")


class KeptFile(Generic[T]):
    """One value in one file; makes its folder when needed.

    Args:
        path: the file. One process at a time writes it.
        kind: what it holds, a type that msgspec reads.
    """

    def __init__(self, path: Path, kind: type[T]) -> None:
        self._path = path
        self._decoder = msgspec.json.Decoder(kind)
        self._saved: bytes | None = None

    def load(self) -> T | None:
        """What was last saved; ``None`` if there is no readable file."""
        try:
            return self._decoder.decode(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, OSError) as error:
            _log.warning("%s is unreadable and counts as empty: %s", self._path, error)
            return None

    def save(self, value: T, *, flush: bool = False) -> None:
        """Puts the value in place of the last one; does nothing if they are equal.

        Args:
            value: what is to be kept.
            flush: it must survive the machine too; it is then written even if it is equal.

        Raises:
            OSError: the file cannot be written.
        """
        data = msgspec.json.encode(value)
        if data == self._saved and not flush:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_name(self._path.name + ".new")
        with fresh.open("wb") as file:
            file.write(data)
            if flush:
                file.flush()
                os.fsync(file.fileno())
        fresh.replace(self._path)
        self._saved = data
