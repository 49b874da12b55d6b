"""Files of the node by which the agent tells the next agent, and the parts of the driver stack, what holds.

A state file has a value that the agent cannot read anew after a restart:

- Written by atomic rename, so the file has the old value or the new one. It is flushed to the disk only on request: the
  page cache survives a killed process, and little has to survive a crashed machine.
- The value is followed by the version of the format and by the SHA-256 of both, each on a line of its own. So one wrong
  byte is noticed even if the text can still be parsed. A file without these lines was written by hand, and is accepted.
- A file of a newer version is never read, changed or set aside: it has facts that this agent does not understand, and
  that the newer agent needs again. The agent refuses to work with it (:func:`find_newer_file`).
- A file that cannot be read, whatever the reason, never stops the agent. It is renamed to ``<name>.bad`` and counts as
  empty; the agent then starts from the hardware and the API server. At most :data:`BAD_FILES` are preserved: the first
  ones, which show how the damage began, and the newest.

A marker file says by its existence that a part of the driver stack is ready; its content is for people. Folder and
names are those of NVIDIA's operator (:mod:`tessera.api.nodes.node_marks`), so this agent and the operator's driver
containers and validator understand each other. A missing folder has no markers, and nothing is written into it. The
agent does not make it, so that a node whose driver belongs to the host stays as it is.
"""

import asyncio
import hashlib
import logging
import os
import re
import stat
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from tessera.agent.base.wake_ups import ChangeNotifier, Fact
from tessera.api.nodes.node_marks import DRIVER_CONTAINER_READY
from tessera.kubelet.inotify import watch_folder
from tessera.text import UserError

_log = logging.getLogger(__name__)

#: Bytes of a file: the largest that an agent writes, with the devices of thousands of pods, has a tenth of it.
STATE_FILE = 4 * 1024 * 1024
#: Damaged files of one name that are preserved: copies must not fill a disk that damages every file.
BAD_FILES = 3

T = TypeVar("T")

#: Version of the format of all state files. It changes if an agent of the version before would misread one of them; a
#: field that such an agent may ignore changes nothing.
STATE_VERSION = 1
#: Beginnings of the lines after the value: JSON texts, so that tools for JSON lines read the whole file.
_VERSION = b'"version:'
_SEAL = b'"sha256:'


class NewerStateFileError(UserError):
    """A file was written by a newer agent; the text says which, and what to do."""


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
        """The value last saved; ``None`` without a file. A damaged file is renamed and counts as none.

        Raises:
            NewerStateFileError: a newer agent has written the file.
        """
        try:
            content = _read(self._path)
            if (version := _version(content)) > STATE_VERSION:
                raise NewerStateFileError(_newer_text(self._path, version))
            value = self._decoder.decode(_verify(content))
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
        data = b'%s\n%s%d"' % (msgspec.json.encode(value), _VERSION, STATE_VERSION)
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

    def save_if_possible(self, value: T, loss: str) -> bool:
        """As :meth:`save`, for a value without which the agent can work; returns false if it is not saved.

        Args:
            value: the value to save.
            loss: what a restart of the agent loses then, for the log: ``allocations are not kept``.
        """
        try:
            self.save(value)
        except OSError as error:
            _log.warning("%s over a restart of the agent: %s", loss, error)
            return False
        return True


def set_aside(path: Path) -> Path | None:
    """Renames a file, or any other entry at its path, to ``<name>.bad``, ``.bad.2`` and so on.

    Returns:
        The new name; ``None`` if it cannot be renamed.
    """
    names = [path.with_name(f"{path.name}.bad" + (f".{n}" if n > 1 else "")) for n in range(1, BAD_FILES + 1)]
    aside = next((name for name in names if not os.path.lexists(name)), names[-1])
    if os.path.lexists(aside):
        _log.warning("%s is replaced by a newer one: at most %d files of this name are preserved", aside, BAD_FILES)
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
        raise ValueError(f"the file is too long; a state file has at most {STATE_FILE:,} bytes")
    return content


def _seal(data: bytes) -> bytes:
    return b'\n%s%s"\n' % (_SEAL, hashlib.sha256(data).hexdigest().encode("ascii"))


def _verify(content: bytes) -> bytes:
    """The value's text, without the lines of version and SHA-256.

    Raises:
        ValueError: the SHA-256 is that of another text.
    """
    data, _, _ = content.rpartition(b"\n" + _SEAL)
    if not data:
        return content
    if content != data + _seal(data):
        raise ValueError("the SHA-256 at its end is of another text: the file was changed or damaged")
    return data.partition(b"\n" + _VERSION)[0]


