"""The journal outlives the agent's process."""

import logging
from pathlib import Path

import pytest

from tessera.agent.slices.events import SliceJournal
from tessera.agent.slices.slice_table import SliceJournalFile
from tessera.api.names import PodUid

JOURNAL = SliceJournal(
    owners={"GPU-a:3g.20gb:0": PodUid("u1")},
    released=(PodUid("u2"),),
    bindings={PodUid("u1"): {"GPU-a:3g.20gb:4": "GPU-a:3g.20gb:0"}},
)


def test_the_next_process_loads_the_saved_journal(tmp_path: Path) -> None:
    SliceJournalFile(tmp_path / "state" / "journal.json").save(JOURNAL)
    assert SliceJournalFile(tmp_path / "state" / "journal.json").load() == JOURNAL


def test_without_a_file_the_journal_is_empty(tmp_path: Path) -> None:
    assert SliceJournalFile(tmp_path / "journal.json").load() == SliceJournal()


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b'{"owners": {"GPU-',
        b'{"owners": 3}',
        b"\xff\xfe",
        b'{"owners": {"GPU-a": "u1"}}',
        b'{"bindings": {"u1": {"GPU-a:3g.20gb:4": "GPU-a:3g.20gb:x"}}}',
    ],
)
def test_a_damaged_file_counts_as_empty_and_is_logged(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "journal.json").write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        assert SliceJournalFile(tmp_path / "journal.json").load() == SliceJournal()
    assert "journal.json cannot be read" in caplog.text


def test_a_file_that_cannot_be_read_counts_as_empty_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "journal.json").mkdir()
    with caplog.at_level(logging.WARNING):
        assert SliceJournalFile(tmp_path / "journal.json").load() == SliceJournal()
    assert "journal.json cannot be read" in caplog.text


def test_the_same_again_is_not_written_again(tmp_path: Path) -> None:
    file = SliceJournalFile(tmp_path / "journal.json")
    file.save(JOURNAL)
    (tmp_path / "journal.json").unlink()
    file.save(JOURNAL)
    assert not (tmp_path / "journal.json").exists()


def test_a_journal_that_cannot_be_written_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        SliceJournalFile(tmp_path / "file" / "journal.json").save(JOURNAL)
