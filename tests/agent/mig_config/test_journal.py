"""The journal keeps the facts that the hardware does not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera.agent.base.settings import DesiredLayout
from tessera.agent.mig_config.events import InstancePlace
from tessera.agent.mig_config.executor import LayoutJournal, LayoutRecord, digest_of
from tessera.api.mig_layouts import LayoutEntry

X = DesiredLayout(name="x")


def test_a_layout_is_identified_by_name_and_entries_whatever_the_reason() -> None:
    entries = (LayoutEntry(devices=None, mig_enabled=True, counts={"1g.5gb": 7}),)
    desired = DesiredLayout(name="x", entries=entries, reason="the label")
    others = [DesiredLayout(name="y", entries=entries), DesiredLayout(name="x"), DesiredLayout(name="x", entries=())]
    assert digest_of(desired) == digest_of(DesiredLayout(name="x", entries=entries, reason="the cluster's default"))
    assert digest_of(desired) not in set(map(digest_of, others))


def test_the_journal_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "new" / "layouts.json"
    for _ in range(2):
        LayoutJournal(path).begin(X, resumes=True)
    journal = LayoutJournal(path)
    journal.save_managed("GPU", [InstancePlace("2g.10gb", 4), InstancePlace("1g.5gb", 3)])
    journal.save_managed("EMPTY", [])
    journal.save_reboot("b")
    assert LayoutJournal(path).record == LayoutRecord(
        layout="x",
        digest=digest_of(X),
        attempts=2,
        rebooted_from="b",
        managed={"GPU": (InstancePlace("1g.5gb", 3), InstancePlace("2g.10gb", 4))},
    )


def test_the_file_of_an_agent_before_this_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "layouts.json"
    path.write_text('{"layout": "x", "digest": "d", "ours": {"GPU": [{"profile": "1g.5gb", "start": 3}]}}')
    assert LayoutJournal(path).record.managed == {"GPU": (InstancePlace("1g.5gb", 3),)}


def test_another_layout_begins_anew_and_keeps_the_managed_instances(tmp_path: Path) -> None:
    journal = LayoutJournal(tmp_path / "layouts.json")
    journal.begin(X, resumes=True)
    journal.save_managed("GPU", [InstancePlace("1g.5gb", 3)])
    journal.save_reboot("b")
    journal.begin(DesiredLayout(name="y"), resumes=False)
    assert (journal.record.attempts, journal.record.rebooted_from) == (1, "")
    assert journal.record.managed == {"GPU": (InstancePlace("1g.5gb", 3),)}


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"ours": 3}'])
def test_a_journal_that_cannot_be_read_is_worth_an_empty_one(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "layouts.json"
    if content is not None:
        path.write_bytes(content)
    assert LayoutJournal(path).record == LayoutRecord()
