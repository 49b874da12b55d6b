"""Scenarios as people write them."""

from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from tessera_lab.activity.scenario import ScenarioError, Step, builtin_names, builtin_scenario, parse_scenario
from tessera_lab.limits import LAB_SCENARIO, LAB_SCENARIO_PARTS


def scenario(**parts: Any) -> str:
    return yaml.safe_dump({"about": "x", **parts})


def pods(**parts: Any) -> str:
    return scenario(pods=[{"name": "a", "request": {"nvidia.com/gpu": 1}, **parts}])


@pytest.mark.parametrize("name", builtin_names())
def test_each_built_in_scenario_says_in_a_sentence_what_happens(name: str) -> None:
    found = builtin_scenario(name)
    assert found.about.endswith(".")
    assert found.pods or found.steps or found.use


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("", "Expected `object`"),
        ("- a", "Expected `object`"),
        ("about: [", "not YAML"),
        ("about: a\nabout: b", "about"),
        (scenario(stepps=[]), "unknown field `stepps`"),
        (scenario(lasts="soon"), "a span is a number"),
        (scenario(repeat="0s"), "1s or more"),
        (scenario(steps=[{"at": "1m", "card": "node-1/0"}]), "one of fault, xid and mend"),
        (scenario(steps=[{"at": "1m", "card": "node-1/0", "fault": "fire"}]), "unreadable"),
        (scenario(steps=[{"at": "1m", "card": "node-1/0", "xid": 0}]), "1 to 999"),
        (scenario(steps=[{"at": "1m", "card": "c", "xid": 79}] * (LAB_SCENARIO_PARTS + 1)), "at most 100"),
        (scenario(use=[{"pods": "train-*", "use": {"load": 1}}]), "NAMESPACE/NAME"),
        (scenario(use=[{"pods": "a/b", "use": {"load": 2}}]), "0 to 1"),
        (pods(name="Big"), "name 'Big'"),
        (pods(namespace="../x"), "name '../x'"),
        (pods(count=0), "1 to 500"),
        (pods(every="1m"), "lasts is needed"),
        (pods(every="1s", lasts="2h"), "more than 500"),
        (pods(use={"memory": {"to": "120%"}}), "100%"),
        ("about: " + "x" * LAB_SCENARIO, "at most 32,768"),
        ("about: " + "[" * 5000, "nested"),
    ],
)
def test_a_mistake_is_named(text: str, fact: str) -> None:
    with pytest.raises(ScenarioError, match=r"^scenario: ") as refused:
        parse_scenario(text)
    assert fact in str(refused.value)
    assert "\n" not in str(refused.value)


def at(times: Sequence[Step]) -> list[str]:
    return [step.at for step in times]


def test_steps_happen_once_in_the_order_of_their_times() -> None:
    steps = [{"at": time, "card": "node-1/0", "xid": 79} for time in ("2m", "1m", "5m")]
    found = parse_scenario(scenario(steps=steps))
    assert at(list(found.steps_between(0, 121))) == ["1m", "2m"]
    assert at(list(found.steps_between(121, 300))) == []
    assert at(list(found.steps_between(300, 900))) == ["5m"]


def test_repeated_steps_happen_again_in_each_period() -> None:
    steps = [{"at": "1m", "card": "node-1/0", "fault": "heat"}, {"at": "2m", "card": "node-1/0", "mend": True}]
    found = parse_scenario(scenario(repeat="10m", steps=steps))
    times = [(60 * now, at(list(found.steps_between(60 * now, 60 * now + 60)))) for now in range(25)]
    assert [(now / 60, each) for now, each in times if each] == [
        (1, ["1m"]),
        (2, ["2m"]),
        (11, ["1m"]),
        (12, ["2m"]),
        (21, ["1m"]),
        (22, ["2m"]),
    ]
