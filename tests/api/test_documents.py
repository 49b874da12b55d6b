"""Files are read strictly: every mistake is found, each with its path and what was probably meant."""

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.documents import load_document, load_documents
from tessera.api.problems import FileRefused, ProblemCollector, join_path, quote_value, suggest


def test_yaml_and_json_are_read_alike() -> None:
    assert load_document("version: v1\nflags: {a: 1}\n") == load_document('{"version": "v1", "flags": {"a": 1}}')
    assert load_document('{\n\t"version": "v1"\n}') == load_document('{"version": "v1",}') == {"version": "v1"}
    assert load_document("") is None
    assert load_documents("a: 1\n---\n---\nb: 2\n") == [{"a": 1}, {"b": 2}]


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
    assert load_document(text) == value


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3\n", '{"a": 1, "a": 3}'])
def test_a_key_that_stands_twice_is_refused(text: str) -> None:
    with pytest.raises(FileRefused, match='key "a" stands twice'):
        load_document(text)


def test_what_is_no_yaml_is_refused_with_its_line() -> None:
    with pytest.raises(FileRefused, match=r"not YAML: .*line 2"):
        load_document("a: [1,\nb: ]c")
    with pytest.raises(FileRefused, match="unhashable key"):
        load_document("[1, 2]: 3\n")
    with pytest.raises(FileRefused, match="holds 2 documents"):
        load_document("a: 1\n---\nb: 1\n")


def test_all_mistakes_are_gathered() -> None:
    found = ProblemCollector()
    fields = found.mapping({"replica": 4, "name": 1, 5: 6}, "resources[0]", ["name", "replicas"])
    found.text(fields["name"], "resources[0].name")
    found.integer(True, "n", 1)
    found.integer(0, "n", 1)
    found.boolean("yes", "b")
    found.choice("pakced", "p", ["distributed", "packed"])
    assert list(found.items(3, "l")) == []
    with pytest.raises(FileRefused) as refused:
        found.raise_problems()
    *others, choice, last = map(str, refused.value.problems)
    assert [*others, last] == [
        "resources[0]: key 5 must be text; put it in quotes",
        "resources[0].replica: unknown; did you mean replicas?",
        "resources[0].name: must be text, not 1",
        "n: must be a whole number, not true",
        "n: must be 1 or more, not 0",
        'b: must be true or false, not "yes"',
        "l: must be a list, not 3",
    ]
    assert choice.startswith("p: ")
    for fact in ("must be distributed or packed", 'not "pakced"', "did you mean packed?"):
        assert fact in choice


def test_paths_quote_what_is_more_than_a_word() -> None:
    assert join_path("mig-devices", "1g.5gb+me") == 'mig-devices["1g.5gb+me"]'
    assert join_path("", "sharing") == "sharing"


def test_a_key_unlike_all_others_is_told_what_there_is() -> None:
    assert suggest("colour", ["name", "replicas"]) == "the keys here are name, replicas"
    assert suggest("timeslicing", ["timeSlicing", "mps"]) == "did you mean timeSlicing?"


@pytest.mark.parametrize(
    "text",
    ["[" * 5000, '{"a":' * 50000, "a: 0x_", '{"a": ' + "9" * 5000 + "}", "a: \x00", "- a\n b: c", '"\\UFFFFFFFF"'],
)
def test_what_python_cannot_read_is_refused_like_any_other_mistake(text: str) -> None:
    with pytest.raises(FileRefused):
        load_document(text)


@pytest.mark.parametrize("text", ["a: &x [*x]", "&x {a: {b: *x}}", "&x {<<: *x}"])
def test_a_document_that_holds_itself_is_refused(text: str) -> None:
    with pytest.raises(FileRefused, match=r"line 1: \*x holds itself"):
        load_document(text)


@pytest.mark.parametrize(
    "text",
    [
        "!!int ''",
        "!!int 1:1:1",
        "!!int {=: 1:1:1}",
        "!!float " + ":".join(["1"] * 400),
        "!!bool maybe",
        "!!timestamp now",
        "!!set {a, b}",
        "!own {}",
    ],
)
def test_a_tag_that_says_what_a_value_is_is_refused(text: str) -> None:
    with pytest.raises(FileRefused, match=r"line 2: tag !\S+ says what a value is; leave it out"):
        load_document(f"a:\n  {text}\n")
    assert load_document("[!!str 5, !!binary aGk=, !!map {a: 1}, !!seq [a]]") == ["5", b"hi", {"a": 1}, ["a"]]


