"""The feed: whoever follows it, at whatever pace, ends with the documents as they are."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tessera.dashboard.documents import FailureDocument
from tessera.dashboard.feed import FEED_CHANGES, Feed

STATES = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3), max_size=6)


class Reader:
    """A reader that keeps the documents, as the page does."""

    def __init__(self) -> None:
        self.version: int | None = None
        self.documents: dict[str, Any] = {}
        self.snapshots = 0

    def read(self, feed: Feed) -> None:
        update = feed.read(self.version)
        if update is None:
            return
        if update.event == "snapshot":
            self.documents = {}
            self.snapshots += 1
        for text in update.texts:
            change = json.loads(text)
            self.documents |= change["set"]
            for key in change["gone"]:
                del self.documents[key]
        self.version = update.version


def publish(feed: Feed, state: dict[str, int]) -> dict[str, Any]:
    feed.publish({key: FailureDocument(node=key, reason=str(value)) for key, value in state.items()})
    return {key: {"node": key, "reason": str(value)} for key, value in state.items()}


@given(st.lists(st.tuples(STATES, st.booleans(), st.booleans()), max_size=30))
def test_every_reader_ends_with_the_documents_as_they_are(steps: list[tuple[dict[str, int], bool, bool]]) -> None:
    feed, readers, wanted = Feed(), (Reader(), Reader()), {}
    for state, *reads in steps:
        wanted = publish(feed, state)
        for reader, reads_now in zip(readers, reads, strict=True):
            if reads_now:
                reader.read(feed)
                assert reader.documents == wanted
    for reader in readers:
        reader.read(feed)
        assert reader.documents == wanted
        assert feed.read(reader.version) is None or reader.version is None


def test_a_change_holds_only_what_changed() -> None:
    feed, reader = Feed(), Reader()
    publish(feed, {"a": 1, "b": 1})
    reader.read(feed)
    publish(feed, {"a": 1, "b": 2})
    update = feed.read(reader.version)
    assert update is not None
    assert [json.loads(text) for text in update.texts] == [{"set": {"b": {"node": "b", "reason": "2"}}, "gone": []}]


def test_equal_documents_are_no_change() -> None:
    feed = Feed()
    publish(feed, {"a": 1})
    publish(feed, {"a": 1})
    assert feed.version == 1


def test_a_reader_that_was_away_for_too_long_gets_a_snapshot() -> None:
    feed, reader = Feed(), Reader()
    publish(feed, {"a": 0})
    reader.read(feed)
    for number in range(FEED_CHANGES + 1):
        publish(feed, {"a": number + 1})
    reader.read(feed)
    assert reader.snapshots == 2
    assert reader.documents["a"]["reason"] == str(FEED_CHANGES + 1)
