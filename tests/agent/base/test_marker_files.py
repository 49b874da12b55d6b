"""Marker files, in a folder that comes, goes and comes back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from tessera.agent.base.change_notifier import ChangeNotifier
from tessera.agent.base.marker_files import MarkerFiles
from tessera.api.nodes.driver_status import DRIVER_CONTAINER_READY


async def told(changes: AsyncIterator[None]) -> None:
    """One change, which may be told of more than once."""
    async with asyncio.timeout(60):
        await anext(changes)


def test_a_marker_is_there_from_its_writing_to_its_removal(tmp_path: Path) -> None:
    markers = MarkerFiles(tmp_path)
    assert not markers.present("driver-ready")
    assert markers.write("driver-ready", "text\n")
    assert markers.present("driver-ready")
    assert [path.name for path in tmp_path.iterdir()] == ["driver-ready"]
    markers.remove("driver-ready", "plugin-ready")
    assert not markers.present("driver-ready")


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    for markers in (MarkerFiles(tmp_path / "none"), MarkerFiles(None)):
        assert not markers.write("driver-ready")
        assert not markers.present("driver-ready")
        assert markers.mark("driver-ready") is None
        assert markers.about_driver() == ""
        markers.remove("driver-ready")
    assert list(tmp_path.iterdir()) == []


def test_a_marker_that_was_written_again_is_another(tmp_path: Path) -> None:
    markers = MarkerFiles(tmp_path)
    markers.write(DRIVER_CONTAINER_READY)
    before = markers.identity(DRIVER_CONTAINER_READY)
    assert markers.identity(DRIVER_CONTAINER_READY) == before
    markers.write(DRIVER_CONTAINER_READY)
    assert markers.identity(DRIVER_CONTAINER_READY) != before


@pytest.mark.parametrize("text", ["", "garbage\n", "TESSERA_DRIVER_CONTAINER=1-2\n", "\xff" * 100_000])
def test_any_content_of_a_marker_can_be_read(tmp_path: Path, text: str) -> None:
    markers = MarkerFiles(tmp_path)
    (tmp_path / "cuda-ready").write_text(text, encoding="latin-1")
    mark = markers.mark("cuda-ready")
    assert mark is not None
    assert mark.about is None
    assert mark.is_about((0, 0, 0))
    assert not mark.is_about((0, 0, mark.identity[-1] + 1))


async def test_changes_are_reported_in_a_folder_that_comes_late_goes_and_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "nvidia" / "validations"
    markers = MarkerFiles(folder)
    async with aclosing(markers.changes()) as changes:
        await told(changes)
        for _ in range(2):
            folder.mkdir(parents=True)
            while not folder.exists():
                await told(changes)
            await told(changes)
            markers.write("driver-ready")
            await told(changes)
            markers.remove("driver-ready")
            await told(changes)
            folder.rmdir()
            (tmp_path / "run" / "nvidia").rmdir()
            (tmp_path / "run").rmdir()
            await told(changes)


async def test_no_change_of_a_late_folder_is_missed(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    markers = MarkerFiles(folder)
    async with asyncio.timeout(30), aclosing(markers.changes()) as changes:
        for number in range(20):
            maker = asyncio.get_running_loop().run_in_executor(None, _make, folder, f"m{number}")
            async for _ in changes:
                if markers.present(f"m{number}"):
                    break
            await maker
            markers.remove(f"m{number}")
            folder.rmdir()


def _make(folder: Path, name: str) -> None:
    folder.mkdir(parents=True)
    (folder / name).touch()


async def test_where_there_are_no_markers_nothing_is_followed(tmp_path: Path) -> None:
    changes = ChangeNotifier()
    task = asyncio.create_task(MarkerFiles(None).follow(changes))
    await asyncio.sleep(0)
    (tmp_path / "x").touch()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert changes.count == 1
