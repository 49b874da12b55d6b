"""Wakes up when files come and go in a folder.

Kubelet announces a restart only by a new ``kubelet.sock``. Polling would either cost wake-ups on every node of the
fleet or leave the node without devices for an interval, during which kubelet rejects pods permanently. The kernel
reports it at once. Neither asyncio nor the dependencies offer inotify, so this module makes two system calls through
the C library.

A wake-up only says that something changed: the caller compares the folder with its earlier state, which is also right
after an overflow of the kernel's queue. The removal of the folder itself is reported separately, since a new folder of
the same name, even of the same inode, is not watched then.

:func:`watch_folder` watches a folder that may not exist yet, may go, and may come back. Until the folder exists, the
watch is on the nearest existing folder above it.

inotify does not report a file that is written in place, nor a file system that is mounted over a folder. A writer whose
change would go unnoticed writes a file of a new name afterwards.
"""

import asyncio
import ctypes
import os
import struct
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path

_IN_MOVED_FROM, _IN_MOVED_TO, _IN_CREATE, _IN_DELETE, _IN_ONLYDIR = 0x40, 0x80, 0x100, 0x200, 0x01000000
_MASK = _IN_MOVED_FROM | _IN_MOVED_TO | _IN_CREATE | _IN_DELETE | _IN_ONLYDIR
_IN_IGNORED = 0x8000
_BUFFER = 64 * 1024
#: struct inotify_event: descriptor, mask, cookie, length of the name that follows.
_EVENT = struct.Struct("iIII")


class FolderWatch:
    """Changes of one folder, for any number of waiters over one inotify descriptor (a host has 128 for each user).

    Attributes:
        gone: the watched folder was removed; no more changes will be reported.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.gone = False
        self._descriptor: int | None = None
        self._waiters: list[asyncio.Event] = []

    @contextmanager
    def changes(self) -> Iterator[asyncio.Event]:
        """An event that is set at each change; the caller clears it.

        Raises:
            OSError: the folder does not exist, or the host's inotify instances are used up.
        """
        woken = asyncio.Event()
        if self._descriptor is None:
            self._descriptor, self.gone = self._open(), False
        self._waiters.append(woken)
        try:
            yield woken
        finally:
            self._waiters.remove(woken)
            if not self._waiters:
                self._close()

    def _open(self) -> int:
        descriptor = open_watch(self._folder)
        asyncio.get_running_loop().add_reader(descriptor, self._read_events, descriptor)
        return descriptor

    def _read_events(self, descriptor: int) -> None:
        try:
            events = os.read(descriptor, _BUFFER)
        except BlockingIOError:
            return
        self.gone = self.gone or any(mask & _IN_IGNORED for mask in _event_masks(events))
        for woken in self._waiters:
            woken.set()

    def _close(self) -> None:
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            # The kernel takes some 10 ms to end an inotify instance (seen on 6.x): not the loop's time.
            threading.Thread(target=os.close, args=(self._descriptor,), name="inotify-close").start()
            self._descriptor = None


def open_watch(folder: Path) -> int:
    """Opens a descriptor from which changes of the folder are read.

    Raises:
        OSError: the folder does not exist, or the host's inotify instances are used up.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        raise _os_error("inotify_init1", folder)
    if libc.inotify_add_watch(descriptor, os.fsencode(folder), ctypes.c_uint32(_MASK)) < 0:
        error = _os_error("inotify_add_watch", folder)
        os.close(descriptor)
        raise error
    return descriptor


def _os_error(call: str, folder: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}", os.fspath(folder))


def _event_masks(events: bytes) -> Iterator[int]:
    at = 0
    while at < len(events):
        _, mask, _, length = _EVENT.unpack_from(events, at)
        yield mask
        at += _EVENT.size + length


#: Identifies a folder: path, device, inode.
_FolderId = tuple[Path, int, int]


async def watch_folder(folder: Path) -> AsyncGenerator[None, None]:
    """Yields at once, and after each change in the folder or, while it does not exist, in the folder above it.

    The change itself is not reported; one yield may cover several changes. Close the generator if you leave it early
    (:func:`contextlib.aclosing`).

    Raises:
        OSError: nothing can be watched: the host's inotify instances are used up, or a folder is not readable.
    """
    while True:
        watched = _nearest_folder(folder)
        watch = FolderWatch(watched[0])
        try:
            with watch.changes() as woken:
                while not watch.gone and watched == _nearest_folder(folder):
                    yield
                    await woken.wait()
                    woken.clear()
        except FileNotFoundError:  # the folder went before it could be watched
            continue


def _nearest_folder(folder: Path) -> _FolderId:
    for path in (folder, *folder.parents):
        if path.is_dir():
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            return path, status.st_dev, status.st_ino
    raise FileNotFoundError(f"{folder}: nothing above it is a folder")
