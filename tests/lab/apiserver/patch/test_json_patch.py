"""JSON patch, merge patch, strategic merge: RFC 6902, RFC 7386 and Kubernetes' own."""

from typing import Any

import pytest

from tessera_lab.apiserver.patch.strategic_merge import json_patch, merge_patch, strategic_merge
from tessera_lab.apiserver.schemas.merge_topology import builtin_topology
from tessera_lab.apiserver.status import StatusError

POD = builtin_topology("", "v1", "Pod")


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_as_in_the_rfc(target: Any, patch: Any, result: Any) -> None:
    assert merge_patch(target, patch) == result


@pytest.mark.parametrize(
    ("operation", "result"),
    [
        ({"op": "add", "path": "/l/1", "value": 9}, {"l": [1, 9, 2], "m": {"a/b": 1}}),
        ({"op": "add", "path": "/l/-", "value": 9}, {"l": [1, 2, 9], "m": {"a/b": 1}}),
        ({"op": "remove", "path": "/m/a~1b"}, {"l": [1, 2], "m": {}}),
        ({"op": "replace", "path": "/l", "value": []}, {"l": [], "m": {"a/b": 1}}),
        ({"op": "move", "from": "/l/0", "path": "/x"}, {"l": [2], "m": {"a/b": 1}, "x": 1}),
        ({"op": "copy", "from": "/l/0", "path": "/x"}, {"l": [1, 2], "m": {"a/b": 1}, "x": 1}),
        ({"op": "test", "path": "/l/0", "value": 1}, {"l": [1, 2], "m": {"a/b": 1}}),
    ],
)
def test_json_patch_operations(operation: Any, result: Any) -> None:
    assert json_patch({"l": [1, 2], "m": {"a/b": 1}}, [operation]) == result


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/a", "value": 2},
        {"op": "remove", "path": "/ghost"},
        {"op": "replace", "path": "/ghost", "value": 1},
        {"op": "add", "path": "/ghost/x", "value": 1},
    ],
)
def test_json_patch_that_does_not_fit_is_refused(operation: Any) -> None:
    with pytest.raises(StatusError) as refused:
        json_patch({"a": 1}, [operation])
    assert refused.value.code == 422


def containers(*names: str) -> Any:
    return {"spec": {"containers": [{"name": name, "image": "old"} for name in names]}}


def test_a_list_is_replaced_on_demand() -> None:
    patch = {"spec": {"containers": [{"name": "z"}, {"$patch": "replace"}]}}
    assert strategic_merge(containers("a", "b"), patch, POD) == {"spec": {"containers": [{"name": "z"}]}}


def test_order_is_set_by_directive() -> None:
    patch = {
        "spec": {
            "$setElementOrder/containers": [{"name": "c"}, {"name": "a"}],
            "containers": [{"name": "c", "image": "old"}],
        }
    }
    merged = strategic_merge(containers("a", "b"), patch, POD)
    assert {c["name"] for c in merged["spec"]["containers"]} == {"a", "b", "c"}
    names = [c["name"] for c in merged["spec"]["containers"]]
    assert names.index("c") < names.index("a")


def test_finalizers_are_a_set_from_which_values_go_by_directive() -> None:
    live = {"metadata": {"finalizers": ["a", "b"]}}
    added = strategic_merge(live, {"metadata": {"finalizers": ["c"]}}, POD)
    assert added["metadata"]["finalizers"] == ["a", "b", "c"]
    gone = strategic_merge(live, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}, POD)
    assert gone["metadata"]["finalizers"] == ["b"]


def test_lists_without_a_key_and_maps_with_replace_are_replaced() -> None:
    live = {"spec": {"tolerations": [{"key": "a"}], "nodeSelector": {"a": "1"}}}
    patch = {"spec": {"tolerations": [{"key": "b"}], "nodeSelector": {"$patch": "replace", "b": "2"}}}
    assert strategic_merge(live, patch, POD) == {"spec": {"tolerations": [{"key": "b"}], "nodeSelector": {"b": "2"}}}


def test_the_given_object_is_not_changed() -> None:
    live = containers("a")
    strategic_merge(live, {"spec": {"containers": [{"name": "a", "image": "new"}]}}, POD)
    assert live == containers("a")
