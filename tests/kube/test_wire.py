"""Bytes of the API to typed objects, good and bad."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.kube.resources import Pod
from tessera.kube.wire import Bookmark, Change, Codec, Failure, Lines, Poison

CODEC = Codec(Pod)


def test_a_line_with_an_object_is_a_change() -> None:
    line = CODEC.line(b'{"type":"MODIFIED","object":{"metadata":{"name":"a","managedFields":[{"manager":"x"}]}}}')
    assert isinstance(line, Change)
    assert (line.type, line.object.metadata.name) == ("MODIFIED", "a")


@pytest.mark.parametrize("text", ['{"type":"BOOKMARK","object":%s}', '{"object":%s,"type":"BOOKMARK"}'])
def test_a_bookmark_is_one_in_any_order_of_fields(text: str) -> None:
    line = (text % '{"kind":"Pod","metadata":{"resourceVersion":"7"},"spec":{"containers":null}}').encode()
    assert CODEC.line(line) == Bookmark("7")


def test_an_error_carries_the_status() -> None:
    line = CODEC.line(b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}')
    assert isinstance(line, Failure)
    assert (line.status.code, line.status.reason) == (410, "Expired")


def test_an_object_that_breaks_its_type_is_poison_with_its_metadata_and_the_path_of_the_fault() -> None:
    line = CODEC.line(b'{"type":"ADDED","object":{"metadata":{"name":"a"},"spec":{"nodeName":5}}}')
    assert isinstance(line, Poison)
    assert line.metadata is not None
    assert line.metadata.name == "a"
    assert "$.spec.nodeName" in line.error


def test_poison_to_the_bone_has_no_metadata() -> None:
    line = CODEC.line(b'{"type":"ADDED","object":{"metadata":5}}')
    assert isinstance(line, Poison)
    assert line.metadata is None


def test_an_unknown_type_of_event_is_skipped_like_poison() -> None:
    assert isinstance(CODEC.line(b'{"type":"RENAMED","object":{"metadata":{"name":"a"}}}'), Poison)


def test_no_json_is_an_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        CODEC.line(b"<html>")


def test_a_page_sets_its_bad_objects_apart() -> None:
    page = CODEC.page(
        b'{"metadata":{"resourceVersion":"9","continue":"t"},"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"},"spec":1}]}'
    )
    assert [item.metadata.name for item in page.items] == ["a"]
    assert [bad.metadata.name for bad in page.poison if bad.metadata] == ["b"]
    assert (page.version, page.token) == ("9", "t")


def test_a_page_of_nothing_may_say_null() -> None:
    assert CODEC.page(b'{"metadata":{"resourceVersion":"9"},"items":null}').items == []


@given(st.lists(st.binary(min_size=1, max_size=30).map(lambda raw: raw.replace(b"\n", b"-"))), st.integers(1, 20))
def test_lines_are_the_same_however_the_stream_is_cut(lines: list[bytes], size: int) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    cutter = Lines()
    found = [line for start in range(0, len(stream), size) for line in cutter.feed(stream[start : start + size])]
    assert found == lines
