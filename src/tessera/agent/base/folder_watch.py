"""Wakes at changes of a folder that may not be there yet, may go, and may come back.

The nearest folder above that is there is watched until the wanted one is. Nothing is looked at by the clock: inotify
tells when a name comes or goes, and tells it of the watched folder itself when that is removed.

What inotify cannot tell: a file that is written in place, and a file system that is mounted over a folder. Whoever has
such news writes a file of a new name afterwards.
"""

from collections.abc import AsyncGenerator
from pathlib import Path

from tessera.kubelet.inotify import FolderWatch

#: A folder by its path, and which one it is: device and inode.
_Spot = tuple[Path, int, int]


async def changes(folder: Path) -> AsyncGenerator[None, None]:
    """Yields at once, and after each change in the folder or, while it is not there, in what is above it.

    What happened is not told; several changes may be one. Close it when it is left early
    (:func:`contextlib.aclosing`).

    Raises:
        OSError: nothing can be watched: the host's inotify instances are used up, or a folder must not be read.
    """
    while True:
        spot = _nearest(folder)
        watch = FolderWatch(spot[0])
        try:
            with watch.changes() as woken:
                while not watch.gone and spot == _nearest(folder):
                    yield
                    await woken.wait()
                    woken.clear()
        except FileNotFoundError:  # it went before it could be watched
            continue


def _nearest(folder: Path) -> _Spot:
    for path in (folder, *folder.parents):
        if path.is_dir():
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            return path, status.st_dev, status.st_ino
    raise FileNotFoundError(f"{folder}: nothing above it is a folder")
