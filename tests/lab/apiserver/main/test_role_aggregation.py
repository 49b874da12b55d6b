"""The rules of aggregated roles, also of chains and circles of them."""

from collections.abc import Sequence
from typing import Any

from tessera_lab.apiserver.main.wiring import aggregate_rules

Role = dict[str, Any]


def rule(resource: str) -> dict[str, Any]:
    return {"apiGroups": [""], "resources": [resource], "verbs": ["get"]}


def role(name: str, *resources: str, part_of: Sequence[str] = (), gathers: str = "") -> Role:
    """A role with rules; its labels name the sets of which it is a part, and the one that it gathers."""
    made: Role = {
        "metadata": {"name": name, "labels": dict.fromkeys(part_of, "true")},
        "rules": [rule(each) for each in resources],
    }
    if gathers:
        made["aggregationRule"] = {"clusterRoleSelectors": [{"matchLabels": {gathers: "true"}}]}
    return made


def test_a_role_does_not_gather_itself_and_without_sources_it_has_no_rules() -> None:
    assert aggregate_rules([role("whole", "old", part_of=["x"], gathers="x")]) == {"whole": []}


def test_a_circle_ends() -> None:
    circle = [
        role("a", "pods", part_of=["b"], gathers="a"),
        role("b", part_of=["c"], gathers="b"),
        role("c", part_of=["a"], gathers="c"),
    ]
    assert set(aggregate_rules(circle)) == {"a", "b", "c"}


def test_an_empty_selector_gathers_every_other_role() -> None:
    whole = {**role("whole"), "aggregationRule": {"clusterRoleSelectors": [{}]}}
    assert aggregate_rules([whole, role("a", "pods")]) == {"whole": [rule("pods")]}
