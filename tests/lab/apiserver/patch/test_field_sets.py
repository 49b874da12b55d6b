"""Sets of fields in their stored form: the same algebra as on whole sets, without rebuilding what does not change."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tessera_lab.apiserver.patch.field_sets import (
    SELF,
    Fields,
    add_to_stored,
    compact,
    difference,
    expand,
    new_leaf,
    remove_from_stored,
    union,
)

_NAMES = st.sampled_from(["f:a", "f:b", 'k:{"n":1}', "v:1"])


def _member(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Fields]:
    below = st.dictionaries(_NAMES, children, min_size=1, max_size=3)
    return st.one_of(below, below.map(lambda fields: {**fields, SELF: {}}))


_SETS: st.SearchStrategy[Fields] = st.dictionaries(
    _NAMES, st.recursive(st.builds(new_leaf), _member, max_leaves=6), max_size=3
)


@given(_SETS, _SETS, _SETS)
def test_taking_members_from_a_stored_set(one: Fields, other: Fields, third: Fields) -> None:
    expected = compact(difference(difference(one, other), third))
    assert remove_from_stored(compact(one), other, third) == expected


@given(_SETS, _SETS)
def test_adding_members_to_a_stored_set(one: Fields, other: Fields) -> None:
    assert add_to_stored(compact(one), other) == compact(union(one, other))


@given(_SETS)
def test_a_set_that_keeps_its_members_is_the_same_object(one: Fields) -> None:
    stored = compact(one)
    assert remove_from_stored(stored, {"f:elsewhere": new_leaf()}) is stored
    assert add_to_stored(stored, one) is stored


@given(_SETS)
def test_the_stored_form_is_read_back_whole(one: Fields) -> None:
    assert {key: expand(value) for key, value in compact(one).items()} == one
