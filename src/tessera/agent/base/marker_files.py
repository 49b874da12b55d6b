"""Marker files: with them the parts of the driver stack on a node tell each other that they are ready.

Folder and names are those of NVIDIA's operator (:mod:`tessera.api.nodes.driver_status`), so this agent and the
operator's driver containers and validator understand each other. The existence of a marker is the message; its content
is for people.

A missing folder has no markers, and nothing is written into it. The agent does not make it, so that a node whose driver
belongs to the host stays as it is.
"""

import asyncio
import os
import re
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec

from tessera.agent.base.change_notifier import ChangeNotifier, Fact
from tessera.api.nodes.driver_status import DRIVER_CONTAINER_READY
from tessera.kubelet.inotify import watch_folder

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
