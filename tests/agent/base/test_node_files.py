"""State files outlive the process; a damaged file counts as empty and is preserved."""

import asyncio
import hashlib
import json
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tessera.agent.base.node_files import (
    BAD_FILES,
    STATE_FILE,
    STATE_VERSION,
    MarkerFiles,
    NewerStateFileError,
    StateFile,
    find_newer_file,
)
from tessera.agent.base.wake_ups import ChangeNotifier
from tessera.agent.health.fault import Fault
from tessera.agent.health.history import PastFault
from tessera.agent.health.history import StoredFaults as Marks
from tessera.agent.health.repairs import StoredReboots
from tessera.agent.inventory.device_state import DeviceScope, Reaction
from tessera.agent.inventory.gpu_inventory import CardOwner, CardShares
from tessera.agent.mig_config.events import InstancePlace
from tessera.agent.mig_config.executor import LayoutRecord as LayoutJournal
from tessera.agent.mps.state import DaemonId, DaemonRecord, MpsState
from tessera.agent.slices.events import SliceJournal
from tessera.agent.slices.slice_table import SliceJournalFile
from tessera.api.names import PodUid
from tessera.api.nodes.node_marks import DRIVER_CONTAINER_READY
from tessera.api.sharing.devices import SharingKind
from tessera.memory_limits.monitor import Shares

Value = dict[str, int]
NESTED = b'{"a":' * 100_000


def kept(path: Path) -> StateFile[Value]:
    return StateFile(path, Value)


def test_another_process_reads_the_last_saved_value(tmp_path: Path) -> None:
    path = tmp_path / "state" / "value.json"
    file = kept(path)
    assert file.load() is None
    file.save({"a": 1})
    file.save({"a": 2})
    assert kept(path).load() == {"a": 2}
    assert [each.name for each in path.parent.iterdir()] == ["value.json"]


def test_a_file_of_an_older_agent_is_read(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    path.write_bytes(b'{\n  "a": 1\n}\n')
    assert kept(path).load() == {"a": 1}


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"a": "text"}', b"[1]", b"\xff", b'{"a\xff": 1}', b'{"a": 1}x', NESTED, b" " * (STATE_FILE + 1)],
    ids=["empty", "cut", "type", "array", "byte", "no UTF-8", "more", "nested", "long"],
)
def test_a_file_that_does_not_read_is_named_and_set_aside(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "value.json"
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert StateFile(path, Any if content is NESTED else Value).load() is None
    assert f"{path} cannot be read and counts as empty, set aside as {path}.bad" in caplog.text
    assert (tmp_path / "value.json.bad").read_bytes() == content
    kept(path).save({"a": 1})
    assert kept(path).load() == {"a": 1}


def test_an_entry_that_is_no_file_is_set_aside(tmp_path: Path) -> None:
    makes: list[Callable[[Path], None]] = [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path)]
    for number, make in enumerate(makes):
        path = tmp_path / str(number) / "value.json"
        path.parent.mkdir()
        make(path)
        assert kept(path).load() is None
        assert sorted(each.name for each in path.parent.iterdir()) == ["value.json.bad"]
        kept(path).save({"a": 1})
        assert kept(path).load() == {"a": 1}


