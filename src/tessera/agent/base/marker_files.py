"""Marker files: how the parts of the driver stack tell each other on a node that they are ready.

Folder and names are those of NVIDIA's operator (:mod:`tessera.api.driver.node_status`), so its driver containers and
its validator are understood, and understand this agent. What a marker says is that it is there; its content is for
people.

A folder that is not there is one that nobody looks into: nothing is present in it, and nothing is written. It is not
made here, so that a node whose driver belongs to the host stays as it is.
"""

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import msgspec

from tessera.agent.base import folder_watch
from tessera.api.driver.node_status import DRIVER_CONTAINER_READY
from tessera.limits import MARKER_FILE

#: Which file a marker is, and since when: device, inode, time of the last write in ns.
MarkerId = tuple[int, int, int]
#: A line of a marker of ours: the driver container whose driver it is about. Shells source ``driver-ready``.
_ABOUT = re.compile(r"^TESSERA_DRIVER_CONTAINER=(\d+)-(\d+)-(\d+)$", re.MULTILINE)


class MarkerFile(msgspec.Struct, frozen=True):
    """A marker that is there.

    Attributes:
        identity: which file it is.
        about: the marker of the driver container that it is about; ``None`` if it does not say.
    """

    identity: MarkerId
    about: MarkerId | None = None

    def is_about(self, driver: MarkerId) -> bool:
        """Whether it is about a driver container's driver: as it says itself, else if it is not older."""
        return self.about == driver if self.about is not None else self.identity[-1] >= driver[-1]


class MarkerFiles:
    """The markers of a node.

    Args:
        folder: where they lie; it may come later. ``None`` where there are none and will be none.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def present(self, name: str) -> bool:
        """Whether a marker is there."""
        return self.identity(name) is not None

    def identity(self, name: str) -> MarkerId | None:
        """Which file a marker is; it differs when the marker was removed and written again. ``None`` if it is gone."""
        if self.folder is None:
            return None
        try:
            status = (self.folder / name).stat()
        except OSError:  # not there, or no folder to look into
            return None
        return status.st_dev, status.st_ino, status.st_mtime_ns

    def mark(self, name: str) -> MarkerFile | None:
        """A marker with what it is about; ``None`` if it is not there."""
        identity = self.identity(name)
        if identity is None or self.folder is None:
            return None
        try:
            with (self.folder / name).open(errors="replace") as file:
                found = _ABOUT.search(file.read(MARKER_FILE))
        except OSError:  # gone in between, or not for us to read
            found = None
        return MarkerFile(identity, None if found is None else (int(found[1]), int(found[2]), int(found[3])))

    def about_driver(self) -> str:
        """The line that makes a marker one about the driver container that is ready now; empty without one."""
        driver = self.identity(DRIVER_CONTAINER_READY)
        return "" if driver is None else f"TESSERA_DRIVER_CONTAINER={'-'.join(map(str, driver))}\n"

    def write(self, name: str, text: str = "") -> bool:
        """Writes a marker, whole or not at all; returns whether the folder is there to write it into.

        Raises:
            OSError: it cannot be written.
        """
        if self.folder is None:
            return False
        # A name of its own and a leading dot: nobody takes the unfinished file for a marker.
        draft = self.folder / f".{name}.{os.getpid()}"
        try:
            draft.write_text(text)
            draft.replace(self.folder / name)
        except FileNotFoundError:
            return False
        return True

    def remove(self, *names: str) -> None:
        """Removes markers, those that are there.

        Raises:
            OSError: one cannot be removed.
        """
        if self.folder is not None:
            for name in names:
                (self.folder / name).unlink(missing_ok=True)

    def changes(self) -> AsyncGenerator[None, None]:
        """Yields at once, and after each change in the folder, its coming and going included.

        Raises:
            OSError: nothing can be watched.
        """
        return _nothing() if self.folder is None else folder_watch.changes(self.folder)

    async def follow(self, notify: Callable[[], None]) -> None:
        """Calls ``notify`` at each change until cancelled.

        Raises:
            OSError: nothing can be watched.
        """
        async for _ in self.changes():
            notify()


async def _nothing() -> AsyncGenerator[None, None]:
    yield
    await asyncio.Event().wait()
