"""Bytes of the API to typed objects, good and bad."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.instaslice import Instaslice
from tessera.api.slice_requests import find_excess
from tessera.dra.claims import ResourceClaim
from tessera.kube.codec import BookmarkLine, ChangeLine, Codec, ErrorLine, LineSplitter, Undecodable
from tessera.kube.resources import Pod
from tessera.limits import POD_QUANTITIES
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


MANY = 40_000
_LIST = [{"name": f"n{n}"} for n in range(MANY)]
_TEXTS = [f"v{n}" for n in range(MANY)]
_MAP = dict.fromkeys(_TEXTS, "1")
_TERM = {"matchExpressions": [{"key": "a", "operator": "In", "values": _TEXTS}]}
_SELECTOR = {"matchLabels": _MAP, "matchExpressions": [{"key": "a", "operator": "In", "values": _TEXTS}]}
_NEAR = {"labelSelector": _SELECTOR, "topologyKey": "a", "namespaces": _TEXTS}
#: Each list and map of a pod that its author makes as long as it likes; the API server's defaults make containers long.
LONG: dict[str, dict[str, Any]] = {
    "labels": {"metadata": {"labels": _MAP}},
    "annotations": {"metadata": {"annotations": _MAP}},
    "finalizers": {"metadata": {"finalizers": _TEXTS}},
    "owners": {"metadata": {"ownerReferences": _LIST}},
    "node selector": {"spec": {"nodeSelector": _MAP}},
    "tolerations": {"spec": {"tolerations": [{"operator": "Exists"}] * MANY}},
    "gates": {"spec": {"schedulingGates": _LIST}},
    "claims": {"spec": {"resourceClaims": _LIST}},
    "secrets": {"spec": {"imagePullSecrets": _LIST}},
    "volumes": {"spec": {"volumes": _LIST}},
    "overhead": {"spec": {"overhead": _MAP}},
    "spread": {"spec": {"topologySpreadConstraints": [{"topologyKey": "a"}] * MANY}},
    "spread's labels": {"spec": {"topologySpreadConstraints": [{"labelSelector": _SELECTOR}]}},
    "env": {"spec": {"containers": [{"name": "c", "env": _LIST}]}},
    "args": {"spec": {"initContainers": [{"name": "c", "args": _TEXTS, "command": _TEXTS}]}},
    "ports": {"spec": {"containers": [{"name": "c", "ports": [{"containerPort": 1}] * MANY}]}},
    "requests": {"spec": {"containers": [{"name": "c", "resources": {"requests": _MAP, "limits": _MAP}}]}},
    **{
        f"{how} {what} {number}": {"spec": {"affinity": {what: {f"{how}DuringSchedulingIgnoredDuringExecution": rule}}}}
        for number, how, what, rule in [
            (1, "required", "nodeAffinity", {"nodeSelectorTerms": [_TERM]}),
            (2, "required", "nodeAffinity", {"nodeSelectorTerms": [{}] * MANY}),
            (1, "preferred", "nodeAffinity", [{"weight": 1, "preference": _TERM}]),
            (1, "required", "podAffinity", [_NEAR]),
            (1, "preferred", "podAntiAffinity", [{"weight": 1, "podAffinityTerm": _NEAR}]),
        ]
    },
    "conditions": {"status": {"conditions": [{"type": "a"}] * MANY}},
}


@pytest.mark.parametrize("form", ["line", "page"])
@pytest.mark.parametrize("which", LONG)
def test_what_a_tenant_makes_long_takes_no_memory(which: str, form: str) -> None:
    """Each entry costs up to ten times its bytes: 90 pods of 1.4 MB took a gigabyte."""
    item = LONG[which]
    if form == "line":
        line = CODEC.decode_line(msgspec.json.encode({"type": "ADDED", "object": item}))
        assert isinstance(line, ChangeLine)
        pod = line.object
    else:
        filler = {"metadata": {"name": "filler", "annotations": {"a": "x" * 5 * 2**20}}}
        pod = CODEC.decode_page(msgspec.json.encode({"items": [item, filler]})).items[0]
    assert len(msgspec.json.encode(pod)) < 150_000


def test_what_is_cut_still_exceeds_its_limit_and_own_keys_stay() -> None:
    requests = {**dict.fromkeys(_TEXTS, "1"), "nvidia.com/mig-1g.5gb": "1", "cpu": "2"}
    item = {
        "metadata": {"name": "a", "annotations": {**_MAP, "tessera.dev/priority": "1"}},
        "spec": {
            "nodeSelector": _MAP,
            "containers": [{"name": "c", "resources": {"requests": requests}}],
        },
    }
    line = CODEC.decode_line(msgspec.json.encode({"type": "ADDED", "object": item}))
    assert isinstance(line, ChangeLine)
    pod = line.object
    assert pod.metadata.annotations["tessera.dev/priority"] == "1"
    kept = pod.spec.containers[0].resources.requests
    assert (kept["nvidia.com/mig-1g.5gb"], kept["cpu"], len(kept)) == ("1", "2", POD_QUANTITIES + 1)
    assert find_excess(pod.spec).startswith("node selector has 101 or more labels, at most 100 labels are allowed")


@pytest.mark.parametrize("form", ["line", "page"])
def test_more_finalizers_than_are_read_spoil_an_object_whose_finalizers_tessera_writes(form: str) -> None:
    codec = Codec(ResourceClaim)
    item = {"metadata": {"name": "a", "namespace": "b", "uid": "u", "finalizers": _TEXTS}, "spec": {}}
    if form == "line":
        found: Any = codec.decode_line(msgspec.json.encode({"type": "ADDED", "object": item}))
    else:
        filler = {"metadata": {"name": "filler", "annotations": {"a": "x" * 5 * 2**20}}, "spec": {}}
        page = codec.decode_page(msgspec.json.encode({"items": [item, filler]}))
        assert len(page.items) == 1
        (found,) = page.undecodable
    assert isinstance(found, Undecodable)
    assert found.metadata is not None
    assert (found.metadata.name, found.error) == ("a", "metadata.finalizers: 40,000 entries, at most 1,000 are read")


def test_nothing_that_stands_before_own_keys_hides_them() -> None:
    own = ("tessera.dev/pinned", "nvidia.com/gpu", "mig.das.com/1g.5gb", "instaslice.redhat.com/mig-1g.5gb")
    item = {"metadata": {"annotations": {**{f"cpu{n}": "1" for n in range(MANY)}, **dict.fromkeys(own, "1")}}}
    line = CODEC.decode_line(msgspec.json.encode({"type": "ADDED", "object": item}))
    assert isinstance(line, ChangeLine)
    assert set(own) <= line.object.metadata.annotations.keys()


def test_an_object_of_a_usual_size_is_left_as_it_is() -> None:
    labels = {f"l{n}": "x" for n in range(1_100)}
    line = CODEC.decode_line(msgspec.json.encode({"type": "ADDED", "object": {"metadata": {"labels": labels}}}))
    assert isinstance(line, ChangeLine)
    assert line.object.metadata.labels == labels
