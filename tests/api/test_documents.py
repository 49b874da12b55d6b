"""Files are read strictly: every mistake is found, each with its path and what was probably meant."""

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.documents import FileRefused, Gathered, join, load, load_all, meant


def test_yaml_and_json_are_read_alike() -> None:
    assert load("version: v1\nflags: {a: 1}\n") == load('{"version": "v1", "flags": {"a": 1}}')
    assert load('{\n\t"version": "v1"\n}') == load('{"version": "v1",}') == {"version": "v1"}
    assert load("") is None
    assert load_all("a: 1\n---\n---\nb: 2\n") == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[1:0, 0:1, 2:30]", ["1:0", "0:1", "2:30"]),
        ("[0, 7, 0x10, -1]", [0, 7, 16, -1]),
        ("[1.5, 2024-01-01]", [1.5, "2024-01-01"]),
        ("[true, no]", [True, False]),
    ],
)
def test_scalars_are_what_kubernetes_reads(text: str, value: list[object]) -> None:
    assert load(text) == value


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3\n", '{"a": 1, "a": 3}'])
def test_a_key_that_stands_twice_is_refused(text: str) -> None:
    with pytest.raises(FileRefused, match='key "a" stands twice'):
        load(text)


def test_what_is_no_yaml_is_refused_with_its_line() -> None:
    with pytest.raises(FileRefused, match=r"not YAML: .*line 2"):
        load("a: [1,\nb: ]c")
    with pytest.raises(FileRefused, match="unhashable key"):
        load("[1, 2]: 3\n")
    with pytest.raises(FileRefused, match="holds 2 documents"):
        load("a: 1\n---\nb: 1\n")


def test_all_mistakes_are_gathered() -> None:
    found = Gathered()
    fields = found.mapping({"replica": 4, "name": 1, 5: 6}, "resources[0]", ["name", "replicas"])
    found.text(fields["name"], "resources[0].name")
    found.whole(True, "n", 1)
    found.whole(0, "n", 1)
    found.boolean("yes", "b")
    found.choice("pakced", "p", ["distributed", "packed"])
    assert list(found.items(3, "l")) == []
    with pytest.raises(FileRefused) as refused:
        found.settle()
    assert [str(each) for each in refused.value.problems] == [
        "resources[0]: key 5 must be text; put it in quotes",
        "resources[0].replica: unknown; did you mean replicas?",
        "resources[0].name: must be text, not 1",
        "n: must be a whole number, not true",
        "n: must be 1 or more, not 0",
        'b: must be true or false, not "yes"',
        'p: must be distributed or packed, not "pakced"; did you mean packed?',
        "l: must be a list, not 3",
    ]


def test_paths_quote_what_is_more_than_a_word() -> None:
    assert join("mig-devices", "1g.5gb+me") == 'mig-devices["1g.5gb+me"]'
    assert join("", "sharing") == "sharing"


def test_a_key_unlike_all_others_is_told_what_there_is() -> None:
    assert meant("colour", ["name", "replicas"]) == "the keys here are name, replicas"
    assert meant("timeslicing", ["timeSlicing", "mps"]) == "did you mean timeSlicing?"


@pytest.mark.parametrize("text", ["[" * 5000, '{"a":' * 50000, "a: 0x_", "a: " + "9" * 5000, "a: \x00", "- a\n b: c"])
def test_what_python_cannot_read_is_refused_like_any_other_mistake(text: str) -> None:
    with pytest.raises(FileRefused):
        load(text)


def test_a_document_that_holds_itself_can_be_shown() -> None:
    found = Gathered()
    found.text(load("a: &x [*x]")["a"], "a")
    found.text(load("a: {!!binary aGk=: 1}")["a"], "a")
    assert [each.text for each in found.problems] == ["must be text, not [[...]]", "must be text, not {b'hi': 1}"]


@given(st.text("ab:{}[]-&*!|>'\"# \n\t0x_.,?%@", max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(FileRefused):
        load_all(text)


def test_mappings_that_grow_by_taking_each_other_in_are_refused_early() -> None:
    levels = [f"{one}: &{one} {{<<: [{', '.join([f'*{before}'] * 10)}]}}" for before, one in pairwise("abcdefghij")]
    with pytest.raises(FileRefused, match=r"line \d: a mapping of more than 100000 keys; take fewer in by <<"):
        load("\n".join(["a: &a {x: 1, y: 2}", *levels]))
