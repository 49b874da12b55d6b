"""Bytes of the API to typed objects, good and bad."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.instaslice import Instaslice
from tessera.kube.codec import BookmarkLine, ChangeLine, Codec, ErrorLine, LineSplitter, Undecodable
from tessera.kube.resources import Pod
from tessera.nesting import NESTING

CODEC = Codec(Pod)


def test_a_line_with_an_object_is_a_change() -> None:
    line = CODEC.decode_line(
        b'{"type":"MODIFIED","object":{"metadata":{"name":"a","managedFields":[{"manager":"x"}]}}}'
    )
    assert isinstance(line, ChangeLine)
    assert (line.type, line.object.metadata.name) == ("MODIFIED", "a")


@pytest.mark.parametrize("text", ['{"type":"BOOKMARK","object":%s}', '{"object":%s,"type":"BOOKMARK"}'])
def test_a_bookmark_is_one_in_any_order_of_fields(text: str) -> None:
    line = (text % '{"kind":"Pod","metadata":{"resourceVersion":"7"},"spec":{"containers":null}}').encode()
    assert CODEC.decode_line(line) == BookmarkLine("7")


def test_an_error_carries_the_status() -> None:
    line = CODEC.decode_line(
        b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}'
    )
    assert isinstance(line, ErrorLine)
    assert (line.status.code, line.status.reason) == (410, "Expired")


def test_an_object_that_breaks_its_type_is_poison_with_its_metadata_and_the_path_of_the_fault() -> None:
    line = CODEC.decode_line(b'{"type":"ADDED","object":{"metadata":{"name":"a"},"spec":{"nodeName":5}}}')
    assert isinstance(line, Undecodable)
    assert line.metadata is not None
    assert line.metadata.name == "a"
    assert line.error == "spec.nodeName is 5: Expected `str`, got `int`"


def test_poison_to_the_bone_has_no_metadata() -> None:
    line = CODEC.decode_line(b'{"type":"ADDED","object":{"metadata":5}}')
    assert isinstance(line, Undecodable)
    assert line.metadata is None


def test_an_unknown_type_of_event_is_skipped_like_poison() -> None:
    assert isinstance(CODEC.decode_line(b'{"type":"RENAMED","object":{"metadata":{"name":"a"}}}'), Undecodable)


def test_no_json_is_an_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        CODEC.decode_line(b"<html>")


def test_a_page_sets_its_bad_objects_apart() -> None:
    page = CODEC.decode_page(
        b'{"metadata":{"resourceVersion":"9","continue":"t"},"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"},"spec":1}]}'
    )
    assert [item.metadata.name for item in page.items] == ["a"]
    assert [bad.metadata.name for bad in page.undecodable if bad.metadata] == ["b"]
    assert (page.version, page.token) == ("9", "t")


def test_a_page_of_nothing_may_say_null() -> None:
    assert CODEC.decode_page(b'{"metadata":{"resourceVersion":"9"},"items":null}').items == []


@given(st.lists(st.binary(min_size=1, max_size=30).map(lambda raw: raw.replace(b"\n", b"-"))), st.integers(1, 20))
def test_lines_are_the_same_however_the_stream_is_cut(lines: list[bytes], size: int) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    cutter = LineSplitter()
    found = [line for start in range(0, len(stream), size) for line in cutter.feed(stream[start : start + size])]
    assert found == lines


DEEP = b'{"a":' * 5_000 + b"1" + b"}" * 5_000


@pytest.mark.parametrize("bad", [DEEP, b"[" * 5_000 + b"]" * 5_000, b'"\xff"'], ids=["objects", "arrays", "no UTF-8"])
@pytest.mark.parametrize("where", ["unknown", "known"])
def test_what_no_decoder_takes_spoils_one_object_at_most(bad: bytes, where: str) -> None:
    field = b'"note":' + bad if where == "unknown" else b'"spec":{"nodeName":' + bad + b"}"
    item = b'{"metadata":{"name":"a"},' + field + b"}"
    line = CODEC.decode_line(b'{"type":"ADDED","object":' + item + b"}")
    page = CODEC.decode_page(b'{"metadata":{"resourceVersion":"9"},"items":[{"metadata":{"name":"b"}},' + item + b"]}")
    whole = CODEC.decode_object(item) if where == "unknown" or bad == b'"\xff"' else None
    assert len([*page.items, *page.undecodable]) == 2
    if whole is not None:
        assert isinstance(line, ChangeLine)
        assert page.items[1] == line.object == whole
        return
    assert isinstance(line, Undecodable)
    assert line.error.startswith("spec.nodeName is ")
    assert [poison.metadata.name for poison in page.undecodable if poison.metadata] == ["a"]


def test_the_parts_of_an_untyped_object_that_lie_too_deep_say_so() -> None:
    found = Codec(dict).decode_object(b'{"metadata":{"name":"a","text":"}]{[\\"}"},"spec":' + DEEP + b',"last":[1]}')
    assert (found["metadata"], found["last"]) == ({"name": "a", "text": '}]{["}'}, [1])
    levels, spec = 1, found["spec"]
    while isinstance(spec, dict):
        levels, spec = levels + 1, spec["a"]
    assert (levels, spec) == (NESTING, "nested too deep, 128 levels are read")


def test_the_guilty_entry_of_a_map_is_named_with_its_value() -> None:
    codec = Codec(Instaslice)
    ref = {"namespace": "d", "name": "p", "uid": "u"}
    entries: dict[str, object] = {f"u{number}": {"profile": "p", "podRef": ref, "slices": []} for number in range(100)}
    slot = {"id": "0", "profile": "1g.5gb", "gpuUUID": "GPU-a", "start": 0, "size": 1}
    entries["u57"] = {"profile": "p", "podRef": ref, "slices": [slot, {**slot, "start": "three"}]}
    item = {"metadata": {"name": "n1"}, "spec": {"podAllocationRequests": entries}}
    (bad,) = codec.decode_page(msgspec.json.encode({"items": [item]})).undecodable
    for fact in ("spec.podAllocationRequests.u57.slices[1].start", 'is "three"', "Expected `int`, got `str`"):
        assert fact in bad.error
