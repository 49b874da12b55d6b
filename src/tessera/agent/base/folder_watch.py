"""Watches a folder that may not exist yet, may go, and may come back.

Until the folder exists, the watch is on the nearest existing folder above it. There is no polling: inotify reports when
a name comes or goes, and when the watched folder itself is removed.

inotify does not report a file that is written in place, nor a file system that is mounted over a folder. A writer whose
change would go unnoticed writes a file of a new name afterwards.
"""

from collections.abc import AsyncGenerator
from pathlib import Path

from tessera.kubelet.inotify import FolderWatch

#: Identifies a folder: path, device, inode.
_FolderId = tuple[Path, int, int]


async def changes(folder: Path) -> AsyncGenerator[None, None]:
    """Yields at once, and after each change in the folder or, while it does not exist, in the folder above it.

    The change itself is not reported, and one yield may stand for several. Close the generator if you leave it early
    (:func:`contextlib.aclosing`).

    Raises:
        OSError: nothing can be watched: the host's inotify instances are used up, or a folder is not readable.
    """
    while True:
        watched = _nearest(folder)
        watch = FolderWatch(watched[0])
        try:
            with watch.changes() as woken:
                while not watch.gone and watched == _nearest(folder):
                    yield
                    await woken.wait()
                    woken.clear()
        except FileNotFoundError:  # the folder went before it could be watched
            continue


def _nearest(folder: Path) -> _FolderId:
    for path in (folder, *folder.parents):
        if path.is_dir():
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            return path, status.st_dev, status.st_ino
    raise FileNotFoundError(f"{folder}: nothing above it is a folder")
