"""JSONPath of printer columns."""

from typing import Any

import pytest

from tessera_lab.apiserver.tables.jsonpath import find_values, parse_path

OBJ: dict[str, Any] = {
    "metadata": {"labels": {"a.b/c": "x"}},
    "spec": {"n": 3, "list": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "False", "w": 5}]},
    "plain": [1, 2, 3],
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".", [OBJ]),
        (".spec.n", [3]),
        ("{.spec.n}", [3]),
        (".spec.missing.deep", []),
        (r".metadata.labels.a\.b/c", ["x"]),
        (".metadata.labels['a.b/c']", ["x"]),
        (".plain[0]", [1]),
        (".plain[-1]", [3]),
        (".plain[1:]", [2, 3]),
        (".plain[*]", [1, 2, 3]),
        (".spec.list[*].type", ["Ready", "Other"]),
        ('.spec.list[?(@.type=="Ready")].status', ["True"]),
        (".spec.list[?(@.type=='Other')].status", ["False"]),
        (".spec.list[?(@.type != 'Other')].status", ["True"]),
        (".spec.list[?(@.w>4)].type", ["Other"]),
        (".spec.list[?(@.w)].type", ["Other"]),
        (".spec.list[?(@.w>'x')].type", []),
        (".metadata.labels.*", ["x"]),
    ],
)
def test_what_a_path_leads_to(path: str, found: list[Any]) -> None:
    assert find_values(parse_path(path), OBJ) == found


@pytest.mark.parametrize(
    "path", ["..name", ".a[", ".a[?(@.x==)]", ".a[?(@.x==y z)]", ".a[?(@.x==yes)]", "{range .items}"]
)
def test_what_is_not_supported_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="JSONPath"):
        parse_path(path)
