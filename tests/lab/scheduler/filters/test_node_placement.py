"""Node selectors, node affinity, taints."""

from typing import Any

import pytest

from tessera_lab.scheduler.filters.node_placement import (
    find_untolerated,
    pinned_names,
    preferred_weight,
    selector_matches,
)

LABELS = {"zone": "a", "gpus": "8"}


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": rule}}


def expressions(*parts: tuple[str, str, list[str]]) -> dict[str, Any]:
    return {
        "matchExpressions": [{"key": key, "operator": operator, "values": values} for key, operator, values in parts]
    }


@pytest.mark.parametrize(
    ("key", "operator", "values", "matches"),
    [
        ("zone", "In", ["a", "b"], True),
        ("zone", "In", ["b"], False),
        ("none", "In", [""], False),
        ("zone", "NotIn", ["b"], True),
        ("none", "NotIn", ["b"], True),
        ("zone", "Exists", [], True),
        ("none", "Exists", [], False),
        ("none", "DoesNotExist", [], True),
        ("gpus", "Gt", ["4"], True),
        ("gpus", "Gt", ["8"], False),
        ("gpus", "Lt", ["9"], True),
        ("zone", "Gt", ["1"], False),
        ("none", "Lt", ["1"], False),
    ],
)
def test_operators(key: str, operator: str, values: list[str], matches: bool) -> None:
    assert selector_matches(required(expressions((key, operator, values))), LABELS, "n1") is matches


@pytest.mark.parametrize(
    ("spec", "matches"),
    [
        pytest.param({}, True, id="nothing asked"),
        pytest.param({"nodeSelector": {"zone": "a", "gpus": "8"}}, True, id="all labels"),
        pytest.param({"nodeSelector": {"zone": "a", "gpus": "4"}}, False, id="one label differs"),
        pytest.param(
            required(expressions(("zone", "In", ["b"])), expressions(("gpus", "In", ["8"]))), True, id="terms are ORed"
        ),
        pytest.param(
            required(expressions(("zone", "In", ["a"]), ("gpus", "In", ["4"]))), False, id="expressions are ANDed"
        ),
        pytest.param(required({}), False, id="an empty term matches nothing"),
        pytest.param(required(), False, id="no terms match nothing"),
        pytest.param(
            {"nodeSelector": {"zone": "b"}} | required(expressions(("zone", "In", ["a"]))), False, id="both must hold"
        ),
    ],
)
def test_selectors_and_terms(spec: dict[str, Any], matches: bool) -> None:
    assert selector_matches(spec, LABELS, "n1") is matches


def by_name(*names: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": list(names)}]}


def test_a_term_on_the_name_pins_the_pod() -> None:
    spec = required(by_name("n1", "n2"))
    assert pinned_names(spec) == frozenset({"n1", "n2"})
    assert selector_matches(spec, {}, "n1")
    assert not selector_matches(spec, {}, "n3")


def test_one_term_without_a_name_leaves_other_nodes() -> None:
    assert pinned_names(required(by_name("n1"), expressions(("zone", "In", ["a"])))) is None


def test_preferences_add_up() -> None:
    preferred = [
        {"weight": 10, "preference": expressions(("zone", "In", ["a"]))},
        {"weight": 5, "preference": expressions(("gpus", "In", ["8"]))},
        {"weight": 90, "preference": expressions(("zone", "In", ["b"]))},
    ]
    rule = {"preferredDuringSchedulingIgnoredDuringExecution": preferred}
    assert preferred_weight({"affinity": {"nodeAffinity": rule}}, LABELS, "n1") == 15


TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "value": "yes"}, True),
        ({"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "value": "no"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"operator": "Exists"}, True),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_tolerations(toleration: dict[str, str], tolerated: bool) -> None:
    assert (find_untolerated([TAINT], [toleration]) is None) is tolerated


def test_prefer_no_schedule_keeps_nobody_away() -> None:
    assert find_untolerated([TAINT | {"effect": "PreferNoSchedule"}], []) is None