def test_a_tag_that_its_short_name_makes_long_is_refused_at_its_first_use() -> None:
    with pytest.raises(FileRefused, match=r"line 3: tag t{57}\.\.\. says") as refused:
        load_document(f"%TAG !e! {'t' * 10_000}\n---\n- !e!x a\n- !e!x b\n")
    assert len(str(refused.value)) < 200


@given(st.text("ab:{}[]-&*!|>'\"# \n\t0x_.,?%@", max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(FileRefused):
        load_documents(text)


def test_a_file_stands_for_about_what_is_written_in_it() -> None:
    assert load_document(f"a: &a {'x' * 1000}\nb: [{', '.join(['*a'] * 900)}]")["b"] == ["x" * 1000] * 900
    with pytest.raises(FileRefused, match=r"line 2: .*\*a repeat too much.*at most 1,000,000 "):
        load_document(f"a: &a {'x' * 1000}\nb: [{', '.join(['*a'] * 1000)}]")


@pytest.mark.parametrize("step", ["{{<<: [{}]}}", "[{}]", "{{k: [{}]}}"])
def test_parts_that_grow_by_taking_each_other_in_are_refused_early(step: str) -> None:
    levels = [f"{one}: &{one} " + step.format(", ".join([f"*{before}"] * 10)) for before, one in pairwise("abcdefghij")]
    with pytest.raises(FileRefused, match=r"line \d: names such as .* repeat too much"):
        load_document("\n".join(["a: &a {x: 1, y: 2}", *levels]))


def test_one_level_of_many_large_mappings_is_refused_before_it_is_merged() -> None:
    large = ", ".join(f"k{number}: 1" for number in range(2000))
    with pytest.raises(FileRefused, match=r"line 2: names such as \*a repeat too much"):
        load_document(f"a: &a {{{large}}}\nb: {{<<: [{', '.join(['*a'] * 20_000)}]}}\n")


def test_a_key_that_a_merge_brings_too_stands_once_wherever_the_merge_is_named() -> None:
    text = "c: &c {k: 0}\nx:\n  y: &b {k: 1, <<: *c}\nz: {<<: *b}\n"
    assert load_document(text) == {"c": {"k": 0}, "x": {"y": {"k": 1}}, "z": {"k": 1}}
    with pytest.raises(FileRefused, match='line 2: key "<<" stands twice'):
        load_document("c: &c {k: 0}\nx: {<<: *c, <<: *c}\n")


def test_a_number_that_is_too_long_is_text() -> None:
    assert load_document(f"[{2**63}, {10**20}, 0x{'f' * 5000}]") == [2**63, str(10**20), "0x" + "f" * 5000]


def test_what_is_shown_of_a_value_is_short_however_large_it_is() -> None:
    itself: list[object] = []
    itself.append(itself)
    deep: object = "x"
    for _ in range(100):
        deep = {"a": [deep] * 10}
    assert quote_value(deep) == ('{"a": [' * 9)[:57] + "..."
    assert quote_value(itself) == "[" * 57 + "..."
    assert quote_value("x" * 1000) == '"' + "x" * 56 + "..."
    assert quote_value({b"hi": 1}) == "{b'hi': 1}"
    assert len(quote_value({b"hi": deep})) == 60
    assert quote_value([1, {"a": None}]) == '[1, {"a": null}]'


def test_what_is_quoted_of_a_file_in_a_message_is_short() -> None:
    long = "k" * 10_000
    found = ProblemCollector()
    found.mapping({long: 1}, "a", ["name"])
    found.choice(long, "p", ["packed"])
    found.integer(-(10**4000), "n", 1)
    texts = [str(each) for each in found.problems]
    assert texts[0] == f'a["{"k" * 317}..."]: unknown; the keys here are name'
    assert max(map(len, texts)) < 400
    for text in (f"{long}: 1\n{long}: 2\n", f'{{"{long}": 1, "{long}": 2}}', f"a: *{long}", f"&{long} [*{long}]"):
        with pytest.raises(FileRefused) as refused:
            load_document(text)
        assert len(str(refused.value)) < 1100