def _version(content: bytes) -> int:
    """The version of a file's format; that of this agent if the file names none. Damaged files name any."""
    _, found, rest = content.partition(b"\n" + _VERSION)
    number = rest.partition(b'"')[0]
    return int(number) if found and number.isdigit() and len(number) < _DIGITS else STATE_VERSION


#: A version has fewer digits.
_DIGITS = 9


def find_newer_file(folder: Path) -> str:
    """Why this agent refuses the state files of a folder, and what to do; empty if it knows the versions of all."""
    for path in sorted(folder.glob("*.json")):
        try:
            version = _version(_read(path))
        except (OSError, ValueError):  # whoever loads it sets it aside
            continue
        if version > STATE_VERSION:
            return _newer_text(path, version)
    return ""


def _newer_text(path: Path, version: int) -> str:
    return (
        f"state file {path}: version {version}, and this agent knows versions up to {STATE_VERSION}: a newer agent"
        " wrote it. Install the newer version again; or drain the node and delete the file: the agent starts without it"
    )


#: Most characters: a marker file of a driver container; the rest is not read. NVIDIA's have a few lines; the folder
#: belongs to the host.
MARKER_FILE = 4_096

#: Identifies the file of a marker: device, inode, time of the last write in ns.
MarkerId = tuple[int, int, int]
#: A line in our markers: the driver container that the marker concerns. Shells source ``driver-ready``.
_ABOUT = re.compile(r"^TESSERA_DRIVER_CONTAINER=(\d+)-(\d+)-(\d+)$", re.MULTILINE)


class MarkerFile(msgspec.Struct, frozen=True):
    """A marker that exists.

    Attributes:
        identity: its file.
        about: the marker of the driver container that this marker concerns; ``None`` if it names none.
    """

    identity: MarkerId
    about: MarkerId | None = None

    def is_about(self, driver: MarkerId) -> bool:
        """True if the marker concerns a driver container: it names that one, or it names none and is not older."""
        return self.about == driver if self.about is not None else self.identity[-1] >= driver[-1]


class MarkerFiles:
    """The markers of a node.

    Args:
        folder: their folder, which may appear later; ``None`` if there will never be markers.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def present(self, name: str) -> bool:
        """True if a marker exists."""
        return self.identity(name) is not None

    def identity(self, name: str) -> MarkerId | None:
        """Identifies a marker; another value after it was removed and written again. ``None`` if it does not exist."""
        if self.folder is None:
            return None
        try:
            status = (self.folder / name).stat()
        except OSError:  # no such file or folder
            return None
        return status.st_dev, status.st_ino, status.st_mtime_ns

    def mark(self, name: str) -> MarkerFile | None:
        """A marker and the driver that it concerns; ``None`` if it does not exist."""
        identity = self.identity(name)
        if identity is None or self.folder is None:
            return None
        try:
            with (self.folder / name).open(errors="replace") as file:
                found = _ABOUT.search(file.read(MARKER_FILE))
        except OSError:  # removed in between, or not readable
            found = None
        return MarkerFile(identity, None if found is None else (int(found[1]), int(found[2]), int(found[3])))

    def about_driver(self) -> str:
        """The line for a marker that concerns the driver container that is ready now; empty without one."""
        driver = self.identity(DRIVER_CONTAINER_READY)
        return "" if driver is None else f"TESSERA_DRIVER_CONTAINER={'-'.join(map(str, driver))}\n"

    def write(self, name: str, text: str = "") -> bool:
        """Writes a marker, whole or not at all; returns true if its folder exists.

        Raises:
            OSError: the marker cannot be written.
        """
        if self.folder is None:
            return False
        # A name of its own with a leading dot: no program takes the unfinished file for a marker.
        draft = self.folder / f".{name}.{os.getpid()}"
        try:
            draft.write_text(text)
            draft.replace(self.folder / name)
        except FileNotFoundError:
            return False
        return True

    def remove(self, *names: str) -> None:
        """Removes the markers of these names that exist.

        Raises:
            OSError: a marker cannot be removed.
        """
        if self.folder is not None:
            for name in names:
                (self.folder / name).unlink(missing_ok=True)

    def changes(self) -> AsyncGenerator[None, None]:
        """Yields at once, and after each change in the folder, its coming and going included.

        Raises:
            OSError: nothing can be watched.
        """
        return _never_changes() if self.folder is None else watch_folder(self.folder)

    async def follow(self, changes: ChangeNotifier) -> None:
        """Notifies ``changes`` at each change until cancelled.

        Raises:
            OSError: nothing can be watched.
        """
        async for _ in self.changes():
            changes.notify(Fact.DRIVER)


async def _never_changes() -> AsyncGenerator[None, None]:
    yield
    await asyncio.Event().wait()
