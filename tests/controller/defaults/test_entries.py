"""Entries that Tessera brings come and are renewed, and no edit of them is ever lost."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from tessera.controller.defaults import EntryChanges, plan_entries

OLD = {"slice-2": "two", "slice-4": "four"}
NEW = {"slice-2": "two, better", "slice-4": "four", "slice-8": "eight"}


class Stored:
    """A ConfigMap to which plans are applied."""

    def __init__(self, data: Mapping[str, str] | None = None, annotation: str | None = None) -> None:
        self.data = dict(data or {})
        self.annotation = annotation

    def install(self, wanted: Mapping[str, str]) -> EntryChanges | None:
        changes = plan_entries(self.data, self.annotation, wanted)
        if changes is not None:
            self.annotation = changes.digests
            for key, text in changes.data.items():
                if text is None:
                    del self.data[key]
                else:
                    self.data[key] = text
        return changes


def test_an_empty_one_is_filled_once() -> None:
    stored = Stored()
    stored.install(OLD)
    assert stored.data == OLD
    assert stored.install(OLD) is None


def test_a_new_version_renews_what_nobody_edited() -> None:
    stored = Stored()
    stored.install(OLD)
    stored.install(NEW)
    assert stored.data == NEW
    stored.install(OLD)
    assert stored.data == OLD


def test_an_edited_entry_stays_through_versions() -> None:
    stored = Stored()
    stored.install(OLD)
    stored.data["slice-2"] = "mine"
    stored.install(NEW)
    stored.install(OLD)
    assert stored.data == {**OLD, "slice-2": "mine"}
    stored.data["slice-2"] = "two"  # as it was written: the edit is taken back
    stored.install(NEW)
    assert stored.data == NEW


def test_a_removed_entry_stays_away() -> None:
    stored = Stored()
    stored.install(OLD)
    del stored.data["slice-2"]
    stored.install(NEW)
    assert stored.data == {"slice-4": "four", "slice-8": "eight"}


def test_an_additional_entry_is_left_alone_even_if_a_later_version_brings_its_name() -> None:
    stored = Stored()
    stored.install(OLD)
    stored.data["slice-8"] = "mine"
    stored.install(NEW)
    assert stored.data == {**NEW, "slice-8": "mine"}


def test_a_map_that_somebody_filled_before_gets_nothing() -> None:
    stored = Stored({"only": "profile"})
    assert stored.install(OLD) is None


def test_after_a_spoiled_annotation_all_entries_count_as_edited() -> None:
    for spoiled in ("{", "[]", '{"slice-2": 1}', "x" * 100_000, "\udc80"):
        stored = Stored({"slice-2": "two"}, spoiled)
        stored.install({"slice-2": "two, better"})
        assert stored.data == {"slice-2": "two"}


ENTRIES = st.dictionaries(st.sampled_from("abcd"), st.sampled_from(["1", "2", "3"]))
EDITS = st.dictionaries(st.sampled_from("abcd"), st.sampled_from([None, "mine", "yours"]))


@given(st.lists(st.tuples(ENTRIES, EDITS), max_size=5), st.one_of(st.none(), ENTRIES))
def test_whatever_happens_no_edit_is_lost_and_nothing_is_written_twice(
    history: list[tuple[dict[str, str], dict[str, str | None]]], before: dict[str, str] | None
) -> None:
    stored, edited = Stored(before), dict(before or {})
    for wanted, edits in history:
        stored.install(wanted)
        assert stored.install(wanted) is None
        assert {key: stored.data[key] for key in edited} == edited
        for key, text in edits.items():
            stored.data.pop(key, None)
            edited.pop(key, None)
            if text is not None:
                stored.data[key] = edited[key] = text