def test_the_first_damaged_files_and_the_newest_are_preserved(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    for number in range(10):
        path.write_bytes(b"damage %d" % number)
        assert kept(path).load() is None
    found = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    assert found == {
        "value.json.bad": b"damage 0",
        "value.json.bad.2": b"damage 1",
        "value.json.bad.3": b"damage 9",
    }
    assert len(found) == BAD_FILES


def test_a_file_that_cannot_be_set_aside_counts_as_empty_too(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    path.write_bytes(b"\xff")
    for name in ("value.json.bad", "value.json.bad.2", "value.json.bad.3"):
        (tmp_path / name / "in the way").mkdir(parents=True)
    assert kept(path).load() is None
    kept(path).save({"a": 1})
    assert kept(path).load() == {"a": 1}


def test_the_same_value_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    file = kept(path)
    file.save({"a": 1})
    path.unlink()
    file.save({"a": 1})
    assert not path.exists()
    file.save({"a": 2})
    assert path.exists()


def test_a_flushed_value_is_written_though_it_is_equal(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    file = kept(path)
    file.save({"a": 1})
    path.unlink()
    file.save({"a": 1}, flush=True)
    assert kept(path).load() == {"a": 1}


def test_a_process_that_is_killed_while_it_writes_leaves_the_old_value(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    kept(path).save({"a": 1})
    path.with_name("value.json.new").write_bytes(b'{"a"')
    assert kept(path).load() == {"a": 1}
    kept(path).save({"a": 3})
    assert kept(path).load() == {"a": 3}


def newer(path: Path) -> bytes:
    """Writes a file as an agent of the next version does."""
    data = b'{"a": 1, "moved": {"b": 2}}\n"version:%d"' % (STATE_VERSION + 1)
    content = data + b'\n"sha256:%s"\n' % hashlib.sha256(data).hexdigest().encode()
    path.write_bytes(content)
    return content


def test_every_file_names_the_version_of_its_format(tmp_path: Path) -> None:
    kept(tmp_path / "value.json").save({"a": 1})
    value, version, seal = (tmp_path / "value.json").read_text(encoding="ascii").splitlines()
    assert (json.loads(value), json.loads(version)) == ({"a": 1}, f"version:{STATE_VERSION}")
    assert json.loads(seal).startswith("sha256:")


def test_a_file_of_a_newer_agent_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "journal.json"
    content = newer(path)
    with pytest.raises(NewerStateFileError, match=r"journal\.json: version 2, .* up to 1: .*Install the newer version"):
        kept(path).load()
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"journal.json": content}


def test_a_folder_is_refused_for_one_newer_file_and_not_for_damaged_ones(tmp_path: Path) -> None:
    assert find_newer_file(tmp_path / "none") == ""
    (tmp_path / "a.json").write_bytes(b"damage")
    (tmp_path / "b.json").mkdir()
    (tmp_path / "c.json").write_bytes(b'1\n"version:99999999999999999999"\n')
    kept(tmp_path / "d.json").save({"a": 1})
    assert find_newer_file(tmp_path) == ""
    newer(tmp_path / "e.json")
    assert find_newer_file(tmp_path).startswith(f"state file {tmp_path}/e.json: version 2")


def test_a_version_that_was_changed_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    kept(path).save({"a": 1})
    path.write_bytes(path.read_bytes().replace(b"version:1", b"version:0"))
    assert kept(path).load() is None


PLACE = "GPU-5a6b:3g.20gb:4"
MARK = Fault(scope=DeviceScope("GPU-5a6b"), source="XID 48", reaction=Reaction.WITHHOLD, text="x", since=1.5, last=2.5)
PAST = PastFault(scope=DeviceScope("GPU-5a6b"), source="XID 48", falls=True, since=1.5, ended=2.5)
#: What each kept file of an agent holds: its type, and a value.
FILES: dict[str, tuple[Any, Any]] = {
    "journal.json": (SliceJournal, SliceJournal(owners={PLACE: PodUid("u1")}, bindings={PodUid("u1"): {PLACE: PLACE}})),
    "layout.json": (LayoutJournal, LayoutJournal(layout="all", managed={"GPU-5a6b": (InstancePlace("1g.5gb", 0),)})),
    "health.json": (Marks, Marks("boot-1", (MARK,), (PAST,))),
    "reboots.json": (StoredReboots, StoredReboots({"GPU-5a6b": "boot-1"})),
    "owners.json": (dict[str, CardOwner], {"GPU-5a6b": CardOwner.ON_DEMAND}),
    "card-shares.json": (dict[str, CardShares], {"GPU-5a6b": CardShares(SharingKind.MPS, 4)}),
    "resources.json": (dict[str, float | None], {"nvidia.com/gpu": 12.5, "nvidia.com/gpu.shared": None}),
    "given.json": (list[tuple[str, tuple[str, ...]]], [("nvidia.com/gpu", ("GPU-5a6b::0", "GPU-5a6b::1"))]),
    "shares.json": (Shares, {"GPU-5a6b": {"u1": 2}}),
}


@given(st.sampled_from(sorted(FILES)), st.data())
def test_a_damaged_file_gives_the_value_or_nothing(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    kind, value = FILES[name]
    path = tmp_path_factory.mktemp("state") / name
    StateFile(path, kind).save(value)
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    # Random damage may leave `{}` or `[]`, which reads as the empty value.
    assert StateFile(path, kind).load() in (value, None, kind())


@given(st.data())
def test_damaged_records_of_slices_and_daemons_are_empty(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("state")
    journal, daemons = folder / "journal.json", folder / "mps.json"
    SliceJournalFile(journal).save(FILES["journal.json"][1])
    MpsState(daemons).add_daemon("nvidia.com/gpu.shared", DaemonRecord(DaemonId("1-2"), ("GPU-5a6b",)))
    before = SliceJournalFile(journal).load(), dict(MpsState(daemons).daemons)
    for path in (journal, daemons):
        path.write_bytes(data.draw(damaged(path.read_bytes())))
    assert SliceJournalFile(journal).load() in (before[0], SliceJournal())
    assert MpsState(daemons).daemons in (before[1], {})


def damaged(content: bytes) -> st.SearchStrategy[bytes]:
    """Any bytes; the content cut, with bits turned over, with something put in between."""
    at = st.integers(0, len(content) - 1)
    return st.one_of(
        st.binary(max_size=200),
        at.map(lambda end: content[:end]),
        st.tuples(at, st.integers(0, 7)).map(
            lambda flip: content[: flip[0]] + bytes([content[flip[0]] ^ (1 << flip[1])]) + content[flip[0] + 1 :]
        ),
        st.tuples(at, st.binary(min_size=1, max_size=5)).map(
            lambda put: content[: put[0]] + put[1] + content[put[0] :]
        ),
    )


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
