"""Tests of the bound on the nesting of JSON that has no type."""

import ast
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera
from tessera.nesting import NESTING, TooDeepError, cut_nesting, decode_json, nests_deep

VALUES = st.recursive(
    st.one_of(st.none(), st.integers(-9, 9), st.text('[]{}"\\a', max_size=6)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('[]{}"\\a', max_size=4), inner, max_size=4),
    max_leaves=40,
)


def depth(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if parts is None else 1 + max(map(depth, parts), default=0)


@given(VALUES, VALUES, st.integers(NESTING - 4, NESTING + 1), st.booleans())
def test_the_depth_is_that_of_brackets_outside_of_texts(core: Any, beside: Any, wraps: int, as_list: bool) -> None:
    value = core
    for _ in range(wraps):
        value = [beside, value] if as_list else {'"]': beside, "[\\": value}
    text = msgspec.json.encode(value)
    deep = depth(value) > NESTING
    assert nests_deep(text) == deep
    assert (cut_nesting(text) == text) == (not deep)
    assert depth(msgspec.json.decode(cut_nesting(text))) <= NESTING
    if not deep:
        assert decode_json(text) == value


@pytest.mark.parametrize("levels", [NESTING + 1, 5_000, 1_000_000])
@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"a":', "}")])
def test_one_level_too_many_is_refused_on_every_python(levels: int, begin: str, end: str) -> None:
    assert decode_json(begin * (NESTING - 1) + "[]" + end * (NESTING - 1))
    with pytest.raises(TooDeepError, match="nested too deeply: 128 levels are read"):
        decode_json(begin * (levels - 1) + "[]" + end * (levels - 1))


#: Modules whose JSON without a type is a program's own: what it encoded itself, or a copy of what it has decoded.
OWN = {
    "doctor/manifests.py",
    "cli/base/grammar.py",
    "api/documents.py",
    "kube/codec.py",
    "nesting.py",
}


def test_no_other_module_decodes_json_without_a_type() -> None:
    root = Path(tessera.__file__).parent
    found = {
        f"{path.relative_to(root)}:{node.lineno}"
        for path in root.rglob("*.py")
        if str(path.relative_to(root)) not in OWN
        if "json." in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and _is_untyped(node)
    }
    assert found == set(), "use tessera.nesting.decode_json, which bounds how deep the text nests"


def _is_untyped(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    kinds = [each.value for each in call.keywords if each.arg == "type"]
    if name.endswith("json.Decoder"):
        kinds = call.args
    elif name not in {"msgspec.json.decode", "json.loads", "json.load"}:
        return False
    return not kinds or "Any" in ast.unparse(kinds[0])
