"""Label and field selectors mean what they mean to kubectl."""

import pytest

from tessera.kube.resources import LabelSelector, LabelSelectorRequirement
from tessera.kube.selectors import parse_field_selector, parse_label_selector, selector_from

LABELS = {"app": "web", "tier": "front", "size": "5", "empty": ""}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("app=web", True),
        ("app==web", True),
        ("app = web , tier!=back", True),
        ("app!=web", False),
        ("missing!=anything", True),
        ("app in (web, api)", True),
        ("app notin (web,api)", False),
        ("missing notin (x)", True),
        ("missing in (x)", False),
        ("app", True),
        ("!app", False),
        ("!missing", True),
        ("size>4", True),
        ("size<5", False),
        ("app>4", False),
        ("empty=", True),
        ("app=", False),
        ("app=web,tier in (front),!missing,size>1", True),
        ("example.com/name=x", False),
    ],
)
def test_label_selectors(text: str, matches: bool) -> None:
    assert parse_label_selector(text).matches(LABELS) is matches


@pytest.mark.parametrize("text", ["=", "a b", "a in b", "a in (b", ",a", "a=b=c", "()"])
def test_a_text_that_is_no_label_selector_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="label selector"):
        parse_label_selector(text)


def test_a_structured_selector_needs_everything_to_hold() -> None:
    test = LabelSelectorRequirement(key="tier", operator="In", values=("front", "back"))
    selector = selector_from(LabelSelector(match_labels={"app": "web"}, match_expressions=(test,)))
    assert selector is not None
    assert selector.matches(LABELS)
    assert not selector.matches({"app": "web"})


def test_no_structured_selector_is_none_and_an_empty_one_matches_everything() -> None:
    assert selector_from(None) is None
    everything = selector_from(LabelSelector())
    assert everything is not None
    assert everything.matches({})


def test_an_unknown_operator_is_refused() -> None:
    test = LabelSelectorRequirement(key="a", operator="Like")
    with pytest.raises(ValueError, match="'Like'"):
        selector_from(LabelSelector(match_expressions=(test,)))


POD = {"metadata": {"name": "a,b"}, "spec": {"nodeName": "n1", "hostNetwork": True}, "status": {"phase": "Running"}}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("spec.nodeName=n1", True),
        ("spec.nodeName==n1,status.phase!=Failed", True),
        ("spec.nodeName!=n1", False),
        ("spec.hostNetwork=true", True),
        ("status.nominatedNodeName=", True),
        (r"metadata.name=a\,b", True),
    ],
)
def test_field_selectors(text: str, matches: bool) -> None:
    assert parse_field_selector(text).matches(POD) is matches


def test_a_field_without_an_operator_is_refused() -> None:
    with pytest.raises(ValueError, match="needs one of"):
        parse_field_selector("spec.nodeName")
