"""Changes of a folder wake who waits for them."""

import asyncio
import threading
from pathlib import Path

import pytest

from tessera.kubelet.inotify import FolderWatch


async def woken(event: asyncio.Event) -> None:
    async with asyncio.timeout(60):
        await event.wait()
    event.clear()


async def test_coming_going_and_renaming_wake(tmp_path: Path) -> None:
    file, other = tmp_path / "kubelet.sock", tmp_path / "x"
    with FolderWatch(tmp_path).changes() as changed:
        for change in (file.touch, lambda: file.rename(other), other.unlink):
            change()
            await woken(changed)


def watches() -> int:
    """The inotify descriptors of this process, once those that were let go are closed.

    A descriptor is closed beside the loop, since that takes the kernel a while.
    """
    for thread in threading.enumerate():
        if thread.name == "inotify-close":
            thread.join()
    opened = Path("/proc/self/fd")
    return sum(each.is_symlink() and "inotify" in str(each.readlink()) for each in opened.iterdir())


async def test_all_who_wait_are_woken_over_one_descriptor(tmp_path: Path) -> None:
    watch = FolderWatch(tmp_path)
    before = watches()
    with watch.changes() as one, watch.changes() as two:
        assert watches() == before + 1
        (tmp_path / "a").touch()
        await woken(one)
        await woken(two)
    assert watches() == before
    with watch.changes() as again:
        (tmp_path / "a").unlink()
        await woken(again)


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(FileNotFoundError, match=r"inotify_add_watch: No such file.*nowhere"),
        FolderWatch(tmp_path / "nowhere").changes(),
    ):
        pass


async def test_a_folder_that_is_removed_is_gone_even_if_another_takes_its_place(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    watch = FolderWatch(folder)
    with watch.changes() as changed:
        (folder / "file").touch()
        await woken(changed)
        assert not watch.gone
        (folder / "file").unlink()
        folder.rmdir()
        folder.mkdir()
        await woken(changed)
        while not watch.gone:
            await woken(changed)
    with watch.changes() as changed:
        assert not watch.gone
        (folder / "file").touch()
        await woken(changed)
