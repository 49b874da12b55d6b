"""Label selectors mean what they mean to kubectl."""

import pytest

from tessera.kube.resources import LabelSelector, LabelSelectorRequirement
from tessera.kube.resources.selectors import Operator, Requirement, make_selector, parse_selector

LABELS = {"app": "web", "tier": "front", "size": "5", "empty": ""}


@pytest.mark.parametrize(
    ("key", "operator", "values", "matches"),
    [
        ("app", "In", ("web", "api"), True),
        ("app", "NotIn", ("web", "api"), False),
        ("missing", "NotIn", ("x",), True),
        ("missing", "In", ("x",), False),
        ("app", "Exists", (), True),
        ("missing", "Exists", (), False),
        ("app", "DoesNotExist", (), False),
        ("missing", "DoesNotExist", (), True),
        ("size", "Gt", ("4",), True),
        ("size", "Gt", ("5",), False),
        ("size", "Lt", ("6",), True),
        ("size", "Lt", ("5",), False),
        ("missing", "Gt", ("4",), False),
        ("app", "Gt", ("4",), False),
        ("empty", "In", ("",), True),
    ],
)
def test_one_requirement(key: str, operator: Operator, values: tuple[str, ...], matches: bool) -> None:
    assert Requirement(key, operator, values).matches(LABELS) is matches


def test_a_structured_selector_needs_everything_to_hold() -> None:
    test = LabelSelectorRequirement(key="tier", operator="In", values=("front", "back"))
    selector = make_selector(LabelSelector(match_labels={"app": "web"}, match_expressions=(test,)))
    assert selector is not None
    assert selector.matches(LABELS)
    assert not selector.matches({"app": "web"})


def test_no_structured_selector_is_none_and_an_empty_one_matches_everything() -> None:
    assert make_selector(None) is None
    everything = make_selector(LabelSelector())
    assert everything is not None
    assert everything.matches({})


def test_an_unknown_operator_is_refused() -> None:
    test = LabelSelectorRequirement(key="a", operator="Like")
    with pytest.raises(ValueError, match="'Like'"):
        make_selector(LabelSelector(match_expressions=(test,)))


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("app=web", True),
        ("app==web,tier=front", True),
        ("app!=web", False),
        ("missing!=x", True),
        ("app in (web, api), tier notin (back)", True),
        ("app in (api)", False),
        ("tier,!missing", True),
        ("missing", False),
        ("empty=", True),
    ],
)
def test_a_selector_is_read_as_kubectl_reads_it(text: str, matches: bool) -> None:
    assert parse_selector(text).matches(LABELS) is matches


@pytest.mark.parametrize("text", ["app=a b", "=web", "app in web", "app in (a", "a b", "app=(a)"])
def test_a_text_that_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write key=value"):
        parse_selector(text)
